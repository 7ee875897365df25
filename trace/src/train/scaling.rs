//! The scale of the loss, for halves whose range is small: state of the step, moved as `torch.amp.GradScaler` moves it.
//!
//! The seed of the backward program is multiplied by the scale, gradients by its inverse where they are used: exactly, as it is a power of
//! two. A step whose gradients are not all finite changes nothing but the scale, which is halved; after 2,000 good ones in a row it is
//! doubled. Steps that were skipped are counted, for who looks on.

use super::{Names, add_scalar, set_output};
use graph::{Attrs, DType, Init, Literal, ValueId};
use ops::{Builder, OpError};

/// Name of the state that holds the scale.
pub const SCALE: &str = "amp/scale";
/// Name of the state that holds the number of good steps since the scale was moved.
pub const GOOD: &str = "amp/good";
/// Name of the state that holds the number of steps that were skipped.
pub const SKIPPED: &str = "amp/skipped";

/// The scale of the first step.
const FIRST: f64 = 65_536.0;
/// Good steps after which it is doubled.
const INTERVAL: f64 = 2000.0;
/// Beyond this it is not doubled: float32 has nothing above the double.
const MOST: f64 = 8.507_059_173_023_462e37;

/// What the scale is before the first step.
pub fn initial_scale() -> Init {
    Init::Literal(Literal::scalar(DType::F32, FIRST))
}

/// The states of loss scaling in a step.
pub(super) struct Scaling {
    scale: ValueId,
    good: ValueId,
    skipped: ValueId,
}

impl Scaling {
    pub(super) fn new(b: &mut Builder<'_>, names: &Names<'_>) -> Scaling {
        b.set_scope("amp/scale");
        let mut state = |name: &str, init: Init| add_scalar(b, names, name, init);
        let scale = state(SCALE, initial_scale());
        Scaling { scale, good: state(GOOD, Init::Zeros), skipped: state(SKIPPED, Init::Zeros) }
    }

    /// A cotangent of the loss, times the scale.
    pub(super) fn scaled(&self, b: &mut Builder<'_>, seed: ValueId) -> Result<ValueId, OpError> {
        let scale = b.cast(self.scale, b.ty(seed).dtype)?;
        b.call("Mul", &[seed, scale])
    }

    /// One over the scale.
    pub(super) fn inverse(&self, b: &mut Builder<'_>) -> Result<ValueId, OpError> {
        b.set_scope("amp/inverse");
        let one = b.scalar(DType::F32, 1.0);
        b.call("Div", &[one, self.scale])
    }

    /// Commits the next scale and what is counted.
    pub(super) fn commit(&self, b: &mut Builder<'_>, ok: ValueId) -> Result<(), OpError> {
        b.set_scope("amp/commit");
        let number = |b: &mut Builder<'_>, x: f64| b.scalar(DType::F32, x);
        let (zero, one) = (number(b, 0.0), number(b, 1.0));
        let (interval, most, half) = (number(b, INTERVAL), number(b, MOST), number(b, -0.5));
        let good = b.call("Equal", &[ok, one])?;
        let next = b.call("Add", &[self.good, one])?;
        let due = b.call("GreaterOrEqual", &[next, interval])?;
        let fits = b.call("Less", &[self.scale, most])?;
        let grows = b.call("And", &[due, fits])?;
        let up = b.call("Where", &[grows, self.scale, zero])?;
        let down = b.call("Mul", &[self.scale, half])?;
        let moved = b.call("Where", &[good, up, down])?;
        let reset = b.call("Neg", &[self.good])?;
        let counted = b.call("Where", &[due, reset, one])?;
        let counted = b.call("Where", &[good, counted, reset])?;
        let skipped = b.call("Sub", &[one, ok])?;
        for (state, by) in [(self.scale, moved), (self.good, counted), (self.skipped, skipped)] {
            let new = b.op("Accumulate", Attrs::new(), &[state, by])?;
            set_output(b, state, new);
        }
        Ok(())
    }
}
