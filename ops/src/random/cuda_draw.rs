//! CUDA launches of random numbers and choices.

use super::id;
use crate::{
    OpError, Signature,
    cuda::{Arg, Builder, Kernels, Plan, dtype_name, source},
};

fn elements(s: &Signature<'_>) -> Result<usize, OpError> {
    Ok(s.out_dims(0)?.iter().product())
}

/// Threads for the counters of `n` elements.
fn counters(n: usize) -> u64 {
    (n.div_ceil(128) * 32) as u64
}

fn numbers(s: &Signature<'_>, entry: &'static str, two: [(&str, f64); 2]) -> Result<Kernels, OpError> {
    let mut b = Builder::new(s, source!("random/generate.cu"))?;
    let n = elements(s)?;
    b.define("T", dtype_name(s.output(0)?.dtype));
    let mut args = vec![Arg::Input(0), Arg::Input(1), Arg::Output(0), Arg::Index(n as i64), Arg::U32(id(s)?)];
    for (name, default) in two {
        args.push(Arg::F64(s.attrs.float_or(name, default)?));
    }
    b.over(entry, counters(n), args)?;
    Ok(b.done())
}

fn choices(s: &Signature<'_>) -> Result<Builder, OpError> {
    let mut b = Builder::new(s, source!("random/sample.cu"))?;
    b.define("T", dtype_name(s.input(0)?.dtype)).define("U", dtype_name(s.output(0)?.dtype));
    Ok(b)
}

fn bernoulli(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (mut b, n) = (choices(s)?, elements(s)?);
    let mut args = vec![Arg::Input(0), Arg::Input(1), Arg::Input(2), Arg::Output(0)];
    args.extend([Arg::Index(n as i64), Arg::U32(id(s)?)]);
    b.over("choose", counters(n), args)?;
    Ok(b.done())
}

fn multinomial(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (mut b, x, y) = (choices(s)?, s.dims(0)?, s.out_dims(0)?);
    let mut args = vec![Arg::Input(0), Arg::Input(1), Arg::Input(2), Arg::Output(0)];
    args.extend([x[0], x[1], y[1]].map(|v| Arg::Index(v as i64)));
    args.extend([Arg::U32(id(s)?), Arg::Status, Arg::Call]);
    b.over("draw", (x[0] * y[1]) as u64, args)?;
    Ok(b.done())
}

/// Names and launches.
pub(crate) const KERNELS: &[(&str, Plan)] = &[
    ("RandomUniform", |s| numbers(s, "uniform", [("low", 0.0), ("high", 1.0)])),
    ("RandomNormal", |s| numbers(s, "normal", [("mean", 0.0), ("scale", 1.0)])),
    ("Bernoulli", bernoulli),
    ("Multinomial", multinomial),
];
