//! Runs of 16-bit floats to and from float32, as wide as the CPU converts them.
//!
//! Kernels compute in float32; a 16-bit float is a way to store. Every conversion to 16 bits rounds to the nearest, ties to even, and keeps
//! a NaN one, whichever instructions do it.

use super::{Element, Float};
use graph::DType;
use half::{bf16, f16};

/// How elements are stored, where kernels compute in another type.
pub trait Stored: Element {
    /// The type of the arithmetic.
    type Work: Float;
    /// Whether storage and arithmetic are of one type.
    const DIRECT: bool;
    /// One element, exactly.
    fn load(self) -> Self::Work;
    /// One element, rounded to the nearest.
    fn store(x: Self::Work) -> Self;
    /// `to[i] = from[i]` for `n` elements.
    ///
    /// # Safety
    ///
    /// `n` elements are readable at `from` and writable at `to`, which do not overlap.
    unsafe fn widen(from: *const Self, to: *mut Self::Work, n: usize);
    /// `to[i] = from[i]`, rounded to the nearest, for `n` elements.
    ///
    /// # Safety
    ///
    /// As [`Stored::widen`].
    unsafe fn narrow(from: *const Self::Work, to: *mut Self, n: usize);
}

macro_rules! direct {
    ($($t:ty),*) => {$(
        impl Stored for $t {
            type Work = $t;
            const DIRECT: bool = true;
            #[inline(always)]
            fn load(self) -> $t {
                self
            }
            #[inline(always)]
            fn store(x: $t) -> $t {
                x
            }
            #[inline(always)]
            unsafe fn widen(from: *const $t, to: *mut $t, n: usize) {
                // SAFETY: by this function's contract.
                unsafe { std::ptr::copy_nonoverlapping(from, to, n) }
            }
            #[inline(always)]
            unsafe fn narrow(from: *const $t, to: *mut $t, n: usize) {
                // SAFETY: by this function's contract.
                unsafe { std::ptr::copy_nonoverlapping(from, to, n) }
            }
        }
    )*};
}
direct!(f32, f64);

impl Stored for bf16 {
    type Work = f32;
    const DIRECT: bool = false;

    #[inline(always)]
    fn load(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn store(x: f32) -> bf16 {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1));
        let nan = bits & 0x7FFF_FFFF > 0x7F80_0000;
        // The quiet bit, so that no NaN becomes an infinity.
        bf16::from_bits(((if nan { bits | 0x0040_0000 } else { rounded }) >> 16) as u16)
    }

    unsafe fn widen(from: *const bf16, to: *mut f32, n: usize) {
        pulp::Arch::new().dispatch(
            #[inline(always)]
            || {
                for i in 0..n {
                    // SAFETY: by this function's contract.
                    unsafe { *to.add(i) = (*from.add(i)).load() };
                }
            },
        );
    }

    unsafe fn narrow(from: *const f32, to: *mut bf16, n: usize) {
        pulp::Arch::new().dispatch(
            #[inline(always)]
            || {
                for i in 0..n {
                    // SAFETY: by this function's contract.
                    unsafe { *to.add(i) = bf16::store(*from.add(i)) };
                }
            },
        );
    }
}

impl Stored for f16 {
    type Work = f32;
    const DIRECT: bool = false;

    #[inline(always)]
    fn load(self) -> f32 {
        let bits = u32::from(self.to_bits());
        // Exponents are 112 apart; multiplying makes subnormals normal. What had the largest exponent gets the largest.
        let magnitude = f32::from_bits((bits & 0x7FFF) << 13) * f32::from_bits(0x7780_0000);
        let special = if bits & 0x7C00 == 0x7C00 { 0x7F80_0000 } else { 0 };
        f32::from_bits(magnitude.to_bits() | special | (bits & 0x8000) << 16)
    }

    #[inline(always)]
    fn store(x: f32) -> f16 {
        f16::from_f32(x)
    }

    unsafe fn widen(from: *const f16, to: *mut f32, n: usize) {
        // SAFETY: by this function's contract; the instructions are there.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("f16c") {
                return x86::widen(from.cast(), to, n);
            }
            (0..n).for_each(|i| *to.add(i) = (*from.add(i)).load());
        }
    }

    unsafe fn narrow(from: *const f32, to: *mut f16, n: usize) {
        // SAFETY: by this function's contract; the instructions are there.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("f16c") {
                return x86::narrow(from, to.cast(), n);
            }
            (0..n).for_each(|i| *to.add(i) = f16::store(*from.add(i)));
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// # Safety
    ///
    /// As [`super::Stored::widen`]; the CPU has F16C.
    #[target_feature(enable = "avx,f16c")]
    pub(super) unsafe fn widen(from: *const u16, to: *mut f32, n: usize) {
        // SAFETY: by this function's contract; the rest goes through a buffer of 8.
        unsafe {
            for i in (0..n / 8 * 8).step_by(8) {
                _mm256_storeu_ps(to.add(i), _mm256_cvtph_ps(_mm_loadu_si128(from.add(i).cast())));
            }
            let (rest, done) = (n % 8, n / 8 * 8);
            if rest > 0 {
                let (mut half, mut wide) = ([0u16; 8], [0f32; 8]);
                std::ptr::copy_nonoverlapping(from.add(done), half.as_mut_ptr(), rest);
                let v = _mm256_cvtph_ps(_mm_loadu_si128(half.as_ptr().cast()));
                _mm256_storeu_ps(wide.as_mut_ptr(), v);
                std::ptr::copy_nonoverlapping(wide.as_ptr(), to.add(done), rest);
            }
        }
    }

    /// # Safety
    ///
    /// As [`super::Stored::narrow`]; the CPU has F16C.
    #[target_feature(enable = "avx,f16c")]
    pub(super) unsafe fn narrow(from: *const f32, to: *mut u16, n: usize) {
        // SAFETY: as above.
        unsafe {
            for i in (0..n / 8 * 8).step_by(8) {
                let v = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(from.add(i)));
                _mm_storeu_si128(to.add(i).cast(), v);
            }
            let (rest, done) = (n % 8, n / 8 * 8);
            if rest > 0 {
                let (mut wide, mut half) = ([0f32; 8], [0u16; 8]);
                std::ptr::copy_nonoverlapping(from.add(done), wide.as_mut_ptr(), rest);
                let v = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(wide.as_ptr()));
                _mm_storeu_si128(half.as_mut_ptr().cast(), v);
                std::ptr::copy_nonoverlapping(half.as_ptr(), to.add(done), rest);
            }
        }
    }
}

/// Whether a dtype has 16 bits and is floating-point.
pub fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Widens `n` 16-bit floats of a dtype to float32.
///
/// # Safety
///
/// As [`Stored::widen`]; `from` is aligned.
pub(crate) unsafe fn widen(dtype: DType, from: *const u8, to: *mut f32, n: usize) {
    // SAFETY: by this function's contract.
    unsafe {
        match dtype {
            DType::F16 => f16::widen(from.cast(), to, n),
            _ => bf16::widen(from.cast(), to, n),
        }
    }
}

/// Rounds `n` elements to 16-bit floats of a dtype.
///
/// # Safety
///
/// As [`Stored::narrow`]; `to` is aligned.
pub(crate) unsafe fn narrow(dtype: DType, from: *const f32, to: *mut u8, n: usize) {
    // SAFETY: by this function's contract.
    unsafe {
        match dtype {
            DType::F16 => f16::narrow(from, to.cast(), n),
            _ => bf16::narrow(from, to.cast(), n),
        }
    }
}

/// Runs the body with `$T` as the storage of any floating-point dtype, halves included; otherwise an unsupported error naming `$op`.
#[macro_export]
macro_rules! for_stored {
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
            d => $crate::for_float!(d, $op, $T => $body),
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Stored<Work = f32>>(of: fn(u16) -> T, exact: fn(T) -> f32, rounded: fn(f32) -> T) {
        let all: Vec<T> = (0..=u16::MAX).map(of).collect();
        let mut wide = vec![0f32; all.len()];
        // SAFETY: as many elements.
        unsafe { T::widen(all.as_ptr(), wide.as_mut_ptr(), all.len()) };
        let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        for (x, w) in all.iter().zip(&wide) {
            assert!(same(*w, exact(*x)) && same(x.load(), exact(*x)), "{x:?} is not {w}");
        }
        // Every float32 of a coarse grid, every halfway point, and what lies beside it.
        let mut points: Vec<f32> = (0..=u32::MAX).step_by(65_521).map(f32::from_bits).collect();
        for pair in wide.windows(2) {
            let middle = ((f64::from(pair[0]) + f64::from(pair[1])) / 2.0) as f32;
            points.extend([middle, middle.next_up(), middle.next_down()]);
        }
        let mut narrow = vec![of(0); points.len()];
        // SAFETY: as many elements.
        unsafe { T::narrow(points.as_ptr(), narrow.as_mut_ptr(), points.len()) };
        for (p, n) in points.iter().zip(&narrow) {
            let want = exact(rounded(*p));
            assert!(same(n.load(), want) && same(T::store(*p).load(), want), "{p:e} became {n:?}");
        }
    }

    #[test]
    fn conversions_are_those_of_ieee() {
        check::<f16>(f16::from_bits, f16::to_f32, f16::from_f32);
        check::<bf16>(bf16::from_bits, bf16::to_f32, bf16::from_f32);
    }
}
