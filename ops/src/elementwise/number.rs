//! Arithmetic of kernels on every numeric element type.

use crate::cpu::Element;

/// Arithmetic that wraps for integers and is IEEE for floats. No operation panics.
pub(crate) trait Wrapping: Element {
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    /// Integers are truncated toward zero; an integer divided by 0 is 0.
    fn div(self, b: Self) -> Self;
    /// The remainder with the sign of the dividend (integers: 0 for a divisor of 0).
    fn fmod(self, b: Self) -> Self;
    /// The remainder with the sign of the divisor (integers: 0 for a divisor of 0).
    fn modulo(self, b: Self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    /// -1, 0 or 1; NaN for NaN.
    fn sign(self) -> Self;
    /// The larger; NaN if either is.
    fn greater_of(self, b: Self) -> Self;
    /// The smaller; NaN if either is.
    fn lesser_of(self, b: Self) -> Self;
    /// The nearest value.
    fn saturating(i: i64) -> Self;
    /// The least value (-infinity for floats).
    const LEAST: Self;
    /// The greatest value (infinity for floats).
    const GREATEST: Self;
}

macro_rules! wrapping {
    ($($t:ty: $sign:ident),*) => {$(
        impl Wrapping for $t {
            const LEAST: Self = <$t>::MIN;
            const GREATEST: Self = <$t>::MAX;
            #[inline(always)]
            fn add(self, b: Self) -> Self { self.wrapping_add(b) }
            #[inline(always)]
            fn sub(self, b: Self) -> Self { self.wrapping_sub(b) }
            #[inline(always)]
            fn mul(self, b: Self) -> Self { self.wrapping_mul(b) }
            #[inline(always)]
            fn div(self, b: Self) -> Self { if b == 0 { 0 } else { self.wrapping_div(b) } }
            #[inline(always)]
            fn fmod(self, b: Self) -> Self { if b == 0 { 0 } else { self.wrapping_rem(b) } }
            #[inline(always)]
            #[allow(unused_comparisons)]
            fn modulo(self, b: Self) -> Self {
                let r = self.fmod(b);
                if r != 0 && (r < 0) != (b < 0) { r.wrapping_add(b) } else { r }
            }
            #[inline(always)]
            fn neg(self) -> Self { self.wrapping_neg() }
            #[inline(always)]
            fn greater_of(self, b: Self) -> Self { Ord::max(self, b) }
            #[inline(always)]
            fn lesser_of(self, b: Self) -> Self { Ord::min(self, b) }
            fn saturating(i: i64) -> Self {
                <$t>::try_from(i).unwrap_or(if i < 0 { <$t>::MIN } else { <$t>::MAX })
            }
            wrapping!(@ $sign);
        }
    )*};
    (@ signed) => {
        #[inline(always)]
        fn abs(self) -> Self { self.wrapping_abs() }
        #[inline(always)]
        fn sign(self) -> Self { self.signum() }
    };
    (@ unsigned) => {
        #[inline(always)]
        fn abs(self) -> Self { self }
        #[inline(always)]
        fn sign(self) -> Self { Ord::min(self, 1) }
    };
}
wrapping!(i8: signed, i16: signed, i32: signed, i64: signed, u8: unsigned, u16: unsigned, u32: unsigned, u64: unsigned);

macro_rules! ieee {
    ($($t:ty),*) => {$(
        impl Wrapping for $t {
            const LEAST: Self = <$t>::NEG_INFINITY;
            const GREATEST: Self = <$t>::INFINITY;
            #[inline(always)]
            fn add(self, b: Self) -> Self { self + b }
            #[inline(always)]
            fn sub(self, b: Self) -> Self { self - b }
            #[inline(always)]
            fn mul(self, b: Self) -> Self { self * b }
            #[inline(always)]
            fn div(self, b: Self) -> Self { self / b }
            #[inline(always)]
            fn fmod(self, b: Self) -> Self { self % b }
            #[inline(always)]
            fn modulo(self, b: Self) -> Self {
                let r = self % b;
                if r == 0.0 {
                    r.copysign(b)
                } else if (r < 0.0) != (b < 0.0) {
                    r + b
                } else {
                    r
                }
            }
            #[inline(always)]
            fn neg(self) -> Self { -self }
            #[inline(always)]
            fn abs(self) -> Self { <$t>::abs(self) }
            #[inline(always)]
            fn sign(self) -> Self { if self > 0.0 { 1.0 } else if self < 0.0 { -1.0 } else { self } }
            #[inline(always)]
            fn greater_of(self, b: Self) -> Self { if self > b || self.is_nan() { self } else { b } }
            #[inline(always)]
            fn lesser_of(self, b: Self) -> Self { if self < b || self.is_nan() { self } else { b } }
            fn saturating(i: i64) -> Self { i as $t }
        }
    )*};
}
ieee!(f32, f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integer_division_truncates_and_never_panics() {
        assert_eq!(Wrapping::div(-7i32, 2), -3);
        assert_eq!(Wrapping::div(7i32, 0), 0);
        assert_eq!(Wrapping::div(i64::MIN, -1), i64::MIN);
        assert_eq!(Wrapping::fmod(i8::MIN, -1), 0);
    }

    #[test]
    fn remainders_take_the_sign_of_dividend_or_divisor() {
        let cases =
            [(7, 3, 1, 1), (-7, 3, -1, 2), (7, -3, 1, -2), (-7, -3, -1, -1), (6, -3, 0, 0), (5, 0, 0, 0)];
        for (a, b, fmod, modulo) in cases {
            assert_eq!((Wrapping::fmod(a, b), Wrapping::modulo(a, b)), (fmod, modulo), "{a} and {b}");
        }
        assert_eq!(Wrapping::fmod(-5.5f64, 2.0), -1.5);
        assert_eq!(Wrapping::modulo(-5.5f64, 2.0), 0.5);
        assert_eq!(Wrapping::modulo(-3.0f32, f32::INFINITY), f32::INFINITY);
        assert!(Wrapping::modulo(4.0f32, -2.0).is_sign_negative() && Wrapping::modulo(1.0f32, 0.0).is_nan());
        assert_eq!(Wrapping::modulo(-5.5f64, 2.0), 0.5);
        assert_eq!(Wrapping::modulo(200u8, 7), 4);
    }

    #[test]
    fn extremes_keep_nan() {
        assert!(Wrapping::greater_of(f32::NAN, 1.0).is_nan() && Wrapping::greater_of(1.0, f32::NAN).is_nan());
        assert!(Wrapping::lesser_of(f32::NAN, 1.0).is_nan() && Wrapping::lesser_of(1.0, f32::NAN).is_nan());
        assert!(Wrapping::sign(f64::NAN).is_nan());
        assert_eq!(Wrapping::sign(9u8), 1);
    }
}
