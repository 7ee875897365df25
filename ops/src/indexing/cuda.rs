//! CUDA launches of operators that pick by index.

use super::{elements::Lines, index_input, nd::Rows, one_hot::parse, scatters};
use crate::{
    OpError, Signature,
    cuda::{Arg, BLOCK, Builder, Kernels, Plan, dtype_name, source, width_name},
    movement::{around, axis_attr, extents_attr, row_major},
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

/// Elements picked from lines along an axis, one for each index.
fn gather_elements(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (x, at) = (s.dims(0)?, s.dims(1)?);
    let axis = axis_attr(s, "axis", x.len())?;
    let l = Lines::new(s)?;
    if at.len() > 8 {
        return Err(OpError::unsupported("gathering along more than eight axes on CUDA"));
    }
    let ints = |v: &[usize]| v.iter().map(|x| *x as i64).collect::<Vec<_>>();
    let mut strides: Vec<i64> = row_major(&x).into_iter().map(|s| s as i64).collect();
    strides[axis] = 0;
    let n: usize = at.iter().product();
    let mut b = Builder::new(s, source!("indexing/elements.cu"))?;
    b.define("T", width_name(s.input(0)?.dtype)).define("K", dtype_name(index_input(s, 1)?.dtype));
    b.define("KIND", 0);
    let mut args = vec![Arg::Input(0), Arg::Input(1), Arg::Output(0), index(n), Arg::I32(at.len() as i32)];
    args.extend([Arg::Dims(ints(&at)), Arg::Dims(strides), index(l.data_step), index(l.n)]);
    args.extend([Arg::Status, Arg::Call]);
    b.over("gather_elements", n as u64, args)?;
    Ok(b.done())
}

fn gather_tuples(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let r = Rows::new(s)?;
    let n: usize = s.out_dims(0)?.iter().product();
    if r.extents.len() > 8 {
        return Err(OpError::unsupported("tuples of more than eight indices on CUDA"));
    }
    let mut b = Builder::new(s, source!("indexing/elements.cu"))?;
    b.define("T", width_name(s.input(0)?.dtype)).define("K", dtype_name(index_input(s, 1)?.dtype));
    b.define("KIND", 1);
    let mut args = vec![Arg::Input(0), Arg::Input(1), Arg::Output(0)];
    args.extend([n, r.tuples, r.rows, r.len].map(index));
    args.push(Arg::I32(r.extents.len() as i32));
    args.push(Arg::Dims(r.extents.iter().map(|x| *x as i64).collect()));
    args.extend([Arg::Status, Arg::Call]);
    b.over("gather_nd", n as u64, args)?;
    Ok(b.done())
}

fn one_hot(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let dims = s.dims(0)?;
    let (depth, axis) = parse(s, dims.len())?;
    let n: usize = s.out_dims(0)?.iter().product();
    let mut b = Builder::new(s, source!("indexing/elements.cu"))?;
    b.define("T", width_name(s.input(1)?.dtype)).define("K", dtype_name(index_input(s, 0)?.dtype));
    b.define("KIND", 2);
    let mut args = vec![Arg::Input(0), Arg::Input(1), Arg::Output(0)];
    args.extend([n, depth, dims[axis..].iter().product()].map(index));
    b.over("one_hot", n as u64, args)?;
    Ok(b.done())
}

fn top(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let dims = s.dims(0)?;
    let (outer, n, inner) = around(&dims, axis_attr(s, "axis", dims.len())?);
    let k = s.attrs.int("k")? as usize;
    let mut b = Builder::new(s, source!("indexing/topk.cu"))?;
    b.define("T", dtype_name(s.input(0)?.dtype));
    let lines = if k == 0 { 0 } else { outer * inner };
    let mut args = vec![Arg::Input(0), Arg::Output(0), Arg::Output(1)];
    args.extend([lines, n, inner, k].map(index));
    args.push(Arg::I32((s.attrs.int("largest")? != 0).into()));
    b.over("top", lines as u64, args)?;
    Ok(b.done())
}

/// Names and launches of the family.
pub(crate) const KERNELS: &[(&str, Plan)] = &[
    ("Gather", gather),
    ("GatherGrad", gather_gradient),
    ("GatherElements", gather_elements),
    ("ScatterElements", scatters::elements),
    ("GatherND", gather_tuples),
    ("ScatterND", scatters::tuples),
    ("OneHot", one_hot),
    ("TopK", top),
    ("ArgMax", |s| arg(s, true)),
    ("ArgMin", |s| arg(s, false)),
];
