//! Union-find classes of evicted storages with the splitting approximation (`h_DTR^eq`, paper section 4.2).
//!
//! An evicted storage joins its evicted neighbours; the class's value is the sum of costs. Recomputing one takes its cost out of the class
//! and nothing is split, so whatever was once connected through it stays together. The value may drift, even below 0, exactly as in the
//! reference: what is taken out is the cost at that time, which an alias may have raised since.
//!
//! Resident storages that read a class for their score are listed with it and are told when its value changes.

use crate::ids::NONE;
use crate::live::{Live, MATERIAL};

#[derive(Clone, Copy)]
struct Class {
    parent: u32,
    value: i64,
    /// Head of the list of readers.
    readers: u32,
    /// Names this list of readers, until they are told.
    ticket: u32,
    mark: u32,
}

/// How many lists of readers a storage remembers to be on; beyond that it may be listed twice.
const REMEMBERED: usize = 4;

#[derive(Default)]
pub(crate) struct Classes {
    classes: Vec<Class>,
    /// Each storage's class, while it is evicted.
    of: Vec<u32>,
    /// Lists of readers: (storage, next).
    readers: Vec<(u32, u32)>,
    free: u32,
    listed: Vec<[u32; REMEMBERED]>,
    tickets: u32,
    mark: u32,
}

impl Classes {
    pub(crate) fn new() -> Self {
        Self { free: NONE, ..Self::default() }
    }

    pub(crate) fn extend(&mut self, storages: usize) {
        self.of.resize(storages, NONE);
        self.listed.resize(storages, [0; REMEMBERED]);
    }

    fn create(&mut self, storage: u32, value: i64) -> u32 {
        let class = self.classes.len() as u32;
        self.tickets = self.tickets.wrapping_add(1);
        self.classes.push(Class { parent: class, value, readers: NONE, ticket: self.tickets, mark: 0 });
        self.of[storage as usize] = class;
        class
    }

    fn find(&mut self, mut class: u32) -> u32 {
        loop {
            let parent = self.classes[class as usize].parent;
            if parent == class {
                return class;
            }
            let above = self.classes[parent as usize].parent;
            self.classes[class as usize].parent = above;
            class = above;
        }
    }

    /// Tells the readers of a class that its value has changed. They come back when they next compute their score.
    fn notify(&mut self, live: &mut Live, class: u32) {
        let mut at = std::mem::replace(&mut self.classes[class as usize].readers, NONE);
        if at != NONE {
            self.tickets = self.tickets.wrapping_add(1);
            self.classes[class as usize].ticket = self.tickets;
        }
        while at != NONE {
            let (reader, next) = self.readers[at as usize];
            live.outdate(reader);
            self.readers[at as usize] = (NONE, self.free);
            self.free = at;
            at = next;
        }
    }

    fn read(&mut self, class: u32, reader: u32) {
        let Class { readers: next, ticket, .. } = self.classes[class as usize];
        let listed = &mut self.listed[reader as usize];
        if listed.contains(&ticket) {
            return;
        }
        listed.rotate_right(1);
        listed[0] = ticket;
        let at = if self.free == NONE {
            self.readers.push((reader, next));
            self.readers.len() as u32 - 1
        } else {
            let at = self.free;
            self.free = self.readers[at as usize].1;
            self.readers[at as usize] = (reader, next);
            at
        };
        self.classes[class as usize].readers = at;
    }

    /// `storage` was dropped.
    pub(crate) fn evicted(&mut self, live: &mut Live, storage: u32, scratch: &mut Vec<u32>) {
        let root = self.create(storage, live.at(storage).cost as i64);
        scratch.clear();
        scratch.extend(live.all_neighbours(storage));
        for &other in scratch.iter() {
            let entry = live.at(other);
            if entry.evicted() {
                let class = match self.of[other as usize] {
                    NONE => self.join_pending(live, other),
                    class => self.find(class),
                };
                if class != root {
                    self.notify(live, class);
                    self.classes[root as usize].value += self.classes[class as usize].value;
                    self.classes[class as usize].parent = root;
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
        let parents: Vec<u32> = live.all_neighbours(storage).filter(|&other| live.at(other).is(MATERIAL)).collect();
        for parent in parents {
            live.outdate(parent);
        }
        self.create(storage, 0)
    }

    /// `storage` is resident again, or gone for good.
    pub(crate) fn restored(&mut self, live: &mut Live, storage: u32) {
        let class = std::mem::replace(&mut self.of[storage as usize], NONE);
        if class != NONE {
            let root = self.find(class);
            self.classes[root as usize].value -= live.at(storage).cost as i64;
            self.notify(live, root);
        }
    }

    /// The sum over the distinct classes of evicted direct neighbours; the storage is told when it changes.
    pub(crate) fn around(&mut self, live: &Live, storage: u32) -> i64 {
        if self.mark == u32::MAX {
            self.mark = 0;
            self.classes.iter_mut().for_each(|class| class.mark = 0);
        }
        self.mark += 1;
        let mark = self.mark;
        let mut sum = 0;
        for other in live.all_neighbours(storage) {
            if live.at(other).evicted() && self.of[other as usize] != NONE {
                let root = self.find(self.of[other as usize]);
                let class = &mut self.classes[root as usize];
                if std::mem::replace(&mut class.mark, mark) != mark {
                    sum += class.value;
                    self.read(root, storage);
                }
            }
        }
        sum
    }
}
