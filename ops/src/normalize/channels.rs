//! Walking a tensor `[N, C, d..]` channel by channel.

use crate::{
    OpError, Signature,
    cpu::{
        Float,
        columns::{self, Extent, Row},
        half::{Stored, is_half},
        lanes::{self, BLOCK, LANES},
        par,
    },
    loss::same_shape,
};
use graph::{DType, Shape, TensorType};
use std::ops::Range;

/// Extents of a tensor: batch, channels, elements of one channel of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Channels {
    pub n: usize,
    pub c: usize,
    pub s: usize,
}

impl Channels {
    pub(super) fn new(dims: &[usize]) -> Channels {
        Channels { n: dims[0], c: dims[1], s: dims[2..].iter().product() }
    }

    /// Elements of one channel.
    pub(super) fn count(&self) -> usize {
        self.n * self.s
    }

    /// Runs `runs(range of channels)` where a channel's elements are runs, otherwise (one element a sample) `groups(range of groups)` with
    /// groups of [`LANES`] channels. Both closures must be marked `#[inline(always)]`.
    pub(super) fn each(&self, runs: impl Fn(Range<usize>) + Sync, groups: impl Fn(Range<usize>) + Sync) {
        if self.s == 1 {
            let grain = (par::GRAIN / (self.n * LANES).max(1)).max(1);
            lanes::each(self.c.div_ceil(LANES), grain, groups);
        } else {
            let grain = (par::GRAIN / self.count().max(1)).max(1);
            lanes::each(self.c, grain, runs);
        }
    }

    /// First channel of group `g`, and the extent of its columns in a tensor of one element a channel and sample.
    pub(super) fn group(&self, g: usize) -> (usize, Extent) {
        let first = g * LANES;
        (first, (self.n, self.c, LANES.min(self.c - first)))
    }

    /// Sums over all elements of channel `c`; see [`lanes::sums`].
    ///
    /// # Safety
    ///
    /// Each of `x` points to a readable tensor of these extents.
    #[inline(always)]
    pub(super) unsafe fn sums<S: Stored, const K: usize, const M: usize>(
        &self,
        c: usize,
        x: [*const S; K],
        f: impl Fn([S::Work; K]) -> [S::Work; M],
    ) -> [f64; M] {
        let mut total = [0.0; M];
        for n in 0..self.n {
            let at = (n * self.c + c) * self.s;
            // SAFETY: the run of channel `c` in sample `n`.
            let part = unsafe {
                let run = x.map(|p| p.add(at));
                if S::DIRECT {
                    lanes::sums(self.s, run.map(|p| p.cast()), &f)
                } else {
                    sums_wide(self.s, run, &f)
                }
            };
            for m in 0..M {
                total[m] += part[m];
            }
        }
        total
    }

    /// Maps all elements of channel `c`; see [`lanes::map`].
    ///
    /// # Safety
    ///
    /// As [`Channels::sums`], and `y` points to a writable tensor, one of `x` or disjoint from all.
    #[inline(always)]
    pub(super) unsafe fn map<S: Stored, const K: usize>(
        &self,
        c: usize,
        x: [*const S; K],
        y: *mut S,
        f: impl Fn([S::Work; K]) -> S::Work,
    ) {
        for n in 0..self.n {
            let at = (n * self.c + c) * self.s;
            // SAFETY: the run of channel `c` in sample `n`.
            unsafe {
                let (run, y) = (x.map(|p| p.add(at)), y.add(at));
                if S::DIRECT {
                    lanes::map(
                        self.s,
                        run.map(|p| p.cast()),
                        [y.cast()],
                        #[inline(always)]
                        |v| [f(v)],
                    );
                } else {
                    map_wide(
                        self.s,
                        run,
                        y,
                        #[inline(always)]
                        |v| [f(v)],
                    );
                }
            };
        }
    }
}

/// [`lanes::sums`] of runs that are widened block by block: the blocks in which it adds, so that the bits are those of widened runs.
///
/// # Safety
///
/// As there.
#[inline(always)]
unsafe fn sums_wide<S: Stored, const K: usize, const M: usize>(
    n: usize,
    x: [*const S; K],
    f: impl Fn([S::Work; K]) -> [S::Work; M],
) -> [f64; M] {
    let mut wide = [[S::Work::ZERO; BLOCK]; K];
    let mut total = [0.0; M];
    for at in (0..n).step_by(BLOCK) {
        let len = BLOCK.min(n - at);
        // SAFETY: the block lies inside the runs, and the buffers have room for it.
        let part = unsafe {
            wide.iter_mut().zip(x).for_each(|(w, x)| S::widen(x.add(at), w.as_mut_ptr(), len));
            lanes::sums(len, std::array::from_fn(|k| wide[k].as_ptr()), &f)
        };
        for m in 0..M {
            total[m] += part[m];
        }
    }
    total
}

/// [`lanes::map`] of runs that are widened block by block, and rounded as they are stored.
///
/// # Safety
///
/// As there.
#[inline(always)]
unsafe fn map_wide<S: Stored, const K: usize>(
    n: usize,
    x: [*const S; K],
    y: *mut S,
    f: impl Fn([S::Work; K]) -> [S::Work; 1],
) {
    let mut wide = [[S::Work::ZERO; BLOCK]; K];
    let mut out = [S::Work::ZERO; BLOCK];
    for at in (0..n).step_by(BLOCK) {
        let len = BLOCK.min(n - at);
        // SAFETY: the block lies inside the runs and is read before it is written; the buffers have room for it.
        unsafe {
            wide.iter_mut().zip(x).for_each(|(w, x)| S::widen(x.add(at), w.as_mut_ptr(), len));
            lanes::map(len, std::array::from_fn(|k| wide[k].as_ptr()), [out.as_mut_ptr()], &f);
            S::narrow(out.as_ptr(), y.add(at), len);
        }
    }
}

/// Refuses what kernels over [`Channels`] do not take themselves: 16-bit floats with parameters of 16 bits, or one element a channel.
pub(super) fn takes_halves(x: DType, scale: DType, d: Channels, op: &str) -> Result<(), OpError> {
    if is_half(x) && (scale != DType::F32 || d.s == 1) {
        return Err(OpError::unsupported(format!("{op} of such halves")));
    }
    Ok(())
}

/// The numbers of channels from `first` on, `width` of them.
#[inline(always)]
pub(super) fn load<T: Float>(x: &[T], first: usize, width: usize) -> Row<T> {
    let mut row = [T::ZERO; LANES];
    row[..width].copy_from_slice(&x[first..first + width]);
    row
}

/// `f` of each lane.
#[inline(always)]
pub(super) fn lanes_of<T: Float>(f: impl Fn(usize) -> T) -> Row<T> {
    std::array::from_fn(f)
}

/// Sums down the columns of a group; see [`columns::sums`].
pub(super) use columns::sums as column_sums;

/// The shape in which one number a channel is broadcast to these extents, and the axes of which a channel consists.
pub(super) fn line_and_axes(dims: &[usize]) -> (Vec<usize>, Vec<i64>) {
    let mut line = vec![1; dims.len()];
    line[1] = dims[1];
    (line, (0..dims.len() as i64).filter(|a| *a != 1).collect())
}

/// The dtype of parameters and statistics: the input's, or float32 for an input of 16-bit floats whose scale is float32.
pub(super) fn statistics_dtype(x: DType, scale: DType) -> DType {
    if is_half(x) && scale == DType::F32 { scale } else { x }
}

/// Checks that x is `[N, C, d..]` and each of `params` (input, name) is `[C]` of its dtype, or all of them float32 where x has
/// 16-bit floats; returns the types of both.
pub(super) fn infer_channels(
    s: &Signature<'_>,
    x: usize,
    params: &[(usize, &str)],
) -> Result<(TensorType, TensorType), OpError> {
    let x = s.input(x)?;
    if !x.dtype.is_float() || x.shape.rank() < 2 {
        return Err(OpError::invalid(format!("the input must be floating-point [N, C, ..], not {x}")));
    }
    let dtype = match params.first() {
        Some((scale, _)) => statistics_dtype(x.dtype, s.input(*scale)?.dtype),
        None => x.dtype,
    };
    let channel = TensorType { dtype, shape: Shape(vec![x.shape.0[1].clone()]) };
    for (i, what) in params {
        let t = s.input(*i)?;
        if t.dtype != dtype {
            return Err(OpError::invalid(format!("{what} must be {dtype} like the input, not {}", t.dtype)));
        }
        same_shape(&channel.shape, &t.shape, what)?;
    }
    Ok((x.clone(), channel))
}
