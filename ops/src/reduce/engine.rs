//! The loops of reductions.

use super::space::Space;
use crate::cpu::{
    Element,
    half::Stored,
    par::{self, Piece, Shared},
};
use graph::DType;
use std::ops::Range;

/// Neighbouring outputs that are computed at once where the innermost axis is kept.
pub(super) const COLUMNS: usize = 128;
/// Lanes of a reduced run.
const LANES: usize = 32;
/// Lanes for what is left of it.
const FEW: usize = 8;
/// Elements, or rows, after which lanes are gathered.
const GATHER: usize = 2048;
const GATHER_ROWS: usize = 64;

/// A way of combining elements. `context` is a value of the output that the reduction belongs to, for those that need one.
pub(super) trait Reducer<T: Element>: Copy + Send + Sync + 'static {
    /// What lanes are gathered in.
    type Wide: Element;
    /// The neutral lane.
    fn start(&self) -> T;
    /// The lane of one element.
    fn one(&self, x: T, context: T) -> T;
    /// Two lanes.
    fn merge(&self, a: T, b: T) -> T;
    /// A lane, wide.
    fn lift(&self, lane: T) -> Self::Wide;
    /// Two parts of the result.
    fn join(&self, a: Self::Wide, b: Self::Wide) -> Self::Wide;
    /// The output.
    fn finish(&self, w: Self::Wide, context: T) -> T;
}

/// Stored elements that are reduced as `T`.
pub(super) trait Read<T: Element>: Element {
    /// Room for a run that is converted.
    type Run;
    /// Room for a row of [`COLUMNS`] that is converted.
    type Row;
    fn run() -> Self::Run;
    fn row() -> Self::Row;
    /// `n` elements (at most [`GATHER`]) from `x` on.
    ///
    /// # Safety
    ///
    /// They are readable.
    unsafe fn of_run(x: *const Self, n: usize, room: &mut Self::Run) -> &[T];
    /// `n` elements (at most [`COLUMNS`]) from `x` on.
    ///
    /// # Safety
    ///
    /// They are readable.
    unsafe fn of_row(x: *const Self, n: usize, room: &mut Self::Row) -> &[T];
}

impl<T: Element> Read<T> for T {
    type Run = ();
    type Row = ();
    #[inline(always)]
    fn run() {}
    #[inline(always)]
    fn row() {}
    #[inline(always)]
    unsafe fn of_run(x: *const T, n: usize, (): &mut ()) -> &[T] {
        // SAFETY: by this function's contract.
        unsafe { std::slice::from_raw_parts(x, n) }
    }
    #[inline(always)]
    unsafe fn of_row(x: *const T, n: usize, (): &mut ()) -> &[T] {
        // SAFETY: by this function's contract.
        unsafe { std::slice::from_raw_parts(x, n) }
    }
}

macro_rules! read_halves {
    ($($t:ty),*) => {$(
        impl Read<f32> for $t {
            type Run = [f32; GATHER];
            type Row = [f32; COLUMNS];
            #[inline(always)]
            fn run() -> [f32; GATHER] {
                [0.0; GATHER]
            }
            #[inline(always)]
            fn row() -> [f32; COLUMNS] {
                [0.0; COLUMNS]
            }
            #[inline(always)]
            unsafe fn of_run(x: *const $t, n: usize, room: &mut [f32; GATHER]) -> &[f32] {
                // SAFETY: by this function's contract; the room has as many.
                unsafe { <$t>::widen(x, room[..n].as_mut_ptr(), n) };
                &room[..n]
            }
            #[inline(always)]
            unsafe fn of_row(x: *const $t, n: usize, room: &mut [f32; COLUMNS]) -> &[f32] {
                // SAFETY: by this function's contract; the room has as many.
                unsafe { <$t>::widen(x, room[..n].as_mut_ptr(), n) };
                &room[..n]
            }
        }
    )*};
}
read_halves!(half::f16, half::bf16);

/// Memory of a reduction: input, context and output, of the space's sizes. The context may be the output.
pub(super) struct Memory<'a, X, T, W> {
    pub(super) x: *const X,
    pub(super) context: Option<*const T>,
    pub(super) y: *mut T,
    /// As many as [`Space::workspace`] says.
    pub(super) partials: &'a mut [W],
}

/// Reduces.
///
/// # Safety
///
/// Input, context and output are valid for the space's sizes, and nothing else touches the output meanwhile.
pub(super) unsafe fn reduce<X: Read<T>, T: Element, R: Reducer<T>>(
    space: &Space,
    r: R,
    memory: Memory<'_, X, T, R::Wide>,
) {
    let (tasks, outputs) = (space.tasks() * space.slices, space.outputs());
    let context = memory.context.map(|c| Shared(c.cast_mut()));
    let partials = Shared(memory.partials.as_mut_ptr());
    let reduction =
        Reduction { space, r, x: Shared(memory.x.cast_mut()), context, y: Shared(memory.y), partials };
    let each = space.slice * if space.run_reduced { 1 } else { space.run.min(COLUMNS) };
    let grain = par::GRAIN / each.max(1);
    if const { matches!(T::DTYPE, DType::F32) } {
        par::pieces(tasks, grain, &reduction);
    } else {
        par::plain_pieces(tasks, grain, &reduction);
    }
    if space.slices > 1 {
        for o in 0..outputs {
            let mut w = memory.partials[o];
            for k in 1..space.slices {
                w = r.join(w, memory.partials[k * outputs + o]);
            }
            // SAFETY: by this function's contract.
            unsafe {
                let context = context.map_or(r.start(), |c| *c.0.add(o));
                *memory.y.add(o) = r.finish(w, context);
            }
        }
    }
}

struct Reduction<'a, X, T, R: Reducer<T>>
where
    T: Element,
{
    space: &'a Space,
    r: R,
    x: Shared<X>,
    context: Option<Shared<T>>,
    y: Shared<T>,
    partials: Shared<R::Wide>,
}

impl<X: Read<T>, T: Element, R: Reducer<T>> Reduction<'_, X, T, R> {
    /// Stores the result of one slice of output `o`.
    ///
    /// # Safety
    ///
    /// `o` and `slice` are in range, and no other thread has them.
    #[inline(always)]
    unsafe fn store(&self, o: usize, slice: usize, w: R::Wide, context: T) {
        // SAFETY: by this function's contract.
        unsafe {
            if self.space.slices == 1 {
                *self.y.0.add(o) = self.r.finish(w, context);
            } else {
                *self.partials.0.add(slice * self.space.outputs() + o) = w;
            }
        }
    }

    /// Output `g` over elements `range` of its reduced indices, whose innermost run is contiguous.
    #[inline(always)]
    unsafe fn runs(&self, g: usize, range: Range<usize>, context: T) -> R::Wide {
        let (r, run) = (&self.r, self.space.run);
        let base = self.space.group(g);
        let mut wide = r.lift(r.start());
        let (mut lanes, mut few, mut one) = ([r.start(); LANES], [r.start(); FEW], r.start());
        let mut steps = 0;
        let mut room = X::run();
        let mut at = range.start;
        while at < range.end {
            let (row, column) = (at / run, at % run);
            let n = (run - column).min(range.end - at).min(GATHER);
            // SAFETY: the elements are inside the input.
            let x = unsafe {
                X::of_run(self.x.0.add(base + self.space.row(row) + column).cast_const(), n, &mut room)
            };
            // Four chunks at a time: shorter chains are faster, and more accurate.
            let (quads, rest) = x.as_chunks::<{ 4 * LANES }>();
            for quad in quads {
                for (i, lane) in lanes.iter_mut().enumerate() {
                    let x = |k: usize| r.one(quad[i + k * LANES], context);
                    *lane = r.merge(*lane, r.merge(r.merge(x(0), x(1)), r.merge(x(2), x(3))));
                }
            }
            let (chunks, rest) = rest.as_chunks::<LANES>();
            for chunk in chunks {
                for (lane, x) in lanes.iter_mut().zip(chunk) {
                    *lane = r.merge(*lane, r.one(*x, context));
                }
            }
            let (chunks, rest) = rest.as_chunks::<FEW>();
            for chunk in chunks {
                for (lane, x) in few.iter_mut().zip(chunk) {
                    *lane = r.merge(*lane, r.one(*x, context));
                }
            }
            for x in rest {
                one = r.merge(one, r.one(*x, context));
            }
            at += n;
            steps += n;
            if steps >= GATHER || at == range.end {
                let mut width = LANES;
                while width > FEW {
                    width /= 2;
                    for i in 0..width {
                        lanes[i] = r.merge(lanes[i], lanes[i + width]);
                    }
                }
                for i in 0..FEW {
                    few[i] = r.merge(few[i], lanes[i]);
                }
                while width > 1 {
                    width /= 2;
                    for i in 0..width {
                        few[i] = r.merge(few[i], few[i + width]);
                    }
                }
                wide = r.join(wide, r.lift(r.merge(few[0], one)));
                (lanes, few, one, steps) = ([r.start(); LANES], [r.start(); FEW], r.start(), 0);
            }
        }
        wide
    }

    /// Columns `at..at + n` of group `g` over rows `range`.
    #[inline(always)]
    unsafe fn columns(
        &self,
        (g, at, n): (usize, usize, usize),
        range: Range<usize>,
        context: &[T; COLUMNS],
        wide: &mut [R::Wide; COLUMNS],
    ) {
        let r = &self.r;
        let base = self.space.group(g) + at;
        let at = |i: usize| self.x.0.wrapping_add(base + self.space.row(i)).cast_const();
        let mut rooms = [X::row(), X::row(), X::row(), X::row()];
        wide[..n].fill(r.lift(r.start()));
        let mut start = range.start;
        while start < range.end {
            let end = (start + GATHER_ROWS).min(range.end);
            let mut lanes = [r.start(); COLUMNS];
            let lane = &mut lanes[..n];
            let context = &context[..n];
            while start + 4 <= end {
                let [ra, rb, rc, rd] = &mut rooms;
                // SAFETY: the elements are inside the input.
                let (a, b, c, d) = unsafe {
                    let (a, b) = (X::of_row(at(start), n, ra), X::of_row(at(start + 1), n, rb));
                    (a, b, X::of_row(at(start + 2), n, rc), X::of_row(at(start + 3), n, rd))
                };
                for i in 0..n {
                    let one = |x: T| r.one(x, context[i]);
                    let four = r.merge(r.merge(one(a[i]), one(b[i])), r.merge(one(c[i]), one(d[i])));
                    lane[i] = r.merge(lane[i], four);
                }
                start += 4;
            }
            while start < end {
                // SAFETY: as above.
                let row = unsafe { X::of_row(at(start), n, &mut rooms[0]) };
                for ((lane, x), k) in lane.iter_mut().zip(row).zip(context) {
                    *lane = r.merge(*lane, r.one(*x, *k));
                }
                start += 1;
            }
            for (w, lane) in wide.iter_mut().zip(lane) {
                *w = r.join(*w, r.lift(*lane));
            }
        }
    }
}

impl<X: Read<T>, T: Element, R: Reducer<T>> Piece for Reduction<'_, X, T, R> {
    #[inline(always)]
    fn run(&self, tasks: Range<usize>) {
        let space = self.space;
        let length = if space.run_reduced { space.count() } else { space.rows };
        for task in tasks {
            let (task, slice) = (task / space.slices, task % space.slices);
            let range = slice * space.slice..((slice + 1) * space.slice).min(length);
            if space.run_reduced {
                // SAFETY: `task` is an output; each (task, slice) is run once.
                unsafe {
                    let context = self.context.map_or(self.r.start(), |c| *c.0.add(task));
                    let wide = self.runs(task, range, context);
                    self.store(task, slice, wide, context);
                }
                continue;
            }
            let blocks = space.run.div_ceil(COLUMNS);
            let (g, at) = (task / blocks, task % blocks * COLUMNS);
            let n = COLUMNS.min(space.run - at);
            let first = g * space.run + at;
            let mut context = [self.r.start(); COLUMNS];
            let mut wide = [self.r.lift(self.r.start()); COLUMNS];
            // SAFETY: as above, for `n` outputs from `first` on.
            unsafe {
                if let Some(c) = self.context {
                    context[..n].copy_from_slice(std::slice::from_raw_parts(c.0.add(first).cast_const(), n));
                }
                self.columns((g, at, n), range, &context, &mut wide);
                for i in 0..n {
                    self.store(first + i, slice, wide[i], context[i]);
                }
            }
        }
    }
}
