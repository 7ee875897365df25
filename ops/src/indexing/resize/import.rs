//! Resize and Upsample nodes of all opsets.

use crate::{
    OpError,
    onnx::{ImportCx, normalize_axis},
};
use graph::Attrs;

/// Upsample (opsets 7 to 9): scales as attribute or input.
pub(super) fn upsample(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let scales = match cx.attrs.opt_floats("scales")? {
        Some(s) => s.to_vec(),
        None => floats(cx, 1, "the scales")?.ok_or_else(|| OpError::invalid("the scales are missing"))?,
    };
    old(cx, &scales, "floor")
}

/// Resize since opset 10.
pub(super) fn resize(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    if cx.opset < 11 {
        let scales =
            floats(cx, 1, "the scales")?.ok_or_else(|| OpError::invalid("the scales are missing"))?;
        return old(cx, &scales, "simple");
    }
    let coordinates = cx.attrs.str_or("coordinate_transformation_mode", "half_pixel")?.to_owned();
    let mut attrs = Attrs::new()
        .with("mode", cx.attrs.str_or("mode", "nearest")?)
        .with("coordinates", coordinates.as_str());
    match cx.attrs.str_or("mode", "nearest")? {
        "nearest" => {
            attrs = attrs.with("nearest_mode", cx.attrs.str_or("nearest_mode", "round_prefer_floor")?);
        }
        mode => {
            attrs = attrs
                .with("exclude_outside", cx.attrs.int_or("exclude_outside", 0)?)
                .with("antialias", cx.attrs.int_or("antialias", 0)?);
            if mode == "cubic" {
                attrs = attrs.with("cubic_coeff_a", cx.attrs.float_or("cubic_coeff_a", -0.75)?);
            }
        }
    }
    let roi = if coordinates == "tf_crop_and_resize" {
        attrs = attrs.with("extrapolation_value", cx.attrs.float_or("extrapolation_value", 0.0)?);
        Some(
            floats(cx, 1, "the region")?
                .ok_or_else(|| OpError::invalid("the region (input 1) is missing"))?,
        )
    } else {
        None
    };
    let rank = cx.ty(0)?.shape.rank();
    let axes = match cx.attrs.opt_ints("axes")? {
        Some(axes) => axes.iter().map(|a| normalize_axis(*a, rank)).collect::<Result<Vec<_>, _>>()?,
        None => (0..rank).collect(),
    };
    let scales = floats(cx, 2, "the scales")?;
    let target = match scales {
        Some(s) => Target::Scales(s),
        None => {
            let sizes = cx
                .opt_ints(3, "the sizes")?
                .ok_or_else(|| OpError::invalid("neither scales nor sizes are given"))?;
            Target::Sizes(sizes, cx.attrs.str_or("keep_aspect_ratio_policy", "stretch")?.to_owned())
        }
    };
    emit(cx, attrs, &axes, target, roi.as_deref())
}

enum Target {
    Scales(Vec<f64>),
    /// Sizes and the policy for the aspect ratio.
    Sizes(Vec<i64>, String),
}

fn old(cx: &mut ImportCx<'_, '_>, scales: &[f64], nearest: &str) -> Result<(), OpError> {
    let mode = match cx.attrs.str_or("mode", "nearest")? {
        "bilinear" | "trilinear" => "linear",
        m => m,
    };
    let attrs =
        Attrs::new().with("mode", mode).with("coordinates", "asymmetric").with("nearest_mode", nearest);
    let axes: Vec<usize> = (0..cx.ty(0)?.shape.rank()).collect();
    emit(cx, attrs, &axes, Target::Scales(scales.to_vec()), None)
}

/// Numbers from input `i`; an empty tensor counts as left out.
fn floats(cx: &ImportCx<'_, '_>, i: usize, what: &str) -> Result<Option<Vec<f64>>, OpError> {
    Ok(cx.opt_literal(i, what)?.filter(|l| !l.is_empty()).map(|l| l.to_floats()))
}

/// Emits the resize of those axes that change.
fn emit(
    cx: &mut ImportCx<'_, '_>,
    attrs: Attrs,
    axes: &[usize],
    target: Target,
    roi: Option<&[f64]>,
) -> Result<(), OpError> {
    let (x, shape) = (cx.input(0)?, cx.ty(0)?.shape);
    let given = match &target {
        Target::Scales(s) => s.len(),
        Target::Sizes(s, _) => s.len(),
    };
    if given != axes.len() || roi.is_some_and(|r| r.len() != 2 * axes.len()) {
        return Err(OpError::invalid(format!("{given} numbers are given for {} axes", axes.len())));
    }
    // (axis, size, scale, roi) of the axes that change.
    let mut changed: Vec<(usize, i64, f64, (f64, f64))> = Vec::new();
    for (k, a) in axes.iter().enumerate() {
        if let Target::Scales(s) = &target
            && s[k] == 1.0
            && roi.is_none()
        {
            continue;
        }
        let dim = &shape.0[*a];
        let n =
            dim.as_const().ok_or_else(|| OpError::Dynamic(format!("the extent {dim} that is resized")))?;
        let (size, scale) = match &target {
            Target::Scales(s) => ((n as f64 * s[k]).floor(), s[k]),
            // What is empty stays so, at no scale.
            Target::Sizes(s, _) if n == 0 && s[k] == 0 => match roi {
                None => continue,
                Some(_) => (0.0, 1.0),
            },
            Target::Sizes(s, _) => (s[k] as f64, s[k] as f64 / n as f64),
        };
        if n == 0 && size != 0.0 {
            return Err(OpError::invalid(format!(
                "axis {a} is empty: it cannot be resized to {size} elements"
            )));
        }
        if !(size >= 0.0 && size < i64::MAX as f64 / 2.0) {
            return Err(OpError::invalid(format!("axis {a} would have {size} elements")));
        }
        changed.push((*a, size as i64, scale, roi.map_or((0.0, 1.0), |r| (r[k], r[axes.len() + k]))));
    }
    if let Target::Sizes(_, policy) = &target
        && policy != "stretch"
    {
        let scales = changed.iter().map(|c| c.2);
        let scale = match policy.as_str() {
            "not_larger" => scales.fold(f64::INFINITY, f64::min),
            "not_smaller" => scales.fold(0.0, f64::max),
            p => return Err(OpError::invalid(format!("keep_aspect_ratio_policy {p:?} is unknown"))),
        };
        for c in &mut changed {
            let n = shape.0[c.0].as_const().unwrap_or(0) as f64;
            (c.1, c.2) = ((scale * n + 0.5).floor() as i64, scale);
        }
    }
    changed.retain(|c| roi.is_some() || c.2 != 1.0 || shape.0[c.0].as_const() != Some(c.1));
    changed.sort_by_key(|c| c.0);
    if changed.is_empty() {
        cx.set(0, x);
        return Ok(());
    }
    let mut attrs = attrs
        .with("axes", changed.iter().map(|c| c.0 as i64).collect::<Vec<_>>())
        .with("sizes", changed.iter().map(|c| c.1).collect::<Vec<_>>())
        .with("scales", changed.iter().map(|c| c.2).collect::<Vec<_>>());
    if roi.is_some() {
        let both = changed.iter().map(|c| c.3.0).chain(changed.iter().map(|c| c.3.1));
        attrs = attrs.with("roi", both.collect::<Vec<_>>());
    }
    let y = cx.b.op("Resize", attrs, &[x])?;
    cx.set(0, y);
    Ok(())
}
