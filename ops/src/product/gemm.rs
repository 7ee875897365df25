//! C = alpha·A·B + beta·C for strided matrices, with bits that never depend on the number of threads.
//!
//! The `gemm` crate multiplies on one thread; C is cut into tiles by its shape alone and the tiles run in parallel. The crate's own
//! parallel mode would pick its blocking by the thread count.

use super::panel::{transpose_16, wide};
use crate::cpu::{Float, par::Shared};
use graph::DType;
use rayon::prelude::*;
use std::cell::RefCell;

/// A matrix in memory: element (i, j) lies at `ptr + i·rs + j·cs`, in elements.
pub struct Mat<T> {
    /// Address of element (0, 0).
    pub ptr: *mut T,
    /// Distance from one row to the next.
    pub rs: isize,
    /// Distance from one column to the next.
    pub cs: isize,
}

impl<T> Clone for Mat<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Mat<T> {}

// SAFETY: an address; whoever multiplies upholds the contract of `multiply`.
unsafe impl<T: Send> Send for Mat<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Mat<T> {}

impl<T> Mat<T> {
    /// A row-major matrix whose rows are `ld` elements apart.
    pub fn rows(ptr: *mut T, ld: usize) -> Mat<T> {
        Mat { ptr, rs: ld as isize, cs: 1 }
    }

    /// The transpose of a row-major matrix whose rows are `ld` elements apart.
    pub fn cols(ptr: *mut T, ld: usize) -> Mat<T> {
        Mat { ptr, rs: 1, cs: ld as isize }
    }

    /// A row-major matrix or its transpose.
    pub fn new(ptr: *const T, ld: usize, transposed: bool) -> Mat<T> {
        let ptr = ptr.cast_mut();
        if transposed { Mat::cols(ptr, ld) } else { Mat::rows(ptr, ld) }
    }

    /// The matrix from element (i, j) on.
    pub fn at(self, i: usize, j: usize) -> Mat<T> {
        Mat { ptr: self.ptr.wrapping_offset(i as isize * self.rs + j as isize * self.cs), ..self }
    }
}

/// Rows and columns of the buffer into which B is transposed, if its columns lie in order.
const TURN: usize = 256;

thread_local! {
    /// Part of a transposed B; a fixed size, as the packing buffers of the `gemm` crate.
    static TURNED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// C = alpha·A·B + beta·C on the calling thread; A is m×k, B k×n. With `beta` 0, C is not read.
///
/// # Safety
///
/// All elements of the three matrices are valid; nobody else touches C, nobody writes to A or B, and C overlaps neither.
#[allow(clippy::too_many_arguments)]
pub unsafe fn multiply<T: Float>([m, n, k]: [usize; 3], alpha: T, a: Mat<T>, b: Mat<T>, beta: T, c: Mat<T>) {
    let turn =
        T::DTYPE == DType::F32 && wide() && b.rs == 1 && b.cs > 1 && c.cs == 1 && m > 1 && n >= 16 && k >= 16;
    if !turn {
        // SAFETY: by this function's contract.
        unsafe { multiply_plain([m, n, k], alpha, a, b, beta, c) };
        return;
    }
    // The crate packs columns element by element; transposing them first is much faster.
    TURNED.with_borrow_mut(|buffer| {
        buffer.resize(TURN * TURN, 0.0);
        for col in (0..n).step_by(TURN) {
            let w = TURN.min(n - col);
            for depth in (0..k).step_by(TURN) {
                let h = TURN.min(k - depth);
                let from = b.at(depth, col);
                let beta = if depth == 0 { beta } else { T::ONE };
                // SAFETY: blocks of the operands; the buffer has room for `TURN` rows of `TURN` elements of 4 bytes.
                unsafe {
                    turn_block(from.ptr.cast(), b.cs as usize, buffer.as_mut_ptr(), h, w);
                    let turned = Mat::rows(buffer.as_mut_ptr().cast::<T>(), TURN);
                    multiply_plain([m, w, h], alpha, a.at(0, depth), turned, beta, c.at(0, col));
                }
            }
        }
    });
}

/// `out[i][j] = from[j][i]` for i < h, j < w, with rows of `out` [`TURN`] apart.
///
/// # Safety
///
/// Both blocks are valid; [`wide`] holds.
unsafe fn turn_block(from: *const f32, ld: usize, out: *mut f32, h: usize, w: usize) {
    // SAFETY: by this function's contract.
    unsafe {
        for j in (0..w).step_by(16) {
            let mut i = 0;
            while j + 16 <= w && i + 16 <= h {
                transpose_16(from.add(j * ld + i), ld, out.add(i * TURN + j), TURN);
                i += 16;
            }
            for i in i..h {
                (j..w.min(j + 16)).for_each(|j| *out.add(i * TURN + j) = *from.add(j * ld + i));
            }
        }
    }
}

/// As [`multiply`], with the `gemm` crate.
///
/// # Safety
///
/// As there.
unsafe fn multiply_plain<T: Float>(
    [m, n, k]: [usize; 3],
    alpha: T,
    a: Mat<T>,
    b: Mat<T>,
    beta: T,
    c: Mat<T>,
) {
    // SAFETY: by this function's contract; `gemm` names C's columns first and swaps the roles of alpha and beta.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.ptr,
            c.cs,
            c.rs,
            beta != T::ZERO,
            a.ptr,
            a.cs,
            a.rs,
            b.ptr,
            b.cs,
            b.rs,
            beta,
            alpha,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// Multiply-adds that pay for a task of their own.
const TASK: usize = 1 << 21;
/// Tiles are multiples of this in both directions, so that few fall on partial registers.
const STEP: usize = 64;
/// Most tiles of one product.
const MOST_TILES: usize = 16;

/// How C is cut: rows and columns of a tile, from the shape alone.
pub fn tile([m, n, k]: [usize; 3]) -> (usize, usize) {
    let work = m.saturating_mul(n).saturating_mul(k);
    let wanted = (work / TASK).clamp(1, MOST_TILES);
    let mut best = (m.max(1), n.max(1));
    let mut least = usize::MAX;
    for rows in 1..=wanted {
        let cols = wanted.div_ceil(rows);
        // Each tile packs its rows of A and its columns of B: pick the grid that packs least.
        let packed = m.saturating_mul(cols).saturating_add(n.saturating_mul(rows));
        let whole = |n: usize, parts: usize| n.div_ceil(parts).next_multiple_of(STEP).min(n).max(1);
        if packed < least {
            (least, best) = (packed, (whole(m, rows), whole(n, cols)));
        }
    }
    best
}

/// `batch` products C = alpha·A·B + beta·C in parallel; `at(i)` gives the operands of product `i`. `prepare` runs on each tile of C
/// (as product, first row, first column, rows, columns) before it is multiplied, to fill what `beta` reads.
///
/// # Safety
///
/// As [`multiply`], for every product; the C matrices are disjoint; `prepare` writes to its tile only.
pub unsafe fn multiply_batch<T: Float>(
    batch: usize,
    shape: [usize; 3],
    alpha: T,
    beta: T,
    at: impl Fn(usize) -> (Mat<T>, Mat<T>, Mat<T>) + Sync,
    prepare: impl Fn(usize, [usize; 4]) + Sync,
) {
    let [m, n, k] = shape;
    if m == 0 || n == 0 || batch == 0 {
        return;
    }
    let (rows, cols) = tile(shape);
    let (down, across) = (m.div_ceil(rows), n.div_ceil(cols));
    let run = |t: usize| {
        let (i, t) = (t / (down * across), t % (down * across));
        let (r, c) = (t / across * rows, t % across * cols);
        let (h, w) = (rows.min(m - r), cols.min(n - c));
        let (ma, mb, mc) = at(i);
        prepare(i, [r, c, h, w]);
        // SAFETY: a tile of valid operands; tiles are disjoint.
        unsafe { multiply([h, w, k], alpha, ma.at(r, 0), mb.at(0, c), beta, mc.at(r, c)) };
    };
    let tasks = batch * down * across;
    let work = (m * n).saturating_mul(k).saturating_mul(batch);
    if tasks == 1 || work <= TASK / 16 {
        (0..tasks).for_each(run);
    } else {
        let least = (TASK / 8).div_ceil((rows * cols).saturating_mul(k.max(1)));
        (0..tasks).into_par_iter().with_min_len(least.max(1)).for_each(run);
    }
}

/// One product C = alpha·A·B + beta·C in parallel.
///
/// # Safety
///
/// As [`multiply`].
pub unsafe fn multiply_par<T: Float>(shape: [usize; 3], alpha: T, a: Mat<T>, b: Mat<T>, beta: T, c: Mat<T>) {
    // SAFETY: by this function's contract.
    unsafe { multiply_batch(1, shape, alpha, beta, |_| (a, b, c), |_, _| {}) }
}

/// Addresses of a row-major tensor's elements for use in several threads.
pub(crate) fn shared<T>(x: &[T]) -> Shared<T> {
    Shared(x.as_ptr().cast_mut())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Products of all layouts and awkward sizes against the definition.
    #[test]
    fn equals_the_definition() {
        let sizes = [
            [1, 1, 1],
            [1, 7, 5],
            [7, 1, 5],
            [3, 4, 0],
            [5, 3, 2],
            [17, 33, 65],
            [130, 70, 300],
            [400, 1, 300],
            [1, 400, 300],
        ];
        let mut x = 1u64;
        let mut next = || {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((x >> 40) as f64 / (1u64 << 24) as f64) - 0.5
        };
        for [m, n, k] in sizes {
            for (ta, tb, tc) in
                [(false, false, false), (true, false, true), (false, true, false), (true, true, true)]
            {
                let a: Vec<f64> = (0..m * k).map(|_| next()).collect();
                let b: Vec<f64> = (0..k * n).map(|_| next()).collect();
                let old: Vec<f64> = (0..m * n).map(|_| next()).collect();
                let mat = |v: &[f64], r: usize, c: usize, t: bool| {
                    Mat::new(v.as_ptr(), if t { r.max(1) } else { c.max(1) }, t)
                };
                let (ma, mb) = (mat(&a, m, k, ta), mat(&b, k, n, tb));
                let mut c = old.clone();
                let mc = Mat { ptr: c.as_mut_ptr(), ..mat(&c, m, n, tc) };
                // SAFETY: the vectors hold the matrices.
                unsafe { multiply_par([m, n, k], 2.0, ma, mb, 0.5, mc) };
                for i in 0..m {
                    for j in 0..n {
                        // SAFETY: inside the vectors.
                        let e = |m: Mat<f64>, i, j| unsafe { *m.at(i, j).ptr };
                        let sum: f64 = (0..k).map(|p| e(ma, i, p) * e(mb, p, j)).sum();
                        let want = 2.0 * sum + 0.5 * e(mat(&old, m, n, tc), i, j);
                        assert!((e(mc, i, j) - want).abs() < 1e-12, "{m}x{n}x{k} at {i},{j}");
                    }
                }
            }
        }
    }

    /// Transposed operands of single precision go through a buffer of their own.
    #[test]
    fn columns_are_turned() {
        for [m, n, k] in [[2, 16, 16], [5, 300, 270], [33, 47, 530]] {
            let a: Vec<f32> = (0..m * k).map(|i| (i * 7 % 13) as f32 - 6.0).collect();
            let b: Vec<f32> = (0..n * k).map(|i| (i * 5 % 11) as f32 - 5.0).collect();
            let mut c = vec![1.0f32; m * n];
            let mats =
                (Mat::new(a.as_ptr(), k, false), Mat::new(b.as_ptr(), k, true), Mat::rows(c.as_mut_ptr(), n));
            // SAFETY: the vectors hold the matrices.
            unsafe { multiply_par([m, n, k], 1.0, mats.0, mats.1, 2.0, mats.2) };
            for i in 0..m {
                for j in 0..n {
                    let sum: f32 = (0..k).map(|p| a[i * k + p] * b[j * k + p]).sum();
                    assert_eq!(c[i * n + j], sum + 2.0, "{m}x{n}x{k} at {i},{j}");
                }
            }
        }
    }
}
