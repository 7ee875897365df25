//! Running statistics of normalisation layers.

use super::{at_most, commits, keep, kept_unless_ok, like_first, ok, read, scalar, state_type, write};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Io, lanes, par, par::Shared},
    export::Export,
};
use graph::{Attrs, DType, TensorType};

/// running' = momentum * running + (1 - momentum) * scale * batch.
///
/// Inputs: the running statistic, the batch statistic of the same type, optional ok (f32 scalar), optional what `parts` - 1 earlier
/// updates of zeros have gathered (pending). With it running' = momentum^parts * running + momentum * pending + the same share of the
/// batch: what all updates one after the other come to. Attributes: `momentum` in ONNX's meaning (the share of the old value, 0.9),
/// `scale` (1; n / (n - 1) makes a biased variance unbiased), `parts` (1).
pub struct RunningUpdate;

/// Updates that are taken in at once.
pub(super) fn parts(s: &Signature<'_>) -> Result<i32, OpError> {
    let n = s.attrs.int_or("parts", 1)?;
    i32::try_from(n).ok().filter(|n| *n > 0).ok_or_else(|| OpError::invalid(format!("parts must not be {n}")))
}

impl OpDef for RunningUpdate {
    fn name(&self) -> &'static str {
        "RunningUpdate"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        at_most(s, 4)?;
        like_first(s, 1, "the batch statistic")?;
        scalar(s, 2, "ok", DType::F32)?;
        if s.opt_input(3).is_some() {
            like_first(s, 3, "what is pending")?;
        }
        s.attrs.float_or("momentum", 0.9)?;
        s.attrs.float_or("scale", 1.0)?;
        parts(s)?;
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
        let old = momentum.powi(parts(s)?);
        let share = (1.0 - momentum) * s.attrs.float_or("scale", 1.0)?;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            if !ok(io, 2) {
                keep::<T>(io, 0, 0);
                return Ok(());
            }
            let (momentum, old, share) = (momentum as T, old as T, share as T);
            let n = io.input_ptr::<T>(0).1;
            let (r, b, out) = (read::<T>(io, 0), read::<T>(io, 1), write::<T>(io, 0));
            let pending = io.has(3).then(|| read::<T>(io, 3));
            lanes::each(n, par::GRAIN, #[inline(always)] |range| {
                let (r, b, out) = (&r, &b, &out);
                // SAFETY: the range is inside all buffers, and ranges are disjoint.
                unsafe {
                    let at = |x: &Shared<T>| x.0.add(range.start).cast_const();
                    let y = [out.0.add(range.start)];
                    match &pending {
                        None => lanes::map(range.len(), [at(r), at(b)], y, |[r, b]| [old * r + share * b]),
                        Some(p) => lanes::map(range.len(), [at(r), at(b), at(p)], y, |[r, b, p]| {
                            [old * r + (momentum * p + share * b)]
                        }),
                    }
                }
            });
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (r, b) = (x.input(0)?, x.input(1)?);
        let momentum = x.sig.attrs.float_or("momentum", 0.9)?;
        let old = momentum.powi(parts(x.sig)?);
        let share = (1.0 - momentum) * x.sig.attrs.float_or("scale", 1.0)?;
        let new = match x.opt(3) {
            None => b * share,
            Some(pending) => pending * momentum + b * share,
        };
        x.set(0, kept_unless_ok(x, 2, r, r * old + new));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let no = CaseInput { dtype: Some(DType::F32), ..CaseInput::float(&[], Fill::Values(vec![0.0])) };
        let attrs = Attrs::new().with("momentum", 0.8).with("scale", 1.25);
        vec![
            Case::new("default", Attrs::new(), &[&[5], &[5]]),
            Case::new("unbiased", attrs.clone(), &[&[5], &[5]]),
            Case::new("a bad step", attrs.clone(), &[&[5], &[5]]).input(2, no.fixed()),
            Case::new("in parts", attrs.with("parts", 3), &[&[5], &[5]])
                .input(3, CaseInput::float(&[5], Fill::Uniform(-1.0, 1.0))),
        ]
    }
}
