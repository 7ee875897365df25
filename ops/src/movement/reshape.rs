//! The same elements under another shape.

use super::{Part, Strided, copy_kernel, count, extents_attr, moved};
use crate::{
    Facts, OpDef, OpError, Signature, View, Work,
    case::Case,
    cpu::CpuKernel,
    export::Export,
    grad::GradCx,
    onnx::{ImportCx, OnnxRule, normalize_axes, normalize_axis, rules},
};
use graph::{Attrs, Dim, Shape, TensorType};

/// Input under the shape in attribute `shape` (fixed extents), row-major order kept. A view.
pub struct Reshape;

impl OpDef for Reshape {
    fn name(&self) -> &'static str {
        "Reshape"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules![
            "Reshape" => import_reshape,
            "Flatten" => import_flatten,
            "Squeeze" => import_squeeze,
            "Unsqueeze" => import_unsqueeze,
            "Identity" => |cx| {
                let x = cx.input(0)?;
                cx.set(0, x);
                Ok(())
            },
        ]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (x, shape) = (s.input(0)?, extents_attr(s, "shape")?);
        let to = count(&shape, x.dtype)?;
        let from = count(&s.dims(0)?, x.dtype)?;
        if from != to {
            let shape = Shape::from(&shape);
            return Err(OpError::invalid(format!("{} has {from} elements, shape {shape} has {to}", x.shape)));
        }
        Ok(vec![TensorType::new(x.dtype, &shape)])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (dy, shape) = (g.cotangent0()?, g.ty(0)?.shape);
        let dx = g.b.reshape(dy, &shape)?;
        g.set(0, dx);
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        moved(&self.facts(s), s)
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { views: vec![View { output: 0, input: 0, offset: 0 }], folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let x = s.input(0)?;
        let n = count(&s.dims(0)?, x.dtype)?;
        let copy = Strided::new(&[n], &[1], &[1], 0, 0);
        Ok(copy_kernel(x.dtype, false, vec![Part { input: 0, output: 0, copy }]))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let shape = x.ints(x.sig.attrs.ints("shape")?);
        x.same_of("Reshape", &[Some(x.input(0)?), Some(shape)], Attrs::new().with("allowzero", 1))
    }

    fn cases(&self) -> Vec<Case> {
        let to = |shape: &[i64]| Attrs::new().with("shape", shape);
        vec![
            Case::new("merge axes", to(&[6, 4]), &[&[2, 3, 4]]),
            Case::new("to a scalar", to(&[]), &[&[1, 1]]),
            Case::new("empty", to(&[3, 0]), &[&[0, 5]]),
        ]
    }
}

fn import_reshape(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let x = cx.input(0)?;
    let from = cx.ty(0)?.shape;
    let shape = cx
        .ints_attr_or_input("shape", 1)?
        .ok_or_else(|| OpError::invalid("the shape (input 1) is missing"))?;
    let allow_zero = cx.attrs.int_or("allowzero", 0)? != 0;
    let to = resolve(&from, &shape, allow_zero)?;
    let y = cx.b.reshape(x, &to)?;
    cx.set(0, y);
    Ok(())
}

/// The shape that ONNX Reshape's `shape` means: 0 copies an extent (unless `allow_zero`), one -1 takes what is left.
fn resolve(from: &Shape, shape: &[i64], allow_zero: bool) -> Result<Shape, OpError> {
    let mut rest = None;
    let mut to = Vec::with_capacity(shape.len());
    for (i, &n) in shape.iter().enumerate() {
        to.push(match n {
            0 if !allow_zero => from.0.get(i).cloned().ok_or_else(|| {
                OpError::invalid(format!("shape copies extent {i} of an input of {} axes", from.rank()))
            })?,
            -1 if rest.replace(i).is_none() => Dim::constant(1),
            n if n >= 0 => Dim::constant(n),
            _ => return Err(OpError::invalid(format!("shape {shape:?} is not lawful"))),
        });
    }
    if let Some(at) = rest {
        let product = |dims: &[Dim]| dims.iter().fold(Dim::constant(1), |p, d| p.mul(d));
        let (all, known) = (product(&from.0), product(&to));
        to[at] = all
            .floor_div(&known)
            .ok_or_else(|| OpError::invalid(format!("shape {shape:?} leaves the extent at -1 open")))?;
    }
    Ok(Shape(to))
}

fn import_flatten(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let x = cx.input(0)?;
    let shape = cx.ty(0)?.shape;
    let axis = cx.attrs.int_or("axis", 1)?;
    // One past the last axis is lawful here.
    let axis = if axis == shape.rank() as i64 { shape.rank() } else { normalize_axis(axis, shape.rank())? };
    let product = |dims: &[Dim]| dims.iter().fold(Dim::constant(1), |p, d| p.mul(d));
    let to = Shape(vec![product(&shape.0[..axis]), product(&shape.0[axis..])]);
    let y = cx.b.reshape(x, &to)?;
    cx.set(0, y);
    Ok(())
}

fn import_squeeze(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let x = cx.input(0)?;
    let shape = cx.ty(0)?.shape;
    let one = Dim::constant(1);
    let axes = match cx.ints_attr_or_input("axes", 1)? {
        Some(axes) => normalize_axes(&axes, shape.rank())?,
        None => {
            if let Some(d) = shape.0.iter().find(|d| d.as_const().is_none()) {
                return Err(OpError::Dynamic(format!("whether the extent {d} of {shape} is 1")));
            }
            (0..shape.rank() as i64).filter(|i| shape.0[*i as usize] == one).collect()
        }
    };
    if let Some(a) = axes.iter().find(|a| shape.0[**a as usize].as_const().is_some_and(|n| n != 1)) {
        return Err(OpError::invalid(format!("axis {a} of {shape} is not 1 and cannot be squeezed")));
    }
    let keep = (0..shape.rank()).filter(|i| !axes.contains(&(*i as i64)));
    let to = Shape(keep.map(|i| shape.0[i].clone()).collect());
    let y = cx.b.reshape(x, &to)?;
    cx.set(0, y);
    Ok(())
}

fn import_unsqueeze(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let x = cx.input(0)?;
    let shape = cx.ty(0)?.shape;
    let axes = cx
        .ints_attr_or_input("axes", 1)?
        .ok_or_else(|| OpError::invalid("the axes (input 1) are missing"))?;
    let rank = shape.rank() + axes.len();
    let axes = normalize_axes(&axes, rank)?;
    let mut dims = shape.0.into_iter();
    let to: Option<Vec<Dim>> = (0..rank as i64)
        .map(|i| if axes.contains(&i) { Some(Dim::constant(1)) } else { dims.next() })
        .collect();
    let to = Shape(to.ok_or_else(|| OpError::invalid("axes do not fit the input"))?);
    let y = cx.b.reshape(x, &to)?;
    cx.set(0, y);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_resolve_as_onnx_says() {
        let from = Shape::from(&[2usize, 3, 4][..]);
        type Row<'a> = (&'a [i64], bool, Option<&'a [usize]>);
        let table: [Row<'_>; 8] = [
            (&[4, 2, 3], false, Some(&[4, 2, 3])),
            (&[-1], false, Some(&[24])),
            (&[0, -1], false, Some(&[2, 12])),
            (&[0, 0, -1, 2], false, Some(&[2, 3, 2, 2])),
            (&[-1, 0, 2], false, Some(&[4, 3, 2])),
            (&[-1, -1], false, None),
            (&[1, 1, 1, 0], false, None),
            (&[0, -1], true, None),
        ];
        for (shape, allow_zero, want) in table {
            let got = resolve(&from, shape, allow_zero).ok().and_then(|s| s.fixed());
            assert_eq!(got.as_deref(), want, "{shape:?}");
        }
        let empty = Shape::from(&[0usize, 3][..]);
        assert_eq!(resolve(&empty, &[0, 7], true).unwrap().fixed(), Some(vec![0, 7]));
        let named = Shape(vec![Dim::symbol("n"), Dim::constant(6)]);
        assert_eq!(resolve(&named, &[0, 2, -1], false).unwrap().to_string(), "[n, 2, 3]");
    }
}
