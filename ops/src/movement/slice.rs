//! Parts of a tensor by start, end and step along axes, and their gradient.

use super::{Part, Strided, copy_facts, copy_kernel, count, extents_attr, moved, row_major};
use crate::{
    Builder, Facts, OpDef, OpError, Signature, Work,
    case::Case,
    cpu::CpuKernel,
    export::Export,
    grad::GradCx,
    onnx::{ImportCx, OnnxRule, normalize_axis, rules},
};
use graph::{Attrs, Shape, TensorType, ValueId};

/// Elements `starts[k], starts[k] + steps[k], ..` before `ends[k]` along `axes[k]`.
///
/// Attributes are normalised: axes count from the front and occur once; with a positive step `0 <= start <= end <= extent`, with a
/// negative one `-1 <= end <= start < extent` (an end of -1 means "through element 0"). A view when the elements are one run.
pub struct Slice;

impl OpDef for Slice {
    fn name(&self) -> &'static str {
        "Slice"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Slice" => import]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let x = s.input(0)?;
        let mut out = x.clone();
        for r in taken(s.attrs, &x.shape)? {
            out.shape.0[r.axis] = r.count.into();
        }
        Ok(vec![out])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let attrs = g.attrs().clone().with("shape", crate::builder::shape_attr(&g.ty(0)?.shape)?);
        let dy = g.cotangent0()?;
        let dx = g.b.op("SliceGrad", attrs, &[dy])?;
        g.set(0, dx);
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let out = s.outputs.iter().filter_map(|t| t.bytes()).fold(0, u64::saturating_add);
        Work { bytes: moved(&self.facts(s), s).bytes.min(out.saturating_mul(2)), ..Work::default() }
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        copy_facts(s, s.dims(0).and_then(|d| copy(s.attrs, &d).map(|(c, _)| c)))
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (copy, _) = copy(s.attrs, &s.dims(0)?)?;
        Ok(copy_kernel(s.input(0)?.dtype, false, vec![Part { input: 0, output: 0, copy }]))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let attrs = x.sig.attrs;
        if attrs.ints("axes")?.is_empty() {
            x.set(0, x.input(0)?);
            return Ok(());
        }
        // In ONNX -1 is the last element: the place before the first one lies beyond every extent.
        let end = |e: &i64| if *e == -1 { i64::MIN / 2 } else { *e };
        let ends: Vec<i64> = attrs.ints("ends")?.iter().map(end).collect();
        let [starts, ends, axes, steps] =
            [attrs.ints("starts")?, &ends, attrs.ints("axes")?, attrs.ints("steps")?]
                .map(|l| Some(x.ints(l)));
        x.same_of("Slice", &[Some(x.input(0)?), starts, ends, axes, steps], Attrs::new())
    }

    fn cases(&self) -> Vec<Case> {
        vec![
            Case::new("a view", slice_attrs(&[(0, 1, 3, 1)]), &[&[4, 3]]),
            Case::new("inner axis", slice_attrs(&[(1, 1, 3, 1)]), &[&[3, 4]]),
            Case::new("steps", slice_attrs(&[(0, 0, 5, 2), (1, 1, 6, 3)]), &[&[5, 6]]),
            Case::new("reversed", slice_attrs(&[(1, 3, -1, -1)]), &[&[2, 4]]),
            Case::new("negative step", slice_attrs(&[(0, 6, 1, -2)]), &[&[7, 2]]),
            Case::new("nothing", slice_attrs(&[(0, 2, 2, 1)]), &[&[4, 3]]),
            Case::new("scalar", slice_attrs(&[]), &[&[]]),
        ]
    }
}

/// Zeros of the extents `shape` with the input at the places that [`Slice`] with the same attributes takes.
pub struct SliceGrad;

impl OpDef for SliceGrad {
    fn name(&self) -> &'static str {
        "SliceGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let dy = s.input(0)?;
        let shape = extents_attr(s, "shape")?;
        count(&shape, dy.dtype)?;
        let out = TensorType::new(dy.dtype, &shape);
        let mut want = out.shape.clone();
        for r in taken(s.attrs, &out.shape)? {
            want.0[r.axis] = r.count.into();
        }
        if want != dy.shape {
            return Err(OpError::invalid(format!("the input is {}, the slice {want}", dy.shape)));
        }
        Ok(vec![out])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        Work { flops: 0, bytes: s.io_bytes(), product: false }
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (_, copy) = copy(s.attrs, &extents_attr(s, "shape")?)?;
        Ok(copy_kernel(s.input(0)?.dtype, true, vec![Part { input: 0, output: 0, copy }]))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (mut v, shape) = (x.input(0)?, extents_attr(x.sig, "shape")?);
        let mut dims = x.dims(0)?;
        for t in taken(x.sig.attrs, &Shape::from(&shape))? {
            let rank = dims.len();
            let mut to = dims.clone();
            to[t.axis] = shape[t.axis];
            if t.step == 1 {
                let mut pads = vec![0i64; 2 * rank];
                pads[t.axis] = t.start;
                pads[rank + t.axis] = shape[t.axis] as i64 - t.start - t.count as i64;
                v = x.call("Pad", &[v, x.ints(&pads)], Attrs::new());
            } else {
                let at: Vec<i64> = (0..t.count as i64).map(|i| t.start + i * t.step).collect();
                let mut line = vec![1; rank];
                line[t.axis] = t.count;
                let at = x.ints(&at).reshape(&line).expand(&dims);
                let attrs = Attrs::new().with("axis", t.axis as i64);
                v = x.call("ScatterElements", &[x.zeros(v.dtype(), &to), at, v], attrs);
            }
            dims = to;
        }
        x.set(0, v);
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let to = |shape: &[i64], parts: &[(i64, i64, i64, i64)]| slice_attrs(parts).with("shape", shape);
        vec![
            Case::new("rows", to(&[4, 3], &[(0, 1, 3, 1)]), &[&[2, 3]]),
            Case::new("steps", to(&[5, 6], &[(0, 0, 5, 2), (1, 5, 0, -3)]), &[&[3, 2]]),
            Case::new("nothing", to(&[2, 3], &[(0, 0, 0, 1)]), &[&[0, 3]]),
        ]
    }
}

/// Attributes of a [`Slice`]: (axis, start, end, step) for each axis that is cut.
pub(crate) fn slice_attrs(parts: &[(i64, i64, i64, i64)]) -> Attrs {
    let column = |f: fn(&(i64, i64, i64, i64)) -> i64| parts.iter().map(f).collect::<Vec<i64>>();
    Attrs::new()
        .with("axes", column(|p| p.0))
        .with("starts", column(|p| p.1))
        .with("ends", column(|p| p.2))
        .with("steps", column(|p| p.3))
}

/// Elements `start..end` along `axis`; the value itself if these are all.
pub(crate) fn slice_axis(
    b: &mut Builder<'_>,
    v: ValueId,
    axis: usize,
    start: i64,
    end: i64,
) -> Result<ValueId, OpError> {
    if start == 0 && b.ty(v).shape.0.get(axis).and_then(|d| d.as_const()) == Some(end) {
        return Ok(v);
    }
    b.op("Slice", slice_attrs(&[(axis as i64, start, end, 1)]), &[v])
}

/// What is taken along one axis.
struct Taken {
    axis: usize,
    start: i64,
    step: i64,
    count: usize,
}

/// The checked attributes of a slice of a tensor of this shape.
fn taken(attrs: &Attrs, shape: &Shape) -> Result<Vec<Taken>, OpError> {
    let (starts, ends) = (attrs.ints("starts")?, attrs.ints("ends")?);
    let (axes, steps) = (attrs.ints("axes")?, attrs.ints("steps")?);
    if [starts.len(), ends.len(), steps.len()] != [axes.len(); 3] {
        return Err(OpError::invalid("starts, ends, axes and steps differ in length"));
    }
    let mut out: Vec<Taken> = Vec::with_capacity(axes.len());
    for k in 0..axes.len() {
        let (start, end, step) = (starts[k], ends[k], steps[k]);
        let axis = usize::try_from(axes[k]).ok().filter(|a| *a < shape.rank());
        let axis = axis.filter(|a| out.iter().all(|t| t.axis != *a)).ok_or_else(|| {
            OpError::invalid(format!("axes {axes:?} are not axes of {shape}, each at most once"))
        })?;
        let dim = &shape.0[axis];
        let n = dim.as_const().ok_or_else(|| OpError::Dynamic(format!("the extent {dim} that is cut")))?;
        let count = if step > 0 && 0 <= start && start <= end && end <= n {
            (end - start) / step + i64::from((end - start) % step != 0)
        } else if step < 0 && -1 <= end && end <= start && start < n {
            let by = step.checked_neg().unwrap_or(i64::MAX);
            (start - end) / by + i64::from((start - end) % by != 0)
        } else {
            return Err(OpError::invalid(format!(
                "{start} to {end} by {step} is no normalised slice of an extent of {n}"
            )));
        };
        out.push(Taken { axis, start, step, count: count as usize });
    }
    Ok(out)
}

/// The copies from a tensor of extents `dims` to its slice, and back.
pub(super) fn copy(attrs: &Attrs, dims: &[usize]) -> Result<(Strided, Strided), OpError> {
    let (mut out, mut whole, mut start) = (dims.to_vec(), row_major(dims), 0);
    for t in taken(attrs, &Shape::from(dims))? {
        // Nothing is read where nothing is taken; one element has no stride.
        if t.count > 0 {
            start += t.start as usize * whole[t.axis] as usize;
        }
        whole[t.axis] *= if t.count > 1 { t.step as isize } else { 1 };
        out[t.axis] = t.count;
    }
    let dense = row_major(&out);
    Ok((Strided::new(&out, &whole, &dense, start, 0), Strided::new(&out, &dense, &whole, 0, start)))
}

fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let x = cx.input(0)?;
    let shape = cx.ty(0)?.shape;
    let missing = |what: &str| OpError::invalid(format!("{what} are missing"));
    let starts = cx.ints_attr_or_input("starts", 1)?.ok_or_else(|| missing("the starts"))?;
    let ends = cx.ints_attr_or_input("ends", 2)?.ok_or_else(|| missing("the ends"))?;
    let axes = cx.ints_attr_or_input("axes", 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = cx.ints_attr_or_input("steps", 4)?.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
        return Err(OpError::invalid("starts, ends, axes and steps differ in length"));
    }
    let mut parts = Vec::new();
    for k in 0..starts.len() {
        let axis = normalize_axis(axes[k], shape.rank())?;
        // Beyond any real extent: everything, whatever the extent is.
        let far = i64::from(i32::MAX);
        if starts[k] == 0 && ends[k] >= far && steps[k] == 1 {
            continue;
        }
        let dim = &shape.0[axis];
        let n = dim.as_const().ok_or_else(|| OpError::Dynamic(format!("the extent {dim} that is cut")))?;
        let (start, end, step) = clamp(starts[k], ends[k], steps[k], n)?;
        if (start, end, step) != (0, n, 1) {
            parts.push((axis as i64, start, end, step));
        }
    }
    parts.sort_unstable();
    let y = if parts.is_empty() { x } else { cx.b.op("Slice", slice_attrs(&parts), &[x])? };
    cx.set(0, y);
    Ok(())
}

/// Start, end and step as ONNX means them for an extent of `n`, normalised.
fn clamp(start: i64, end: i64, step: i64, n: i64) -> Result<(i64, i64, i64), OpError> {
    let from_front = |i: i64| if i < 0 { i.saturating_add(n) } else { i };
    let (start, end) = (from_front(start), from_front(end));
    let normal = match step {
        0 => return Err(OpError::invalid("a step is 0")),
        1.. => {
            let start = start.clamp(0, n);
            (start, end.clamp(0, n).max(start), step)
        }
        _ if n == 0 => (0, 0, 1),
        _ => {
            let start = start.clamp(0, n - 1);
            (start, end.clamp(-1, n - 1).min(start), step)
        }
    };
    Ok(normal)
}

#[cfg(test)]
mod tests {
    use super::clamp;

    #[test]
    fn ends_are_clamped_as_numpy_does() {
        let (max, min) = (i64::MAX, i64::MIN);
        let table = [
            ((0, max, 1, 5), (0, 5, 1)),
            ((-3, -1, 1, 5), (2, 4, 1)),
            ((-100, 100, 2, 5), (0, 5, 2)),
            ((4, 2, 1, 5), (4, 4, 1)),
            ((-1, min, -1, 5), (4, -1, -1)),
            ((100, 0, -2, 5), (4, 0, -2)),
            ((1, 3, -1, 5), (1, 1, -1)),
            ((20, 10, -1, 0), (0, 0, 1)),
        ];
        for ((start, end, step, n), want) in table {
            assert_eq!(clamp(start, end, step, n), Ok(want), "{start}:{end}:{step} of {n}");
        }
        assert!(clamp(0, 1, 0, 5).is_err());
    }
}
