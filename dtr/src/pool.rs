//! The pool of evictable storages, in order of entry, and the search for the lowest score in it.
//!
//! The order matters: on equal scores the last one goes. So entries sit in slots in order of entry, leaving one makes a hole, and the slots
//! are compacted when most are holes.
//!
//! The search turns every score around: `cost / (size * staleness)` is least where `weight * (clock - last)` with `weight = size / cost` is
//! greatest, one multiplication a slot and no division. Slots are grouped in blocks with bounds (greatest weight, oldest use) that survive
//! the passing of time, so that a block that cannot hold the best is skipped. Since storages enter in order of use, bounds are tight and
//! few blocks are opened. The arithmetic is approximate within a known margin; all that come within it of the best are compared exactly.

use crate::ids::NONE;
use crate::live::Live;

const BLOCK: usize = 32;
/// The greatest relative difference of two reciprocals whose exact scores may be equal: 8 roundings of 2^-53, with room to spare.
const MARGIN: f64 = 2e-15;
/// The weight of a hole: it never reaches the least of a live one, 0.
const HOLE: f64 = -1.0;
/// The weight of a score that is 0 or negative: such a pool is searched exactly.
pub(crate) const ODD: f64 = f64::INFINITY;

#[derive(Default)]
pub(crate) struct Pool {
    storages: Vec<u32>,
    weights: Vec<f64>,
    lasts: Vec<f64>,
    heaviest: Vec<f64>,
    oldest: Vec<f64>,
    live: usize,
    odd: usize,
    reached: Vec<(u32, f64)>,
}

impl Pool {
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Whether some score in it is 0 or negative.
    pub(crate) fn has_odd(&self) -> bool {
        self.odd > 0
    }

    /// Appends a storage.
    pub(crate) fn push(&mut self, live: &mut Live, storage: u32, weight: f64) {
        if self.storages.len() >= 2 * self.live + 4 * BLOCK {
            self.compact(live);
        }
        let slot = self.storages.len();
        let entry = live.at_mut(storage);
        entry.slot = slot as u32;
        let last = entry.last as f64;
        self.storages.push(storage);
        self.weights.push(weight);
        self.lasts.push(last);
        self.live += 1;
        self.odd += usize::from(weight == ODD);
        self.widen(slot, weight, last);
    }

    fn widen(&mut self, slot: usize, weight: f64, last: f64) {
        let block = slot / BLOCK;
        if block == self.heaviest.len() {
            self.heaviest.push(weight);
            self.oldest.push(last);
        } else {
            self.heaviest[block] = self.heaviest[block].max(weight);
            self.oldest[block] = self.oldest[block].min(last);
        }
    }

    /// Takes a storage out.
    pub(crate) fn remove(&mut self, live: &mut Live, storage: u32) {
        let slot = std::mem::replace(&mut live.at_mut(storage).slot, NONE) as usize;
        self.odd -= usize::from(self.weights[slot] == ODD);
        self.storages[slot] = NONE;
        self.weights[slot] = HOLE;
        self.lasts[slot] = 0.0;
        self.live -= 1;
    }

    /// The storage at this slot was used again.
    pub(crate) fn touch(&mut self, slot: u32, last: u64) {
        self.lasts[slot as usize] = last as f64;
    }

    /// The storage at this slot has a new weight.
    pub(crate) fn reweigh(&mut self, slot: u32, weight: f64) {
        let slot = slot as usize;
        self.odd -= usize::from(self.weights[slot] == ODD);
        self.odd += usize::from(weight == ODD);
        self.weights[slot] = weight;
        let block = slot / BLOCK;
        self.heaviest[block] = self.heaviest[block].max(weight);
    }

    fn compact(&mut self, live: &mut Live) {
        let mut to = 0;
        for from in 0..self.storages.len() {
            let storage = self.storages[from];
            if storage != NONE {
                self.storages[to] = storage;
                self.weights[to] = self.weights[from];
                self.lasts[to] = self.lasts[from];
                live.at_mut(storage).slot = to as u32;
                to += 1;
            }
        }
        self.storages.truncate(to);
        self.weights.truncate(to);
        self.lasts.truncate(to);
        self.heaviest.clear();
        self.oldest.clear();
        for slot in 0..to {
            self.widen(slot, self.weights[slot], self.lasts[slot]);
        }
    }

    /// All storages in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.storages.iter().copied().filter(|&storage| storage != NONE)
    }

    /// The `k`-th storage in order, if there are so many.
    pub(crate) fn nth(&self, k: usize) -> Option<u32> {
        self.iter().nth(k)
    }

    /// The last storage in order.
    pub(crate) fn last(&self) -> Option<u32> {
        self.storages.iter().rev().copied().find(|&storage| storage != NONE)
    }

    /// The storage with the lowest score, the last of equals. `stale` says whether scores grow with time; `exact` is the score itself.
    /// No score may be odd.
    pub(crate) fn lowest(&mut self, clock: u64, stale: bool, exact: impl Fn(u32) -> f64) -> Option<u32> {
        if self.live == 0 {
            return None;
        }
        let now = clock as f64;
        let bound = |heaviest: f64, oldest: f64| if stale { heaviest * (now - oldest) } else { heaviest };
        let (mut first, mut most) = (0, f64::NEG_INFINITY);
        for (block, (&heaviest, &oldest)) in self.heaviest.iter().zip(&self.oldest).enumerate() {
            let bound = bound(heaviest, oldest);
            if bound > most {
                (first, most) = (block, bound);
            }
        }
        let mut best = self.open(first, now, stale);
        let mut reached = std::mem::take(&mut self.reached);
        reached.clear();
        for block in 0..self.heaviest.len() {
            if block == first {
                reached.push((block as u32, best));
            } else if bound(self.heaviest[block], self.oldest[block]) >= best * (1.0 - MARGIN) {
                let top = self.open(block, now, stale);
                best = best.max(top);
                reached.push((block as u32, top));
            }
        }
        let chosen = if best > 0.0 { self.settle(&reached, best, now, stale, exact) } else { self.last() };
        self.reached = reached;
        chosen
    }

    /// The greatest reciprocal of a block; its bounds are made tight on the way.
    fn open(&mut self, block: usize, now: f64, stale: bool) -> f64 {
        let slots = block * BLOCK..self.weights.len().min((block + 1) * BLOCK);
        let (mut top, mut heaviest, mut oldest) = (HOLE, HOLE, now);
        for (&weight, &last) in self.weights[slots.clone()].iter().zip(&self.lasts[slots]) {
            let reciprocal = if stale { weight * (now - last) } else { weight };
            top = if reciprocal > top { reciprocal } else { top };
            heaviest = if weight > heaviest { weight } else { heaviest };
            let last = if weight < 0.0 { now } else { last };
            oldest = if last < oldest { last } else { oldest };
        }
        self.heaviest[block] = heaviest;
        self.oldest[block] = oldest;
        top
    }

    /// Among the blocks that come near the best, the lowest exact score; the last of equals.
    fn settle(
        &self,
        reached: &[(u32, f64)],
        best: f64,
        now: f64,
        stale: bool,
        exact: impl Fn(u32) -> f64,
    ) -> Option<u32> {
        let near = best * (1.0 - MARGIN);
        let (mut chosen, mut lowest) = (None, f64::INFINITY);
        for &(block, top) in reached {
            if top < near {
                continue;
            }
            let start = block as usize * BLOCK;
            for slot in start..self.weights.len().min(start + BLOCK) {
                let weight = self.weights[slot];
                let reciprocal = if stale { weight * (now - self.lasts[slot]) } else { weight };
                if reciprocal >= near {
                    let score = exact(self.storages[slot]);
                    if score <= lowest {
                        (chosen, lowest) = (Some(self.storages[slot]), score);
                    }
                }
            }
        }
        chosen
    }
}
