//! Banishing (paper section 4.4): a dead storage is freed for good as soon as no evicted tensor depends on it.
//!
//! Constants are banished as well, although pinned. What a banished storage fed can no longer be recomputed and is pinned. The reference's
//! run without a budget, from which every ratio is taken, is this policy. The reference drops a banished parent from the list that it is
//! just walking and so leaves the next parent locked for ever; that slip, which shows under a budget only, is not repeated here.

use crate::error::Error;
use crate::live::{GONE, MATERIAL, Way};
use crate::machine::{Machine, Stage};
use crate::program::Program;
use crate::world::World;

/// The aliases that lie on each storage.
#[derive(Debug, Default)]
pub(crate) struct Aliases {
    of: Vec<Vec<u32>>,
    /// Tensors looked at so far.
    seen: usize,
}

impl Aliases {
    /// Brings the lists up to date with a program that has grown.
    pub(crate) fn extend(&mut self, program: &Program, storages: usize, root: impl Fn(u32) -> u32) {
        self.of.resize_with(storages, Vec::new);
        for (tensor, t) in program.tensors.iter().enumerate().skip(self.seen) {
            if root(t.storage) != tensor as u32 {
                self.of[t.storage as usize].push(tensor as u32);
            }
        }
        self.seen = program.tensors.len();
    }
}

impl Machine {
    /// Banishes a dead storage unless something evicted depends on it; then it is tried again when that comes back.
    pub(crate) fn banish<W: World>(&mut self, storage: u32, world: &mut W) -> Result<(), Error> {
        let entry = self.live.at(storage);
        if entry.is(GONE)
            || entry.wants > 0
            || self.live.neighbours(storage, Way::Children).any(|child| self.reads_again(child, storage))
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

    /// Whether something on `child` is yet to be made from `storage`, or to be made again: its root, or an alias that went when the child
    /// did and has not come back with the root.
    fn reads_again(&self, child: u32, storage: u32) -> bool {
        let entry = self.live.at(child);
        if !entry.is(MATERIAL) {
            return entry.evicted();
        }
        let reads = |id: u32| {
            let op = &self.program.ops[id as usize];
            let args = &self.program.args[op.args as usize..(op.args + op.arity) as usize];
            self.stages[id as usize] != Stage::Declared
                && args.iter().any(|&arg| self.storage(arg) == storage)
        };
        let of = self.aliases.of.get(child as usize).map_or(&[][..], Vec::as_slice);
        of.iter().any(|&alias| !self.has(alias) && reads(self.program.tensors[alias as usize].op))
    }
}
