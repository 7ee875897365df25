//! A tensor cut along an axis.

use super::{Part, Strided, axis_attr, copy_kernel, extents_attr, generate::zeros, moved, row_major};
use crate::{
    Facts, OpDef, OpError, Signature, View, Work,
    case::Case,
    cpu::CpuKernel,
    export::Export,
    grad::GradCx,
    onnx::{ImportCx, OnnxRule, normalize_axis, rules},
};
use graph::{Attrs, TensorType};

/// Pieces of extents `split` along `axis`, one output each. Views when nothing but axes of extent 1 lies outside of the axis.
pub struct Split;

impl OpDef for Split {
    fn name(&self) -> &'static str {
        "Split"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Split" => import]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let x = s.input(0)?;
        let axis = axis_attr(s, "axis", x.shape.rank())?;
        let split = extents_attr(s, "split")?;
        let dim = &x.shape.0[axis];
        let n = dim.as_const().ok_or_else(|| OpError::Dynamic(format!("the extent {dim} that is split")))?;
        let sum = split.iter().try_fold(0usize, |a, b| a.checked_add(*b));
        if sum.is_none_or(|sum| sum as i64 != n) || split.is_empty() {
            return Err(OpError::invalid(format!("pieces {split:?} do not make up the extent {n}")));
        }
        let piece = |n: usize| {
            let mut t = x.clone();
            t.shape.0[axis] = n.into();
            t
        };
        Ok(split.into_iter().map(piece).collect())
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let axis = g.attrs().int("axis")?;
        let split = g.attrs().ints("split")?.to_vec();
        let given: Vec<usize> = (0..split.len()).filter(|i| g.cotangent(*i).is_some()).collect();
        let dx = if let ([only], true) = (given.as_slice(), split.len() > 1) {
            let start: i64 = split[..*only].iter().sum();
            let attrs = Attrs::new()
                .with("axes", vec![axis])
                .with("starts", vec![start])
                .with("ends", vec![start + split[*only]])
                .with("steps", vec![1])
                .with("shape", crate::builder::shape_attr(&g.ty(0)?.shape)?);
            let dy = g.cotangent(*only).ok_or_else(|| OpError::invalid("no cotangent"))?;
            g.b.op("SliceGrad", attrs, &[dy])?
        } else {
            let mut parts = Vec::new();
            for i in 0..split.len() {
                let ty = g.b.ty(g.output(i)).clone();
                parts.push(match g.cotangent(i) {
                    Some(d) => d,
                    None => zeros(g.b, &ty)?,
                });
            }
            g.b.op("Concat", Attrs::new().with("axis", axis), &parts)?
        };
        g.set(0, dx);
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        moved(&self.facts(s), s)
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let mut views = Vec::new();
        if let (Ok(parts), Some(Some(x))) = (parts(s), s.inputs.first()) {
            for p in parts {
                // An empty piece is a view of anything.
                let empty = s.out_dims(p.output).is_ok_and(|d| d.contains(&0));
                let Some(at) = p.copy.run_start().or(empty.then_some(0)) else {
                    views.clear();
                    break;
                };
                views.push(View { output: p.output, input: 0, offset: at as u64 * x.dtype.size() });
            }
        }
        Facts { views, folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        Ok(copy_kernel(s.input(0)?.dtype, false, parts(s)?))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let split = x.ints(x.sig.attrs.ints("split")?);
        let attrs = Attrs::new().with("axis", x.sig.attrs.int("axis")?);
        x.same_of("Split", &[Some(x.input(0)?), Some(split)], attrs)
    }

    fn cases(&self) -> Vec<Case> {
        let split = |axis: i64, parts: &[i64]| Attrs::new().with("axis", axis).with("split", parts);
        vec![
            Case::new("views", split(0, &[2, 1, 1]), &[&[4, 3]]),
            Case::new("views behind 1", split(1, &[1, 2]), &[&[1, 3, 2]]),
            Case::new("last axis", split(1, &[2, 2, 1]), &[&[3, 5]]),
            Case::new("an empty piece", split(1, &[2, 0, 1]), &[&[2, 3]]),
            Case::new("one piece", split(0, &[3]), &[&[3, 2]]),
        ]
    }
}

pub(super) fn parts(s: &Signature<'_>) -> Result<Vec<Part>, OpError> {
    let dims = s.dims(0)?;
    let axis = axis_attr(s, "axis", dims.len())?;
    let src = row_major(&dims);
    let mut start = 0;
    let mut parts = Vec::new();
    for (output, n) in extents_attr(s, "split")?.into_iter().enumerate() {
        let mut piece = dims.clone();
        piece[axis] = n;
        let copy = Strided::new(&piece, &src, &row_major(&piece), start * src[axis] as usize, 0);
        parts.push(Part { input: 0, output, copy });
        start += n;
    }
    if start != dims[axis] {
        return Err(OpError::invalid("the pieces do not make up the input"));
    }
    Ok(parts)
}

fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let x = cx.input(0)?;
    let shape = cx.ty(0)?.shape;
    let axis = normalize_axis(cx.attrs.int_or("axis", 0)?, shape.rank())?;
    let split = match cx.ints_attr_or_input("split", 1)? {
        Some(split) => split,
        None => {
            let count = cx.attrs.int_or("num_outputs", cx.used.len() as i64)?;
            let dim = &shape.0[axis];
            let n =
                dim.as_const().ok_or_else(|| OpError::Dynamic(format!("the extent {dim} that is split")))?;
            even(n, count, cx.opset >= 18)?
        }
    };
    if let [_] = split.as_slice() {
        cx.set(0, x);
        return Ok(());
    }
    let attrs = Attrs::new().with("axis", axis as i64).with("split", split);
    for (i, v) in cx.b.emit("Split", attrs, &[Some(x)])?.into_iter().enumerate() {
        cx.set(i, v);
    }
    Ok(())
}

/// `n` in `count` pieces; with `uneven` the last may be smaller.
fn even(n: i64, count: i64, uneven: bool) -> Result<Vec<i64>, OpError> {
    if count < 1 || (!uneven && n % count != 0) {
        return Err(OpError::invalid(format!("an extent of {n} does not split into {count} equal pieces")));
    }
    let piece = n / count + i64::from(n % count != 0);
    let last = n - piece * (count - 1);
    if last < 0 {
        return Err(OpError::invalid(format!("an extent of {n} does not split into {count} pieces")));
    }
    let mut split = vec![piece; count as usize];
    split[count as usize - 1] = last;
    Ok(split)
}

#[cfg(test)]
mod tests {
    use super::even;

    #[test]
    fn pieces_as_onnx_says() {
        assert_eq!(even(6, 3, false), Ok(vec![2, 2, 2]));
        assert_eq!(even(7, 4, true), Ok(vec![2, 2, 2, 1]));
        assert!(even(7, 4, false).is_err());
        assert!(even(5, 4, true).is_err());
        assert_eq!(even(0, 2, false), Ok(vec![0, 0]));
    }
}
