//! Negative log likelihood.

use super::{
    along::Along,
    cross_entropy::cases,
    labels::{Classes, Labels, Reduction, check_labels, infer_rows, reduced, same_shape},
};
use crate::{
    Facts, OpDef, OpError, Signature,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Element, Float, Io, KernelError},
    export::Export,
    grad::GradCx,
    onnx::{OnnxRule, rules},
};
use graph::{Attrs, DType, Dim, Shape, TensorType};

/// `-weight * input[label]`, per row or reduced.
///
/// Inputs: logarithms of probabilities `[N, C, d..]`, labels `[N, d..]` (i32 or i64), optional weights `[C]`. Output: the loss. Attributes
/// as those of [`super::cross_entropy::SoftmaxCrossEntropyLoss`].
pub struct NegativeLogLikelihoodLoss;

impl OpDef for NegativeLogLikelihoodLoss {
    fn name(&self) -> &'static str {
        "NegativeLogLikelihoodLoss"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["NegativeLogLikelihoodLoss" => |cx| {
            let mut attrs = Attrs::new().with("reduction", cx.attrs.str_or("reduction", "mean")?);
            if let Some(i) = cx.attrs.opt_int("ignore_index")? {
                attrs = attrs.with("ignore_index", i);
            }
            cx.same("NegativeLogLikelihoodLoss", attrs)
        }]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let rows = infer_rows(s, (0, 1, 2))?;
        Ok(vec![reduced(&rows, Reduction::of(s.attrs)?)])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        if g.needs(2) {
            return Err(OpError::unsupported("the gradient to the class weights of a loss"));
        }
        let x = g.ty(0)?;
        let classes =
            x.shape.0[1].as_const().ok_or_else(|| OpError::Dynamic("the number of classes".into()))?;
        let attrs = g.attrs().clone().with("classes", classes);
        let inputs = [g.opt_input(1), Some(g.cotangent0()?), g.opt_input(2)];
        let dx = g.b.emit("NegativeLogLikelihoodGrad", attrs, &inputs)?;
        g.set(0, dx[0]);
        Ok(())
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { can_fail: true, ..Facts::default() }
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
        x.same("NegativeLogLikelihoodLoss", super::labels::exported(x)?)
    }

    fn cases(&self) -> Vec<Case> {
        cases(|name, attrs, x, labels, weights| {
            let c = Case::new(name, attrs, &[x]).input(1, labels);
            if weights { c.input(2, CaseInput::float(&[x[1]], Fill::Uniform(0.5, 2.0)).fixed()) } else { c }
        })
    }
}

#[allow(clippy::needless_range_loop)]
fn forward<T: Float>(
    along: Along,
    classes: Classes,
    reduction: Reduction,
    labels: DType,
    io: &Io<'_>,
) -> Result<(), KernelError> {
    let labels = Labels::of(io, 1, labels);
    classes.check(labels)?;
    let x = io.input::<T>(0);
    let weights = io.has(2).then(|| io.input::<T>(2));
    let out = io.output::<T>(0);
    let (mut sum, mut total) = (0.0, 0.0);
    for l in 0..labels.len() {
        let at = l / along.inner * along.n * along.inner + l % along.inner;
        let mut row = T::ZERO;
        if let Some((class, weight)) = classes.weighed(labels.get(l), weights) {
            row = -(weight * x[at + class * along.inner]);
            sum += row.to_f64();
            total += weight.to_f64();
        }
        if reduction == Reduction::None {
            out[l] = row;
        }
    }
    match reduction {
        Reduction::None => {}
        Reduction::Mean => out[0] = T::from_f64(sum / total),
        Reduction::Sum => out[0] = T::from_f64(sum),
    }
    Ok(())
}

/// The gradient of [`NegativeLogLikelihoodLoss`]: zero but at the labels.
///
/// Inputs: labels, dy, optional weights. Attributes as the forward operator's, and `classes`.
pub struct NegativeLogLikelihoodGrad;

impl OpDef for NegativeLogLikelihoodGrad {
    fn name(&self) -> &'static str {
        "NegativeLogLikelihoodGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (l, dy) = (s.input(0)?, s.input(1)?);
        check_labels(l)?;
        if l.shape.rank() == 0 || !dy.dtype.is_float() {
            return Err(OpError::invalid(format!("labels {l} or cotangent {dy} of a wrong type")));
        }
        let classes = s.attrs.int("classes")?;
        if classes < 0 {
            return Err(OpError::invalid(format!("classes must not be negative: {classes}")));
        }
        let rows = TensorType { dtype: dy.dtype, shape: l.shape.clone() };
        same_shape(&reduced(&rows, Reduction::of(s.attrs)?).shape, &dy.shape, "the cotangent")?;
        if let Some(w) = s.opt_input(2) {
            if w.dtype != dy.dtype {
                return Err(OpError::invalid(format!("weights must be {} like the cotangent", dy.dtype)));
            }
            same_shape(&Shape(vec![Dim::constant(classes)]), &w.shape, "one weight a class")?;
        }
        let mut shape = l.shape.clone();
        shape.0.insert(1, Dim::constant(classes));
        Ok(vec![TensorType { dtype: dy.dtype, shape }])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let along = Along::new(&s.out_dims(0)?, 1);
        let classes = Classes::new(along.n, s.attrs)?;
        let (reduction, labels) = (Reduction::of(s.attrs)?, s.input(0)?.dtype);
        crate::for_float!(s.input(1)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            let labels = Labels::of(io, 0, labels);
            let dy = io.input::<T>(1);
            let weights = io.has(2).then(|| io.input::<T>(2));
            let dx = io.output::<T>(0);
            dx.fill(0.0);
            let total = if reduction == Reduction::Mean { classes.total(labels, weights) } else { 1.0 };
            for l in 0..labels.len() {
                if let Some((class, weight)) = classes.weighed(labels.get(l), weights) {
                    let at = l / along.inner * along.n * along.inner + l % along.inner;
                    let d = if reduction == Reduction::None { dy[l] } else { T::from_f64(dy[0].to_f64() / total) };
                    dx[at + class * along.inner] = -(weight * d);
                }
            }
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (dy, labels) = (x.input(1)?, x.dims(0)?);
        let classes = x.sig.attrs.int("classes")?.max(0) as usize;
        let rows = super::labels::written(x, x.input(0)?, classes, x.opt(2), dy.dtype())?;
        let line = [&[labels[0], 1], &labels[1..]].concat();
        x.set(0, -(rows.hot * rows.share(x, dy)?.reshape(&line)));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        cases(|name, attrs, x, labels, weights| {
            let one = attrs.str_or("reduction", "mean") != Ok("none");
            let dy: Vec<usize> = if one { Vec::new() } else { labels.shape.clone() };
            let c = Case::new(name, attrs.with("classes", x[1] as i64), &[]).input(0, labels);
            let c = c.input(1, CaseInput::float(&dy, Fill::Uniform(0.5, 1.5)));
            if weights { c.input(2, CaseInput::float(&[x[1]], Fill::Uniform(0.5, 2.0))) } else { c }
        })
    }
}
