//! Copies between strided layouts: the one kernel behind slices, transposes, concatenations, splits and broadcasts.
//!
//! A copy is a box of extents with a stride on each side. Axes that walk both sides alike are merged, so that what looks like many
//! short rows becomes few long ones, and a copy that is one contiguous run is recognised as a view. Where the source runs along another
//! axis than the destination, square tiles of one cache line a side keep both sides in whole lines.

use crate::cpu::{
    Element,
    par::{self, GRAIN, Shared},
};
use std::mem::MaybeUninit;

/// Elements along each side of a block of tiles: both sides stay on their memory pages and prefetched lines for a while.
const SIDE: usize = 128;

/// Strides, in elements, of a dense tensor with the last axis innermost.
pub(crate) fn row_major(dims: &[usize]) -> Vec<isize> {
    let mut strides = vec![1isize; dims.len()];
    for i in (1..dims.len()).rev() {
        // What is empty may have axes of any length.
        strides[i - 1] = strides[i].saturating_mul(isize::try_from(dims[i].max(1)).unwrap_or(isize::MAX));
    }
    strides
}

/// Extents, strides of source and destination, and where element 0 lies on each side.
type Parts<'a> = (&'a [usize], [&'a [isize]; 2], [usize; 2]);

/// A copy of a box of elements: extents, and for each side the stride of each axis and where element 0 lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strided {
    extents: Vec<usize>,
    src: Vec<isize>,
    dst: Vec<isize>,
    src_start: usize,
    dst_start: usize,
    empty: bool,
}

impl Strided {
    /// The copy with its axes in the order of the destination, outermost first; strides and starts in elements.
    pub(crate) fn new(
        extents: &[usize],
        src: &[isize],
        dst: &[isize],
        src_start: usize,
        dst_start: usize,
    ) -> Strided {
        let empty = extents.contains(&0);
        let mut c =
            Strided { extents: Vec::new(), src: Vec::new(), dst: Vec::new(), src_start, dst_start, empty };
        for (i, &n) in extents.iter().enumerate() {
            if n == 1 || empty {
                continue;
            }
            let (s, d) = (src[i], dst[i]);
            match (c.extents.last_mut(), c.src.last_mut(), c.dst.last_mut()) {
                (Some(e), Some(os), Some(od)) if *os == s * n as isize && *od == d * n as isize => {
                    (*e, *os, *od) = (*e * n, s, d);
                }
                _ => {
                    c.extents.push(n);
                    c.src.push(s);
                    c.dst.push(d);
                }
            }
        }
        c
    }

    /// What the copy is made of; `None` for an empty box.
    pub(crate) fn parts(&self) -> Option<Parts<'_>> {
        let starts = [self.src_start, self.dst_start];
        (!self.empty).then_some((&self.extents, [&self.src, &self.dst], starts))
    }

    /// If the box is one contiguous run on both sides: where it starts in the source, in elements.
    pub(crate) fn run_start(&self) -> Option<usize> {
        let run = self.extents.is_empty() || (self.src == [1] && self.dst == [1]);
        (run && !self.empty).then_some(self.src_start)
    }

    /// Copies.
    ///
    /// # Safety
    ///
    /// Every element of the box lies inside both allocations; the destination's are distinct, overlap no source element, and no other
    /// thread touches them.
    pub(crate) unsafe fn run<T: Element>(&self, src: *const T, dst: *mut T) {
        if self.empty {
            return;
        }
        let (src, dst) = (Shared(src.cast_mut()), Shared(dst));
        let Some(last) = self.extents.len().checked_sub(1) else {
            // SAFETY: one element on each side, by this function's contract.
            unsafe { *dst.0.add(self.dst_start) = *src.0.add(self.src_start) };
            return;
        };
        if self.dst[last] == 1
            && !(0..=1).contains(&self.src[last])
            && let Some(j) = (0..last).find(|j| self.src[*j] == 1)
        {
            // SAFETY: this function's contract.
            return unsafe {
                match size_of::<T>() {
                    1 => self.tiled::<T, 64>(j, src, dst),
                    2 => self.tiled::<T, 32>(j, src, dst),
                    4 => self.tiled::<T, 16>(j, src, dst),
                    _ => self.tiled::<T, 8>(j, src, dst),
                }
            };
        }
        let (n, ss, ds) = (self.extents[last], self.src[last], self.dst[last]);
        let chunk = n.min(GRAIN);
        let per_row = n.div_ceil(chunk);
        let rows: usize = self.extents[..last].iter().product();
        par::ranges(rows * per_row, (GRAIN / chunk).max(1), |units| {
            let (src, dst) = (&src, &dst);
            let mut at = Cursor::new(self, last, units.start / per_row);
            let mut part = units.start % per_row;
            for _ in units {
                let lo = part * chunk;
                let (s, d) = (at.src + lo as isize * ss, at.dst + lo as isize * ds);
                // SAFETY: a run inside the box.
                unsafe { row(src.0.offset(s), ss, dst.0.offset(d), ds, chunk.min(n - lo)) };
                part += 1;
                if part == per_row {
                    part = 0;
                    at.next();
                }
            }
        });
    }

    /// The copy by tiles of the last axis (contiguous in the destination) and axis `j` (contiguous in the source).
    ///
    /// # Safety
    ///
    /// That of [`Strided::run`].
    unsafe fn tiled<T: Element, const B: usize>(&self, j: usize, src: Shared<T>, dst: Shared<T>) {
        let last = self.extents.len() - 1;
        let (ni, si) = (self.extents[last], self.src[last]);
        let (nj, dj) = (self.extents[j], self.dst[j]);
        let (ti, tj) = (ni.div_ceil(SIDE), nj.div_ceil(SIDE));
        let others: Vec<usize> = (0..last).filter(|a| *a != j).collect();
        let outer: usize = others.iter().map(|a| self.extents[*a]).product();
        let grain = (GRAIN / (SIDE.min(ni) * SIDE.min(nj))).max(1);
        par::ranges(outer * tj * ti, grain, |blocks| {
            let (src, dst) = (&src, &dst);
            for t in blocks {
                let (i0, j0, mut o) = (t % ti * SIDE, t / ti % tj * SIDE, t / ti / tj);
                let (mut s, mut d) = (self.src_start as isize, self.dst_start as isize);
                for a in others.iter().rev() {
                    let k = (o % self.extents[*a]) as isize;
                    o /= self.extents[*a];
                    (s, d) = (s + k * self.src[*a], d + k * self.dst[*a]);
                }
                for i in (i0..ni.min(i0 + SIDE)).step_by(B) {
                    for j in (j0..nj.min(j0 + SIDE)).step_by(B) {
                        // SAFETY: the tile is clipped to the box.
                        unsafe {
                            let s = src.0.offset(s + i as isize * si + j as isize);
                            let d = dst.0.offset(d + j as isize * dj + i as isize);
                            tile::<T, B>(s, si, d, dj, B.min(ni - i), B.min(nj - j));
                        }
                    }
                }
            }
        });
    }
}

/// Copies the tile `dst[j * dj + i] = src[i * si + j]` for `i < ni <= B` and `j < nj <= B`.
///
/// # Safety
///
/// The elements lie inside both allocations and do not overlap.
#[inline(always)]
unsafe fn tile<T: Element, const B: usize>(
    src: *const T,
    si: isize,
    dst: *mut T,
    dj: isize,
    ni: usize,
    nj: usize,
) {
    // SAFETY: by this function's contract; the buffer is written in full before it is read.
    unsafe {
        if ni == B && nj == B {
            let mut buffer: MaybeUninit<[[T; B]; B]> = MaybeUninit::uninit();
            let base = buffer.as_mut_ptr().cast::<T>();
            for i in 0..B {
                let line = src.offset(i as isize * si);
                for j in 0..B {
                    *base.add(j * B + i) = *line.add(j);
                }
            }
            for j in 0..B {
                std::ptr::copy_nonoverlapping(base.add(j * B), dst.offset(j as isize * dj), B);
            }
        } else {
            for j in 0..nj {
                let line = dst.offset(j as isize * dj);
                for i in 0..ni {
                    *line.add(i) = *src.offset(i as isize * si + j as isize);
                }
            }
        }
    }
}

/// Copies `n` elements with a stride on each side.
///
/// # Safety
///
/// The elements lie inside both allocations and do not overlap.
#[inline(always)]
unsafe fn row<T: Element>(src: *const T, ss: isize, dst: *mut T, ds: isize, n: usize) {
    // SAFETY: by this function's contract.
    unsafe {
        match (ss, ds) {
            (1, 1) => std::ptr::copy_nonoverlapping(src, dst, n),
            (0, 1) => {
                let x = *src;
                (0..n).for_each(|i| *dst.add(i) = x);
            }
            _ => (0..n as isize).for_each(|i| *dst.offset(i * ds) = *src.offset(i * ss)),
        }
    }
}

/// Offsets of the rows of a copy, one after the other.
struct Cursor<'a> {
    copy: &'a Strided,
    index: Vec<usize>,
    src: isize,
    dst: isize,
}

impl<'a> Cursor<'a> {
    /// At row `row` over the first `axes` axes.
    fn new(copy: &'a Strided, axes: usize, mut row: usize) -> Cursor<'a> {
        let mut c =
            Cursor { copy, index: vec![0; axes], src: copy.src_start as isize, dst: copy.dst_start as isize };
        for a in (0..axes).rev() {
            c.index[a] = row % copy.extents[a];
            row /= copy.extents[a];
            c.src += c.index[a] as isize * copy.src[a];
            c.dst += c.index[a] as isize * copy.dst[a];
        }
        c
    }

    fn next(&mut self) {
        for a in (0..self.index.len()).rev() {
            self.index[a] += 1;
            self.src += self.copy.src[a];
            self.dst += self.copy.dst[a];
            if self.index[a] < self.copy.extents[a] {
                return;
            }
            self.src -= self.copy.extents[a] as isize * self.copy.src[a];
            self.dst -= self.copy.extents[a] as isize * self.copy.dst[a];
            self.index[a] = 0;
        }
    }
}

/// Sets every element to `value`, in parallel.
pub(crate) fn fill<T: Element>(out: &mut [T], value: T) {
    let n = out.len();
    let base = Shared(out.as_mut_ptr());
    par::ranges(n, GRAIN, |r| {
        let base = &base;
        // SAFETY: ranges are disjoint and inside `out`.
        unsafe { base.slice(r) }.fill(value);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every layout of a small box against the loop over its elements.
    #[test]
    fn copies_equal_the_naive_loop() {
        let dims = [[3usize, 5, 70], [1, 140, 133], [33, 1, 17], [2, 64, 64]];
        let orders = [[0usize, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        for d in dims {
            let n: usize = d.iter().product();
            let x: Vec<u32> = (0..n as u32).collect();
            let strides = row_major(&d);
            for p in orders {
                let out: Vec<usize> = p.iter().map(|a| d[*a]).collect();
                let src: Vec<isize> = p.iter().map(|a| strides[*a]).collect();
                let copy = Strided::new(&out, &src, &row_major(&out), 0, 0);
                let mut y = vec![u32::MAX; n];
                // SAFETY: both sides hold the whole box.
                unsafe { copy.run(x.as_ptr(), y.as_mut_ptr()) };
                let mut k = 0;
                for a in 0..out[0] {
                    for b in 0..out[1] {
                        for c in 0..out[2] {
                            let at = a as isize * src[0] + b as isize * src[1] + c as isize * src[2];
                            assert_eq!(y[k], x[at as usize], "{d:?} {p:?}");
                            k += 1;
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn runs_are_recognised() {
        assert_eq!(Strided::new(&[1, 3, 4], &[40, 4, 1], &[12, 4, 1], 8, 0).run_start(), Some(8));
        assert_eq!(Strided::new(&[2, 3, 4], &[40, 4, 1], &[12, 4, 1], 8, 0).run_start(), None);
        assert_eq!(Strided::new(&[4], &[-1], &[1], 3, 0).run_start(), None);
        assert_eq!(Strided::new(&[], &[], &[], 5, 0).run_start(), Some(5));
        assert_eq!(Strided::new(&[0], &[1], &[1], 0, 0).run_start(), None);
    }
}
