//! The inner loops of convolutions: a block of rows times a panel of columns, in vector registers.
//!
//! One operand is packed as scalars (weights, [`Scalars`]: for each depth the rows of a block), the other as panels ([`width`] columns
//! for each depth). Every element of the result is one chain of fused multiply-adds over the depth, cut into runs of [`RUN`] whose sums
//! are added in order: its bits depend neither on the block it falls into nor on the width of the vectors.

use crate::cpu::Float;
use pulp::Simd;

/// Most rows of a block.
pub(crate) const ROWS: usize = 12;
/// Length of one chain of multiply-adds; longer sums are made of several, for accuracy.
const RUN: usize = 512;

/// Distance between the rows of a block that [`Product::add_rows`] reads, and the most columns they have.
pub(crate) const REACH: usize = 128;

/// Columns of a panel: 128 bytes.
pub(crate) const fn width<T>() -> usize {
    128 / size_of::<T>()
}

/// Rows of the block at `row`, of `rows` in all: 12 where possible, then 4, 8 or 12 with the last ones unused.
pub(crate) fn block(row: usize, rows: usize) -> usize {
    (rows - row).min(ROWS).next_multiple_of(4)
}

/// Rows as they are stored, the unused ones included.
pub(crate) fn padded(rows: usize) -> usize {
    rows.next_multiple_of(4)
}

/// Packs rows `row..row + block` for one block: element (r, k) is `at(r, k)`, and 0 for rows beyond `rows`.
///
/// The block of row r lies at `r * depth` in the packed memory.
#[inline(always)]
pub(crate) fn pack_block<T: Float>(
    out: &mut [T],
    row: usize,
    rows: usize,
    depth: usize,
    at: impl Fn(usize, usize) -> T,
) {
    let r = block(row, rows);
    for (k, out) in out.chunks_exact_mut(r).take(depth).enumerate() {
        for (i, o) in out.iter_mut().enumerate() {
            *o = if row + i < rows { at(row + i, k) } else { T::ZERO };
        }
    }
}

/// Arithmetic of the inner loop for one element type.
pub(crate) trait Product: Float {
    /// C = init + S·V for one block of `rows` (4, 8 or 12) and one panel; row r of C starts at `c + r * ldc`.
    ///
    /// # Safety
    ///
    /// `scalars` holds `rows * depth` elements, `panel` `width() * depth`, `init` `rows`, and C is writable.
    #[allow(clippy::too_many_arguments)]
    unsafe fn times<S: Simd>(
        simd: S,
        rows: usize,
        depth: usize,
        scalars: *const Self,
        panel: *const Self,
        init: *const Self,
        c: *mut Self,
        ldc: usize,
    );

    /// C += R·V for one block of `rows` (4, 8 or 12) rows that lie [`REACH`] apart, and one panel of `depth` at most [`REACH`].
    ///
    /// # Safety
    ///
    /// `r` holds `rows` rows of `depth` elements, `panel` `width() * depth`, and C is initialised and writable.
    unsafe fn add_rows<S: Simd>(
        simd: S,
        rows: usize,
        depth: usize,
        r: *const Self,
        panel: *const Self,
        c: *mut Self,
        ldc: usize,
    );
}

/// Writes `n` elements of each of `rows` rows (at most a panel's width), `ld` apart, as the columns of a panel: element (r, k) goes to
/// `out[k * width + r]`. Columns beyond `rows` become 0.
///
/// # Safety
///
/// The rows are readable and `n` rows of the panel writable.
#[inline(always)]
pub(crate) unsafe fn transpose<T: Float>(rows: usize, n: usize, from: *const T, ld: usize, out: *mut T) {
    let width = width::<T>();
    let fast = size_of::<T>() == 4 && wide();
    // SAFETY: by this function's contract; 16 x 16 blocks lie inside.
    unsafe {
        if rows < width {
            for k in 0..n {
                (rows..width).for_each(|r| *out.add(k * width + r) = T::ZERO);
            }
        }
        for r in (0..rows).step_by(16) {
            let h = (rows - r).min(16);
            let mut k = 0;
            while fast && h == 16 && k + 16 <= n {
                transpose_16(from.add(r * ld + k).cast(), ld, out.add(k * width + r).cast(), width);
                k += 16;
            }
            for k in k..n {
                (0..h).for_each(|i| *out.add(k * width + r + i) = *from.add((r + i) * ld + k));
            }
        }
    }
}

/// Whether the CPU has the instructions of [`transpose_16`].
pub(crate) fn wide() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Transposes 16 x 16 elements of 4 bytes whose rows lie `ld` apart into rows `to` apart.
///
/// # Safety
///
/// Both blocks are valid; the CPU has AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn transpose_16(from: *const f32, ld: usize, out: *mut f32, to: usize) {
    use std::arch::x86_64::*;
    let mut t = [_mm512_setzero_ps(); 16];
    let mut u = t;
    for i in 0..8 {
        // SAFETY: rows 2i and 2i + 1 of the block.
        let (a, b) =
            unsafe { (_mm512_loadu_ps(from.add(2 * i * ld)), _mm512_loadu_ps(from.add((2 * i + 1) * ld))) };
        t[2 * i] = _mm512_unpacklo_ps(a, b);
        t[2 * i + 1] = _mm512_unpackhi_ps(a, b);
    }
    // Lane l of u[4i + c] is column 4l + c of rows 4i..4i + 4.
    for i in 0..4 {
        u[4 * i] = _mm512_shuffle_ps::<0x44>(t[4 * i], t[4 * i + 2]);
        u[4 * i + 1] = _mm512_shuffle_ps::<0xEE>(t[4 * i], t[4 * i + 2]);
        u[4 * i + 2] = _mm512_shuffle_ps::<0x44>(t[4 * i + 1], t[4 * i + 3]);
        u[4 * i + 3] = _mm512_shuffle_ps::<0xEE>(t[4 * i + 1], t[4 * i + 3]);
    }
    for c in 0..4 {
        let (a, b) =
            (_mm512_shuffle_f32x4::<0x88>(u[c], u[4 + c]), _mm512_shuffle_f32x4::<0xDD>(u[c], u[4 + c]));
        let (d, e) = (
            _mm512_shuffle_f32x4::<0x88>(u[8 + c], u[12 + c]),
            _mm512_shuffle_f32x4::<0xDD>(u[8 + c], u[12 + c]),
        );
        let put = |column: usize, v| {
            // SAFETY: inside the output block.
            unsafe { _mm512_storeu_ps(out.add(column * to), v) }
        };
        put(c, _mm512_shuffle_f32x4::<0x88>(a, d));
        put(4 + c, _mm512_shuffle_f32x4::<0x88>(b, e));
        put(8 + c, _mm512_shuffle_f32x4::<0xDD>(a, d));
        put(12 + c, _mm512_shuffle_f32x4::<0xDD>(b, e));
    }
}

/// Never called: [`wide`] is false.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn transpose_16(_: *const f32, _: usize, _: *mut f32, _: usize) {}

macro_rules! product {
    ($t:ty, $micro:ident, $rows:ident, $v:ident, $lanes:ident, $splat:ident, $fma:ident, $add:ident) => {
        /// `R` rows (of `stride` in the block) times two vectors.
        ///
        /// # Safety
        ///
        /// As [`Product::times`].
        #[inline(always)]
        #[allow(clippy::too_many_arguments)]
        unsafe fn $micro<S: Simd, const R: usize>(
            simd: S,
            stride: usize,
            depth: usize,
            mut s: *const $t,
            mut v: *const $t,
            init: *const $t,
            c: *mut $t,
            ldc: usize,
        ) {
            // SAFETY: by this function's contract; vectors are read and written unaligned.
            unsafe {
                let mut first = true;
                let mut left = depth;
                loop {
                    let mut acc = [[simd.$splat(0.0); 2]; R];
                    for _ in 0..left.min(RUN) {
                        let a = v.cast::<S::$v>().read_unaligned();
                        let b = v.add(S::$lanes).cast::<S::$v>().read_unaligned();
                        for (r, acc) in acc.iter_mut().enumerate() {
                            let x = simd.$splat(*s.add(r));
                            acc[0] = simd.$fma(x, a, acc[0]);
                            acc[1] = simd.$fma(x, b, acc[1]);
                        }
                        s = s.add(stride);
                        v = v.add(width::<$t>());
                    }
                    for (r, acc) in acc.iter().enumerate() {
                        let (p, q) = (c.add(r * ldc), c.add(r * ldc + S::$lanes));
                        let (p, q) = (p.cast::<S::$v>(), q.cast::<S::$v>());
                        let (x, y) = if first {
                            let i = simd.$splat(*init.add(r));
                            (i, i)
                        } else {
                            (p.read_unaligned(), q.read_unaligned())
                        };
                        p.write_unaligned(simd.$add(x, acc[0]));
                        q.write_unaligned(simd.$add(y, acc[1]));
                    }
                    if left <= RUN {
                        break;
                    }
                    left -= RUN;
                    first = false;
                }
            }
        }

        /// `R` rows times two vectors, added to C.
        ///
        /// # Safety
        ///
        /// As [`Product::add_rows`].
        #[inline(always)]
        unsafe fn $rows<S: Simd, const R: usize>(
            simd: S,
            depth: usize,
            s: *const $t,
            mut v: *const $t,
            c: *mut $t,
            ldc: usize,
        ) {
            // SAFETY: by this function's contract; vectors are read and written unaligned.
            unsafe {
                let mut acc = [[simd.$splat(0.0); 2]; R];
                for k in 0..depth {
                    let a = v.cast::<S::$v>().read_unaligned();
                    let b = v.add(S::$lanes).cast::<S::$v>().read_unaligned();
                    for (r, acc) in acc.iter_mut().enumerate() {
                        let x = simd.$splat(*s.add(r * REACH + k));
                        acc[0] = simd.$fma(x, a, acc[0]);
                        acc[1] = simd.$fma(x, b, acc[1]);
                    }
                    v = v.add(width::<$t>());
                }
                for (r, acc) in acc.iter().enumerate() {
                    let (p, q) = (c.add(r * ldc), c.add(r * ldc + S::$lanes));
                    let (p, q) = (p.cast::<S::$v>(), q.cast::<S::$v>());
                    p.write_unaligned(simd.$add(p.read_unaligned(), acc[0]));
                    q.write_unaligned(simd.$add(q.read_unaligned(), acc[1]));
                }
            }
        }

        impl Product for $t {
            #[inline(always)]
            unsafe fn add_rows<S: Simd>(
                simd: S,
                rows: usize,
                depth: usize,
                s: *const $t,
                panel: *const $t,
                c: *mut $t,
                ldc: usize,
            ) {
                for col in (0..width::<$t>()).step_by(2 * S::$lanes) {
                    // SAFETY: by this function's contract; blocks of rows and pairs of vectors tile C.
                    unsafe {
                        let (v, c) = (panel.add(col), c.add(col));
                        match (rows, S::REGISTER_COUNT >= 32) {
                            (12, true) => $rows::<S, 12>(simd, depth, s, v, c, ldc),
                            (8, true) => $rows::<S, 8>(simd, depth, s, v, c, ldc),
                            (12, false) => {
                                $rows::<S, 6>(simd, depth, s, v, c, ldc);
                                $rows::<S, 6>(simd, depth, s.add(6 * REACH), v, c.add(6 * ldc), ldc);
                            }
                            _ => {
                                for r in (0..rows).step_by(4) {
                                    $rows::<S, 4>(simd, depth, s.add(r * REACH), v, c.add(r * ldc), ldc);
                                }
                            }
                        }
                    }
                }
            }

            #[inline(always)]
            unsafe fn times<S: Simd>(
                simd: S,
                rows: usize,
                depth: usize,
                s: *const $t,
                panel: *const $t,
                init: *const $t,
                c: *mut $t,
                ldc: usize,
            ) {
                for col in (0..width::<$t>()).step_by(2 * S::$lanes) {
                    // SAFETY: by this function's contract; blocks of rows and pairs of vectors tile C.
                    unsafe {
                        let (v, c) = (panel.add(col), c.add(col));
                        match (rows, S::REGISTER_COUNT >= 32) {
                            (12, true) => $micro::<S, 12>(simd, 12, depth, s, v, init, c, ldc),
                            (8, true) => $micro::<S, 8>(simd, 8, depth, s, v, init, c, ldc),
                            (12, false) => {
                                $micro::<S, 6>(simd, 12, depth, s, v, init, c, ldc);
                                $micro::<S, 6>(
                                    simd,
                                    12,
                                    depth,
                                    s.add(6),
                                    v,
                                    init.add(6),
                                    c.add(6 * ldc),
                                    ldc,
                                );
                            }
                            _ => {
                                for r in (0..rows).step_by(4) {
                                    let (s, init, c) = (s.add(r), init.add(r), c.add(r * ldc));
                                    $micro::<S, 4>(simd, rows, depth, s, v, init, c, ldc);
                                }
                            }
                        }
                    }
                }
            }
        }
    };
}
product!(f32, micro_f32, rows_f32, f32s, F32_LANES, splat_f32s, mul_add_e_f32s, add_f32s);
product!(f64, micro_f64, rows_f64, f64s, F64_LANES, splat_f64s, mul_add_e_f64s, add_f64s);
