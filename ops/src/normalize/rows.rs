//! Kernels that normalise contiguous rows with a scale for each element.

use crate::cpu::{Float, Io, lanes, par, par::Shared};

/// A tensor as rows of `len` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    pub rows: usize,
    pub len: usize,
}

impl Rows {
    /// Rows whose gradients to scale and bias are added up together: at most 32 chunks, each worth handing to a thread.
    fn per_chunk(&self) -> usize {
        self.rows.div_ceil(32).max(par::GRAIN.div_ceil(self.len.max(1)))
    }

    /// Number of chunks.
    pub(super) fn chunks(&self) -> usize {
        self.rows.div_ceil(self.per_chunk())
    }
}

/// Mean and 1 / sqrt(variance + eps) of a row; without centring the mean is 0 and the variance the mean of squares.
///
/// # Safety
///
/// `x` points to `len` readable elements.
#[inline(always)]
pub(super) unsafe fn statistics<T: Float, const CENTRED: bool>(len: usize, eps: f64, x: *const T) -> (T, T) {
    let count = len as f64;
    // SAFETY: by this function's contract.
    unsafe {
        if !CENTRED {
            let [squares] = lanes::sums(
                len,
                [x],
                #[inline(always)]
                |[v]| [v * v],
            );
            return (T::ZERO, T::from_f64(1.0 / (squares / count + eps).sqrt()));
        }
        let [sum] = lanes::sums(
            len,
            [x],
            #[inline(always)]
            |v| v,
        );
        let mean = T::from_f64(sum / count);
        let [squares, rest] = lanes::sums(
            len,
            [x],
            #[inline(always)]
            |[v]| [(v - mean) * (v - mean), v - mean],
        );
        // What rounding the mean did to the variance is taken back.
        let var = ((squares - rest * rest / count) / count).max(0.0);
        (mean, T::from_f64(1.0 / (var + eps).sqrt()))
    }
}

/// Inputs x, scale, optional bias; outputs y, the mean if centred, 1 / deviation.
pub(super) fn forward<T: Float, const CENTRED: bool>(d: Rows, eps: f64, io: &Io<'_>) {
    let scale = io.input::<T>(1);
    let bias = io.has(2).then(|| io.input::<T>(2));
    let (x, y) = (Shared(io.input_ptr::<T>(0).0.cast_mut()), Shared(io.output_ptr::<T>(0).0));
    // Without centring nothing is written to the first of these.
    let mean_out = Shared(io.output_ptr::<T>(1).0);
    let inv_out = Shared(io.output_ptr::<T>(if CENTRED { 2 } else { 1 }).0);
    lanes::each(
        d.rows,
        (par::GRAIN / d.len.max(1)).max(1),
        #[inline(always)]
        |range| {
            let (x, y, mean_out, inv_out) = (&x, &y, &mean_out, &inv_out);
            for r in range {
                // SAFETY: row `r` of both tensors and of the statistics is this call's only; scale and bias have `len` elements.
                unsafe {
                    let (x, y) = (x.0.add(r * d.len).cast_const(), y.0.add(r * d.len));
                    let (mean, inverse) = statistics::<T, CENTRED>(d.len, eps, x);
                    match bias {
                        Some(bias) => lanes::map(
                            d.len,
                            [x, scale.as_ptr(), bias.as_ptr()],
                            [y],
                            #[inline(always)]
                            |[v, s, b]| [(v - mean) * inverse * s + b],
                        ),
                        None => lanes::map(
                            d.len,
                            [x, scale.as_ptr()],
                            [y],
                            #[inline(always)]
                            |[v, s]| [(v - mean) * inverse * s],
                        ),
                    }
                    if CENTRED {
                        *mean_out.0.add(r) = mean;
                    }
                    *inv_out.0.add(r) = inverse;
                }
            }
        },
    );
}

/// Inputs x, scale, the mean if centred, 1 / deviation, dy, optional cotangents of the statistics; outputs dx, dscale, and dbias if
/// centred. One pass over the rows; gradients of scale and bias are added within chunks of rows, then from chunk to chunk.
pub(super) fn backward<T: Float, const CENTRED: bool>(d: Rows, io: &Io<'_>) {
    let shift = usize::from(CENTRED);
    let scale = io.input::<T>(1);
    let mean = CENTRED.then(|| io.input::<T>(2));
    let inverse = io.input::<T>(2 + shift);
    let optional = |i: usize| io.has(i).then(|| io.input::<T>(i));
    let d_mean = if CENTRED { optional(5) } else { None };
    let d_inverse = optional(4 + 2 * shift);
    let [x, dy] = [0, 3 + shift].map(|i| Shared(io.input_ptr::<T>(i).0.cast_mut()));
    let dx = Shared(io.output_ptr::<T>(0).0);
    let parts = Shared(io.workspace::<T>().as_mut_ptr());
    let (len, per_chunk) = (d.len, d.per_chunk());
    // Elements of partial sums a chunk has: scale's, then bias's.
    let stride = len * (1 + shift);
    lanes::each(
        d.rows,
        per_chunk,
        #[inline(always)]
        |range| {
            let (x, dy, dx, parts) = (&x, &dy, &dx, &parts);
            // SAFETY: rows of the range and the chunk's partial sums are this call's only.
            unsafe {
                let part = parts.0.add(range.start / per_chunk * stride);
                std::ptr::write_bytes(part, 0, stride);
                for r in range {
                    let from = [x, dy].map(|p| p.0.add(r * len).cast_const());
                    let (m, i) = (mean.map_or(T::ZERO, |m| m[r]), inverse[r]);
                    let [first, second] = lanes::sums(
                        len,
                        [from[0], from[1], scale.as_ptr()],
                        #[inline(always)]
                        |[v, g, s]| [g * s, g * s * (v - m)],
                    );
                    if CENTRED {
                        lanes::map(
                            len,
                            [from[0], from[1], part, part.add(len)],
                            [part, part.add(len)],
                            #[inline(always)]
                            |[v, g, a, b]| [a + g * ((v - m) * i), b + g],
                        );
                    } else {
                        lanes::map(
                            len,
                            [from[0], from[1], part],
                            [part],
                            #[inline(always)]
                            |[v, g, a]| [a + g * (v * i)],
                        );
                    }
                    let of = |d: Option<&[T]>| d.map_or(0.0, |d| d[r].to_f64());
                    let wide = i.to_f64();
                    let share = wide / len as f64;
                    let constant = if CENTRED { share * (first - of(d_mean) / wide) } else { 0.0 };
                    let slope = share * wide * (second * wide + of(d_inverse) * wide);
                    let (constant, slope) = (T::from_f64(constant), T::from_f64(slope));
                    lanes::map(
                        len,
                        [from[0], from[1], scale.as_ptr()],
                        [dx.0.add(r * len)],
                        #[inline(always)]
                        |[v, g, s]| [g * s * i - constant - (v - m) * slope],
                    );
                }
            }
        },
    );
    let outputs = [1, 2].map(|o| Shared(io.output_ptr::<T>(if CENTRED { o } else { 1 }).0));
    let chunks = d.chunks();
    lanes::each(
        len,
        (par::GRAIN / chunks.max(1)).max(1),
        #[inline(always)]
        |range| {
            let parts = &parts;
            for (o, out) in outputs.iter().enumerate().take(1 + shift) {
                // SAFETY: the range of each output is this call's only; partial sums are complete.
                unsafe {
                    let to = out.0.add(range.start);
                    std::ptr::write_bytes(to, 0, range.len());
                    for chunk in 0..chunks {
                        let part = parts.0.add(chunk * stride + o * len + range.start).cast_const();
                        lanes::map(
                            range.len(),
                            [to.cast_const(), part],
                            [to],
                            #[inline(always)]
                            |[a, b]| [a + b],
                        );
                    }
                }
            }
        },
    );
}
