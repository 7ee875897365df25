//! Walking the lines of a tensor along one axis, whether their elements are adjacent or not.

use crate::{
    OpError, Signature,
    cpu::{
        Float,
        lanes::{self, LANES},
        par,
    },
    onnx::normalize_axis,
};
use graph::TensorType;

/// A tensor as `outer` × `n` × `inner`, where `n` is the extent of the axis. Line `l` starts at `l / inner * n * inner + l % inner`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Along {
    pub outer: usize,
    pub n: usize,
    pub inner: usize,
}

/// Up to [`LANES`] neighbouring lines: the first one's number, the offset of its first element, how many lines.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub line: usize,
    pub at: usize,
    pub width: usize,
}

impl Along {
    pub(super) fn new(dims: &[usize], axis: usize) -> Along {
        Along {
            outer: dims[..axis].iter().product(),
            n: dims[axis],
            inner: dims[axis + 1..].iter().product(),
        }
    }

    /// Of input 0 along the attribute `axis`.
    pub(super) fn of(s: &Signature<'_>) -> Result<Along, OpError> {
        let dims = s.dims(0)?;
        let axis = normalize_axis(s.attrs.int("axis")?, dims.len())?;
        Ok(Along::new(&dims, axis))
    }

    /// Pieces of work: rows, or groups of columns.
    fn units(&self) -> usize {
        if self.inner == 1 { self.outer } else { self.outer * self.inner.div_ceil(LANES) }
    }

    /// Units one piece has.
    fn grain(&self) -> usize {
        let unit = if self.inner == 1 { self.n } else { self.n * LANES };
        (par::GRAIN / unit.max(1)).max(1)
    }

    /// Number of pieces in which [`Along::each`] walks the tensor.
    pub(super) fn pieces(&self) -> usize {
        self.units().div_ceil(self.grain())
    }

    /// Calls `rows(piece, range of rows)` where lines are adjacent elements, otherwise `columns(piece, groups)`. Both closures must be
    /// marked `#[inline(always)]`.
    #[inline(always)]
    pub(super) fn each(
        &self,
        rows: impl Fn(usize, std::ops::Range<usize>) + Sync,
        columns: impl Fn(usize, &mut dyn Iterator<Item = Columns>) + Sync,
    ) {
        let (me, grain) = (*self, self.grain());
        if me.inner == 1 {
            lanes::each(
                me.outer,
                grain,
                #[inline(always)]
                |r| rows(r.start / grain, r),
            );
            return;
        }
        let groups = me.inner.div_ceil(LANES);
        lanes::each(
            me.units(),
            grain,
            #[inline(always)]
            |r| {
                let piece = r.start / grain;
                let mut all = r.map(|u| {
                    let (o, i) = (u / groups, u % groups * LANES);
                    let at = o * me.n * me.inner + i;
                    Columns { line: o * me.inner + i, at, width: LANES.min(me.inner - i) }
                });
                columns(piece, &mut all);
            },
        );
    }
}

/// Folds `n` rows, `stride` elements apart, of up to [`LANES`] columns of `K` tensors, each column for itself; `carry` is what `f` knows of
/// its column.
///
/// # Safety
///
/// Each of `x` points to the first of `n` readable rows of `width` elements.
#[inline(always)]
pub(super) unsafe fn fold<T: Float, const K: usize>(
    (n, stride, width): (usize, usize, usize),
    x: [*const T; K],
    start: T,
    carry: &[T; LANES],
    f: impl Fn(T, [T; K], T) -> T,
) -> [T; LANES] {
    let mut acc = [start; LANES];
    for k in 0..n {
        if width == LANES {
            for l in 0..LANES {
                // SAFETY: row `k < n`, column `l < width`.
                let v = std::array::from_fn(|i| unsafe { *x[i].add(k * stride + l) });
                acc[l] = f(acc[l], v, carry[l]);
            }
        } else {
            for l in 0..width {
                // SAFETY: as above.
                let v = std::array::from_fn(|i| unsafe { *x[i].add(k * stride + l) });
                acc[l] = f(acc[l], v, carry[l]);
            }
        }
    }
    acc
}

/// Maps the same columns: `y = f(x, a, b)` with `a` and `b` of the element's column.
///
/// # Safety
///
/// As [`fold`], and `y` points to writable rows, the same memory as one of `x` or disjoint from all.
#[inline(always)]
pub(super) unsafe fn map<T: Float, const K: usize>(
    (n, stride, width): (usize, usize, usize),
    x: [*const T; K],
    y: *mut T,
    (a, b): (&[T; LANES], &[T; LANES]),
    f: impl Fn([T; K], T, T) -> T,
) {
    for k in 0..n {
        let mut out = [T::ZERO; LANES];
        if width == LANES {
            for l in 0..LANES {
                // SAFETY: row `k < n`, column `l < width`.
                let v = std::array::from_fn(|i| unsafe { *x[i].add(k * stride + l) });
                out[l] = f(v, a[l], b[l]);
            }
            // SAFETY: as above.
            unsafe { y.add(k * stride).cast::<[T; LANES]>().write_unaligned(out) };
        } else {
            for l in 0..width {
                // SAFETY: as above.
                unsafe {
                    let v = std::array::from_fn(|i| *x[i].add(k * stride + l));
                    *y.add(k * stride + l) = f(v, a[l], b[l]);
                }
            }
        }
    }
}

/// Refuses types of different dtype or shape.
pub(super) fn same_type(a: &TensorType, b: &TensorType, what: &str) -> Result<(), OpError> {
    if a != b {
        return Err(OpError::invalid(format!("{what}: {a} and {b} must be one type")));
    }
    Ok(())
}
