//! Means of losses of single elements: squared error and binary cross entropy.

use super::along::same_type;
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{
        CpuKernel, Float, Io, lanes,
        math::Math,
        par::{GRAIN, Shared},
    },
    export::Export,
    grad::GradCx,
};
use graph::{Attrs, Shape, TensorType};

/// The mean of (x - t)². Inputs: x and the target t of the same type.
pub struct MseLoss;

/// 2 (x - t) dy / n. Inputs: x, t, the cotangent of the loss.
pub struct MseLossGrad;

/// The mean of binary cross entropy between sigmoid(x) and t: max(x, 0) - x t + ln(1 + e^-|x|). Inputs: x and the target t of the same
/// type, which has no gradient.
pub struct BceWithLogitsLoss;

/// (sigmoid(x) - t) dy / n. Inputs: x, t, the cotangent of the loss.
pub struct BceWithLogitsLossGrad;

/// The mean of binary cross entropy between probabilities x and t: -t ln x - (1 - t) ln(1 - x), logarithms no less than -100. Inputs: x and
/// the target t of the same type, which has no gradient.
pub struct BceLoss;

/// (x - t) / (x (1 - x)) dy / n, the divisor no less than 1e-12. Inputs: x, t, the cotangent of the loss.
pub struct BceLossGrad;

fn infer_loss(s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
    let (x, t) = (s.input(0)?, s.input(1)?);
    same_type(x, t, "prediction and target")?;
    if !x.dtype.is_float() {
        return Err(OpError::invalid(format!("predictions must be floating-point, not {}", x.dtype)));
    }
    Ok(vec![TensorType { dtype: x.dtype, shape: Shape::scalar() }])
}

fn infer_grad(s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
    let loss = infer_loss(s)?;
    same_type(&loss[0], s.input(2)?, "loss and cotangent")?;
    Ok(vec![s.input(0)?.clone()])
}

fn elements(s: &Signature<'_>) -> u64 {
    s.opt_input(0).and_then(|t| t.shape.elements()).unwrap_or(0)
}

fn work(s: &Signature<'_>, per_element: u64) -> Work {
    Work { flops: elements(s).saturating_mul(per_element), bytes: s.io_bytes(), product: false }
}

/// The mean of `f(x, t)` over all elements.
fn mean<T: Math>(f: impl Fn(T, T) -> T + Send + Sync + 'static) -> CpuKernel {
    Box::new(move |io: &Io<'_>| {
        let [x, t] = [0, 1].map(|i| Shared(io.input_ptr::<T>(i).0.cast_mut()));
        let n = io.input_ptr::<T>(0).1;
        let partial = io.workspace::<f64>();
        let parts = Shared(partial.as_mut_ptr());
        lanes::each(
            n,
            GRAIN,
            #[inline(always)]
            |r| {
                let (x, t, parts) = (&x, &t, &parts);
                // SAFETY: the range is inside both buffers; one partial sum a range.
                unsafe {
                    let run = [x, t].map(|p| p.0.add(r.start).cast_const());
                    let [sum] = lanes::sums(
                        r.len(),
                        run,
                        #[inline(always)]
                        |[x, t]| [f(x, t)],
                    );
                    *parts.0.add(r.start / GRAIN) = sum;
                }
            },
        );
        io.output::<T>(0)[0] = T::from_f64(partial.iter().sum::<f64>() / n as f64);
        Ok(())
    })
}

/// `f(x, t) * dy / n` for each element.
fn each<T: Math>(f: impl Fn(T, T) -> T + Send + Sync + 'static) -> CpuKernel {
    Box::new(move |io: &Io<'_>| {
        let [x, t] = [0, 1].map(|i| Shared(io.input_ptr::<T>(i).0.cast_mut()));
        let dx = Shared(io.output_ptr::<T>(0).0);
        let n = io.input_ptr::<T>(0).1;
        let scale = T::from_f64(io.input::<T>(2)[0].to_f64() / n as f64);
        lanes::each(
            n,
            GRAIN,
            #[inline(always)]
            |r| {
                let (x, t, dx) = (&x, &t, &dx);
                // SAFETY: the range is inside the three buffers, and ranges are disjoint.
                unsafe {
                    let run = [x, t].map(|p| p.0.add(r.start).cast_const());
                    let out = [dx.0.add(r.start)];
                    lanes::map(
                        r.len(),
                        run,
                        out,
                        #[inline(always)]
                        |[x, t]| [f(x, t) * scale],
                    );
                }
            },
        );
        Ok(())
    })
}

macro_rules! loss {
    ($name:ident, $grad:ident, $text:literal, $grad_text:literal, $flops:literal, $range:expr, $target:expr,
     |$x:ident, $t:ident| $value:expr, |$gx:ident, $gt:ident| $slope:expr, $target_gradient:expr,
     |$wx:ident, $wt:ident| $written:expr, |$vx:ident, $vt:ident| $written_slope:expr) => {
        impl OpDef for $name {
            fn name(&self) -> &'static str {
                $text
            }

            fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
                infer_loss(s)
            }

            fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
                let (x, t, dy) = (g.input(0)?, g.input(1)?, g.cotangent0()?);
                if g.needs(0) {
                    let dx = g.b.call($grad_text, &[x, t, dy])?;
                    g.set(0, dx);
                }
                if g.needs(1) {
                    let target: fn(&mut GradCx<'_, '_>) -> Result<(), OpError> = $target_gradient;
                    target(g)?;
                }
                Ok(())
            }

            fn work(&self, s: &Signature<'_>) -> Work {
                work(s, $flops)
            }

            fn facts(&self, s: &Signature<'_>) -> Facts {
                Facts::with_workspace(elements(s).div_ceil(GRAIN as u64) * 8)
            }

            fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
                crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(mean::<T>(#[inline(always)] |$x: T, $t: T| $value)))
            }

            fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
                let ($wx, $wt) = (x.input(0)?, x.input(1)?);
                let axes: Vec<i64> = (0..x.dims(0)?.len() as i64).collect();
                x.set(0, ($written).reduce("ReduceMean", &axes, false));
                Ok(())
            }

            fn cases(&self) -> Vec<Case> {
                cases($range, $target)
            }
        }

        impl OpDef for $grad {
            fn name(&self) -> &'static str {
                $grad_text
            }

            fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
                infer_grad(s)
            }

            fn differentiable(&self) -> bool {
                false
            }

            fn work(&self, s: &Signature<'_>) -> Work {
                work(s, $flops)
            }

            fn facts(&self, _: &Signature<'_>) -> Facts {
                Facts { overwrites: vec![(0, 0), (0, 1)], ..Facts::default() }
            }

            fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
                crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(each::<T>(#[inline(always)] |$gx: T, $gt: T| $slope)))
            }

            fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
                let ($vx, $vt, dy) = (x.input(0)?, x.input(1)?, x.input(2)?);
                let n: usize = x.dims(0)?.iter().product();
                x.set(0, ($written_slope) * (dy / n as f64));
                Ok(())
            }

            fn cases(&self) -> Vec<Case> {
                let dy = CaseInput::float(&[], Fill::Uniform(0.5, 1.5));
                cases($range, $target).into_iter().map(|c| c.input(2, dy.clone())).collect()
            }
        }
    };
}

fn cases(range: Fill, target: CaseInput) -> Vec<Case> {
    let case = |name, shape: &[usize]| {
        let t = CaseInput { shape: shape.to_vec(), ..target.clone() };
        Case::new(name, Attrs::new(), &[]).input(0, CaseInput::float(shape, range.clone())).input(1, t)
    };
    vec![case("matrix", &[3, 15]), case("scalar", &[])]
}

fn no_target(_: &mut GradCx<'_, '_>) -> Result<(), OpError> {
    Err(OpError::unsupported("the gradient of binary cross entropy to its target"))
}

fn target() -> CaseInput {
    CaseInput::float(&[], Fill::Uniform(0.0, 1.0)).fixed()
}

loss!(
    MseLoss,
    MseLossGrad,
    "MseLoss",
    "MseLossGrad",
    3,
    Fill::Uniform(-1.0, 1.0),
    CaseInput::float(&[], Fill::Uniform(-1.0, 1.0)),
    |x, t| (x - t) * (x - t),
    |x, t| (x - t) + (x - t),
    |g| {
        let (x, t, dy) = (g.input(0)?, g.input(1)?, g.cotangent0()?);
        let dt = g.b.call("MseLossGrad", &[t, x, dy])?;
        g.set(1, dt);
        Ok(())
    },
    |x, t| (x - t) * (x - t),
    |x, t| (x - t) * 2.0
);

loss!(
    BceWithLogitsLoss,
    BceWithLogitsLossGrad,
    "BceWithLogitsLoss",
    "BceWithLogitsLossGrad",
    25,
    Fill::Avoid { range: (-3.0, 3.0), points: &[0.0], margin: 0.01 },
    target(),
    |x, t| x.vsoftplus() - x * t,
    |x, t| x.vsigmoid() - t,
    no_target,
    |x, t| x.call("Softplus") - x * t,
    |x, t| x.call("Sigmoid") - t
);

loss!(
    BceLoss,
    BceLossGrad,
    "BceLoss",
    "BceLossGrad",
    40,
    Fill::Uniform(0.1, 0.9),
    target(),
    |x, t| {
        let least = Math::of(-100.0);
        -(t * x.vln().larger(least) + (1.0 - t) * (-x).vln_1p().larger(least))
    },
    |x, t| (x - t) / (x * (1.0 - x)).larger(Math::of(1e-12)),
    no_target,
    |x, t| -(t * x.call("Log").with("Max", -100.0) + (1.0 - t) * (1.0 - x).call("Log").with("Max", -100.0)),
    |x, t| (x - t) / (x * (1.0 - x)).with("Max", 1e-12)
);
