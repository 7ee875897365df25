//! Tensors one after the other along an axis.

use super::{Part, Strided, axis_attr, copy_kernel, moved, row_major, slice::slice_axis};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::Case,
    cpu::CpuKernel,
    export::Export,
    grad::GradCx,
    onnx::{ImportCx, OnnxRule, normalize_axis, rules},
};
use graph::{Attrs, Dim, TensorType};

/// Inputs of one dtype, equal but for their extent along `axis`, one after the other along it.
pub struct Concat;

impl OpDef for Concat {
    fn name(&self) -> &'static str {
        "Concat"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Concat" => import, "RotaryEmbedding" => super::rotary::import]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let first = s.input(0)?;
        let rank = first.shape.rank();
        let axis = axis_attr(s, "axis", rank)?;
        let mut out = first.clone();
        for i in 1..s.inputs.len() {
            let t = s.input(i)?;
            if t.dtype != first.dtype || t.shape.rank() != rank {
                return Err(OpError::invalid(format!("input {i} is {t}, input 0 is {first}")));
            }
            for (k, (a, b)) in first.shape.0.iter().zip(&t.shape.0).enumerate() {
                if k == axis {
                    out.shape.0[k] = out.shape.0[k].add(b);
                } else if a != b {
                    if a.as_const().is_some() && b.as_const().is_some() {
                        return Err(OpError::invalid(format!(
                            "input {i} is {t}, input 0 is {first}: they differ along axis {k}, not only along {axis}"
                        )));
                    }
                    return Err(OpError::Dynamic(format!("whether {a} equals {b} (axis {k})")));
                }
            }
        }
        Ok(vec![out])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (dy, axis) = (g.cotangent0()?, g.attrs().int("axis")? as usize);
        let mut start = 0;
        for i in 0..g.inputs() {
            let dim = g.ty(i)?.shape.0[axis].clone();
            let n = dim.as_const().ok_or_else(|| OpError::Dynamic(format!("the extent {dim}")))?;
            if g.needs(i) {
                let d = slice_axis(g.b, dy, axis, start, start + n)?;
                g.set(i, d);
            }
            start += n;
        }
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        moved(&self.facts(s), s)
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        Ok(copy_kernel(s.input(0)?.dtype, false, parts(s)?))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        x.same("Concat", Attrs::new().with("axis", x.sig.attrs.int("axis")?))
    }

    fn cases(&self) -> Vec<Case> {
        let axis = |a: i64| Attrs::new().with("axis", a);
        vec![
            Case::new("first axis", axis(0), &[&[2, 3], &[1, 3]]),
            Case::new("last axis", axis(1), &[&[2, 3], &[2, 1], &[2, 2]]),
            Case::new("channels", axis(1), &[&[2, 1, 2, 2], &[2, 3, 2, 2]]),
            Case::new("one empty", axis(0), &[&[2, 3], &[0, 3]]),
            Case::new("one input", axis(0), &[&[4]]),
        ]
    }
}

/// Where each input goes.
pub(super) fn parts(s: &Signature<'_>) -> Result<Vec<Part>, OpError> {
    let out = s.out_dims(0)?;
    let axis = axis_attr(s, "axis", out.len())?;
    let dst = row_major(&out);
    let mut parts = Vec::new();
    let mut start = 0;
    for i in 0..s.inputs.len() {
        let dims = s.dims(i)?;
        let copy = Strided::new(&dims, &row_major(&dims), &dst, 0, start * dst[axis] as usize);
        parts.push(Part { input: i, output: 0, copy });
        start += dims[axis];
    }
    if start != out[axis] {
        return Err(OpError::invalid("the output does not have the inputs' extents"));
    }
    Ok(parts)
}

fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let axis = normalize_axis(cx.attrs.int_or("axis", 1)?, cx.ty(0)?.shape.rank())?;
    let zero = Dim::constant(0);
    let mut parts = Vec::new();
    for i in 0..cx.inputs.len() {
        // Empty parts are left out; what remains must still agree, which the first input stands for.
        if i == 0 || cx.ty(i)?.shape.0.get(axis) != Some(&zero) {
            parts.push(cx.input(i)?);
        }
    }
    if parts.len() > 1 && cx.ty(0)?.shape.0.get(axis) == Some(&zero) {
        parts.remove(0);
    }
    let y = match parts.as_slice() {
        [one] => *one,
        _ => cx.b.op("Concat", Attrs::new().with("axis", axis as i64), &parts)?,
    };
    cx.set(0, y);
    Ok(())
}
