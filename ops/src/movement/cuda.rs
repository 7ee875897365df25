//! CUDA launches of operators that move or make elements.

use super::{Part, Strided, concat, expand, generate, pad, reverse::time_axis, slice, split, transpose};
use crate::{
    OpError, Signature,
    cuda::{Arg, BLOCK, Builder, Kernels, Plan, dtype_name, source, width_name},
};
use graph::{DType, Literal};

/// The bits of a number as wide as its dtype.
fn bits(l: &Literal) -> u64 {
    let mut bytes = [0; 8];
    let n = l.bytes().len().min(8);
    bytes[..n].copy_from_slice(&l.bytes()[..n]);
    u64::from_le_bytes(bytes)
}

/// Fills output 0 first, if a value is given, and then copies parts.
fn copies(s: &Signature<'_>, dtype: DType, fill: Option<u64>, parts: &[Part]) -> Result<Kernels, OpError> {
    let mut b = Builder::new(s, source!("movement/copy.cu"))?;
    b.define("T", width_name(dtype));
    if let Some(value) = fill {
        let n: usize = s.out_dims(0)?.iter().product();
        b.over("fill", n as u64, vec![Arg::Output(0), Arg::Index(n as i64), Arg::U64(value)])?;
    }
    for p in parts {
        copy(&mut b, p)?;
    }
    Ok(b.done())
}

fn copy(b: &mut Builder, p: &Part) -> Result<(), OpError> {
    let Some((extents, [from, to], [from_start, to_start])) = p.copy.parts() else { return Ok(()) };
    let n: usize = extents.iter().product();
    let ends = vec![Arg::Input(p.input), Arg::Output(p.output)];
    let ints = |v: &[isize]| v.iter().map(|x| *x as i64).collect::<Vec<_>>();
    let mut extents: Vec<i64> = extents.iter().map(|x| *x as i64).collect();
    let (mut from, mut to) = (ints(from), ints(to));
    if extents.len() > 8 {
        return Err(OpError::unsupported("moving elements along more than eight axes on CUDA"));
    }
    if extents.is_empty() {
        (extents, from, to) = (vec![1], vec![1], vec![1]);
    }
    if from == [1] && to == [1] && from_start == 0 && to_start == 0 {
        return b.over("run", n as u64, [ends, vec![Arg::Index(n as i64)]].concat());
    }
    let last = extents.len() - 1;
    let starts = [Arg::Index(from_start as i64), Arg::Index(to_start as i64)];
    if let Some(j) = (0..last).find(|j| from[*j] == 1 && to[last] == 1 && from[last] > 1 && to[*j] > 1) {
        // The source runs along axis j, the destination along the last one.
        let (rows, columns, from_row, to_column) = (extents[last], extents[j], from[last], to[j]);
        for v in [&mut extents, &mut from, &mut to] {
            v.remove(last);
            v.remove(j);
        }
        let outer: i64 = extents.iter().product();
        let tiles = (outer * ((rows + 31) / 32) * ((columns + 31) / 32)) as u64;
        let rank = extents.len().max(1) as i32;
        let or = |v: Vec<i64>, one: i64| if v.is_empty() { vec![one] } else { v };
        let mut args = [ends, vec![Arg::Index(outer), Arg::I32(rank)]].concat();
        args.extend([Arg::Dims(or(extents, 1)), Arg::Dims(or(from, 0)), Arg::Dims(or(to, 0))]);
        args.extend(starts);
        args.extend([rows, columns, from_row, to_column].map(Arg::Index));
        return b.launch("transpose", tiles.min(1 << 20), BLOCK, args);
    }
    let mut args = [ends, vec![Arg::Index(n as i64), Arg::I32(extents.len() as i32)]].concat();
    args.extend([Arg::Dims(extents), Arg::Dims(from), Arg::Dims(to)]);
    args.extend(starts);
    b.over("copy", n as u64, args)
}

fn whole(s: &Signature<'_>, c: Result<Strided, OpError>) -> Result<Kernels, OpError> {
    copies(s, s.input(0)?.dtype, None, &[Part { input: 0, output: 0, copy: c? }])
}

fn padded(s: &Signature<'_>) -> Result<Kernels, OpError> {
    if pad::repeats(s)? {
        return crate::indexing::samplers::repeated(s);
    }
    let (value, part) = pad::constant(s)?;
    copies(s, s.input(0)?.dtype, Some(bits(&value)), &[part])
}

/// A kernel of `copy.cu` over the elements of output 0.
fn make(s: &Signature<'_>, entry: &'static str, dtype: DType, args: Vec<Arg>) -> Result<Kernels, OpError> {
    let mut b = Builder::new(s, source!("movement/copy.cu"))?;
    b.define("T", width_name(dtype));
    let n: usize = s.out_dims(0)?.iter().product();
    let ends = if s.inputs.is_empty() || entry == "extents" { vec![] } else { vec![Arg::Input(0)] };
    let all = [ends, vec![Arg::Output(0), Arg::Index(n as i64)], args].concat();
    b.over(entry, n as u64, all)?;
    Ok(b.done())
}

fn range(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (start, delta) = (generate::scalar_attr(s, "start")?, generate::scalar_attr(s, "delta")?);
    let n = s.out_dims(0)?[0];
    let mut b = Builder::new(s, source!("movement/range.cu"))?;
    b.define("T", dtype_name(start.dtype()));
    let float = |l: &Literal| l.to_floats()[0];
    let int = |l: &Literal| l.to_ints().map_or(0, |v| v[0]);
    let mut args = vec![Arg::Output(0), Arg::Index(n as i64)];
    args.extend([Arg::F64(float(start)), Arg::F64(float(delta)), Arg::I64(int(start)), Arg::I64(int(delta))]);
    b.over("range", n as u64, args)?;
    Ok(b.done())
}

fn triangle(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let dims = s.dims(0)?;
    let [.., rows, columns] = dims[..] else {
        return Err(OpError::invalid("the input must have at least 2 axes"));
    };
    let args = vec![
        Arg::Index(rows as i64),
        Arg::Index(columns as i64),
        Arg::I64(s.attrs.int("k")?),
        Arg::I32((s.attrs.int("upper")? != 0) as i32),
    ];
    make(s, "triangle", s.input(0)?.dtype, args)
}

fn reverse(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let dims = s.dims(0)?;
    let [first, second, ..] = dims[..] else {
        return Err(OpError::invalid("the input must have at least 2 axes"));
    };
    let mut b = Builder::new(s, source!("movement/reverse.cu"))?;
    b.define("T", width_name(s.input(0)?.dtype));
    let (n, len) = (dims.iter().product::<usize>(), dims[2..].iter().product::<usize>());
    let mut args = vec![Arg::Input(0), Arg::Input(1), Arg::Output(0)];
    args.extend([n, first, second, len].map(|v| Arg::Index(v as i64)));
    args.extend([Arg::I32((time_axis(s)? == 0).into()), Arg::Status, Arg::Call]);
    b.over("reverse", n as u64, args)?;
    Ok(b.done())
}

fn extents(s: &Signature<'_>, values: Vec<i64>) -> Result<Kernels, OpError> {
    if values.len() > 8 {
        return Err(OpError::unsupported("the shape of more than eight axes on CUDA"));
    }
    make(s, "extents", DType::I64, vec![Arg::Dims(values)])
}

/// Names and launches of the family.
pub(crate) const KERNELS: &[(&str, Plan)] = &[
    ("Reshape", |s| {
        let n: usize = s.dims(0)?.iter().product();
        whole(s, Ok(Strided::new(&[n], &[1], &[1], 0, 0)))
    }),
    ("Transpose", |s| whole(s, transpose::copy(s))),
    ("Expand", |s| whole(s, expand::copy(s))),
    ("Slice", |s| whole(s, slice::copy(s.attrs, &s.dims(0)?).map(|c| c.0))),
    ("SliceGrad", |s| {
        let copy = slice::copy(s.attrs, &super::extents_attr(s, "shape")?)?.1;
        copies(s, s.input(0)?.dtype, Some(0), &[Part { input: 0, output: 0, copy }])
    }),
    ("Concat", |s| copies(s, s.input(0)?.dtype, None, &concat::parts(s)?)),
    ("Split", |s| copies(s, s.input(0)?.dtype, None, &split::parts(s)?)),
    ("Pad", padded),
    ("ReverseSequence", reverse),
    ("Trilu", triangle),
    ("Fill", |s| {
        let value = generate::scalar_attr(s, "value")?;
        make(s, "fill", value.dtype(), vec![Arg::U64(bits(value))])
    }),
    ("Range", range),
    ("Eye", |s| {
        let dtype = s.attrs.dtype("dtype")?;
        let columns = s.out_dims(0)?[1] as i64;
        let one = bits(&Literal::scalar(dtype, 1.0));
        make(s, "eye", dtype, vec![Arg::Index(columns), Arg::I64(s.attrs.int("k")?), Arg::U64(one)])
    }),
    ("Shape", |s| extents(s, s.dims(0)?.iter().map(|d| *d as i64).collect())),
    ("Size", |s| extents(s, vec![s.dims(0)?.iter().product::<usize>() as i64])),
];
