//! Depthwise convolution: every channel has one kernel of its own, so there is no product to block; rows are added tap by tap.

use super::window::Slide;
use crate::cpu::{
    Float,
    par::{self, Piece, Shared},
};
use std::ops::Range;

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
        let [_, small] = self.slide.planes();
        self.run(Pass { of: self, from: x, w, bias, to: Shared(y.as_mut_ptr()), transposed: false }, small);
    }

    /// dx = the transpose of the convolution applied to dy, plus a bias.
    pub(crate) fn backward<T: Float>(&self, dy: &[T], w: &[T], bias: Option<&[T]>, dx: &mut [T]) {
        let [large, _] = self.slide.planes();
        self.run(Pass { of: self, from: dy, w, bias, to: Shared(dx.as_mut_ptr()), transposed: true }, large);
    }

    fn run<T: Float>(&self, pass: Pass<'_, T>, plane: usize) {
        let work = plane.max(1) * self.slide.taps();
        par::pieces(self.images * self.channels, (par::GRAIN / work).max(1), &pass);
    }

    /// dw = the gradient of the weights, summed over images and rows in order.
    pub(crate) fn weights<T: Float>(&self, x: &[T], dy: &[T], dw: &mut [T]) {
        let work = self.images.max(1) * self.slide.planes()[1].max(1) * self.slide.taps();
        let sums = Sums { of: self, x, dy, dw: Shared(dw.as_mut_ptr()) };
        par::pieces(self.channels, (par::GRAIN / work).max(1), &sums);
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

impl<T: Float> Piece for Pass<'_, T> {
    #[inline(always)]
    fn run(&self, range: Range<usize>) {
        let s = &self.of.slide;
        let ([large, small], taps, step) = (s.planes(), s.taps(), s.stride[2]);
        let (read, write) = if self.transposed { (small, large) } else { (large, small) };
        for plane in range {
            let c = plane % self.of.channels;
            let (from, w) = (&self.from[plane * read..][..read], &self.w[c * taps..][..taps]);
            // SAFETY: planes are disjoint and inside the output.
            let to = unsafe { self.to.slice(plane * write..(plane + 1) * write) };
            to.fill(self.bias.map_or(T::ZERO, |b| b[c]));
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

impl<T: Float> Piece for Sums<'_, T> {
    #[inline(always)]
    fn run(&self, range: Range<usize>) {
        let s = &self.of.slide;
        let ([large, small], taps) = (s.planes(), s.taps());
        for c in range {
            // SAFETY: each channel has its own taps.
            let dw = unsafe { self.dw.slice(c * taps..(c + 1) * taps) };
            dw.fill(T::ZERO);
            for n in 0..self.of.images {
                let plane = n * self.of.channels + c;
                let (x, dy) = (&self.x[plane * large..][..large], &self.dy[plane * small..][..small]);
                for (t, dw) in dw.iter_mut().enumerate() {
                    let mut lanes = [T::ZERO; 16];
                    for (d, h) in s.rows() {
                        let Some(m) = s.meet(t, d, h) else { continue };
                        dot(&mut lanes, &dy[m.small..][..m.count], &x[m.large..], s.stride[2]);
                    }
                    for half in [8, 4, 2, 1] {
                        for i in 0..half {
                            lanes[i] += lanes[i + half];
                        }
                    }
                    *dw += lanes[0];
                }
            }
        }
    }
}

/// Adds a[i]·b[i·step] to lane i modulo 16.
#[inline(always)]
fn dot<T: Float>(lanes: &mut [T; 16], a: &[T], b: &[T], step: usize) {
    let whole = a.len() / 16 * 16;
    if step == 1 {
        let b = &b[..a.len()];
        for (a, b) in a.chunks_exact(16).zip(b.chunks_exact(16)) {
            (0..16).for_each(|i| lanes[i] += a[i] * b[i]);
        }
    } else {
        for (k, a) in a.chunks_exact(16).enumerate() {
            let b = &b[k * 16 * step..][..15 * step + 1];
            (0..16).for_each(|i| lanes[i] += a[i] * b[i * step]);
        }
    }
    for (i, a) in a[whole..].iter().enumerate() {
        lanes[i] += *a * b[(whole + i) * step];
    }
}
