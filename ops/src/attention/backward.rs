//! The backward pass: the probabilities of each tile are made again from the log-sum-exp of its rows.

use super::{
    COLUMNS, PER_SCORE, ROWS, TILES,
    forward::cases,
    mask::Given,
    shape::{Mask, Plan, exported, infer, straight, swapped},
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Io, lanes, math::Math, par::Shared},
    export::Export,
    loss::same_shape,
    product::gemm::{Mat, multiply, shared},
};
use graph::{Attrs, TensorType};

/// The gradient of [`super::Attention`].
///
/// Inputs: q, k, v, optional mask, y, shifts of the rows, dy, optional cotangent of the rest of the log-sum-exp, that rest (0 if left
/// out: then a shift is a whole log-sum-exp). Outputs: dq, dk, dv, laid out as q, k and v. Attributes as the forward operator's.
pub struct AttentionGrad;

impl Plan {
    /// Matrices worked on at once, and workspace elements for each.
    fn lanes(&self) -> (usize, usize) {
        (self.matrices.min(TILES), 2 * self.tile().iter().product::<usize>() + self.q.rows)
    }
}

impl OpDef for AttentionGrad {
    fn name(&self) -> &'static str {
        "AttentionGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let [y, rows] = infer(s, 3)?;
        for (i, want, what) in [(4, &y, "y"), (5, &rows, "log-sum-exp"), (6, &y, "dy")] {
            let got = s.input(i)?;
            if got.dtype != want.dtype {
                return Err(OpError::invalid(format!("{what} must be {}, not {}", want.dtype, got.dtype)));
            }
            same_shape(&want.shape, &got.shape, what)?;
        }
        for (i, what) in [(7, "the cotangent of the log-sum-exp"), (8, "the rest of the log-sum-exp")] {
            let Some(d) = s.opt_input(i) else { continue };
            if d.dtype != rows.dtype {
                return Err(OpError::invalid(format!("{what} must be {}, not {}", rows.dtype, d.dtype)));
            }
            same_shape(&rows.shape, &d.shape, what)?;
        }
        (0..3).map(|i| Ok(s.input(i)?.clone())).collect()
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn numeric_class(&self) -> u32 {
        2
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let flops = Plan::new(s, 3).map_or(0, |p| {
            let each = 2 * (3 * p.q.columns + 2 * p.v.columns) as u64 + PER_SCORE;
            p.scores().saturating_mul(each)
        });
        Work { flops, bytes: s.io_bytes(), product: true }
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let size = s.opt_input(0).map_or(0, |t| t.dtype.size());
        let elements = Plan::new(s, 3).map_or(0, |p| p.lanes().0 * p.lanes().1);
        Facts::with_workspace(elements as u64 * size)
    }

    fn by_sample(&self, s: &Signature<'_>) -> bool {
        super::shape::has_batch(s, 3)
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let plan = Plan::new(s, 3)?;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            backward::<T>(&plan, io);
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let ([q, k, v], scores, keep) = exported(x, 3)?;
        let swap = swapped(x.sig.attrs)?;
        let (rank, dims) =
            (x.sig.input(0)?.shape.rank(), crate::def::fixed(&x.sig.input(5)?.shape, "the rows")?);
        let last = [rank as i64 - 1];
        let [y, dy] = [4, 6].map(|i| Ok::<_, OpError>(straight(x.input(i)?, rank, swap[3])));
        let (y, dy) = (y?, dy?);
        let column = [&dims[..], &[1]].concat();
        let below = scores - x.input(5)?.reshape(&column);
        let p = x.opt(8).map_or(below, |rest| below - rest.reshape(&column)).call("Exp");
        let product = |a, b| x.call("MatMul", &[a, b], Attrs::new());
        let mut from = product(dy, v.turned(rank)) - (dy * y).sum(&last, true);
        if let Some(d) = x.opt(7) {
            from = from + d.reshape(&column);
        }
        let d = p * from * x.sig.attrs.float_or("scale", 1.0)?;
        let d = keep.map_or(d, |keep| keep.pick(d, 0.0));
        x.set(0, straight(product(d, k), rank, swap[0]));
        x.set(1, straight(product(d.turned(rank), q), rank, swap[1]));
        x.set(2, straight(product(p.turned(rank), dy), rank, swap[2]));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let mut out = cases(|attrs, name, shapes, mask| {
            let swap = swapped(&attrs).unwrap_or_default();
            let of = |shape: &[usize], swapped: bool| {
                let mut s = shape.to_vec();
                if swapped {
                    let n = s.len();
                    s.swap(n - 3, n - 2);
                }
                s
            };
            let rows = of(shapes[0], swap[0]);
            let mut y = rows.clone();
            if let Some(last) = y.last_mut() {
                *last = shapes[2].last().copied().unwrap_or(1);
            }
            let (y, rows) = (of(&y, swap[3]), &rows[..rows.len() - 1]);
            let c = Case::new(name, attrs, &shapes);
            let masked = mask.is_some();
            let c = match mask {
                Some(m) => c.input(3, m),
                None => c,
            };
            let c = c.input(4, CaseInput::float(&y, Fill::Uniform(-1.0, 1.0)));
            let c = c.input(5, CaseInput::float(rows, Fill::Uniform(2.0, 4.0)));
            let c = c.input(6, CaseInput::float(&y, Fill::Uniform(-1.0, 1.0)));
            let c = if masked { c } else { c.input(7, CaseInput::float(rows, Fill::Uniform(-1.0, 1.0))) };
            c.input(8, CaseInput::float(rows, Fill::Uniform(-0.5, 0.5)))
        });
        let no_rows = Case::new("no rows", Attrs::new(), &[&[0, 2], &[3, 2], &[3, 2]]);
        let of = |s: &[usize]| CaseInput::float(s, Fill::Uniform(0.0, 1.0));
        out.push(no_rows.input(4, of(&[0, 2])).input(5, of(&[0])).input(6, of(&[0, 2])));
        out
    }
}

fn backward<T: Math>(p: &Plan, io: &Io<'_>) {
    let [q, k, v] = [0, 1, 2].map(|i| shared(io.input::<T>(i)));
    let mask = p.mask.as_ref().map(|m| (m, Given::of(io, 3, m.fill)));
    let [y, lse, dy] = [4, 5, 6].map(|i| shared(io.input::<T>(i)));
    let [d_lse, rest] = [7, 8].map(|i| if io.has(i) { Some(shared(io.input::<T>(i))) } else { None });
    let [dq, dk, dv] = [0, 1, 2].map(|i| Shared(io.output_ptr::<T>(i).0));
    if p.q.rows == 0 {
        io.output::<T>(1).fill(T::ZERO);
        io.output::<T>(2).fill(T::ZERO);
        return;
    }
    let work = Shared(io.workspace::<T>().as_mut_ptr());
    let (at_once, elements) = p.lanes();
    let (scale, [height, ld]) = (T::from_f64(p.scale), p.tile());
    let (sq, sk, sv, sy) = (p.q.stride(), p.k.stride(), p.v.stride(), p.y.stride());
    lanes::each(
        at_once,
        1,
        #[inline(always)]
        |range| {
            let (q, k, v, y, lse, dy) = (&q, &k, &v, &y, &lse, &dy);
            let (mask, d_lse, rest, dq, dk, dv, work) = (&mask, &d_lse, &rest, &dq, &dk, &dv, &work);
            for lane in range {
                for i in (lane..p.matrices).step_by(at_once) {
                    // SAFETY: matrix `i` of every output and the lane's workspace are this call's only; everything lies inside of its
                    // tensor by inference.
                    unsafe {
                        let tile = work.0.add(lane * elements);
                        let tile_d = tile.add(height * ld);
                        let less = tile_d.add(height * ld);
                        // What is taken from each row of dP: Σ dy y, less the cotangent of the log-sum-exp.
                        for r in 0..p.q.rows {
                            let at = p.y.at(i) + r * sy;
                            let [sum] = lanes::sums(
                                p.y.columns,
                                [y.0.add(at).cast_const(), dy.0.add(at).cast_const()],
                                #[inline(always)]
                                |[a, b]| [a * b],
                            );
                            let own = d_lse.map_or(T::ZERO, |d| *d.0.add(i * p.q.rows + r));
                            *less.add(r) = T::from_f64(sum) - own;
                        }
                        for column in (0..p.k.rows).step_by(COLUMNS) {
                            let n = COLUMNS.min(p.k.rows - column);
                            let (at_k, at_v) = (p.k.at(i) + column * sk, p.v.at(i) + column * sv);
                            for first in (0..p.q.rows).step_by(ROWS) {
                                let rows = ROWS.min(p.q.rows - first);
                                let (at_q, at_y) = (p.q.at(i) + first * sq, p.y.at(i) + first * sy);
                                let rows_q = Mat::rows(q.0.add(at_q), sq);
                                let rows_dy = Mat::rows(dy.0.add(at_y), sy);
                                let [t, td] = [tile, tile_d].map(|t| Mat::rows(t, ld));
                                let [turned, turned_d] = [tile, tile_d].map(|t| Mat::cols(t, ld));
                                let keys = Mat::cols(k.0.add(at_k), sk);
                                multiply([rows, n, p.q.columns], scale, rows_q, keys, T::ZERO, t);
                                let values = Mat::cols(v.0.add(at_v), sv);
                                multiply([rows, n, p.v.columns], T::ONE, rows_dy, values, T::ZERO, td);
                                for r in 0..rows {
                                    let (row, row_d) = (tile.add(r * ld), tile_d.add(r * ld));
                                    let at = |m: &Mask| m.at(i) + (first + r) * m.row + column * m.column;
                                    if let Some((m, given)) = mask {
                                        given.put(n, row, at(m), m.column);
                                    }
                                    let line = i * p.q.rows + first + r;
                                    let log = *lse.0.add(line);
                                    let rest = rest.map_or(T::ZERO, |x| *x.0.add(line));
                                    let less = *less.add(first + r);
                                    lanes::map(
                                        n,
                                        [row.cast_const(), row_d.cast_const()],
                                        [row, row_d],
                                        #[inline(always)]
                                        |[s, d]| {
                                            let p = ((s - log) - rest).vexp();
                                            [p, p * (d - less)]
                                        },
                                    );
                                    if let Some((m, given)) = mask {
                                        given.cut(n, row_d, at(m), m.column);
                                    }
                                }
                                let add = |again: bool| if again { T::ONE } else { T::ZERO };
                                let out = Mat::rows(dv.0.add(at_v), sv);
                                multiply(
                                    [n, p.v.columns, rows],
                                    T::ONE,
                                    turned,
                                    rows_dy,
                                    add(first > 0),
                                    out,
                                );
                                let out = Mat::rows(dk.0.add(at_k), sk);
                                multiply(
                                    [n, p.q.columns, rows],
                                    scale,
                                    turned_d,
                                    rows_q,
                                    add(first > 0),
                                    out,
                                );
                                let out = Mat::rows(dq.0.add(at_q), sq);
                                let keys = Mat::rows(k.0.add(at_k), sk);
                                multiply([rows, p.q.columns, n], scale, td, keys, add(column > 0), out);
                            }
                        }
                    }
                }
            }
        },
    );
}
