//! Comparisons and boolean logic: boolean results, with broadcasting.

use super::{
    binary::{broadcast, broadcast_facts, same_dtype, zip},
    lanes::map,
    unary::in_place,
};
use crate::{
    Facts, OpDef, OpError, Signature,
    case::{Case, CaseInput},
    cpu::CpuKernel,
    export::Export,
    onnx::{OnnxRule, rules},
};
use graph::{Attrs, DType, TensorType};

fn booleans(s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
    let shape = same_dtype(s)?.swap_remove(0).shape;
    Ok(vec![TensorType { dtype: DType::Bool, shape }])
}

/// Runs the body with `$T` as an ordered element type for any dtype.
macro_rules! for_ordered {
    ($dtype:expr, $op:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::Bool => {
                type $T = u8;
                $body
            }
            DType::F16 => {
                type $T = half::f16;
                $body
            }
            DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            d => crate::for_number!(d, $op, $T => $body),
        }
    };
}

macro_rules! comparisons {
    ($($(#[$doc:meta])* $Op:ident $name:literal $f:tt;)*) => {$(
        $(#[$doc])*
        pub struct $Op;

        impl OpDef for $Op {
            fn name(&self) -> &'static str {
                $name
            }

            fn onnx(&self) -> &'static [OnnxRule] {
                rules![$name => |cx| cx.same($name, Attrs::new())]
            }

            fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
                booleans(s)
            }

            fn differentiable(&self) -> bool {
                false
            }

            fn facts(&self, s: &Signature<'_>) -> Facts {
                Facts { folds: true, ..broadcast_facts(s) }
            }

            fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
                for_ordered!(s.input(0)?.dtype, $name, T => zip::<T, u8>(s, |a: T, b: T| u8::from(a $f b)))
            }

            fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
                // ONNX does not order booleans.
                let side = |i: usize| {
                    let v = x.input(i)?;
                    Ok::<_, OpError>(Some(if v.dtype() == DType::Bool { v.cast(DType::I32) } else { v }))
                };
                x.same_of($name, &[side(0)?, side(1)?], Attrs::new())
            }

            fn cases(&self) -> Vec<Case> {
                let ints = |d, shape: &[usize]| CaseInput::ints(d, shape, 0, 2);
                let pair = |name, d| {
                    Case::new(name, Attrs::new(), &[]).input(0, ints(d, &[2, 3])).input(1, ints(d, &[3]))
                };
                vec![
                    Case::new("floats", Attrs::new(), &[&[2, 3], &[2, 1]]),
                    pair("integers", DType::I64),
                    pair("booleans", DType::Bool),
                    pair("halves", DType::F16),
                ]
            }
        }
    )*};
}

comparisons! {
    /// a = b.
    Equal "Equal" ==;
    /// a < b.
    Less "Less" <;
    /// a <= b.
    LessOrEqual "LessOrEqual" <=;
    /// a > b.
    Greater "Greater" >;
    /// a >= b.
    GreaterOrEqual "GreaterOrEqual" >=;
}

macro_rules! logic {
    ($($(#[$doc:meta])* $Op:ident $name:literal $f:tt;)*) => {$(
        $(#[$doc])*
        pub struct $Op;

        impl OpDef for $Op {
            fn name(&self) -> &'static str {
                $name
            }

            fn onnx(&self) -> &'static [OnnxRule] {
                rules![$name => |cx| cx.same($name, Attrs::new())]
            }

            fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
                let (a, b) = (s.input(0)?, s.input(1)?);
                if a.dtype != DType::Bool || b.dtype != DType::Bool {
                    return Err(OpError::invalid(format!("inputs must be boolean, not {} and {}", a.dtype, b.dtype)));
                }
                Ok(vec![TensorType { dtype: DType::Bool, shape: broadcast(&a.shape, &b.shape)? }])
            }

            fn differentiable(&self) -> bool {
                false
            }

            fn facts(&self, s: &Signature<'_>) -> Facts {
                Facts { folds: true, ..broadcast_facts(s) }
            }

            fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
                zip::<u8, u8>(s, |a: u8, b: u8| u8::from((a != 0) $f (b != 0)))
            }

            fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
                x.same($name, Attrs::new())
            }

            fn cases(&self) -> Vec<Case> {
                let bools = |shape: &[usize]| CaseInput::ints(DType::Bool, shape, 0, 2);
                vec![Case::new("broadcast", Attrs::new(), &[]).input(0, bools(&[4, 5])).input(1, bools(&[4, 1]))]
            }
        }
    )*};
}

logic! {
    /// Both.
    And "And" &;
    /// Either.
    Or "Or" |;
    /// One but not both.
    Xor "Xor" ^;
}

/// The opposite of a boolean.
pub struct Not;

impl OpDef for Not {
    fn name(&self) -> &'static str {
        "Not"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Not" => |cx| cx.same("Not", Attrs::new())]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let t = s.input(0)?;
        if t.dtype != DType::Bool {
            return Err(OpError::invalid(format!("the input must be boolean, not {}", t.dtype)));
        }
        Ok(vec![t.clone()])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { folds: true, ..in_place() }
    }

    fn cpu(&self, _: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        Ok(map::<u8, u8>(|a: u8| u8::from(a == 0)))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        x.same("Not", Attrs::new())
    }

    fn cases(&self) -> Vec<Case> {
        vec![Case::new("booleans", Attrs::new(), &[]).input(0, CaseInput::ints(DType::Bool, &[7], 0, 2))]
    }
}
