//! CUDA launches of maps over images: resizing, padding by repetition, sampling by a grid.

use super::{
    grid_sample::{Padding, Size},
    resize::Plan as Resampling,
    separable::{Separable, Taps},
};
use crate::{
    OpError, Signature,
    cuda::launch::{WORDS, parts_of, wide_size},
    cuda::{Arg, BLOCK, Builder, Kernels, Plan, dtype_name, source, width_name},
    movement::{extents_attr, pad},
};

/// The table of a map, and how its axes lie in it.
struct Table {
    words: Vec<u32>,
    extents: Vec<i64>,
    strides: Vec<i64>,
    starts: Vec<i64>,
    taps: Vec<i64>,
}

impl Table {
    fn new(map: &Separable, pick: bool) -> Result<Table, OpError> {
        let mut t = Table { words: vec![], extents: vec![], strides: vec![], starts: vec![], taps: vec![] };
        let word = |v: usize| u32::try_from(v).map_err(|_| OpError::unsupported("an axis of 2^32 on CUDA"));
        for (taps, stride) in map.axes() {
            t.extents.push(taps.outputs() as i64);
            t.strides.push(*stride as i64);
            if taps.is_identity() {
                t.starts.push(-1);
                t.taps.push(0);
                continue;
            }
            t.starts.push(t.words.len() as i64);
            if pick {
                t.taps.push(0);
                for (index, _) in taps.all() {
                    t.words.push(word(index)?);
                }
                continue;
            }
            for start in taps.starts() {
                t.words.push(word(*start)?);
            }
            t.taps.push(t.words.len() as i64);
            for (index, weight) in taps.all() {
                let bits = weight.to_bits();
                t.words.extend([word(index)?, bits as u32, (bits >> 32) as u32]);
            }
        }
        if t.extents.len() > 8 {
            return Err(OpError::unsupported("a map of more than eight runs of axes on CUDA"));
        }
        Ok(t)
    }
}

/// The map applied to input 0; `outside` is what stands where an element has no taps. A map that picks moves elements of any dtype.
fn apply(s: &Signature<'_>, map: &Separable, pick: bool, outside: Option<f64>) -> Result<Kernels, OpError> {
    let (table, dtype) = (Table::new(map, pick)?, s.input(0)?.dtype);
    let mut b = Builder::new(s, source!("indexing/separable.cu"))?;
    b.define("T", if pick { width_name(dtype) } else { dtype_name(dtype) }).define("PICK", i32::from(pick));
    let n: usize = s.out_dims(0)?.iter().product();
    if n == 0 {
        return Ok(b.done());
    }
    let words = b.workspace(4 * table.words.len() as u64);
    for (k, part) in table.words.chunks(WORDS).enumerate() {
        let place = [Arg::Index((k * WORDS) as i64), Arg::I32(part.len() as i32)];
        let args = [vec![words.clone()], place.to_vec(), vec![Arg::Words(part.to_vec())]].concat();
        b.launch("store", 1, BLOCK, args)?;
    }
    let mut args = vec![Arg::Input(0), Arg::Output(0), words, Arg::Index(n as i64)];
    args.push(Arg::I32(table.extents.len() as i32));
    args.extend([table.extents, table.strides, table.starts].map(Arg::Dims));
    if pick {
        b.over("pick", n as u64, args)?;
    } else {
        args.extend([
            Arg::Dims(table.taps),
            Arg::I32(outside.is_some().into()),
            Arg::F64(outside.unwrap_or(0.0)),
        ]);
        b.over("sum", n as u64, args)?;
    }
    Ok(b.done())
}

fn transposed(taps: &[Taps]) -> Separable {
    Separable::new(taps.iter().map(Taps::transposed).collect())
}

fn resize(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (plan, dims) = (Resampling::of(s.attrs)?, s.dims(0)?);
    let outside = plan.outside(&dims, &s.out_dims(0)?).map(|_| plan.extrapolation);
    apply(s, &Separable::new(plan.taps(&dims)?), plan.picks(), outside)
}

fn resize_gradient(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let taps = Resampling::of(s.attrs)?.taps(&extents_attr(s, "shape")?)?;
    apply(s, &transposed(&taps), false, None)
}

/// Padding by elements of the input.
pub(crate) fn repeated(s: &Signature<'_>) -> Result<Kernels, OpError> {
    apply(s, &Separable::new(pad::taps_of(s, &s.dims(0)?)?), true, None)
}

fn repeated_gradient(s: &Signature<'_>) -> Result<Kernels, OpError> {
    apply(s, &transposed(&pad::taps_of(s, &extents_attr(s, "shape")?)?), false, None)
}

/// Images and grid of a sampling, and a kernel builder for its kind of positions.
fn sampler(s: &Signature<'_>, image: &[usize], grid: usize) -> Result<(Builder, Size, Arg), OpError> {
    let (size, sampler) = Size::of(s.attrs, image, &s.dims(grid)?)?;
    let mut b = Builder::new(s, source!("indexing/grid_sample.cu"))?;
    let padding = match sampler.padding {
        Padding::Zeros => 0,
        Padding::Border => 1,
        Padding::Reflection => 2,
    };
    b.define("T", dtype_name(s.input(grid)?.dtype)).define("NEAREST", i32::from(sampler.nearest));
    b.define("PADDING", padding).define("ALIGN", i32::from(sampler.align));
    let sizes = [size.n, size.c, size.h, size.w, size.oh * size.ow].map(|v| v as i64).to_vec();
    Ok((b, size, Arg::Dims(sizes)))
}

fn sample(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (mut b, size, sizes) = sampler(s, &s.dims(0)?, 1)?;
    let args = vec![Arg::Input(0), Arg::Input(1), Arg::Output(0), sizes];
    b.over("sample", (size.n * size.oh * size.ow) as u64, args)?;
    Ok(b.done())
}

fn image_gradient(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (mut b, size, sizes) = sampler(s, &extents_attr(s, "shape")?, 0)?;
    let (points, wide) = (size.n * size.oh * size.ow, wide_size(s.input(0)?.dtype));
    let (planes, pixels) = (size.n * size.c, size.h * size.w);
    let at = b.workspace(4 * 8 * points as u64);
    let weights = b.workspace(4 * points as u64 * wide);
    let sums = b.workspace((planes * pixels) as u64 * wide);
    b.over("tabulate", points as u64, vec![Arg::Input(0), at.clone(), weights.clone(), sizes.clone()])?;
    let parts = parts_of(planes, pixels);
    let args = vec![at, weights, Arg::Input(1), sums, Arg::Output(0), Arg::Index(parts as i64), sizes];
    b.over("image_gradient", (planes * parts) as u64, args)?;
    Ok(b.done())
}

fn grid_gradient(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (mut b, size, sizes) = sampler(s, &s.dims(0)?, 1)?;
    let args = vec![Arg::Input(0), Arg::Input(1), Arg::Input(2), Arg::Output(0), sizes];
    b.over("grid_gradient", (size.n * size.oh * size.ow) as u64, args)?;
    Ok(b.done())
}

/// Names and launches.
pub(crate) const KERNELS: &[(&str, Plan)] = &[
    ("Resize", resize),
    ("ResizeGrad", resize_gradient),
    ("PadGrad", repeated_gradient),
    ("GridSample", sample),
    ("GridSampleGradImage", image_gradient),
    ("GridSampleGradGrid", grid_gradient),
];
