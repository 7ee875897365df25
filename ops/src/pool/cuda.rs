//! CUDA launches of pools.

use super::{arguments, average::Divide, max::position_type};
use crate::{
    OpError, Signature,
    cuda::{Arg, Builder, Kernels, Plan, dtype_name, source},
    product::window::three,
};

/// The window over planes of these shapes, as kernels take it.
fn geometry(s: &Signature<'_>, large: &[usize], small: &[usize]) -> Result<[Arg; 4], OpError> {
    let (w, _) = arguments(s.attrs)?;
    let ints = |v: &[usize]| three(&v.iter().map(|x| *x as i64).collect::<Vec<_>>(), 1).to_vec();
    Ok([
        Arg::Dims([ints(&large[2..]), ints(&small[2..])].concat()),
        Arg::Dims([three(&w.kernel, 1), three(&w.strides, 1)].concat()),
        Arg::Dims([three(&w.dilations, 1), three(&w.begin, 0)].concat()),
        Arg::Dims(three(&w.end, 0).to_vec()),
    ])
}

/// A kernel over all elements of output 0; `leading` are the arguments after the number of planes.
fn pool(
    s: &Signature<'_>,
    entry: &'static str,
    (large, small): (&[usize], &[usize]),
    (element, position): (&str, Option<&str>),
    (inputs, leading): (usize, Vec<Arg>),
) -> Result<Kernels, OpError> {
    let mut b = Builder::new(s, source!("pool/pool.cu"))?;
    b.define("T", element);
    if let Some(p) = position {
        b.define("P", p);
    }
    let mut args: Vec<Arg> = (0..inputs).map(Arg::Input).collect();
    args.extend((0..s.outputs.len()).map(Arg::Output));
    args.push(Arg::Index((large[0] * large[1]) as i64));
    args.extend(leading);
    args.extend(geometry(s, large, small)?);
    b.over(entry, s.out_dims(0)?.iter().product::<usize>() as u64, args)?;
    Ok(b.done())
}

fn max(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (x, y) = (s.dims(0)?, s.out_dims(0)?);
    let types = (dtype_name(s.input(0)?.dtype), Some(dtype_name(position_type(s.attrs)?)));
    pool(s, "max_pool", (&x, &y), types, (1, vec![]))
}

fn max_gradient(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (dy, dx) = (s.dims(1)?, s.out_dims(0)?);
    let types = (dtype_name(s.input(1)?.dtype), Some(dtype_name(s.input(0)?.dtype)));
    pool(s, "max_pool_gradient", (&dx, &dy), types, (2, vec![]))
}

fn max_indices(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let small = s.dims(0)?;
    let size = s.attrs.ints("size")?.iter().map(|n| *n as usize);
    let large: Vec<usize> = small[..2].iter().copied().chain(size).collect();
    let order = Arg::I32((s.attrs.int_or("storage_order", 0)? != 0).into());
    let types = ("f32", Some(dtype_name(s.input(0)?.dtype)));
    pool(s, "max_pool_indices", (&large, &small), types, (1, vec![order]))
}

fn average(s: &Signature<'_>, gradient: bool) -> Result<Kernels, OpError> {
    let (from, to) = (s.dims(0)?, s.out_dims(0)?);
    let divide = match Divide::of(s.attrs)? {
        Divide::Elements => 0,
        Divide::Padding => 1,
        Divide::Nothing => 2,
    };
    let (entry, sides) = if gradient {
        ("average_pool_gradient", (&to[..], &from[..]))
    } else {
        ("average_pool", (&from[..], &to[..]))
    };
    pool(s, entry, sides, (dtype_name(s.input(0)?.dtype), None), (1, vec![Arg::I32(divide)]))
}

/// Names and launches of the family.
pub(crate) const KERNELS: &[(&str, Plan)] = &[
    ("MaxPool", max),
    ("MaxPoolGrad", max_gradient),
    ("MaxPoolIndices", max_indices),
    ("AveragePool", |s| average(s, false)),
    ("MaxUnpool", crate::indexing::scatters::unpool),
    ("AveragePoolGrad", |s| average(s, true)),
];
