//! Arithmetic on two inputs, with numpy broadcasting, and what all broadcasting operators share.

pub(crate) use super::{lanes::zip, number::Wrapping};
use crate::{
    Facts, OpDef, OpError, Signature,
    case::{Case, CaseInput, Fill},
    cpu::CpuKernel,
    export::{Export, Term},
    grad::GradCx,
    onnx::{ImportCx, OnnxRule, rules},
};
use graph::{Attrs, DType, Dim, Shape, TensorType};

/// a + b.
pub struct Add;

impl OpDef for Add {
    fn name(&self) -> &'static str {
        "Add"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules![
            "Add" => |cx| cx.same("Add", Attrs::new()),
            "Sum" => |cx| fold(cx, "Add"),
            "Mean" => mean,
        ]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        same_dtype(s)
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let dy = g.cotangent0()?;
        for i in 0..2 {
            if g.needs(i) {
                let shape = g.ty(i)?.shape;
                let d = g.b.sum_to(dy, &shape)?;
                g.set(i, d);
            }
        }
        Ok(())
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        Facts { folds: true, ..broadcast_facts(s) }
    }

    fn elementwise(&self) -> bool {
        true
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_number!(s.input(0)?.dtype, self.name(), T => zip::<T, T>(s, <T as Wrapping>::add))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        x.same("Add", Attrs::new())
    }

    fn cases(&self) -> Vec<Case> {
        broadcast_cases()
    }
}

/// a * b.
pub struct Mul;

impl OpDef for Mul {
    fn name(&self) -> &'static str {
        "Mul"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Mul" => |cx| cx.same("Mul", Attrs::new())]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        same_dtype(s)
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let dy = g.cotangent0()?;
        for i in 0..2 {
            if g.needs(i) {
                let other = g.input(1 - i)?;
                let shape = g.ty(i)?.shape;
                let d = g.b.call("Mul", &[dy, other])?;
                let d = g.b.sum_to(d, &shape)?;
                g.set(i, d);
            }
        }
        Ok(())
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        Facts { folds: true, ..broadcast_facts(s) }
    }

    fn elementwise(&self) -> bool {
        true
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_number!(s.input(0)?.dtype, self.name(), T => zip::<T, T>(s, <T as Wrapping>::mul))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        x.same("Mul", Attrs::new())
    }

    fn cases(&self) -> Vec<Case> {
        broadcast_cases()
    }
}

/// a - b.
pub struct Sub;

impl OpDef for Sub {
    fn name(&self) -> &'static str {
        "Sub"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Sub" => |cx| cx.same("Sub", Attrs::new())]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        same_dtype(s)
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let dy = g.cotangent0()?;
        if g.needs(0) {
            set_summed(g, 0, dy)?;
        }
        if g.needs(1) {
            let shape = g.ty(1)?.shape;
            let sum = g.b.sum_to(dy, &shape)?;
            let d = g.b.call("Neg", &[sum])?;
            g.set(1, d);
        }
        Ok(())
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        Facts { folds: true, ..broadcast_facts(s) }
    }

    fn elementwise(&self) -> bool {
        true
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_number!(s.input(0)?.dtype, self.name(), T => zip::<T, T>(s, <T as Wrapping>::sub))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        x.same("Sub", Attrs::new())
    }

    fn cases(&self) -> Vec<Case> {
        broadcast_cases()
    }
}

/// a / b; integers are truncated toward zero, and an integer divided by 0 is 0.
pub struct Div;

impl OpDef for Div {
    fn name(&self) -> &'static str {
        "Div"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Div" => |cx| cx.same("Div", Attrs::new())]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        same_dtype(s)
    }

    /// da = dy / b; db = -da · y, which needs the quotient and not a.
    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (b, y, dy) = (g.input(1)?, g.output(0), g.cotangent0()?);
        let da = g.b.call("Div", &[dy, b])?;
        if g.needs(0) {
            set_summed(g, 0, da)?;
        }
        if g.needs(1) {
            let shape = g.ty(1)?.shape;
            let d = g.b.call("Mul", &[da, y])?;
            let d = g.b.sum_to(d, &shape)?;
            let d = g.b.call("Neg", &[d])?;
            g.set(1, d);
        }
        Ok(())
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        Facts { folds: true, ..broadcast_facts(s) }
    }

    fn elementwise(&self) -> bool {
        true
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_number!(s.input(0)?.dtype, self.name(), T => zip::<T, T>(s, <T as Wrapping>::div))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (a, b) = (x.input(0)?, x.input(1)?);
        x.set(0, guarded(x, a, b, "Div", Attrs::new()));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let positive = |shape: &[usize]| CaseInput::float(shape, Fill::Uniform(0.5, 2.0));
        let mut cases: Vec<Case> = broadcast_cases()
            .into_iter()
            .map(|c| {
                let shape = c.inputs[1].as_ref().map_or(Vec::new(), |i| i.shape.clone());
                c.input(1, positive(&shape))
            })
            .collect();
        let ints = |lo, hi| CaseInput::ints(DType::I64, &[2, 3], lo, hi);
        cases.push(Case::new("integers", Attrs::new(), &[]).input(0, ints(-9, 9)).input(1, ints(-2, 3)));
        cases
    }
}

/// A division or remainder as ONNX writes it, which says nothing of integers divided by 0: there the result is 0.
pub(crate) fn guarded<'a>(
    x: &Export<'a>,
    a: Term<'a>,
    b: Term<'a>,
    op: &'static str,
    attrs: Attrs,
) -> Term<'a> {
    let known = x.sig.constants.get(1).copied().flatten().and_then(|l| l.to_ints());
    if a.dtype().is_float() || known.is_some_and(|l| !l.contains(&0)) {
        return x.call(op, &[a, b], attrs);
    }
    let zero = b.equals(0.0);
    zero.pick(0.0, x.call(op, &[a, zero.pick(1.0, b)], attrs))
}

/// Sets the cotangent of input `i` to `d` summed to the input's shape.
pub(crate) fn set_summed(g: &mut GradCx<'_, '_>, i: usize, d: graph::ValueId) -> Result<(), OpError> {
    let shape = g.ty(i)?.shape;
    let d = g.b.sum_to(d, &shape)?;
    g.set(i, d);
    Ok(())
}

/// The rule of ONNX operators of any number of inputs: a left fold with `op`.
pub(crate) fn fold(cx: &mut ImportCx<'_, '_>, op: &str) -> Result<(), OpError> {
    let mut acc = cx.input(0)?;
    for i in 1..cx.inputs.len() {
        let next = cx.input(i)?;
        acc = cx.b.call(op, &[acc, next])?;
    }
    cx.set(0, acc);
    Ok(())
}

/// ONNX Mean: the sum of the inputs over their number.
fn mean(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    fold(cx, "Add")?;
    let n = cx.inputs.len();
    if let (Some(Some(sum)), 2..) = (cx.outputs.first().copied(), n) {
        let dtype = cx.b.ty(sum).dtype;
        let n = cx.b.scalar(dtype, n as f64);
        let mean = cx.b.call("Div", &[sum, n])?;
        cx.set(0, mean);
    }
    Ok(())
}

/// The broadcast of two shapes, or an error naming the axis that differs.
pub(crate) fn broadcast(a: &Shape, b: &Shape) -> Result<Shape, OpError> {
    let rank = a.rank().max(b.rank());
    let one = Dim::constant(1);
    let at = |s: &Shape, i: usize| {
        (i + s.rank()).checked_sub(rank).map_or_else(|| one.clone(), |j| s.0[j].clone())
    };
    let mut out = Vec::with_capacity(rank);
    for i in 0..rank {
        let (x, y) = (at(a, i), at(b, i));
        out.push(if x == y || y == one {
            x
        } else if x == one {
            y
        } else if x.as_const().is_some() && y.as_const().is_some() {
            return Err(OpError::invalid(format!(
                "shapes {a} and {b} do not broadcast: axis {i} is {x} and {y}"
            )));
        } else {
            return Err(OpError::Dynamic(format!("whether {x} equals {y} (shapes {a} and {b})")));
        });
    }
    Ok(Shape(out))
}

/// The type of an elementwise result whose inputs have one dtype.
pub(crate) fn same_dtype(s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
    let (a, b) = (s.input(0)?, s.input(1)?);
    if a.dtype != b.dtype {
        return Err(OpError::invalid(format!("input dtypes differ: {} and {}", a.dtype, b.dtype)));
    }
    Ok(vec![TensorType { dtype: a.dtype, shape: broadcast(&a.shape, &b.shape)? }])
}

/// An input of the output's type may be overwritten.
pub(crate) fn broadcast_facts(s: &Signature<'_>) -> Facts {
    let same = |i: &usize| s.outputs.first().is_some_and(|o| s.inputs[*i] == Some(*o));
    Facts { overwrites: (0..s.inputs.len()).filter(same).map(|i| (0, i)).collect(), ..Facts::default() }
}

pub(crate) fn broadcast_cases() -> Vec<Case> {
    vec![
        Case::new("same shape", Attrs::new(), &[&[2, 3], &[2, 3]]),
        Case::new("row", Attrs::new(), &[&[4, 3], &[3]]),
        Case::new("column", Attrs::new(), &[&[4, 1], &[4, 3]]),
        Case::new("channel", Attrs::new(), &[&[2, 3, 4], &[3, 1]]),
        Case::new("both sides", Attrs::new(), &[&[2, 1, 3], &[4, 1]]),
        Case::new("scalar", Attrs::new(), &[&[], &[5]]),
    ]
}
