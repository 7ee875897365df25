//! Inner loops down the columns of a matrix: several neighbouring columns side by side, each one for itself.

use super::{Float, lanes::LANES};
use std::array::from_fn;

/// Rows, elements from one row to the next, columns (at most [`LANES`]).
pub type Extent = (usize, usize, usize);

/// One number a column.
pub type Row<T> = [T; LANES];

/// Folds each column of `K` tensors; `params` are numbers of the column that `f` needs.
///
/// # Safety
///
/// Each of `x` points to the first of the extent's readable rows.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
pub unsafe fn fold<T: Float, const K: usize, const P: usize>(
    (rows, stride, width): Extent,
    x: [*const T; K],
    start: T,
    params: [&Row<T>; P],
    f: impl Fn(T, [T; K], [T; P]) -> T,
) -> Row<T> {
    let mut acc = [start; LANES];
    for k in 0..rows {
        if width == LANES {
            for l in 0..LANES {
                // SAFETY: row `k` and column `l` are inside the extent.
                let v = from_fn(|i| unsafe { *x[i].add(k * stride + l) });
                acc[l] = f(acc[l], v, from_fn(|i| params[i][l]));
            }
        } else {
            for l in 0..width {
                // SAFETY: as above.
                let v = from_fn(|i| unsafe { *x[i].add(k * stride + l) });
                acc[l] = f(acc[l], v, from_fn(|i| params[i][l]));
            }
        }
    }
    acc
}

/// Maps the elements of each column.
///
/// # Safety
///
/// As [`fold`], and `y` points to writable rows, the same memory as one of `x` or disjoint from all.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
pub unsafe fn map<T: Float, const K: usize, const P: usize>(
    (rows, stride, width): Extent,
    x: [*const T; K],
    y: *mut T,
    params: [&Row<T>; P],
    f: impl Fn([T; K], [T; P]) -> T,
) {
    for k in 0..rows {
        let mut out = [T::ZERO; LANES];
        if width == LANES {
            for l in 0..LANES {
                // SAFETY: row `k` and column `l` are inside the extent.
                let v = from_fn(|i| unsafe { *x[i].add(k * stride + l) });
                out[l] = f(v, from_fn(|i| params[i][l]));
            }
            // SAFETY: as above.
            unsafe { y.add(k * stride).cast::<Row<T>>().write_unaligned(out) };
        } else {
            for l in 0..width {
                // SAFETY: as above.
                unsafe {
                    let v = from_fn(|i| *x[i].add(k * stride + l));
                    *y.add(k * stride + l) = f(v, from_fn(|i| params[i][l]));
                }
            }
        }
    }
}

/// The sum of `f` down each column, in blocks of 256 rows and float64 beyond.
///
/// # Safety
///
/// As [`fold`].
#[inline(always)]
pub unsafe fn sums<T: Float, const K: usize, const P: usize>(
    (rows, stride, width): Extent,
    x: [*const T; K],
    params: [&Row<T>; P],
    f: impl Fn([T; K], [T; P]) -> T,
) -> Row<f64> {
    let mut total = [0.0; LANES];
    for first in (0..rows).step_by(256) {
        let extent = (256.min(rows - first), stride, width);
        // SAFETY: a block of the extent.
        let block = unsafe {
            let x = x.map(|p| p.add(first * stride));
            fold(
                extent,
                x,
                T::ZERO,
                params,
                #[inline(always)]
                |s, v, p| s + f(v, p),
            )
        };
        for (t, b) in total.iter_mut().zip(block) {
            *t += b.to_f64();
        }
    }
    total
}
