//! The end of storages: eager eviction, holds, and what can never be needed again.
//!
//! A held storage is not evictable. Its reason is an op that must not run again: a random or discrete one, or one that read state which has
//! been overwritten since. Under [`Dealloc::Retire`] it is freed once it is dead and *no possible recomputation reads it*: all its children
//! are settled, that is pinned or held (never recomputed) or themselves dead with settled children. The same rule frees other dead storages
//! that a recomputation has brought back.

use crate::error::Error;
use crate::ids::{StorageId, TensorId};
use crate::live::{GONE, HELD, MATERIAL, PENDING, PINNED, SETTLED, Way};
use crate::machine::{Machine, Neighbourhood, Stage};
use crate::options::Dealloc;
use crate::world::{Cause, Event, World};

impl Machine {
    /// The last reference to a storage is gone.
    pub(crate) fn dead<W: World>(&mut self, storage: u32, world: &mut W) -> Result<(), Error> {
        match self.options.dealloc {
            Dealloc::Ignore => Ok(()),
            Dealloc::Banish => self.banish(storage, world),
            Dealloc::Eager => self.drop_dead(storage, world),
            Dealloc::Retire => {
                self.drop_dead(storage, world)?;
                self.retire(vec![storage], world)
            }
        }
    }

    fn drop_dead<W: World>(&mut self, storage: u32, world: &mut W) -> Result<(), Error> {
        let entry = self.live.at(storage);
        if entry.is(MATERIAL) && entry.locks == 0 { self.evict(storage, Cause::Dead, world) } else { Ok(()) }
    }

    /// From now on the resident storage is not evictable.
    pub(crate) fn hold_now<W: World>(&mut self, storage: u32, world: &mut W) -> Result<(), Error> {
        let entry = self.live.at_mut(storage);
        if entry.flags & (HELD | GONE) != 0 {
            return Ok(());
        }
        entry.flags |= HELD;
        self.lock(storage);
        self.settle(storage, world)
    }

    /// From now on the op does not run.
    pub(crate) fn forbid_now<W: World>(&mut self, op: u32, world: &mut W) -> Result<(), Error> {
        self.stages[op as usize] = Stage::Forbidden;
        let op = &self.program.ops[op as usize];
        for tensor in op.first..op.first + op.outputs {
            let storage = self.storage(tensor);
            if self.live.at(storage).is(MATERIAL) {
                self.hold_now(storage, world)?;
            }
        }
        Ok(())
    }

    /// The storage will not be recomputed any more.
    pub(crate) fn settle<W: World>(&mut self, storage: u32, world: &mut W) -> Result<(), Error> {
        if self.options.dealloc != Dealloc::Retire {
            return Ok(());
        }
        let mut doubtful = Vec::new();
        self.mark_settled(storage, &mut doubtful);
        doubtful.push(storage);
        self.retire(doubtful, world)
    }

    fn mark_settled(&mut self, storage: u32, parents: &mut Vec<u32>) {
        if self.live.at(storage).is(SETTLED) {
            return;
        }
        self.live.at_mut(storage).flags |= SETTLED;
        let from = parents.len();
        parents.extend(self.live.neighbours(storage, Way::Parents));
        for &parent in &parents[from..] {
            self.live.at_mut(parent).open -= 1;
        }
    }

    /// Gives up those of the storages that nobody can need, and whatever follows from it.
    fn retire<W: World>(&mut self, mut doubtful: Vec<u32>, world: &mut W) -> Result<(), Error> {
        while let Some(storage) = doubtful.pop() {
            let entry = self.live.at(storage);
            if entry.refs > 0 || entry.open > 0 || entry.flags & (GONE | PINNED | PENDING) != 0 {
                continue;
            }
            self.give_up(storage, world)?;
            self.mark_settled(storage, &mut doubtful);
        }
        Ok(())
    }

    /// Frees a storage for good, resident or evicted, locked or not.
    pub(crate) fn give_up<W: World>(&mut self, storage: u32, world: &mut W) -> Result<(), Error> {
        let resident = self.live.at(storage).is(MATERIAL);
        if resident {
            self.vacate(storage, Cause::Gone, world)?;
        }
        if !resident {
            let root = TensorId(self.live.at(storage).root);
            world.event(Event::Forget { storage: StorageId(storage), root })?;
        }
        let entry = self.live.at_mut(storage);
        entry.flags = (entry.flags | GONE) & !(PINNED | HELD);
        entry.locks = 0;
        if !resident {
            match &mut self.around {
                Neighbourhood::None => {}
                Neighbourhood::Classes(classes) => classes.restored(&mut self.live, storage),
                Neighbourhood::Regions(regions) => regions.restored(&mut self.live, storage),
            }
        }
        Ok(())
    }
}
