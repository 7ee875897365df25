//! CUDA launches of products: which cores multiply, tiles, and how their terms are shared out where results are few.

use super::{
    conv, grad_weight,
    matmul::{Plan as Batch, transposed},
    window::{Window, three},
};
use crate::{
    OpError, Signature,
    cuda::{Arg, BLOCK, Builder, Kernels, Plan, TF32, dtype_name, launch::wide_size, source},
};
use graph::DType;

/// Which cores multiply, as `product.cu` names them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cores {
    /// Any type.
    Plain,
    /// Tensor cores, on 16-bit floats.
    Halves,
    /// Tensor cores, on float32 rounded to TF32.
    Tf32,
}

impl Cores {
    fn of(s: &Signature<'_>) -> Result<Cores, OpError> {
        Ok(match s.input(0)?.dtype {
            DType::F16 | DType::BF16 => Cores::Halves,
            DType::F32 if s.attrs.int_or(TF32, 0)? != 0 => Cores::Tf32,
            _ => Cores::Plain,
        })
    }

    /// Tiles of so many results.
    fn tiles(self, rows: usize, columns: usize) -> usize {
        rows.div_ceil(if self == Cores::Plain { 64 } else { 128 }) * columns.div_ceil(64)
    }

    /// Launches of `product.cu` of a kind.
    fn builder(self, s: &Signature<'_>, kind: i32) -> Result<Builder, OpError> {
        let mut b = Builder::new(s, source!("product/product.cu"))?;
        b.define("T", dtype_name(s.input(0)?.dtype)).define("KIND", kind);
        match self {
            Cores::Plain => {}
            Cores::Halves => _ = b.define("TENSOR", 1),
            Cores::Tf32 => _ = b.define("TENSOR", 2),
        }
        Ok(b)
    }
}

/// Tiles that are enough for a device, and terms that a slice has at least.
const ENOUGH: usize = 128;
const SLICE: usize = 512;
/// Slices at most.
const SLICES: usize = 32;

fn index(v: usize) -> Arg {
    Arg::Index(v as i64)
}

/// Terms of a slice, and slices, from sizes alone: they are the order of additions.
fn slices(tiles: usize, terms: usize, cores: Cores) -> (usize, usize) {
    let wanted = (ENOUGH / tiles.max(1)).min(terms / SLICE).clamp(1, SLICES);
    // Whole steps of a tile's loop.
    let step = if cores == Cores::Halves { 32 } else { 16 };
    let slice = terms.div_ceil(wanted).next_multiple_of(step).max(step);
    (slice, terms.div_ceil(slice).max(1))
}

/// A batch of products, with a bias (input 2) by its strides over rows and columns.
fn multiply(
    s: &Signature<'_>,
    p: &Batch,
    (alpha, beta): (f64, f64),
    bias: Option<[usize; 2]>,
) -> Result<Kernels, OpError> {
    let ([m, n, k], dtype, cores) = (p.shape, s.input(0)?.dtype, Cores::of(s)?);
    let mut b = cores.builder(s, 0)?;
    b.define("TRANS_A", i32::from(p.ta)).define("TRANS_B", i32::from(p.tb));
    let all = p.batch * m * n;
    if all == 0 {
        return Ok(b.done());
    }
    let tiles = p.batch * cores.tiles(m, n);
    let (slice, slices) = slices(tiles, k, cores);
    let partial = if slices > 1 { b.workspace((slices * all) as u64 * wide_size(dtype)) } else { Arg::Null };
    let c = if bias.is_some() { Arg::Input(2) } else { Arg::Null };
    let [row, column] = bias.unwrap_or([0, 0]).map(index);
    if p.axes.len() > 8 {
        return Err(OpError::unsupported("products over more than eight batch axes on CUDA"));
    }
    // Strides of the batch in elements.
    let (mut extents, mut sa, mut sb) = (vec![], vec![], vec![]);
    for (extent, [a, b]) in &p.axes {
        extents.push(*extent as i64);
        sa.push((a * m * k) as i64);
        sb.push((b * k * n) as i64);
    }
    if extents.is_empty() {
        (extents, sa, sb) = (vec![1], vec![0], vec![0]);
    }
    let mut args = vec![Arg::Input(0), Arg::Input(1), c.clone(), Arg::Output(0), partial.clone()];
    args.extend([m, n, k, slice, slices, p.batch].map(index));
    args.extend([Arg::I32(extents.len() as i32), Arg::Dims(extents), Arg::Dims(sa), Arg::Dims(sb)]);
    args.extend([row.clone(), column.clone(), Arg::F64(alpha), Arg::F64(beta)]);
    b.launch("multiply", (tiles * slices) as u64, BLOCK, args)?;
    if slices > 1 {
        let mut args = vec![partial, c, Arg::Output(0)];
        args.extend([m, n, slices, p.batch].map(index));
        args.extend([row, column, Arg::F64(alpha), Arg::F64(beta)]);
        b.over("combine", all as u64, args)?;
    }
    Ok(b.done())
}

fn gemm(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (ta, tb) = transposed(s.attrs)?;
    let (a, y) = (s.dims(0)?, s.out_dims(0)?);
    let p = Batch { batch: 1, shape: [y[0], y[1], if ta { a[0] } else { a[1] }], ta, tb, axes: Vec::new() };
    let (alpha, beta) = (s.attrs.float_or("alpha", 1.0)?, s.attrs.float_or("beta", 1.0)?);
    let bias = match s.opt_input(2).filter(|_| beta != 0.0) {
        None => None,
        Some(_) => {
            let c = s.dims(2)?;
            let (rows, columns) = (if c.len() == 2 { c[0] } else { 1 }, c.last().copied().unwrap_or(1));
            Some([if rows == 1 { 0 } else { columns }, usize::from(columns != 1)])
        }
    };
    multiply(s, &p, (alpha, beta), bias)
}

/// Extents and window of a convolution, as kernels take them.
fn geometry(w: &Window, large: &[usize], small: &[usize]) -> [Arg; 3] {
    let ints = |v: &[usize]| three(&v.iter().map(|x| *x as i64).collect::<Vec<_>>(), 1).to_vec();
    [
        Arg::Dims([ints(large), ints(small)].concat()),
        Arg::Dims([three(&w.kernel, 1), three(&w.strides, 1)].concat()),
        Arg::Dims([three(&w.dilations, 1), three(&w.begin, 0)].concat()),
    ]
}

fn convolution(s: &Signature<'_>, turned: bool) -> Result<Kernels, OpError> {
    let (window, group) = conv::arguments(s)?;
    let (x, y, cores) = (s.dims(0)?, s.out_dims(0)?, Cores::of(s)?);
    let (large, small) = if turned { (&y[2..], &x[2..]) } else { (&x[2..], &y[2..]) };
    let mut b = cores.builder(s, if turned { 2 } else { 1 })?;
    let groups = group as usize;
    let points = x[0] * y[2..].iter().product::<usize>();
    let tiles = groups * cores.tiles(y[1] / groups, points);
    let bias = if s.opt_input(2).is_some() { Arg::Input(2) } else { Arg::Null };
    let mut args = vec![Arg::Input(0), Arg::Input(1), bias, Arg::Output(0)];
    args.extend([x[0], x[1], y[1], groups].map(index));
    args.extend(geometry(&window, large, small));
    b.launch(if turned { "transposed" } else { "conv" }, tiles as u64, BLOCK, args)?;
    Ok(b.done())
}

fn weight_gradient(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (window, group) = grad_weight::arguments(s)?;
    let (x, dy, dw, dtype) = (s.dims(0)?, s.dims(1)?, s.out_dims(0)?, s.input(0)?.dtype);
    let cores = Cores::of(s)?;
    let mut b = cores.builder(s, 3)?;
    let (groups, all): (usize, usize) = (group as usize, dw.iter().product());
    let (rows, columns) = (dy[1] / groups, dw[1..].iter().product::<usize>());
    let tiles = groups * cores.tiles(rows, columns);
    let (slice, slices) = slices(tiles, x[0] * dy[2..].iter().product::<usize>(), cores);
    let partial = if slices > 1 { b.workspace((slices * all) as u64 * wide_size(dtype)) } else { Arg::Null };
    let mut args = vec![Arg::Input(0), Arg::Input(1), Arg::Output(0), partial.clone()];
    args.extend([x[0], x[1], dy[1], groups, slice, slices].map(index));
    args.extend(geometry(&window, &x[2..], &dy[2..]));
    b.launch("gradient", (tiles * slices) as u64, BLOCK, args)?;
    if slices > 1 {
        b.over("combine", all as u64, vec![partial, Arg::Output(0), index(all), index(slices)])?;
    }
    Ok(b.done())
}

fn matmul(s: &Signature<'_>) -> Result<Kernels, OpError> {
    if s.input(0)?.dtype == DType::Bool {
        return Err(OpError::invalid("booleans have no product"));
    }
    multiply(s, &Batch::new(s)?, (1.0, 1.0), None)
}

/// Names and launches of the family.
pub(crate) const KERNELS: &[(&str, Plan)] = &[
    ("MatMul", matmul),
    ("Gemm", gemm),
    ("Conv", |s| convolution(s, false)),
    ("ConvTranspose", |s| convolution(s, true)),
    ("ConvGradWeight", weight_gradient),
];
