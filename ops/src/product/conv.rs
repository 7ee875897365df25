//! Conv and ConvTranspose: each is the other's input gradient.

use super::{
    correlate::Correlate,
    depthwise::Depthwise,
    matmul::same_dim,
    panel::Product,
    window::{Slide, Window, spatial},
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::Case,
    cpu::{
        CpuKernel,
        half::{Stored, is_half},
    },
    export::Export,
    grad::GradCx,
    onnx::{ImportCx, OnnxRule, rules},
};
use graph::{Attrs, DType, Dim, Shape, TensorType, ValueId};

/// Convolution (correlation) of x [images, channels, spatial..] with weights [features, channels / group, kernel..] and an optional bias
/// `[features]`. Attributes `strides`, `pads` (begins, then ends), `dilations`, `group`; one to three spatial axes.
pub struct Conv;

impl OpDef for Conv {
    fn name(&self) -> &'static str {
        "Conv"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules![
            "Conv" => import_conv,
            "ConvInteger" => |cx| {
                let attrs = import_attrs(cx, 1)?;
                super::integer::conv(cx, attrs)
            },
            "QLinearConv" => |cx| {
                let attrs = import_attrs(cx, 3)?;
                super::integer::quantized_conv(cx, attrs)
            },
        ]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (x, w) = (s.input(0)?, s.input(1)?);
        let (window, group) = arguments(s)?;
        let (features, per_group) = (&w.shape.0[0], &w.shape.0[1]);
        same_dim(&x.shape.0[1], &per_group.mul(&Dim::constant(group)), "channels of input and weights")?;
        divides(group, features)?;
        bias(s, features)?;
        let mut shape = vec![x.shape.0[0].clone(), features.clone()];
        for (i, d) in spatial(&x.shape)?.iter().enumerate() {
            shape.push(window.count(i, d, false)?);
        }
        Ok(vec![TensorType { dtype: x.dtype, shape: Shape(shape) }])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (x, w, dy) = (g.input(0)?, g.input(1)?, g.cotangent0()?);
        if g.needs(0) {
            let shape = g.ty(0)?.shape;
            let kernel = kernel_of(&g.ty(1)?.shape)?;
            let window = Window::new(g.attrs(), &kernel)?;
            let mut extra = Vec::new();
            for (i, d) in spatial(&shape)?.iter().enumerate() {
                let padded = d.add(&Dim::constant(window.begin[i] + window.end[i] - window.reach(i)));
                let stride = window.strides[i];
                extra.push(match padded.as_const() {
                    _ if stride == 1 => 0,
                    Some(n) => n.rem_euclid(stride),
                    None => return Err(OpError::Dynamic(format!("the remainder of {padded} by {stride}"))),
                });
            }
            let attrs = g.attrs().clone().with("output_padding", extra);
            let dx = g.b.op("ConvTranspose", attrs, &[dy, w])?;
            g.set(0, dx);
        }
        if g.needs(1) {
            let dw = weight_gradient(g, x, dy)?;
            g.set(1, dw);
        }
        bias_gradient(g, dy)
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, 1, s.outputs.first().copied())
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        facts(s, false)
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_stored!(s.input(0)?.dtype, self.name(), T => kernel::<T>(s, false))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (window, group) = arguments(x.sig)?;
        x.same("Conv", window.exported().with("group", group))
    }

    fn cases(&self) -> Vec<Case> {
        let a = |strides: &[i64], pads: &[i64], dilations: &[i64], group: i64| {
            Attrs::new()
                .with("strides", strides)
                .with("pads", pads)
                .with("dilations", dilations)
                .with("group", group)
        };
        vec![
            Case::new("pointwise", Attrs::new(), &[&[2, 3, 2, 2], &[4, 3, 1, 1], &[4]]),
            Case::new(
                "3x3, padded",
                a(&[1, 1], &[1, 1, 1, 1], &[1, 1], 1),
                &[&[1, 2, 4, 5], &[3, 2, 3, 3], &[3]],
            ),
            Case::new("strided", a(&[2, 2], &[1, 1, 1, 1], &[1, 1], 1), &[&[1, 2, 5, 6], &[2, 2, 3, 3]]),
            Case::new(
                "stride beyond the kernel",
                a(&[3, 2], &[0, 0, 0, 0], &[1, 1], 1),
                &[&[1, 1, 6, 5], &[2, 1, 1, 2]],
            ),
            Case::new("one axis", a(&[2], &[2, 1], &[2], 1), &[&[2, 2, 7], &[3, 2, 3], &[3]]),
            Case::new(
                "three axes",
                a(&[1, 2, 1], &[0, 1, 1, 1, 0, 0], &[1, 1, 2], 1),
                &[&[1, 2, 2, 3, 4], &[2, 2, 2, 2, 2]],
            ),
            Case::new("groups", a(&[1, 1], &[0, 1, 0, 0], &[1, 1], 2), &[&[1, 4, 3, 3], &[6, 2, 2, 2], &[6]]),
            Case::new(
                "depthwise",
                a(&[1, 1], &[1, 1, 1, 1], &[1, 1], 3),
                &[&[2, 3, 3, 3], &[3, 1, 3, 3], &[3]],
            ),
            Case::new(
                "depthwise, strided",
                a(&[2, 2], &[1, 0, 0, 1], &[1, 2], 2),
                &[&[1, 2, 5, 6], &[2, 1, 3, 2]],
            ),
            Case::new(
                "two features a channel",
                a(&[1, 1], &[0, 0, 0, 0], &[1, 1], 2),
                &[&[1, 2, 3, 3], &[4, 1, 2, 2]],
            ),
            Case::new("many features", a(&[1], &[1, 1], &[1], 1), &[&[1, 2, 9], &[17, 2, 3], &[17]]),
            Case::new(
                "no images",
                a(&[1, 1], &[0, 0, 0, 0], &[1, 1], 1),
                &[&[0, 2, 3, 3], &[2, 2, 2, 2], &[2]],
            ),
        ]
    }
}

/// The transpose of [`Conv`] as a linear map, plus a bias: x [images, channels, spatial..], weights [channels, features / group,
/// kernel..], bias `[features]`. Attributes as there, and `output_padding`: what is added to the smallest output extents that a
/// convolution would map to the input's.
pub struct ConvTranspose;

impl OpDef for ConvTranspose {
    fn name(&self) -> &'static str {
        "ConvTranspose"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["ConvTranspose" => import_transpose, "Col2Im" => super::col2im::import]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (x, w) = (s.input(0)?, s.input(1)?);
        let (window, group) = arguments(s)?;
        let (channels, per_group) = (&w.shape.0[0], &w.shape.0[1]);
        same_dim(&x.shape.0[1], channels, "channels of input and weights")?;
        divides(group, channels)?;
        let features = per_group.mul(&Dim::constant(group));
        bias(s, &features)?;
        let extra = s.attrs.opt_ints("output_padding")?.unwrap_or(&[]);
        let most = window.strides.iter().chain(&window.dilations).max().map_or(0, |m| m * 2 + (1 << 24));
        if !(extra.is_empty() || extra.len() == window.rank()) || extra.iter().any(|e| *e < 0 || *e > most) {
            return Err(OpError::invalid(format!("output_padding {extra:?} does not fit the window")));
        }
        let mut shape = vec![x.shape.0[0].clone(), features];
        for (i, d) in spatial(&x.shape)?.iter().enumerate() {
            let add = extra.get(i).unwrap_or(&0) + window.reach(i) - window.begin[i] - window.end[i];
            let n = d.sub(&Dim::constant(1)).mul(&Dim::constant(window.strides[i])).add(&Dim::constant(add));
            if n.as_const().is_some_and(|n| n < 0) {
                return Err(OpError::invalid(format!("output axis {} would have the extent {n}", i + 2)));
            }
            shape.push(n);
        }
        Ok(vec![TensorType { dtype: x.dtype, shape: Shape(shape) }])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (x, w, dy) = (g.input(0)?, g.input(1)?, g.cotangent0()?);
        if g.needs(0) {
            let mut attrs = g.attrs().clone();
            attrs.0.remove("output_padding");
            let dx = g.b.op("Conv", attrs, &[dy, w])?;
            let shape = g.ty(0)?.shape;
            // Output padding of a stride or more makes room for further windows, which the forward pass has not.
            let dx = if g.b.ty(dx).shape == shape {
                dx
            } else {
                let ends = crate::builder::shape_attr(&shape)?;
                let starts = vec![0; ends.len()];
                let axes: Vec<i64> = (0..ends.len() as i64).collect();
                let steps = vec![1; ends.len()];
                let attrs = Attrs::new()
                    .with("starts", starts)
                    .with("ends", ends)
                    .with("axes", axes)
                    .with("steps", steps);
                g.b.op("Slice", attrs, &[dx])?
            };
            g.set(0, dx);
        }
        if g.needs(1) {
            let dw = weight_gradient(g, dy, x)?;
            g.set(1, dw);
        }
        bias_gradient(g, dy)
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, 1, s.opt_input(0))
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        facts(s, true)
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_stored!(s.input(0)?.dtype, self.name(), T => kernel::<T>(s, true))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (window, group) = arguments(x.sig)?;
        let mut attrs = window.exported().with("group", group);
        if let Some(extra) = x.sig.attrs.opt_ints("output_padding")?.filter(|e| !e.is_empty()) {
            attrs = attrs.with("output_padding", extra);
        }
        x.same("ConvTranspose", attrs)
    }

    fn cases(&self) -> Vec<Case> {
        let a = |strides: &[i64], pads: &[i64], dilations: &[i64], group: i64, extra: &[i64]| {
            Attrs::new()
                .with("strides", strides)
                .with("pads", pads)
                .with("dilations", dilations)
                .with("group", group)
                .with("output_padding", extra)
        };
        vec![
            Case::new("plain", Attrs::new(), &[&[1, 2, 3, 3], &[2, 3, 2, 2], &[3]]),
            Case::new(
                "doubling",
                a(&[2, 2], &[0, 0, 0, 0], &[1, 1], 1, &[0, 0]),
                &[&[1, 3, 2, 3], &[3, 2, 2, 2], &[2]],
            ),
            Case::new(
                "padded, strided",
                a(&[2, 2], &[1, 1, 1, 1], &[1, 1], 1, &[1, 1]),
                &[&[1, 2, 2, 3], &[2, 2, 3, 3]],
            ),
            Case::new(
                "gaps",
                a(&[3, 2], &[0, 0, 0, 0], &[1, 1], 1, &[0, 0]),
                &[&[1, 2, 2, 2], &[2, 2, 1, 1], &[2]],
            ),
            Case::new("one axis", a(&[2], &[2, 1], &[2], 1, &[0]), &[&[2, 3, 4], &[3, 2, 3]]),
            Case::new(
                "three axes",
                a(&[1, 2, 1], &[0, 1, 1, 1, 0, 0], &[1, 1, 2], 1, &[0, 1, 0]),
                &[&[1, 2, 2, 2, 2], &[2, 2, 2, 2, 2]],
            ),
            Case::new(
                "groups",
                a(&[2, 1], &[0, 1, 0, 0], &[1, 1], 2, &[0, 0]),
                &[&[1, 4, 2, 3], &[4, 3, 2, 2], &[6]],
            ),
            Case::new(
                "depthwise",
                a(&[2, 2], &[1, 1, 1, 1], &[1, 1], 3, &[1, 0]),
                &[&[2, 3, 2, 2], &[3, 1, 3, 3], &[3]],
            ),
            Case::new(
                "output padding of a stride",
                a(&[1], &[0, 0], &[2], 1, &[1]),
                &[&[1, 2, 3], &[2, 1, 2]],
            ),
            Case::new("no images", Attrs::new(), &[&[0, 2, 3], &[2, 3, 2], &[3]]),
        ]
    }
}

/// The gradient of the weights: x on the larger side of the convolution, dy on the smaller.
fn weight_gradient(g: &mut GradCx<'_, '_>, x: ValueId, dy: ValueId) -> Result<ValueId, OpError> {
    let kernel = kernel_of(&g.ty(1)?.shape)?;
    let mut attrs = g.attrs().clone().with("kernel", kernel);
    attrs.0.remove("output_padding");
    g.b.op("ConvGradWeight", attrs, &[x, dy])
}

fn bias_gradient(g: &mut GradCx<'_, '_>, dy: ValueId) -> Result<(), OpError> {
    if g.needs(2) {
        let rank = g.b.ty(dy).shape.rank() as i64;
        let axes: Vec<i64> = (0..rank).filter(|a| *a != 1).collect();
        let db = g.b.reduce_sum(dy, &axes, false)?;
        g.set(2, db);
    }
    Ok(())
}

/// The spatial extents of weights.
fn kernel_of(weights: &Shape) -> Result<Vec<i64>, OpError> {
    let of = |d: &Dim| d.as_const().ok_or_else(|| OpError::Dynamic(format!("the kernel, {weights},")));
    spatial(weights)?.iter().map(of).collect()
}

/// Window and group count of a convolution; checks ranks and dtypes.
pub(super) fn arguments(s: &Signature<'_>) -> Result<(Window, i64), OpError> {
    let (x, w) = (s.input(0)?, s.input(1)?);
    if x.dtype != w.dtype || !x.dtype.is_float() {
        return Err(OpError::invalid(format!(
            "input and weights must be floating-point, not {} and {}",
            x.dtype, w.dtype
        )));
    }
    if x.shape.rank() != w.shape.rank() {
        return Err(OpError::invalid(format!(
            "ranks of input and weights differ: {} and {}",
            x.shape, w.shape
        )));
    }
    spatial(&x.shape)?;
    let window = Window::new(s.attrs, &kernel_of(&w.shape)?)?;
    let group = s.attrs.int_or("group", 1)?;
    if !(1..=1 << 24).contains(&group) {
        return Err(OpError::invalid(format!("group must be positive, not {group}")));
    }
    Ok((window, group))
}

fn divides(group: i64, of: &Dim) -> Result<(), OpError> {
    match of.as_const() {
        _ if group == 1 => Ok(()),
        Some(n) if n % group == 0 => Ok(()),
        Some(n) => Err(OpError::invalid(format!("{n} channels cannot be cut into {group} groups"))),
        None => Err(OpError::Dynamic(format!("whether {group} groups divide {of}"))),
    }
}

fn bias(s: &Signature<'_>, features: &Dim) -> Result<(), OpError> {
    let Some(b) = s.opt_input(2) else { return Ok(()) };
    if b.dtype != s.input(0)?.dtype || b.shape.rank() != 1 {
        return Err(OpError::invalid(format!("the bias must be one number a feature, not {b}")));
    }
    same_dim(&b.shape.0[0], features, "extents of the bias and features")
}

/// Work of any of the three products; `small` is the tensor on the smaller side, input `weights` holds the weights.
pub(super) fn work(s: &Signature<'_>, weights: usize, small: Option<&TensorType>) -> Work {
    let flops = || {
        let small = small?;
        let [images, _, space @ ..] = &small.shape.0[..] else { return None };
        let points = Shape([std::slice::from_ref(images), space].concat()).elements()?;
        let w = if weights == 1 { s.opt_input(1)? } else { s.outputs.first()? };
        points.checked_mul(w.shape.elements()?)?.checked_mul(2)
    };
    Work { flops: flops().unwrap_or(0), bytes: s.io_bytes(), product: true }
}

enum Plan {
    General(Correlate),
    Depthwise(Depthwise),
}

fn plan(s: &Signature<'_>, transposed: bool) -> Result<Plan, OpError> {
    let (window, group) = arguments(s)?;
    let group = group as usize;
    let (x, w, y) = (s.dims(0)?, s.dims(1)?, s.out_dims(0)?);
    let (large, small) = if transposed { (&y[2..], &x[2..]) } else { (&x[2..], &y[2..]) };
    if w[0] == group && w[1] == 1 {
        return Ok(Plan::Depthwise(Depthwise::new(Slide::new(&window, large, small), x[0], group)));
    }
    let element = work_size(s);
    Correlate::new(&window, x[0], group, (w[0] / group, w[1]), (large, small), transposed, element)
        .map(Plan::General)
        .ok_or_else(|| OpError::invalid("the tensors are too large"))
}

/// Bytes of the numbers that are added up: those of the input, or of float32 for 16-bit floats.
pub(super) fn work_size(s: &Signature<'_>) -> usize {
    s.opt_input(0).map_or(4, |t| if is_half(t.dtype) { 4 } else { t.dtype.size() as usize })
}

fn facts(s: &Signature<'_>, transposed: bool) -> Facts {
    match plan(s, transposed) {
        Ok(Plan::General(c)) => Facts::with_workspace((c.workspace() * work_size(s)) as u64),
        _ => Facts::default(),
    }
}

fn kernel<S: Stored<Work: Product>>(s: &Signature<'_>, transposed: bool) -> Result<CpuKernel, OpError> {
    let bias = s.opt_input(2).is_some();
    match plan(s, transposed)? {
        Plan::General(c) => Ok(Box::new(move |io| {
            let b = bias.then(|| io.input::<S>(2));
            c.run(io.input::<S>(0), io.input::<S>(1), b, io.output::<S>(0), io.workspace::<S::Work>());
            Ok(())
        })),
        Plan::Depthwise(_) if !S::DIRECT => Err(OpError::unsupported("depthwise convolution of halves")),
        Plan::Depthwise(d) => Ok(Box::new(move |io| {
            let b = bias.then(|| io.input::<S::Work>(2));
            let (x, w, y) = (io.input::<S::Work>(0), io.input::<S::Work>(1), io.output::<S::Work>(0));
            if transposed {
                d.backward(x, w, b, y)
            } else {
                d.forward(x, w, b, y)
            }
            Ok(())
        })),
    }
}

/// The spatial extents of the kernel: those of the weights, with which `kernel_shape` must agree.
fn import_kernel(cx: &ImportCx<'_, '_>, weights: usize) -> Result<Vec<i64>, OpError> {
    let kernel = kernel_of(&cx.ty(weights)?.shape)?;
    match cx.attrs.opt_ints("kernel_shape")? {
        Some(k) if k != kernel => {
            Err(OpError::invalid(format!("kernel_shape is {k:?}, the weights have {kernel:?}")))
        }
        _ => Ok(kernel),
    }
}

fn finish(cx: &mut ImportCx<'_, '_>, op: &str, attrs: Attrs) -> Result<(), OpError> {
    let inputs: Vec<ValueId> = [cx.input(0)?, cx.input(1)?].into_iter().chain(cx.opt_input(2)).collect();
    let y = cx.b.op(op, attrs, &inputs)?;
    cx.set(0, y);
    Ok(())
}

fn import_conv(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let attrs = import_attrs(cx, 1)?;
    finish(cx, "Conv", attrs)
}

/// Attributes of a convolution whose weights are input `weights`.
fn import_attrs(cx: &ImportCx<'_, '_>, weights: usize) -> Result<Attrs, OpError> {
    let (x, kernel) = (cx.ty(0)?, import_kernel(cx, weights)?);
    let window = Window::import(cx, &kernel, spatial(&x.shape)?)?;
    Ok(window.attrs().with("group", cx.attrs.int_or("group", 1)?))
}

/// Resolves `auto_pad` and `output_shape` into `pads` and `output_padding`.
fn import_transpose(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let (x, kernel) = (cx.ty(0)?, import_kernel(cx, 1)?);
    let space = spatial(&x.shape)?;
    let auto = cx.attrs.str_or("auto_pad", "NOTSET")?.to_owned();
    let mut attrs = cx.attrs.clone();
    let wanted = match cx.attrs.opt_ints("output_shape")? {
        // Some exporters write the batch and channel extents too.
        Some(v) if v.len() == kernel.len() + 2 => Some(v[2..].to_vec()),
        Some(v) if v.len() == kernel.len() => Some(v.to_vec()),
        Some(v) => {
            return Err(OpError::invalid(format!("output_shape {v:?} does not fit {} axes", kernel.len())));
        }
        None => None,
    };
    if auto != "NOTSET" || wanted.is_some() {
        attrs.0.remove("pads");
    }
    let mut window = Window::new(&attrs, &kernel)?;
    let mut extra = match cx.attrs.opt_ints("output_padding")? {
        Some(v) if v.len() == kernel.len() => v.to_vec(),
        Some(v) => {
            return Err(OpError::invalid(format!("output_padding {v:?} does not fit {} axes", kernel.len())));
        }
        None => vec![0; kernel.len()],
    };
    let same = matches!(auto.as_str(), "SAME_UPPER" | "SAME_LOWER");
    if !same && !matches!(auto.as_str(), "NOTSET" | "VALID") {
        return Err(OpError::invalid(format!("auto_pad {auto:?} is not defined")));
    }
    if same || wanted.is_some() {
        for (i, d) in space.iter().enumerate() {
            let s = window.strides[i];
            // Extent without padding, less the extent asked for; an input of n gives (n - 1)·s more than the kernel's reach.
            let total = match &wanted {
                Some(w) => match d.as_const() {
                    Some(n) => (n - 1) * s + window.reach(i) + extra[i] - w[i],
                    None => {
                        return Err(OpError::Dynamic(format!(
                            "the padding of axis {} (output_shape)",
                            i + 2
                        )));
                    }
                },
                None => window.reach(i) + extra[i] - s,
            };
            if total < 0 {
                extra[i] -= total;
            } else {
                let small = total / 2;
                let upper = auto == "SAME_UPPER";
                (window.begin[i], window.end[i]) =
                    if upper { (small, total - small) } else { (total - small, small) };
            }
        }
    }
    let group = cx.attrs.int_or("group", 1)?;
    finish(cx, "ConvTranspose", window.attrs().with("group", group).with("output_padding", extra))
}

/// The dtype and shape of weights whose gradient is asked for.
pub(super) fn weights_type(
    dtype: DType,
    features: &Dim,
    channels: &Dim,
    group: i64,
    kernel: &[i64],
) -> Result<TensorType, OpError> {
    divides(group, channels)?;
    divides(group, features)?;
    let per = channels.floor_div(&Dim::constant(group)).ok_or_else(|| OpError::invalid("group is 0"))?;
    let mut shape = vec![features.clone(), per];
    shape.extend(kernel.iter().map(|k| Dim::constant(*k)));
    Ok(TensorType { dtype, shape: Shape(shape) })
}
