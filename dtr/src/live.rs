//! The storages as they are now, and who feeds whom: the graph that evicted neighbourhoods and classes are read from.
//!
//! Edges are kept between storages, not tensors, because storages are what is dropped. They appear when an op is first computed. A pinned
//! storage never borders anything evicted, so (unless pins can be lifted) its edges are not stored at all: weights feed half of a model.

use crate::ids::NONE;
use crate::program::Program;

/// Resident.
pub(crate) const MATERIAL: u16 = 1;
/// Resident for ever; one lock of `locks`.
pub(crate) const PINNED: u16 = 2;
/// Not evictable until dead; one lock of `locks`.
pub(crate) const HELD: u16 = 4;
/// Born with its op, not yet computed.
pub(crate) const PENDING: u16 = 8;
/// Given up: neither resident nor evicted, it neighbours nobody.
pub(crate) const GONE: u16 = 16;
/// Never to be recomputed any more: it is no reason to keep its parents.
pub(crate) const SETTLED: u16 = 32;
/// Its cached score is out of date.
pub(crate) const STALE: u16 = 64;
/// Its cost has grown by an alias whose op is still being prepared.
pub(crate) const LATE: u16 = 128;

/// In the list of those whose score is to be computed anew.
const QUEUED: u16 = 256;

#[derive(Clone, Debug)]
pub(crate) struct Storage {
    pub(crate) bytes: u64,
    /// Cost of all distinct ops with an output on it.
    pub(crate) cost: u64,
    /// Clock at the last use.
    pub(crate) last: u64,
    /// Counts evictions: a tensor is defined while it carries its storage's epoch.
    pub(crate) epoch: u32,
    /// Position in the pool.
    pub(crate) slot: u32,
    pub(crate) locks: u32,
    /// References from outside.
    pub(crate) refs: u32,
    /// Ops on the stack that wait for it without holding it yet.
    pub(crate) wants: u32,
    /// Edges to children that may still be recomputed.
    pub(crate) open: u32,
    /// The last op counted in `cost`.
    pub(crate) last_op: u32,
    parents: u32,
    children: u32,
    pub(crate) root: u32,
    pub(crate) flags: u16,
}

impl Storage {
    pub(crate) fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Dropped and coming back if somebody asks, or born and not yet computed.
    pub(crate) fn evicted(&self) -> bool {
        self.flags & (MATERIAL | GONE) == 0
    }
}

/// Which way a walk goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Parents,
    Children,
}

#[derive(Clone, Copy)]
struct Edge {
    other: u32,
    next: u32,
}

#[derive(Default)]
pub(crate) struct Live {
    pub(crate) storages: Vec<Storage>,
    edges: Vec<Edge>,
    /// Storages in the pool whose score is out of date; may name some that have left the pool since.
    queue: Vec<u32>,
    marks: Vec<u32>,
    mark: u32,
    stack: Vec<u32>,
    /// Edges that walks followed.
    pub(crate) followed: u64,
}

impl Live {
    /// Takes in the storages declared since the last call.
    pub(crate) fn extend(&mut self, program: &Program) {
        for declared in &program.storages[self.storages.len()..] {
            self.storages.push(Storage {
                bytes: declared.bytes,
                cost: 0,
                last: 0,
                epoch: 1,
                slot: NONE,
                locks: 0,
                refs: 0,
                wants: 0,
                open: 0,
                last_op: NONE,
                parents: NONE,
                children: NONE,
                root: declared.root,
                flags: PENDING | STALE,
            });
        }
        self.marks.resize(self.storages.len(), 0);
    }

    pub(crate) fn at(&self, storage: u32) -> &Storage {
        &self.storages[storage as usize]
    }

    pub(crate) fn at_mut(&mut self, storage: u32) -> &mut Storage {
        &mut self.storages[storage as usize]
    }

    /// Records that `parent` feeds `child`. Repeats are harmless.
    pub(crate) fn connect(&mut self, parent: u32, child: u32) {
        let next = self.edges.len() as u32;
        let (feeder, fed) = (self.at(parent).children, self.at(child).parents);
        self.edges.push(Edge { other: child, next: feeder });
        self.edges.push(Edge { other: parent, next: fed });
        self.at_mut(parent).children = next;
        self.at_mut(child).parents = next + 1;
    }

    fn head(&self, storage: u32, way: Way) -> u32 {
        match way {
            Way::Parents => self.at(storage).parents,
            Way::Children => self.at(storage).children,
        }
    }

    /// Direct neighbours one way, with repeats.
    pub(crate) fn neighbours(&self, storage: u32, way: Way) -> impl Iterator<Item = u32> + '_ {
        let mut at = self.head(storage, way);
        std::iter::from_fn(move || {
            let edge = *self.edges.get(at as usize)?;
            at = edge.next;
            Some(edge.other)
        })
    }

    /// Direct neighbours both ways, with repeats.
    pub(crate) fn all_neighbours(&self, storage: u32) -> impl Iterator<Item = u32> + '_ {
        self.neighbours(storage, Way::Parents).chain(self.neighbours(storage, Way::Children))
    }

    /// Says that the storage's score must be computed anew before it is next compared.
    pub(crate) fn outdate(&mut self, storage: u32) {
        let entry = &mut self.storages[storage as usize];
        if entry.flags & STALE == 0 {
            entry.flags |= STALE;
            if entry.slot != NONE {
                self.enqueue(storage);
            }
        }
    }

    /// Lists a storage of the pool whose score is out of date.
    pub(crate) fn enqueue(&mut self, storage: u32) {
        let entry = &mut self.storages[storage as usize];
        if entry.flags & QUEUED == 0 {
            entry.flags |= QUEUED;
            self.queue.push(storage);
        }
    }

    /// The next storage of the pool whose score is out of date, which the caller now brings up to date.
    pub(crate) fn next_stale(&mut self) -> Option<u32> {
        while let Some(storage) = self.queue.pop() {
            let entry = &mut self.storages[storage as usize];
            entry.flags &= !QUEUED;
            if entry.slot != NONE && entry.flags & STALE != 0 {
                entry.flags &= !STALE;
                return Some(storage);
            }
        }
        None
    }

    /// A mark that no storage carries.
    pub(crate) fn fresh_mark(&mut self) -> u32 {
        if self.mark == u32::MAX {
            self.marks.fill(0);
            self.mark = 0;
        }
        self.mark += 1;
        self.mark
    }

    /// Puts the mark on a storage; false if it carried it already.
    pub(crate) fn set_mark(&mut self, storage: u32, mark: u32) -> bool {
        std::mem::replace(&mut self.marks[storage as usize], mark) != mark
    }

    /// Walks from `start` through evicted, once computed storages. `inner` sees each of them once, `border` each resident storage met, once.
    pub(crate) fn walk(
        &mut self,
        start: u32,
        way: Way,
        mut inner: impl FnMut(u32, &Storage),
        mut border: impl FnMut(u32),
    ) -> u32 {
        let mark = self.fresh_mark();
        let mut stack = std::mem::take(&mut self.stack);
        self.marks[start as usize] = mark;
        stack.push(start);
        let mut followed = 0;
        while let Some(from) = stack.pop() {
            let mut at = self.head(from, way);
            while let Some(&Edge { other, next }) = self.edges.get(at as usize) {
                at = next;
                followed += 1;
                if std::mem::replace(&mut self.marks[other as usize], mark) == mark {
                    continue;
                }
                let storage = &self.storages[other as usize];
                match storage.flags & (MATERIAL | PENDING | GONE) {
                    0 => {
                        inner(other, storage);
                        stack.push(other);
                    }
                    MATERIAL => border(other),
                    _ => {}
                }
            }
        }
        self.stack = stack;
        self.followed += followed;
        mark
    }

    /// The resident storages that border on what is evicted around `start`, one way; appended to `into`.
    pub(crate) fn borders(&mut self, start: u32, way: Way, into: &mut Vec<u32>) {
        self.walk(start, way, |_, _| {}, |storage| into.push(storage));
    }
}
