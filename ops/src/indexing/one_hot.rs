//! One-hot vectors from indices.

use super::{Indices, index_input};
use crate::{
    Facts, OpDef, OpError, Signature,
    case::{Case, CaseInput},
    cpu::{CpuKernel, Element, par},
    export::Export,
    grad::GradCx,
    movement::count,
    onnx::{ImportCx, OnnxRule, normalize_axis, rules},
};
use graph::{Attrs, DType, Literal, TensorType};

/// A new axis of extent `depth` at `axis`: `values[1]` where its coordinate is the index, `values[0]` elsewhere.
///
/// Inputs: indices (i32 or i64; negative ones count from the end, those outside match nothing) and `values`, shape `[2]`.
pub struct OneHot;

impl OpDef for OneHot {
    fn name(&self) -> &'static str {
        "OneHot"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["OneHot" => import]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (indices, values) = (index_input(s, 0)?, s.input(1)?);
        if values.shape.fixed().as_deref() != Some(&[2]) {
            return Err(OpError::invalid(format!("values are {values}, they must be two elements")));
        }
        let (depth, axis) = parse(s, indices.shape.rank())?;
        if let Some(dims) = indices.shape.fixed() {
            count(&[count(&dims, values.dtype)?, depth], values.dtype)?;
        }
        let mut shape = indices.shape.clone();
        shape.0.insert(axis, depth.into());
        Ok(vec![TensorType { dtype: values.dtype, shape }])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        if !g.needs(1) {
            return Ok(());
        }
        let (indices, dy, dtype) = (g.input(0)?, g.cotangent0()?, g.ty(1)?.dtype);
        let attrs = g.attrs().clone();
        let axes: Vec<i64> = (0..g.b.ty(dy).shape.rank() as i64).collect();
        let mut sums = Vec::new();
        for pair in [[1.0, 0.0], [0.0, 1.0]] {
            let mask = two(dtype, pair)?;
            let mask = g.b.constant(mask);
            let mask = g.b.op("OneHot", attrs.clone(), &[indices, mask])?;
            let d = g.b.call("Mul", &[dy, mask])?;
            let d = g.b.reduce_sum(d, &axes, true)?;
            sums.push(g.b.reshape(d, &graph::Shape::from(&[1usize][..]))?);
        }
        let d = g.b.op("Concat", Attrs::new().with("axis", 0), &sums)?;
        g.set(1, d);
        Ok(())
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let dims = s.dims(0)?;
        let (depth, axis) = parse(s, dims.len())?;
        let inner: usize = dims[axis..].iter().product();
        let index = index_input(s, 0)?.dtype;
        crate::for_width!(s.input(1)?.dtype, T => Ok(one_hot::<T>(depth, inner, index)))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let depth = x.number(DType::I64, x.sig.attrs.int("depth")? as f64);
        let (mut indices, values) = (x.input(0)?.cast(DType::I64), x.input(1)?);
        let scalar = x.sig.input(0)?.shape.rank() == 0;
        if scalar {
            // ONNX wants an axis.
            indices = indices.reshape(&[1]);
        }
        let attrs = Attrs::new().with("axis", x.sig.attrs.int("axis")?);
        let inputs = [Some(indices), Some(depth), Some(values)];
        let y = x.node("OneHot", &inputs, attrs, &[values.dtype()])[0];
        x.set(0, if scalar { y.reshape(&[x.sig.attrs.int("depth")?.max(0) as usize]) } else { y });
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, axis: i64, depth: i64, indices: &[usize]| {
            let attrs = Attrs::new().with("axis", axis).with("depth", depth);
            Case::new(name, attrs, &[&[], &[2]])
                .input(0, CaseInput::ints(DType::I64, indices, -depth - 1, depth + 1))
        };
        vec![
            case("last axis", 1, 4, &[5]),
            case("first axis", 0, 3, &[2, 3]),
            case("middle axis", 1, 3, &[2, 4]),
            case("a scalar index", 0, 3, &[]),
            case("narrow", 1, 2, &[3]).input(0, CaseInput::ints(DType::I32, &[3], 0, 2)),
        ]
    }
}

pub(super) fn parse(s: &Signature<'_>, rank: usize) -> Result<(usize, usize), OpError> {
    let (depth, axis) = (s.attrs.int("depth")?, s.attrs.int("axis")?);
    match (usize::try_from(depth), usize::try_from(axis)) {
        (Ok(depth), Ok(axis)) if axis <= rank => Ok((depth, axis)),
        _ => {
            Err(OpError::invalid(format!("depth {depth} at axis {axis} does not fit indices of {rank} axes")))
        }
    }
}

fn two(dtype: DType, pair: [f64; 2]) -> Result<Literal, OpError> {
    let bytes: Vec<u8> = pair.iter().flat_map(|v| Literal::scalar(dtype, *v).bytes().to_vec()).collect();
    Literal::new(dtype, vec![2], bytes).map_err(|e| OpError::invalid(e.to_string()))
}

fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let (indices, values) = (cx.input(0)?, cx.input(2)?);
    let rank = cx.ty(0)?.shape.rank();
    let axis = normalize_axis(cx.attrs.int_or("axis", -1)?, rank + 1)?;
    let depth = cx.opt_literal(1, "the depth")?.ok_or_else(|| OpError::invalid("the depth is missing"))?;
    let depth = match depth.to_floats().as_slice() {
        [d] => *d as i64,
        _ => return Err(OpError::invalid("the depth must be one number")),
    };
    let indices = match cx.b.ty(indices).dtype {
        DType::I32 | DType::I64 => indices,
        _ => cx.b.cast(indices, DType::I64)?,
    };
    let attrs = Attrs::new().with("axis", axis as i64).with("depth", depth);
    let y = cx.b.op("OneHot", attrs, &[indices, values])?;
    cx.set(0, y);
    Ok(())
}

fn one_hot<T: Element>(depth: usize, inner: usize, index: DType) -> CpuKernel {
    Box::new(move |io| {
        let indices = Indices::of(io, 0, index);
        let (off, on) = (io.input::<T>(1)[0], io.input::<T>(1)[1]);
        // An index that is out of range on either side ends up at or beyond the depth.
        par::rows(io.output::<T>(0), depth * inner, |o, row| {
            row.fill(off);
            for i in 0..inner {
                let hot = indices.get(o * inner + i, depth);
                if hot < depth {
                    row[hot * inner + i] = on;
                }
            }
        });
        Ok(())
    })
}
