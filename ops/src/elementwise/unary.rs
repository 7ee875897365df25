//! Elementwise operators of one input.

use super::binary::{broadcast_facts, same_dtype, zip};
use crate::{
    Facts, OpDef, OpError, Signature,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Element, Float, par},
    grad::GradCx,
    onnx::{OnnxRule, rules},
};
use graph::{Attrs, TensorType};

/// max(x, 0). Its gradient reads the output only.
pub struct Relu;

impl OpDef for Relu {
    fn name(&self) -> &'static str {
        "Relu"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Relu" => |cx| cx.same("Relu", Attrs::new())]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        float_input(s)
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (y, dy) = (g.output(0), g.cotangent0()?);
        let dx = g.b.call("ReluGrad", &[y, dy])?;
        g.set(0, dx);
        Ok(())
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        in_place()
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(map::<T, T>(|x| x.larger(T::ZERO))))
    }

    fn cases(&self) -> Vec<Case> {
        let x = CaseInput::float(&[3, 5], Fill::Avoid { range: (-1.0, 1.0), points: &[0.0], margin: 0.05 });
        vec![Case::new("both signs", Attrs::new(), &[]).input(0, x)]
    }
}

/// dy where y > 0, else 0: the gradient of [`Relu`] from its output. Inputs y, dy.
pub struct ReluGrad;

impl OpDef for ReluGrad {
    fn name(&self) -> &'static str {
        "ReluGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        same_dtype(s)
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        broadcast_facts(s)
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_float!(s.input(0)?.dtype, self.name(), T => zip::<T, T>(s, |y, dy| if y > T::ZERO { dy } else { T::ZERO }))
    }

    fn cases(&self) -> Vec<Case> {
        vec![Case::new("both signs", Attrs::new(), &[&[3, 5], &[3, 5]])]
    }
}

/// Facts of an elementwise operator of one input whose output may take its place.
pub(crate) fn in_place() -> Facts {
    Facts { overwrites: vec![(0, 0)], ..Facts::default() }
}

/// The type of the only input, which must be floating-point.
pub(crate) fn float_input(s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
    let t = s.input(0)?;
    if !t.dtype.is_float() {
        return Err(OpError::invalid(format!("the input must be floating-point, not {}", t.dtype)));
    }
    Ok(vec![t.clone()])
}

/// A kernel that applies `f` to each element; the output may be the input's memory if `T` and `U` have one size.
pub(crate) fn map<T: Element, U: Element>(f: impl Fn(T) -> U + Send + Sync + 'static) -> CpuKernel {
    Box::new(move |io| {
        let (x, n) = io.input_ptr::<T>(0);
        let (y, _) = io.output_ptr::<U>(0);
        let (x, y) = (par::Shared(x.cast_mut()), par::Shared(y));
        par::ranges(n, par::GRAIN, |range| {
            let (x, y) = (&x, &y);
            for i in range {
                // SAFETY: `i < n`; element `i` is read before it is written and by this iteration only.
                unsafe { *y.0.add(i) = f(*x.0.add(i)) };
            }
        });
        Ok(())
    })
}
