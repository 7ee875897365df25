//! Running statistics of normalisation layers.

use super::{at_most, commits, keep, kept_unless_ok, like_first, ok, read, scalar, state_type, write};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Io, lanes, par},
    export::Export,
};
use graph::{Attrs, DType, TensorType};

/// running' = momentum * running + (1 - momentum) * scale * batch.
///
/// Inputs: the running statistic, the batch statistic of the same type, optional ok (f32 scalar). Attributes: `momentum` in ONNX's
/// meaning (the share of the old value, 0.9), `scale` (1; n / (n - 1) makes a biased variance unbiased).
pub struct RunningUpdate;

impl OpDef for RunningUpdate {
    fn name(&self) -> &'static str {
        "RunningUpdate"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        at_most(s, 3)?;
        like_first(s, 1, "the batch statistic")?;
        scalar(s, 2, "ok", DType::F32)?;
        s.attrs.float_or("momentum", 0.9)?;
        s.attrs.float_or("scale", 1.0)?;
        Ok(vec![state_type(s)?])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        commits(&[(0, 0)])
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let n = s.outputs.first().and_then(|t| t.shape.elements()).unwrap_or(0);
        Work { flops: n.saturating_mul(3), bytes: s.io_bytes(), product: false }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let momentum = s.attrs.float_or("momentum", 0.9)?;
        let share = (1.0 - momentum) * s.attrs.float_or("scale", 1.0)?;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            if !ok(io, 2) {
                keep::<T>(io, 0, 0);
                return Ok(());
            }
            let (momentum, share) = (momentum as T, share as T);
            let n = io.input_ptr::<T>(0).1;
            let (r, b, out) = (read::<T>(io, 0), read::<T>(io, 1), write::<T>(io, 0));
            lanes::each(n, par::GRAIN, #[inline(always)] |range| {
                let (r, b, out) = (&r, &b, &out);
                // SAFETY: the range is inside all three buffers, and ranges are disjoint.
                unsafe {
                    let x = [r, b].map(|x| x.0.add(range.start).cast_const());
                    let y = [out.0.add(range.start)];
                    lanes::map(range.len(), x, y, |[r, b]| [momentum * r + share * b]);
                }
            });
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (r, b) = (x.input(0)?, x.input(1)?);
        let momentum = x.sig.attrs.float_or("momentum", 0.9)?;
        let share = (1.0 - momentum) * x.sig.attrs.float_or("scale", 1.0)?;
        x.set(0, kept_unless_ok(x, 2, r, r * momentum + b * share));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let no = CaseInput { dtype: Some(DType::F32), ..CaseInput::float(&[], Fill::Values(vec![0.0])) };
        let attrs = Attrs::new().with("momentum", 0.8).with("scale", 1.25);
        vec![
            Case::new("default", Attrs::new(), &[&[5], &[5]]),
            Case::new("unbiased", attrs.clone(), &[&[5], &[5]]),
            Case::new("a bad step", attrs, &[&[5], &[5]]).input(2, no.fixed()),
        ]
    }
}
