//! The gradient of a linear layer's cross entropy: the scores of each block of classes are made again.

use super::{
    labels::{Classes, Labels, Reduction, same_shape},
    linear_cross_entropy::{GRAIN, Layer, add, blocks, cases, infer, scores, turned},
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Io, lanes, math::Math, par::Shared},
    export::Export,
    product::gemm::{Mat, multiply_par, shared},
};
use graph::{Attrs, DType, TensorType};

/// The gradient of [`super::linear_cross_entropy::LinearCrossEntropy`].
///
/// Inputs: x, w, labels, optional bias, a shift for each row, optional cotangents of the loss and of the rest of the log-sum-exp, that rest
/// (0 if left out: then a shift is a whole log-sum-exp). Outputs: dx, dw, and d bias `[C]`. Attributes as the forward operator's.
pub struct LinearCrossEntropyGrad;

impl OpDef for LinearCrossEntropyGrad {
    fn name(&self) -> &'static str {
        "LinearCrossEntropyGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let [loss, rows] = infer(s, 3)?;
        s.input(4)?;
        let all = [(4, &rows, "log-sum-exp"), (5, &loss, "cotangent"), (6, &rows, "cotangent")];
        for (i, want, what) in all.into_iter().chain([(7, &rows, "the rest of the log-sum-exp")]) {
            if let Some(t) = s.opt_input(i) {
                if t.dtype != want.dtype {
                    return Err(OpError::invalid(format!("{what} must be {}, not {}", want.dtype, t.dtype)));
                }
                same_shape(&want.shape, &t.shape, what)?;
            }
        }
        let (x, w) = (s.input(0)?, s.input(1)?);
        let classes = w.shape.0[usize::from(!turned(s.attrs)?)].clone();
        let bias = TensorType { dtype: x.dtype, shape: graph::Shape(vec![classes]) };
        Ok(vec![x.clone(), w.clone(), bias])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn numeric_class(&self) -> u32 {
        2
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let flops = Layer::new(s).map_or(0, |l| l.work(3));
        Work { flops, bytes: s.io_bytes(), product: true }
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let size = s.opt_input(0).map_or(0, |t| t.dtype.size());
        let elements = Layer::new(s).map_or(0, |l| l.rows * l.block());
        Facts::with_workspace(elements as u64 * size)
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let layer = Layer::new(s)?;
        let classes = Classes::new(layer.classes, s.attrs)?;
        let (mean, labels) = (Reduction::of(s.attrs)? == Reduction::Mean, s.input(2)?.dtype);
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            backward::<T>(layer, classes, mean, labels, io);
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (scores, dims, turned) = (scores(x)?, x.dims(0)?, turned(x.sig.attrs)?);
        let classes = x.dims(1)?[usize::from(!turned)];
        let rows = super::labels::written(x, x.input(2)?, classes, None, scores.dtype())?;
        let line = [dims[0], 1];
        let share = match x.opt(5) {
            Some(dy) => rows.share(x, dy)?.reshape(&line),
            None => rows.weight.reshape(&line) * 0.0,
        };
        let factor = x.opt(6).map_or(share, |d| share + d.reshape(&line));
        let below = scores - x.input(4)?.reshape(&line);
        let below = x.opt(7).map_or(below, |rest| below - rest.reshape(&line));
        let d = below.call("Exp") * factor - rows.hot * share;
        let product = |a, b| x.call("MatMul", &[a, b], Attrs::new());
        let (v, w) = (x.input(0)?, x.input(1)?);
        x.set(0, product(d, if turned { w } else { w.turned(2) }));
        x.set(1, if turned { product(d.turned(2), v) } else { product(v.turned(2), d) });
        x.set(2, d.sum(&[0], false));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        cases(|attrs, name, (x, w), labels, bias| {
            let of = |s: &[usize], lo, hi| CaseInput::float(s, Fill::Uniform(lo, hi));
            let c = Case::new(name, attrs, &[x, w]).input(2, labels);
            let c = if bias { c.input(3, of(&[7], -1.0, 1.0)) } else { c };
            let c = c.input(4, of(&[x[0]], 2.0, 4.0)).input(5, of(&[], 0.5, 1.5));
            let c = if bias { c } else { c.input(6, of(&[x[0]], 0.5, 1.0)) };
            c.input(7, of(&[x[0]], -0.5, 0.5))
        })
    }
}

fn backward<T: Math>(layer: Layer, classes: Classes, mean: bool, labels: DType, io: &Io<'_>) {
    let labels = Labels::of(io, 2, labels);
    let (x, w) = (shared(io.input::<T>(0)), shared(io.input::<T>(1)));
    let bias = if io.has(3) { Some(shared(io.input::<T>(3))) } else { None };
    let lse = io.input::<T>(4);
    let total = if mean { classes.total::<T>(labels, None) } else { 1.0 };
    let share = if io.has(5) { T::from_f64(io.input::<T>(5)[0].to_f64() / total) } else { T::ZERO };
    let [d_lse, rest] = [6, 7].map(|i| if io.has(i) { Some(io.input::<T>(i)) } else { None });
    let [dx, dw, db] = [0, 1, 2].map(|i| Shared(io.output_ptr::<T>(i).0));
    let held = Shared(io.workspace::<T>().as_mut_ptr());
    let Layer { rows, depth, .. } = layer;
    for (first, n) in blocks(layer) {
        let weights = layer.weights(w.0, first);
        let (rows_x, d) = (Mat::rows(x.0, depth), Mat::rows(held.0, n));
        // SAFETY: the operands lie inside their tensors, the block's scores inside the workspace.
        unsafe { multiply_par([rows, n, depth], T::ONE, rows_x, weights, T::ZERO, d) };
        lanes::each(
            rows,
            GRAIN,
            #[inline(always)]
            |range| {
                let (held, bias) = (&held, &bias);
                for r in range {
                    let (lse, class) = (lse[r], classes.class(labels.get(r)));
                    let rest = rest.map_or(T::ZERO, |x| x[r]);
                    let own = if class.is_some() { share } else { T::ZERO };
                    let factor = own + d_lse.map_or(T::ZERO, |d| d[r]);
                    // SAFETY: row `r` of the workspace is this call's only.
                    unsafe {
                        let row = held.0.add(r * n);
                        if let Some(b) = bias {
                            add(n, row, b.0.add(first));
                        }
                        lanes::map(
                            n,
                            [row.cast_const()],
                            [row],
                            #[inline(always)]
                            |[v]| [((v - lse) - rest).vexp() * factor],
                        );
                        if let Some(class) = class.filter(|c| (first..first + n).contains(c)) {
                            let hit = row.add(class - first);
                            *hit = *hit - own;
                        }
                    }
                }
            },
        );
        // SAFETY: the block's part of dw is written by this product only; dx is added to from the second block on.
        unsafe {
            let out = layer.weights(dw.0, first);
            let turned_x = Mat::cols(x.0, depth);
            if layer.turned {
                let out = Mat { rs: out.cs, cs: out.rs, ..out };
                multiply_par([n, depth, rows], T::ONE, Mat::cols(held.0, n), rows_x, T::ZERO, out);
            } else {
                multiply_par([depth, n, rows], T::ONE, turned_x, d, T::ZERO, out);
            }
            let back = Mat { rs: weights.cs, cs: weights.rs, ..weights };
            let beta = if first == 0 { T::ZERO } else { T::ONE };
            multiply_par([rows, depth, n], T::ONE, d, back, beta, Mat::rows(dx.0, depth));
        }
        lanes::each(
            n,
            256,
            #[inline(always)]
            |range| {
                let (held, db) = (&held, &db);
                // SAFETY: the range's columns of d bias are this call's only.
                unsafe {
                    let out = db.0.add(first + range.start);
                    (0..range.len()).for_each(|c| *out.add(c) = T::ZERO);
                    for r in 0..rows {
                        add(range.len(), out, held.0.add(r * n + range.start).cast_const());
                    }
                }
            },
        );
    }
}
