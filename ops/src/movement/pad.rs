//! Elements added around a tensor: constant, reflected, repeated or wrapped.

use super::{
    Part, Strided, count, extents_attr, fill,
    generate::read,
    row_major,
    slice::{slice_attrs, slice_axis},
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::Case,
    cpu::CpuKernel,
    export::Export,
    grad::GradCx,
    indexing::separable::{Separable, Taps, axes_of},
    onnx::{ImportCx, OnnxRule, normalize_axes, normalize_axis, rules},
};
use graph::{Attrs, DType, Dim, Literal, Shape, TensorType, ValueId};

/// `pads[a]` elements before and `pads[rank + a]` after axis `a`, none negative.
///
/// `mode`: `constant` (attribute `value`, a scalar literal, zero if absent), `reflect` (without repeating the border), `edge`, `wrap`.
pub struct Pad;

impl OpDef for Pad {
    fn name(&self) -> &'static str {
        "Pad"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Pad" => import, "CenterCropPad" => import_center_crop_pad]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let x = s.input(0)?;
        let pads = pads(s, x.shape.rank())?;
        let mode = Mode::of(s)?;
        if let Some(v) = s.attrs.opt_tensor("value")?
            && (v.dtype() != x.dtype || v.len() != 1)
        {
            return Err(OpError::invalid(format!("value {v:?} is not one element of {}", x.dtype)));
        }
        let mut out = x.clone();
        for (d, (before, after)) in out.shape.0.iter_mut().zip(pads) {
            if mode != Mode::Constant && before + after > 0 && d.as_const() == Some(0) {
                return Err(OpError::invalid(format!("an empty axis of {x} cannot be padded from itself")));
            }
            *d = d.add(&Dim::from(before)).add(&Dim::from(after));
        }
        if let Some(dims) = out.shape.fixed() {
            count(&dims, out.dtype)?;
        }
        Ok(vec![out])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (dy, shape) = (g.cotangent0()?, g.ty(0)?.shape);
        let dims = crate::builder::shape_attr(&shape)?;
        let dx = if g.attrs().str_or("mode", "constant")? == "constant" {
            let pads = g.attrs().ints("pads")?;
            let parts: Vec<_> = (0..dims.len())
                .filter(|a| pads[*a] + pads[dims.len() + a] > 0)
                .map(|a| (a as i64, pads[a], pads[a] + dims[a], 1))
                .collect();
            g.b.op("Slice", slice_attrs(&parts), &[dy])?
        } else {
            let attrs = g.attrs().clone().with("shape", dims);
            g.b.op("PadGrad", attrs, &[dy])?
        };
        g.set(0, dx);
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        Work { bytes: s.io_bytes(), ..Work::default() }
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (dims, dtype) = (s.dims(0)?, s.input(0)?.dtype);
        let pads = pads(s, dims.len())?;
        if Mode::of(s)? != Mode::Constant {
            let map = Separable::new(taps(&dims, &pads, Mode::of(s)?)?);
            return crate::for_width!(dtype, T => Ok(Box::new(move |io| {
                map.pick(io.input::<T>(0), io.output::<T>(0));
                Ok(())
            })));
        }
        let (value, Part { copy, .. }) = constant(s)?;
        crate::for_width!(dtype, T => {
            let value: T = read(&value);
            Ok(Box::new(move |io| {
                fill(io.output::<T>(0), value);
                // SAFETY: the input's box lies inside the output by construction; output and input are apart.
                unsafe { copy.run(io.input_ptr::<T>(0).0, io.output_ptr::<T>(0).0) };
                Ok(())
            }))
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let attrs = x.sig.attrs;
        let mut inputs = vec![Some(x.input(0)?), Some(x.ints(attrs.ints("pads")?))];
        if let Some(v) = attrs.opt_tensor("value")? {
            let scalar = v.reshaped(Vec::new()).map_err(|e| OpError::invalid(e.to_string()))?;
            inputs.push(Some(x.constant(scalar)));
        }
        x.same_of("Pad", &inputs, Attrs::new().with("mode", attrs.str_or("mode", "constant")?))
    }

    fn cases(&self) -> Vec<Case> {
        let of = |mode: &str, pads: &[i64]| Attrs::new().with("mode", mode).with("pads", pads);
        let image = &[1, 2, 3, 4];
        vec![
            Case::new("constant", of("constant", &[1, 2, 0, 1]), &[&[2, 3]]),
            Case::new("image", of("constant", &[0, 0, 1, 1, 0, 0, 1, 2]), &[image]),
            Case::new("nothing there", of("constant", &[1, 1]), &[&[0]]),
            Case::new("reflect", of("reflect", &[0, 0, 2, 1, 0, 0, 1, 3]), &[image]),
            Case::new("reflect again and again", of("reflect", &[5, 4]), &[&[3]]),
            Case::new("edge", of("edge", &[1, 2, 2, 0]), &[&[2, 3]]),
            Case::new("wrap", of("wrap", &[0, 4, 1, 2]), &[&[2, 3]]),
        ]
    }
}

/// The gradient of [`Pad`] in the modes that repeat elements: each element of extents `shape` sums the cotangents of its copies.
pub struct PadGrad;

impl OpDef for PadGrad {
    fn name(&self) -> &'static str {
        "PadGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (dy, dims) = (s.input(0)?, extents_attr(s, "shape")?);
        let pads = pads(s, dims.len())?;
        if Mode::of(s)? == Mode::Constant {
            return Err(OpError::invalid("constant padding has a slice as its gradient"));
        }
        let padded: Vec<usize> = dims.iter().zip(&pads).map(|(d, (b, a))| d.saturating_add(b + a)).collect();
        if dy.shape != Shape::from(&padded) {
            return Err(OpError::invalid(format!("the input is {dy}, the padded extents are {padded:?}")));
        }
        Ok(vec![TensorType::new(dy.dtype, &dims)])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        Work {
            flops: s.opt_input(0).and_then(|t| t.shape.elements()).unwrap_or(0),
            bytes: s.io_bytes(),
            product: false,
        }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let dims = extents_attr(s, "shape")?;
        let taps = taps(&dims, &pads(s, dims.len())?, Mode::of(s)?)?;
        let map = Separable::new(taps.iter().map(Taps::transposed).collect());
        crate::for_float!(s.input(0)?.dtype, self.name(), T => {
            let weights = map.weights::<T>();
            Ok(Box::new(move |io| {
                map.sum::<T>(&weights, io.input(0), io.output(0));
                Ok(())
            }))
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let dims = extents_attr(x.sig, "shape")?;
        let taps = taps(&dims, &pads(x.sig, dims.len())?, Mode::of(x.sig)?)?;
        x.set(0, crate::indexing::separable::written(x, x.input(0)?, &taps)?);
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let of = |mode: &str, pads: &[i64], shape: &[i64]| {
            Attrs::new().with("mode", mode).with("pads", pads).with("shape", shape)
        };
        vec![
            Case::new("reflect", of("reflect", &[0, 2, 0, 1], &[2, 4]), &[&[2, 7]]),
            Case::new("edge", of("edge", &[1, 0, 1, 0], &[3, 5]), &[&[5, 5]]),
        ]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Constant,
    Reflect,
    Edge,
    Wrap,
}

impl Mode {
    fn of(s: &Signature<'_>) -> Result<Mode, OpError> {
        Ok(match s.attrs.str_or("mode", "constant")? {
            "constant" => Mode::Constant,
            "reflect" => Mode::Reflect,
            "edge" => Mode::Edge,
            "wrap" => Mode::Wrap,
            m => {
                return Err(OpError::invalid(format!("mode {m:?} is none of constant, reflect, edge, wrap")));
            }
        })
    }

    /// The element of an axis of `n` that stands at position `i` (negative before the axis).
    fn source(self, i: i64, n: i64) -> usize {
        let at = match self {
            Mode::Constant | Mode::Edge => i.clamp(0, n - 1),
            Mode::Wrap => i.rem_euclid(n),
            Mode::Reflect => {
                let period = (2 * (n - 1)).max(1);
                let k = i.rem_euclid(period);
                if k < n { k } else { period - k }
            }
        };
        at as usize
    }
}

/// Whether padding repeats elements of the input.
pub(super) fn repeats(s: &Signature<'_>) -> Result<bool, OpError> {
    Ok(Mode::of(s)? != Mode::Constant)
}

/// For a tensor of these extents, the element of each axis that stands at each position, in a mode that repeats elements.
pub(crate) fn taps_of(s: &Signature<'_>, dims: &[usize]) -> Result<Vec<Taps>, OpError> {
    taps(dims, &pads(s, dims.len())?, Mode::of(s)?)
}

/// What fills the padding of constant mode, and where the input goes.
pub(super) fn constant(s: &Signature<'_>) -> Result<(Literal, Part), OpError> {
    let (dims, dtype) = (s.dims(0)?, s.input(0)?.dtype);
    let pads = pads(s, dims.len())?;
    let value = s.attrs.opt_tensor("value")?.cloned().unwrap_or_else(|| Literal::scalar(dtype, 0.0));
    let out: Vec<usize> = dims.iter().zip(&pads).map(|(d, (b, a))| d + b + a).collect();
    let dst = row_major(&out);
    let start = pads.iter().zip(&dst).map(|((b, _), s)| b * *s as usize).sum();
    let copy = Strided::new(&dims, &row_major(&dims), &dst, 0, start);
    Ok((value, Part { input: 0, output: 0, copy }))
}

fn pads(s: &Signature<'_>, rank: usize) -> Result<Vec<(usize, usize)>, OpError> {
    let pads = extents_attr(s, "pads")?;
    if pads.len() != 2 * rank || pads.iter().any(|p| *p > isize::MAX as usize / 4) {
        return Err(OpError::invalid(format!("pads {pads:?} do not fit a tensor of {rank} axes")));
    }
    Ok((0..rank).map(|a| (pads[a], pads[rank + a])).collect())
}

fn taps(dims: &[usize], pads: &[(usize, usize)], mode: Mode) -> Result<Vec<Taps>, OpError> {
    axes_of(dims, |a, n| {
        let (before, after) = (pads[a].0 as i64, pads[a].1 as i64);
        if before + after == 0 {
            return Ok(None);
        }
        if n == 0 {
            return Err(OpError::invalid("an empty axis cannot be padded from itself"));
        }
        let n = n as i64;
        Ok(Some(Taps::pick(n as usize, (-before..n + after).map(|i| mode.source(i, n)).collect())))
    })
}

fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let (x, ty) = (cx.input(0)?, cx.ty(0)?);
    let rank = ty.shape.rank();
    let given = cx
        .ints_attr_or_input("pads", 1)?
        .ok_or_else(|| OpError::invalid("the pads (input 1) are missing"))?;
    let axes = match cx.opt_ints(3, "axes")? {
        Some(axes) => {
            normalize_axes(&axes, rank)?;
            axes.iter().map(|a| normalize_axis(*a, rank)).collect::<Result<Vec<_>, _>>()?
        }
        None => (0..rank).collect(),
    };
    if given.len() != 2 * axes.len() {
        return Err(OpError::invalid(format!("{} pads do not fit {} axes", given.len(), axes.len())));
    }
    let mut pads = vec![0i64; 2 * rank];
    for (k, a) in axes.iter().enumerate() {
        pads[*a] = given[k];
        pads[rank + a] = given[axes.len() + k];
    }
    let mode = cx.attrs.str_or("mode", "constant")?.to_owned();
    let zero = Literal::scalar(ty.dtype, 0.0);
    let computed = cx.opt_input(2).filter(|v| mode == "constant" && cx.b.graph().constant(*v).is_none());
    let y = match (cx.attrs.get("value"), computed) {
        (Some(_), _) => {
            let value = Literal::scalar(ty.dtype, cx.attrs.float_or("value", 0.0)?);
            pad(cx, x, &pads, &mode, &value)?
        }
        // It may have a gradient: what is added is chosen, not written.
        (None, Some(value)) => {
            let own = cx.b.ty(value).clone();
            if own.dtype != ty.dtype || own.shape.elements().is_some_and(|n| n != 1) {
                return Err(OpError::invalid(one_element()));
            }
            let value = cx.b.reshape(value, &Shape::scalar())?;
            let padded = pad(cx, x, &pads, &mode, &zero)?;
            let inside = cx.b.scalar(DType::Bool, 1.0);
            let inside = cx.b.expand(inside, &ty.shape)?;
            let inside = pad(cx, inside, &pads, &mode, &Literal::scalar(DType::Bool, 0.0))?;
            cx.b.call("Where", &[inside, padded, value])?
        }
        (None, None) => {
            let value = match cx.opt_literal(2, "the padding value")? {
                Some(l) if l.len() == 1 && l.dtype() == ty.dtype => {
                    l.reshaped(Vec::new()).map_err(|e| OpError::invalid(e.to_string()))?
                }
                Some(_) if mode == "constant" => return Err(OpError::invalid(one_element())),
                _ => zero,
            };
            pad(cx, x, &pads, &mode, &value)?
        }
    };
    cx.set(0, y);
    Ok(())
}

fn one_element() -> String {
    "the padding value must be one element of the input's dtype".to_owned()
}

/// Crops where pads are negative, then pads.
fn pad(
    cx: &mut ImportCx<'_, '_>,
    mut x: ValueId,
    pads: &[i64],
    mode: &str,
    value: &Literal,
) -> Result<ValueId, OpError> {
    let rank = pads.len() / 2;
    for a in 0..rank {
        let (before, after) = (pads[a].min(0), pads[rank + a].min(0));
        if before + after < 0 {
            let dim = cx.b.ty(x).shape.0[a].clone();
            let n =
                dim.as_const().ok_or_else(|| OpError::Dynamic(format!("the extent {dim} that is cut")))?;
            if before.saturating_add(after).saturating_add(n) < 0 {
                return Err(OpError::invalid(format!("pads take more than the {n} elements of axis {a}")));
            }
            x = slice_axis(cx.b, x, a, -before, n + after)?;
        }
    }
    let pads: Vec<i64> = pads.iter().map(|p| (*p).max(0)).collect();
    if pads.iter().all(|p| *p == 0) {
        return Ok(x);
    }
    let attrs = Attrs::new().with("pads", pads).with("mode", mode);
    let attrs = if mode == "constant" { attrs.with("value", value.clone()) } else { attrs };
    cx.b.op("Pad", attrs, &[x])
}

fn import_center_crop_pad(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let (x, ty) = (cx.input(0)?, cx.ty(0)?);
    let rank = ty.shape.rank();
    let target = cx.opt_ints(1, "the shape")?.ok_or_else(|| OpError::invalid("the shape is missing"))?;
    let axes: Vec<i64> =
        cx.attrs.opt_ints("axes")?.map_or_else(|| (0..rank as i64).collect(), <[i64]>::to_vec);
    normalize_axes(&axes, rank)?;
    if axes.len() != target.len() {
        return Err(OpError::invalid(format!("a shape of {} extents for {} axes", target.len(), axes.len())));
    }
    let mut pads = vec![0i64; 2 * rank];
    for (a, want) in axes.iter().zip(target) {
        let a = normalize_axis(*a, rank)?;
        let dim = &ty.shape.0[a];
        let n = dim.as_const().ok_or_else(|| OpError::Dynamic(format!("the extent {dim}")))?;
        if want < 0 {
            return Err(OpError::invalid(format!("the shape holds a negative extent: {want}")));
        }
        // What is odd goes to the end, whether it is cut or added.
        let more = want - n;
        pads[a] = more / 2;
        pads[rank + a] = more - more / 2;
    }
    let y = pad(cx, x, &pads, "constant", &Literal::scalar(ty.dtype, 0.0))?;
    cx.set(0, y);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Mode;

    #[test]
    fn sources_of_padded_positions() {
        let of = |mode: Mode, n| (-4..n + 4).map(|i| mode.source(i, n)).collect::<Vec<_>>();
        assert_eq!(of(Mode::Edge, 3), [0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2]);
        assert_eq!(of(Mode::Wrap, 3), [2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(of(Mode::Reflect, 3), [0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2]);
        assert_eq!(of(Mode::Reflect, 1), [0; 9]);
    }
}
