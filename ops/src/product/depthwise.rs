//! Depthwise convolution: every channel has one kernel of its own, so there is no product to block.
//!
//! Rows are added tap by tap as they lie. For the weights' gradient, the part of an input row that a block of [`COLUMNS`] reads is copied
//! into a buffer with its padding, and all taps of that row read it at their offsets, in loops of whole vectors.

use super::window::Slide;
use crate::cpu::{
    Float,
    par::{self, Piece, Shared},
};
use std::ops::Range;

/// Columns of a block.
const COLUMNS: usize = 64;
/// Largest distance between the first and the last tap of a row that the buffer has room for.
const REACH: usize = 64;
/// Elements of the buffer: a block of stride 2 and the reach.
const BUFFER: usize = 2 * COLUMNS + REACH;
/// Most taps whose sums, one for each column of a block, are kept at once.
const TAPS: usize = 32;

/// A prepared depthwise convolution with its two transposes.
#[derive(Clone, Debug)]
pub(crate) struct Depthwise {
    slide: Slide,
    images: usize,
    channels: usize,
}

impl Depthwise {
    pub(crate) fn new(slide: Slide, images: usize, channels: usize) -> Depthwise {
        Depthwise { slide, images, channels }
    }

    /// y = x convolved with w, plus the bias.
    pub(crate) fn forward<T: Float>(&self, x: &[T], w: &[T], bias: Option<&[T]>, y: &mut [T]) {
        self.run(x, w, bias, y, false);
    }

    /// dx = the transpose of the convolution applied to dy, plus a bias.
    pub(crate) fn backward<T: Float>(&self, dy: &[T], w: &[T], bias: Option<&[T]>, dx: &mut [T]) {
        self.run(dy, w, bias, dx, true);
    }

    fn run<T: Float>(&self, from: &[T], w: &[T], bias: Option<&[T]>, to: &mut [T], transposed: bool) {
        let [large, small] = self.slide.planes();
        let work = large.max(small).max(1) * self.slide.taps();
        let grain = (par::GRAIN / work).max(1);
        let pass = Pass { of: self, from, w, bias, to: Shared(to.as_mut_ptr()), transposed };
        par::pieces(self.images * self.channels, grain, &pass);
    }

    /// dw = the gradient of the weights, summed over images and rows in order.
    pub(crate) fn weights<T: Float>(&self, x: &[T], dy: &[T], dw: &mut [T]) {
        let work = self.images.max(1) * self.slide.planes()[1].max(1) * self.slide.taps();
        let grain = (par::GRAIN / work).max(1);
        let sums = Sums { of: self, x, dy, dw: Shared(dw.as_mut_ptr()) };
        match Lines::new(&self.slide) {
            Some(lines) if self.slide.stride[2] == 1 => {
                par::pieces(self.channels, grain, &RowSums::<T, 1> { sums, lines });
            }
            Some(lines) => {
                par::pieces(self.channels, grain, &RowSums::<T, 2> { sums, lines });
            }
            None => par::pieces(self.channels, grain, &sums),
        }
    }
}

/// How output rows read input rows through the buffer: tap k of output position o reads `o·stride + k·dilation - begin`.
struct Lines<'a> {
    slide: &'a Slide,
    /// Columns that loops run over: a block, or less for short rows, in whole vectors. Not a constant to the compiler, which would
    /// unroll such loops instead of making vectors of them.
    columns: usize,
}

impl Lines<'_> {
    /// `None` where the buffer does not do.
    fn new(slide: &Slide) -> Option<Lines<'_>> {
        let reach = (slide.kernel[2] - 1) * slide.dilation[2];
        let columns = slide.small[2].next_multiple_of(16).min(COLUMNS);
        (reach <= REACH && slide.stride[2] <= 2 && slide.taps() <= TAPS).then_some(Lines { slide, columns })
    }

    /// The input row that taps (kz, ky) of output row (d, h) read, if there is one.
    #[inline(always)]
    fn row<'a, T>(&self, plane: &'a [T], [d, h]: [usize; 2], [kz, ky]: [usize; 2]) -> Option<&'a [T]> {
        let s = self.slide;
        let z = (d * s.stride[0] + kz * s.dilation[0]).wrapping_sub(s.begin[0]);
        let y = (h * s.stride[1] + ky * s.dilation[1]).wrapping_sub(s.begin[1]);
        let width = s.large[2];
        (z < s.large[0] && y < s.large[1]).then(|| &plane[(z * s.large[1] + y) * width..][..width])
    }

    /// Copies what the block of columns from `first` on reads of a row, zeros outside of it.
    #[inline(always)]
    fn fill<T: Float>(&self, row: &[T], first: usize, buffer: &mut [T; BUFFER]) {
        let step = self.slide.stride[2];
        let len = COLUMNS * step + REACH;
        let first = (first * step) as isize - self.slide.begin[2] as isize;
        let lo = (-first).clamp(0, len as isize) as usize;
        let hi = (row.len() as isize - first).clamp(lo as isize, len as isize) as usize;
        buffer[..lo].fill(T::ZERO);
        buffer[hi..len].fill(T::ZERO);
        if hi > lo {
            buffer[lo..hi].copy_from_slice(&row[(first + lo as isize) as usize..][..hi - lo]);
        }
    }
}

/// Planes of the convolution or of its transpose.
struct Pass<'a, T> {
    of: &'a Depthwise,
    from: &'a [T],
    w: &'a [T],
    bias: Option<&'a [T]>,
    to: Shared<T>,
    transposed: bool,
}

impl<T: Float> Pass<'_, T> {
    /// Input, weights, output and bias of a plane.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    fn plane(&self, plane: usize) -> (&[T], &[T], &mut [T], T) {
        let (s, c) = (&self.of.slide, plane % self.of.channels);
        let ([large, small], taps) = (s.planes(), s.taps());
        let (read, write) = if self.transposed { (small, large) } else { (large, small) };
        // SAFETY: planes are disjoint and inside the output; each is taken by one piece.
        let to = unsafe { self.to.slice(plane * write..(plane + 1) * write) };
        let bias = self.bias.map_or(T::ZERO, |b| b[c]);
        (&self.from[plane * read..][..read], &self.w[c * taps..][..taps], to, bias)
    }
}

impl<T: Float> Piece for Pass<'_, T> {
    #[inline(always)]
    fn run(&self, range: Range<usize>) {
        let s = &self.of.slide;
        let step = s.stride[2];
        for plane in range {
            let (from, w, to, bias) = self.plane(plane);
            to.fill(bias);
            for (d, h) in s.rows() {
                for (t, w) in w.iter().enumerate() {
                    let Some(m) = s.meet(t, d, h) else { continue };
                    if self.transposed {
                        let (y, x) = (&from[m.small..][..m.count], &mut to[m.large..]);
                        match step {
                            1 => x.iter_mut().zip(y).for_each(|(x, y)| *x += *w * *y),
                            2 => x.iter_mut().step_by(2).zip(y).for_each(|(x, y)| *x += *w * *y),
                            _ => x.iter_mut().step_by(step).zip(y).for_each(|(x, y)| *x += *w * *y),
                        }
                    } else {
                        let (y, x) = (&mut to[m.small..][..m.count], &from[m.large..]);
                        match step {
                            1 => y.iter_mut().zip(x).for_each(|(y, x)| *y += *w * *x),
                            2 => y.iter_mut().zip(x.iter().step_by(2)).for_each(|(y, x)| *y += *w * *x),
                            _ => y.iter_mut().zip(x.iter().step_by(step)).for_each(|(y, x)| *y += *w * *x),
                        }
                    }
                }
            }
        }
    }
}

/// Weight gradients of channels.
struct Sums<'a, T> {
    of: &'a Depthwise,
    x: &'a [T],
    dy: &'a [T],
    dw: Shared<T>,
}

impl<T: Float> Sums<'_, T> {
    /// Planes of x and dy of image `n`.
    #[inline(always)]
    fn planes(&self, n: usize, c: usize) -> (&[T], &[T]) {
        let ([large, small], plane) = (self.of.slide.planes(), n * self.of.channels + c);
        (&self.x[plane * large..][..large], &self.dy[plane * small..][..small])
    }

    /// Stores the sums of the lanes of each tap.
    #[inline(always)]
    fn store(&self, c: usize, lanes: &mut [T]) {
        let taps = self.of.slide.taps();
        // SAFETY: each channel has its own taps.
        let dw = unsafe { self.dw.slice(c * taps..(c + 1) * taps) };
        for (dw, lanes) in dw.iter_mut().zip(lanes.chunks_exact_mut(COLUMNS)) {
            let mut half = COLUMNS / 2;
            while half > 0 {
                let (low, high) = lanes.split_at_mut(half);
                low.iter_mut().zip(high).for_each(|(l, h)| *l += *h);
                half /= 2;
            }
            *dw = lanes[0];
        }
    }
}

/// [`Sums`] through the buffer, with stride `S` along rows.
struct RowSums<'a, T, const S: usize> {
    sums: Sums<'a, T>,
    lines: Lines<'a>,
}

impl<T: Float, const S: usize> Piece for RowSums<'_, T, S> {
    #[inline(always)]
    fn run(&self, range: Range<usize>) {
        let l = &self.lines;
        let ([kd, kh, kw], [d, h, w]) = (l.slide.kernel, l.slide.small);
        let mut buffer = [T::ZERO; BUFFER];
        for c in range {
            let mut lanes = [T::ZERO; COLUMNS * TAPS];
            for n in 0..self.sums.of.images {
                let (x, dy) = self.sums.planes(n, c);
                for i in 0..d * h {
                    for first in (0..w).step_by(COLUMNS) {
                        let n = COLUMNS.min(w - first);
                        let mut part = [T::ZERO; COLUMNS];
                        part[..n].copy_from_slice(&dy[i * w + first..][..n]);
                        for k in 0..kd * kh {
                            let Some(row) = l.row(x, [i / h, i % h], [k / kh, k % kh]) else { continue };
                            l.fill(row, first, &mut buffer);
                            for x in 0..kw {
                                let (read, part) = (&buffer[x * l.slide.dilation[2]..], &part[..l.columns]);
                                let lanes = &mut lanes[(k * kw + x) * COLUMNS..][..l.columns];
                                if S == 1 {
                                    let terms = part.iter().zip(read);
                                    lanes.iter_mut().zip(terms).for_each(|(l, (a, b))| *l += *a * *b);
                                } else {
                                    let terms = part.iter().zip(read.chunks_exact(S));
                                    lanes.iter_mut().zip(terms).for_each(|(l, (a, b))| *l += *a * b[0]);
                                }
                            }
                        }
                    }
                }
            }
            self.sums.store(c, &mut lanes);
        }
    }
}

impl<T: Float> Piece for Sums<'_, T> {
    #[inline(always)]
    fn run(&self, range: Range<usize>) {
        let s = &self.of.slide;
        for c in range {
            let taps = s.taps();
            for t in 0..taps {
                let mut lanes = [T::ZERO; 16];
                for n in 0..self.of.images {
                    let (x, dy) = self.planes(n, c);
                    for (d, h) in s.rows() {
                        let Some(m) = s.meet(t, d, h) else { continue };
                        let x = x[m.large..].iter().step_by(s.stride[2]);
                        let terms = dy[m.small..][..m.count].iter().zip(x);
                        terms.enumerate().for_each(|(i, (a, b))| lanes[i % 16] += *a * *b);
                    }
                }
                for half in [8, 4, 2, 1] {
                    (0..half).for_each(|i| lanes[i] += lanes[i + half]);
                }
                // SAFETY: each channel has its own taps.
                let dw = unsafe { self.dw.slice(c * taps + t..c * taps + t + 1) };
                dw[0] = lanes[0];
            }
        }
    }
}
