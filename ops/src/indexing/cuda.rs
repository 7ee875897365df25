//! CUDA launches of operators that pick by index.

use super::index_input;
use crate::{
    OpError, Signature,
    cuda::{Arg, BLOCK, Builder, Kernels, Plan, dtype_name, source, width_name},
    movement::{around, axis_attr, extents_attr},
};

fn index(v: usize) -> Arg {
    Arg::Index(v as i64)
}

fn gather(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let dims = s.dims(0)?;
    let (outer, n, inner) = around(&dims, axis_attr(s, "axis", dims.len())?);
    let m: usize = s.dims(1)?.iter().product();
    let mut b = Builder::new(s, source!("indexing/gather.cu"))?;
    b.define("T", width_name(s.input(0)?.dtype)).define("K", dtype_name(index_input(s, 1)?.dtype));
    let mut args = vec![Arg::Input(0), Arg::Input(1), Arg::Output(0)];
    args.extend([outer, n, inner, m].map(index));
    args.extend([Arg::Status, Arg::Call]);
    b.over("gather", (outer * m * inner) as u64, args)?;
    Ok(b.done())
}

fn gather_gradient(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let dims = extents_attr(s, "shape")?;
    let (outer, n, inner) = around(&dims, axis_attr(s, "axis", dims.len())?);
    let (m, dtype): (usize, _) = (s.dims(0)?.iter().product(), s.input(1)?.dtype);
    let all = outer * n * inner;
    let mut b = Builder::new(s, source!("movement/copy.cu"))?;
    b.define("T", width_name(dtype));
    b.over("fill", all as u64, vec![Arg::Output(0), index(all), Arg::U64(0)])?;
    b.source(source!("indexing/gather.cu"));
    b.define("T", dtype_name(dtype)).define("K", dtype_name(index_input(s, 0)?.dtype)).define("GRADIENT", 1);
    let mut args = vec![Arg::Input(0), Arg::Input(1), Arg::Output(0)];
    args.extend([outer, n, inner, m].map(index));
    args.extend([Arg::Status, Arg::Call]);
    let blocks = if all == 0 { 0 } else { m.min(1 << 20) };
    b.launch("gather_gradient", blocks as u64, BLOCK, args)?;
    Ok(b.done())
}

fn arg(s: &Signature<'_>, largest: bool) -> Result<Kernels, OpError> {
    let dims = s.dims(0)?;
    let (outer, n, inner) = around(&dims, axis_attr(s, "axis", dims.len())?);
    let mut b = Builder::new(s, source!("indexing/arg.cu"))?;
    b.define("T", dtype_name(s.input(0)?.dtype));
    let mut args = vec![Arg::Input(0), Arg::Output(0)];
    args.extend([outer * inner, n, inner].map(index));
    args.extend([Arg::I32(largest.into()), Arg::I32((s.attrs.int("select_last_index")? != 0).into())]);
    b.over("arg", (outer * inner) as u64, args)?;
    Ok(b.done())
}

/// Names and launches of the family.
pub(crate) const KERNELS: &[(&str, Plan)] = &[
    ("Gather", gather),
    ("GatherGrad", gather_gradient),
    ("ArgMax", |s| arg(s, true)),
    ("ArgMin", |s| arg(s, false)),
];
