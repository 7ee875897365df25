//! CUDA launches of elementwise operators: a function by name, and how operands follow the output.

use super::{
    activation as a, trigonometry as t,
    unary::{Function, params},
};
use crate::{
    OpError, Signature,
    cuda::{Arg, Builder, Kernels, Plan, dtype_name, source, width_name},
};
use graph::{Attr, DType};

/// Extents and strides of operands over one output, outermost first; axes along which all operands walk alike are merged.
#[derive(Debug, PartialEq, Eq)]
struct Layout {
    extents: Vec<i64>,
    /// By operand.
    strides: Vec<Vec<i64>>,
}

fn layout(out: &[usize], operands: &[Vec<usize>]) -> Result<Layout, OpError> {
    let strides: Vec<Vec<i64>> = operands
        .iter()
        .map(|shape| {
            let (mut strides, mut step) = (vec![0; out.len()], 1);
            for (i, n) in shape.iter().enumerate().rev() {
                strides[out.len() - shape.len() + i] = if *n == 1 { 0 } else { step };
                step *= *n as i64;
            }
            strides
        })
        .collect();
    let mut merged = Layout { extents: Vec::new(), strides: vec![Vec::new(); operands.len()] };
    for (axis, &n) in out.iter().enumerate().filter(|(_, n)| **n != 1) {
        let n = n as i64;
        let joins = !merged.extents.is_empty()
            && (0..operands.len()).all(|o| merged.strides[o].last() == Some(&(strides[o][axis] * n)));
        if joins && let Some(last) = merged.extents.last_mut() {
            *last *= n;
        } else {
            merged.extents.push(n);
        }
        for (m, s) in merged.strides.iter_mut().zip(&strides) {
            if joins && let Some(last) = m.last_mut() {
                *last = s[axis];
            } else {
                m.push(s[axis]);
            }
        }
    }
    if merged.extents.len() > 8 {
        return Err(OpError::unsupported("broadcasting along more than eight axes on CUDA"));
    }
    Ok(merged)
}

/// Applies function `f` to `inputs` of these types in memory.
fn apply(
    s: &Signature<'_>,
    f: &str,
    inputs: &[(usize, &str)],
    out: &str,
    params: [f64; 3],
) -> Result<Kernels, OpError> {
    let dims = s.out_dims(0)?;
    let operands = inputs.iter().map(|(i, _)| s.dims(*i)).collect::<Result<Vec<_>, _>>()?;
    let layout = layout(&dims, &operands)?;
    let n: usize = dims.iter().product();
    let mut b = Builder::new(s, source!("elementwise/elementwise.cu"))?;
    b.define("F", f).define("ARITY", inputs.len()).define("TY", out);
    for ((_, t), name) in inputs.iter().zip(["TA", "TB", "TC"]) {
        b.define(name, t);
    }
    let mut args: Vec<Arg> = inputs.iter().map(|(i, _)| Arg::Input(*i)).collect();
    args.extend([Arg::Output(0), Arg::Index(n as i64)]);
    let step = |o: usize, axis: usize| layout.strides.get(o).and_then(|s| s.get(axis)).copied().unwrap_or(0);
    if layout.extents.len() <= 1 {
        args.extend((0..3).map(|o| Arg::I32(step(o, 0) as i32)));
        args.push(Arg::Params(params));
        b.over("flat", n as u64, args)?;
    } else {
        args.extend([Arg::I32(layout.extents.len() as i32), Arg::Dims(layout.extents.clone())]);
        args.extend((0..3).map(|o| Arg::Dims(layout.strides.get(o).cloned().unwrap_or_default())));
        args.push(Arg::Params(params));
        b.over("broadcast", n as u64, args)?;
    }
    Ok(b.done())
}

/// A launch that converts `n` elements between types, as a step of another operator's kernels.
pub(crate) fn convert(b: &mut Builder, from: (Arg, &str), to: (Arg, &str), n: u64) -> Result<(), OpError> {
    b.source(source!("elementwise/elementwise.cu"));
    b.define("F", "Cast").define("ARITY", 1).define("TY", to.1).define("TA", from.1);
    let steps = [1, 0, 0].map(Arg::I32);
    let args =
        [vec![from.0, to.0, Arg::Index(n as i64)], steps.to_vec(), vec![Arg::Params([0.0; 3])]].concat();
    b.over("flat", n, args)
}

fn named(s: &Signature<'_>, f: &str, inputs: usize, params: [f64; 3]) -> Result<Kernels, OpError> {
    let types: Vec<(usize, &str)> = (0..inputs)
        .map(|i| Ok::<_, OpError>((i, dtype_name(s.input(i)?.dtype))))
        .collect::<Result<_, _>>()?;
    apply(s, f, &types, dtype_name(s.output(0)?.dtype), params)
}

fn value<F: Function>(s: &Signature<'_>) -> Result<Kernels, OpError> {
    named(s, F::NAME, 1, params::<F>(s.attrs)?)
}

fn slope<F: Function>(s: &Signature<'_>) -> Result<Kernels, OpError> {
    named(s, F::GRAD, 2, params::<F>(s.attrs)?)
}

fn flags(s: &Signature<'_>, names: &[&str]) -> Result<[f64; 3], OpError> {
    let mut p = [0.0; 3];
    for (p, name) in p.iter_mut().zip(names) {
        *p = s.attrs.int(name)? as f64;
    }
    Ok(p)
}

/// Bounds, and which of them count: 0 both, 1 the upper, 2 the lower, 3 none.
fn bounds(s: &Signature<'_>) -> Result<[f64; 3], OpError> {
    let d = s.input(0)?.dtype;
    let (least, most) = match d {
        DType::I8 => (i8::MIN as i64, i8::MAX as i64),
        DType::I16 => (i16::MIN as i64, i16::MAX as i64),
        DType::I32 => (i32::MIN as i64, i32::MAX as i64),
        DType::U8 => (0, u8::MAX as i64),
        DType::U16 => (0, u16::MAX as i64),
        DType::U32 => (0, u32::MAX as i64),
        DType::U64 => (0, i64::MAX),
        _ => (i64::MIN, i64::MAX),
    };
    let bound = |name: &str, absent: f64| -> Result<Option<f64>, OpError> {
        Ok(match s.attrs.get(name) {
            None => d.is_float().then_some(absent),
            Some(Attr::Int(i)) if d.is_int() && (*i <= least || *i >= most) => {
                let none = if absent < 0.0 { *i <= least } else { *i >= most };
                if none { None } else { Some(if *i <= least { least } else { most } as f64) }
            }
            Some(Attr::Int(i)) if d.is_int() && i.unsigned_abs() > 1 << 53 => {
                return Err(OpError::unsupported(format!("{name} = {i} on CUDA")));
            }
            Some(_) => Some(s.attrs.float_or(name, 0.0)?),
        })
    };
    let (lo, hi) = (bound("min", f64::NEG_INFINITY)?, bound("max", f64::INFINITY)?);
    let kind = match (lo, hi) {
        (Some(_), Some(_)) => 0.0,
        (None, Some(_)) => 1.0,
        (Some(_), None) => 2.0,
        (None, None) => 3.0,
    };
    Ok([lo.unwrap_or(0.0), hi.unwrap_or(0.0), kind])
}

fn select(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let w = width_name(s.input(1)?.dtype);
    apply(s, "Where", &[(0, "u8"), (1, w), (2, w)], w, [0.0; 3])
}

fn cast(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let f = if s.attrs.dtype("to")? == DType::Bool { "CastBool" } else { "Cast" };
    named(s, f, 1, [0.0; 3])
}

/// Entries of functions and their gradients.
macro_rules! functions {
    ($($m:ident: $($f:ident $grad:ident)*;)*) => {
        [$($((stringify!($f), value::<$m::$f> as Plan), (stringify!($grad), slope::<$m::$f> as Plan),)*)*]
    };
}

/// Entries of operators without attributes, by number of inputs.
macro_rules! plain {
    ($($n:literal: $($f:ident)*;)*) => {
        [$($((stringify!($f), (|s| named(s, stringify!($f), $n, [0.0; 3])) as Plan),)*)*]
    };
}

/// Functions and their gradients: names and launches.
pub(crate) const FUNCTIONS: &[(&str, Plan)] = &functions! {
    a: Relu ReluGrad LeakyRelu LeakyReluGrad ThresholdedRelu ThresholdedReluGrad Elu EluGrad Selu SeluGrad Celu CeluGrad
       Sigmoid SigmoidGrad Tanh TanhGrad Swish SwishGrad Mish MishGrad Gelu GeluGrad GeluTanh GeluTanhGrad
       Softplus SoftplusGrad Softsign SoftsignGrad HardSigmoid HardSigmoidGrad HardSwish HardSwishGrad Shrink ShrinkGrad
       Erf ErfGrad;
    t: Exp ExpGrad Log LogGrad Sqrt SqrtGrad Reciprocal ReciprocalGrad Sin SinGrad Cos CosGrad Tan TanGrad Asin AsinGrad
       Acos AcosGrad Atan AtanGrad Sinh SinhGrad Cosh CoshGrad Asinh AsinhGrad Acosh AcoshGrad Atanh AtanhGrad;
};

/// Operators without attributes: names and launches.
pub(crate) const PLAIN: &[(&str, Plan)] = &plain! {
    1: Neg Abs Sign Floor Ceil Round IsNaN Not BitwiseNot;
    2: Add Sub Mul Div Pow Max Min AbsGrad PRelu PReluSlopeGrad Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor
       BitwiseAnd BitwiseOr BitwiseXor;
    3: MaxGrad MinGrad PReluGrad;
};

/// Operators with attributes, or types of their own: names and launches.
pub(crate) const OTHERS: &[(&str, Plan)] = &[
    ("PowGrad", |s| named(s, "PowGrad", 3, [0.0; 3])),
    ("PowExponentGrad", |s| named(s, "PowExponentGrad", 3, [0.0; 3])),
    ("Mod", |s| named(s, "Mod", 2, flags(s, &["fmod"])?)),
    ("BitShift", |s| named(s, "BitShift", 2, flags(s, &["left"])?)),
    ("IsInf", |s| named(s, "IsInf", 1, flags(s, &["negative", "positive"])?)),
    ("Where", select),
    ("Clip", |s| named(s, "Clip", 1, bounds(s)?)),
    ("ClipGrad", |s| named(s, "ClipGrad", 2, bounds(s)?)),
    ("Cast", cast),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_that_all_operands_walk_alike_merge() {
        let l = layout(&[2, 3, 4], &[vec![2, 3, 4], vec![3, 1]]).unwrap();
        assert_eq!((l.extents, l.strides), (vec![2, 3, 4], vec![vec![12, 4, 1], vec![0, 1, 0]]));
        let l = layout(&[2, 3, 4], &[vec![2, 3, 4], vec![2, 3, 4]]).unwrap();
        assert_eq!((l.extents, l.strides), (vec![24], vec![vec![1], vec![1]]));
        let l = layout(&[2, 3], &[vec![], vec![2, 3]]).unwrap();
        assert_eq!((l.extents, l.strides), (vec![6], vec![vec![0], vec![1]]));
        let l = layout(&[], &[vec![], vec![]]).unwrap();
        assert_eq!(l.extents, Vec::<i64>::new());
    }
}
