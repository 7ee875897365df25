//! Loops of elementwise kernels: operands broadcast to the output, block by block.
//!
//! Results of a block are computed into a small array and then copied out. So the compiler knows that nothing overlaps and the loop over a
//! block becomes vector code, also when the output is the memory of an operand, and one loop serves every kind of broadcasting.

use crate::{
    OpError, Signature,
    cpu::{
        CpuKernel, Element, Io,
        par::{self, Piece, Shared},
    },
};
use graph::DType;
use std::ops::Range;

/// Elements that are computed at once.
const BLOCK: usize = 256;

/// A function of one element. Closures are, if they are small; a type with an `#[inline(always)]` method always becomes vector code.
pub(crate) trait Fn1<T, U>: Send + Sync + 'static {
    fn at(&self, x: T) -> U;
}

impl<T, U, F: Fn(T) -> U + Send + Sync + 'static> Fn1<T, U> for F {
    #[inline(always)]
    fn at(&self, x: T) -> U {
        self(x)
    }
}

/// As [`Fn1`] for two elements.
pub(crate) trait Fn2<A, B, U>: Send + Sync + 'static {
    fn at(&self, a: A, b: B) -> U;
}

impl<A, B, U, F: Fn(A, B) -> U + Send + Sync + 'static> Fn2<A, B, U> for F {
    #[inline(always)]
    fn at(&self, a: A, b: B) -> U {
        self(a, b)
    }
}

/// As [`Fn1`] for three elements.
pub(crate) trait Fn3<A, B, C, U>: Send + Sync + 'static {
    fn at(&self, a: A, b: B, c: C) -> U;
}

impl<A, B, C, U, F: Fn(A, B, C) -> U + Send + Sync + 'static> Fn3<A, B, C, U> for F {
    #[inline(always)]
    fn at(&self, a: A, b: B, c: C) -> U {
        self(a, b, c)
    }
}

/// How the elements of an operand follow the output's: extents and strides in elements (0 where it is broadcast), outermost first, with
/// axes merged that behave as one. Never empty; the innermost stride is 0 or 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    extents: Vec<usize>,
    strides: Vec<usize>,
}

impl Layout {
    /// The layout of an operand of shape `shape` broadcast to `out`.
    pub(crate) fn new(shape: &[usize], out: &[usize]) -> Layout {
        let mut strides = vec![0; out.len()];
        let mut step = 1;
        for (i, n) in shape.iter().enumerate().rev() {
            strides[out.len() - shape.len() + i] = if *n == 1 { 0 } else { step };
            step *= n;
        }
        let mut layout = Layout { extents: vec![1], strides: vec![0] };
        for (&n, &s) in out.iter().zip(&strides).filter(|(n, _)| **n != 1) {
            let last = layout.extents.len() - 1;
            if layout.extents[last] == 1 {
                (layout.extents[last], layout.strides[last]) = (n, s);
            } else if layout.strides[last] == s * n {
                (layout.extents[last], layout.strides[last]) = (layout.extents[last] * n, s);
            } else {
                layout.extents.push(n);
                layout.strides.push(s);
            }
        }
        layout
    }

    /// Where row `row` (a run of the innermost extent) starts in the operand.
    fn offset(&self, mut row: usize) -> usize {
        let mut at = 0;
        for i in (0..self.extents.len() - 1).rev() {
            at += row % self.extents[i] * self.strides[i];
            row /= self.extents[i];
        }
        at
    }

    /// The runs of the operand under `n` output elements from `start` on: elements before it, its length, where it starts in the operand,
    /// and the step (0 where one element is broadcast).
    pub(crate) fn runs(
        &self,
        start: usize,
        n: usize,
    ) -> impl Iterator<Item = (usize, usize, usize, usize)> + '_ {
        let last = self.extents.len() - 1;
        let (len, step) = (self.extents[last], self.strides[last]);
        let mut done = 0;
        std::iter::from_fn(move || {
            let (row, column) = ((start + done) / len, (start + done) % len);
            let run = (len - column).min(n.checked_sub(done).filter(|left| *left > 0)?);
            let found = (done, run, self.offset(row) + column * step, step);
            done += run;
            Some(found)
        })
    }
}

/// An operand: its first element and its layout.
struct Operand<'a, T> {
    first: Shared<T>,
    layout: &'a Layout,
}

impl<'a, T: Element> Operand<'a, T> {
    fn new(io: &Io<'_>, input: usize, layout: &'a Layout) -> Operand<'a, T> {
        Operand { first: Shared(io.input_ptr::<T>(input).0.cast_mut()), layout }
    }

    /// The elements for `n` (at most [`BLOCK`]) output elements from `start` on: where they lie, or gathered into `buffer`.
    ///
    /// # Safety
    ///
    /// `first` is an operand of this layout, and the elements are those of the output.
    #[inline(never)]
    unsafe fn block(&self, start: usize, n: usize, buffer: &mut [T; BLOCK]) -> *const T {
        let first = self.first.0.cast_const();
        let last = self.layout.extents.len() - 1;
        let (len, step) = (self.layout.extents[last], self.layout.strides[last]);
        let mut done = 0;
        while done < n {
            let (row, column) = ((start + done) / len, (start + done) % len);
            let run = (len - column).min(n - done);
            // SAFETY: by this function's contract `run` elements (1 if broadcast) lie there.
            unsafe {
                let from = first.add(self.layout.offset(row) + column * step);
                if step == 0 {
                    buffer[done..done + run].fill(*from);
                } else if run == n {
                    return from;
                } else {
                    buffer[done..done + run].copy_from_slice(std::slice::from_raw_parts(from, run));
                }
            }
            done += run;
        }
        buffer.as_ptr()
    }
}

/// Runs a loop over elements of type `T`: as vector code where that pays for its size, which is where training spends its time.
fn run<T: Element>(n: usize, piece: &impl Piece) {
    if const { matches!(T::DTYPE, DType::F32) } {
        par::pieces(n, par::GRAIN, piece);
    } else {
        par::plain_pieces(n, par::GRAIN, piece);
    }
}

struct Map<'a, T, U, F> {
    x: Shared<T>,
    y: Shared<U>,
    f: &'a F,
}

impl<T: Element, U: Element, F: Fn1<T, U>> Piece for Map<'_, T, U, F> {
    #[inline(always)]
    fn run(&self, range: Range<usize>) {
        let mut out = [U::from_f64(0.0); BLOCK];
        for start in range.clone().step_by(BLOCK) {
            let n = BLOCK.min(range.end - start);
            // SAFETY: the range lies inside input and output; the block is read before it is written.
            unsafe {
                let x = std::slice::from_raw_parts(self.x.0.add(start).cast_const(), n);
                for (y, x) in out[..n].iter_mut().zip(x) {
                    *y = self.f.at(*x);
                }
                std::ptr::copy_nonoverlapping(out.as_ptr(), self.y.0.add(start), n);
            }
        }
    }
}

/// A kernel that applies `f` to each element; the output may be the input's memory if `T` and `U` have one size.
pub(crate) fn map<T: Element, U: Element>(f: impl Fn1<T, U>) -> CpuKernel {
    Box::new(move |io| {
        let (x, n) = io.input_ptr::<T>(0);
        let y = Shared(io.output_ptr::<U>(0).0);
        run::<T>(n, &Map { x: Shared(x.cast_mut()), y, f: &f });
        Ok(())
    })
}

struct Zip<'a, A, B, U, F> {
    a: Operand<'a, A>,
    b: Operand<'a, B>,
    y: Shared<U>,
    f: &'a F,
}

impl<A: Element, B: Element, U: Element, F: Fn2<A, B, U>> Piece for Zip<'_, A, B, U, F> {
    #[inline(always)]
    fn run(&self, range: Range<usize>) {
        let mut out = [U::from_f64(0.0); BLOCK];
        let (mut a, mut b) = ([A::from_f64(0.0); BLOCK], [B::from_f64(0.0); BLOCK]);
        for start in range.clone().step_by(BLOCK) {
            let n = BLOCK.min(range.end - start);
            // SAFETY: the layouts are those of the operands for this output; the block is read before it is written.
            unsafe {
                let a = std::slice::from_raw_parts(self.a.block(start, n, &mut a), n);
                let b = std::slice::from_raw_parts(self.b.block(start, n, &mut b), n);
                for (y, (a, b)) in out[..n].iter_mut().zip(a.iter().zip(b)) {
                    *y = self.f.at(*a, *b);
                }
                std::ptr::copy_nonoverlapping(out.as_ptr(), self.y.0.add(start), n);
            }
        }
    }
}

/// A kernel that applies `f` to broadcast pairs of elements of inputs 0 and 1. The output may be the memory of an input of its type.
pub(crate) fn zip<T: Element, U: Element>(
    s: &Signature<'_>,
    f: impl Fn2<T, T, U>,
) -> Result<CpuKernel, OpError> {
    zip_of(s, [0, 1], f)
}

/// As [`zip`] for any two inputs.
pub(crate) fn zip_of<A: Element, B: Element, U: Element>(
    s: &Signature<'_>,
    inputs: [usize; 2],
    f: impl Fn2<A, B, U>,
) -> Result<CpuKernel, OpError> {
    let out = s.out_dims(0)?;
    let layouts = [Layout::new(&s.dims(inputs[0])?, &out), Layout::new(&s.dims(inputs[1])?, &out)];
    let n: usize = out.iter().product();
    Ok(Box::new(move |io| {
        let a = Operand::new(io, inputs[0], &layouts[0]);
        let b = Operand::new(io, inputs[1], &layouts[1]);
        let y = Shared(io.output_ptr::<U>(0).0);
        run::<A>(n, &Zip { a, b, y, f: &f });
        Ok(())
    }))
}

struct Zip3<'a, A, B, C, U, F> {
    a: Operand<'a, A>,
    b: Operand<'a, B>,
    c: Operand<'a, C>,
    y: Shared<U>,
    f: &'a F,
}

impl<A: Element, B: Element, C: Element, U: Element, F: Fn3<A, B, C, U>> Piece for Zip3<'_, A, B, C, U, F> {
    #[inline(always)]
    fn run(&self, range: Range<usize>) {
        let mut out = [U::from_f64(0.0); BLOCK];
        let (mut a, mut b) = ([A::from_f64(0.0); BLOCK], [B::from_f64(0.0); BLOCK]);
        let mut c = [C::from_f64(0.0); BLOCK];
        for start in range.clone().step_by(BLOCK) {
            let n = BLOCK.min(range.end - start);
            // SAFETY: the layouts are those of the operands for this output; the block is read before it is written.
            unsafe {
                let a = std::slice::from_raw_parts(self.a.block(start, n, &mut a), n);
                let b = std::slice::from_raw_parts(self.b.block(start, n, &mut b), n);
                let c = std::slice::from_raw_parts(self.c.block(start, n, &mut c), n);
                for (y, ((a, b), c)) in out[..n].iter_mut().zip(a.iter().zip(b).zip(c)) {
                    *y = self.f.at(*a, *b, *c);
                }
                std::ptr::copy_nonoverlapping(out.as_ptr(), self.y.0.add(start), n);
            }
        }
    }
}

/// Three operands broadcast to one output.
pub(crate) struct Broadcast3 {
    layouts: [Layout; 3],
    n: usize,
}

impl Broadcast3 {
    /// For operands of these shapes, which broadcast to `out`.
    pub(crate) fn new(shapes: [&[usize]; 3], out: &[usize]) -> Broadcast3 {
        Broadcast3 { layouts: shapes.map(|s| Layout::new(s, out)), n: out.iter().product() }
    }

    /// Applies `f` to triples of elements. The output may be the memory of an operand of its type and shape.
    ///
    /// # Safety
    ///
    /// Operands and output are valid for their shapes, and nothing else touches the output meanwhile.
    pub(crate) unsafe fn run<A: Element, B: Element, C: Element, U: Element>(
        &self,
        (a, b, c): (*const A, *const B, *const C),
        y: *mut U,
        f: &impl Fn3<A, B, C, U>,
    ) {
        let [la, lb, lc] = &self.layouts;
        let a = Operand { first: Shared(a.cast_mut()), layout: la };
        let b = Operand { first: Shared(b.cast_mut()), layout: lb };
        let c = Operand { first: Shared(c.cast_mut()), layout: lc };
        run::<B>(self.n, &Zip3 { a, b, c, y: Shared(y), f });
    }
}

/// A kernel that applies `f` to broadcast triples of elements. The output may be the memory of an input of its type.
pub(crate) fn zip3<A: Element, B: Element, C: Element, U: Element>(
    s: &Signature<'_>,
    f: impl Fn3<A, B, C, U>,
) -> Result<CpuKernel, OpError> {
    let broadcast = Broadcast3::new([&s.dims(0)?, &s.dims(1)?, &s.dims(2)?], &s.out_dims(0)?);
    Ok(Box::new(move |io| {
        let operands = (io.input_ptr::<A>(0).0, io.input_ptr::<B>(1).0, io.input_ptr::<C>(2).0);
        // SAFETY: the memory is that of the node's inputs and output.
        unsafe { broadcast.run(operands, io.output_ptr::<U>(0).0, &f) };
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(shape: &[usize], out: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let l = Layout::new(shape, out);
        (l.extents, l.strides)
    }

    #[test]
    fn layouts_merge_axes_that_behave_as_one() {
        assert_eq!(layout(&[2, 3, 4], &[2, 3, 4]), (vec![24], vec![1]));
        assert_eq!(layout(&[], &[2, 3]), (vec![6], vec![0]));
        assert_eq!(layout(&[3, 1, 1], &[2, 3, 4, 5]), (vec![2, 3, 20], vec![0, 1, 0]));
        assert_eq!(layout(&[2, 1, 4], &[2, 3, 4]), (vec![2, 3, 4], vec![4, 0, 1]));
        assert_eq!(layout(&[1], &[1, 1]), (vec![1], vec![0]));
    }
}
