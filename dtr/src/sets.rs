//! Union-find over sets of evicted storages, with readers: resident storages whose score depends on a set and who are told when it changes.

use crate::ids::NONE;
use crate::live::Live;

#[derive(Clone, Copy)]
struct Set {
    parent: u32,
    /// Head of the list of readers.
    readers: u32,
    /// Names this list of readers, until they are told.
    ticket: u32,
}

/// How many lists of readers a storage remembers to be on; beyond that it may be listed twice.
const REMEMBERED: usize = 4;

pub(crate) struct Sets {
    sets: Vec<Set>,
    /// Each storage's set, while it is evicted.
    of: Vec<u32>,
    /// Lists of readers: (storage, next).
    readers: Vec<(u32, u32)>,
    free: u32,
    listed: Vec<[u32; REMEMBERED]>,
    tickets: u32,
}

impl Sets {
    pub(crate) fn new() -> Self {
        Self {
            sets: Vec::new(),
            of: Vec::new(),
            readers: Vec::new(),
            free: NONE,
            listed: Vec::new(),
            tickets: 0,
        }
    }

    /// There are so many storages now.
    pub(crate) fn extend(&mut self, storages: usize) {
        self.of.resize(storages, NONE);
        self.listed.resize(storages, [0; REMEMBERED]);
    }

    /// A new set of one storage.
    pub(crate) fn create(&mut self, storage: u32) -> u32 {
        let set = self.sets.len() as u32;
        self.tickets = self.tickets.wrapping_add(1);
        self.sets.push(Set { parent: set, readers: NONE, ticket: self.tickets });
        self.of[storage as usize] = set;
        set
    }

    /// The set that a storage is in.
    pub(crate) fn of(&mut self, storage: u32) -> Option<u32> {
        let set = self.of[storage as usize];
        (set != NONE).then(|| self.find(set))
    }

    /// Takes a storage out of its set, which stays as it is otherwise.
    pub(crate) fn take(&mut self, storage: u32) -> Option<u32> {
        let set = std::mem::replace(&mut self.of[storage as usize], NONE);
        (set != NONE).then(|| self.find(set))
    }

    fn find(&mut self, mut set: u32) -> u32 {
        loop {
            let parent = self.sets[set as usize].parent;
            if parent == set {
                return set;
            }
            let above = self.sets[parent as usize].parent;
            self.sets[set as usize].parent = above;
            set = above;
        }
    }

    /// Joins one set to another; readers of the former are told.
    pub(crate) fn join(&mut self, live: &mut Live, set: u32, to: u32) {
        self.notify(live, set);
        self.sets[set as usize].parent = to;
    }

    /// Tells the readers of a set that it has changed. They come back when they next compute their score.
    pub(crate) fn notify(&mut self, live: &mut Live, set: u32) {
        let mut at = std::mem::replace(&mut self.sets[set as usize].readers, NONE);
        if at == NONE {
            return;
        }
        self.tickets = self.tickets.wrapping_add(1);
        self.sets[set as usize].ticket = self.tickets;
        while at != NONE {
            let (reader, next) = self.readers[at as usize];
            live.outdate(reader);
            self.readers[at as usize] = (NONE, self.free);
            self.free = at;
            at = next;
        }
    }

    /// From now until the set's next change, `reader` is one of its readers.
    pub(crate) fn read(&mut self, set: u32, reader: u32) {
        let Set { readers: next, ticket, .. } = self.sets[set as usize];
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
        self.sets[set as usize].readers = at;
    }
}
