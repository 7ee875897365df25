//! Operators that pick elements by index, put them back, or find indices.

mod affine_grid;
pub mod arg;
pub(crate) mod cuda;
pub mod elements;
pub mod gather;
pub mod grid_sample;
pub mod nd;
pub mod one_hot;
pub mod resize;
pub(crate) mod samplers;
mod scatter;
pub(crate) mod scatters;
mod selection;
pub(crate) mod separable;
mod suppress;
pub mod topk;

pub(crate) use scatter::{Reduction, copy_unless_same, scatter_gradient};

use crate::{
    OpError, Signature,
    cpu::{Io, KernelError},
};
use graph::{DType, TensorType};
use half::{bf16, f16};

/// Runs the body with `$T` as the element type of any dtype with numbers, halves included; otherwise an unsupported error.
macro_rules! for_numeric {
    ($dtype:expr, $op:expr, $T:ident => $body:expr) => {
        match $dtype {
            graph::DType::F16 => {
                type $T = half::f16;
                $body
            }
            graph::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            d => $crate::for_number!(d, $op, $T => $body),
        }
    };
}
pub(crate) use for_numeric;

/// Numbers that can be combined at one place of an output. Integers wrap; halves are rounded after each operation.
pub(crate) trait Combine: crate::cpu::Element {
    fn sum(self, b: Self) -> Self;
    fn product(self, b: Self) -> Self;
    /// Whether the value is no number.
    #[inline(always)]
    #[allow(clippy::eq_op)]
    fn nan(self) -> bool {
        self != self
    }
    /// The larger; a NaN if either is.
    #[inline(always)]
    fn maximum(self, b: Self) -> Self {
        if self > b || self.nan() { self } else { b }
    }
    /// The smaller; a NaN if either is.
    #[inline(always)]
    fn minimum(self, b: Self) -> Self {
        if self < b || self.nan() { self } else { b }
    }
}

macro_rules! combine {
    ($($t:ty: |$a:ident, $b:ident| $sum:expr, $product:expr;)*) => {$(
        impl Combine for $t {
            #[inline(always)]
            fn sum(self, b: Self) -> Self { let ($a, $b) = (self, b); $sum }
            #[inline(always)]
            fn product(self, b: Self) -> Self { let ($a, $b) = (self, b); $product }
        }
    )*};
}
combine! {
    f32: |a, b| a + b, a * b;
    f64: |a, b| a + b, a * b;
    f16: |a, b| f16::from_f32(a.to_f32() + b.to_f32()), f16::from_f32(a.to_f32() * b.to_f32());
    bf16: |a, b| bf16::from_f32(a.to_f32() + b.to_f32()), bf16::from_f32(a.to_f32() * b.to_f32());
    i8: |a, b| a.wrapping_add(b), a.wrapping_mul(b);
    i16: |a, b| a.wrapping_add(b), a.wrapping_mul(b);
    i32: |a, b| a.wrapping_add(b), a.wrapping_mul(b);
    i64: |a, b| a.wrapping_add(b), a.wrapping_mul(b);
    u8: |a, b| a.wrapping_add(b), a.wrapping_mul(b);
    u16: |a, b| a.wrapping_add(b), a.wrapping_mul(b);
    u32: |a, b| a.wrapping_add(b), a.wrapping_mul(b);
    u64: |a, b| a.wrapping_add(b), a.wrapping_mul(b);
}

/// The type of input `i`, which must hold i32 or i64 indices.
pub(crate) fn index_input<'a>(s: &Signature<'a>, i: usize) -> Result<&'a TensorType, OpError> {
    let t = s.input(i)?;
    if !matches!(t.dtype, DType::I32 | DType::I64) {
        return Err(OpError::invalid(format!("indices must be i32 or i64, not {}", t.dtype)));
    }
    Ok(t)
}

/// Indices of either width.
#[derive(Clone, Copy)]
pub(crate) enum Indices<'a> {
    Narrow(&'a [i32]),
    Wide(&'a [i64]),
}

impl<'a> Indices<'a> {
    /// Input `i` as indices of this dtype.
    pub(crate) fn of(io: &'a Io<'_>, i: usize, dtype: DType) -> Indices<'a> {
        if dtype == DType::I32 { Indices::Narrow(io.input(i)) } else { Indices::Wide(io.input(i)) }
    }

    pub(crate) fn len(self) -> usize {
        match self {
            Indices::Narrow(v) => v.len(),
            Indices::Wide(v) => v.len(),
        }
    }

    /// Index `k` counted from the front of an axis of extent `n`; checked before with [`Indices::check`].
    #[inline(always)]
    pub(crate) fn get(self, k: usize, n: usize) -> usize {
        let i = match self {
            Indices::Narrow(v) => i64::from(v[k]),
            Indices::Wide(v) => v[k],
        };
        (if i < 0 { i + n as i64 } else { i }) as usize
    }

    /// An error naming the first index outside of `-limit(k)..limit(k)`.
    pub(crate) fn check(self, limit: impl Fn(usize) -> usize) -> Result<(), KernelError> {
        for k in 0..self.len() {
            let i = match self {
                Indices::Narrow(v) => i64::from(v[k]),
                Indices::Wide(v) => v[k],
            };
            let n = limit(k) as i64;
            if i < -n || i >= n {
                return Err(KernelError(format!(
                    "index {i} at position {k} of the indices is outside of an axis of {n} elements"
                )));
            }
        }
        Ok(())
    }
}
