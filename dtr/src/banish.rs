//! Banishing (paper section 4.4): a dead storage is freed for good as soon as no evicted storage depends on it.
//!
//! Constants are banished as well, although pinned. What a banished storage fed can no longer be recomputed and is pinned. The reference's
//! run without a budget, from which every ratio is taken, is this policy. The reference drops a banished parent from the list that it is
//! just walking and so leaves the next parent locked for ever; that slip, which shows under a budget only, is not repeated here.

use crate::error::Error;
use crate::live::{GONE, MATERIAL, Way};
use crate::machine::Machine;
use crate::world::World;

impl Machine {
    /// Banishes a dead storage unless something evicted depends on it; then it is tried again when that comes back.
    pub(crate) fn banish<W: World>(&mut self, storage: u32, world: &mut W) -> Result<(), Error> {
        let entry = self.live.at(storage);
        if entry.is(GONE)
            || entry.wants > 0
            || self.live.neighbours(storage, Way::Children).any(|child| self.live.at(child).evicted())
        {
            return Ok(());
        }
        self.give_up(storage, world)?;
        let children: Vec<u32> = self.live.neighbours(storage, Way::Children).collect();
        for child in children {
            if self.live.at(child).is(MATERIAL) {
                self.pin_now(child, world)?;
            }
        }
        Ok(())
    }
}
