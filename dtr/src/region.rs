//! Evicted neighbourhoods (`h_DTR`, MSPS, h_e*): the cost of all evicted descendants and ancestors that hang together with a storage.
//!
//! The reference keeps two sets with each storage and updates them at every event. Here a storage keeps two sums, which are computed by a
//! walk when the storage is next compared and outdated exactly when one of the reference's rules would change them: at an eviction or
//! recomputation, those who border on the evicted part around that storage. The one difference this would make, while arguments of a new
//! op are being recomputed, is kept track of by [`Window`].

use crate::live::{GONE, LATE, Live, Way};
use crate::window::Window;

const DESCENDANTS: u8 = 1;
const ANCESTORS: u8 = 2;

#[derive(Clone, Copy, Default)]
struct Sums {
    descendants: u64,
    ancestors: u64,
    outdated: u8,
}

pub(crate) struct Regions {
    sums: Vec<Sums>,
    /// MSPS does without descendants.
    descendants: bool,
    pub(crate) window: Window,
}

impl Regions {
    pub(crate) fn new(descendants: bool) -> Self {
        Self { sums: Vec::new(), descendants, window: Window::default() }
    }

    pub(crate) fn extend(&mut self, storages: usize) {
        self.sums.resize(storages, Sums::default());
        self.window.extend(storages);
    }

    fn outdate(&mut self, live: &mut Live, storage: u32, what: u8) {
        self.sums[storage as usize].outdated |= what;
        live.outdate(storage);
    }

    /// `storage` was dropped; it is no longer marked resident.
    pub(crate) fn evicted(&mut self, live: &mut Live, storage: u32, scratch: &mut Vec<u32>) {
        if self.window.is_open() {
            self.window.evicted(live, storage);
        }
        self.changed(live, storage, scratch);
    }

    /// `storage` is resident again after a recomputation, as are its siblings, or gone for good.
    pub(crate) fn restored(&mut self, live: &mut Live, storage: u32, scratch: &mut Vec<u32>) {
        self.changed(live, storage, scratch);
        self.sums[storage as usize].outdated = DESCENDANTS | ANCESTORS;
        live.outdate(storage);
        if self.window.is_open() && !live.at(storage).is(GONE) {
            self.window.restored(live, storage);
        }
    }

    fn changed(&mut self, live: &mut Live, storage: u32, scratch: &mut Vec<u32>) {
        if self.descendants {
            scratch.clear();
            live.borders(storage, Way::Parents, scratch);
            for &above in scratch.iter() {
                self.outdate(live, above, DESCENDANTS);
            }
        }
        scratch.clear();
        live.borders(storage, Way::Children, scratch);
        for &below in scratch.iter() {
            self.outdate(live, below, ANCESTORS);
        }
        scratch.clear();
    }

    /// An edge between two storages has appeared by an alias op that reads more than one storage.
    pub(crate) fn connected(&mut self, live: &mut Live, parent: u32, child: u32) {
        self.outdate(live, parent, DESCENDANTS);
        self.outdate(live, child, ANCESTORS);
    }

    /// Cost of the evicted neighbourhood; a storage on both sides counts twice.
    pub(crate) fn around(&mut self, live: &mut Live, storage: u32) -> u64 {
        let Sums { outdated, .. } = self.sums[storage as usize];
        if outdated & DESCENDANTS != 0 && self.descendants {
            self.sums[storage as usize].descendants = self.sum(live, storage, Way::Children);
        }
        if outdated & ANCESTORS != 0 {
            self.sums[storage as usize].ancestors = self.sum(live, storage, Way::Parents);
        }
        let sums = &mut self.sums[storage as usize];
        sums.outdated = 0;
        let around = sums.descendants + sums.ancestors;
        if self.window.is_open() { around + self.window.extra(storage, self.descendants) } else { around }
    }

    fn sum(&self, live: &mut Live, start: u32, way: Way) -> u64 {
        let (mut sum, window) = (0, &self.window);
        live.walk(
            start,
            way,
            |id, storage| {
                sum += storage.cost;
                if storage.flags & LATE != 0 {
                    sum -= window.late_cost(id);
                }
            },
            |_| {},
        );
        sum
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
