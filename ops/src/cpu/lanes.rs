//! Inner loops over runs of elements: sums in a fixed order and maps that may work in place.
//!
//! Both go through runs in groups of elements that are read before anything is stored, so that they become vector instructions even where
//! the output is the memory of an input.

use super::{Float, par};
use std::{array::from_fn, ops::Range};

/// Elements handled side by side.
pub const LANES: usize = 32;

/// Elements of a loop that is long enough for LLVM to make vector code of it instead of unrolling it into single operations.
const TILE: usize = 128;

/// Elements added in the element type before the sum goes on in float64.
pub(crate) const BLOCK: usize = 4096;

/// As [`par::pieces`] for a closure, which must be marked `#[inline(always)]` to become vector code.
pub fn each(n: usize, grain: usize, f: impl Fn(Range<usize>) + Sync) {
    struct Inlined<F>(F);
    impl<F: Fn(Range<usize>) + Sync> par::Piece for Inlined<F> {
        #[inline(always)]
        fn run(&self, range: Range<usize>) {
            (self.0)(range);
        }
    }
    par::pieces(n, grain, &Inlined(f));
}

/// The `M` sums of `f` over `n` elements of `K` runs. [`LANES`] partial sums in the element type within blocks of 4,096 elements, float64
/// beyond: accurate for any length, and the order depends on `n` alone.
///
/// # Safety
///
/// Each of `x` points to `n` readable elements.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
pub unsafe fn sums<T: Float, const K: usize, const M: usize>(
    n: usize,
    x: [*const T; K],
    f: impl Fn([T; K]) -> [T; M],
) -> [f64; M] {
    let mut total = [0.0; M];
    let mut at = 0;
    while at < n {
        let end = (at + BLOCK).min(n);
        let mut partial = [[T::ZERO; LANES]; M];
        while at + TILE <= end {
            let mut terms = [[T::ZERO; TILE]; M];
            for l in 0..TILE {
                // SAFETY: `at + l < n`.
                let t = f(from_fn(|k| unsafe { *x[k].add(at + l) }));
                for m in 0..M {
                    terms[m][l] = t[m];
                }
            }
            for m in 0..M {
                for group in terms[m].chunks_exact(LANES) {
                    for l in 0..LANES {
                        partial[m][l] += group[l];
                    }
                }
            }
            at += TILE;
        }
        while at + LANES <= end {
            for l in 0..LANES {
                // SAFETY: `at + l < n`.
                let t = f(from_fn(|k| unsafe { *x[k].add(at + l) }));
                for m in 0..M {
                    partial[m][l] += t[m];
                }
            }
            at += LANES;
        }
        for l in 0..end - at {
            // SAFETY: `at + l < n`.
            let v = f(from_fn(|k| unsafe { *x[k].add(at + l) }));
            for m in 0..M {
                partial[m][l] += v[m];
            }
        }
        at = end;
        for m in 0..M {
            total[m] += halved(partial[m], |a, b| a + b).to_f64();
        }
    }
    total
}

/// The largest of `n` elements, NaN if one is; -infinity for none.
///
/// # Safety
///
/// `x` points to `n` readable elements.
#[allow(clippy::eq_op, clippy::needless_range_loop)]
#[inline(always)]
pub unsafe fn largest<T: Float>(n: usize, x: *const T) -> T {
    let mut partial = [T::NEG_INFINITY; LANES];
    // A lane's NaN, which no comparison would keep.
    let mut odd = [T::ZERO; LANES];
    let mut at = 0;
    while at + LANES <= n {
        // SAFETY: a whole group lies inside the run.
        let v = unsafe { x.add(at).cast::<[T; LANES]>().read_unaligned() };
        for l in 0..LANES {
            partial[l] = if v[l] > partial[l] { v[l] } else { partial[l] };
        }
        for l in 0..LANES {
            odd[l] = if v[l] == v[l] { odd[l] } else { v[l] };
        }
        at += LANES;
    }
    for l in 0..n - at {
        // SAFETY: `at + l < n`.
        let v = unsafe { *x.add(at + l) };
        partial[l] = if v > partial[l] { v } else { partial[l] };
        odd[l] = if v == v { odd[l] } else { v };
    }
    // 0 unless there was a NaN.
    halved(partial, |a, b| if b > a { b } else { a }) + halved(odd, |a, b| a + b)
}

/// Combines lane `l` with lane `l + half` until one is left.
#[inline(always)]
fn halved<T: Copy>(mut v: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    let mut half = LANES / 2;
    while half > 0 {
        for l in 0..half {
            v[l] = f(v[l], v[l + half]);
        }
        half /= 2;
    }
    v[0]
}

/// `y[m][i] = f([x[0][i], ..])[m]` for `n` elements.
///
/// # Safety
///
/// Each of `x` points to `n` readable and each of `y` to `n` writable elements; runs of `y` are disjoint; a run of `y` is exactly a run
/// of `x` or does not overlap any.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
pub unsafe fn map<T: Float, const K: usize, const M: usize>(
    n: usize,
    x: [*const T; K],
    y: [*mut T; M],
    f: impl Fn([T; K]) -> [T; M],
) {
    let mut at = 0;
    while at + TILE <= n {
        let mut out = [[T::ZERO; TILE]; M];
        for l in 0..TILE {
            // SAFETY: `at + l < n`.
            let r = f(from_fn(|k| unsafe { *x[k].add(at + l) }));
            for m in 0..M {
                out[m][l] = r[m];
            }
        }
        for m in 0..M {
            // SAFETY: the tile lies inside the run, and all of it was read.
            unsafe { y[m].add(at).cast::<[T; TILE]>().write_unaligned(out[m]) };
        }
        at += TILE;
    }
    while at + LANES <= n {
        let mut out = [[T::ZERO; LANES]; M];
        for l in 0..LANES {
            // SAFETY: `at + l < n`.
            let r = f(from_fn(|k| unsafe { *x[k].add(at + l) }));
            for m in 0..M {
                out[m][l] = r[m];
            }
        }
        for m in 0..M {
            // SAFETY: as above.
            unsafe { y[m].add(at).cast::<[T; LANES]>().write_unaligned(out[m]) };
        }
        at += LANES;
    }
    for i in at..n {
        // SAFETY: `i < n`; element `i` of every run is read before one is written.
        unsafe {
            let r = f(from_fn(|k| *x[k].add(i)));
            for m in 0..M {
                *y[m].add(i) = r[m];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_maxima_of_every_length() {
        for n in [0, 1, 5, 31, 32, 33, 100, 4096, 9001] {
            let x: Vec<f32> = (0..n).map(|i| ((i * 7919) % 1000) as f32 - 500.0).collect();
            // SAFETY: `n` elements.
            let [s, q] = unsafe { sums(n, [x.as_ptr()], |[a]| [a, a * a]) };
            assert_eq!(s, x.iter().map(|a| f64::from(*a)).sum::<f64>());
            let want = x.iter().map(|a| f64::from(*a) * f64::from(*a)).sum::<f64>();
            assert!((q - want).abs() <= 1e-6 * want, "{q} {want}");
            // SAFETY: `n` elements.
            let m = unsafe { largest(n, x.as_ptr()) };
            assert_eq!(m, x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
        for at in [0, 3, 40, 69] {
            let mut x = vec![1.0f32; 70];
            x[at] = f32::NAN;
            // SAFETY: 70 elements.
            assert!(unsafe { largest(70, x.as_ptr()) }.is_nan());
        }
    }

    #[test]
    fn maps_in_place() {
        let mut x: Vec<f64> = (0..77).map(f64::from).collect();
        let p = x.as_mut_ptr();
        // SAFETY: 77 elements, read and written by this call only.
        unsafe { map(77, [p.cast_const(), p.cast_const()], [p], |[a, b]| [a * b + 1.0]) };
        assert!(x.iter().enumerate().all(|(i, v)| *v == (i * i) as f64 + 1.0));
    }
}
