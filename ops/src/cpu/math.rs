//! Elementary functions for kernels: the same bits on every machine, and for f32 fast in loops.
//!
//! The f32 versions are branch-free polynomials without calls, so that LLVM turns a loop over them into vector code; they are within 2.5
//! units in the last place, and right on infinities, NaN, denormals and overflow. The f64 versions are those of the `libm` crate. Nothing
//! here calls the platform's mathematical library, whose results differ from one system to the next.
//!
//! They lean on fused multiply-add, which is one instruction only where code is compiled for AVX2, AVX-512 or NEON: call them inside of
//! [`super::par::pieces`], which guarantees that. The names start with `v` because `f32` and `f64` have methods of the plain names, and
//! those would silently win.

use super::Float;

/// Elementary functions on `f32` and `f64`.
pub trait Math: Float {
    /// The number nearest to a 64-bit float.
    fn of(x: f64) -> Self;
    /// self · a + b, rounded once.
    fn fma(self, a: Self, b: Self) -> Self;
    /// The absolute value.
    fn vabs(self) -> Self;
    /// The magnitude of `self` with the sign of `sign`.
    fn with_sign(self, sign: Self) -> Self;
    /// The largest integer not above.
    fn vfloor(self) -> Self;
    /// The nearest integer, halves to the even one.
    fn vround(self) -> Self;
    /// e to the power.
    fn vexp(self) -> Self;
    /// e to the power, less 1, accurate near 0.
    fn vexp_m1(self) -> Self;
    /// The natural logarithm.
    fn vln(self) -> Self;
    /// The natural logarithm of 1 + self, accurate near 0.
    fn vln_1p(self) -> Self;
    /// The hyperbolic tangent.
    fn vtanh(self) -> Self;
    /// 1 / (1 + e^-self).
    fn vsigmoid(self) -> Self;
    /// The error function.
    fn verf(self) -> Self;
    /// The sine; f32: vectorisable for magnitudes below 2^40, beyond that the same function by another way.
    fn vsin(self) -> Self;
    /// The cosine; as [`Math::vsin`].
    fn vcos(self) -> Self;
    /// ln(1 + e^self).
    #[inline(always)]
    fn vsoftplus(self) -> Self {
        self.larger(Self::ZERO) + (-self.vabs()).vexp().vln_1p()
    }
    /// A function of 64-bit floats, rounded to `Self`: for functions too rare for a version of their own.
    #[inline(always)]
    fn via(self, f: impl Fn(f64) -> f64) -> Self {
        Self::of(f(self.to_f64()))
    }
}

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts; products of the first with integers up to 2^9 are exact.
const LN2_HI: f32 = 0.693_145_75;
const LN2_LO: f32 = 1.428_606_8e-6;
/// Adding it rounds a float of magnitude below 2^22 to an integer, which then stands in the low bits.
const ROUND: f32 = 12_582_912.0;
/// As [`ROUND`] for 64-bit floats.
const ROUND64: f64 = 6_755_399_441_055_744.0;

/// c[0]·x^(N-1) + ... + c[N-1].
#[inline(always)]
fn poly<T: Math, const N: usize>(x: T, c: [T; N]) -> T {
    let mut y = c[0];
    for k in &c[1..] {
        y = y.fma(x, *k);
    }
    y
}

/// 2^k for -126 <= k <= 127.
#[inline(always)]
fn pow2(k: i32) -> f32 {
    f32::from_bits((k.wrapping_add(127) as u32) << 23)
}

/// k and e^r - 1 such that e^x = 2^k · e^r, |r| <= ln 2 / 2, for x between -104 and 89 (or NaN).
#[inline(always)]
fn reduce_exp(x: f32) -> (i32, f32) {
    let t = x.mul_add(LOG2_E, ROUND);
    let n = t - ROUND;
    let k = t.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let r = n.mul_add(-LN2_LO, n.mul_add(-LN2_HI, x));
    let c = [1.989_108e-4, 1.393_373_1e-3, 8.333_31e-3, 4.166_646_3e-2, 1.666_666_7e-1, 0.5];
    (k, (r * r).mul_add(poly(r, c), r))
}

/// `x` moved into [lo, hi]; NaN stays.
#[inline(always)]
fn clamp(x: f32, lo: f32, hi: f32) -> f32 {
    let x = if x > hi { hi } else { x };
    if x < lo { lo } else { x }
}

/// Sine or cosine (`quarter` 0 or 1) for |x| < 2^40.
#[inline(always)]
fn sine(x: f32, quarter: u64) -> f32 {
    let x = f64::from(x);
    let t = x.mul_add(std::f64::consts::FRAC_2_PI, ROUND64);
    let n = t - ROUND64;
    let k = t.to_bits().wrapping_add(quarter);
    let r = n.mul_add(-std::f64::consts::FRAC_PI_2, x);
    let r = n.mul_add(-6.123_233_995_736_766e-17, r) as f32;
    let z = r * r;
    let s = (r * z).mul_add(poly(z, [-1.958_738_7e-4, 8.332_746e-3, -1.666_666_4e-1]), r);
    let c =
        (z * z).mul_add(poly(z, [2.454_743_7e-5, -1.388_83e-3, 4.166_666_4e-2]), (-0.5f32).mul_add(z, 1.0));
    let y = if k & 1 == 0 { s } else { c };
    f32::from_bits(y.to_bits() ^ ((k as u32 & 2) << 30))
}

/// Largest magnitude whose sine the short reduction gets right.
const SINE_LIMIT: f32 = 1_099_511_627_776.0;

impl Math for f32 {
    #[inline(always)]
    fn of(x: f64) -> f32 {
        x as f32
    }

    #[inline(always)]
    fn fma(self, a: f32, b: f32) -> f32 {
        self.mul_add(a, b)
    }

    #[inline(always)]
    fn vabs(self) -> f32 {
        f32::from_bits(self.to_bits() & 0x7fff_ffff)
    }

    #[inline(always)]
    fn with_sign(self, sign: f32) -> f32 {
        f32::from_bits(self.to_bits() & 0x7fff_ffff | sign.to_bits() & 0x8000_0000)
    }

    #[inline(always)]
    fn vfloor(self) -> f32 {
        self.floor()
    }

    #[inline(always)]
    fn vround(self) -> f32 {
        self.round_ties_even()
    }

    #[inline(always)]
    fn vexp(self) -> f32 {
        let (k, p) = reduce_exp(clamp(self, -104.0, 89.0));
        // In two steps, so that results may be denormal or overflow.
        let half = k >> 1;
        (p + 1.0) * pow2(half) * pow2(k.wrapping_sub(half))
    }

    #[inline(always)]
    fn vexp_m1(self) -> f32 {
        let (k, p) = reduce_exp(clamp(self, -20.0, 89.0));
        let half = pow2(k.wrapping_sub(1));
        let y = 2.0 * half.mul_add(p, half - 0.5);
        // Keeps -0, and denormals exact.
        if self.vabs() < 1e-8 { self } else { y }
    }

    #[inline(always)]
    fn vln(self) -> f32 {
        let tiny = self < f32::MIN_POSITIVE;
        let scaled = if tiny { self * 8_388_608.0 } else { self };
        // The mantissa in [sqrt(1/2), sqrt(2)).
        let bits = scaled.to_bits().wrapping_sub(0x3f35_04f3);
        let e = ((bits as i32) >> 23) as f32 - if tiny { 23.0 } else { 0.0 };
        let f = f32::from_bits((bits & 0x007f_ffff).wrapping_add(0x3f35_04f3)) - 1.0;
        let c = [
            6.971_612e-2,
            -1.147_973_4e-1,
            1.168_542e-1,
            -1.242_568_7e-1,
            1.424_905_8e-1,
            -1.666_780_3e-1,
            2.000_071_6e-1,
            -2.499_999_7e-1,
            3.333_333e-1,
        ];
        let tail = (f * f) * f.mul_add(poly(f, c), -0.5);
        let y = e.mul_add(LN2_HI, e.mul_add(LN2_LO, tail) + f);
        let special = if self == 0.0 {
            f32::NEG_INFINITY
        } else if self > 0.0 {
            f32::INFINITY
        } else {
            f32::NAN
        };
        if self > 0.0 && self < f32::INFINITY { y } else { special }
    }

    #[inline(always)]
    fn vln_1p(self) -> f32 {
        let u = 1.0 + self;
        let y = u.vln();
        // What rounding 1 + self lost.
        let lost = if self < 1.0 { self - (u - 1.0) } else { 1.0 - (u - self) };
        let y = if u > 0.0 && u < f32::INFINITY { y + lost / u } else { y };
        if self.vabs() < 1e-8 { self } else { y }
    }

    #[inline(always)]
    fn vtanh(self) -> f32 {
        let t = (2.0 * clamp(self.vabs(), 0.0, 10.0)).vexp_m1();
        (t / (t + 2.0)).with_sign(self)
    }

    #[inline(always)]
    fn vsigmoid(self) -> f32 {
        let e = (-self.vabs()).vexp();
        (if self < 0.0 { e } else { 1.0 }) / (1.0 + e)
    }

    #[inline(always)]
    fn verf(self) -> f32 {
        let a = self.vabs();
        let z = a * a;
        let c = [
            8.399_424_4e-5,
            -8.149_968e-4,
            5.201_707_6e-3,
            -2.685_968_8e-2,
            1.128_370_1e-1,
            -3.761_263_5e-1,
            1.283_791_7e-1,
        ];
        let small = a.mul_add(poly(z, c), a);
        // -ln(1 - erf a) around 2.5; from 4 on erf is 1.
        let t = clamp(a, 0.92, 4.0) - 2.5;
        let c = [
            5.148_567_4e-8,
            -1.596_275_2e-6,
            1.303_690_9e-5,
            -7.746_732_4e-5,
            4.206_267_2e-4,
            -2.165_069_3e-3,
            1.085_820_05e-2,
            9.438_936e-1,
            5.352_680_7,
            7.806_815,
        ];
        let (k, p) = reduce_exp(-poly(t, c));
        let large = 1.0 - (p + 1.0) * pow2(k);
        (if a < 0.92 { small } else { large }).with_sign(self)
    }

    #[inline(always)]
    fn vsin(self) -> f32 {
        let y = if self.vabs() < SINE_LIMIT { sine(self, 0) } else { libm::sinf(self) };
        // Keeps -0.
        if self.vabs() < 1e-4 { self } else { y }
    }

    #[inline(always)]
    fn vcos(self) -> f32 {
        if self.vabs() < SINE_LIMIT { sine(self, 1) } else { libm::cosf(self) }
    }
}

impl Math for f64 {
    #[inline(always)]
    fn of(x: f64) -> f64 {
        x
    }

    #[inline(always)]
    fn fma(self, a: f64, b: f64) -> f64 {
        self.mul_add(a, b)
    }

    #[inline(always)]
    fn vabs(self) -> f64 {
        self.abs()
    }

    #[inline(always)]
    fn with_sign(self, sign: f64) -> f64 {
        self.copysign(sign)
    }

    #[inline(always)]
    fn vfloor(self) -> f64 {
        self.floor()
    }

    #[inline(always)]
    fn vround(self) -> f64 {
        self.round_ties_even()
    }

    #[inline(always)]
    fn vexp(self) -> f64 {
        libm::exp(self)
    }

    #[inline(always)]
    fn vexp_m1(self) -> f64 {
        libm::expm1(self)
    }

    #[inline(always)]
    fn vln(self) -> f64 {
        libm::log(self)
    }

    #[inline(always)]
    fn vln_1p(self) -> f64 {
        libm::log1p(self)
    }

    #[inline(always)]
    fn vtanh(self) -> f64 {
        libm::tanh(self)
    }

    #[inline(always)]
    fn vsigmoid(self) -> f64 {
        let e = libm::exp(-self.abs());
        (if self < 0.0 { e } else { 1.0 }) / (1.0 + e)
    }

    #[inline(always)]
    fn verf(self) -> f64 {
        libm::erf(self)
    }

    #[inline(always)]
    fn vsin(self) -> f64 {
        libm::sin(self)
    }

    #[inline(always)]
    fn vcos(self) -> f64 {
        libm::cos(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type F1 = (&'static str, fn(f32) -> f32, fn(f64) -> f64, f64);

    const FUNCTIONS: &[F1] = &[
        ("exp", f32::vexp, libm::exp, 1.5),
        ("expm1", f32::vexp_m1, libm::expm1, 2.5),
        ("ln", f32::vln, libm::log, 1.5),
        ("ln1p", f32::vln_1p, libm::log1p, 2.5),
        ("tanh", f32::vtanh, libm::tanh, 2.5),
        ("sigmoid", f32::vsigmoid, f64::vsigmoid, 2.5),
        ("erf", f32::verf, libm::erf, 2.5),
        ("sin", f32::vsin, libm::sin, 2.0),
        ("cos", f32::vcos, libm::cos, 2.0),
        ("softplus", f32::vsoftplus, f64::vsoftplus, 2.5),
    ];

    /// The distance of `got` from the exact result in units in the last place of the result.
    fn ulps(got: f32, exact: f64) -> f64 {
        let want = exact as f32;
        if got == want || got.is_nan() && want.is_nan() {
            return 0.0;
        }
        if !got.is_finite() || !want.is_finite() {
            // Overflow may come one step early or late.
            return if got.is_finite() != want.is_finite()
                && (got.abs().max(want.abs()) > f32::MAX)
                && (got.abs() == f32::MAX || want.abs() == f32::MAX)
            {
                1.0
            } else {
                f64::INFINITY
            };
        }
        let unit = f64::from(f32::from_bits(want.abs().to_bits() + 1)) - f64::from(want.abs());
        (f64::from(got) - exact).abs() / unit
    }

    /// Every 997th float of either sign, which visits each exponent some 8,000 times.
    #[test]
    fn functions_are_within_two_units_in_the_last_place() {
        for (name, f, reference, limit) in FUNCTIONS {
            let mut worst = (0.0, 0.0f32);
            for bits in (0..=u32::MAX).step_by(997) {
                let x = f32::from_bits(bits);
                let e = ulps(f(x), reference(f64::from(x)));
                if e > worst.0 {
                    worst = (e, x);
                }
            }
            println!("{name}: {:.3} ulp at {:e}", worst.0, worst.1);
            assert!(worst.0 <= *limit, "{name}: {} units at {:e}", worst.0, worst.1);
        }
    }

    #[test]
    fn special_values_are_those_of_ieee() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        for (name, f, reference, _) in FUNCTIONS {
            for x in [0.0, -0.0, inf, -inf, nan, 1.0, -1.0, f32::MAX, f32::MIN, 1e-45, -1e-45] {
                let (got, want) = (f(x), reference(f64::from(x)) as f32);
                assert!(
                    got == want || got.is_nan() && want.is_nan() || ulps(got, reference(f64::from(x))) <= 1.5,
                    "{name}({x}) = {got}, not {want}"
                );
                let signed = got != 0.0 || got.is_sign_negative() == want.is_sign_negative();
                assert!(signed, "{name}({x}): sign of zero");
            }
        }
        assert_eq!(f32::vexp(-200.0), 0.0);
        assert_eq!(f32::vexp(200.0), inf);
        assert!(f32::vexp(-100.0) > 0.0, "a denormal");
        assert_eq!(f32::vtanh(50.0), 1.0);
        assert_eq!(f32::verf(-5.0), -1.0);
    }
}
