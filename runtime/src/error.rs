//! Errors of loading and running plans.

use crate::dynamic::PoolFull;
use plan::{ValidateError, WireError};

/// Why a plan cannot be loaded or a step cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The file is no plan.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The plan must not run.
    #[error(transparent)]
    Invalid(#[from] ValidateError),
    /// The plan was made for another kind of device.
    #[error(
        "the plan was made for {plan}, this device is {device}: compile the model with --device {device}"
    )]
    Device {
        /// Device kind of the plan.
        plan: String,
        /// Device kind here.
        device: String,
    },
    /// Less memory than the arena needs.
    #[error(
        "the plan needs an arena of {needed} bytes, but only {available} are available ({source_of_limit})"
    )]
    NotEnoughMemory {
        /// Bytes of the arena.
        needed: u64,
        /// Bytes there are.
        available: u64,
        /// Where the limit comes from.
        source_of_limit: String,
    },
    /// A budget in which not even the state has a place.
    #[error("a budget of {budget} bytes is too small: the state alone needs {state}")]
    Budget {
        /// Bytes of the budget.
        budget: u64,
        /// Bytes of the state.
        state: u64,
    },
    /// The system refused the memory.
    #[error("the system refused an arena of {bytes} bytes: {error}")]
    Allocate {
        /// Bytes asked for.
        bytes: u64,
        /// The system's reason.
        error: std::io::Error,
    },
    /// A weight is missing or wrong.
    #[error("weight {name:?}: {what}")]
    Weight {
        /// Its name in the model.
        name: String,
        /// What is wrong and what to do.
        what: String,
    },
    /// No program of that kind.
    #[error("the plan has no {0} program")]
    NoProgram(String),
    /// An input is missing or has the wrong size.
    #[error("input {name:?}: {what}")]
    Input {
        /// Its name.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// Inputs that were staged are no longer in the slot.
    #[error("the staged inputs are gone: another step was staged or run since; stage them again")]
    Staged,
    /// No state or output of that name.
    #[error("the plan has no {kind} {name:?}")]
    NoTensor {
        /// `state` or `output`.
        kind: &'static str,
        /// The name asked for.
        name: String,
    },
    /// A node cannot be prepared.
    #[error("{op} {node:?}: {what}")]
    Prepare {
        /// Node name.
        node: String,
        /// Operator.
        op: String,
        /// Why.
        what: String,
    },
    /// A kernel refused its data. The state is as before the step.
    #[error("{op} {node:?}: {what}")]
    Kernel {
        /// Node name.
        node: String,
        /// Operator.
        op: String,
        /// Why.
        what: String,
    },
    /// CUDA is not there, or a call of its driver failed.
    #[error("{0}")]
    Cuda(String),
    /// No program that was planned ahead runs for these inputs, and the device runs no other.
    #[error(
        "{why}; on CUDA only what was planned ahead runs: compile with larger --dim bounds, or for a larger budget"
    )]
    NotPlanned {
        /// Why none of the plan's does.
        why: String,
    },
    /// A dynamic program cannot be made from these inputs.
    #[error("{0}")]
    Trace(trace::TraceError),
    /// A dynamic program needs more than its pool. The state is as before the step.
    #[error(transparent)]
    PoolFull(Box<PoolFull>),
    /// Something that cannot be: a bug of the runtime.
    #[error("{0} (please report this)")]
    Internal(String),
    /// A recomputed value differs from the first one.
    #[error(
        "recomputing {node:?} gave other bits than the first time: this is a bug in operator {op}, please report it"
    )]
    RecomputeDiffers {
        /// Node name.
        node: String,
        /// Operator.
        op: String,
    },
}
