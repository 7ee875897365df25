//! The gradient of convolution weights: products over all output points, in a fixed order.

use super::{
    conv::{weights_type, work, work_size},
    depthwise::Depthwise,
    matmul::same_dim,
    panel::{Product, REACH, ROWS, block, transpose, width},
    window::{Slide, Window, spatial, three},
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::Case,
    cpu::{
        CpuKernel, Float,
        half::{Stored, is_half},
        par::{self, Shared},
    },
    export::Export,
};
use graph::{Attrs, TensorType};
use pulp::{Simd, WithSimd};
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
        match plan(s) {
            Ok(Plan::General(p)) => Facts::with_workspace((p.workspace() * work_size(s)) as u64),
            _ => Facts::default(),
        }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_stored!(s.input(0)?.dtype, self.name(), T => kernel::<T>(s))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        // A convolution of x over images with dy as its kernel: strides and dilations change places, and so do images and channels.
        let (window, group) = arguments(x.sig)?;
        let g = group as usize;
        let (xd, yd) = (x.dims(0)?, x.dims(1)?);
        let (images, rank) = (xd[0], xd.len());
        let (cg, fg) = (xd[1] / g, yd[1] / g);
        let axes: Vec<usize> = (2..rank).collect();
        let cut = |d: &[usize], per: usize| [&[images, g, per], &d[2..]].concat();
        let joined = |a: usize, b: usize, d: &[usize]| [&[a, b], &d[2..]].concat();
        let moved =
            |first: [usize; 3]| [&first[..], &axes.iter().map(|a| a + 1).collect::<Vec<_>>()].concat();
        let large = x.input(0)?.reshape(&cut(&xd, cg)).transpose(&moved([2, 1, 0])).reshape(&joined(
            cg,
            g * images,
            &xd,
        ));
        let small = x.input(1)?.reshape(&cut(&yd, fg)).transpose(&moved([1, 2, 0])).reshape(&joined(
            g * fg,
            images,
            &yd,
        ));
        let turned = Window {
            kernel: yd[2..].iter().map(|d| *d as i64).collect(),
            strides: window.dilations.clone(),
            dilations: window.strides.clone(),
            begin: window.begin.clone(),
            end: window.end.clone(),
        };
        let mut dw = x.call("Conv", &[large, small], turned.exported().with("group", group));
        let ends = x.ints(&window.kernel);
        let cuts: Vec<i64> = axes.iter().map(|a| *a as i64).collect();
        dw = x.call("Slice", &[dw, x.ints(&vec![0; rank - 2]), ends, x.ints(&cuts)], Attrs::new());
        x.set(0, dw.transpose(&[&[1, 0], &axes[..]].concat()));
        Ok(())
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

pub(super) fn arguments(s: &Signature<'_>) -> Result<(Window, i64), OpError> {
    let group = s.attrs.int_or("group", 1)?;
    if !(1..=1 << 24).contains(&group) {
        return Err(OpError::invalid(format!("group must be positive, not {group}")));
    }
    Ok((Window::new(s.attrs, s.attrs.ints("kernel")?)?, group))
}

/// Fewest and most tasks at once; between them as many as [`SCRATCH`] allows.
const SLOTS: (usize, usize) = (4, 8);
/// Elements of scratch that all slots together aim at.
const SCRATCH: usize = 1 << 20;
/// Elements of a block of sums.
const SUMS: usize = 1 << 17;
/// Most columns of a block.
const COLUMNS: usize = 384;
/// Most elements of partial sums.
const PARTIAL: usize = 1 << 19;

/// A weight gradient as products: for each group and block of columns (channel, tap), over the points of all images in chunks of
/// [`REACH`]. The sums are kept transposed, [columns, features], so that features lie in vectors: a chunk of dy is transposed once and
/// used by all columns, whose rows are gathered as they lie.
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
    /// Columns of a block.
    columns: usize,
    /// Parts into which the chunks are cut.
    parts: usize,
    /// Parts whose sums lie in the output; the others have a buffer of partial sums each.
    direct: usize,
    slots: usize,
    width: usize,
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
    let width = 128 / work_size(s);
    let depth = channels * kernel.iter().product::<usize>();
    let wide = features.next_multiple_of(width).max(width);
    let columns = (SUMS / wide).clamp(48, COLUMNS) / ROWS * ROWS;
    let columns = columns.min(depth.max(1));
    let chunks = (x[0] * small.iter().product::<usize>()).div_ceil(REACH);
    let blocks = group * depth.div_ceil(columns);
    // Few blocks of few weights: the points are cut as well, each part with sums of its own.
    let parts = SLOTS.1.div_ceil(blocks.max(1)).min(chunks).min(PARTIAL / all.max(1) + 1).max(1);
    let scratch = columns.next_multiple_of(4) * (REACH + wide) + REACH * wide;
    let slots = (SCRATCH / scratch).clamp(SLOTS.0, SLOTS.1).min(blocks * parts).max(1);
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
        parts,
        // Sums of 16-bit floats are rounded when they are complete.
        direct: usize::from(!is_half(s.input(0)?.dtype)),
        slots,
        width,
    }))
}

fn kernel<S: Stored<Work: Product>>(s: &Signature<'_>) -> Result<CpuKernel, OpError> {
    match plan(s)? {
        Plan::General(p) => Ok(Box::new(move |io| {
            p.run(io.input::<S>(0), io.input::<S>(1), io.output::<S>(0), io.workspace::<S::Work>());
            Ok(())
        })),
        Plan::Depthwise(_) if !S::DIRECT => Err(OpError::unsupported("depthwise convolution of halves")),
        Plan::Depthwise(d) => Ok(Box::new(move |io| {
            d.weights(io.input::<S::Work>(0), io.input::<S::Work>(1), io.output::<S::Work>(0));
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

    /// Features as they are stored in sums.
    fn wide(&self) -> usize {
        self.features.next_multiple_of(self.width)
    }

    fn slot_scratch(&self) -> usize {
        self.columns.next_multiple_of(4) * (REACH + self.wide()) + REACH * self.wide()
    }

    fn workspace(&self) -> usize {
        (self.parts - self.direct) * self.elements() + self.slots * self.slot_scratch()
    }

    fn run<S: Stored<Work: Product>>(&self, x: &[S], dy: &[S], dw: &mut [S], workspace: &mut [S::Work]) {
        let all = self.elements();
        let plane: usize = self.small.iter().product();
        if self.images == 0 || plane == 0 || all == 0 {
            dw.fill(S::store(S::Work::ZERO));
            return;
        }
        let (partial, scratch) = workspace.split_at_mut((self.parts - self.direct) * all);
        let blocks = self.depth().div_ceil(self.columns);
        let tasks = self.groups * blocks * self.parts;
        let (first, rest) = (Shared(dw.as_mut_ptr().cast::<S::Work>()), Shared(partial.as_mut_ptr()));
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
                let out = match part.checked_sub(self.direct) {
                    None => *first,
                    Some(buffer) => Shared(rest.0.wrapping_add(buffer * all)),
                };
                let block = Block {
                    of: self,
                    x,
                    dy,
                    out,
                    scratch: gathered,
                    group: t / blocks,
                    column: t % blocks * self.columns,
                    part,
                };
                pulp::Arch::new().dispatch(block);
            }
        };
        if self.slots == 1 {
            slot(0);
        } else {
            (0..self.slots).into_par_iter().with_max_len(1).for_each(slot);
        }
        let partial = &*partial;
        let dw = Shared(dw.as_mut_ptr());
        if self.parts > self.direct {
            par::ranges(all, par::GRAIN, |range| {
                let (first, dw) = (&first, &dw);
                if S::DIRECT {
                    // SAFETY: ranges are disjoint; the tasks are done.
                    let dw = unsafe { first.slice(range.clone()) };
                    for part in partial.chunks_exact(all) {
                        dw.iter_mut().zip(&part[range.clone()]).for_each(|(d, p)| *d += *p);
                    }
                } else {
                    // SAFETY: as above.
                    let dw = unsafe { dw.slice(range.clone()) };
                    for (i, d) in range.zip(dw) {
                        let sum = |sum: S::Work, part: &[S::Work]| sum + part[i];
                        *d = S::store(partial[all..].chunks_exact(all).fold(partial[i], sum));
                    }
                }
            });
        }
    }

    /// What `tap` reads of a channel at the `n` output points from `p` on.
    fn plan(&self, tap: usize, p: usize, n: usize, runs: &mut Vec<Run>) {
        let [_, kh, kw] = self.kernel;
        let [_, sh, sw] = self.small;
        let k = [tap / (kh * kw), tap / kw % kh, tap % kw];
        runs.clear();
        let mut done = 0;
        while done < n {
            let q = p + done;
            let (d, h, w) = (q / (sh * sw), q / sw % sh, q % sw);
            let len = (sw - w).min(n - done);
            let at = |a: usize, i: usize| {
                (i * self.stride[a] + k[a] * self.dilation[a]).wrapping_sub(self.begin[a])
            };
            let (z, y) = (at(0, d), at(1, h));
            // Columns lo..hi read inside the row; column w reads w·s + shift - begin.
            let (s, shift) = (self.stride[2], k[2] * self.dilation[2]);
            let (mut lo, mut hi) = (w + len, w + len);
            if z < self.large[0] && y < self.large[1] {
                lo = self.begin[2].saturating_sub(shift).div_ceil(s).clamp(w, w + len);
                hi = (self.large[2] + self.begin[2]).saturating_sub(shift).div_ceil(s).clamp(lo, w + len);
            }
            let from = if hi > lo {
                (z * self.large[1] + y) * self.large[2] + lo * s + shift - self.begin[2]
            } else {
                0
            };
            runs.push(Run { zeros: lo - w, len: hi - lo, from, after: w + len - hi });
            done += len;
        }
    }
}

/// Consecutive points: zeros, elements of the channel from `from` on, zeros.
struct Run {
    zeros: usize,
    len: usize,
    from: usize,
    after: usize,
}

/// One row: the points of `runs` in one channel.
#[inline(always)]
fn gather<S: Stored>(runs: &[Run], x: &[S], step: usize, mut out: &mut [S::Work]) {
    for run in runs {
        let (now, later) = out.split_at_mut(run.zeros + run.len + run.after);
        out = later;
        let (zeros, now) = now.split_at_mut(run.zeros);
        let (now, after) = now.split_at_mut(run.len);
        zeros.iter_mut().for_each(|v| *v = S::Work::ZERO);
        after.iter_mut().for_each(|v| *v = S::Work::ZERO);
        let from = &x[run.from..];
        match step {
            // SAFETY: `from` has at least as many elements.
            1 if !S::DIRECT && from.len() >= now.len() => unsafe {
                S::widen(from.as_ptr(), now.as_mut_ptr(), now.len());
            },
            1 => now.iter_mut().zip(from).for_each(|(t, f)| *t = f.load()),
            2 => now.iter_mut().zip(from.iter().step_by(2)).for_each(|(t, f)| *t = f.load()),
            _ => now.iter_mut().zip(from.iter().step_by(step)).for_each(|(t, f)| *t = f.load()),
        }
    }
}

/// [`transpose`], of 16-bit floats after they are widened.
///
/// # Safety
///
/// As there; `n` is at most [`REACH`].
#[inline(always)]
unsafe fn turned<S: Stored>(rows: usize, n: usize, from: *const S, ld: usize, out: *mut S::Work) {
    // SAFETY: by this function's contract; a panel has at most 32 rows of [`REACH`] elements.
    unsafe {
        if S::DIRECT {
            return transpose(rows, n, from.cast::<S::Work>(), ld, out);
        }
        let mut wide = [S::Work::ZERO; 32 * REACH];
        for r in 0..rows {
            S::widen(from.add(r * ld), wide[r * REACH..].as_mut_ptr(), n);
        }
        transpose(rows, n, wide.as_ptr(), REACH, out);
    }
}

/// One part of the sums of one block of columns.
struct Block<'a, S: Stored> {
    of: &'a Weights,
    x: &'a [S],
    dy: &'a [S],
    out: Shared<S::Work>,
    scratch: &'a mut [S::Work],
    group: usize,
    column: usize,
    part: usize,
}

impl<S: Stored<Work: Product>> WithSimd for Block<'_, S> {
    type Output = ();

    #[inline(always)]
    fn with_simd<V: Simd>(self, simd: V) {
        let Block { of: w, x, dy, out, scratch, group, column, part } = self;
        let (depth, taps, wide, width) = (w.depth(), w.taps(), w.wide(), width::<S::Work>());
        let (large, small): (usize, usize) = (w.large.iter().product(), w.small.iter().product());
        let columns = w.columns.min(depth - column);
        let stored = columns.next_multiple_of(4);
        let (rows, rest) = scratch.split_at_mut(stored * REACH);
        let (sums, panels) = rest.split_at_mut(stored * wide);
        let mut runs = Vec::new();
        sums.fill(S::Work::ZERO);
        rows[columns * REACH..].fill(S::Work::ZERO);
        let points = w.images * small;
        let chunks = points.div_ceil(REACH);
        for chunk in part * chunks / w.parts..(part + 1) * chunks / w.parts {
            let first = chunk * REACH;
            let n = REACH.min(points - first);
            // The chunk image by image.
            let mut done = 0;
            while done < n {
                let (image, p) = ((first + done) / small, (first + done) % small);
                let len = (small - p).min(n - done);
                let plane = image * w.groups + group;
                for f in (0..w.features).step_by(width) {
                    let dy = dy[(plane * w.features + f) * small + p..].as_ptr();
                    let panel = panels[f * REACH + done * width..].as_mut_ptr();
                    // SAFETY: `len` points of rows of dy; the panel has `REACH` rows.
                    unsafe { turned(width.min(w.features - f), len, dy, small, panel) };
                }
                let x = &x[plane * w.channels * large..][..w.channels * large];
                // Columns of one tap read each channel in the same way.
                for tap in 0..taps {
                    let start = (tap + taps - column % taps) % taps;
                    if start < columns {
                        w.plan(tap, p, len, &mut runs);
                        for j in (start..columns).step_by(taps) {
                            let x = &x[(column + j) / taps * large..][..large];
                            gather(&runs, x, w.stride[2], &mut rows[j * REACH + done..][..len]);
                        }
                    }
                }
                done += len;
            }
            let mut j = 0;
            while j < columns {
                let r = block(j, columns);
                for f in (0..wide).step_by(width) {
                    let (row, panel) = (rows[j * REACH..].as_ptr(), panels[f * REACH..].as_ptr());
                    // SAFETY: `r` stored rows and `n` rows of the panel are filled; the sums have `wide` features a row.
                    unsafe {
                        S::Work::add_rows(simd, r, n, row, panel, sums[j * wide + f..].as_mut_ptr(), wide)
                    };
                }
                j += ROWS;
            }
        }
        for f in 0..w.features {
            let at = (group * w.features + f) * depth + column;
            // SAFETY: this task's columns of the weights or of a partial sum.
            let out = unsafe { out.slice(at..at + columns) };
            out.iter_mut().enumerate().for_each(|(j, o)| *o = sums[j * wide + f]);
        }
    }
}
