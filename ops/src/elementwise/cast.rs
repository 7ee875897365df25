//! Conversion between element types.

use super::lanes::{Fn1, map};
use crate::{
    Facts, OpDef, OpError, Signature,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Element},
    export::Export,
    grad::GradCx,
    onnx::{OnnxRule, onnx_dtype, rules},
};
use graph::{Attrs, DType, TensorType};
use half::{bf16, f16};
use std::marker::PhantomData;

/// x converted to the dtype of attribute `to`. Floats become integers by truncation, saturating, NaN becoming 0; anything but 0 becomes
/// true; narrower floats are rounded to the nearest, ties to even.
pub struct Cast;

impl OpDef for Cast {
    fn name(&self) -> &'static str {
        "Cast"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules![
            "Cast" => |cx| {
                let (x, to) = (cx.input(0)?, onnx_dtype(cx.attrs.int("to")?)?);
                let y = cx.b.cast(x, to)?;
                cx.set(0, y);
                Ok(())
            },
            "CastLike" => |cx| {
                let (x, like) = (cx.input(0)?, cx.input(1)?);
                let to = cx.b.ty(like).dtype;
                let y = cx.b.cast(x, to)?;
                cx.set(0, y);
                Ok(())
            },
            "DequantizeLinear" => crate::product::integer::dequantize,
            "QuantizeLinear" => crate::product::integer::quantize,
            "DynamicQuantizeLinear" => crate::product::integer::dynamic_quantize,
            "Identity" => |cx| {
                let x = cx.input(0)?;
                cx.set(0, x);
                Ok(())
            },
        ]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        Ok(vec![TensorType { dtype: s.attrs.dtype("to")?, shape: s.input(0)?.shape.clone() }])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (dy, from) = (g.cotangent0()?, g.ty(0)?.dtype);
        if g.needs(0) {
            let dx = g.b.cast(dy, from)?;
            g.set(0, dx);
        }
        Ok(())
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let same_size = match (s.opt_input(0), s.attrs.dtype("to")) {
            (Some(t), Ok(to)) => t.dtype.size() == to.size(),
            _ => false,
        };
        Facts {
            overwrites: if same_size { vec![(0, 0)] } else { Vec::new() },
            folds: true,
            ..Facts::default()
        }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let to = s.attrs.dtype("to")?;
        match s.input(0)?.dtype {
            // A boolean's byte is its value.
            DType::Bool | DType::U8 => from::<u8>(to),
            DType::F16 => from::<f16>(to),
            DType::BF16 => from::<bf16>(to),
            d => crate::for_number!(d, self.name(), T => from::<T>(to)),
        }
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let to = x.sig.attrs.dtype("to")?;
        x.same("Cast", Attrs::new().with("to", crate::export::code(to)))
    }

    fn cases(&self) -> Vec<Case> {
        let to = |d: DType| Attrs::new().with("to", d);
        let mut cases = Vec::new();
        for from in DType::ALL {
            for target in DType::ALL {
                let x = CaseInput { dtype: Some(from), ..CaseInput::float(&[9], Fill::Uniform(-3.0, 100.0)) };
                let x = if from.is_float() { x } else { CaseInput::ints(from, &[9], 0, 100) };
                cases.push(Case::new("any to any", to(target), &[]).input(0, x));
            }
        }
        // Narrowing would be a staircase to finite differences.
        cases.push(Case::new("same float", to(DType::F64), &[&[2, 3]]));
        cases
    }
}

/// Conversion from `T` to `U`.
struct To<T, U>(PhantomData<fn(T) -> U>);

/// Elements that convert to every other type, with one rounding.
trait Convert: Element {
    fn to<U: FromAny>(self) -> U;
}

/// Elements that every other type converts to.
trait FromAny: Element {
    fn from_f32(x: f32) -> Self;
    fn from_double(x: f64) -> Self;
    fn from_i64(x: i64) -> Self;
    fn from_u64(x: u64) -> Self;
}

macro_rules! convert {
    (number: $($t:ty),*; half: $($h:ty),*; via: $($s:ty => $f:ident($w:ty)),*) => {
        $(impl FromAny for $t {
            #[inline(always)]
            fn from_f32(x: f32) -> Self { x as $t }
            #[inline(always)]
            fn from_double(x: f64) -> Self { x as $t }
            #[inline(always)]
            fn from_i64(x: i64) -> Self { x as $t }
            #[inline(always)]
            fn from_u64(x: u64) -> Self { x as $t }
        })*
        $(impl FromAny for $h {
            #[inline(always)]
            fn from_f32(x: f32) -> Self { <$h>::from_f32(x) }
            #[inline(always)]
            fn from_double(x: f64) -> Self { <$h>::from_f64(x) }
            #[inline(always)]
            fn from_i64(x: i64) -> Self { <$h>::from_f64(x as f64) }
            #[inline(always)]
            fn from_u64(x: u64) -> Self { <$h>::from_f64(x as f64) }
        })*
        $(impl Convert for $s {
            #[inline(always)]
            fn to<U: FromAny>(self) -> U { U::$f(<$w>::from(self)) }
        })*
    };
}
convert!(
    number: f32, f64, i8, i16, i32, i64, u8, u16, u32, u64;
    half: f16, bf16;
    via: f32 => from_f32(f32), f64 => from_double(f64), f16 => from_f32(f32), bf16 => from_f32(f32),
        i8 => from_i64(i64), i16 => from_i64(i64), i32 => from_i64(i64), i64 => from_i64(i64),
        u8 => from_u64(u64), u16 => from_u64(u64), u32 => from_u64(u64), u64 => from_u64(u64)
);

impl<T: Convert, U: FromAny> Fn1<T, U> for To<T, U> {
    #[inline(always)]
    fn at(&self, x: T) -> U {
        x.to()
    }
}

fn from<T: Convert>(to: DType) -> Result<CpuKernel, OpError> {
    match to {
        DType::Bool => Ok(map::<T, u8>(|x: T| u8::from(x != T::from_f64(0.0)))),
        DType::F16 => Ok(map::<T, f16>(To::<T, f16>(PhantomData))),
        DType::BF16 => Ok(map::<T, bf16>(To::<T, bf16>(PhantomData))),
        d => crate::for_number!(d, "Cast", U => Ok(map::<T, U>(To::<T, U>(PhantomData)))),
    }
}
