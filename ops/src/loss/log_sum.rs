//! The log-sum-exp of a row as two numbers: a shift, which is a whole number near the largest score, and the rest.
//!
//! A gradient makes probabilities again as e^(score - log-sum-exp). Where scores lie near 1e9, as masks make them, a float32 has no digits
//! left for the logarithm of the sum, and each probability would come out as 1. Beside a shift it keeps all of them. The shift is whole so
//! that it has no gradient and is the same however scores were rounded: the rest can be compared between devices.

use crate::{cpu::math::Math, export::Term};

/// The shift, and max + ln sum less the shift.
#[inline(always)]
pub(crate) fn log_sum<T: Math>(max: T, sum: f64) -> [T; 2] {
    let shift = max.vround();
    [shift, T::from_f64(libm::log(sum) + (max - shift).to_f64())]
}

/// These two numbers of scores along an axis.
pub(crate) fn written_log_sum(scores: Term<'_>, axis: usize) -> [Term<'_>; 2] {
    let axis = [axis as i64];
    let log = (scores - scores.reduce("ReduceMax", &axis, true)).call("Exp").sum(&axis, false).call("Log");
    let max = scores.reduce("ReduceMax", &axis, false);
    let shift = max.call("Round");
    [shift, log + (max - shift)]
}
