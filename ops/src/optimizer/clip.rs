//! Properties of all gradients together: are they finite, how long are they, by what to scale them.

use super::state_type;
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Io, lanes, par},
    export::Export,
};
use graph::{Attrs, DType, Shape, TensorType};
use std::sync::atomic::{AtomicBool, Ordering};

fn f32_scalar() -> Vec<TensorType> {
    vec![TensorType { dtype: DType::F32, shape: Shape::scalar() }]
}

/// 1 if every element of every input is finite, else 0, an f32 scalar. Any number of inputs of any floating-point type.
pub struct IsFinite;

impl OpDef for IsFinite {
    fn name(&self) -> &'static str {
        "IsFinite"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        for t in s.inputs.iter().flatten() {
            if !t.dtype.is_float() {
                return Err(OpError::invalid(format!("inputs must be floating-point, not {}", t.dtype)));
            }
        }
        Ok(f32_scalar())
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let n = s.inputs.iter().flatten().filter_map(|t| t.shape.elements()).fold(0, u64::saturating_add);
        Work { flops: n, bytes: s.io_bytes(), product: false }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let dtypes: Vec<(usize, DType)> =
            s.inputs.iter().enumerate().filter_map(|(i, t)| Some((i, (*t)?.dtype))).collect();
        Ok(Box::new(move |io| {
            let finite = dtypes.iter().all(|&(i, d)| match d {
                DType::F32 => all_finite(io.input::<u32>(i), 0x7F80_0000),
                DType::F64 => all_finite(io.input::<u64>(i), 0x7FF0 << 48),
                DType::F16 => all_finite(io.input::<u16>(i), 0x7C00),
                _ => all_finite(io.input::<u16>(i), 0x7F80),
            });
            io.output::<f32>(0)[0] = if finite { 1.0 } else { 0.0 };
            Ok(())
        }))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let mut bad = x.number(DType::F32, 0.0);
        for i in 0..x.sig.inputs.len() {
            let Some(v) = x.opt(i) else { continue };
            // An infinity less itself is NaN.
            let nan = v.with("Sub", v).is_nan();
            let axes: Vec<i64> = (0..x.sig.input(i)?.shape.rank() as i64).collect();
            bad = bad + nan.cast(DType::F32).sum(&axes, false);
        }
        x.set(0, bad.equals(0.0).cast(DType::F32));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let infinite = CaseInput::float(&[3], Fill::Values(vec![1.0, f64::INFINITY, 2.0]));
        vec![
            Case::new("finite", Attrs::new(), &[&[4, 5], &[], &[3]]),
            Case::new("infinite", Attrs::new(), &[&[4, 5]]).input(1, infinite),
            Case::new("empty", Attrs::new(), &[&[0, 5]]),
        ]
    }
}

/// Whether no element has all exponent bits set.
fn all_finite<T>(x: &[T], exponent: T) -> bool
where
    T: Copy + Sync + PartialEq + std::ops::BitAnd<Output = T>,
{
    let finite = AtomicBool::new(true);
    lanes::each(
        x.len(),
        par::GRAIN,
        #[inline(always)]
        |r| {
            let bad = x[r].iter().fold(false, |bad, e| bad | (*e & exponent == exponent));
            if bad {
                finite.store(false, Ordering::Relaxed);
            }
        },
    );
    finite.into_inner()
}

/// The sum of the squares of all elements, added in float64: an f32 scalar.
pub struct SumSquares;

impl OpDef for SumSquares {
    fn name(&self) -> &'static str {
        "SumSquares"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        state_type(s)?;
        Ok(f32_scalar())
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let n = s.opt_input(0).and_then(|t| t.shape.elements()).unwrap_or(0);
        Facts::with_workspace(n.div_ceil(par::GRAIN as u64) * 8)
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let n = s.opt_input(0).and_then(|t| t.shape.elements()).unwrap_or(0);
        Work { flops: n.saturating_mul(2), bytes: s.io_bytes(), product: false }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
                   let x = io.input::<T>(0);
                   let partial = io.workspace::<f64>();
                   let base = par::Shared(partial.as_mut_ptr());
                   lanes::each(x.len(), par::GRAIN, #[inline(always)] |r| {
                       let base = &base;
                       // SAFETY: one partial sum a range; the run lies inside `x`.
                       unsafe {
                           let at = r.start / par::GRAIN;
        *base.0.add(at) = squares(&x[r]);
                       }
                   });
                   io.output::<f32>(0)[0] = partial.iter().sum::<f64>() as f32;
                   Ok(())
               })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let axes: Vec<i64> = (0..x.sig.input(0)?.shape.rank() as i64).collect();
        let wide = x.input(0)?.cast(DType::F64);
        x.set(0, (wide * wide).sum(&axes, false).cast(DType::F32));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        vec![
            Case::new("matrix", Attrs::new(), &[&[4, 15]]),
            Case::new("scalar", Attrs::new(), &[&[]]),
            Case::new("empty", Attrs::new(), &[&[0]]),
        ]
    }
}

/// Squares are taken in float64, where those of float32 elements neither overflow nor vanish.
#[inline(always)]
fn squares<T: crate::cpu::Float>(x: &[T]) -> f64 {
    let mut partial = [0.0f64; lanes::LANES];
    let (groups, rest) = x.as_chunks::<{ lanes::LANES }>();
    for group in groups {
        for (p, e) in partial.iter_mut().zip(group) {
            *p += e.to_f64() * e.to_f64();
        }
    }
    for (p, e) in partial.iter_mut().zip(rest) {
        *p += e.to_f64() * e.to_f64();
    }
    partial.iter().sum()
}

/// The factor that limits the global norm of the gradients.
///
/// Inputs: [`SumSquares`] of each gradient (f32 scalars), added from the first to the last. With norm = pre_scale * sqrt(sum) the result,
/// an f32 scalar, is pre_scale * min(1, max_norm / (norm + 1e-6)): the number by which gradients are multiplied. Attributes: `max_norm`
/// (without one nothing is clipped), `pre_scale` (1; what gradients are multiplied by anyway: 1 / accumulated steps, 1 / loss scale). A
/// norm that is not finite gives 0 or NaN, as clipping in PyTorch does.
pub struct ClipScale;

impl OpDef for ClipScale {
    fn name(&self) -> &'static str {
        "ClipScale"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        for i in 0..s.inputs.len() {
            s.input(i)?;
            super::scalar(s, i, "a sum of squares", DType::F32)?;
        }
        let max_norm = s.attrs.float_or("max_norm", f64::INFINITY)?;
        if max_norm.is_nan() || max_norm < 0.0 {
            return Err(OpError::invalid(format!("max_norm must not be negative: {max_norm}")));
        }
        s.attrs.float_or("pre_scale", 1.0)?;
        Ok(f32_scalar())
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (n, max_norm) = (s.inputs.len(), s.attrs.float_or("max_norm", f64::INFINITY)?);
        let pre_scale = s.attrs.float_or("pre_scale", 1.0)?;
        Ok(Box::new(move |io| {
            let sum = (0..n).fold(0.0, |sum, i| sum + f64::from(io.input::<f32>(i)[0]));
            let norm = pre_scale * sum.sqrt();
            let ratio = max_norm / (norm + 1e-6);
            // Not `min`, which would hide a NaN.
            let factor = if ratio > 1.0 { 1.0 } else { ratio };
            io.output::<f32>(0)[0] = (pre_scale * factor) as f32;
            Ok(())
        }))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (attrs, mut sum) = (x.sig.attrs, x.number(DType::F64, 0.0));
        for i in 0..x.sig.inputs.len() {
            sum = sum + x.input(i)?.cast(DType::F64);
        }
        let pre_scale = attrs.float_or("pre_scale", 1.0)?;
        let norm = sum.call("Sqrt") * pre_scale;
        let ratio = attrs.float_or("max_norm", f64::INFINITY)? / (norm + 1e-6);
        x.set(0, (ratio.greater(1.0).pick(1.0, ratio) * pre_scale).cast(DType::F32));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let sum =
            |v: f64| CaseInput { dtype: Some(DType::F32), ..CaseInput::float(&[], Fill::Values(vec![v])) };
        let case = |name, attrs| Case::new(name, attrs, &[]).input(0, sum(9.0)).input(1, sum(16.0));
        vec![
            case("clipped", Attrs::new().with("max_norm", 1.0)),
            case("short enough", Attrs::new().with("max_norm", 10.0).with("pre_scale", 0.5)),
        ]
    }
}
