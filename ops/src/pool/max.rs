//! MaxPool: the largest element under each window, and which one it was.
//!
//! The gradient needs only the position inside the window, one byte an output for all common kernels; ONNX's `Indices` follow from it.

use super::{arguments, export, gradient_attrs, import_window, pooled, slide, unpooled, window_attrs};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{
        CpuKernel, Element, Float,
        par::{self, Piece, Shared},
    },
    export::Export,
    grad::GradCx,
    onnx::{ImportCx, OnnxRule, rules},
    product::window::Slide,
};
use graph::{Attrs, DType, TensorType};
use std::ops::Range;

/// The maximum under each window of x [images, channels, spatial..] (padding does not count; NaN wins), and the kernel position of the
/// first element that attains it (u8, or i32 for kernels of 255 positions and more; the largest value where a window covers only padding).
///
/// Attributes `kernel`, `strides`, `pads`, `dilations`, `ceil_mode`.
pub struct MaxPool;

impl OpDef for MaxPool {
    fn name(&self) -> &'static str {
        "MaxPool"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["MaxPool" => import]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let x = s.input(0)?;
        if x.dtype == DType::Bool {
            return Err(OpError::invalid("booleans have no maximum"));
        }
        let shape = pooled(s.attrs, &x.shape)?;
        let positions = TensorType { dtype: position_type(s.attrs)?, shape: shape.clone() };
        Ok(vec![TensorType { dtype: x.dtype, shape }, positions])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let attrs = gradient_attrs(g.attrs(), &g.ty(0)?.shape)?;
        let (positions, dy) = (g.output(1), g.cotangent0()?);
        let dx = g.b.op("MaxPoolGrad", attrs, &[positions, dy])?;
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
        crate::for_number!(s.input(0)?.dtype, self.name(), T => match position_type(s.attrs)? {
            DType::U8 => Ok(max_kernel::<T, u8>(planes, slide)),
            _ => Ok(max_kernel::<T, i32>(planes, slide)),
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        export::max_pool(x)
    }

    fn cases(&self) -> Vec<Case> {
        let x = |shape: &[usize]| CaseInput::float(shape, Fill::Distinct { spacing: 0.05 });
        let case = |name, attrs, shape: &[usize]| Case::new(name, attrs, &[]).input(0, x(shape));
        vec![
            case("halving", window_attrs(&[2, 2], &[2, 2], &[0; 4], &[1, 1], false), &[2, 2, 4, 4]),
            case(
                "overlapping, padded",
                window_attrs(&[3, 3], &[2, 2], &[1; 4], &[1, 1], false),
                &[1, 2, 5, 4],
            ),
            case("rounded up", window_attrs(&[2, 3], &[2, 2], &[0, 1, 0, 0], &[1, 1], true), &[1, 1, 5, 6]),
            case("dilated, one axis", window_attrs(&[3], &[1], &[1, 2], &[2], false), &[2, 2, 6]),
            case(
                "three axes",
                window_attrs(&[2, 1, 2], &[1, 2, 2], &[0; 6], &[1, 1, 1], false),
                &[1, 2, 2, 3, 4],
            ),
            case(
                "longer than an axis",
                window_attrs(&[2, 2], &[2, 2], &[0; 4], &[1, 1], false),
                &[1, 2, 1, 4],
            ),
            case("large kernel", window_attrs(&[260], &[2], &[258, 0], &[1], false), &[1, 1, 7]),
            case("no images", window_attrs(&[2], &[1], &[0, 0], &[1], false), &[0, 2, 3]),
        ]
    }
}

/// The gradient of [`MaxPool`]: dy added at the positions it took. Inputs positions, dy; attributes of the pool, and `size`, the spatial
/// extents of its input.
pub struct MaxPoolGrad;

impl OpDef for MaxPoolGrad {
    fn name(&self) -> &'static str {
        "MaxPoolGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (positions, dy) = (s.input(0)?, s.input(1)?);
        if positions.dtype != position_type(s.attrs)? || positions.shape != dy.shape || !dy.dtype.is_float() {
            return Err(OpError::invalid(format!("positions {positions} and cotangent {dy} do not fit")));
        }
        Ok(vec![TensorType { dtype: dy.dtype, shape: unpooled(s.attrs, &dy.shape)? }])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn by_sample(&self, _: &Signature<'_>) -> bool {
        true
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (planes, slide) = slide(s, &s.out_dims(0)?, &s.dims(1)?)?;
        crate::for_float!(s.input(1)?.dtype, self.name(), T => match s.input(0)?.dtype {
            DType::U8 => Ok(grad_kernel::<T, u8>(planes, slide)),
            _ => Ok(grad_kernel::<T, i32>(planes, slide)),
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        export::max_pool_gradient(x)
    }

    fn cases(&self) -> Vec<Case> {
        let size = |a: Attrs, size: &[i64]| a.with("size", size);
        let halving = size(window_attrs(&[2, 2], &[2, 2], &[0; 4], &[1, 1], false), &[4, 4]);
        let overlapping = size(window_attrs(&[3], &[1], &[1, 1], &[1], false), &[5]);
        vec![
            Case::new("halving", halving, &[&[0], &[2, 1, 2, 2]])
                .input(0, CaseInput::ints(DType::U8, &[2, 1, 2, 2], 0, 4)),
            Case::new("positions in the padding are skipped", overlapping, &[&[0], &[1, 2, 5]])
                .input(0, CaseInput::ints(DType::U8, &[1, 2, 5], 0, 3)),
        ]
    }
}

/// ONNX's `Indices` of a [`MaxPool`] from its positions: where in the whole input tensor the maximum lies (i64). Attributes of the pool,
/// `size`, and `storage_order` (1: spatial axes counted column-major).
pub struct MaxPoolIndices;

impl OpDef for MaxPoolIndices {
    fn name(&self) -> &'static str {
        "MaxPoolIndices"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let positions = s.input(0)?;
        if positions.dtype != position_type(s.attrs)? {
            return Err(OpError::invalid(format!("positions of this kernel are not {}", positions.dtype)));
        }
        unpooled(s.attrs, &positions.shape)?;
        s.attrs.int_or("storage_order", 0)?;
        Ok(vec![TensorType { dtype: DType::I64, shape: positions.shape.clone() }])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let small = s.dims(0)?;
        let size = s.attrs.ints("size")?.iter().map(|n| *n as usize);
        let large: Vec<usize> = small[..2].iter().copied().chain(size).collect();
        let (_, slide) = slide(s, &large, &small)?;
        let column_major = s.attrs.int_or("storage_order", 0)? != 0;
        Ok(match s.input(0)?.dtype {
            DType::U8 => indices_kernel::<u8>(slide, column_major),
            _ => indices_kernel::<i32>(slide, column_major),
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        export::indices(x)
    }

    fn cases(&self) -> Vec<Case> {
        let attrs =
            window_attrs(&[2, 2], &[1, 2], &[1, 0, 0, 0], &[1, 1], false).with("size", &[3i64, 4][..]);
        let case = |name, order: i64| {
            Case::new(name, attrs.clone().with("storage_order", order), &[])
                .input(0, CaseInput::ints(DType::U8, &[2, 2, 3, 2], 2, 4))
        };
        vec![case("row-major", 0), case("column-major", 1)]
    }
}

fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let attrs = import_window(cx)?;
    let x = cx.input(0)?;
    let out = cx.b.emit("MaxPool", attrs.clone(), &[Some(x)])?;
    cx.set(0, out[0]);
    if cx.used.get(1) == Some(&true) {
        let order = cx.attrs.int_or("storage_order", 0)?;
        let attrs = gradient_attrs(&attrs, &cx.ty(0)?.shape)?.with("storage_order", order);
        let indices = cx.b.op("MaxPoolIndices", attrs, &[out[1]])?;
        cx.set(1, indices);
    }
    Ok(())
}

/// The dtype of positions: one byte while one value is left for "none".
pub(super) fn position_type(attrs: &Attrs) -> Result<DType, OpError> {
    let taps: i64 = arguments(attrs)?.0.kernel.iter().product();
    Ok(if taps < 255 { DType::U8 } else { DType::I32 })
}

/// One operation for each element of each window of `y`.
pub(super) fn window_flops(s: &Signature<'_>, y: Option<&TensorType>) -> u64 {
    let taps = arguments(s.attrs).map_or(0, |(w, _)| w.kernel.iter().product::<i64>()) as u64;
    y.and_then(|y| y.shape.elements()?.checked_mul(taps)).unwrap_or(0)
}

/// A kernel position as it is stored; the largest value stands for none.
trait Position: Element {
    /// From a tap, or -1.
    fn of(t: i32) -> Self;
    fn get(self) -> usize;
}

macro_rules! position {
    ($($t:ty),*) => {$(
        impl Position for $t {
            #[inline(always)]
            fn of(t: i32) -> Self {
                if t < 0 { <$t>::MAX } else { t as $t }
            }
            #[inline(always)]
            fn get(self) -> usize {
                self as usize
            }
        }
    )*};
}
position!(u8, i32);

struct Maxima<'a, T, P> {
    slide: &'a Slide,
    x: &'a [T],
    y: Shared<T>,
    positions: Shared<P>,
}

impl<T: Element, P: Position> Piece for Maxima<'_, T, P> {
    #[inline(always)]
    fn run(&self, range: Range<usize>) {
        let s = self.slide;
        let [large, small] = s.planes();
        for plane in range {
            let x = &self.x[plane * large..][..large];
            // SAFETY: planes are disjoint and inside the outputs.
            let (y, p) = unsafe {
                let at = plane * small..(plane + 1) * small;
                (self.y.slice(at.clone()), self.positions.slice(at))
            };
            for (d, h) in s.rows() {
                let row = (d * s.small[1] + h) * s.small[2];
                for first in (0..s.small[2]).step_by(BLOCK) {
                    let n = BLOCK.min(s.small[2] - first);
                    let at = row + first..row + first + n;
                    self.block(x, (d, h), row + first, (&mut y[at.clone()], &mut p[at]));
                }
            }
        }
    }
}

/// Columns that are worked on at once, with positions as wide as elements, so that vectors of both have equally many lanes.
const BLOCK: usize = 64;

impl<T: Element, P: Position> Maxima<'_, T, P> {
    /// The columns of row (d, h) that start at `start` of the plane.
    #[inline(always)]
    fn block(&self, x: &[T], (d, h): (usize, usize), start: usize, (y, p): (&mut [T], &mut [P])) {
        let s = self.slide;
        let n = y.len();
        let (mut best, mut taken, mut read) =
            ([lowest::<T>(); BLOCK], [-1i32; BLOCK], [lowest::<T>(); BLOCK]);
        for t in 0..s.taps() {
            let Some(m) = s.meet(t, d, h) else { continue };
            let from = m.small.max(start);
            let end = (m.small + m.count).min(start + n);
            if end <= from {
                continue;
            }
            let x = &x[m.large + (from - m.small) * s.stride[2]..];
            let len = end - from;
            let (best, taken) = (&mut best[from - start..][..len], &mut taken[from - start..][..len]);
            let x = match s.stride[2] {
                1 => &x[..len],
                2 => {
                    let x = &x[..2 * len - 1];
                    (0..len).for_each(|i| read[i] = x[2 * i]);
                    &read[..len]
                }
                step => {
                    (0..len).for_each(|i| read[i] = x[step * i]);
                    &read[..len]
                }
            };
            for ((best, taken), v) in best.iter_mut().zip(taken).zip(x) {
                #[allow(clippy::eq_op)]
                let wins = (*v > *best) | (*v != *v) | (*taken < 0);
                *best = if wins { *v } else { *best };
                *taken = if wins { t as i32 } else { *taken };
            }
        }
        y.copy_from_slice(&best[..n]);
        p.iter_mut().zip(&taken).for_each(|(p, t)| *p = P::of(*t));
    }
}

/// What is below every element.
#[inline(always)]
fn lowest<T: Element>() -> T {
    if T::DTYPE.is_float() { T::from_f64(f64::NEG_INFINITY) } else { T::from_f64(i64::MIN as f64) }
}

fn grain(slide: &Slide) -> usize {
    let work = slide.planes().into_iter().sum::<usize>().max(1) * slide.taps().min(9);
    (2 * par::GRAIN / work).max(1)
}

fn max_kernel<T: Element, P: Position>(planes: usize, slide: Slide) -> CpuKernel {
    Box::new(move |io| {
        let (y, p) = (io.output::<T>(0), io.output::<P>(1));
        if y.is_empty() {
            return Ok(());
        }
        let (y, positions) = (Shared(y.as_mut_ptr()), Shared(p.as_mut_ptr()));
        par::pieces(planes, grain(&slide), &Maxima { slide: &slide, x: io.input::<T>(0), y, positions });
        Ok(())
    })
}

struct Scatter<'a, T, P> {
    slide: &'a Slide,
    positions: &'a [P],
    dy: &'a [T],
    dx: Shared<T>,
}

impl<T: Float, P: Position> Piece for Scatter<'_, T, P> {
    #[inline(always)]
    fn run(&self, range: Range<usize>) {
        let s = self.slide;
        let [large, small] = s.planes();
        for plane in range {
            // SAFETY: planes are disjoint and inside the output.
            let dx = unsafe { self.dx.slice(plane * large..(plane + 1) * large) };
            let (dy, p) = (&self.dy[plane * small..][..small], &self.positions[plane * small..][..small]);
            dx.fill(T::ZERO);
            for (i, (dy, p)) in dy.iter().zip(p).enumerate() {
                if let Some(at) = locate(s, i, p.get()) {
                    dx[(at[0] * s.large[1] + at[1]) * s.large[2] + at[2]] += *dy;
                }
            }
        }
    }
}

/// The input coordinates of tap `t` of window `i`; `None` in the padding or for no tap at all.
#[inline(always)]
fn locate(s: &Slide, i: usize, t: usize) -> Option<[usize; 3]> {
    let [_, h, w] = s.small;
    let (o, k) = ([i / (h * w), i / w % h, i % w], s.position(t));
    let mut at = [0; 3];
    for a in 0..3 {
        at[a] = (o[a] * s.stride[a] + k[a] * s.dilation[a])
            .checked_sub(s.begin[a])
            .filter(|x| *x < s.large[a])?;
    }
    Some(at)
}

fn grad_kernel<T: Float, P: Position>(planes: usize, slide: Slide) -> CpuKernel {
    Box::new(move |io| {
        let dx = io.output::<T>(0);
        if dx.is_empty() {
            return Ok(());
        }
        let dx = Shared(dx.as_mut_ptr());
        let (positions, dy) = (io.input::<P>(0), io.input::<T>(1));
        par::pieces(planes, grain(&slide), &Scatter { slide: &slide, positions, dy, dx });
        Ok(())
    })
}

fn indices_kernel<P: Position>(slide: Slide, column_major: bool) -> CpuKernel {
    Box::new(move |io| {
        let ([large, small], p) = (slide.planes(), io.input::<P>(0));
        let [d, h, w] = slide.large;
        par::rows(io.output::<i64>(0), small, |plane, out| {
            for (i, (o, p)) in out.iter_mut().zip(&p[plane * small..]).enumerate() {
                let [z, y, x] = locate(&slide, i, p.get()).unwrap_or([0; 3]);
                let at = if column_major { (x * h + y) * d + z } else { (z * h + y) * w + x };
                *o = (plane * large + at) as i64;
            }
        });
        Ok(())
    })
}
