//! Parallel loops whose pieces depend on sizes alone, so that results never depend on the number of threads.

use rayon::prelude::*;
use std::ops::Range;

/// Elements a piece of elementwise work has: enough to pay for handing it to a thread.
pub const GRAIN: usize = 1 << 14;

/// Runs `f` over `0..n` in pieces of `grain`, in parallel when there is more than one, with the widest vector instructions of the CPU.
pub fn ranges(n: usize, grain: usize, f: impl Fn(Range<usize>) + Sync) {
    split(n, grain, &|range| pulp::Arch::new().dispatch(|| f(range.clone())));
}

/// A loop over part of a range of work.
///
/// Implementations mark `run` as `#[inline(always)]`: it is then compiled once for every instruction set, however large it is, which the
/// closures of [`ranges`] are only while they are small.
pub trait Piece: Sync {
    /// Does the work of `range`.
    fn run(&self, range: Range<usize>);
}

/// As [`ranges`], for loops that must become vector code.
pub fn pieces(n: usize, grain: usize, piece: &impl Piece) {
    struct Run<'a, P>(&'a P, Range<usize>);
    impl<P: Piece> pulp::WithSimd for Run<'_, P> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, _: S) {
            self.0.run(self.1);
        }
    }
    split(n, grain, &|range| pulp::Arch::new().dispatch(Run(piece, range)));
}

/// As [`pieces`], compiled once, for the oldest CPU: for loops that are rare or only move data.
pub fn plain_pieces(n: usize, grain: usize, piece: &impl Piece) {
    split(n, grain, &|range| piece.run(range));
}

/// Runs `f` over `0..n` in pieces of `grain`. Not generic, so that rayon's machinery is compiled once and not for every kernel.
fn split(n: usize, grain: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
    let grain = grain.max(1);
    if n > grain {
        (0..n.div_ceil(grain)).into_par_iter().for_each(|p| f(p * grain..((p + 1) * grain).min(n)));
    } else if n > 0 {
        f(0..n);
    }
}

/// A raw pointer that may cross threads; the loop that uses it writes disjoint elements.
pub struct Shared<T>(pub *mut T);

// SAFETY: users write disjoint elements from different threads.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

impl<T> Shared<T> {
    /// Elements `range` as a slice.
    ///
    /// # Safety
    ///
    /// The range is inside the allocation and no other thread touches it meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice<'a>(self, range: Range<usize>) -> &'a mut [T] {
        // SAFETY: by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(range.start), range.len()) }
    }
}

/// Runs `f(i, row)` for every row of `len` elements of `out`, rows grouped so that a piece has about [`GRAIN`] elements.
pub fn rows<T: Send>(out: &mut [T], len: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    if len == 0 || out.is_empty() {
        return;
    }
    let n = out.len() / len;
    let base = Shared(out.as_mut_ptr());
    ranges(n, (GRAIN / len).max(1), |range| {
        // Named whole, so that the closure captures the `Sync` wrapper and not the pointer in it.
        let base = &base;
        for i in range {
            // SAFETY: rows are disjoint and inside `out`.
            f(i, unsafe { base.slice(i * len..(i + 1) * len) });
        }
    });
}
