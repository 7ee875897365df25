//! Normalisation of the last axes: LayerNormalization and RMSNormalization.

use super::{
    batchnorm::{eps, work},
    batchnorm_grad::same_cotangent,
    channels::statistics_dtype,
    rows::{Rows, backward, forward},
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Io},
    export::{Export, Term},
    grad::GradCx,
    loss::same_shape,
    onnx::{ImportCx, OnnxRule, normalize_axis, rules},
};
use graph::{Attrs, DType, Dim, Shape, TensorType, ValueId};

/// (x - mean) / sqrt(var + eps) * scale + bias over the axes from `axis` on.
///
/// Inputs: x, scale of the shape of those axes, optional bias of the same. Outputs: y, and for each row mean and 1 / sqrt(var + eps), with
/// extent 1 in place of those axes. Attributes: `axis` (not negative), `eps`.
pub struct LayerNormalization;

/// x / sqrt(mean of squares + eps) * scale over the axes from `axis` on.
///
/// Inputs: x, scale of the shape of those axes. Outputs: y, and for each row the factor on x before scale. Attributes: `axis` (not
/// negative), `eps`.
pub struct RmsNormalization;

/// The gradient of [`LayerNormalization`]. Inputs: x, scale, mean, 1 / deviation, dy, optional cotangents of mean and 1 / deviation.
/// Outputs: dx, dscale, dbias. Attribute: `axis`.
pub struct LayerNormalizationGrad;

/// The gradient of [`RmsNormalization`]. Inputs: x, scale, 1 / deviation, dy, optional cotangent of 1 / deviation. Outputs: dx, dscale.
/// Attribute: `axis`.
pub struct RmsNormalizationGrad;

/// The types of x, of the normalised axes, and of one number a row; the latter are of the scale's dtype.
fn types(s: &Signature<'_>) -> Result<[TensorType; 3], OpError> {
    let x = s.input(0)?;
    if !x.dtype.is_float() {
        return Err(OpError::invalid(format!("the input must be floating-point, not {}", x.dtype)));
    }
    let axis = s.attrs.int("axis")?;
    let at = normalize_axis(axis, x.shape.rank())?;
    if at as i64 != axis {
        return Err(OpError::invalid(format!("axis {axis} must not be negative")));
    }
    let dtype = statistics_dtype(x.dtype, s.input(1)?.dtype);
    let of = |dims: Vec<Dim>| TensorType { dtype, shape: Shape(dims) };
    let mut row = x.shape.0.clone();
    row[at..].fill(Dim::constant(1));
    Ok([x.clone(), of(x.shape.0[at..].to_vec()), of(row)])
}

/// Refuses input `i`, if given, unless it has this type.
fn expect(s: &Signature<'_>, i: usize, want: &TensorType, what: &str) -> Result<(), OpError> {
    match s.opt_input(i) {
        Some(t) if t.dtype != want.dtype => {
            Err(OpError::invalid(format!("{what} must be {} like the input, not {}", want.dtype, t.dtype)))
        }
        Some(t) => same_shape(&want.shape, &t.shape, what),
        None => Ok(()),
    }
}

pub(super) fn rows_of(s: &Signature<'_>) -> Result<Rows, OpError> {
    let dims = s.dims(0)?;
    let axis = normalize_axis(s.attrs.int("axis")?, dims.len())?;
    Ok(Rows { rows: dims[..axis].iter().product(), len: dims[axis..].iter().product() })
}

/// The cotangent of y, zeros if there is none.
pub(super) fn cotangent_or_zeros(g: &mut GradCx<'_, '_>) -> Result<ValueId, OpError> {
    if let Some(dy) = g.cotangent(0) {
        return Ok(dy);
    }
    let y = g.b.ty(g.output(0)).clone();
    let zero = g.b.scalar(y.dtype, 0.0);
    g.b.expand(zero, &y.shape)
}

/// `v` broadcast to the normalised axes.
fn broadcast(cx: &mut ImportCx<'_, '_>, v: ValueId, axis: usize, dtype: DType) -> Result<ValueId, OpError> {
    let x = cx.ty(0)?;
    let v = cx.b.cast(v, dtype)?;
    cx.b.expand(v, &Shape(x.shape.0[axis..].to_vec()))
}

/// The normalised axes.
fn last_axes(x: &Export<'_>) -> Result<Vec<i64>, OpError> {
    Ok((x.sig.attrs.int("axis")?..x.sig.input(0)?.shape.rank() as i64).collect())
}

/// The axes of the rows.
fn lead_axes(x: &Export<'_>) -> Result<Vec<i64>, OpError> {
    Ok((0..x.sig.attrs.int("axis")?).collect())
}

/// The gradient to x as if the mean were 0, from x normalised (`d`); Σ dy scale of each row; and the length of a row.
fn row_gradient<'a>(
    x: &Export<'a>,
    dy: Term<'a>,
    scale: Term<'a>,
    d: Term<'a>,
    inverse: Term<'a>,
    d_inverse: Option<Term<'a>>,
) -> Result<(Term<'a>, Term<'a>, f64), OpError> {
    let axes = last_axes(x)?;
    let dims = x.dims(0)?;
    let len = axes.iter().map(|a| dims[*a as usize]).product::<usize>() as f64;
    let g = dy * scale;
    let mut second = (g * d).sum(&axes, true);
    if let Some(d_inverse) = d_inverse {
        second = second + d_inverse * inverse;
    }
    Ok((g * inverse - d * (inverse / len * second), g.sum(&axes, true), len))
}

impl OpDef for LayerNormalization {
    fn name(&self) -> &'static str {
        "LayerNormalization"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["LayerNormalization" => |cx| {
            let x = cx.ty(0)?;
            let axis = normalize_axis(cx.attrs.int_or("axis", -1)?, x.shape.rank())?;
            let attrs = Attrs::new().with("axis", axis as i64).with("eps", cx.attrs.float_or("epsilon", 1e-5)?);
            let scale = cx.input(1)?;
            let mut inputs = vec![cx.opt_input(0), Some(broadcast(cx, scale, axis, x.dtype)?)];
            if let Some(bias) = cx.opt_input(2) {
                inputs.push(Some(broadcast(cx, bias, axis, x.dtype)?));
            }
            let out = cx.b.emit("LayerNormalization", attrs, &inputs)?;
            cx.set(0, out[0]);
            // ONNX computes in, and outputs, float32 unless told otherwise.
            let stash = if cx.attrs.int_or("stash_type", 1)? == 1 { DType::F32 } else { x.dtype };
            for (i, v) in out.into_iter().enumerate().skip(1) {
                if cx.used.get(i) == Some(&true) {
                    let v = cx.b.cast(v, stash)?;
                    cx.set(i, v);
                }
            }
            Ok(())
        }]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let [x, axes, row] = types(s)?;
        s.input(1)?;
        expect(s, 1, &axes, "scale")?;
        expect(s, 2, &axes, "bias")?;
        eps(s.attrs)?;
        Ok(vec![x, row.clone(), row])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let dy = cotangent_or_zeros(g)?;
        let mut inputs = vec![g.opt_input(0), g.opt_input(1), Some(g.output(1)), Some(g.output(2)), Some(dy)];
        inputs.extend([g.cotangent(1), g.cotangent(2)]);
        let attrs = Attrs::new().with("axis", g.attrs().int("axis")?);
        let d = g.b.emit("LayerNormalizationGrad", attrs, &inputs)?;
        for (i, d) in d.into_iter().enumerate() {
            if g.needs(i) {
                g.set(i, d);
            }
        }
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, 8)
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { overwrites: vec![(0, 0)], ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (rows, eps) = (rows_of(s)?, eps(s.attrs)?);
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            forward::<T, true>(rows, eps, io);
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (eps, axis) = (eps(x.sig.attrs)?, x.sig.attrs.int("axis")?);
        if x.input(0)?.dtype() == DType::F32 {
            return x.same("LayerNormalization", Attrs::new().with("axis", axis).with("epsilon", eps));
        }
        // ONNX's statistics are single precision.
        let (v, axes) = (x.input(0)?, last_axes(x)?);
        let mean = v.reduce("ReduceMean", &axes, true);
        let d = v - mean;
        let inverse = 1.0 / ((d * d).reduce("ReduceMean", &axes, true) + eps).call("Sqrt");
        let y = d * inverse * x.input(1)?;
        x.set(0, x.opt(2).map_or(y, |bias| y + bias));
        x.set(1, mean);
        x.set(2, inverse);
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, axis: usize, x: &[usize]| {
            let attrs = Attrs::new().with("axis", axis as i64).with("eps", 1e-3);
            Case::new(name, attrs, &[x, &x[axis..], &x[axis..]])
        };
        let mut no_bias = case("no bias", 1, &[3, 5]);
        no_bias.inputs.pop();
        vec![
            case("last axis", 2, &[2, 3, 5]),
            case("two axes", 1, &[2, 5, 7]),
            no_bias,
            case("all axes", 0, &[6]),
        ]
    }
}

impl OpDef for LayerNormalizationGrad {
    fn name(&self) -> &'static str {
        "LayerNormalizationGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let [x, axes, row] = types(s)?;
        for i in 1..5 {
            s.input(i)?;
        }
        expect(s, 1, &axes, "scale")?;
        for (i, what) in [(2, "mean"), (3, "1 / deviation"), (5, "a cotangent"), (6, "a cotangent")] {
            expect(s, i, &row, what)?;
        }
        same_cotangent(&x, s.input(4)?)?;
        Ok(vec![x, axes.clone(), axes])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, 14)
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let size = s.opt_input(0).map_or(0, |t| t.dtype.size());
        let workspace = rows_of(s).map_or(0, |r| r.chunks() * r.len * 2) as u64 * size;
        Facts { overwrites: vec![(0, 0), (0, 4)], ..Facts::with_workspace(workspace) }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let rows = rows_of(s)?;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            backward::<T, true>(rows, io);
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (v, scale, mean, inverse, dy) = (x.input(0)?, x.input(1)?, x.input(2)?, x.input(3)?, x.input(4)?);
        let d = (v - mean) * inverse;
        let (dx, first, len) = row_gradient(x, dy, scale, d, inverse, x.opt(6))?;
        let first = x.opt(5).map_or(first, |d_mean| first - d_mean / inverse);
        x.set(0, dx - inverse / len * first);
        x.set(1, (dy * d).sum(&lead_axes(x)?, false));
        x.set(2, dy.sum(&lead_axes(x)?, false));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, axis: usize, x: &[usize]| {
            let mut row = x.to_vec();
            row[axis..].fill(1);
            Case::new(name, Attrs::new().with("axis", axis as i64), &[x, &x[axis..], &row, &row, x])
                .input(3, CaseInput::float(&row, Fill::Uniform(0.5, 2.0)))
        };
        let row = CaseInput::float(&[3, 1], Fill::Uniform(-1.0, 1.0));
        let all = case("all cotangents", 1, &[3, 5]).input(5, row.clone()).input(6, row);
        vec![
            case("last axis", 2, &[2, 3, 5]),
            case("two axes", 1, &[2, 5, 7]),
            all,
            case("no rows", 1, &[0, 3]),
        ]
    }
}

impl OpDef for RmsNormalization {
    fn name(&self) -> &'static str {
        "RmsNormalization"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["RMSNormalization" => |cx| {
            let x = cx.ty(0)?;
            let axis = normalize_axis(cx.attrs.int_or("axis", -1)?, x.shape.rank())?;
            let attrs = Attrs::new().with("axis", axis as i64).with("eps", cx.attrs.float_or("epsilon", 1e-5)?);
            let scale = cx.input(1)?;
            let scale = broadcast(cx, scale, axis, x.dtype)?;
            let inputs = [cx.opt_input(0), Some(scale)];
            let out = cx.b.emit("RmsNormalization", attrs, &inputs)?;
            cx.set(0, out[0]);
            Ok(())
        }]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let [x, axes, row] = types(s)?;
        s.input(1)?;
        expect(s, 1, &axes, "scale")?;
        eps(s.attrs)?;
        Ok(vec![x, row])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let dy = cotangent_or_zeros(g)?;
        let inputs = [g.opt_input(0), g.opt_input(1), Some(g.output(1)), Some(dy), g.cotangent(1)];
        let attrs = Attrs::new().with("axis", g.attrs().int("axis")?);
        let d = g.b.emit("RmsNormalizationGrad", attrs, &inputs)?;
        for (i, d) in d.into_iter().enumerate() {
            if g.needs(i) {
                g.set(i, d);
            }
        }
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, 5)
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { overwrites: vec![(0, 0)], ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (rows, eps) = (rows_of(s)?, eps(s.attrs)?);
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            forward::<T, false>(rows, eps, io);
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (v, eps) = (x.input(0)?, eps(x.sig.attrs)?);
        let inverse = 1.0 / ((v * v).reduce("ReduceMean", &last_axes(x)?, true) + eps).call("Sqrt");
        x.set(0, v * inverse * x.input(1)?);
        x.set(1, inverse);
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, axis: usize, x: &[usize]| {
            let attrs = Attrs::new().with("axis", axis as i64).with("eps", 1e-3);
            Case::new(name, attrs, &[x, &x[axis..]])
        };
        vec![case("last axis", 2, &[2, 3, 5]), case("two axes", 1, &[2, 5, 7])]
    }
}

impl OpDef for RmsNormalizationGrad {
    fn name(&self) -> &'static str {
        "RmsNormalizationGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let [x, axes, row] = types(s)?;
        for i in 1..4 {
            s.input(i)?;
        }
        expect(s, 1, &axes, "scale")?;
        expect(s, 2, &row, "1 / deviation")?;
        expect(s, 4, &row, "a cotangent")?;
        same_cotangent(&x, s.input(3)?)?;
        Ok(vec![x, axes])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, 11)
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let size = s.opt_input(0).map_or(0, |t| t.dtype.size());
        let workspace = rows_of(s).map_or(0, |r| r.chunks() * r.len) as u64 * size;
        Facts { overwrites: vec![(0, 0), (0, 3)], ..Facts::with_workspace(workspace) }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let rows = rows_of(s)?;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            backward::<T, false>(rows, io);
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (v, scale, inverse, dy) = (x.input(0)?, x.input(1)?, x.input(2)?, x.input(3)?);
        let d = v * inverse;
        x.set(0, row_gradient(x, dy, scale, d, inverse, x.opt(4))?.0);
        x.set(1, (dy * d).sum(&lead_axes(x)?, false));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let x: &[usize] = &[4, 6];
        let case = Case::new("rows", Attrs::new().with("axis", 1i64), &[x, &[6], &[4, 1], x, &[4, 1]]);
        vec![case.input(2, CaseInput::float(&[4, 1], Fill::Uniform(0.5, 2.0)))]
    }
}
