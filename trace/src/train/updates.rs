//! The number of an update: what Adam corrects its moments by.
//!
//! A step that is skipped, for a loss that is not finite or for gradients that overflow, changes no moment, and must not count as if it had:
//! `torch.optim` counts calls, and a call is what a skipped step is spared. So the number is state, beside the moments, and goes with them
//! into a checkpoint: that of the next update, from 1, so that no constant has to be added, which static programs would hold as state. To
//! count what was skipped instead would go wrong where a step is made again that was refused, and where a part is bad and the last one of
//! its step never runs.

use super::{Names, add_scalar, set_output};
use graph::{DType, Init, Literal, ValueId};
use ops::{Builder, OpError};

/// Name of the state that holds the number of the next update.
pub const UPDATE: &str = "step/update";

/// The number of the first update: a float32 scalar as the guard is. At 2^24 it stays, where no correction is left.
pub fn first_update() -> Init {
    Init::Literal(Literal::scalar(DType::F32, 1.0))
}

/// The number in a step.
pub(super) struct Update {
    next: ValueId,
    /// The number of this step's update, if it comes to one.
    pub(super) number: ValueId,
}

impl Update {
    /// An update has no larger number than its step: a caller who starts to count anew starts anew.
    pub(super) fn new(b: &mut Builder<'_>, names: &Names<'_>, step: ValueId) -> Result<Update, OpError> {
        b.set_scope("update/number");
        let next = add_scalar(b, names, UPDATE, first_update());
        let number = b.cast(next, DType::I64)?;
        let number = b.call("Min", &[number, step])?;
        Ok(Update { next, number })
    }

    /// Counts the step as an update if it is committed.
    pub(super) fn commit(&self, b: &mut Builder<'_>, ok: ValueId) -> Result<(), OpError> {
        b.set_scope("update/number");
        let new = b.call("Accumulate", &[self.next, ok])?;
        set_output(b, self.next, new);
        Ok(())
    }
}
