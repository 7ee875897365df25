//! Broadcasting and repetition.

use super::{Part, Strided, copy_facts, copy_kernel, count, extents_attr, moved, row_major};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::Case,
    cpu::CpuKernel,
    elementwise::binary::broadcast,
    export::Export,
    grad::GradCx,
    onnx::{ImportCx, OnnxRule, rules},
};
use graph::{Attrs, Dim, Shape, TensorType};

/// Input broadcast to attribute `shape` (fixed extents): axes of extent 1 are repeated, missing outer axes are added.
pub struct Expand;

impl OpDef for Expand {
    fn name(&self) -> &'static str {
        "Expand"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules![
            "Expand" => |cx| {
                let x = cx.input(0)?;
                let shape = cx.opt_ints(1, "shape")?.ok_or_else(|| OpError::invalid("shape is missing"))?;
                if shape.iter().any(|n| *n < 0) {
                    return Err(OpError::invalid(format!("shape {shape:?} holds a negative extent")));
                }
                let shape = Shape(shape.into_iter().map(Dim::constant).collect());
                let to = broadcast(&cx.ty(0)?.shape, &shape)?;
                let y = cx.b.expand(x, &to)?;
                cx.set(0, y);
                Ok(())
            },
            "Tile" => import_tile,
        ]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let x = s.input(0)?;
        let shape = extents_attr(s, "shape")?;
        count(&shape, x.dtype)?;
        let out = Shape::from(&shape);
        if x.shape.rank() > out.rank() || broadcast(&x.shape, &out)? != out {
            return Err(OpError::invalid(format!("{} does not broadcast to {out}", x.shape)));
        }
        Ok(vec![TensorType { dtype: x.dtype, shape: out }])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (dy, shape) = (g.cotangent0()?, g.ty(0)?.shape);
        let dx = g.b.sum_to(dy, &shape)?;
        g.set(0, dx);
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        moved(&self.facts(s), s)
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        copy_facts(s, copy(s))
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        Ok(copy_kernel(s.input(0)?.dtype, false, vec![Part { input: 0, output: 0, copy: copy(s)? }]))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let shape = x.ints(x.sig.attrs.ints("shape")?);
        x.same_of("Expand", &[Some(x.input(0)?), Some(shape)], Attrs::new())
    }

    fn cases(&self) -> Vec<Case> {
        let to = |shape: &[i64]| Attrs::new().with("shape", shape);
        vec![
            Case::new("row", to(&[3, 4]), &[&[4]]),
            Case::new("column", to(&[2, 3, 4]), &[&[3, 1]]),
            Case::new("scalar", to(&[2, 3]), &[&[]]),
            Case::new("only new axes of 1", to(&[1, 1, 3]), &[&[3]]),
            Case::new("to nothing", to(&[0, 3]), &[&[1, 3]]),
        ]
    }
}

pub(super) fn copy(s: &Signature<'_>) -> Result<Strided, OpError> {
    let (dims, out) = (s.dims(0)?, extents_attr(s, "shape")?);
    let lead = out.len().checked_sub(dims.len());
    let lead = lead.ok_or_else(|| OpError::invalid("the input has more axes than the output"))?;
    let dense = row_major(&dims);
    let mut src = vec![0isize; out.len()];
    for (i, n) in dims.iter().enumerate() {
        if *n == out[lead + i] {
            src[lead + i] = dense[i];
        } else if *n != 1 {
            return Err(OpError::invalid("the input does not broadcast to the output"));
        }
    }
    Ok(Strided::new(&out, &src, &row_major(&out), 0, 0))
}

/// Tile repeats the whole tensor along each axis: an axis of extent 1 before it, broadcast, and merged with it.
fn import_tile(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let mut v = cx.input(0)?;
    let shape = cx.ty(0)?.shape;
    let repeats = cx.opt_ints(1, "repeats")?.ok_or_else(|| OpError::invalid("repeats are missing"))?;
    if repeats.len() != shape.rank() || repeats.iter().any(|r| *r < 0) {
        return Err(OpError::invalid(format!("repeats {repeats:?} do not fit the input {shape}")));
    }
    let (mut apart, mut wide, mut out) = (Vec::new(), Vec::new(), Vec::new());
    for (d, r) in shape.0.iter().zip(&repeats) {
        let r = Dim::constant(*r);
        if r != Dim::constant(1) {
            apart.push(Dim::constant(1));
            wide.push(r.clone());
        }
        apart.push(d.clone());
        wide.push(d.clone());
        out.push(d.mul(&r));
    }
    v = cx.b.reshape(v, &Shape(apart))?;
    v = cx.b.expand(v, &Shape(wide))?;
    v = cx.b.reshape(v, &Shape(out))?;
    cx.set(0, v);
    Ok(())
}
