//! Cross entropy of a linear layer, class block by class block: the scores of all classes never exist at once.
//!
//! The last layer of a language model has a score for every token and every word of its vocabulary, often more bytes than all else that a
//! step keeps. Cut along the classes, each part of the weight is read once a pass, and what is added up is as small as the layer's input.

use super::{
    labels::{Classes, Labels, Reduction, check_labels, reduced, same_shape},
    log_sum::{log_sum, written_log_sum},
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Io, KernelError, half::is_half, lanes, math::Math, par::Shared},
    export::{Export, Term},
    grad::GradCx,
    product::{
        gemm::{Mat, multiply_par, shared},
        matmul::same_dim,
    },
};
use graph::{Attrs, DType, Dim, Shape, TensorType};

/// Cross entropy of the scores x·w + bias, as [`super::cross_entropy::SoftmaxCrossEntropyLoss`] of them.
///
/// Inputs: x `[N, D]`, w `[D, C]` (`[C, D]` if `trans_b` is 1), labels `[N]` (i32 or i64), optional bias `[C]`. Outputs: the loss (a
/// scalar), and the log-sum-exp of each row of scores as a shift and the rest `[N]` ([`log_sum`]). Attributes: `trans_b`, `reduction` (`mean` or `sum`), `ignore_index`.
pub struct LinearCrossEntropy;

/// Scores that are held at once.
const HELD: usize = 1 << 20;
/// What an exponential and the passes around it cost, in operations at the rate of matrix products.
const PER_SCORE: u64 = 250;

/// Sizes of the layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layer {
    pub(super) rows: usize,
    pub(super) depth: usize,
    pub(super) classes: usize,
    pub(super) turned: bool,
}

impl Layer {
    pub(super) fn new(s: &Signature<'_>) -> Result<Layer, OpError> {
        let (x, w) = (s.dims(0)?, s.dims(1)?);
        let turned = turned(s.attrs)?;
        Ok(Layer { rows: x[0], depth: x[1], classes: w[usize::from(!turned)], turned })
    }

    /// Classes of a block.
    pub(super) fn block(&self) -> usize {
        (HELD / self.rows.max(1)).clamp(256, 1 << 14).next_multiple_of(64).min(self.classes.max(1))
    }

    /// The columns of op(w) from class `c` on.
    pub(super) fn weights<T>(&self, w: *mut T, c: usize) -> Mat<T> {
        if self.turned {
            Mat::cols(w.wrapping_add(c * self.depth), self.depth)
        } else {
            Mat::rows(w.wrapping_add(c), self.classes)
        }
    }

    /// Operations of `products` products of the layer and one exponential a score.
    pub(super) fn work(&self, products: u64) -> u64 {
        let scores = (self.rows as u64).saturating_mul(self.classes as u64);
        scores.saturating_mul(2 * products * self.depth as u64 + PER_SCORE)
    }
}

/// Rows of one call of a closure over rows of scores.
pub(super) const GRAIN: usize = 8;

pub(super) fn turned(attrs: &Attrs) -> Result<bool, OpError> {
    match attrs.int_or("trans_b", 0)? {
        0 => Ok(false),
        1 => Ok(true),
        n => Err(OpError::invalid(format!("trans_b must be 0 or 1, not {n}"))),
    }
}

/// Types of the loss and of the log-sum-exp (float32 where x has 16-bit floats), from x, w, labels and an optional bias at input `bias`.
pub(super) fn infer(s: &Signature<'_>, bias: usize) -> Result<[TensorType; 2], OpError> {
    let (x, w, labels) = (s.input(0)?, s.input(1)?, s.input(2)?);
    if !x.dtype.is_float() || w.dtype != x.dtype || s.opt_input(bias).is_some_and(|b| b.dtype != x.dtype) {
        return Err(OpError::invalid("x, w and bias must have one floating-point dtype"));
    }
    let ([n, d], [r, c]) = (&x.shape.0[..], &w.shape.0[..]) else {
        return Err(OpError::invalid(format!("x and w must be matrices, not {} and {}", x.shape, w.shape)));
    };
    let (depth, classes) = if turned(s.attrs)? { (c, r) } else { (r, c) };
    same_dim(d, depth, "inner dimensions")?;
    check_labels(labels)?;
    let vector = |d: &Dim| Shape(vec![d.clone()]);
    same_shape(&vector(n), &labels.shape, "one label a row")?;
    if let Some(b) = s.opt_input(bias) {
        same_shape(&vector(classes), &b.shape, "one bias a class")?;
    }
    if classes.as_const() == Some(0) {
        return Err(OpError::invalid("there are no classes"));
    }
    let reduction = Reduction::of(s.attrs)?;
    if reduction == Reduction::None {
        return Err(OpError::invalid("reduction must be mean or sum"));
    }
    s.attrs.opt_int("ignore_index")?;
    let dtype = if is_half(x.dtype) { DType::F32 } else { x.dtype };
    let rows = TensorType { dtype, shape: vector(n) };
    Ok([reduced(&rows, reduction), rows])
}

impl OpDef for LinearCrossEntropy {
    fn name(&self) -> &'static str {
        "LinearCrossEntropy"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let [loss, rows] = infer(s, 3)?;
        Ok(vec![loss, rows.clone(), rows])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let [shift, rest] = [1, 2].map(|i| Some(g.output(i)));
        let inputs = [
            g.opt_input(0),
            g.opt_input(1),
            g.opt_input(2),
            g.opt_input(3),
            shift,
            g.cotangent(0),
            g.cotangent(2),
            rest,
        ];
        let attrs = g.attrs().clone();
        let d = g.b.emit("LinearCrossEntropyGrad", attrs, &inputs)?;
        for (i, d) in [0, 1, 3].into_iter().zip(d) {
            if g.needs(i) {
                g.set(i, d);
            }
        }
        Ok(())
    }

    fn numeric_class(&self) -> u32 {
        2
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let flops = Layer::new(s).map_or(0, |l| l.work(1));
        Work { flops, bytes: s.io_bytes(), product: true }
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let size = s.opt_input(0).map_or(0, |t| t.dtype.size()) as usize;
        let bytes = Layer::new(s).map_or(0, |l| l.rows * (8 + 2 * size + l.block() * size));
        Facts { can_fail: true, ..Facts::with_workspace(bytes as u64) }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let layer = Layer::new(s)?;
        let classes = Classes::new(layer.classes, s.attrs)?;
        let (mean, labels) = (Reduction::of(s.attrs)? == Reduction::Mean, s.input(2)?.dtype);
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            forward::<T>(layer, classes, mean, labels, io)
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let scores = scores(x)?;
        let inputs = [Some(scores), x.opt(2)];
        let dtype = scores.dtype();
        x.set(0, x.node("SoftmaxCrossEntropyLoss", &inputs, super::labels::exported(x)?, &[dtype])[0]);
        if x.used(1) || x.used(2) {
            let [shift, rest] = written_log_sum(scores, 1);
            x.set(1, shift);
            x.set(2, rest);
        }
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        cases(|attrs, name, (x, w), labels, bias| {
            let c = Case::new(name, attrs, &[x, w]).input(2, labels);
            if bias { c.input(3, CaseInput::float(&[7], Fill::Uniform(-1.0, 1.0))) } else { c }
        })
    }
}

/// The scores in ONNX.
pub(super) fn scores<'a>(x: &Export<'a>) -> Result<Term<'a>, OpError> {
    let w = x.input(1)?;
    let w = if turned(x.sig.attrs)? { w.turned(2) } else { w };
    let scores = x.call("MatMul", &[x.input(0)?, w], Attrs::new());
    Ok(x.opt(3).map_or(scores, |b| scores + b))
}

/// Cases that the loss and its gradient share: attributes, name, shapes of x and w, labels, whether there is a bias.
pub(super) fn cases(
    make: impl Fn(Attrs, &'static str, (&'static [usize], &'static [usize]), CaseInput, bool) -> Case,
) -> Vec<Case> {
    let labels = |n: usize, classes: i64| CaseInput::ints(DType::I64, &[n], 0, classes);
    let with = |reduction: &str| Attrs::new().with("reduction", reduction);
    let given =
        CaseInput { fill: Fill::Values(vec![2.0, -1.0, 0.0]), ..CaseInput::ints(DType::I32, &[3], 0, 1) };
    vec![
        make(with("mean"), "mean", (&[4, 3], &[3, 5]), labels(4, 5), false),
        make(
            with("sum").with("trans_b", 1),
            "weight transposed, bias",
            (&[3, 4], &[7, 4]),
            labels(3, 7),
            true,
        ),
        make(with("mean").with("ignore_index", -1), "an ignored row", (&[3, 2], &[2, 7]), given, true),
        make(with("mean").with("trans_b", 1), "one class", (&[2, 2], &[1, 2]), labels(2, 1), false),
    ]
}

/// Starts of the blocks of classes and their lengths.
pub(super) fn blocks(layer: Layer) -> impl Iterator<Item = (usize, usize)> {
    let block = layer.block();
    (0..layer.classes).step_by(block).map(move |c| (c, block.min(layer.classes - c)))
}

fn forward<T: Math>(
    layer: Layer,
    classes: Classes,
    mean: bool,
    labels: DType,
    io: &Io<'_>,
) -> Result<(), KernelError> {
    let labels = Labels::of(io, 2, labels);
    classes.check(labels)?;
    let (x, w) = (shared(io.input::<T>(0)), shared(io.input::<T>(1)));
    let bias = if io.has(3) { Some(shared(io.input::<T>(3))) } else { None };
    let (loss, [shifts, rest]) = (io.output::<T>(0), [1, 2].map(|i| Shared(io.output_ptr::<T>(i).0)));
    let Layer { rows, depth, .. } = layer;
    let sums = Shared(io.workspace::<f64>().as_mut_ptr());
    let largest = Shared(sums.0.wrapping_add(rows).cast::<T>());
    let own = Shared(largest.0.wrapping_add(rows));
    let held = Shared(own.0.wrapping_add(rows));
    for (first, n) in blocks(layer) {
        let weights = layer.weights(w.0, first);
        // SAFETY: the operands lie inside their tensors, the block's scores inside the workspace.
        unsafe {
            let out = Mat::rows(held.0, n);
            multiply_par([rows, n, depth], T::ONE, Mat::rows(x.0, depth), weights, T::ZERO, out);
        }
        lanes::each(
            rows,
            GRAIN,
            #[inline(always)]
            |range| {
                let (sums, largest, own, held, bias) = (&sums, &largest, &own, &held, &bias);
                for r in range {
                    // SAFETY: row `r` of the workspace is this call's only; the label's class lies in the row where it is read.
                    unsafe {
                        let row = held.0.add(r * n);
                        if let Some(b) = bias {
                            add(n, row, b.0.add(first));
                        }
                        let (old, sum) = if first == 0 {
                            (T::NEG_INFINITY, 0.0)
                        } else {
                            (*largest.0.add(r), *sums.0.add(r))
                        };
                        let new = old.larger(lanes::largest(n, row.cast_const()));
                        let shift = if new == T::NEG_INFINITY { T::ZERO } else { new };
                        let [part] = lanes::sums(
                            n,
                            [row.cast_const()],
                            #[inline(always)]
                            |[v]| [(v - shift).vexp()],
                        );
                        *sums.0.add(r) = sum * (old - shift).vexp().to_f64() + part;
                        *largest.0.add(r) = new;
                        if let Some(class) = classes.class(labels.get(r))
                            && (first..first + n).contains(&class)
                        {
                            *own.0.add(r) = *row.add(class - first);
                        }
                    }
                }
            },
        );
    }
    let (mut sum, mut count) = (0.0, 0.0);
    for r in 0..rows {
        // SAFETY: the loops above wrote what is read here.
        unsafe {
            let (max, log) = (*largest.0.add(r), T::from_f64(libm::log(*sums.0.add(r))));
            [*shifts.0.add(r), *rest.0.add(r)] = log_sum(max, *sums.0.add(r));
            if classes.class(labels.get(r)).is_some() {
                sum += (log + (max - *own.0.add(r))).to_f64();
                count += 1.0;
            }
        }
    }
    loss[0] = T::from_f64(if mean { sum / count } else { sum });
    Ok(())
}

/// Adds `b` to a row of scores.
///
/// # Safety
///
/// Both have `n` elements.
#[inline(always)]
pub(super) unsafe fn add<T: Math>(n: usize, row: *mut T, b: *const T) {
    // SAFETY: by this function's contract.
    unsafe {
        lanes::map(
            n,
            [row.cast_const(), b],
            [row],
            #[inline(always)]
            |[x, b]| [x + b],
        );
    }
}
