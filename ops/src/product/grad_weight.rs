//! The gradient of convolution weights: products over all output points, in a fixed order.

use super::{
    conv::{weights_type, work},
    depthwise::Depthwise,
    gemm::{Mat, multiply},
    matmul::same_dim,
    panel::Product,
    window::{Slide, Window, spatial, three},
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::Case,
    cpu::{
        CpuKernel,
        par::{self, Shared},
    },
};
use graph::{Attrs, TensorType};
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// dw[f, c, k..] = sum over images and points of dy[f, point]·x[c, the input of that point under kernel position k]. Inputs x and dy;
/// attributes of the convolution, and `kernel`.
pub struct ConvGradWeight;

impl OpDef for ConvGradWeight {
    fn name(&self) -> &'static str {
        "ConvGradWeight"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (x, dy) = (s.input(0)?, s.input(1)?);
        let (window, group) = arguments(s)?;
        if x.dtype != dy.dtype || !x.dtype.is_float() || x.shape.rank() != dy.shape.rank() {
            return Err(OpError::invalid(format!("input {x} and cotangent {dy} do not fit")));
        }
        same_dim(&x.shape.0[0], &dy.shape.0[0], "numbers of images")?;
        let (large, small) = (spatial(&x.shape)?, spatial(&dy.shape)?);
        if large.len() != window.rank() {
            return Err(OpError::invalid(format!("the kernel does not fit the axes of {}", x.shape)));
        }
        for (i, (l, s)) in large.iter().zip(small).enumerate() {
            // A transposed convolution with output padding has room for more windows than were used.
            let most = window.count(i, l, false)?;
            if let (Some(most), Some(n)) = (most.as_const(), s.as_const())
                && n > most
            {
                return Err(OpError::invalid(format!(
                    "spatial axis {i} has {n} windows, but room for {most}"
                )));
            }
        }
        Ok(vec![weights_type(x.dtype, &dy.shape.0[1], &x.shape.0[1], group, &window.kernel)?])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, 0, s.opt_input(1))
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let size = s.inputs.first().copied().flatten().map_or(4, |t| t.dtype.size());
        match plan(s) {
            Ok(Plan::General(p)) => Facts::with_workspace(p.workspace() as u64 * size),
            _ => Facts::default(),
        }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_float!(s.input(0)?.dtype, self.name(), T => kernel::<T>(s))
    }

    fn cases(&self) -> Vec<Case> {
        let a = |kernel: &[i64], strides: &[i64], pads: &[i64], group: i64| {
            Attrs::new()
                .with("kernel", kernel)
                .with("strides", strides)
                .with("pads", pads)
                .with("group", group)
        };
        vec![
            Case::new(
                "pointwise",
                Attrs::new().with("kernel", &[1i64, 1][..]),
                &[&[2, 3, 2, 2], &[2, 4, 2, 2]],
            ),
            Case::new("strided", a(&[3, 3], &[2, 2], &[1, 1, 1, 1], 1), &[&[2, 2, 5, 6], &[2, 3, 3, 3]]),
            Case::new("groups", a(&[2], &[1], &[1, 0], 2), &[&[2, 4, 5], &[2, 2, 5]]),
            Case::new("depthwise", a(&[3], &[2], &[1, 1], 3), &[&[2, 3, 6], &[2, 3, 3]]),
        ]
    }
}

fn arguments(s: &Signature<'_>) -> Result<(Window, i64), OpError> {
    let group = s.attrs.int_or("group", 1)?;
    if !(1..=1 << 24).contains(&group) {
        return Err(OpError::invalid(format!("group must be positive, not {group}")));
    }
    Ok((Window::new(s.attrs, s.attrs.ints("kernel")?)?, group))
}

/// Most tasks at once.
const SLOTS: usize = 8;
/// Points of one product.
const POINTS: usize = 512;
/// Elements of gathered rows a task holds.
const SCRATCH: usize = 1 << 16;
/// Most elements of partial sums.
const PARTIAL: usize = 1 << 19;

/// A weight gradient as products: for each group and block of columns (channel, tap), over all images and points.
struct Weights {
    images: usize,
    groups: usize,
    /// Features and channels of a group.
    features: usize,
    channels: usize,
    large: [usize; 3],
    small: [usize; 3],
    kernel: [usize; 3],
    stride: [usize; 3],
    dilation: [usize; 3],
    begin: [usize; 3],
    /// Columns of a block, points of a chunk.
    columns: usize,
    points: usize,
    /// Parts into which the chunks of all images are cut; each part but the first has a buffer of partial sums.
    parts: usize,
    slots: usize,
}

enum Plan {
    General(Weights),
    Depthwise(Depthwise),
}

fn plan(s: &Signature<'_>) -> Result<Plan, OpError> {
    let (window, group) = arguments(s)?;
    let group = group as usize;
    let (x, dy) = (s.dims(0)?, s.dims(1)?);
    if x[1] == group && dy[1] == group {
        return Ok(Plan::Depthwise(Depthwise::new(Slide::new(&window, &x[2..], &dy[2..]), x[0], group)));
    }
    let size = |v: &[i64], fill| three(v, fill).map(|x| x as usize);
    let kernel = size(&window.kernel, 1);
    let (features, channels) = (dy[1] / group, x[1] / group);
    let small = three(&dy[2..], 1);
    let sizes = [group, features, channels, kernel[0], kernel[1], kernel[2], 64];
    let all = sizes.iter().try_fold(1usize, |n, s| n.checked_mul(*s)).filter(|n| *n <= isize::MAX as usize);
    let all = all.ok_or_else(|| OpError::invalid("the weights are too large"))? / 64;
    let depth = channels * kernel.iter().product::<usize>();
    let points = small.iter().product::<usize>().clamp(1, POINTS);
    let columns = (SCRATCH / points).clamp(16, 4096).min(depth.max(1));
    let chunks = x[0] * small.iter().product::<usize>().div_ceil(points);
    let blocks = group * depth.div_ceil(columns.max(1));
    // Few blocks of few weights: the points are cut as well, each part with sums of its own.
    let parts = (SLOTS / blocks.max(1)).min(chunks).min(PARTIAL / all.max(1) + 1).max(1);
    Ok(Plan::General(Weights {
        images: x[0],
        groups: group,
        features,
        channels,
        large: three(&x[2..], 1),
        small,
        kernel,
        stride: size(&window.strides, 1),
        dilation: size(&window.dilations, 1),
        begin: size(&window.begin, 0),
        columns,
        points,
        parts,
        slots: (blocks * parts).clamp(1, SLOTS),
    }))
}

fn kernel<T: Product>(s: &Signature<'_>) -> Result<CpuKernel, OpError> {
    match plan(s)? {
        Plan::General(p) => Ok(Box::new(move |io| {
            p.run(io.input::<T>(0), io.input::<T>(1), io.output::<T>(0), io.workspace::<T>());
            Ok(())
        })),
        Plan::Depthwise(d) => Ok(Box::new(move |io| {
            d.weights(io.input::<T>(0), io.input::<T>(1), io.output::<T>(0));
            Ok(())
        })),
    }
}

impl Weights {
    fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Columns of the product: channels times taps.
    fn depth(&self) -> usize {
        self.channels * self.taps()
    }

    fn elements(&self) -> usize {
        self.groups * self.features * self.depth()
    }

    /// Whether the rows of x are the columns of the product as they lie.
    fn pointwise(&self) -> bool {
        self.kernel == [1; 3] && self.stride == [1; 3] && self.begin == [0; 3] && self.large == self.small
    }

    fn slot_scratch(&self) -> usize {
        if self.pointwise() { 0 } else { self.columns * self.points }
    }

    fn workspace(&self) -> usize {
        (self.parts - 1) * self.elements() + self.slots * self.slot_scratch()
    }

    fn run<T: Product>(&self, x: &[T], dy: &[T], dw: &mut [T], workspace: &mut [T]) {
        let all = self.elements();
        let plane: usize = self.small.iter().product();
        if self.images == 0 || plane == 0 || all == 0 {
            dw.fill(T::ZERO);
            return;
        }
        let (partial, scratch) = workspace.split_at_mut((self.parts - 1) * all);
        let blocks = self.depth().div_ceil(self.columns);
        let tasks = self.groups * blocks * self.parts;
        let (first, rest) = (Shared(dw.as_mut_ptr()), Shared(partial.as_mut_ptr()));
        let scratch = Shared(scratch.as_mut_ptr());
        let next = AtomicUsize::new(0);
        let slot = |i: usize| {
            let (first, rest, scratch) = (&first, &rest, &scratch);
            let room = self.slot_scratch();
            // SAFETY: slots have disjoint scratch inside the workspace.
            let gathered = unsafe { scratch.slice(i * room..(i + 1) * room) };
            loop {
                let t = next.fetch_add(1, Ordering::Relaxed);
                if t >= tasks {
                    break;
                }
                let (part, t) = (t % self.parts, t / self.parts);
                let out = if part == 0 { *first } else { Shared(rest.0.wrapping_add((part - 1) * all)) };
                self.block(x, dy, out, gathered, (t / blocks, t % blocks * self.columns, part));
            }
        };
        if self.slots == 1 {
            slot(0);
        } else {
            (0..self.slots).into_par_iter().with_max_len(1).for_each(slot);
        }
        if self.parts > 1 {
            let partial = &*partial;
            par::ranges(all, par::GRAIN, |range| {
                let first = &first;
                // SAFETY: ranges are disjoint; the tasks are done.
                let dw = unsafe { first.slice(range.clone()) };
                for part in partial.chunks_exact(all) {
                    dw.iter_mut().zip(&part[range.clone()]).for_each(|(d, p)| *d += *p);
                }
            });
        }
    }

    /// One part of the sums of one block of columns, images and chunks of points in order.
    fn block<T: Product>(
        &self,
        x: &[T],
        dy: &[T],
        out: Shared<T>,
        gathered: &mut [T],
        (group, column, part): (usize, usize, usize),
    ) {
        let (depth, taps) = (self.depth(), self.taps());
        let (large, small): (usize, usize) = (self.large.iter().product(), self.small.iter().product());
        let columns = self.columns.min(depth - column);
        let per_image = small.div_ceil(self.points);
        let chunks = self.images * per_image;
        let range = part * chunks / self.parts..(part + 1) * chunks / self.parts;
        let c = Mat::rows(out.0, depth).at(group * self.features, column);
        for (i, chunk) in range.enumerate() {
            let (image, p) = (chunk / per_image, chunk % per_image * self.points);
            let n = self.points.min(small - p);
            let plane = image * self.groups + group;
            let x = &x[plane * self.channels * large..][..self.channels * large];
            let a = Mat::rows(dy[plane * self.features * small + p..].as_ptr().cast_mut(), small);
            let b = if self.pointwise() {
                Mat::cols(x[column * large + p..].as_ptr().cast_mut(), large)
            } else {
                pulp::Arch::new().dispatch(|| {
                    for (j, row) in gathered.chunks_exact_mut(self.points).take(columns).enumerate() {
                        let (channel, tap) = ((column + j) / taps, (column + j) % taps);
                        self.gather(&x[channel * large..][..large], tap, p, &mut row[..n]);
                    }
                });
                Mat::cols(gathered.as_mut_ptr(), self.points)
            };
            let beta = if i == 0 { T::ZERO } else { T::ONE };
            // SAFETY: A are rows of dy, B gathered or rows of x, C this task's columns of the weights.
            unsafe { multiply([self.features, columns, n], T::ONE, a, b, beta, c) };
        }
    }

    /// What `tap` reads of one channel at the output points from `p` on.
    #[inline(always)]
    fn gather<T: Product>(&self, x: &[T], tap: usize, p: usize, out: &mut [T]) {
        let [_, kh, kw] = self.kernel;
        let [_, sh, sw] = self.small;
        let k = [tap / (kh * kw), tap / kw % kh, tap % kw];
        let mut done = 0;
        while done < out.len() {
            let q = p + done;
            let (d, h, w) = (q / (sh * sw), q / sw % sh, q % sw);
            let n = (sw - w).min(out.len() - done);
            let out = &mut out[done..][..n];
            done += n;
            let at = |a: usize, i: usize| {
                (i * self.stride[a] + k[a] * self.dilation[a]).checked_sub(self.begin[a])
            };
            let (z, y) = (at(0, d).filter(|z| *z < self.large[0]), at(1, h).filter(|y| *y < self.large[1]));
            let (Some(z), Some(y)) = (z, y) else {
                out.fill(T::ZERO);
                continue;
            };
            let row = &x[(z * self.large[1] + y) * self.large[2]..][..self.large[2]];
            // Columns lo..hi read inside the row; column w reads w·s + shift - begin.
            let (s, shift) = (self.stride[2], k[2] * self.dilation[2]);
            let lo = self.begin[2].saturating_sub(shift).div_ceil(s).clamp(w, w + n);
            let hi = (self.large[2] + self.begin[2]).saturating_sub(shift).div_ceil(s).clamp(lo, w + n);
            out[..lo - w].fill(T::ZERO);
            out[hi - w..].fill(T::ZERO);
            if hi > lo {
                let from = &row[lo * s + shift - self.begin[2]..];
                let to = &mut out[lo - w..hi - w];
                match s {
                    1 => to.copy_from_slice(&from[..hi - lo]),
                    2 => to.iter_mut().zip(from.iter().step_by(2)).for_each(|(t, f)| *t = *f),
                    _ => to.iter_mut().zip(from.iter().step_by(s)).for_each(|(t, f)| *t = *f),
                }
            }
        }
    }
}
