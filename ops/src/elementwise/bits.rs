//! Operators on the bits of integers.

use super::{
    binary::{broadcast_facts, same_dtype, zip},
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

fn integers(s: &Signature<'_>) -> Result<(), OpError> {
    match s.input(0)?.dtype {
        d if d.is_int() => Ok(()),
        d => Err(OpError::invalid(format!("inputs must be integers, not {d}"))),
    }
}

macro_rules! bitwise {
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
                integers(s)?;
                same_dtype(s)
            }

            fn differentiable(&self) -> bool {
                false
            }

            fn facts(&self, s: &Signature<'_>) -> Facts {
                Facts { folds: true, ..broadcast_facts(s) }
            }

            fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
                crate::for_width!(s.input(0)?.dtype, T => zip::<T, T>(s, |a: T, b: T| a $f b))
            }

            fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
                x.same($name, Attrs::new())
            }

            fn cases(&self) -> Vec<Case> {
                let ints = |d, shape: &[usize]| CaseInput::ints(d, shape, -9, 90);
                let pair = |name, d| {
                    Case::new(name, Attrs::new(), &[]).input(0, ints(d, &[2, 3])).input(1, ints(d, &[3]))
                };
                vec![pair("64 bits", DType::I64), pair("8 bits", DType::I8)]
            }
        }
    )*};
}

bitwise! {
    /// Bits set in both.
    BitwiseAnd "BitwiseAnd" &;
    /// Bits set in either.
    BitwiseOr "BitwiseOr" |;
    /// Bits set in one but not both.
    BitwiseXor "BitwiseXor" ^;
}

/// Every bit inverted.
pub struct BitwiseNot;

impl OpDef for BitwiseNot {
    fn name(&self) -> &'static str {
        "BitwiseNot"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["BitwiseNot" => |cx| cx.same("BitwiseNot", Attrs::new())]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        integers(s)?;
        Ok(vec![s.input(0)?.clone()])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { folds: true, ..in_place() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_width!(s.input(0)?.dtype, T => Ok(map::<T, T>(|a: T| !a)))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        x.same("BitwiseNot", Attrs::new())
    }

    fn cases(&self) -> Vec<Case> {
        vec![Case::new("32 bits", Attrs::new(), &[]).input(0, CaseInput::ints(DType::I32, &[7], -9, 9))]
    }
}

/// Integer a shifted by b bits; attribute `left` (0 or 1). Shifting signed integers right keeps the sign. A negative b, the width or more
/// shift every bit out: 0, or -1 to the right of a negative a.
pub struct BitShift;

macro_rules! shift {
    ($s:expr, $left:expr, $($dtype:ident $t:ty),*) => {
        match $s.input(0)?.dtype {
            $(DType::$dtype => {
                let count = |b: $t| u32::try_from(b).unwrap_or(u32::MAX);
                if $left {
                    zip::<$t, $t>($s, move |a: $t, b: $t| a.checked_shl(count(b)).unwrap_or(0))
                } else {
                    // The last bit by itself, so that nothing but the sign is left.
                    let all = |a: $t| (a >> (<$t>::BITS - 1)) >> 1;
                    zip::<$t, $t>($s, move |a: $t, b: $t| a.checked_shr(count(b)).unwrap_or_else(|| all(a)))
                }
            })*
            d => Err(OpError::invalid(format!("inputs must be integers, not {d}"))),
        }
    };
}

impl OpDef for BitShift {
    fn name(&self) -> &'static str {
        "BitShift"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["BitShift" => |cx| {
            let left = match cx.attrs.str_or("direction", "")? {
                "LEFT" => true,
                "RIGHT" => false,
                d => return Err(OpError::invalid(format!("direction must be LEFT or RIGHT, not {d:?}"))),
            };
            cx.same("BitShift", Attrs::new().with("left", left))
        }]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        integers(s)?;
        s.attrs.int("left")?;
        same_dtype(s)
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        Facts { folds: true, ..broadcast_facts(s) }
    }

    // Counts of some types always fit.
    #[allow(clippy::unnecessary_fallible_conversions, clippy::useless_conversion)]
    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let left = s.attrs.int("left")? != 0;
        shift!(s, left, U8 u8, U16 u16, U32 u32, U64 u64, I8 i8, I16 i16, I32 i32, I64 i64)
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        if matches!(x.input(0)?.dtype(), DType::I8 | DType::I16 | DType::I32 | DType::I64) {
            return Err(OpError::unsupported("a BitShift of signed integers, which ONNX does not have"));
        }
        let left = x.sig.attrs.int("left")? != 0;
        x.same("BitShift", Attrs::new().with("direction", if left { "LEFT" } else { "RIGHT" }))
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, left: bool, d| {
            let a = CaseInput::ints(d, &[2, 3], 0, 90);
            Case::new(name, Attrs::new().with("left", left), &[])
                .input(0, a)
                .input(1, CaseInput::ints(d, &[3], 0, 12))
        };
        vec![
            case("left", true, DType::U8),
            case("right", false, DType::U32),
            case("signed", false, DType::I16),
        ]
    }
}
