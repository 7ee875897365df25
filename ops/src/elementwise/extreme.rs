//! Larger and smaller of two inputs, with broadcasting.

use super::{
    binary::{Wrapping, broadcast, broadcast_facts, fold, same_dtype, set_summed, zip},
    lanes::zip3,
};
use crate::{
    Facts, OpDef, OpError, Signature,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Float},
    export::Export,
    grad::GradCx,
    onnx::{OnnxRule, rules},
};
use graph::{Attrs, DType, TensorType};

macro_rules! extremes {
    ($($(#[$doc:meta])* $Op:ident $name:literal $f:ident, $(#[$grad_doc:meta])* $Grad:ident $grad:literal $wins:tt $test:ident;)*) => {$(
        $(#[$doc])*
        pub struct $Op;

        impl OpDef for $Op {
            fn name(&self) -> &'static str {
                $name
            }

            fn onnx(&self) -> &'static [OnnxRule] {
                rules![$name => |cx| fold(cx, $name)]
            }

            fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
                same_dtype(s)
            }

            fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
                let dy = g.cotangent0()?;
                for i in 0..2 {
                    if g.needs(i) {
                        let (own, other) = (g.input(i)?, g.input(1 - i)?);
                        let d = g.b.call($grad, &[own, other, dy])?;
                        set_summed(g, i, d)?;
                    }
                }
                Ok(())
            }

            fn facts(&self, s: &Signature<'_>) -> Facts {
                Facts { folds: true, ..broadcast_facts(s) }
            }

            fn elementwise(&self) -> bool {
                true
            }

            fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
                crate::for_number!(s.input(0)?.dtype, $name, T => zip::<T, T>(s, <T as Wrapping>::$f))
            }

            fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
                x.same($name, Attrs::new())
            }

            fn cases(&self) -> Vec<Case> {
                // Distinct values a third apart against multiples of one: never equal.
                let a = |shape: &[usize]| CaseInput::float(shape, Fill::Distinct { spacing: 0.3 });
                let b = |shape: &[usize]| CaseInput::float(shape, Fill::Values((0..3).map(|i| i as f64 - 1.05).collect()));
                let ints = CaseInput::ints(DType::I32, &[2, 3], -5, 5);
                vec![
                    Case::new("row", Attrs::new(), &[]).input(0, a(&[4, 3])).input(1, b(&[3])),
                    Case::new("column", Attrs::new(), &[]).input(0, b(&[3, 1])).input(1, a(&[3, 4])),
                    Case::new("integers", Attrs::new(), &[]).input(0, ints.clone()).input(1, ints),
                ]
            }
        }

        $(#[$grad_doc])*
        pub struct $Grad;

        impl OpDef for $Grad {
            fn name(&self) -> &'static str {
                $grad
            }

            fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
                gradient_type(s)
            }

            fn differentiable(&self) -> bool {
                false
            }

            fn facts(&self, s: &Signature<'_>) -> Facts {
                broadcast_facts(s)
            }

            fn elementwise(&self) -> bool {
                true
            }

            fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
                crate::for_float!(s.input(0)?.dtype, $grad, T => zip3::<T, T, T, T>(s, |own: T, other: T, dy: T| {
                    if own $wins other {
                        dy
                    } else if own == other {
                        dy * T::HALF
                    } else {
                        T::ZERO
                    }
                }))
            }

            fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
                let (own, other, dy) = (x.input(0)?, x.input(1)?, x.input(2)?);
                x.set(0, own.$test(other).pick(dy, own.equals(other).pick(dy * 0.5, 0.0)));
                Ok(())
            }

            fn cases(&self) -> Vec<Case> {
                vec![
                    Case::new("row", Attrs::new(), &[&[4, 3], &[3], &[4, 3]]),
                    Case::new("column", Attrs::new(), &[&[4, 1], &[4, 3], &[4, 3]]),
                ]
            }
        }
    )*};
}

extremes! {
    /// The larger of a and b; NaN if either is. Where they are equal, each gets half of the gradient.
    Max "Max" greater_of,
    /// The gradient of [`Max`] to one side. Inputs: that side, the other one, dy.
    MaxGrad "MaxGrad" > greater;
    /// The smaller of a and b; NaN if either is. Where they are equal, each gets half of the gradient.
    Min "Min" lesser_of,
    /// The gradient of [`Min`] to one side. Inputs: that side, the other one, dy.
    MinGrad "MinGrad" < less;
}

/// The type of a result of three broadcast inputs of one floating-point dtype.
pub(crate) fn gradient_type(s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
    let ab = same_dtype(s)?.swap_remove(0);
    let dy = s.input(2)?;
    if dy.dtype != ab.dtype || !dy.dtype.is_float() {
        return Err(OpError::invalid(format!(
            "input dtypes must be one float, not {} and {}",
            ab.dtype, dy.dtype
        )));
    }
    Ok(vec![TensorType { dtype: dy.dtype, shape: broadcast(&ab.shape, &dy.shape)? }])
}
