//! CUDA launches of dropout: the elements that the CPU's kernels drop, by the same counters.

use super::{
    dropout::{ratio, threshold},
    id,
};
use crate::{
    OpError, Signature,
    cuda::{Arg, Builder, Kernels, Plan, dtype_name, source},
};

/// Number of elements, id, threshold, whether all are dropped.
fn counters(s: &Signature<'_>) -> Result<(u64, [Arg; 4]), OpError> {
    let n = s.out_dims(0)?.iter().product::<usize>();
    let below = threshold(ratio(s)?);
    let args = [
        Arg::Index(n as i64),
        Arg::U32(id(s)?),
        Arg::U32(below.unwrap_or(0)),
        Arg::I32(below.is_none().into()),
    ];
    Ok(((n.div_ceil(128) * 32) as u64, args))
}

fn scale_kept(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let mut b = Builder::new(s, source!("random/dropout.cu"))?;
    b.define("T", dtype_name(s.input(0)?.dtype));
    let (threads, counters) = counters(s)?;
    let mut args = vec![Arg::Input(0), Arg::Input(1), Arg::Input(2), Arg::Output(0)];
    args.extend(counters);
    args.push(Arg::F64(1.0 / (1.0 - ratio(s)?)));
    b.over("scale_kept", threads, args)?;
    Ok(b.done())
}

fn mask(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let mut b = Builder::new(s, source!("random/dropout.cu"))?;
    let (threads, counters) = counters(s)?;
    let mut args = vec![Arg::Input(0), Arg::Input(1), Arg::Output(0)];
    args.extend(counters);
    b.over("mask", threads, args)?;
    Ok(b.done())
}

/// Names and launches of the family.
pub(crate) const KERNELS: &[(&str, Plan)] =
    &[("Dropout", scale_kept), ("DropoutGrad", scale_kept), ("DropoutMask", mask)];
