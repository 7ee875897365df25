//! Images sampled at the positions of a grid, with the gradients of both.

use crate::{
    OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{
        CpuKernel, Element, Float,
        par::{self, Shared},
    },
    export::Export,
    grad::GradCx,
    onnx::{ImportCx, OnnxRule, rules},
    product::matmul::same_dim,
};
use graph::{Attrs, Dim, Shape, TensorType};

/// Images `[n, c, h, w]` sampled at a grid `[n, oh, ow, 2]` of positions (x, y), where -1 and 1 are the image's borders.
///
/// Attributes: `mode` (`linear`, `nearest`), `padding_mode` (`zeros`, `border`, `reflection`), `align_corners` (whether -1 and 1 are the
/// centres or the outer edges of the border pixels).
pub struct GridSample;

impl OpDef for GridSample {
    fn name(&self) -> &'static str {
        "GridSample"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["GridSample" => import, "AffineGrid" => super::affine_grid::import]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (x, grid) = (s.input(0)?, s.input(1)?);
        Sampler::of(s.attrs, 1, 1)?;
        if !x.dtype.is_float() || grid.dtype != x.dtype || x.shape.rank() != 4 || grid.shape.rank() != 4 {
            return Err(OpError::invalid(format!(
                "images {x} and grid {grid} must have 4 axes and one dtype"
            )));
        }
        let (d, g) = (&x.shape.0, &grid.shape.0);
        same_dim(&d[0], &g[0], "images and grids")?;
        same_dim(&g[3], &Dim::constant(2), "coordinates of the grid and axes of an image")?;
        if d[2].as_const() == Some(0) || d[3].as_const() == Some(0) {
            return Err(OpError::invalid(format!("images {x} are empty")));
        }
        let shape = Shape(vec![d[0].clone(), d[1].clone(), g[1].clone(), g[2].clone()]);
        Ok(vec![TensorType { dtype: x.dtype, shape }])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (x, grid, dy) = (g.input(0)?, g.input(1)?, g.cotangent0()?);
        if g.needs(0) {
            let attrs = g.attrs().clone().with("shape", crate::builder::shape_attr(&g.ty(0)?.shape)?);
            let dx = g.b.op("GridSampleGradImage", attrs, &[grid, dy])?;
            g.set(0, dx);
        }
        if g.needs(1) {
            let attrs = g.attrs().clone();
            let dgrid = g.b.op("GridSampleGradGrid", attrs, &[x, grid, dy])?;
            g.set(1, dgrid);
        }
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, s.outputs.first().copied())
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (size, sampler) = Size::of(s.attrs, &s.dims(0)?, &s.dims(1)?)?;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io| {
            let (x, grid) = (io.input::<T>(0), io.input::<T>(1));
            let y = Shared(io.output_ptr::<T>(0).0);
            size.rows(|n, row| {
                let y = &y;
                for col in 0..size.ow {
                    let p = ((n * size.oh + row) * size.ow + col) * 2;
                    let taps = sampler.taps(grid[p].to_f64(), grid[p + 1].to_f64());
                    for c in 0..size.c {
                        let plane = (n * size.c + c) * size.h * size.w;
                        let sum = taps.pixels.iter().fold(T::ZERO, |s, t| {
                            t.at.map_or(s, |at| s + T::from_f64(t.weight) * x[plane + at])
                        });
                        let at = ((n * size.c + c) * size.oh + row) * size.ow + col;
                        // SAFETY: inside the output; each row of the grid writes elements of its own.
                        unsafe { *y.0.add(at) = sum };
                    }
                }
            });
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let attrs = x.sig.attrs;
        let attrs = Attrs::new()
            .with("mode", attrs.str_or("mode", "linear")?)
            .with("padding_mode", attrs.str_or("padding_mode", "zeros")?)
            .with("align_corners", attrs.int_or("align_corners", 0)?);
        x.same("GridSample", attrs)
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for (mode, padding, align, name) in VARIANTS {
            let case = Case::new(name, attrs(mode, padding, *align), &[&[1, 2, 4, 4]]).input(1, grid());
            let nearest = *mode == "nearest";
            cases.push(if nearest { case.input(1, grid().fixed()) } else { case });
        }
        cases
    }
}

/// The gradient of [`GridSample`] by the images, of extents `shape`. Inputs: grid, cotangent.
pub struct GridSampleGradImage;

impl OpDef for GridSampleGradImage {
    fn name(&self) -> &'static str {
        "GridSampleGradImage"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (grid, dy) = (s.input(0)?, s.input(1)?);
        let dims = crate::movement::extents_attr(s, "shape")?;
        let (size, _) = Size::of(s.attrs, &dims, &s.dims(0)?)?;
        check_cotangent(&size, dy)?;
        if grid.dtype != dy.dtype {
            return Err(OpError::invalid("grid and cotangent differ in dtype"));
        }
        Ok(vec![TensorType::new(dy.dtype, &dims)])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, s.opt_input(1))
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let dims = crate::movement::extents_attr(s, "shape")?;
        let (size, sampler) = Size::of(s.attrs, &dims, &s.dims(0)?)?;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io| {
            let (grid, dy) = (io.input::<T>(0), io.input::<T>(1));
            let points = size.oh * size.ow;
            // One plane a piece, its points in order: sums do not depend on the threads.
            par::rows(io.output::<T>(0), size.h * size.w, |plane, dx| {
                dx.fill(T::ZERO);
                let n = plane / size.c;
                for p in 0..points {
                    let g = (n * points + p) * 2;
                    let d = dy[plane * points + p];
                    for t in sampler.taps(grid[g].to_f64(), grid[g + 1].to_f64()).pixels {
                        if let Some(at) = t.at {
                            dx[at] += T::from_f64(t.weight) * d;
                        }
                    }
                }
            });
            Ok(())
        })))
    }

    fn cases(&self) -> Vec<Case> {
        let attrs = attrs("linear", "reflection", true).with("shape", vec![1, 2, 4, 4]);
        vec![Case::new("reflected", attrs, &[&[], &[1, 2, 3, 2]]).input(0, grid())]
    }
}

/// The gradient of [`GridSample`] by the grid. Inputs: images, grid, cotangent.
pub struct GridSampleGradGrid;

impl OpDef for GridSampleGradGrid {
    fn name(&self) -> &'static str {
        "GridSampleGradGrid"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (x, grid, dy) = (s.input(0)?, s.input(1)?, s.input(2)?);
        let (size, _) = Size::of(s.attrs, &s.dims(0)?, &s.dims(1)?)?;
        check_cotangent(&size, dy)?;
        if x.dtype != dy.dtype || grid.dtype != dy.dtype {
            return Err(OpError::invalid("images, grid and cotangent differ in dtype"));
        }
        Ok(vec![grid.clone()])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, s.opt_input(2))
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (size, sampler) = Size::of(s.attrs, &s.dims(0)?, &s.dims(1)?)?;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io| {
            let (x, grid, dy) = (io.input::<T>(0), io.input::<T>(1), io.input::<T>(2));
            let out = Shared(io.output_ptr::<T>(0).0);
            size.rows(|n, row| {
                let out = &out;
                for col in 0..size.ow {
                    let p = ((n * size.oh + row) * size.ow + col) * 2;
                    let taps = sampler.taps(grid[p].to_f64(), grid[p + 1].to_f64());
                    let mut slope = [0.0f64; 2];
                    for c in 0..size.c {
                        let plane = (n * size.c + c) * size.h * size.w;
                        let d = dy[((n * size.c + c) * size.oh + row) * size.ow + col].to_f64();
                        for t in &taps.pixels {
                            let v = t.at.map_or(0.0, |at| x[plane + at].to_f64()) * d;
                            slope = [slope[0] + t.slope[0] * v, slope[1] + t.slope[1] * v];
                        }
                    }
                    // SAFETY: inside the output, which has the grid's shape; each row writes elements of its own.
                    unsafe {
                        *out.0.add(p) = T::from_f64(slope[0]);
                        *out.0.add(p + 1) = T::from_f64(slope[1]);
                    }
                }
            });
            Ok(())
        })))
    }

    fn cases(&self) -> Vec<Case> {
        let case =
            Case::new("bordered", attrs("linear", "border", false), &[&[1, 2, 4, 4], &[], &[1, 2, 3, 2]]);
        vec![case.input(1, grid())]
    }
}

type Variant = (&'static str, &'static str, bool, &'static str);
const VARIANTS: &[Variant] = &[
    ("linear", "zeros", false, "linear, zeros"),
    ("linear", "border", true, "linear, border, corners aligned"),
    ("linear", "reflection", false, "linear, reflection"),
    ("linear", "reflection", true, "linear, reflection, corners aligned"),
    ("nearest", "zeros", false, "nearest, zeros"),
    ("nearest", "reflection", true, "nearest, reflection"),
];

fn attrs(mode: &str, padding: &str, align: bool) -> Attrs {
    Attrs::new().with("mode", mode).with("padding_mode", padding).with("align_corners", align)
}

/// Positions in and around an image of 4 x 4 pixels, away from the kinks between pixels (of either alignment).
fn grid() -> CaseInput {
    const KINKS: &[f64] = &[
        -1.5,
        -1.25,
        -1.0,
        -0.75,
        -0.5,
        -0.25,
        0.0,
        0.25,
        0.5,
        0.75,
        1.0,
        1.25,
        1.5,
        -1.0 / 3.0,
        1.0 / 3.0,
        -5.0 / 3.0,
        5.0 / 3.0,
        -4.0 / 3.0,
        4.0 / 3.0,
    ];
    CaseInput::float(&[1, 3, 2, 2], Fill::Avoid { range: (-1.6, 1.6), points: KINKS, margin: 0.02 })
}

fn work(s: &Signature<'_>, samples: Option<&TensorType>) -> Work {
    let n = samples.and_then(|t| t.shape.elements()).unwrap_or(0);
    Work { flops: n.saturating_mul(8), bytes: s.io_bytes(), product: false }
}

fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    if cx.ty(0)?.shape.rank() != 4 {
        return Err(OpError::unsupported("sampling of volumes (inputs of 4 axes only)"));
    }
    let mode = match cx.attrs.str_or("mode", "linear")? {
        "bilinear" | "linear" => "linear",
        "nearest" => "nearest",
        m => return Err(OpError::unsupported(format!("sampling mode {m:?}"))),
    };
    let padding = cx.attrs.str_or("padding_mode", "zeros")?;
    let attrs = attrs(mode, padding, cx.attrs.int_or("align_corners", 0)? != 0);
    cx.same("GridSample", attrs)
}

fn check_cotangent(size: &Size, dy: &TensorType) -> Result<(), OpError> {
    let want = Shape::from(&[size.n, size.c, size.oh, size.ow][..]);
    if dy.shape != want {
        return Err(OpError::invalid(format!("the cotangent is {dy}, the samples are {want}")));
    }
    Ok(())
}

/// Extents of images and grid.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub(super) n: usize,
    pub(super) c: usize,
    pub(super) h: usize,
    pub(super) w: usize,
    pub(super) oh: usize,
    pub(super) ow: usize,
}

impl Size {
    pub(super) fn of(attrs: &Attrs, image: &[usize], grid: &[usize]) -> Result<(Size, Sampler), OpError> {
        match (image, grid) {
            (&[n, c, h, w], &[m, oh, ow, 2]) if n == m && h > 0 && w > 0 => {
                Ok((Size { n, c, h, w, oh, ow }, Sampler::of(attrs, h, w)?))
            }
            _ => Err(OpError::invalid(format!("grid {grid:?} does not fit images {image:?}"))),
        }
    }

    /// Runs `f(image, row)` for every row of the grid.
    fn rows(&self, f: impl Fn(usize, usize) + Sync) {
        let grain = (par::GRAIN / (self.ow * self.c).max(1)).max(1);
        par::ranges(self.n * self.oh, grain, |r| r.for_each(|k| f(k / self.oh, k % self.oh)));
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Padding {
    Zeros,
    Border,
    Reflection,
}

/// How positions become pixels.
pub(super) struct Sampler {
    pub(super) h: usize,
    pub(super) w: usize,
    pub(super) nearest: bool,
    pub(super) padding: Padding,
    pub(super) align: bool,
}

/// One pixel of a sample: where (`None` outside), its weight, and the weight's derivative by the grid's x and y.
struct Tap {
    at: Option<usize>,
    weight: f64,
    slope: [f64; 2],
}

struct Sample {
    pixels: [Tap; 4],
}

impl Sampler {
    fn of(attrs: &Attrs, h: usize, w: usize) -> Result<Sampler, OpError> {
        let nearest = match attrs.str_or("mode", "linear")? {
            "linear" => false,
            "nearest" => true,
            m => return Err(OpError::invalid(format!("mode {m:?} is neither linear nor nearest"))),
        };
        let padding = match attrs.str_or("padding_mode", "zeros")? {
            "zeros" => Padding::Zeros,
            "border" => Padding::Border,
            "reflection" => Padding::Reflection,
            p => {
                return Err(OpError::invalid(format!(
                    "padding_mode {p:?} is none of zeros, border, reflection"
                )));
            }
        };
        Ok(Sampler { h, w, nearest, padding, align: attrs.int_or("align_corners", 0)? != 0 })
    }

    /// Pixel position of grid coordinate `g` on an axis of `n` pixels, and its derivative.
    fn position(&self, g: f64, n: usize) -> (f64, f64) {
        let n = n as f64;
        let (mut x, mut slope) = if self.align {
            ((g + 1.0) / 2.0 * (n - 1.0), (n - 1.0) / 2.0)
        } else {
            (((g + 1.0) * n - 1.0) / 2.0, n / 2.0)
        };
        if self.padding == Padding::Reflection {
            let (lo, hi) = if self.align { (0.0, n - 1.0) } else { (-0.5, n - 0.5) };
            let span = hi - lo;
            if span <= 0.0 || !x.is_finite() {
                return (0.0, 0.0);
            }
            let (away, sign) = if x < lo { (lo - x, -1.0) } else { (x - lo, 1.0) };
            let within = away % span;
            let even = (away / span).floor() % 2.0 == 0.0;
            (x, slope) = if even { (lo + within, slope * sign) } else { (hi - within, -slope * sign) };
        }
        if self.padding != Padding::Zeros && !(0.0..=n - 1.0).contains(&x) {
            (x, slope) = (x.clamp(0.0, n - 1.0), 0.0);
        }
        (x, slope)
    }

    fn taps(&self, gx: f64, gy: f64) -> Sample {
        let ((x, sx), (y, sy)) = (self.position(gx, self.w), self.position(gy, self.h));
        let pixel = |x: f64, y: f64| {
            let inside = x >= 0.0 && y >= 0.0 && x < self.w as f64 && y < self.h as f64;
            inside.then(|| y as usize * self.w + x as usize)
        };
        if self.nearest {
            let none = || Tap { at: None, weight: 0.0, slope: [0.0; 2] };
            let at = pixel(x.round_ties_even(), y.round_ties_even());
            return Sample { pixels: [Tap { at, weight: 1.0, slope: [0.0; 2] }, none(), none(), none()] };
        }
        let (x0, y0) = (x.floor(), y.floor());
        let (fx, fy) = (x - x0, y - y0);
        let tap = |dx: f64, dy: f64| {
            let (wx, wy) = (if dx == 0.0 { 1.0 - fx } else { fx }, if dy == 0.0 { 1.0 - fy } else { fy });
            let (slope_x, slope_y) = ((2.0 * dx - 1.0) * sx, (2.0 * dy - 1.0) * sy);
            Tap { at: pixel(x0 + dx, y0 + dy), weight: wx * wy, slope: [slope_x * wy, slope_y * wx] }
        };
        Sample { pixels: [tap(0.0, 0.0), tap(1.0, 0.0), tap(0.0, 1.0), tap(1.0, 1.0)] }
    }
}
