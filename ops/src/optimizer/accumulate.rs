//! Gradients accumulated over several steps.

use super::{at_most, commits, keep, kept_unless_ok, like_first, ok, read, scalar, state_type, write};
use crate::{
    Facts, OpDef, OpError, Signature,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Io, lanes, par},
    export::Export,
};
use graph::{Attrs, DType, TensorType};

/// acc' = acc + grad. Inputs: the accumulator, the gradient of the same type, optional ok (f32 scalar).
pub struct Accumulate;

impl OpDef for Accumulate {
    fn name(&self) -> &'static str {
        "Accumulate"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        at_most(s, 3)?;
        like_first(s, 1, "the gradient")?;
        scalar(s, 2, "ok", DType::F32)?;
        Ok(vec![state_type(s)?])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        commits(&[(0, 0)])
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            if !ok(io, 2) {
                keep::<T>(io, 0, 0);
                return Ok(());
            }
            let n = io.input_ptr::<T>(0).1;
            let (a, g, out) = (read::<T>(io, 0), read::<T>(io, 1), write::<T>(io, 0));
            lanes::each(n, par::GRAIN, #[inline(always)] |r| {
                let (a, g, out) = (&a, &g, &out);
                // SAFETY: the range is inside all three buffers, and ranges are disjoint.
                unsafe {
                    let x = [a, g].map(|x| x.0.add(r.start).cast_const());
                    lanes::map(r.len(), x, [out.0.add(r.start)], |[a, g]| [a + g]);
                }
            });
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (a, g) = (x.input(0)?, x.input(1)?);
        x.set(0, kept_unless_ok(x, 2, a, a + g));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let no = CaseInput { dtype: Some(DType::F32), ..CaseInput::float(&[], Fill::Values(vec![0.0])) };
        vec![
            Case::new("adds", Attrs::new(), &[&[5, 7], &[5, 7]]),
            Case::new("a bad step", Attrs::new(), &[&[5], &[5]]).input(2, no.fixed()),
        ]
    }
}

/// Zeros of the accumulator's type. Inputs: the accumulator, and any value, which only says after what the reset happens.
pub struct Reset;

impl OpDef for Reset {
    fn name(&self) -> &'static str {
        "Reset"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        at_most(s, 2)?;
        Ok(vec![s.input(0)?.clone()])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        commits(&[(0, 0)])
    }

    fn cpu(&self, _: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        Ok(Box::new(|io| {
            io.output_bytes(0).fill(0);
            Ok(())
        }))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        x.set(0, x.zeros(x.input(0)?.dtype(), &x.dims(0)?));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        vec![Case::new("zeros", Attrs::new(), &[&[5, 7], &[2]])]
    }
}
