//! What the reference's cached neighbourhoods know, and do not know, of an op whose arguments are still being recomputed.
//!
//! An op's outputs exist, as evicted children of its arguments, before it runs. While its arguments are resident that shows nowhere: they
//! are locked. But if one was evicted, storages elsewhere reach the outputs through it, and the reference's sets contain them only if they
//! happened to be rebuilt, or absorbed another set that does, since the op was born. The same goes for the cost that an alias output adds
//! to its storage. All of that is gone once the op has run. So for this span, and only for it, one bit a storage says whether its set
//! contains the new outputs, and two bits an aliased storage whether it counts with its new cost; the sums themselves leave both out.

use crate::live::{LATE, Live, Way};

/// The new outputs are among the descendants.
const OUTPUTS: u32 = 1;
/// More aliased storages than this in one op are not told apart.
const MOST: usize = 15;

fn descendant(index: usize) -> u32 {
    2 << (2 * index)
}

fn ancestor(index: usize) -> u32 {
    4 << (2 * index)
}

#[derive(Clone, Copy)]
struct Late {
    storage: u32,
    cost: u64,
}

#[derive(Default)]
pub(crate) struct Window {
    open: bool,
    /// One of the op's new storages; all have the same parents.
    output: Option<u32>,
    outputs_cost: u64,
    late: Vec<Late>,
    bits: Vec<u32>,
    touched: Vec<u32>,
}

impl Window {
    pub(crate) fn extend(&mut self, storages: usize) {
        self.bits.resize(storages, 0);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// An op was born with evicted arguments: its new storages with their cost, the storages it aliases with the cost that adds.
    pub(crate) fn open(
        &mut self,
        live: &mut Live,
        output: Option<u32>,
        outputs_cost: u64,
        aliased: &[(u32, u64)],
    ) {
        self.open = true;
        (self.output, self.outputs_cost) = (output, outputs_cost);
        self.late.extend(aliased.iter().take(MOST).map(|&(storage, cost)| Late { storage, cost }));
        for late in &self.late {
            live.at_mut(late.storage).flags |= LATE;
        }
    }

    /// The op has run.
    pub(crate) fn close(&mut self, live: &mut Live) {
        for late in self.late.drain(..) {
            live.at_mut(late.storage).flags &= !LATE;
        }
        for storage in self.touched.drain(..) {
            self.bits[storage as usize] = 0;
            live.outdate(storage);
        }
        self.open = false;
    }

    pub(crate) fn late_cost(&self, storage: u32) -> u64 {
        self.late.iter().find(|late| late.storage == storage).map_or(0, |late| late.cost)
    }

    /// What the storage's sums leave out although the reference's sets have it.
    pub(crate) fn extra(&self, storage: u32, descendants: bool) -> u64 {
        let bits = self.bits[storage as usize];
        let mut extra = if bits & OUTPUTS != 0 && descendants { self.outputs_cost } else { 0 };
        for (index, late) in self.late.iter().enumerate() {
            extra += late.cost * u64::from(bits & descendant(index) != 0 && descendants);
            extra += late.cost * u64::from(bits & ancestor(index) != 0);
        }
        extra
    }

    fn set(&mut self, live: &mut Live, storage: u32, bits: u32) {
        if self.bits[storage as usize] != bits {
            self.bits[storage as usize] = bits;
            self.touched.push(storage);
            live.outdate(storage);
        }
    }

    fn borders(live: &mut Live, start: u32, way: Way) -> Vec<u32> {
        let mut borders = Vec::new();
        live.borders(start, way, &mut borders);
        borders
    }

    /// The storages whose sets hold `storage`, evicted, on the side given: those who reach it.
    fn holders(live: &mut Live, storage: u32, way: Way) -> Vec<u32> {
        if live.at(storage).evicted() { Self::borders(live, storage, way) } else { Vec::new() }
    }

    /// `gone` was dropped: those who border on it absorb its sets.
    pub(crate) fn evicted(&mut self, live: &mut Live, gone: u32) {
        let own = self.bits[gone as usize];
        for (way, inherited) in [(Way::Parents, own & OUTPUTS), (Way::Children, 0)] {
            // Nothing to hand on; a walk through all that is dead would find that out slowly.
            if self.late.is_empty() && inherited == 0 {
                continue;
            }
            // Who reached a late storage before this eviction keeps it at the cost it had.
            live.at_mut(gone).flags |= crate::live::MATERIAL;
            let before: Vec<Vec<u32>> =
                self.late.iter().map(|late| Self::holders(live, late.storage, way)).collect();
            live.at_mut(gone).flags &= !crate::live::MATERIAL;
            for border in Self::borders(live, gone, way) {
                let mut bits = self.bits[border as usize] | inherited;
                for (index, late) in self.late.iter().enumerate() {
                    let news = late.storage == gone
                        || (before[index].contains(&gone) && !before[index].contains(&border));
                    if news {
                        bits |= if way == Way::Parents { descendant(index) } else { ancestor(index) };
                    }
                }
                self.set(live, border, bits);
            }
        }
        self.set(live, gone, 0);
    }

    /// `back` is resident again: its sets, and the sets of those who border on it, are rebuilt as the graph is now.
    pub(crate) fn restored(&mut self, live: &mut Live, back: u32) {
        for way in [Way::Parents, Way::Children] {
            // Ancestors' sets know new outputs, descendants' do not.
            if self.late.is_empty() && way == Way::Children {
                continue;
            }
            let outputs = match self.output {
                Some(output) if way == Way::Parents => Self::borders(live, output, way),
                _ => Vec::new(),
            };
            let holders: Vec<Vec<u32>> =
                self.late.iter().map(|late| Self::holders(live, late.storage, way)).collect();
            let mut rebuilt = Self::borders(live, back, way);
            rebuilt.push(back);
            for storage in rebuilt {
                let mut bits = self.bits[storage as usize];
                if way == Way::Parents {
                    bits = if outputs.contains(&storage) { bits | OUTPUTS } else { bits & !OUTPUTS };
                }
                for (index, holders) in holders.iter().enumerate() {
                    let bit = if way == Way::Parents { descendant(index) } else { ancestor(index) };
                    bits = if holders.contains(&storage) { bits | bit } else { bits & !bit };
                }
                self.set(live, storage, bits);
            }
        }
    }
}
