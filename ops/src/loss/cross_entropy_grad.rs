//! The gradient of softmax cross entropy.
//!
//! The probabilities of a row are divided by their own sum. The log-sum-exp only moves them to where exponentials do not overflow: rounded
//! to one number, it is off by its last place, which is 64 where scores are near 1e9, and so would be every exponent.

use super::{
    along::Along,
    cross_entropy::cases,
    labels::{Classes, Labels, Reduction, infer_rows, reduced, same_shape},
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Io, columns, lanes, lanes::LANES, math::Math, par::Shared},
    export::Export,
};
use graph::{Attrs, DType, TensorType};

/// d scores = (softmax(scores) - onehot(label)) * weight * dy, or times weight * dy / Σ weight for the mean, plus softmax(scores) * d lse.
///
/// Inputs: scores, labels, log-sum-exp of each row (any number near its largest score will do), optional dy (the cotangent of the loss), optional weights, optional cotangent of the
/// log-sum-exp. Attributes as the forward operator's. Labels that are no class count nothing: the loss has refused them.
pub struct SoftmaxCrossEntropyGrad;

impl OpDef for SoftmaxCrossEntropyGrad {
    fn name(&self) -> &'static str {
        "SoftmaxCrossEntropyGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let rows = infer_rows(s, (0, 1, 4))?;
        let loss = reduced(&rows, Reduction::of(s.attrs)?);
        let all =
            [(2, &rows, "log-sum-exp"), (3, &loss, "cotangent"), (5, &rows, "cotangent of log-sum-exp")];
        for (i, want, what) in all {
            match s.opt_input(i) {
                None if i == 2 => return Err(OpError::invalid("input 2 is missing")),
                None => {}
                Some(t) if t.dtype != want.dtype => {
                    return Err(OpError::invalid(format!("{what} must be {}, not {}", want.dtype, t.dtype)));
                }
                Some(t) => same_shape(&want.shape, &t.shape, what)?,
            }
        }
        Ok(vec![s.input(0)?.clone()])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn numeric_class(&self) -> u32 {
        2
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let n = s.opt_input(0).and_then(|t| t.shape.elements()).unwrap_or(0);
        Work { flops: n.saturating_mul(16), bytes: s.io_bytes(), product: false }
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { overwrites: vec![(0, 0)], ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let along = Along::new(&s.dims(0)?, 1);
        let classes = Classes::new(along.n, s.attrs)?;
        let (reduction, labels) = (Reduction::of(s.attrs)?, s.input(1)?.dtype);
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            backward::<T>(along, classes, reduction, labels, io);
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (scores, dims) = (x.input(0)?, x.dims(0)?);
        let rows = super::labels::written(x, x.input(1)?, dims[1], x.opt(4), scores.dtype())?;
        let line = [&[dims[0], 1], &dims[2..]].concat();
        let probabilities = scores.call_with("Softmax", Attrs::new().with("axis", 1i64));
        let share = match x.opt(3) {
            Some(dy) => rows.share(x, dy)?.reshape(&line),
            None => rows.weight.reshape(&line) * 0.0,
        };
        let factor = x.opt(5).map_or(share, |d| share + d.reshape(&line));
        x.set(0, probabilities * factor - rows.hot * share);
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        cases(|name, attrs, x, labels, weights| {
            let rows = labels.shape.clone();
            let one = attrs.str_or("reduction", "mean") != Ok("none");
            let dy: &[usize] = if one { &[] } else { &rows };
            let c = Case::new(name, attrs, &[x]).input(1, labels);
            let c = c.input(2, CaseInput::float(&rows, Fill::Uniform(2.0, 4.0)));
            let c = c.input(3, CaseInput::float(dy, Fill::Uniform(0.5, 1.5)));
            if !weights {
                return c;
            }
            let c = c.input(4, CaseInput::float(&[x[1]], Fill::Uniform(0.5, 2.0)));
            c.input(5, CaseInput::float(&rows, Fill::Uniform(0.5, 1.0)))
        })
    }
}

fn backward<T: Math>(along: Along, classes: Classes, reduction: Reduction, labels: DType, io: &Io<'_>) {
    let labels = Labels::of(io, 1, labels);
    let lse = io.input::<T>(2);
    let optional = |i: usize| io.has(i).then(|| io.input::<T>(i));
    let (dy, weights, d_lse) = (optional(3), optional(4), optional(5));
    let x = Shared(io.input_ptr::<T>(0).0.cast_mut());
    let dx = Shared(io.output_ptr::<T>(0).0);
    let total = if reduction == Reduction::Mean { classes.total(labels, weights) } else { 1.0 };
    let scale = dy.map_or(0.0, |d| if reduction == Reduction::None { 1.0 } else { d[0].to_f64() / total });
    let scale = T::from_f64(scale);
    // Class of line `l`, its share of the cotangent, and the factor of its probabilities.
    let line = |l: usize| {
        let own = match dy {
            Some(d) if reduction == Reduction::None => d[l],
            _ => scale,
        };
        let hit = classes.weighed(labels.get(l), weights).map(|(class, w)| (class, w * own));
        let share = hit.map_or(T::ZERO, |(_, c)| c);
        (hit, share + d_lse.map_or(T::ZERO, |d| d[l]))
    };
    let n = along.n;
    along.each(
        #[inline(always)]
        |_, rows| {
            let (x, dx) = (&x, &dx);
            for r in rows {
                let (hit, factor) = line(r);
                let lse = lse[r];
                // SAFETY: row `r` lies inside both buffers and is this call's only; a class is less than `n`.
                unsafe {
                    let (x, dx) = (x.0.add(r * n).cast_const(), dx.0.add(r * n));
                    lanes::map(
                        n,
                        [x],
                        [dx],
                        #[inline(always)]
                        |[v]| [(v - lse).vexp()],
                    );
                    let [sum] = lanes::sums(
                        n,
                        [dx.cast_const()],
                        #[inline(always)]
                        |e| e,
                    );
                    let factor = T::from_f64(factor.to_f64() / sum);
                    lanes::map(
                        n,
                        [dx.cast_const()],
                        [dx],
                        #[inline(always)]
                        |[e]| [e * factor],
                    );
                    if let Some((class, share)) = hit {
                        *dx.add(class) = *dx.add(class) - share;
                    }
                }
            }
        },
        #[inline(always)]
        |_, columns| {
            let (x, dx) = (&x, &dx);
            for c in columns {
                let shape = (n, along.inner, c.width);
                let (mut shifts, mut factors) = ([T::ZERO; LANES], [T::ZERO; LANES]);
                shifts[..c.width].copy_from_slice(&lse[c.line..c.line + c.width]);
                // SAFETY: the columns lie inside both buffers and are this call's only; a class is less than `n`.
                unsafe {
                    let (x, dx) = (x.0.add(c.at).cast_const(), dx.0.add(c.at));
                    columns::map(
                        shape,
                        [x],
                        dx,
                        [&shifts],
                        #[inline(always)]
                        |[v], [s]| (v - s).vexp(),
                    );
                    let sums = columns::sums(
                        shape,
                        [dx.cast_const()],
                        [],
                        #[inline(always)]
                        |[e], []| e,
                    );
                    for l in 0..c.width {
                        factors[l] = T::from_f64(line(c.line + l).1.to_f64() / sums[l]);
                    }
                    columns::map(
                        shape,
                        [dx.cast_const()],
                        dx,
                        [&factors],
                        #[inline(always)]
                        |[e], [f]| e * f,
                    );
                    for l in 0..c.width {
                        if let (Some((class, share)), _) = line(c.line + l) {
                            let p = dx.add(class * along.inner + l);
                            *p = *p - share;
                        }
                    }
                }
            }
        },
    );
}
