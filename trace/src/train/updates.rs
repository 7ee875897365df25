//! The number of an update: what Adam corrects its moments by.
//!
//! A step that is skipped, for a loss that is not finite or for gradients that overflow, changes no moment, and must not count as if it had:
//! `torch.optim` counts calls, and a call is what a skipped step is spared. So updates are counted in the state, beside the moments that
//! they went into, and go with them into a checkpoint. To count what was skipped instead would go wrong where a step is made again that
//! was refused, and where a part is bad and the last one of its step never runs.

use super::{Names, set_output};
use graph::{DType, Init, Shape, StateKind, TensorType, ValueId};
use ops::{Builder, OpError};

/// Name of the state that holds the number of updates so far.
pub const UPDATES: &str = "step/updates";

/// What of the number is state: a float32 scalar as the guard is. Beyond 2^24 it stays, where no correction is left.
pub fn updates_type() -> TensorType {
    TensorType { dtype: DType::F32, shape: Shape::scalar() }
}

/// The count in a step.
pub(super) struct Updates {
    made: ValueId,
    /// The number of this step's update, if it comes to one.
    pub(super) number: ValueId,
}

impl Updates {
    /// An update has no larger number than its step: a caller who starts to count anew starts anew.
    pub(super) fn new(b: &mut Builder<'_>, names: &Names<'_>, step: ValueId) -> Result<Updates, OpError> {
        b.set_scope("update/number");
        let name = b.unique(&names.state(UPDATES));
        let made = b.graph_mut().add_state(name, updates_type(), StateKind::Optimizer, Init::Zeros);
        let one = b.scalar(DType::F32, 1.0);
        let next = b.call("Add", &[made, one])?;
        let next = b.cast(next, DType::I64)?;
        let number = b.call("Min", &[next, step])?;
        Ok(Updates { made, number })
    }

    /// Counts the step as an update if it is committed.
    pub(super) fn commit(&self, b: &mut Builder<'_>, ok: ValueId) -> Result<(), OpError> {
        b.set_scope("update/number");
        let new = b.call("Accumulate", &[self.made, ok])?;
        set_output(b, self.made, new);
        Ok(())
    }
}
