//! What a mask does to a row of scores, and to its gradient.
//!
//! Models either add a mask to the scores or put a number in the place of those that count nothing (Where). In a row of which something
//! counts both are one: the rest has probability 0. In a row of which nothing counts, as padding makes them, all probabilities are equal,
//! and gradients differ: they pass a sum, but not a score that was replaced. So the second kind stays a boolean mask, and is a byte a score.

use crate::{
    cpu::{Float, Io, lanes, math::Math, par::Shared},
    product::gemm::shared,
};

/// A mask's elements.
pub(super) enum Given<T> {
    /// Added to the scores.
    Added(Shared<T>),
    /// Scores stay where it is not 0, and become the number elsewhere.
    Kept(Shared<u8>, T),
}

impl<T: Math> Given<T> {
    /// Input `i`, with the score of what is left out if the mask is boolean.
    pub(super) fn of(io: &Io<'_>, i: usize, fill: Option<f64>) -> Given<T> {
        match fill {
            Some(fill) => Given::Kept(shared(io.input::<u8>(i)), T::from_f64(fill)),
            None => Given::Added(shared(io.input::<T>(i))),
        }
    }

    /// Masks a row of scores.
    ///
    /// # Safety
    ///
    /// `row` has `n` writable elements; the mask has `n` from `at` on, or one if `stride` is 0.
    #[inline(always)]
    pub(super) unsafe fn put(&self, n: usize, row: *mut T, at: usize, stride: usize) {
        // SAFETY: by this function's contract.
        unsafe {
            match self {
                Given::Added(m) => add(n, row, m.0.add(at).cast_const(), stride),
                Given::Kept(keep, fill) => choose(n, row, keep.0.add(at).cast_const(), stride, *fill),
            }
        }
    }

    /// Takes the gradient of what was replaced out of a row of the scores' gradients.
    ///
    /// # Safety
    ///
    /// As [`Given::put`].
    #[inline(always)]
    pub(super) unsafe fn cut(&self, n: usize, row: *mut T, at: usize, stride: usize) {
        if let Given::Kept(keep, _) = self {
            // SAFETY: by this function's contract.
            unsafe { choose(n, row, keep.0.add(at).cast_const(), stride, T::ZERO) };
        }
    }
}

/// Adds a mask to a row.
#[inline(always)]
unsafe fn add<T: Math>(n: usize, row: *mut T, mask: *const T, stride: usize) {
    // SAFETY: by the contract of `Given::put`.
    unsafe {
        if stride == 0 {
            let m = *mask;
            lanes::map(
                n,
                [row.cast_const()],
                [row],
                #[inline(always)]
                |[x]| [x + m],
            );
        } else {
            lanes::map(
                n,
                [row.cast_const(), mask],
                [row],
                #[inline(always)]
                |[x, m]| [x + m],
            );
        }
    }
}

/// Puts `other` where a row is not kept.
#[inline(always)]
unsafe fn choose<T: Float>(n: usize, row: *mut T, keep: *const u8, stride: usize, other: T) {
    // SAFETY: by the contract of `Given::put`.
    unsafe {
        if stride == 0 {
            if *keep == 0 {
                (0..n).for_each(|j| *row.add(j) = other);
            }
        } else {
            for j in 0..n {
                *row.add(j) = if *keep.add(j) != 0 { *row.add(j) } else { other };
            }
        }
    }
}
