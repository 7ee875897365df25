//! Where and Clip.

use super::{
    binary::{Wrapping, broadcast, set_summed, zip},
    lanes::{map, zip3},
    unary::{float_input, in_place, number_input},
};
use crate::{
    Facts, OpDef, OpError, Signature,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Float},
    export::Export,
    grad::GradCx,
    onnx::{ImportCx, OnnxRule, rules},
};
use graph::{Attr, Attrs, DType, Literal, TensorType};

/// a where the condition holds, else b. Inputs: condition (boolean), a, b; all broadcast.
pub struct Where;

/// Whether this is Where(IsNaN(x), 0, x).
fn guards(g: &GradCx<'_, '_>) -> Result<bool, OpError> {
    let (c, a, x) = (g.input(0)?, g.input(1)?, g.input(2)?);
    let graph = g.b.graph();
    let test = graph.producer(c).map(|n| graph.node(n));
    let is_nan = test.is_some_and(|n| &*n.op == "IsNaN" && n.inputs == [Some(x)]);
    let is_zero = || graph.constant(a).is_some_and(|l| l.to_floats().iter().all(|e| *e == 0.0));
    Ok(is_nan && g.b.ty(g.output(0)) == g.b.ty(x) && is_zero())
}

impl OpDef for Where {
    fn name(&self) -> &'static str {
        "Where"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Where" => |cx| cx.same("Where", Attrs::new())]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (c, a, b) = (s.input(0)?, s.input(1)?, s.input(2)?);
        if c.dtype != DType::Bool {
            return Err(OpError::invalid(format!("the condition must be boolean, not {}", c.dtype)));
        }
        if a.dtype != b.dtype {
            return Err(OpError::invalid(format!("the branches differ: {} and {}", a.dtype, b.dtype)));
        }
        Ok(vec![TensorType { dtype: a.dtype, shape: broadcast(&broadcast(&c.shape, &a.shape)?, &b.shape)? }])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (c, dy) = (g.input(0)?, g.cotangent0()?);
        let dtype = g.b.ty(dy).dtype;
        for i in 1..3 {
            if g.needs(i) {
                let zero = g.b.scalar(dtype, 0.0);
                let inputs = if i == 1 { [c, dy, zero] } else { [c, zero, dy] };
                let d = g.b.call("Where", &inputs)?;
                set_summed(g, i, d)?;
            }
        }
        if guards(g)? {
            g.guards(2);
        }
        Ok(())
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        Facts { folds: true, ..super::binary::broadcast_facts(s) }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_width!(s.input(1)?.dtype, T => {
            zip3::<u8, T, T, T>(s, |c: u8, a: T, b: T| if c != 0 { a } else { b })
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        x.same("Where", Attrs::new())
    }

    fn cases(&self) -> Vec<Case> {
        let condition = |shape: &[usize]| CaseInput::ints(DType::Bool, shape, 0, 2);
        let floats = |shape: &[usize]| CaseInput::float(shape, Fill::Uniform(-1.0, 1.0));
        let case = |name, c: &[usize], a: &[usize], b: &[usize]| {
            Case::new(name, Attrs::new(), &[]).input(0, condition(c)).input(1, floats(a)).input(2, floats(b))
        };
        let ints = CaseInput::ints(DType::I64, &[2, 3], -9, 9);
        vec![
            case("same shape", &[2, 3], &[2, 3], &[2, 3]),
            case("mask", &[1, 4], &[3, 4], &[]),
            case("all broadcast", &[2, 1, 1], &[3, 1], &[4]),
            Case::new("integers", Attrs::new(), &[])
                .input(0, condition(&[3]))
                .input(1, ints.clone())
                .input(2, ints),
            Case::new("booleans", Attrs::new(), &[])
                .input(0, condition(&[3, 1]))
                .input(1, condition(&[4]))
                .input(2, condition(&[3, 4])),
        ]
    }
}

/// x moved into [min, max]; attributes `min` and `max` (numbers), either may be absent. The gradient passes where x is inside, bounds
/// excluded, as those of ReLU, ReLU6 and PyTorch's clamp.
pub struct Clip;

/// The bounds as elements; absent ones are the dtype's extremes.
fn bounds<T: Wrapping>(attrs: &Attrs) -> Result<(T, T), OpError> {
    let get = |name: &str, default: T| {
        Ok::<T, OpError>(match attrs.get(name) {
            None => default,
            // Integers keep all of their 64 bits.
            Some(Attr::Int(i)) => T::saturating(*i),
            Some(_) => T::from_f64(attrs.float_or(name, 0.0)?),
        })
    };
    Ok((get("min", T::LEAST)?, get("max", T::GREATEST)?))
}

/// A bound as an element of the dtype.
fn bound(attrs: &Attrs, name: &str, dtype: DType) -> Result<Literal, OpError> {
    match attrs.get(name) {
        Some(Attr::Int(i)) if dtype == DType::I64 => {
            Literal::ints(&[*i]).reshaped(Vec::new()).map_err(|e| OpError::invalid(e.to_string()))
        }
        _ => Ok(Literal::scalar(dtype, attrs.float_or(name, 0.0)?)),
    }
}

impl OpDef for Clip {
    fn name(&self) -> &'static str {
        "Clip"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Clip" => clip]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        s.attrs.float_or("min", 0.0)?;
        s.attrs.float_or("max", 0.0)?;
        number_input(s)
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (x, dy, attrs) = (g.input(0)?, g.cotangent0()?, g.attrs().clone());
        let dx = g.b.op("ClipGrad", attrs, &[x, dy])?;
        g.set(0, dx);
        Ok(())
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { folds: true, ..in_place() }
    }

    fn elementwise(&self) -> bool {
        true
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_number!(s.input(0)?.dtype, self.name(), T => {
            let (lo, hi) = bounds::<T>(s.attrs)?;
            // Not `max` and `min`, so that NaN stays; the upper bound wins if the bounds are crossed.
            Ok(map::<T, T>(move |x: T| {
                let x = if x < lo { lo } else { x };
                if x > hi { hi } else { x }
            }))
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let v = x.input(0)?;
        let bound = |name: &str| match x.sig.attrs.get(name) {
            None => Ok(None),
            Some(_) => bound(x.sig.attrs, name, v.dtype()).map(|l| Some(x.constant(l))),
        };
        let inputs = [Some(v), bound("min")?, bound("max")?];
        x.same_of("Clip", &inputs, Attrs::new())
    }

    fn cases(&self) -> Vec<Case> {
        let x = || {
            CaseInput::float(&[4, 5], Fill::Avoid { range: (-2.0, 2.0), points: &[-0.5, 1.0], margin: 0.05 })
        };
        vec![
            Case::new("both bounds", Attrs::new().with("min", -0.5).with("max", 1.0), &[]).input(0, x()),
            Case::new("lower", Attrs::new().with("min", -0.5), &[]).input(0, x()),
            Case::new("none", Attrs::new(), &[]).input(0, x()),
            Case::new("integers", Attrs::new().with("min", -3i64).with("max", i64::MAX), &[])
                .input(0, CaseInput::ints(DType::I32, &[9], -6, 6)),
        ]
    }
}

/// ONNX Clip: bounds that are known become attributes, others Max and Min.
fn clip(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let x = cx.input(0)?;
    let dtype = cx.b.ty(x).dtype;
    let attr = |l: &Literal, name: &str| {
        if l.len() != 1 {
            return Err(OpError::invalid(format!("{name} must be one number")));
        }
        let int = l.to_ints().filter(|_| dtype.is_int());
        Ok(int.map_or_else(|| Attr::Float(l.to_floats()[0]), |i| Attr::Int(i[0])))
    };
    let mut attrs = Attrs::new();
    let mut dynamic = Vec::new();
    for (i, name) in [(1, "min"), (2, "max")] {
        if cx.attrs.get(name).is_some() {
            attrs = attrs.with(name, cx.attrs.float_or(name, 0.0)?);
        } else if let Some(v) = cx.opt_input(i) {
            match cx.b.literal(v) {
                Some(l) => {
                    attrs.0.insert(name.to_owned(), attr(l, name)?);
                }
                None => dynamic.push((if i == 1 { "Max" } else { "Min" }, v)),
            }
        }
    }
    let mut y = x;
    if dynamic.is_empty() {
        y = cx.b.op("Clip", attrs, &[x])?;
    } else {
        // The lower bound first, as ONNX defines it, whichever of the two is known.
        for (i, name, op) in [(1, "min", "Max"), (2, "max", "Min")] {
            if let Some(a) = attrs.get(name) {
                y = cx.b.op("Clip", Attrs(std::iter::once((name.to_owned(), a.clone())).collect()), &[y])?;
            } else if let (true, Some(v)) = (dynamic.iter().any(|d| d.0 == op), cx.opt_input(i)) {
                y = cx.b.call(op, &[y, v])?;
            }
        }
    }
    cx.set(0, y);
    Ok(())
}

/// dy where x is inside of the bounds and on none, else 0: the gradient of [`Clip`]. An infinite bound is none. Inputs x, dy.
pub struct ClipGrad;

impl OpDef for ClipGrad {
    fn name(&self) -> &'static str {
        "ClipGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        s.attrs.float_or("min", 0.0)?;
        s.attrs.float_or("max", 0.0)?;
        float_input(s)?;
        super::binary::same_dtype(s)
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn numeric_class(&self) -> u32 {
        2
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        super::binary::broadcast_facts(s)
    }

    fn elementwise(&self) -> bool {
        true
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_float!(s.input(0)?.dtype, self.name(), T => {
            let (lo, hi) = bounds::<T>(s.attrs)?;
            let (least, greatest) = (T::NEG_INFINITY, -T::NEG_INFINITY);
            zip::<T, T>(s, move |x: T, dy: T| {
                let inside = (x > lo || x == least && lo == least) && (x < hi || x == greatest && hi == greatest);
                if inside { dy } else { T::ZERO }
            })
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (v, dy) = (x.input(0)?, x.input(1)?);
        // A NaN is inside of nothing.
        let mut y = v.equals(v).pick(dy, 0.0);
        for (name, test) in [("min", "Greater"), ("max", "Less")] {
            if x.sig.attrs.float_or(name, f64::INFINITY)?.is_finite() {
                let bound = x.constant(bound(x.sig.attrs, name, v.dtype())?);
                y = v.test(test, bound).pick(y, 0.0);
            }
        }
        x.set(0, y);
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let attrs = Attrs::new().with("min", -0.5).with("max", 0.25);
        vec![Case::new("both bounds", attrs, &[&[3, 5], &[3, 5]])]
    }
}
