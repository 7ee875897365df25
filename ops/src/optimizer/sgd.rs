//! Stochastic gradient descent with momentum.

use super::{
    at_most, commits, gradient_scale, keep, kept_unless_ok, like_first, ok, read, scalar, state_type, write,
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Float, Io, lanes, par},
    export::Export,
};
use graph::{Attrs, DType, TensorType};

/// One step of SGD by PyTorch's rule.
///
/// Inputs: param, grad, lr (f32 scalar), optional momentum buffer, optional scale (f32 scalar on the gradient), optional ok (f32 scalar).
/// Outputs: param', and the buffer' if the buffer is given. Attributes: `momentum`, `nesterov`, `weight_decay`, `dampening`, all 0 by
/// default. With g = scale * grad + weight_decay * param and buf' = momentum * buf + (1 - dampening) * g, the direction is buf', or
/// g + momentum * buf' with Nesterov, or g without a buffer; param' = param - lr * direction. A buffer starts at zero, which is PyTorch's
/// first step (buf = g) when dampening is 0.
pub struct Sgd;

struct Rule<T> {
    momentum: T,
    undamped: T,
    decay: T,
    nesterov: bool,
    has_buffer: bool,
}

impl OpDef for Sgd {
    fn name(&self) -> &'static str {
        "Sgd"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let t = state_type(s)?;
        at_most(s, 6)?;
        like_first(s, 1, "the gradient")?;
        s.input(2)?;
        scalar(s, 2, "the learning rate", DType::F32)?;
        scalar(s, 4, "scale", DType::F32)?;
        scalar(s, 5, "ok", DType::F32)?;
        let momentum = s.attrs.float_or("momentum", 0.0)?;
        s.attrs.float_or("weight_decay", 0.0)?;
        s.attrs.float_or("dampening", 0.0)?;
        let nesterov = s.attrs.int_or("nesterov", 0)? != 0;
        if s.opt_input(3).is_some() {
            like_first(s, 3, "the momentum buffer")?;
            return Ok(vec![t.clone(), t]);
        }
        if momentum != 0.0 || nesterov {
            return Err(OpError::invalid("momentum needs a momentum buffer (input 3)"));
        }
        Ok(vec![t])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        if s.opt_input(3).is_some() { commits(&[(0, 0), (1, 3)]) } else { commits(&[(0, 0)]) }
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let n = s.outputs.first().and_then(|t| t.shape.elements()).unwrap_or(0);
        Work { flops: n.saturating_mul(6), bytes: s.io_bytes(), product: false }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_float!(s.input(0)?.dtype, self.name(), T => {
            let rule = Rule::<T> {
                momentum: s.attrs.float_or("momentum", 0.0)? as T,
                undamped: (1.0 - s.attrs.float_or("dampening", 0.0)?) as T,
                decay: s.attrs.float_or("weight_decay", 0.0)? as T,
                nesterov: s.attrs.int_or("nesterov", 0)? != 0,
                has_buffer: s.opt_input(3).is_some(),
            };
            Ok(Box::new(move |io: &Io<'_>| {
                step(&rule, io);
                Ok(())
            }))
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (p, mut g, attrs) = (x.input(0)?, x.input(1)?, x.sig.attrs);
        let lr = x.input(2)?.cast(p.dtype());
        if let Some(scale) = x.opt(4) {
            g = g * scale.cast(p.dtype());
        }
        let decay = attrs.float_or("weight_decay", 0.0)?;
        if decay != 0.0 {
            g = g + p * decay;
        }
        if let Some(buffer) = x.opt(3) {
            let momentum = attrs.float_or("momentum", 0.0)?;
            let new = buffer * momentum + g * (1.0 - attrs.float_or("dampening", 0.0)?);
            g = if attrs.int_or("nesterov", 0)? != 0 { g + new * momentum } else { new };
            x.set(1, kept_unless_ok(x, 5, buffer, new));
        }
        x.set(0, kept_unless_ok(x, 5, p, p - lr * g));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let scalar = |v: f64| CaseInput {
            dtype: Some(DType::F32),
            ..CaseInput::float(&[], Fill::Values(vec![v])).fixed()
        };
        let case = |name, attrs| Case::new(name, attrs, &[&[3, 13], &[3, 13]]).input(2, scalar(0.1));
        let buffer = CaseInput::float(&[3, 13], Fill::Uniform(-1.0, 1.0));
        let momentum = Attrs::new().with("momentum", 0.9).with("weight_decay", 0.01);
        vec![
            case("plain", Attrs::new()),
            case("weight decay, scaled", Attrs::new().with("weight_decay", 0.1)).input(4, scalar(0.25)),
            case("momentum", momentum.clone()).input(3, buffer.clone()),
            case("nesterov", momentum.clone().with("nesterov", true)).input(3, buffer.clone()),
            case("a bad step", momentum).input(3, buffer).input(5, scalar(0.0)),
        ]
    }
}

fn step<T: Float>(rule: &Rule<T>, io: &Io<'_>) {
    if !ok(io, 5) {
        keep::<T>(io, 0, 0);
        if rule.has_buffer {
            keep::<T>(io, 1, 3);
        }
        return;
    }
    let lr = T::from_f64(f64::from(io.input::<f32>(2)[0]));
    let scale = T::from_f64(f64::from(gradient_scale(io, 4)));
    let n = io.input_ptr::<T>(0).1;
    let (p, g, out) = (read::<T>(io, 0), read::<T>(io, 1), write::<T>(io, 0));
    let Rule { momentum, undamped, decay, nesterov, .. } = *rule;
    let gradient = move |p: T, g: T| g * scale + decay * p;
    if !rule.has_buffer {
        lanes::each(
            n,
            par::GRAIN,
            #[inline(always)]
            |r| {
                let (p, g, out) = (&p, &g, &out);
                let at = r.start;
                // SAFETY: the range is inside all three buffers, and ranges are disjoint.
                unsafe {
                    let x = [p.0.add(at).cast_const(), g.0.add(at).cast_const()];
                    lanes::map(r.len(), x, [out.0.add(at)], |[p, g]| [p - lr * gradient(p, g)]);
                }
            },
        );
        return;
    }
    let (b, b_out) = (read::<T>(io, 3), write::<T>(io, 1));
    lanes::each(
        n,
        par::GRAIN,
        #[inline(always)]
        |r| {
            let (p, g, b, out, b_out) = (&p, &g, &b, &out, &b_out);
            let at = r.start;
            // SAFETY: the range is inside all five buffers, and ranges are disjoint.
            unsafe {
                let x = [p.0.add(at).cast_const(), g.0.add(at).cast_const(), b.0.add(at).cast_const()];
                lanes::map(r.len(), x, [out.0.add(at), b_out.0.add(at)], |[p, g, b]| {
                    let g = gradient(p, g);
                    let b = momentum * b + undamped * g;
                    let direction = if nesterov { g + momentum * b } else { b };
                    [p - lr * direction, b]
                });
            }
        },
    );
}
