//! Products of 16-bit matrices: tile by tile, widened into scratch of the plan's workspace, multiplied and added up in float32.
//!
//! A tile of C stays in float32 over the whole depth and is rounded once. Tiles are cut by shape alone and drawn by a fixed number of slots,
//! each with scratch of its own, so that the workspace is bounded and bits depend on no thread.

use super::gemm::{Mat, multiply};
use crate::cpu::{half::Stored, par::Shared};
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most tiles that are worked on at once.
const SLOTS: usize = 8;
/// Most rows and columns of a tile.
const SIDE: usize = 256;
/// Most of the depth that is widened at once.
const DEPTH: usize = 512;
/// Multiply-adds below which one slot does all.
const FEW: usize = 1 << 17;

/// Writes what a product is added to into a tile of C: product, first row, first column, rows, columns; the tile.
pub(super) type Start<'a> = dyn Fn(usize, [usize; 4], &mut [f32]) + Sync + 'a;

/// How a batch of products is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    batch: usize,
    shape: [usize; 3],
    rows: usize,
    cols: usize,
    depth: usize,
    slots: usize,
}

impl Tiles {
    /// For `batch` products of m×k and k×n.
    pub(super) fn new(batch: usize, [m, n, k]: [usize; 3]) -> Tiles {
        let (rows, cols, depth) = (m.min(SIDE), n.min(SIDE), k.min(DEPTH));
        let work = m.saturating_mul(n).saturating_mul(k).saturating_mul(batch);
        let mut tiles = Tiles { batch, shape: [m, n, k], rows, cols, depth, slots: 1 };
        if work > FEW {
            tiles.slots = tiles.tasks().clamp(1, SLOTS);
        }
        tiles
    }

    fn tasks(&self) -> usize {
        let [m, n, _] = self.shape;
        self.batch * m.div_ceil(self.rows.max(1)) * n.div_ceil(self.cols.max(1))
    }

    /// Elements of one slot's scratch: tiles of A, B and C.
    fn room(&self) -> usize {
        self.rows * self.depth + self.depth * self.cols + self.rows * self.cols
    }

    /// Bytes of workspace.
    pub(super) fn workspace(&self) -> u64 {
        (self.slots * self.room() * 4) as u64
    }

    /// C = alpha·A·B, plus what `start` writes where it is given.
    ///
    /// # Safety
    ///
    /// `at` gives the operands of each product; all their elements are valid, the C matrices disjoint, and nobody else touches them.
    pub(super) unsafe fn multiply<S: Stored<Work = f32>>(
        &self,
        alpha: f32,
        at: impl Fn(usize) -> (Mat<S>, Mat<S>, Mat<S>) + Sync,
        start: Option<&Start<'_>>,
        scratch: &mut [f32],
    ) {
        let [m, n, k] = self.shape;
        let tasks = self.tasks();
        if m == 0 || n == 0 || tasks == 0 {
            return;
        }
        let (down, across) = (m.div_ceil(self.rows), n.div_ceil(self.cols));
        let scratch = Shared(scratch.as_mut_ptr());
        let next = AtomicUsize::new(0);
        let slot = |i: usize| {
            let scratch = &scratch;
            // SAFETY: slots have disjoint scratch inside the workspace.
            let room = unsafe { scratch.slice(i * self.room()..(i + 1) * self.room()) };
            let (a, rest) = room.split_at_mut(self.rows * self.depth);
            let (b, c) = rest.split_at_mut(self.depth * self.cols);
            loop {
                let t = next.fetch_add(1, Ordering::Relaxed);
                if t >= tasks {
                    break;
                }
                let (product, t) = (t / (down * across), t % (down * across));
                let (row, col) = (t / across * self.rows, t % across * self.cols);
                let (h, w) = (self.rows.min(m - row), self.cols.min(n - col));
                let (ma, mb, mc) = at(product);
                if let Some(start) = start {
                    start(product, [row, col, h, w], &mut c[..h * w]);
                }
                for d in (0..k.max(1)).step_by(self.depth.max(1)) {
                    let l = self.depth.min(k - d);
                    let beta = if d == 0 && start.is_none() { 0.0 } else { 1.0 };
                    // SAFETY: blocks of the operands; the scratch has room for a tile of each.
                    unsafe {
                        let a = widened(ma.at(row, d), h, l, a);
                        let b = widened(mb.at(d, col), l, w, b);
                        multiply([h, w, l], alpha, a, b, beta, Mat::rows(c.as_mut_ptr(), w));
                    }
                }
                for r in 0..h {
                    // SAFETY: a row of this task's tile.
                    unsafe { S::narrow(c[r * w..].as_ptr(), mc.at(row + r, col).ptr, w) };
                }
            }
        };
        if self.slots == 1 {
            slot(0);
        } else {
            (0..self.slots).into_par_iter().with_max_len(1).for_each(slot);
        }
    }
}

/// A block of a matrix in float32, laid out as the matrix is.
///
/// # Safety
///
/// The block is valid, one of its strides is 1, and `out` has room for it.
unsafe fn widened<S: Stored<Work = f32>>(m: Mat<S>, rows: usize, cols: usize, out: &mut [f32]) -> Mat<f32> {
    let (lines, len, step) = if m.cs == 1 { (rows, cols, m.rs) } else { (cols, rows, m.cs) };
    // SAFETY: by this function's contract.
    unsafe {
        if step == len as isize {
            S::widen(m.ptr, out.as_mut_ptr(), lines * len);
        } else {
            for i in 0..lines {
                S::widen(m.ptr.offset(i as isize * step), out[i * len..].as_mut_ptr(), len);
            }
        }
    }
    Mat::new(out.as_ptr(), len, m.cs != 1)
}
