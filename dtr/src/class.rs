//! Union-find classes of evicted storages with the splitting approximation (`h_DTR^eq`, paper section 4.2).
//!
//! An evicted storage joins its evicted neighbours; the class's value is the sum of costs. Recomputing one takes its cost out of the class
//! and nothing is split, so whatever was once connected through it stays together. The value may drift, even below 0, exactly as in the
//! reference: what is taken out is the cost at that time, which an alias may have raised since.

use crate::live::{Live, MATERIAL};
use crate::sets::Sets;

#[derive(Clone, Copy)]
struct Class {
    value: i64,
    mark: u32,
}

pub(crate) struct Classes {
    sets: Sets,
    classes: Vec<Class>,
    mark: u32,
}

impl Classes {
    pub(crate) fn new() -> Self {
        Self { sets: Sets::new(), classes: Vec::new(), mark: 0 }
    }

    pub(crate) fn extend(&mut self, storages: usize) {
        self.sets.extend(storages);
    }

    fn create(&mut self, storage: u32, value: i64) -> u32 {
        self.classes.push(Class { value, mark: 0 });
        self.sets.create(storage)
    }

    /// `storage` was dropped.
    pub(crate) fn evicted(&mut self, live: &mut Live, storage: u32, scratch: &mut Vec<u32>) {
        let root = self.create(storage, live.at(storage).cost as i64);
        scratch.clear();
        scratch.extend(live.all_neighbours(storage));
        for &other in scratch.iter() {
            let entry = live.at(other);
            if entry.evicted() {
                let class = match self.sets.of(other) {
                    Some(class) => class,
                    None => self.join_pending(live, other),
                };
                if class != root {
                    self.classes[root as usize].value += self.classes[class as usize].value;
                    self.sets.join(live, class, root);
                }
            } else if entry.is(MATERIAL) {
                live.outdate(other);
            }
        }
        scratch.clear();
    }

    /// A storage born but not yet computed gets its class, of value 0, only when a neighbour joins it. Its parents could not be listed as
    /// readers before.
    fn join_pending(&mut self, live: &mut Live, storage: u32) -> u32 {
        let parents: Vec<u32> =
            live.all_neighbours(storage).filter(|&other| live.at(other).is(MATERIAL)).collect();
        for parent in parents {
            live.outdate(parent);
        }
        self.create(storage, 0)
    }

    /// `storage` is resident again, or gone for good.
    pub(crate) fn restored(&mut self, live: &mut Live, storage: u32) {
        if let Some(class) = self.sets.take(storage) {
            self.classes[class as usize].value -= live.at(storage).cost as i64;
            self.sets.notify(live, class);
        }
    }

    /// The sum over the distinct classes of evicted direct neighbours; the storage is told when it changes.
    pub(crate) fn around(&mut self, live: &Live, storage: u32) -> i64 {
        if self.mark == u32::MAX {
            self.mark = 0;
            self.classes.iter_mut().for_each(|class| class.mark = 0);
        }
        self.mark += 1;
        let mut sum = 0;
        for other in live.all_neighbours(storage) {
            if live.at(other).evicted()
                && let Some(root) = self.sets.of(other)
            {
                let class = &mut self.classes[root as usize];
                if std::mem::replace(&mut class.mark, self.mark) != self.mark {
                    sum += class.value;
                    self.sets.read(root, storage);
                }
            }
        }
        sum
    }
}
