//! Pools in ONNX's standard operators.
//!
//! ONNX names a maximum by its flat index, dtrc by its position under the window: each follows from the other. Sums under windows are
//! convolutions with ones.

use super::{arguments, position_type};
use crate::{
    OpError,
    export::{Export, Term},
    product::window::Window,
};
use graph::{Attrs, DType};

/// A pool with fixed extents.
struct Geometry {
    window: Window,
    ceil: bool,
    /// Images and channels.
    lead: [usize; 2],
    large: Vec<usize>,
    small: Vec<usize>,
}

impl Geometry {
    fn new(x: &Export<'_>, large: &[usize], small: &[usize]) -> Result<Geometry, OpError> {
        let (window, ceil) = arguments(x.sig.attrs)?;
        let (large, lead) = (large[large.len() - window.rank()..].to_vec(), [small[0], small[1]]);
        Ok(Geometry { window, ceil, lead, large, small: small[2..].to_vec() })
    }

    fn planes(&self) -> usize {
        self.lead[0] * self.lead[1]
    }

    fn area(&self) -> usize {
        self.large.iter().product()
    }

    fn inner(extents: impl DoubleEndedIterator<Item = usize> + ExactSizeIterator, axis: usize) -> f64 {
        extents.skip(axis + 1).product::<usize>() as f64
    }

    /// Product of the kernel's extents behind an axis.
    fn kernel_inner(&self, axis: usize) -> f64 {
        Geometry::inner(self.window.kernel.iter().map(|k| *k as usize), axis)
    }

    /// Elements from one coordinate of an axis to the next.
    fn step(&self, axis: usize) -> f64 {
        Geometry::inner(self.large.iter().copied(), axis)
    }

    /// Where the windows start along an axis, broadcast to the small side.
    fn starts<'a>(&self, x: &Export<'a>, axis: usize) -> Term<'a> {
        let (stride, begin) = (self.window.strides[axis], self.window.begin[axis]);
        let at: Vec<i64> = (0..self.small[axis] as i64).map(|o| o * stride - begin).collect();
        let mut line = vec![1; 2 + self.small.len()];
        line[2 + axis] = at.len();
        x.ints(&at).reshape(&line)
    }

    /// Coordinates of the elements at kernel positions (i64), axis by axis.
    fn coordinates<'a>(&self, x: &Export<'a>, positions: Term<'a>) -> Vec<Term<'a>> {
        let one = |axis: usize| {
            let k = (positions / self.kernel_inner(axis)).with("Mod", self.window.kernel[axis] as f64);
            k * self.window.dilations[axis] as f64 + self.starts(x, axis)
        };
        (0..self.window.rank()).map(one).collect()
    }

    /// Attributes of the standard pool.
    fn attrs(&self) -> Attrs {
        self.window.exported().with("ceil_mode", self.ceil)
    }

    /// Ones as a kernel of every channel.
    fn ones<'a>(&self, x: &Export<'a>, dtype: DType) -> Term<'a> {
        let kernel = self.window.kernel.iter().map(|k| *k as usize);
        let shape: Vec<usize> = [self.lead[1], 1].into_iter().chain(kernel).collect();
        x.number(dtype, 1.0).expand(&shape)
    }

    /// Attributes of a convolution with [`Geometry::ones`] that has exactly these windows, and what they leave over of each axis.
    fn windows(&self) -> (Attrs, Vec<i64>) {
        let mut w = self.window.clone();
        let mut over = Vec::new();
        for a in 0..w.rank() {
            let reached = (self.small[a] as i64 - 1) * w.strides[a] + w.reach(a);
            let end = reached - self.large[a] as i64 - w.begin[a];
            w.end[a] = end.max(0);
            over.push((-end).max(0));
        }
        (w.exported().with("group", self.lead[1] as i64), over)
    }
}

/// The pool, and the kernel positions if anything reads them.
pub(super) fn max_pool(x: &Export<'_>) -> Result<(), OpError> {
    let v = x.input(0)?;
    let g = Geometry::new(x, &x.dims(0)?, &x.sig.out_dims(0)?)?;
    if !x.used(1) {
        x.set(0, v.call_with("MaxPool", g.attrs()));
        return Ok(());
    }
    let out = x.node("MaxPool", &[Some(v)], g.attrs(), &[v.dtype(), DType::I64]);
    let flat = out[1].with("Mod", g.area() as f64);
    let mut position = None;
    for a in 0..g.window.rank() {
        let at = (flat / g.step(a)).with("Mod", g.large[a] as f64);
        let k = (at - g.starts(x, a)) / g.window.dilations[a] as f64 * g.kernel_inner(a);
        position = Some(position.map_or(k, |p: Term<'_>| p + k));
    }
    x.set(0, out[0]);
    if let Some(p) = position {
        x.set(1, p.cast(position_type(x.sig.attrs)?));
    }
    Ok(())
}

/// Cotangents added where the maxima were.
pub(super) fn max_pool_gradient(x: &Export<'_>) -> Result<(), OpError> {
    let (positions, dy) = (x.input(0)?.cast(DType::I64), x.input(1)?);
    let (large, small) = (x.sig.out_dims(0)?, x.dims(1)?);
    let g = Geometry::new(x, &large, &small)?;
    let taps: i64 = g.window.kernel.iter().product();
    // Positions in the padding, and those of windows without elements, count nothing.
    let mut inside = positions.less(taps as f64);
    let mut flat = positions * 0.0;
    for (a, at) in g.coordinates(x, positions).into_iter().enumerate() {
        inside = inside.and(at.at_least(0.0)).and(at.less(g.large[a] as f64));
        flat = flat + at * g.step(a);
    }
    let lines = [g.planes(), g.small.iter().product()];
    let flat = inside.pick(flat, 0.0).reshape(&lines);
    let zeros = x.zeros(dy.dtype(), &[g.planes(), g.area()]);
    let attrs = Attrs::new().with("axis", 1).with("reduction", "add");
    let sum = x.call("ScatterElements", &[zeros, flat, inside.pick(dy, 0.0).reshape(&lines)], attrs);
    x.set(0, sum.reshape(&large));
    Ok(())
}

/// Flat indices from kernel positions.
pub(super) fn indices(x: &Export<'_>) -> Result<(), OpError> {
    let size: Vec<usize> = x.sig.attrs.ints("size")?.iter().map(|n| *n as usize).collect();
    let g = Geometry::new(x, &size, &x.dims(0)?)?;
    let column_major = x.sig.attrs.int_or("storage_order", 0)? != 0;
    let planes: Vec<i64> = (0..g.planes() as i64).map(|p| p * g.area() as i64).collect();
    let mut line = vec![1; 2 + g.small.len()];
    line[..2].copy_from_slice(&g.lead);
    let mut flat = x.ints(&planes).reshape(&line);
    for (a, at) in g.coordinates(x, x.input(0)?.cast(DType::I64)).into_iter().enumerate() {
        let step = if column_major { g.large[..a].iter().product::<usize>() as f64 } else { g.step(a) };
        flat = flat + at * step;
    }
    x.set(0, flat);
    Ok(())
}

/// Means, or sums, under windows.
pub(super) fn average_pool(x: &Export<'_>, sums: bool) -> Result<(), OpError> {
    let v = x.input(0)?;
    let g = Geometry::new(x, &x.dims(0)?, &x.sig.out_dims(0)?)?;
    let y = if sums {
        x.call("Conv", &[v, g.ones(x, v.dtype())], g.windows().0)
    } else {
        let padding = x.sig.attrs.str_or("divide", "elements")? == "padding";
        v.call_with("AveragePool", g.attrs().with("count_include_pad", padding))
    };
    x.set(0, y);
    Ok(())
}

/// Cotangents divided by `counts`, one a window, and spread over the windows.
pub(super) fn average_pool_gradient(x: &Export<'_>, counts: &[f64]) -> Result<(), OpError> {
    let dy = x.input(0)?;
    let g = Geometry::new(x, &x.sig.out_dims(0)?, &x.dims(0)?)?;
    let shape: Vec<usize> = [1, 1].into_iter().chain(g.small.iter().copied()).collect();
    let shares = dy / x.tensor(dy.dtype(), &shape, counts)?;
    let (attrs, over) = g.windows();
    let attrs = attrs.with("output_padding", over);
    x.set(0, x.call("ConvTranspose", &[shares, g.ones(x, dy.dtype())], attrs));
    Ok(())
}
