//! Element types of kernels and dispatch over them.

use graph::DType;
use half::{bf16, f16};

/// A type of tensor elements: every bit pattern is a value (booleans are bytes, 0 or 1).
pub trait Element: Copy + Send + Sync + PartialEq + PartialOrd + std::fmt::Debug + 'static {
    /// Its dtype; booleans share `u8`.
    const DTYPE: DType;
    /// From a 64-bit float, rounded or truncated as `as` does.
    fn from_f64(x: f64) -> Self;
    /// To a 64-bit float.
    fn to_f64(self) -> f64;
}

macro_rules! element {
    ($($t:ty => $d:ident),*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$d;
            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
        }
    )*};
}
element!(f32 => F32, f64 => F64, i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64);

macro_rules! half_element {
    ($($t:ty => $d:ident),*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$d;
            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                <$t>::from_f64(x)
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                <$t>::to_f64(self)
            }
        }
    )*};
}
half_element!(f16 => F16, bf16 => BF16);

/// Floating-point types with arithmetic: `f32` and `f64`.
pub trait Float:
    Element
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
    + std::ops::AddAssign
    + std::ops::MulAssign
    + std::iter::Sum
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// 1/2.
    const HALF: Self;
    /// The most negative value, -infinity.
    const NEG_INFINITY: Self;
    /// Square root, correctly rounded.
    fn sqrt(self) -> Self;
    /// The larger; NaN if either is.
    fn larger(self, other: Self) -> Self;
    /// The smaller; NaN if either is.
    fn smaller(self, other: Self) -> Self;
}

macro_rules! float {
    ($($t:ty),*) => {$(
        impl Float for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const HALF: Self = 0.5;
            const NEG_INFINITY: Self = <$t>::NEG_INFINITY;
            #[inline(always)]
            fn sqrt(self) -> Self {
                self.sqrt()
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                if self > other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                if self < other || self.is_nan() { self } else { other }
            }
        }
    )*};
}
float!(f32, f64);

/// Runs the body with `$T` as the float type of `$dtype` (f32, f64), otherwise evaluates to an unsupported error naming `$op`.
#[macro_export]
macro_rules! for_float {
    ($dtype:expr, $op:expr, $T:ident => $body:expr) => {
        match $dtype {
            graph::DType::F32 => {
                type $T = f32;
                $body
            }
            graph::DType::F64 => {
                type $T = f64;
                $body
            }
            d => Err($crate::OpError::unsupported(format!("{} on {d} tensors", $op))),
        }
    };
}

/// Runs the body with `$T` as the element type of any numeric dtype that has Rust arithmetic (floats but halves, integers).
#[macro_export]
macro_rules! for_number {
    ($dtype:expr, $op:expr, $T:ident => $body:expr) => {
        match $dtype {
            graph::DType::F32 => {
                type $T = f32;
                $body
            }
            graph::DType::F64 => {
                type $T = f64;
                $body
            }
            graph::DType::I8 => {
                type $T = i8;
                $body
            }
            graph::DType::I16 => {
                type $T = i16;
                $body
            }
            graph::DType::I32 => {
                type $T = i32;
                $body
            }
            graph::DType::I64 => {
                type $T = i64;
                $body
            }
            graph::DType::U8 => {
                type $T = u8;
                $body
            }
            graph::DType::U16 => {
                type $T = u16;
                $body
            }
            graph::DType::U32 => {
                type $T = u32;
                $body
            }
            graph::DType::U64 => {
                type $T = u64;
                $body
            }
            d => Err($crate::OpError::unsupported(format!("{} on {d} tensors", $op))),
        }
    };
}

/// Runs the body with `$T` as an unsigned type of the dtype's size: for kernels that only move elements.
#[macro_export]
macro_rules! for_width {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype.size() {
            1 => {
                type $T = u8;
                $body
            }
            2 => {
                type $T = u16;
                $body
            }
            4 => {
                type $T = u32;
                $body
            }
            _ => {
                type $T = u64;
                $body
            }
        }
    };
}
