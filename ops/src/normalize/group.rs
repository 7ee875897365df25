//! Normalisation of groups of channels: GroupNormalization and InstanceNormalization.

use super::{
    batchnorm::{eps, work},
    batchnorm_grad::same_cotangent,
    channels::{Channels, infer_channels, statistics_dtype},
    rows::statistics,
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Float, Io, lanes, par, par::Shared},
    export::Export,
    grad::GradCx,
    loss::same_shape,
    onnx::{ImportCx, OnnxRule, rules},
};
use graph::{Attrs, Dim, Shape, TensorType, ValueId};

/// (x - mean) / sqrt(var + eps) * scale + bias with mean and variance of each sample's groups of adjacent channels.
///
/// Inputs: x `[N, C, d..]`, scale `[C]`, bias `[C]`. Outputs: y, and mean and 1 / sqrt(var + eps) `[N, groups]`. Attributes: `groups`,
/// `eps`. With `groups` = C it is instance normalisation.
pub struct GroupNormalization;

/// The gradient of [`GroupNormalization`]. Inputs: x, scale, mean, 1 / deviation, dy, optional cotangents of mean and 1 / deviation.
/// Outputs: dx, dscale, dbias. Attribute: `groups`.
pub struct GroupNormalizationGrad;

/// The attribute `groups`, which must divide the channels of x; and the type of one number a group, of the scale's dtype.
fn groups(s: &Signature<'_>, x: &TensorType) -> Result<(i64, TensorType), OpError> {
    let groups = s.attrs.int("groups")?;
    let c = &x.shape.0[1];
    let divides = c.as_const().is_none_or(|c| groups > 0 && c % groups == 0);
    if groups < 1 || !divides {
        return Err(OpError::invalid(format!("{groups} groups do not divide {c} channels")));
    }
    let shape = Shape(vec![x.shape.0[0].clone(), Dim::constant(groups)]);
    Ok((groups, TensorType { dtype: statistics_dtype(x.dtype, s.input(1)?.dtype), shape }))
}

/// Extents of x, and channels a group has.
pub(super) fn layout(s: &Signature<'_>) -> Result<(Channels, usize), OpError> {
    let d = Channels::new(&s.dims(0)?);
    let groups = groups(s, s.input(0)?)?.0 as usize;
    Ok((d, d.c / groups))
}

fn emit(cx: &mut ImportCx<'_, '_>, groups: i64, scale: ValueId, bias: ValueId) -> Result<(), OpError> {
    let dtype = cx.ty(0)?.dtype;
    let (scale, bias) = (cx.b.cast(scale, dtype)?, cx.b.cast(bias, dtype)?);
    let attrs = Attrs::new().with("groups", groups).with("eps", cx.attrs.float_or("epsilon", 1e-5)?);
    let inputs = [cx.opt_input(0), Some(scale), Some(bias)];
    let out = cx.b.emit("GroupNormalization", attrs, &inputs)?;
    cx.set(0, out[0]);
    Ok(())
}

/// The number of channels of input 0.
fn channels(cx: &ImportCx<'_, '_>) -> Result<i64, OpError> {
    let x = cx.ty(0)?;
    if x.shape.rank() < 2 {
        return Err(OpError::invalid(format!("the input must be [N, C, ..], not {x}")));
    }
    x.shape.0[1].as_const().ok_or_else(|| OpError::Dynamic("the number of channels".to_owned()))
}

fn import_group(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let (c, groups) = (channels(cx)?, cx.attrs.int("num_groups")?);
    let (mut scale, mut bias) = (cx.input(1)?, cx.input(2)?);
    if cx.opset < 21 {
        // One number a group.
        if groups < 1 || c % groups != 0 {
            return Err(OpError::invalid(format!("{groups} groups do not divide {c} channels")));
        }
        let of = |dims: &[i64]| Shape(dims.iter().map(|d| Dim::constant(*d)).collect());
        for v in [&mut scale, &mut bias] {
            let column = cx.b.reshape(*v, &of(&[groups, 1]))?;
            let all = cx.b.expand(column, &of(&[groups, c / groups]))?;
            *v = cx.b.reshape(all, &of(&[c]))?;
        }
    }
    emit(cx, groups, scale, bias)
}

/// For ONNX: x as [sample, group, channel of the group, element], the shapes of one number a channel and of one a group, and the elements
/// of a group.
type Boxes = (Vec<usize>, Vec<usize>, Vec<usize>, f64);

fn boxes(x: &Export<'_>, dims: &[usize]) -> Result<Boxes, OpError> {
    let groups = x.sig.attrs.int("groups")?.max(1) as usize;
    let (per, space) = (dims[1] / groups, dims[2..].iter().product::<usize>());
    let count = (per * space) as f64;
    Ok((vec![dims[0], groups, per, space], vec![1, groups, per, 1], vec![dims[0], groups], count))
}

impl OpDef for GroupNormalization {
    fn name(&self) -> &'static str {
        "GroupNormalization"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules![
            "GroupNormalization" => import_group,
            "InstanceNormalization" => |cx| {
                let (c, scale, bias) = (channels(cx)?, cx.input(1)?, cx.input(2)?);
                emit(cx, c, scale, bias)
            },
        ]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (x, _) = infer_channels(s, 0, &[(1, "scale"), (2, "bias")])?;
        eps(s.attrs)?;
        let (_, group) = groups(s, &x)?;
        Ok(vec![x, group.clone(), group])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let dy = super::layer::cotangent_or_zeros(g)?;
        let mut inputs = vec![g.opt_input(0), g.opt_input(1), Some(g.output(1)), Some(g.output(2)), Some(dy)];
        inputs.extend([g.cotangent(1), g.cotangent(2)]);
        let attrs = Attrs::new().with("groups", g.attrs().int("groups")?);
        let d = g.b.emit("GroupNormalizationGrad", attrs, &inputs)?;
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
        let ((d, per_group), eps) = (layout(s)?, eps(s.attrs)?);
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            forward::<T>(d, per_group, eps, io);
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (v, dims) = (x.input(0)?, x.dims(0)?);
        let (box_, line, row, _) = boxes(x, &dims)?;
        let v = v.reshape(&box_);
        let mean = v.reduce("ReduceMean", &[2, 3], true);
        let d = v - mean;
        let inverse = 1.0 / ((d * d).reduce("ReduceMean", &[2, 3], true) + eps(x.sig.attrs)?).call("Sqrt");
        let y = d * (x.input(1)?.reshape(&line) * inverse) + x.input(2)?.reshape(&line);
        x.set(0, y.reshape(&dims));
        x.set(1, mean.reshape(&row));
        x.set(2, inverse.reshape(&row));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, groups: i64, x: &[usize]| {
            let attrs = Attrs::new().with("groups", groups).with("eps", 1e-3);
            Case::new(name, attrs, &[x, &[x[1]], &[x[1]]])
        };
        vec![
            case("groups", 2, &[2, 4, 5]),
            case("instances", 3, &[2, 3, 2, 3]),
            case("one group", 1, &[1, 2, 33]),
            case("no space", 2, &[2, 6]),
        ]
    }
}

impl OpDef for GroupNormalizationGrad {
    fn name(&self) -> &'static str {
        "GroupNormalizationGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (x, channel) = infer_channels(s, 0, &[(1, "scale")])?;
        let (_, group) = groups(s, &x)?;
        for (i, what) in [(2, "mean"), (3, "1 / deviation"), (5, "a cotangent"), (6, "a cotangent")] {
            let Some(t) = s.opt_input(i) else {
                if i < 4 {
                    return Err(OpError::invalid(format!("{what} (input {i}) is missing")));
                }
                continue;
            };
            if t.dtype != group.dtype {
                return Err(OpError::invalid(format!("{what} must be {} like the scale", group.dtype)));
            }
            same_shape(&group.shape, &t.shape, what)?;
        }
        same_cotangent(&x, s.input(4)?)?;
        Ok(vec![x, channel.clone(), channel])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, 12)
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let size = s.opt_input(0).map_or(0, |t| t.dtype.size());
        let workspace = layout(s).map_or(0, |(d, _)| d.n * d.c * 2) as u64 * size;
        Facts { overwrites: vec![(0, 0), (0, 4)], ..Facts::with_workspace(workspace) }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (d, per_group) = layout(s)?;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            backward::<T>(d, per_group, io);
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let dims = x.dims(0)?;
        let (box_, line, row, len) = boxes(x, &dims)?;
        let one = [row[0], row[1], 1, 1];
        let (scale, inverse) = (x.input(1)?.reshape(&line), x.input(3)?.reshape(&one));
        let dy = x.input(4)?.reshape(&box_);
        let d = (x.input(0)?.reshape(&box_) - x.input(2)?.reshape(&one)) * inverse;
        let g = dy * scale;
        let mut first = g.sum(&[2, 3], true);
        let mut second = (g * d).sum(&[2, 3], true);
        if let Some(d_mean) = x.opt(5) {
            first = first - d_mean.reshape(&one) / inverse;
        }
        if let Some(d_inverse) = x.opt(6) {
            second = second + d_inverse.reshape(&one) * inverse;
        }
        let share = inverse / len;
        x.set(0, (g * inverse - share * first - d * (share * second)).reshape(&dims));
        x.set(1, (dy * d).sum(&[0, 3], false).reshape(&[dims[1]]));
        x.set(2, dy.sum(&[0, 3], false).reshape(&[dims[1]]));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, groups: i64, x: &[usize]| {
            let (c, row) = ([x[1]], [x[0], groups as usize]);
            Case::new(name, Attrs::new().with("groups", groups), &[x, &c, &row, &row, x])
                .input(3, CaseInput::float(&row, Fill::Uniform(0.5, 2.0)))
        };
        let row = CaseInput::float(&[2, 2], Fill::Uniform(-1.0, 1.0));
        let all = case("all cotangents", 2, &[2, 4, 3]).input(5, row.clone()).input(6, row);
        vec![case("groups", 2, &[2, 4, 5]), case("instances", 3, &[2, 3, 2, 3]), all]
    }
}

fn forward<T: Float>(d: Channels, per_group: usize, eps: f64, io: &Io<'_>) {
    let (scale, bias) = (io.input::<T>(1), io.input::<T>(2));
    let x = Shared(io.input_ptr::<T>(0).0.cast_mut());
    let [y, mean_out, inv_out] = [0, 1, 2].map(|i| Shared(io.output_ptr::<T>(i).0));
    let len = per_group * d.s;
    let groups = d.c / per_group;
    lanes::each(
        d.n * groups,
        (par::GRAIN / len.max(1)).max(1),
        #[inline(always)]
        |range| {
            let (x, y, mean_out, inv_out) = (&x, &y, &mean_out, &inv_out);
            for r in range {
                // SAFETY: group `r` of both tensors and of the statistics is this call's only.
                unsafe {
                    let (x, y) = (x.0.add(r * len).cast_const(), y.0.add(r * len));
                    let (mean, inverse) = statistics::<T, true>(len, eps, x);
                    for k in 0..per_group {
                        let c = r % groups * per_group + k;
                        let (a, b) = (scale[c] * inverse, bias[c]);
                        lanes::map(
                            d.s,
                            [x.add(k * d.s)],
                            [y.add(k * d.s)],
                            #[inline(always)]
                            |[v]| [(v - mean) * a + b],
                        );
                    }
                    *mean_out.0.add(r) = mean;
                    *inv_out.0.add(r) = inverse;
                }
            }
        },
    );
}

fn backward<T: Float>(d: Channels, per_group: usize, io: &Io<'_>) {
    let [scale, mean, inverse] = [1, 2, 3].map(|i| io.input::<T>(i));
    let [d_mean, d_inverse] = [5, 6].map(|i| io.has(i).then(|| io.input::<T>(i)));
    let [x, dy] = [0, 4].map(|i| Shared(io.input_ptr::<T>(i).0.cast_mut()));
    let dx = Shared(io.output_ptr::<T>(0).0);
    // For each sample and channel Σ dy (x - mean) / deviation, then for each Σ dy.
    let parts = io.workspace::<T>();
    let shared = Shared(parts.as_mut_ptr());
    let half = d.n * d.c;
    let len = per_group * d.s;
    let groups = d.c / per_group;
    lanes::each(
        d.n * groups,
        (par::GRAIN / len.max(1)).max(1),
        #[inline(always)]
        |range| {
            let (x, dy, dx, parts) = (&x, &dy, &dx, &shared);
            for r in range {
                let (m, i) = (mean[r], inverse[r]);
                let wide = i.to_f64();
                let (mut first, mut second) = (0.0, 0.0);
                // SAFETY: group `r` of the tensors and of the partial sums is this call's only.
                unsafe {
                    let from = [x, dy].map(|p| p.0.add(r * len).cast_const());
                    for k in 0..per_group {
                        let [sum, product] = lanes::sums(
                            d.s,
                            from.map(|p| p.add(k * d.s)),
                            #[inline(always)]
                            |[v, g]| [g, g * (v - m)],
                        );
                        let s = scale[r % groups * per_group + k].to_f64();
                        first += s * sum;
                        second += s * product * wide;
                        *parts.0.add(r * per_group + k) = T::from_f64(product * wide);
                        *parts.0.add(half + r * per_group + k) = T::from_f64(sum);
                    }
                    let of = |d: Option<&[T]>| d.map_or(0.0, |d| d[r].to_f64());
                    let share = wide / len as f64;
                    let constant = T::from_f64(share * (first - of(d_mean) / wide));
                    let slope = T::from_f64(share * wide * (second + of(d_inverse) * wide));
                    for k in 0..per_group {
                        let a = scale[r % groups * per_group + k] * i;
                        lanes::map(
                            d.s,
                            from.map(|p| p.add(k * d.s)),
                            [dx.0.add(r * len + k * d.s)],
                            #[inline(always)]
                            |[v, g]| [g * a - constant - (v - m) * slope],
                        );
                    }
                }
            }
        },
    );
    let (d_scale, d_bias) = (io.output::<T>(1), io.output::<T>(2));
    for c in 0..d.c {
        let sum = |first: usize| (0..d.n).map(|n| parts[first + n * d.c + c].to_f64()).sum::<f64>();
        d_scale[c] = T::from_f64(sum(0));
        d_bias[c] = T::from_f64(sum(half));
    }
}
