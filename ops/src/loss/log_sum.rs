//! The log-sum-exp of a row as two numbers.
//!
//! A gradient makes probabilities again as e^(score - log-sum-exp). Where scores lie near 1e9, as masks make them, a float32 has no digits
//! left for the logarithm of the sum, and each probability would come out as 1. So what rounding takes from the log-sum-exp is kept, too.

use crate::{
    cpu::math::Math,
    export::{Export, Term},
};

/// max + ln sum, and what rounding took from it.
#[inline(always)]
pub(crate) fn log_sum<T: Math>(max: T, sum: f64) -> [T; 2] {
    let log = libm::log(sum);
    let total = max + T::from_f64(log);
    [total, T::from_f64(log - (total.to_f64() - max.to_f64()))]
}

/// Sets outputs 1 and 2 to these two numbers of scores along an axis.
pub(crate) fn written_log_sum<'a>(x: &Export<'a>, scores: Term<'a>, axis: usize) {
    let axis = [axis as i64];
    let log = (scores - scores.reduce("ReduceMax", &axis, true)).call("Exp").sum(&axis, false).call("Log");
    let max = scores.reduce("ReduceMax", &axis, false);
    let total = max + log;
    x.set(1, total);
    x.set(2, log - (total - max));
}
