//! The other side of the machine: who executes, frees and measures.

use crate::error::Error;
use crate::ids::{OpId, StorageId, TensorId};

/// Why a storage was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The heuristic chose it.
    Chosen,
    /// Its last reference went.
    Dead,
    /// It can never be needed again ([`crate::Dealloc::Retire`], [`crate::Dealloc::Banish`]).
    Gone,
}

/// What a [`World`] gets told, in order of occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// An op runs, the first time or again. Of a repeated execution only outputs that are not resident are new; the others are written to
    /// scratch of the same size and dropped.
    Execute {
        /// The op.
        op: OpId,
        /// The output that was asked for; the first one when the op runs first.
        target: TensorId,
        /// Whether this is the first execution.
        first: bool,
    },
    /// A storage is freed.
    Drop {
        /// The storage.
        storage: StorageId,
        /// Its root tensor.
        root: TensorId,
        /// Why.
        cause: Cause,
    },
    /// A storage that was evicted before will never be needed again: executions of its op write it to scratch from now on.
    Forget {
        /// The storage.
        storage: StorageId,
        /// Its root tensor.
        root: TensorId,
    },
    /// A storage is pinned for ever.
    Pin {
        /// The storage.
        storage: StorageId,
        /// Its root tensor.
        root: TensorId,
    },
}

/// Executes what the machine decides. The simulator and the planner only record; a runtime launches kernels and frees memory.
pub trait World {
    /// Something happens now. For [`Event::Execute`] the world may return the measured cost, which then moves the clock and, at a first
    /// execution, replaces the op's declared cost; `None` keeps the declared one. The answer to other events is ignored.
    ///
    /// # Errors
    /// [`Error::World`] stops the machine.
    fn event(&mut self, event: Event) -> Result<Option<u64>, Error>;

    /// Whether an op's `bytes` can be placed while `used` of `budget` bytes are resident. A world with a real allocator answers for
    /// fragmentation and scratch memory here; after a yes nothing is freed or placed before the op runs.
    fn fits(&mut self, op: OpId, used: u64, bytes: u64, budget: u64) -> bool {
        let _ = op;
        bytes <= budget && used <= budget - bytes
    }

    /// Whether [`World::victims`] is to be asked before the heuristic alone decides.
    fn places(&self) -> bool {
        false
    }

    /// Which storages to evict so that `bytes` fit, for a world that knows where they lie (neighbours are best evicted together).
    /// `candidates` are the pool's storages with their scores in pool order, lowest best. Leaving `victims` empty takes the lowest score.
    fn victims(&mut self, candidates: &[(StorageId, f64)], bytes: u64, victims: &mut Vec<StorageId>) {
        let _ = (candidates, bytes, victims);
    }
}

/// A world that executes nothing and remembers everything.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    /// All events in order.
    pub events: Vec<Event>,
}

impl World for Recorder {
    fn event(&mut self, event: Event) -> Result<Option<u64>, Error> {
        self.events.push(event);
        Ok(None)
    }
}

/// A world that does not even remember: for runs of which only the figures matter.
impl World for () {
    fn event(&mut self, _: Event) -> Result<Option<u64>, Error> {
        Ok(None)
    }
}
