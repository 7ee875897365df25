//! Depthwise convolution: every channel has one kernel of its own, so there is no product to block; rows are added tap by tap.

use super::window::{Window, three};
use crate::cpu::{Float, par};

/// A prepared depthwise convolution with its two transposes.
#[derive(Clone, Debug)]
pub(crate) struct Depthwise {
    images: usize,
    channels: usize,
    large: [usize; 3],
    small: [usize; 3],
    kernel: [usize; 3],
    stride: [usize; 3],
    dilation: [usize; 3],
    begin: [usize; 3],
}

/// A row of the small side and the row of the large side that a tap joins it with: first element and count on the small side, first
/// element on the large side.
struct Meet {
    small: usize,
    count: usize,
    large: usize,
}

impl Depthwise {
    pub(crate) fn new(
        w: &Window,
        images: usize,
        channels: usize,
        large: &[usize],
        small: &[usize],
    ) -> Depthwise {
        let size = |v: &[i64], fill| three(v, fill).map(|x| x as usize);
        Depthwise {
            images,
            channels,
            large: three(large, 1),
            small: three(small, 1),
            kernel: size(&w.kernel, 1),
            stride: size(&w.strides, 1),
            dilation: size(&w.dilations, 1),
            begin: size(&w.begin, 0),
        }
    }

    fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    fn planes(&self) -> [usize; 2] {
        [self.large.iter().product(), self.small.iter().product()]
    }

    /// The part of row (d, h) of the small side that tap `t` joins with the large side, if any.
    #[inline(always)]
    fn meet(&self, t: usize, d: usize, h: usize) -> Option<Meet> {
        let [_, kh, kw] = self.kernel;
        let k = [t / (kh * kw), t / kw % kh, t % kw];
        let at =
            |a: usize, i: usize| (i * self.stride[a] + k[a] * self.dilation[a]).checked_sub(self.begin[a]);
        let z = at(0, d).filter(|z| *z < self.large[0])?;
        let y = at(1, h).filter(|y| *y < self.large[1])?;
        // Columns w with 0 <= w·s + k·dilation - begin < extent.
        let (s, shift) = (self.stride[2], k[2] * self.dilation[2]);
        let first = self.begin[2].saturating_sub(shift).div_ceil(s);
        let end = (self.large[2] + self.begin[2]).saturating_sub(shift).div_ceil(s).min(self.small[2]);
        let count = end.checked_sub(first).filter(|c| *c > 0)?;
        let large = (z * self.large[1] + y) * self.large[2] + first * s + shift - self.begin[2];
        Some(Meet { small: (d * self.small[1] + h) * self.small[2] + first, count, large })
    }

    fn small_rows(&self) -> impl Iterator<Item = (usize, usize)> {
        let [d, h, _] = self.small;
        (0..d * h).map(move |i| (i / h, i % h))
    }

    /// y = x convolved with w, plus the bias.
    pub(crate) fn forward<T: Float>(&self, x: &[T], w: &[T], bias: Option<&[T]>, y: &mut [T]) {
        let ([large, small], taps, s) = (self.planes(), self.taps(), self.stride[2]);
        par::rows(y, small, |plane, y| {
            let c = plane % self.channels;
            let (x, w) = (&x[plane * large..][..large], &w[c * taps..][..taps]);
            y.fill(bias.map_or(T::ZERO, |b| b[c]));
            for (d, h) in self.small_rows() {
                for (t, w) in w.iter().enumerate() {
                    let Some(m) = self.meet(t, d, h) else { continue };
                    let (y, x) = (&mut y[m.small..][..m.count], &x[m.large..]);
                    match s {
                        1 => y.iter_mut().zip(x).for_each(|(y, x)| *y += *w * *x),
                        2 => y.iter_mut().zip(x.iter().step_by(2)).for_each(|(y, x)| *y += *w * *x),
                        _ => y.iter_mut().zip(x.iter().step_by(s)).for_each(|(y, x)| *y += *w * *x),
                    }
                }
            }
        });
    }

    /// dx = the transpose of the convolution applied to dy, plus a bias.
    pub(crate) fn backward<T: Float>(&self, dy: &[T], w: &[T], bias: Option<&[T]>, dx: &mut [T]) {
        let ([large, small], taps, s) = (self.planes(), self.taps(), self.stride[2]);
        par::rows(dx, large, |plane, dx| {
            let c = plane % self.channels;
            let (dy, w) = (&dy[plane * small..][..small], &w[c * taps..][..taps]);
            dx.fill(bias.map_or(T::ZERO, |b| b[c]));
            for (d, h) in self.small_rows() {
                for (t, w) in w.iter().enumerate() {
                    let Some(m) = self.meet(t, d, h) else { continue };
                    let (dy, dx) = (&dy[m.small..][..m.count], &mut dx[m.large..]);
                    match s {
                        1 => dx.iter_mut().zip(dy).for_each(|(x, y)| *x += *w * *y),
                        2 => dx.iter_mut().step_by(2).zip(dy).for_each(|(x, y)| *x += *w * *y),
                        _ => dx.iter_mut().step_by(s).zip(dy).for_each(|(x, y)| *x += *w * *y),
                    }
                }
            }
        });
    }

    /// dw = the gradient of the weights, summed over images and rows in order.
    pub(crate) fn weights<T: Float>(&self, x: &[T], dy: &[T], dw: &mut [T]) {
        let ([large, small], taps) = (self.planes(), self.taps());
        let grain = (par::GRAIN / (self.images * small * taps).max(1)).max(1);
        let out = par::Shared(dw.as_mut_ptr());
        par::ranges(self.channels, grain, |range| {
            let out = &out;
            for c in range {
                // SAFETY: each channel has its own taps.
                let dw = unsafe { out.slice(c * taps..(c + 1) * taps) };
                for (t, dw) in dw.iter_mut().enumerate() {
                    let mut sum = T::ZERO;
                    for n in 0..self.images {
                        let plane = n * self.channels + c;
                        let (x, dy) = (&x[plane * large..][..large], &dy[plane * small..][..small]);
                        let mut image = T::ZERO;
                        for (d, h) in self.small_rows() {
                            let Some(m) = self.meet(t, d, h) else { continue };
                            image += dot(&dy[m.small..][..m.count], &x[m.large..], self.stride[2]);
                        }
                        sum += image;
                    }
                    *dw = sum;
                }
            }
        });
    }
}

/// The sum of a[i]·b[i·step] in 16 lanes.
#[inline(always)]
fn dot<T: Float>(a: &[T], b: &[T], step: usize) -> T {
    let mut lanes = [T::ZERO; 16];
    if step == 1 {
        let (a, b) = (a.chunks(16), b[..a.len()].chunks(16));
        for (a, b) in a.zip(b) {
            lanes.iter_mut().zip(a).zip(b).for_each(|((l, a), b)| *l += *a * *b);
        }
    } else {
        let mut b = b.iter().step_by(step);
        for a in a.chunks(16) {
            lanes.iter_mut().zip(a).zip(&mut b).for_each(|((l, a), b)| *l += *a * *b);
        }
    }
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}
