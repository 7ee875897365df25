//! RoiAlign: regions of images, resampled to one size.

use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Float, Io, KernelError, par},
    grad::GradCx,
    loss::same_shape,
    onnx::{ImportCx, OnnxRule, rules},
};
use graph::{Attrs, DType, Dim, Shape, TensorType};

/// Images `[n, c, h, w]` over regions `[r, 4]` (x and y of two corners, times `scale`) of the images numbered `[r]` (i64):
/// `[r, c, height, width]`. Each element is the mean (or with `max` the largest term) of bilinear samples in its part of the region:
/// `samples` along each axis, or as many as the part has pixels if that is 0.
///
/// With `half_pixel` positions are of pixel centers; otherwise regions are at least 1 wide and high. The regions have no gradient.
pub struct RoiAlign;

/// The gradient of [`RoiAlign`] to the images, of shape `shape`. Inputs: images (for `max` only), regions, numbers, dy.
pub struct RoiAlignGrad;

impl OpDef for RoiAlign {
    fn name(&self) -> &'static str {
        "RoiAlign"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["RoiAlign" => import]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let x = s.input(0)?;
        let [_, channels, h, w] = &x.shape.0[..] else {
            return Err(OpError::invalid(format!("the images must have 4 axes, not {}", x.shape)));
        };
        if !x.dtype.is_float() || [h, w].iter().any(|d| d.as_const() == Some(0)) {
            return Err(OpError::invalid(format!("images {x} have no pixels of floats")));
        }
        let regions = regions(s, x.dtype)?;
        let [height, width] = bins(s.attrs)?;
        let shape = Shape(vec![regions, channels.clone(), height.into(), width.into()]);
        if let Some(dims) = shape.fixed() {
            crate::movement::count(&dims, x.dtype)?;
        }
        Ok(vec![TensorType { dtype: x.dtype, shape }])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        if g.needs(0) {
            let max = g.attrs().int_or("max", 0)? != 0;
            let attrs = g.attrs().clone().with("shape", crate::builder::shape_attr(&g.ty(0)?.shape)?);
            let dy = g.cotangent0()?;
            let inputs = [g.opt_input(0).filter(|_| max), g.opt_input(1), g.opt_input(2), Some(dy)];
            let dx = g.b.emit("RoiAlignGrad", attrs, &inputs)?;
            g.set(0, dx[0]);
        }
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let samples = s.attrs.int_or("samples", 0).unwrap_or(0).clamp(2, 64) as u64;
        let n = s.outputs.first().and_then(|t| t.shape.elements()).unwrap_or(0);
        Work { flops: n.saturating_mul(8 * samples * samples), bytes: s.io_bytes(), product: false }
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { can_fail: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let plan = Plan::new(s, &s.dims(0)?, s.dims(1)?[0])?;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io| forward::<T>(&plan, io))))
    }

    fn cases(&self) -> Vec<Case> {
        cases()
            .into_iter()
            .map(|(name, attrs)| inputs(Case::new(name, attrs, &[&[2, 3, 6, 5], &[4, 4]]), 1))
            .collect()
    }
}

/// Cases of both operators; regions in pixels.
fn cases() -> Vec<(&'static str, Attrs)> {
    let attrs = |samples: i64, half: bool, max: bool| {
        Attrs::new()
            .with("height", 2i64)
            .with("width", 3i64)
            .with("samples", samples)
            .with("scale", 0.5)
            .with("half_pixel", half)
            .with("max", max)
    };
    vec![
        ("samples given", attrs(2, true, false)),
        ("as many as pixels", attrs(0, false, false)),
        ("largest", attrs(2, false, true)),
    ]
}

/// The case with regions at input `i`, partly outside of the images, and numbers after it.
fn inputs(case: Case, i: usize) -> Case {
    let corners = [[0.4, 1.2, 7.9, 9.7], [2.3, 0.6, 5.2, 3.4], [-3.1, 4.4, 9.3, 14.8], [5.7, 5.1, 6.6, 5.9]];
    let regions = CaseInput::float(&[4, 4], Fill::Values(corners.concat())).fixed();
    let numbers =
        CaseInput { fill: Fill::Values(vec![1.0, 0.0, 1.0, 1.0]), ..CaseInput::ints(DType::I64, &[4], 0, 1) };
    case.input(i, regions).input(i + 1, numbers)
}

/// The number of regions; refuses types that do not fit.
fn regions(s: &Signature<'_>, dtype: DType) -> Result<Dim, OpError> {
    let (regions, numbers) = (s.input(1)?, s.input(2)?);
    let [count, _] = &regions.shape.0[..] else {
        return Err(OpError::invalid(format!("the regions must have 2 axes, not {}", regions.shape)));
    };
    if regions.dtype != dtype || numbers.dtype != DType::I64 {
        return Err(OpError::invalid(format!("regions are {regions} and numbers {numbers}, images {dtype}")));
    }
    same_shape(&Shape(vec![count.clone(), Dim::constant(4)]), &regions.shape, "the regions")?;
    same_shape(&Shape(vec![count.clone()]), &numbers.shape, "the numbers of the images")?;
    Ok(count.clone())
}

fn bins(attrs: &Attrs) -> Result<[usize; 2], OpError> {
    let of = |name| match attrs.int(name)? {
        n @ 1..=65536 => Ok(n as usize),
        n => Err(OpError::invalid(format!("{name} must be between 1 and 65536, not {n}"))),
    };
    Ok([of("height")?, of("width")?])
}

fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let half = match cx.attrs.str_or("coordinate_transformation_mode", "")? {
        "" => cx.opset >= 16,
        "half_pixel" => true,
        "output_half_pixel" => false,
        other => {
            return Err(OpError::invalid(format!("coordinate_transformation_mode {other:?} is unknown")));
        }
    };
    let max = match cx.attrs.str_or("mode", "avg")? {
        "avg" => false,
        "max" => true,
        other => return Err(OpError::invalid(format!("mode must be avg or max, not {other:?}"))),
    };
    let attrs = Attrs::new()
        .with("height", cx.attrs.int_or("output_height", 1)?)
        .with("width", cx.attrs.int_or("output_width", 1)?)
        .with("samples", cx.attrs.int_or("sampling_ratio", 0)?)
        .with("scale", cx.attrs.float_or("spatial_scale", 1.0)?)
        .with("half_pixel", half)
        .with("max", max);
    cx.same("RoiAlign", attrs)
}

/// Fixed sizes and choices.
pub(super) struct Plan {
    pub(super) images: [usize; 4],
    pub(super) regions: usize,
    pub(super) bins: [usize; 2],
    pub(super) samples: usize,
    pub(super) scale: f64,
    pub(super) half_pixel: bool,
    pub(super) max: bool,
}

/// Four pixels of a plane and their weights.
type Sample<T> = [(usize, T); 4];

impl Plan {
    pub(super) fn new(s: &Signature<'_>, images: &[usize], regions: usize) -> Result<Plan, OpError> {
        let images: [usize; 4] = images.try_into().map_err(|_| OpError::invalid("images have 4 axes"))?;
        let samples = s.attrs.int_or("samples", 0)?;
        let samples = usize::try_from(samples).ok().filter(|n| *n <= 1 << 10);
        Ok(Plan {
            images,
            regions,
            bins: bins(s.attrs)?,
            samples: samples.ok_or_else(|| OpError::invalid("samples must be between 0 and 1024"))?,
            scale: s.attrs.float_or("scale", 1.0)?,
            half_pixel: s.attrs.int_or("half_pixel", 0)? != 0,
            max: s.attrs.int_or("max", 0)? != 0,
        })
    }

    fn plane(&self) -> usize {
        self.images[2] * self.images[3]
    }

    fn check(&self, numbers: &[i64]) -> Result<(), KernelError> {
        let wrong = numbers.iter().enumerate().find(|(_, n)| **n < 0 || **n >= self.images[0] as i64);
        wrong.map_or(Ok(()), |(r, n)| {
            Err(KernelError(format!("region {r} is of image {n}, but there are {}", self.images[0])))
        })
    }

    /// Calls `f(bin, number of samples of the bin, sample)` for every sample of a region that touches the image.
    fn visit<T: Float>(&self, region: &[T], mut f: impl FnMut(usize, usize, Sample<T>)) {
        let offset = if self.half_pixel { 0.5 } else { 0.0 };
        let at = |k: usize| region[k].to_f64() * self.scale - offset;
        let least = if self.half_pixel { f64::NEG_INFINITY } else { 1.0 };
        let (left, top) = (at(0), at(1));
        let (width, height) = ((at(2) - left).max(least), (at(3) - top).max(least));
        let [rows, cols] = self.bins;
        let (bin_h, bin_w) = (height / rows as f64, width / cols as f64);
        // At most as many as would be reasonable for any image that fits into memory.
        let count =
            |bin: f64| if self.samples > 0 { self.samples } else { bin.ceil().clamp(0.0, 4096.0) as usize };
        let (down, across) = (count(bin_h), count(bin_w));
        for bin in 0..rows * cols {
            let (row, col) = ((bin / cols) as f64, (bin % cols) as f64);
            for i in 0..down {
                let y = top + row * bin_h + (i as f64 + 0.5) * bin_h / down as f64;
                for j in 0..across {
                    let x = left + col * bin_w + (j as f64 + 0.5) * bin_w / across as f64;
                    if let Some(sample) = self.sample(y, x) {
                        f(bin, down * across, sample);
                    }
                }
            }
        }
    }

    /// The pixels around a point; `None` outside of the image.
    fn sample<T: Float>(&self, y: f64, x: f64) -> Option<Sample<T>> {
        let [_, _, h, w] = self.images;
        let inside = (-1.0..=h as f64).contains(&y) && (-1.0..=w as f64).contains(&x);
        if !inside {
            return None;
        }
        let along = |v: f64, n: usize| {
            let v = v.clamp(0.0, (n - 1) as f64);
            let low = v as usize;
            (low, (low + 1).min(n - 1), v - low as f64)
        };
        let ((y0, y1, b), (x0, x1, a)) = (along(y, h), along(x, w));
        let t = T::from_f64;
        Some([
            (y0 * w + x0, t((1.0 - b) * (1.0 - a))),
            (y0 * w + x1, t((1.0 - b) * a)),
            (y1 * w + x0, t(b * (1.0 - a))),
            (y1 * w + x1, t(b * a)),
        ])
    }
}

/// The largest weighted pixel of a sample: where, its weight, the product.
fn largest<T: Float>(x: &[T], sample: Sample<T>) -> (usize, T, T) {
    let mut best = (sample[0].0, sample[0].1, x[sample[0].0] * sample[0].1);
    for (at, weight) in sample {
        if x[at] * weight > best.2 {
            best = (at, weight, x[at] * weight);
        }
    }
    best
}

fn forward<T: Float>(p: &Plan, io: &Io<'_>) -> Result<(), KernelError> {
    let (x, regions, numbers) = (io.input::<T>(0), io.input::<T>(1), io.input::<i64>(2));
    p.check(numbers)?;
    let (channels, plane, bins) = (p.images[1], p.plane(), p.bins[0] * p.bins[1]);
    par::rows(io.output::<T>(0), channels * bins, |r, y| {
        y.fill(if p.max { T::NEG_INFINITY } else { T::ZERO });
        let image = &x[numbers[r] as usize * channels * plane..][..channels * plane];
        p.visit(&regions[4 * r..4 * r + 4], |bin, count, sample| {
            for (c, x) in image.chunks_exact(plane).enumerate() {
                let y = &mut y[c * bins + bin];
                if p.max {
                    let v = largest(x, sample).2;
                    *y = if v > *y { v } else { *y };
                } else {
                    let v = sample.iter().fold(T::ZERO, |s, (at, weight)| s + *weight * x[*at]);
                    *y += v / T::from_f64(count as f64);
                }
            }
        });
        if p.max {
            // Bins without a sample.
            y.iter_mut().filter(|v| **v == T::NEG_INFINITY).for_each(|v| *v = T::ZERO);
        }
    });
    Ok(())
}

impl OpDef for RoiAlignGrad {
    fn name(&self) -> &'static str {
        "RoiAlignGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let dy = s.input(3)?;
        let shape = crate::movement::extents_attr(s, "shape")?;
        let [_, channels, h, w] = shape[..] else {
            return Err(OpError::invalid(format!("shape {shape:?} is not of images")));
        };
        crate::movement::count(&shape, dy.dtype)?;
        let regions = regions(s, dy.dtype)?;
        let [height, width] = bins(s.attrs)?;
        let want = Shape(vec![regions, channels.into(), height.into(), width.into()]);
        same_shape(&want, &dy.shape, "the cotangent")?;
        if !dy.dtype.is_float() || h * w == 0 {
            return Err(OpError::invalid(format!("images {shape:?} have no pixels of floats")));
        }
        let x = TensorType::new(dy.dtype, &shape[..]);
        match s.opt_input(0) {
            Some(t) if *t != x => return Err(OpError::invalid(format!("the images are {t}, not {x}"))),
            None if s.attrs.int_or("max", 0)? != 0 => return Err(OpError::invalid("input 0 is missing")),
            _ => {}
        }
        Ok(vec![x])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let samples = s.attrs.int_or("samples", 0).unwrap_or(0).clamp(2, 64) as u64;
        let n = s.opt_input(3).and_then(|t| t.shape.elements()).unwrap_or(0);
        Work { flops: n.saturating_mul(30 * samples * samples), bytes: s.io_bytes(), product: false }
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { can_fail: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let plan = Plan::new(s, &s.out_dims(0)?, s.dims(1)?[0])?;
        crate::for_float!(s.input(3)?.dtype, self.name(), T => Ok(Box::new(move |io| backward::<T>(&plan, io))))
    }

    fn cases(&self) -> Vec<Case> {
        let of = |(name, attrs): (_, Attrs)| {
            let attrs = attrs.with("shape", &[2i64, 3, 6, 5][..]);
            inputs(Case::new(name, attrs, &[&[2, 3, 6, 5], &[4, 4], &[4], &[4, 3, 2, 3]]), 1)
        };
        cases().into_iter().map(of).collect()
    }
}

/// Every plane of the images by itself, its regions in order.
fn backward<T: Float>(p: &Plan, io: &Io<'_>) -> Result<(), KernelError> {
    let (regions, numbers, dy) = (io.input::<T>(1), io.input::<i64>(2), io.input::<T>(3));
    let x: &[T] = if p.max { io.input::<T>(0) } else { &[] };
    p.check(numbers)?;
    let (channels, plane, bins) = (p.images[1], p.plane(), p.bins[0] * p.bins[1]);
    par::rows(io.output::<T>(0), plane, |row, dx| {
        dx.fill(T::ZERO);
        let (image, channel) = (row / channels, row % channels);
        for r in (0..p.regions).filter(|r| numbers[*r] == image as i64) {
            let dy = &dy[(r * channels + channel) * bins..][..bins];
            let region = &regions[4 * r..4 * r + 4];
            if !p.max {
                p.visit(region, |bin, count, sample| {
                    let d = dy[bin] / T::from_f64(count as f64);
                    sample.iter().for_each(|(at, weight)| dx[*at] += d * *weight);
                });
                continue;
            }
            let x = &x[row * plane..(row + 1) * plane];
            // Samples of a bin come one after the other.
            let mut best: Option<(usize, (usize, T, T))> = None;
            let mut settle = |best: Option<(usize, (usize, T, T))>| {
                if let Some((bin, (at, weight, _))) = best {
                    dx[at] += dy[bin] * weight;
                }
            };
            p.visit(region, |bin, _, sample| {
                let new = largest(x, sample);
                match best {
                    Some((b, old)) if b == bin => {
                        if new.2 > old.2 {
                            best = Some((bin, new));
                        }
                    }
                    old => {
                        settle(old);
                        best = Some((bin, new));
                    }
                }
            });
            settle(best);
        }
    });
    Ok(())
}
