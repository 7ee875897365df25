//! AveragePool: means or sums under sliding windows, and their gradient.

use super::{
    export, gradient_attrs, import_window, max::window_flops, pooled, slide, unpooled, window_attrs,
};
use crate::{
    OpDef, OpError, Signature, Work,
    case::Case,
    cpu::{
        CpuKernel, Float,
        par::{self, Piece, Shared},
    },
    export::Export,
    grad::GradCx,
    onnx::{ImportCx, OnnxRule, rules},
    product::window::Slide,
};
use graph::{Attrs, TensorType};
use std::ops::Range;

/// The mean under each window of x [images, channels, spatial..]. Attributes `kernel`, `strides`, `pads`, `dilations`, `ceil_mode`, and
/// `divide`: by `"elements"` under the window, by those and `"padding"`, or by `"nothing"` (a sum).
pub struct AveragePool;

impl OpDef for AveragePool {
    fn name(&self) -> &'static str {
        "AveragePool"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules![
            "AveragePool" => import,
            "LpPool" => super::lp::import_windows,
            "GlobalLpPool" => super::lp::import_global,
        ]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let x = s.input(0)?;
        if !x.dtype.is_float() {
            return Err(OpError::invalid(format!("the input must be floating-point, not {}", x.dtype)));
        }
        Divide::of(s.attrs)?;
        Ok(vec![TensorType { dtype: x.dtype, shape: pooled(s.attrs, &x.shape)? }])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let attrs = gradient_attrs(g.attrs(), &g.ty(0)?.shape)?;
        let dy = g.cotangent0()?;
        let dx = g.b.op("AveragePoolGrad", attrs, &[dy])?;
        g.set(0, dx);
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        Work { flops: window_flops(s, s.outputs.first().copied()), bytes: s.io_bytes(), product: false }
    }

    fn by_sample(&self, _: &Signature<'_>) -> bool {
        true
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (planes, slide) = slide(s, &s.dims(0)?, &s.out_dims(0)?)?;
        let counts = Counts::new(&slide, Divide::of(s.attrs)?);
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(kernel::<T>(planes, slide, counts, false)))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        export::average_pool(x, Divide::of(x.sig.attrs)? == Divide::Nothing)
    }

    fn cases(&self) -> Vec<Case> {
        let d = |a: Attrs, divide: &str| a.with("divide", divide);
        let padded = window_attrs(&[3, 2], &[2, 1], &[1, 1, 1, 0], &[1, 1], false);
        let ceil = window_attrs(&[3, 3], &[2, 2], &[1, 0, 0, 1], &[1, 1], true);
        vec![
            Case::new(
                "halving",
                d(window_attrs(&[2, 2], &[2, 2], &[0; 4], &[1, 1], false), "elements"),
                &[&[2, 2, 4, 4]],
            ),
            Case::new("padding left out", d(padded.clone(), "elements"), &[&[1, 2, 5, 4]]),
            Case::new("padding counted", d(padded.clone(), "padding"), &[&[1, 2, 5, 4]]),
            Case::new("sums", d(padded, "nothing"), &[&[1, 2, 5, 4]]),
            Case::new("rounded up, padding counted", d(ceil.clone(), "padding"), &[&[1, 1, 6, 5]]),
            Case::new("rounded up", d(ceil, "elements"), &[&[1, 1, 6, 5]]),
            Case::new(
                "dilated, one axis",
                d(window_attrs(&[2], &[3], &[1, 1], &[2], false), "elements"),
                &[&[2, 1, 9]],
            ),
            Case::new(
                "longer than an axis",
                d(window_attrs(&[3, 1], &[3, 1], &[0; 4], &[1, 1], false), "elements"),
                &[&[1, 2, 2, 2]],
            ),
            Case::new(
                "three axes",
                d(window_attrs(&[2, 1, 3], &[1, 1, 1], &[0; 6], &[1, 1, 1], false), "elements"),
                &[&[1, 1, 3, 2, 4]],
            ),
        ]
    }
}

/// The gradient of [`AveragePool`]: input dy; attributes of the pool, and `size`, the spatial extents of its input.
pub struct AveragePoolGrad;

impl OpDef for AveragePoolGrad {
    fn name(&self) -> &'static str {
        "AveragePoolGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let dy = s.input(0)?;
        if !dy.dtype.is_float() {
            return Err(OpError::invalid(format!("the cotangent must be floating-point, not {}", dy.dtype)));
        }
        Divide::of(s.attrs)?;
        Ok(vec![TensorType { dtype: dy.dtype, shape: unpooled(s.attrs, &dy.shape)? }])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        Work { flops: window_flops(s, s.opt_input(0)), bytes: s.io_bytes(), product: false }
    }

    fn by_sample(&self, _: &Signature<'_>) -> bool {
        true
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (planes, slide) = slide(s, &s.out_dims(0)?, &s.dims(0)?)?;
        let counts = Counts::new(&slide, Divide::of(s.attrs)?);
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(kernel::<T>(planes, slide, counts, true)))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (_, slide) = slide(x.sig, &x.sig.out_dims(0)?, &x.dims(0)?)?;
        let counts = Counts::new(&slide, Divide::of(x.sig.attrs)?);
        export::average_pool_gradient(x, &counts.elements())
    }

    fn cases(&self) -> Vec<Case> {
        let attrs =
            window_attrs(&[3, 2], &[2, 1], &[1, 1, 1, 0], &[1, 1], false).with("size", &[5i64, 4][..]);
        vec![
            Case::new("padding left out", attrs.clone().with("divide", "elements"), &[&[2, 2, 3, 4]]),
            Case::new("padding counted", attrs.with("divide", "padding"), &[&[2, 2, 3, 4]]),
        ]
    }
}

fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let divide = if cx.attrs.int_or("count_include_pad", 0)? != 0 { "padding" } else { "elements" };
    let attrs = import_window(cx)?.with("divide", divide);
    let x = cx.input(0)?;
    let y = cx.b.op("AveragePool", attrs, &[x])?;
    cx.set(0, y);
    Ok(())
}

/// What sums are divided by.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Divide {
    Elements,
    Padding,
    Nothing,
}

impl Divide {
    pub(super) fn of(attrs: &Attrs) -> Result<Divide, OpError> {
        match attrs.str_or("divide", "elements")? {
            "elements" => Ok(Divide::Elements),
            "padding" => Ok(Divide::Padding),
            "nothing" => Ok(Divide::Nothing),
            other => {
                Err(OpError::invalid(format!("divide must be elements, padding or nothing, not {other:?}")))
            }
        }
    }
}

/// For each axis and window how many kernel positions count.
struct Counts([Vec<usize>; 3]);

impl Counts {
    fn new(s: &Slide, divide: Divide) -> Counts {
        Counts([0, 1, 2].map(|a| {
            let counts = |o: usize, k: usize| {
                // Relative to the begin padding; a rounded-up window may reach beyond the end padding, which counts for nobody.
                let x = o * s.stride[a] + k * s.dilation[a];
                match divide {
                    Divide::Elements => x >= s.begin[a] && x < s.begin[a] + s.large[a],
                    Divide::Padding => x < s.begin[a] + s.large[a] + s.end[a],
                    Divide::Nothing => true,
                }
            };
            let of = |o: usize| (0..s.kernel[a]).filter(|k| counts(o, *k)).count().max(1);
            if divide == Divide::Nothing { vec![1; s.small[a]] } else { (0..s.small[a]).map(of).collect() }
        }))
    }
}

impl Counts {
    /// The number of positions that count, window by window in row-major order.
    fn elements(&self) -> Vec<f64> {
        let [d, h, w] = &self.0;
        let rows = d.iter().flat_map(|d| h.iter().map(move |h| d * h));
        rows.flat_map(|n| w.iter().map(move |w| (n * w) as f64)).collect()
    }
}

struct Means<'a, T> {
    slide: &'a Slide,
    counts: &'a Counts,
    from: &'a [T],
    to: Shared<T>,
    transposed: bool,
}

/// Columns that are divided before they are spread.
const BLOCK: usize = 64;

impl<T: Float> Piece for Means<'_, T> {
    #[inline(always)]
    fn run(&self, range: Range<usize>) {
        let s = self.slide;
        let [large, small] = s.planes();
        let (read, write) = if self.transposed { (small, large) } else { (large, small) };
        for plane in range {
            let from = &self.from[plane * read..][..read];
            // SAFETY: planes are disjoint and inside the output.
            let to = unsafe { self.to.slice(plane * write..(plane + 1) * write) };
            to.fill(T::ZERO);
            for (d, h) in s.rows() {
                let outer = self.counts.0[0][d] * self.counts.0[1][h];
                let row = (d * s.small[1] + h) * s.small[2];
                if self.transposed {
                    self.spread(from, to, (d, h), row, outer);
                } else {
                    self.gather(from, to, (d, h), row, outer);
                }
            }
        }
    }
}

impl<T: Float> Means<'_, T> {
    /// One row of means.
    #[inline(always)]
    fn gather(&self, x: &[T], y: &mut [T], (d, h): (usize, usize), row: usize, outer: usize) {
        let s = self.slide;
        for t in 0..s.taps() {
            let Some(m) = s.meet(t, d, h) else { continue };
            let (y, x) = (&mut y[m.small..][..m.count], &x[m.large..]);
            match s.stride[2] {
                1 => y.iter_mut().zip(x).for_each(|(y, x)| *y += *x),
                2 => y.iter_mut().zip(x.iter().step_by(2)).for_each(|(y, x)| *y += *x),
                step => y.iter_mut().zip(x.iter().step_by(step)).for_each(|(y, x)| *y += *x),
            }
        }
        for (y, n) in y[row..].iter_mut().zip(&self.counts.0[2]) {
            *y = *y / T::from_f64((outer * n) as f64);
        }
    }

    /// One row of cotangents, divided and added where their windows read.
    #[inline(always)]
    fn spread(&self, dy: &[T], dx: &mut [T], (d, h): (usize, usize), row: usize, outer: usize) {
        let s = self.slide;
        let mut share = [T::ZERO; BLOCK];
        for first in (0..s.small[2]).step_by(BLOCK) {
            let n = BLOCK.min(s.small[2] - first);
            let (dy, counts) = (&dy[row + first..][..n], &self.counts.0[2][first..][..n]);
            for (i, (dy, c)) in dy.iter().zip(counts).enumerate() {
                share[i] = *dy / T::from_f64((outer * c) as f64);
            }
            for t in 0..s.taps() {
                let Some(m) = s.meet(t, d, h) else { continue };
                // The part of the tap's columns that lies in this block.
                let (from, start) = (m.small - row, (m.small - row).max(first));
                let end = (from + m.count).min(first + n);
                if end <= start {
                    continue;
                }
                let share = &share[start - first..end - first];
                let dx = &mut dx[m.large + (start - from) * s.stride[2]..];
                match s.stride[2] {
                    1 => dx.iter_mut().zip(share).for_each(|(x, y)| *x += *y),
                    2 => dx.iter_mut().step_by(2).zip(share).for_each(|(x, y)| *x += *y),
                    step => dx.iter_mut().step_by(step).zip(share).for_each(|(x, y)| *x += *y),
                }
            }
        }
    }
}

fn kernel<T: Float>(planes: usize, slide: Slide, counts: Counts, transposed: bool) -> CpuKernel {
    let work = slide.planes().into_iter().sum::<usize>().max(1) * slide.taps().min(9);
    let grain = (2 * par::GRAIN / work).max(1);
    Box::new(move |io| {
        let to = io.output::<T>(0);
        if to.is_empty() {
            return Ok(());
        }
        let to = Shared(to.as_mut_ptr());
        let from = io.input::<T>(0);
        par::pieces(planes, grain, &Means { slide: &slide, counts: &counts, from, to, transposed });
        Ok(())
    })
}
