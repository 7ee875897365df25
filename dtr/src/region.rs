//! Evicted neighbourhoods (`h_DTR`, MSPS, h_e*): the cost of all evicted descendants and ancestors that hang together with a storage.
//!
//! The reference keeps two sets with each storage and updates them at every event. Here the sums are computed when a storage is next
//! compared, and only if a component next to it has changed since. The one difference this would make, while arguments of a new op are being
//! recomputed, is kept track of by [`Window`].

use crate::component::Components;
use crate::live::{GONE, Live, Way};
use crate::window::Window;

pub(crate) struct Regions {
    components: Components,
    /// MSPS does without descendants.
    descendants: bool,
    pub(crate) window: Window,
}

impl Regions {
    pub(crate) fn new(descendants: bool) -> Self {
        Self { components: Components::new(), descendants, window: Window::default() }
    }

    pub(crate) fn extend(&mut self, storages: usize) {
        self.components.extend(storages);
        self.window.extend(storages);
    }

    /// `storage` was dropped; it is no longer marked resident.
    pub(crate) fn evicted(&mut self, live: &mut Live, storage: u32, scratch: &mut Vec<u32>) {
        if self.window.is_open() {
            self.window.evicted(live, storage);
        }
        self.components.evicted(live, &self.window, storage, scratch);
    }

    /// `storage` is resident again after a recomputation, as are its siblings, or gone for good.
    pub(crate) fn restored(&mut self, live: &mut Live, storage: u32) {
        self.components.restored(live, storage);
        live.outdate(storage);
        if self.window.is_open() && !live.at(storage).is(GONE) {
            self.window.restored(live, storage);
        }
    }

    /// An edge between two storages has appeared by an alias op that reads more than one storage.
    pub(crate) fn connected(&mut self, live: &mut Live, parent: u32, child: u32) {
        self.components.connected(live, parent, child);
    }

    /// Cost of the evicted neighbourhood; a storage on both sides counts twice.
    pub(crate) fn around(&mut self, live: &mut Live, storage: u32) -> u64 {
        let window = &self.window;
        let mut around = self.components.reach(live, window, storage, Way::Parents);
        if self.descendants {
            around += self.components.reach(live, window, storage, Way::Children);
        }
        if window.is_open() { around + window.extra(storage, self.descendants) } else { around }
    }
}

/// Cost of the set union of evicted descendants and ancestors, and the latest use among them and the storage.
pub(crate) fn union_around(live: &mut Live, storage: u32, scratch: &mut Vec<u32>) -> (u64, u64) {
    scratch.clear();
    live.walk(storage, Way::Children, |id, _| scratch.push(id), |_| {});
    live.walk(storage, Way::Parents, |id, _| scratch.push(id), |_| {});
    let mark = live.fresh_mark();
    let (mut cost, mut last) = (0, live.at(storage).last);
    for &other in scratch.iter() {
        if live.set_mark(other, mark) {
            cost += live.at(other).cost;
            last = last.max(live.at(other).last);
        }
    }
    scratch.clear();
    (cost, last)
}
