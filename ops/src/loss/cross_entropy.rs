//! Softmax cross entropy: loss and log-sum-exp.

use super::{
    along::Along,
    labels::{Classes, Labels, Reduction, infer_rows, reduced},
    softmax::{column_sums, row_log_sum},
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Io, KernelError, lanes::LANES, math::Math, par::Shared},
    export::Export,
    grad::GradCx,
    onnx::{ImportCx, OnnxRule, rules},
};
use graph::{Attrs, DType, TensorType};

/// `-weight * ln softmax(scores)[label]`, per row or reduced.
///
/// Inputs: scores `[N, C, d..]`, labels `[N, d..]` (i32 or i64), optional weights `[C]`. Outputs: the loss (`[N, d..]`, or a scalar) and
/// the log-sum-exp of each row `[N, d..]`, from which the gradient starts. Attributes: `reduction` (`mean` (over the weights of the
/// rows that count), `sum`, `none`), `ignore_index` (rows with this label count nothing). A label that is no class is refused.
pub struct SoftmaxCrossEntropyLoss;

impl OpDef for SoftmaxCrossEntropyLoss {
    fn name(&self) -> &'static str {
        "SoftmaxCrossEntropyLoss"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["SoftmaxCrossEntropyLoss" => import]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let rows = infer_rows(s, (0, 1, 2))?;
        Ok(vec![reduced(&rows, Reduction::of(s.attrs)?), rows])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        if g.needs(2) {
            return Err(OpError::unsupported("the gradient to the class weights of a loss"));
        }
        let (scores, labels, lse) = (g.input(0)?, g.input(1)?, g.output(1));
        let (dy, weights, d_lse) = (g.cotangent(0), g.opt_input(2), g.cotangent(1));
        let attrs = g.attrs().clone();
        let inputs = [Some(scores), Some(labels), Some(lse), dy, weights, d_lse];
        let dx = g.b.emit("SoftmaxCrossEntropyGrad", attrs, &inputs)?;
        g.set(0, dx[0]);
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let n = s.opt_input(0).and_then(|t| t.shape.elements()).unwrap_or(0);
        Work { flops: n.saturating_mul(18), bytes: s.io_bytes(), product: false }
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let pieces = s.dims(0).ok().filter(|d| d.len() >= 2).map_or(0, |d| Along::new(&d, 1).pieces());
        Facts { can_fail: true, ..Facts::with_workspace(pieces as u64 * 16) }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let along = Along::new(&s.dims(0)?, 1);
        let classes = Classes::new(along.n, s.attrs)?;
        let (reduction, labels) = (Reduction::of(s.attrs)?, s.input(1)?.dtype);
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            forward::<T>(along, classes, reduction, labels, io)
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let inputs = [x.opt(0), x.opt(1), x.opt(2)];
        let loss =
            x.node("SoftmaxCrossEntropyLoss", &inputs, super::labels::exported(x)?, &[x.input(0)?.dtype()]);
        x.set(0, loss[0]);
        if x.used(1) {
            x.set(1, x.input(0)?.reduce("ReduceLogSumExp", &[1], false));
        }
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        cases(|name, attrs, x, labels, weights| {
            let c = Case::new(name, attrs, &[]);
            let c = c.input(0, CaseInput::float(x, Fill::Uniform(-2.0, 2.0))).input(1, labels);
            if weights { c.input(2, CaseInput::float(&[x[1]], Fill::Uniform(0.5, 2.0)).fixed()) } else { c }
        })
    }
}

/// Cases that losses over labels and their gradients share: name, attributes, shape of the scores, labels, whether there are weights.
pub(super) fn cases(make: impl Fn(&'static str, Attrs, &[usize], CaseInput, bool) -> Case) -> Vec<Case> {
    let labels = |shape: &[usize], c: i64| CaseInput::ints(DType::I64, shape, 0, c);
    let values = |v: &[f64]| CaseInput {
        fill: Fill::Values(v.to_vec()),
        ..CaseInput::ints(DType::I32, &[v.len()], 0, 1)
    };
    let with = |reduction: &str| Attrs::new().with("reduction", reduction);
    vec![
        make("mean", with("mean"), &[4, 5], labels(&[4], 5), false),
        make("sum, weighted", with("sum"), &[4, 5], labels(&[4], 5), true),
        make("one loss a row", with("none"), &[3, 35], labels(&[3], 35), true),
        make(
            "ignored rows",
            with("mean").with("ignore_index", -1),
            &[4, 3],
            values(&[2.0, -1.0, 0.0, -1.0]),
            true,
        ),
        make("ignored class", with("none").with("ignore_index", 1), &[3, 4], values(&[1.0, 3.0, 1.0]), false),
        make("pixels", with("mean").with("ignore_index", 0), &[2, 3, 2, 4], labels(&[2, 2, 4], 3), true),
        make("one loss a pixel", with("none"), &[1, 2, 3, 12], labels(&[1, 3, 12], 2), false),
    ]
}

fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let mut attrs = Attrs::new().with("reduction", cx.attrs.str_or("reduction", "mean")?);
    if let Some(i) = cx.attrs.opt_int("ignore_index")? {
        attrs = attrs.with("ignore_index", i);
    }
    let inputs = [cx.opt_input(0), cx.opt_input(1), cx.opt_input(2)];
    let given = if inputs[2].is_some() { 3 } else { 2 };
    let loss = cx.b.emit("SoftmaxCrossEntropyLoss", attrs, &inputs[..given])?;
    cx.set(0, loss[0]);
    if cx.used.get(1) == Some(&true) {
        let x = cx.input(0)?;
        let log_prob = cx.b.op("LogSoftmax", Attrs::new().with("axis", 1), &[x])?;
        cx.set(1, log_prob);
    }
    Ok(())
}

fn forward<T: Math>(
    along: Along,
    classes: Classes,
    reduction: Reduction,
    labels: DType,
    io: &Io<'_>,
) -> Result<(), KernelError> {
    let labels = Labels::of(io, 1, labels);
    classes.check(labels)?;
    let x = Shared(io.input_ptr::<T>(0).0.cast_mut());
    let weights = io.has(2).then(|| io.input::<T>(2));
    let (loss, lse) = (Shared(io.output_ptr::<T>(0).0), Shared(io.output_ptr::<T>(1).0));
    let partial = io.workspace::<f64>();
    let parts = Shared(partial.as_mut_ptr().cast::<[f64; 2]>());
    let n = along.n;
    // Stores what is known of line `l` and adds to the sums of its piece.
    let finish = |l: usize, at: usize, max: T, log: T, sums: &mut [f64; 2]| {
        let (x, loss, lse) = (&x, &loss, &lse);
        // SAFETY: line `l` is visited once; its label's element lies inside the scores.
        unsafe {
            *lse.0.add(l) = max + log;
            let mut row = T::ZERO;
            if let Some((class, weight)) = classes.weighed(labels.get(l), weights) {
                let score = *x.0.add(at + class * along.inner);
                row = weight * (log + (max - score));
                sums[0] += row.to_f64();
                sums[1] += weight.to_f64();
            }
            if reduction == Reduction::None {
                *loss.0.add(l) = row;
            }
        }
    };
    along.each(
        #[inline(always)]
        |piece, rows| {
            let (x, parts) = (&x, &parts);
            let mut sums = [0.0; 2];
            for r in rows {
                // SAFETY: row `r` lies inside the scores.
                let (max, log) = unsafe { row_log_sum(n, x.0.add(r * n).cast_const()) };
                finish(r, r * n, max, log, &mut sums);
            }
            // SAFETY: one slot a piece.
            unsafe { *parts.0.add(piece) = sums };
        },
        #[inline(always)]
        |piece, columns| {
            let (x, parts) = (&x, &parts);
            let mut sums = [0.0; 2];
            for c in columns {
                // SAFETY: the columns lie inside the scores.
                let (max, sum): ([T; LANES], [T; LANES]) =
                    unsafe { column_sums((n, along.inner, c.width), [x.0.add(c.at).cast_const()]) };
                let log = sum.map(Math::vln);
                for l in 0..c.width {
                    finish(c.line + l, c.at + l, max[l], log[l], &mut sums);
                }
            }
            // SAFETY: as above.
            unsafe { *parts.0.add(piece) = sums };
        },
    );
    if reduction != Reduction::None {
        let [sum, weight] = partial.chunks_exact(2).fold([0.0; 2], |a, p| [a[0] + p[0], a[1] + p[1]]);
        io.output::<T>(0)[0] = T::from_f64(if reduction == Reduction::Mean { sum / weight } else { sum });
    }
    Ok(())
}
