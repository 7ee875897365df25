//! Scores as the reference computes them: exact integers, divided once, correctly rounded.
//!
//! The pool's search works with approximate reciprocals; whatever comes close to the best is compared by these.

/// `numerator / denominator` rounded to the nearest f64, ties to even. The denominator is not 0; both stay below 2^126.
pub(crate) fn divide(numerator: i64, denominator: u128) -> f64 {
    const EXACT: u64 = 1 << 53;
    let magnitude = numerator.unsigned_abs();
    if magnitude <= EXACT && denominator <= u128::from(EXACT) {
        return numerator as f64 / denominator as u64 as f64;
    }
    if magnitude == 0 {
        return 0.0;
    }
    // Bring the quotient into [1, 2), then draw 53 more bits.
    let (mut rest, mut divisor) = (u128::from(magnitude), denominator);
    let mut exponent = divisor.leading_zeros() as i32 - rest.leading_zeros() as i32;
    if exponent >= 0 {
        divisor <<= exponent;
    } else {
        rest <<= -exponent;
    }
    if rest < divisor {
        rest <<= 1;
        exponent -= 1;
    }
    rest -= divisor;
    let mut bits = 1u64;
    for _ in 0..53 {
        rest <<= 1;
        bits <<= 1;
        if rest >= divisor {
            rest -= divisor;
            bits |= 1;
        }
    }
    let mut mantissa = bits >> 1;
    if bits & 1 == 1 && (rest != 0 || mantissa & 1 == 1) {
        mantissa += 1;
    }
    let value = mantissa as f64 * 2f64.powi(exponent - 52);
    if numerator < 0 { -value } else { value }
}

#[cfg(test)]
mod tests {
    use super::divide;
    use crate::random::Random;

    /// The neighbours of a correctly rounded quotient are no closer, compared in integers.
    fn is_nearest(numerator: u64, denominator: u128, value: f64) -> bool {
        // |q*d - n| for q = mantissa * 2^exponent, scaled by 2^-exponent; sizes are chosen so that all fits in 128 bits.
        let bits = value.to_bits();
        let exponent = ((bits >> 52) & 0x7ff) as i32 - 1075;
        let mantissa = (bits & ((1 << 52) - 1)) | (1 << 52);
        let distance =
            |mantissa: u64| (u128::from(mantissa) * denominator).abs_diff(u128::from(numerator) << -exponent);
        let own = distance(mantissa);
        own <= distance(mantissa - 1) && own <= distance(mantissa + 1)
    }

    #[test]
    fn rounds_to_nearest() {
        let mut random = Random::new(7);
        let mut large = 0;
        for _ in 0..20_000 {
            let numerator = random.below(1 << 60) as u64 + 1;
            let denominator = random.below(1 << 62) as u128 + 1;
            let value = divide(numerator as i64, denominator);
            assert_eq!(divide(-(numerator as i64), denominator), -value);
            let exponent = ((value.to_bits() >> 52) & 0x7ff) as i32 - 1075;
            if exponent < 0 && -exponent as u32 + 64 - numerator.leading_zeros() <= 127 {
                assert!(is_nearest(numerator, denominator, value), "{numerator}/{denominator} = {value:e}");
                large += 1;
            }
        }
        assert!(large > 10_000);
        assert_eq!(divide(3, 2), 1.5);
        assert_eq!(divide(1 << 60, 1 << 70), 2f64.powi(-10));
        assert_eq!(divide(0, 1 << 100), 0.0);
    }
}
