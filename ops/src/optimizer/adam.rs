//! Adam and AdamW.

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

/// One step of Adam (arXiv 1412.6980) or AdamW (arXiv 1711.05101) by PyTorch's arithmetic.
///
/// Inputs: param, grad, lr (f32 scalar), first moment m, second moment v, step (i64 scalar, from 1; less counts as 1), optional scale
/// (f32 scalar on the gradient), optional ok (f32 scalar). Outputs: param', m', v'. Attributes: `beta1` (0.9), `beta2` (0.999), `eps`
/// (1e-8), `weight_decay` (0), `decoupled` (0; 1 is AdamW). Element arithmetic is in the state's dtype; factors that are the same for all
/// elements are computed in float64 and rounded once.
pub struct Adam;

#[derive(Clone, Copy)]
struct Rule {
    beta1: f64,
    beta2: f64,
    eps: f64,
    decay: f64,
    decoupled: bool,
}

impl Rule {
    fn of(a: &Attrs) -> Result<Rule, OpError> {
        let rule = Rule {
            beta1: a.float_or("beta1", 0.9)?,
            beta2: a.float_or("beta2", 0.999)?,
            eps: a.float_or("eps", 1e-8)?,
            decay: a.float_or("weight_decay", 0.0)?,
            decoupled: a.int_or("decoupled", 0)? != 0,
        };
        for (name, beta) in [("beta1", rule.beta1), ("beta2", rule.beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return Err(OpError::invalid(format!("{name} must be in [0, 1), not {beta}")));
            }
        }
        Ok(rule)
    }
}

impl OpDef for Adam {
    fn name(&self) -> &'static str {
        "Adam"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let t = state_type(s)?;
        at_most(s, 8)?;
        like_first(s, 1, "the gradient")?;
        like_first(s, 3, "the first moment")?;
        like_first(s, 4, "the second moment")?;
        s.input(2)?;
        s.input(5)?;
        scalar(s, 2, "the learning rate", DType::F32)?;
        scalar(s, 5, "the step", DType::I64)?;
        scalar(s, 6, "scale", DType::F32)?;
        scalar(s, 7, "ok", DType::F32)?;
        Rule::of(s.attrs)?;
        Ok(vec![t.clone(), t.clone(), t])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        commits(&[(0, 0), (1, 3), (2, 4)])
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let n = s.outputs.first().and_then(|t| t.shape.elements()).unwrap_or(0);
        Work { flops: n.saturating_mul(16), bytes: s.io_bytes(), product: false }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let rule = Rule::of(s.attrs)?;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            step::<T>(rule, io);
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (rule, p, m, v) = (Rule::of(x.sig.attrs)?, x.input(0)?, x.input(3)?, x.input(4)?);
        let dtype = p.dtype();
        // What is the same for all elements is computed in double precision, as the kernel does.
        let (lr, step) = (x.input(2)?.cast(DType::F64), x.input(5)?.cast(DType::F64).with("Max", 1.0));
        let correction = |beta: f64| 1.0 - x.number(DType::F64, beta).with("Pow", step);
        let size = (lr / correction(rule.beta1)).cast(dtype);
        let root = correction(rule.beta2).call("Sqrt").cast(dtype);
        let mut g = x.input(1)?;
        if let Some(scale) = x.opt(6) {
            g = g * scale.cast(dtype);
        }
        let mut from = p;
        if rule.decoupled {
            from = p * (1.0 - lr * rule.decay).cast(dtype);
        } else if rule.decay != 0.0 {
            g = g + p * rule.decay;
        }
        let new_m = m + (g - m) * (1.0 - rule.beta1);
        let new_v = v * rule.beta2 + g * g * (1.0 - rule.beta2);
        let new_p = from - size * new_m / (new_v.call("Sqrt") / root + rule.eps);
        for (i, (old, new)) in [(p, new_p), (m, new_m), (v, new_v)].into_iter().enumerate() {
            x.set(i, kept_unless_ok(x, 7, old, new));
        }
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let scalar = |v: f64| CaseInput {
            dtype: Some(DType::F32),
            ..CaseInput::float(&[], Fill::Values(vec![v])).fixed()
        };
        let case = |name, attrs| {
            Case::new(name, attrs, &[&[37], &[37], &[], &[37]])
                .input(2, scalar(0.01))
                .input(4, CaseInput::float(&[37], Fill::Uniform(0.0, 1.0)))
                .input(5, CaseInput::ints(DType::I64, &[], 3, 4))
        };
        let decay = Attrs::new().with("weight_decay", 0.1);
        vec![
            case("plain", Attrs::new()),
            case("decay in the gradient", decay.clone()),
            case("decoupled decay, scaled", decay.clone().with("decoupled", true)).input(6, scalar(0.5)),
            case("a bad step", decay).input(7, scalar(0.0)),
        ]
    }
}

/// `base` to the power `n` by squaring, the same on every machine.
fn power(mut base: f64, mut n: u64) -> f64 {
    let mut result = 1.0;
    while n > 0 {
        if n & 1 == 1 {
            result *= base;
        }
        base *= base;
        n >>= 1;
    }
    result
}

fn step<T: Float>(rule: Rule, io: &Io<'_>) {
    if !ok(io, 7) {
        for (o, i) in [(0, 0), (1, 3), (2, 4)] {
            keep::<T>(io, o, i);
        }
        return;
    }
    let lr = f64::from(io.input::<f32>(2)[0]);
    let count = io.input::<i64>(5)[0].max(1) as u64;
    let (correction1, correction2) = (1.0 - power(rule.beta1, count), 1.0 - power(rule.beta2, count));
    let of = T::from_f64;
    let (minus_step, root2) = (of(-lr / correction1), of(correction2.sqrt()));
    let (keep_param, decay) =
        if rule.decoupled { (of(1.0 - lr * rule.decay), T::ZERO) } else { (T::ONE, of(rule.decay)) };
    let (new1, beta2, new2, eps) = (of(1.0 - rule.beta1), of(rule.beta2), of(1.0 - rule.beta2), of(rule.eps));
    // Interpolates from the nearer end, so that a moment equal to the gradient stays equal.
    let (near_start, beta1) = (rule.beta1 > 0.5, of(rule.beta1));
    let scale = of(f64::from(gradient_scale(io, 6)));
    let n = io.input_ptr::<T>(0).1;
    let (p, g, m, v) = (read::<T>(io, 0), read::<T>(io, 1), read::<T>(io, 3), read::<T>(io, 4));
    let (p_out, m_out, v_out) = (write::<T>(io, 0), write::<T>(io, 1), write::<T>(io, 2));
    lanes::each(
        n,
        par::GRAIN,
        #[inline(always)]
        |r| {
            let (p, g, m, v, p_out, m_out, v_out) = (&p, &g, &m, &v, &p_out, &m_out, &v_out);
            let at = r.start;
            // SAFETY: the range is inside all seven buffers, and ranges are disjoint.
            unsafe {
                let x = [p, g, m, v].map(|x| x.0.add(at).cast_const());
                let y = [p_out, m_out, v_out].map(|y| y.0.add(at));
                lanes::map(
                    r.len(),
                    x,
                    y,
                    #[inline(always)]
                    |[p, g, m, v]| {
                        let g = g * scale + decay * p;
                        let p = p * keep_param;
                        let m = if near_start { m + new1 * (g - m) } else { g - (g - m) * beta1 };
                        let v = v * beta2 + new2 * g * g;
                        let denominator = v.sqrt() / root2 + eps;
                        [p + minus_step * m / denominator, m, v]
                    },
                );
            }
        },
    );
}
