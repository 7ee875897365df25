//! The engine of Conv and ConvTranspose: a matrix product whose panels are gathered from the input on the fly.
//!
//! For each group, output row r (a channel) and grid point q of an image,
//! `out[r, q] = init[r] + sum over channels c and taps t of w[r, c, t] · in[c, step·q + offset(t)]`, where input outside of its extents is
//! 0. A convolution is one such *phase*; a transposed convolution of stride s is s phases an axis, each of stride 1 with the taps that
//! reach it, so that no multiplication by inserted zeros is done and nothing is scattered.
//!
//! The grid points of all images are cut into panels; tasks (phase, group, some panels) are drawn by a fixed number of slots, each with
//! scratch of its own, in any order: what a task computes depends on neither slot nor order. 16-bit floats are widened as they are gathered
//! and packed, and rounded as they are stored.

use super::{
    panel::{Product, ROWS, block, pack_block, padded, width},
    window::{Window, three},
};
use crate::cpu::{
    Float,
    half::Stored,
    par::{self, Shared},
};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most tasks that run at once.
const SLOTS: usize = 8;
/// Bytes of gathered panels a task aims at: they stay in the second-level cache.
const SCRATCH: usize = 1 << 18;
/// Marks entries that are padding.
const ZERO: isize = isize::MIN;

/// One kernel position: its index in the weights, and where it reads relative to step·q.
#[derive(Clone, Debug)]
struct Tap {
    index: usize,
    offset: [isize; 3],
}

/// Output points of equal remainder, and the taps that reach them.
#[derive(Clone, Debug)]
struct Phase {
    /// Extents of the grid of output points.
    grid: [usize; 3],
    /// Where the first point lies in an output plane.
    origin: usize,
    taps: Vec<Tap>,
    /// Where its packed weights start.
    weights: usize,
}

/// A prepared correlation.
#[derive(Clone, Debug)]
pub(crate) struct Correlate {
    images: usize,
    groups: usize,
    /// Output channels of a group.
    rows: usize,
    /// Input channels of a group.
    channels: usize,
    input: [usize; 3],
    step: [usize; 3],
    /// Elements of an output plane, and distances between grid points in it.
    out_plane: usize,
    out_strides: [usize; 3],
    /// Whether the grid points of an image follow each other in memory.
    dense: bool,
    /// Distances in the weights: groups, output channels, input channels.
    weight_strides: [usize; 3],
    phases: Vec<Phase>,
    /// Elements of all packed weights.
    packed: usize,
    /// Most panels of a task.
    panels: usize,
    /// Elements of one slot's scratch.
    scratch: usize,
    slots: usize,
    width: usize,
    /// Whether the input is the result of the forward convolution (then the weights' axes change roles).
    transposed: bool,
}

fn volume(d: [usize; 3]) -> usize {
    d.iter().product()
}

/// Whether a size fits comfortably into memory arithmetic.
fn checked(parts: &[usize]) -> Option<usize> {
    parts.iter().try_fold(1usize, |n, p| n.checked_mul(*p)).filter(|n| *n <= isize::MAX as usize / 64)
}

impl Correlate {
    /// A convolution: input [n, groups·c, in..], weights [groups·m, c, kernel..], output [n, groups·m, out..]; `transposed` swaps input
    /// and output. `large` are the extents on the input side of the forward convolution, `small` those on its output side; `channels`
    /// is (m, c). `None` if the sizes overflow.
    pub(crate) fn new(
        w: &Window,
        images: usize,
        groups: usize,
        (m, c): (usize, usize),
        (large, small): (&[usize], &[usize]),
        transposed: bool,
        element: usize,
    ) -> Option<Correlate> {
        let kernel = three(&w.kernel, 1).map(|k| k as usize);
        let stride = three(&w.strides, 1).map(|k| k as usize);
        let dilation = three(&w.dilations, 1).map(|k| k as isize);
        let begin = three(&w.begin, 0).map(|k| k as isize);
        let (large, small) = (three(large, 1), three(small, 1));
        checked(&[images, groups, m, small[0], small[1], small[2], element])?;
        checked(&[images, groups, c, large[0], large[1], large[2], element])?;
        checked(&[groups, m + 12, c + 12, kernel[0], kernel[1], kernel[2], element])?;
        let taps_all = volume(kernel);
        let (rows, channels) = if transposed { (c, m) } else { (m, c) };
        let (input, output) = if transposed { (small, large) } else { (large, small) };
        let position = |i: usize| {
            [i / (kernel[1] * kernel[2]), i / kernel[2] % kernel[1], i % kernel[2]].map(|x| x as isize)
        };
        let mut phases = Vec::new();
        let natural = [output[1] * output[2], output[2], 1];
        let remainders = if transposed { [0, 1, 2].map(|i| stride[i].min(output[i])) } else { [1, 1, 1] };
        for p in 0..volume(remainders) {
            let first =
                [p / (remainders[1] * remainders[2]), p / remainders[2] % remainders[1], p % remainders[2]];
            // Along each axis an output x = first + s·q reads input (x + begin - dilation·k) / s where that is whole.
            let tap = |i: usize| {
                let (k, mut offset) = (position(i), [0; 3]);
                for a in 0..3 {
                    let s = stride[a] as isize;
                    offset[a] = if transposed {
                        let x = first[a] as isize + begin[a] - dilation[a] * k[a];
                        if x.rem_euclid(s) != 0 {
                            return None;
                        }
                        x.div_euclid(s)
                    } else {
                        dilation[a] * k[a] - begin[a]
                    };
                }
                Some(Tap { index: i, offset })
            };
            let grid = if transposed {
                [0, 1, 2].map(|a| (output[a] - first[a]).div_ceil(stride[a]))
            } else {
                output
            };
            let origin = (0..3).map(|a| first[a] * natural[a]).sum();
            phases.push(Phase { grid, origin, taps: (0..taps_all).filter_map(tap).collect(), weights: 0 });
        }
        let mut packed = 0;
        for p in &mut phases {
            p.weights = packed;
            packed += groups * padded(rows) * channels * p.taps.len();
        }
        let width = 128 / element;
        let depth = phases.iter().map(|p| p.taps.len() * channels).max().unwrap_or(0);
        let all = images * volume(phases.first().map_or([0; 3], |p| p.grid));
        let share = all.div_ceil(width).div_ceil(2 * SLOTS).max(1);
        let panels = (SCRATCH / (depth.max(1) * 128)).clamp(1, 16).min(share);
        let tasks = phases.len() * groups * all.div_ceil(width).div_ceil(panels);
        Some(Correlate {
            images,
            groups,
            rows,
            channels,
            input,
            step: if transposed { [1; 3] } else { stride },
            out_plane: volume(output),
            out_strides: if transposed { [0, 1, 2].map(|a| natural[a] * stride[a]) } else { natural },
            dense: !transposed || stride == [1; 3],
            weight_strides: if transposed {
                [m * c * taps_all, taps_all, c * taps_all]
            } else {
                [m * c * taps_all, c * taps_all, taps_all]
            },
            phases,
            packed,
            panels,
            // Copies are rounded up to whole vectors: one row of room behind each panel.
            scratch: panels * (depth + 1) * width,
            slots: tasks.clamp(1, SLOTS),
            width,
            transposed,
        })
    }

    /// Elements of workspace.
    pub(crate) fn workspace(&self) -> usize {
        self.packed.next_multiple_of(self.width) + self.slots * self.scratch
    }

    /// Runs it.
    ///
    /// `y` must not overlap the other slices.
    pub(crate) fn run<S: Stored<Work: Product>>(
        &self,
        x: &[S],
        w: &[S],
        bias: Option<&[S]>,
        y: &mut [S],
        workspace: &mut [S::Work],
    ) {
        let (packed, scratch) = workspace.split_at_mut(self.packed.next_multiple_of(self.width));
        self.pack_weights(w, packed);
        if self.phases.iter().any(|p| p.taps.is_empty()) {
            // Points that no tap reaches hold the bias alone.
            par::rows(y, self.out_plane, |plane, y| {
                y.fill(bias.map_or(S::store(S::Work::ZERO), |b| b[plane % (self.groups * self.rows)]));
            });
        }
        let tasks: Vec<usize> = self.phases.iter().map(|p| self.tasks(p)).collect();
        let total: usize = tasks.iter().sum();
        let (y, scratch) = (Shared(y.as_mut_ptr()), Shared(scratch.as_mut_ptr()));
        let next = AtomicUsize::new(0);
        let packed = &*packed;
        let slot = |i: usize| {
            let (y, scratch) = (&y, &scratch);
            // SAFETY: slots have disjoint scratch inside the workspace.
            let scratch = unsafe { scratch.slice(i * self.scratch..(i + 1) * self.scratch) };
            let mut layout = Layout::default();
            loop {
                let mut t = next.fetch_add(1, Ordering::Relaxed);
                if t >= total {
                    break;
                }
                let mut phase = 0;
                while t >= tasks[phase] {
                    t -= tasks[phase];
                    phase += 1;
                }
                let phase = &self.phases[phase];
                let (group, first) = (t % self.groups, t / self.groups * self.panels);
                let task = Task {
                    c: self,
                    phase,
                    group,
                    first,
                    x,
                    packed,
                    bias,
                    y: *y,
                    scratch,
                    layout: &mut layout,
                };
                pulp::Arch::new().dispatch(task);
            }
        };
        if self.slots == 1 {
            slot(0);
        } else {
            (0..self.slots).into_par_iter().with_max_len(1).for_each(slot);
        }
    }

    fn points(&self, p: &Phase) -> usize {
        self.images * volume(p.grid)
    }

    fn tasks(&self, p: &Phase) -> usize {
        if p.taps.is_empty() {
            return 0;
        }
        self.groups * self.points(p).div_ceil(self.width).div_ceil(self.panels)
    }

    fn pack_weights<S: Stored>(&self, w: &[S], packed: &mut [S::Work]) {
        let [gs, rs, cs] = self.weight_strides;
        let out = Shared(packed.as_mut_ptr());
        for phase in &self.phases {
            let taps = phase.taps.len();
            let depth = self.channels * taps;
            if depth == 0 {
                continue;
            }
            let blocks = self.rows.div_ceil(ROWS);
            let grain = (par::GRAIN / (ROWS * depth)).max(1);
            par::ranges(self.groups * blocks, grain, |range| {
                let out = &out;
                for i in range {
                    let (g, row) = (i / blocks, i % blocks * ROWS);
                    let at = phase.weights + (g * padded(self.rows) + row) * depth;
                    // SAFETY: blocks are disjoint and inside the packed weights.
                    let out = unsafe { out.slice(at..at + block(row, self.rows) * depth) };
                    let w = &w[g * gs..];
                    if !self.transposed {
                        // Channels and taps follow each other in memory.
                        pack_block(out, row, self.rows, depth, |r, k| w[r * rs + k].load());
                    } else {
                        pack_block(out, row, self.rows, depth, |r, k| {
                            w[r * rs + k / taps * cs + phase.taps[k % taps].index].load()
                        });
                    }
                }
            });
        }
    }
}

/// Grid points of a panel that follow each other along the innermost axis.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// First column in the panel.
    column: usize,
    len: usize,
    image: usize,
    point: [usize; 3],
}

/// Part of a panel row: columns from `to` on are `len` input elements from `from` on (relative to the channel), or zeros.
#[derive(Clone, Copy, Debug)]
struct Entry {
    to: usize,
    from: isize,
    len: usize,
}

/// Where the columns of a panel go in the output: `len` columns from `column` on, to `to` in the first row's plane.
#[derive(Clone, Copy, Debug)]
struct Run {
    column: usize,
    len: usize,
    to: usize,
}

/// How the panels of one task are gathered and stored; kept to reuse its memory.
#[derive(Default)]
struct Layout {
    segments: Vec<Segment>,
    entries: Vec<Entry>,
    runs: Vec<Run>,
    /// First run of each panel, and the end.
    starts: Vec<usize>,
}

struct Task<'a, S: Stored> {
    c: &'a Correlate,
    phase: &'a Phase,
    group: usize,
    /// First panel.
    first: usize,
    x: &'a [S],
    packed: &'a [S::Work],
    bias: Option<&'a [S]>,
    y: Shared<S>,
    scratch: &'a mut [S::Work],
    layout: &'a mut Layout,
}

impl<S: Stored<Work: Product>> WithSimd for Task<'_, S> {
    type Output = ();

    #[inline(always)]
    fn with_simd<V: Simd>(self, simd: V) {
        let Task { c, phase, group, first, x, packed, bias, y, scratch, layout } = self;
        let width = width::<S::Work>();
        let points = c.points(phase);
        let depth = c.channels * phase.taps.len();
        let room = (depth + 1) * width;
        let last = (first + c.panels).min(points.div_ceil(width));
        layout.runs.clear();
        layout.starts.clear();
        layout.entries.clear();
        for (i, panel) in (first..last).enumerate() {
            layout.place(c, phase, panel * width, width.min(points - panel * width));
            layout.plan_gather(c, phase, width, i * room);
        }
        // SAFETY: the scratch has `panels` panels, each with one row of room.
        unsafe { gather(c, &layout.entries, group, x, scratch.as_mut_ptr(), phase.taps.len() * width) };
        layout.starts.push(layout.runs.len());
        let mut row = 0;
        while row < c.rows {
            let (r, used) = (block(row, c.rows), (c.rows - row).min(ROWS));
            let at = phase.weights + (group * padded(c.rows) + row) * depth;
            let scalars = packed[at..at + r * depth].as_ptr();
            let mut init = [S::Work::ZERO; ROWS];
            if let Some(b) = bias {
                init.iter_mut().zip(&b[group * c.rows + row..][..used]).for_each(|(i, b)| *i = b.load());
            }
            let plane = (group * c.rows + row) * c.out_plane + phase.origin;
            for i in 0..last - first {
                let panel = scratch[i * room..].as_ptr();
                let runs = &layout.runs[layout.starts[i]..layout.starts[i + 1]];
                let whole = S::DIRECT && c.dense && used == r && runs[0].len == width;
                let mut tile = [S::Work::ZERO; ROWS * 32];
                // SAFETY: operands are packed as `times` asks; a whole panel is `width` consecutive elements of each of `r` planes,
                // which this task alone writes, as it does the single runs.
                unsafe {
                    let y = y.0.add(plane);
                    if whole {
                        let y = y.add(runs[0].to).cast();
                        S::Work::times(simd, r, depth, scalars, panel, init.as_ptr(), y, c.out_plane);
                        continue;
                    }
                    S::Work::times(simd, r, depth, scalars, panel, init.as_ptr(), tile.as_mut_ptr(), width);
                    for (k, tile) in tile.chunks_exact(width).take(used).enumerate() {
                        for run in runs {
                            let (y, tile) = (y.add(k * c.out_plane + run.to), &tile[run.column..][..run.len]);
                            if c.dense {
                                S::narrow(tile.as_ptr(), y, run.len);
                            } else {
                                let step = c.out_strides[2];
                                tile.iter().enumerate().for_each(|(j, v)| *y.add(j * step) = S::store(*v));
                            }
                        }
                    }
                }
            }
            row += ROWS;
        }
    }
}

impl Layout {
    /// Cuts `len` grid points from `point` on into segments, and appends the runs they are stored in.
    fn place(&mut self, c: &Correlate, phase: &Phase, point: usize, len: usize) {
        let [_, gh, gw] = phase.grid;
        let image_points = volume(phase.grid);
        let image_size = c.groups * c.rows * c.out_plane;
        self.segments.clear();
        self.starts.push(self.runs.len());
        let mut done = 0;
        while done < len {
            let (image, q) = ((point + done) / image_points, (point + done) % image_points);
            let at = [q / (gh * gw), q / gw % gh, q % gw];
            let n = (gw - at[2]).min(len - done);
            self.segments.push(Segment { column: done, len: n, image, point: at });
            let to = image * image_size + (0..3).map(|a| at[a] * c.out_strides[a]).sum::<usize>();
            match self.runs.last_mut() {
                Some(r) if c.dense && q > 0 && done > 0 => r.len += n,
                _ => self.runs.push(Run { column: done, len: n, to }),
            }
            done += n;
        }
    }

    /// For one channel: what each tap's row of the panel at `base` of the scratch is copied from.
    fn plan_gather(&mut self, c: &Correlate, phase: &Phase, width: usize, base: usize) {
        let [d, h, w] = c.input;
        let image_size = c.groups * c.channels * d * h * w;
        let step = c.step.map(|s| s as isize);
        for (t, tap) in phase.taps.iter().enumerate() {
            let to = base + t * width;
            let zeros = |to: usize, n: usize, entries: &mut Vec<Entry>| {
                if n > 0 {
                    entries.push(Entry { to, from: ZERO, len: n });
                }
            };
            let mut end = 0;
            for s in &self.segments {
                let at = |a: usize| s.point[a] as isize * step[a] + tap.offset[a];
                let (z, y, x) = (at(0), at(1), at(2));
                end = s.column + s.len;
                if z < 0 || z >= d as isize || y < 0 || y >= h as isize {
                    zeros(to + s.column, s.len, &mut self.entries);
                    continue;
                }
                // Columns lo..hi of the segment read inside the row.
                let within = |bound: isize| {
                    (bound + step[2] - 1).div_euclid(step[2]).clamp(0, s.len as isize) as usize
                };
                let (lo, hi) = (within(-x), within(w as isize - x));
                let hi = hi.max(lo);
                zeros(to + s.column, lo, &mut self.entries);
                if hi > lo {
                    let row = (s.image * image_size) as isize + (z * h as isize + y) * w as isize;
                    let from = row + x + lo as isize * step[2];
                    self.entries.push(Entry { to: to + s.column + lo, from, len: hi - lo });
                }
                zeros(to + s.column + hi, s.len - hi, &mut self.entries);
            }
            zeros(to + end, width - end, &mut self.entries);
        }
    }
}

/// Fills the panels of a task: for each channel the entries of all. Copies are rounded up to 64 bytes where the input goes on and what is
/// written too much is overwritten by the next entry, or falls into the room behind the panel.
///
/// # Safety
///
/// Entries read inside `x` and write inside their panels, which have 128 bytes of room behind them.
#[inline(always)]
unsafe fn gather<S: Stored<Work: Product>>(
    c: &Correlate,
    entries: &[Entry],
    group: usize,
    x: &[S],
    panel: *mut S::Work,
    rows: usize,
) {
    let chunk = 64 / size_of::<S::Work>();
    let plane = volume(c.input);
    let zeros = [S::Work::ZERO; 32];
    for channel in 0..c.channels {
        let base = (group * c.channels + channel) * plane;
        // SAFETY: by this function's contract.
        unsafe {
            let panel = panel.add(channel * rows);
            for e in entries {
                let to = panel.add(e.to);
                if e.from == ZERO {
                    for i in (0..e.len).step_by(chunk) {
                        to.add(i)
                            .cast::<[u8; 64]>()
                            .write_unaligned(zeros.as_ptr().cast::<[u8; 64]>().read_unaligned());
                    }
                    continue;
                }
                let at = (base as isize + e.from) as usize;
                let from = x.as_ptr().add(at);
                match c.step[2] {
                    1 if !S::DIRECT => S::widen(from, to, e.len),
                    1 if at + e.len.next_multiple_of(chunk) <= x.len() => {
                        for i in (0..e.len).step_by(chunk) {
                            let v = from.add(i).cast::<[u8; 64]>().read_unaligned();
                            to.add(i).cast::<[u8; 64]>().write_unaligned(v);
                        }
                    }
                    1 => (0..e.len).for_each(|i| *to.add(i) = (*from.add(i)).load()),
                    2 => (0..e.len).for_each(|i| *to.add(i) = (*from.add(2 * i)).load()),
                    s => (0..e.len).for_each(|i| *to.add(i) = (*from.add(s * i)).load()),
                }
            }
        }
    }
}
