//! How a run can fail, as values: out of memory and thrashing are results that a caller compares, the rest is misuse or the world's own error.

use crate::ids::{OpId, TensorId};

/// Why the machine stopped. After any of these it refuses further commands with [`Error::Stopped`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing evictable is left while space is needed.
    #[error(
        "out of memory at op {op}: {needed} bytes needed, {used} of {budget} in use, of which {pinned} pinned or held and {locked} locked by \
         recomputation in progress"
    )]
    Oom {
        /// The op that needed the space.
        op: OpId,
        /// Bytes of its new outputs.
        needed: u64,
        /// Bytes resident.
        used: u64,
        /// The budget in bytes.
        budget: u64,
        /// Bytes of pinned and held storages.
        pinned: u64,
        /// Bytes of storages locked by the ops on the stack only.
        locked: u64,
    },
    /// Repeated execution cost more than the limit.
    #[error("thrashing: {repeated} units of repeated execution, more than the limit of {limit}")]
    Thrash {
        /// Cost of all repeated executions so far.
        repeated: u64,
        /// The limit, [`crate::Options::remat_limit`].
        limit: u64,
    },
    /// A tensor is needed whose op must not run again.
    #[error("tensor {tensor} is gone for good: its op {op} must not run again")]
    Unrecoverable {
        /// The tensor asked for.
        tensor: TensorId,
        /// Its op.
        op: OpId,
    },
    /// A command names a tensor whose op has not been computed.
    #[error("tensor {tensor} is used before it is computed")]
    NotComputed {
        /// The tensor named.
        tensor: TensorId,
    },
    /// A command computes an op a second time; repeated execution is the machine's own decision.
    #[error("op {op} is computed twice by the schedule")]
    ComputedTwice {
        /// The op named.
        op: OpId,
    },
    /// A reference is taken of or returned to a storage without references.
    #[error("tensor {tensor} has no reference left")]
    Dead {
        /// The tensor named.
        tensor: TensorId,
    },
    /// An id that the program does not have.
    #[error("no such {kind}: {id}")]
    UnknownId {
        /// "op" or "tensor".
        kind: &'static str,
        /// The number given.
        id: u32,
    },
    /// The options contradict each other.
    #[error("{0}")]
    Options(&'static str),
    /// The machine failed before.
    #[error("the machine has failed before and takes no further commands")]
    Stopped,
    /// The world failed to execute an op.
    #[error("execution failed")]
    World(#[source] Box<dyn std::error::Error + Send + Sync>),
}
