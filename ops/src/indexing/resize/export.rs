//! Resize as the standard operator.

use super::Plan;
use crate::{OpError, export::Export};
use graph::{Attrs, DType};

/// Sizes are given where they say the scales, else scales are.
pub(super) fn resize(x: &Export<'_>) -> Result<(), OpError> {
    let (a, plan, dims) = (x.sig.attrs, Plan::of(x.sig.attrs)?, x.dims(0)?);
    let extents: Vec<f64> = plan.axes.iter().map(|a| dims[*a] as f64).collect();
    let ratio = |k: usize| plan.sizes[k] as f64 / extents[k];
    let by_size = (0..extents.len()).all(|k| (plan.scales[k] / ratio(k) - 1.0).abs() < 1e-6);
    let lands = |k: usize| (extents[k] * f64::from(plan.scales[k] as f32)).floor() == plan.sizes[k] as f64;
    if !by_size && !(0..extents.len()).all(lands) {
        return Err(OpError::unsupported(
            "a resize whose scales do not give its sizes, which ONNX does not have",
        ));
    }
    let mode = a.str_or("mode", "nearest")?;
    let mut attrs = Attrs::new()
        .with("mode", mode)
        .with("coordinate_transformation_mode", a.str_or("coordinates", "half_pixel")?)
        .with("axes", a.ints("axes")?);
    if mode == "nearest" {
        let nearest = match a.str_or("nearest_mode", "round_prefer_floor")? {
            // Opset 10: up when shrinking, down otherwise.
            "simple" if plan.scales.iter().all(|s| *s >= 1.0) => "floor",
            "simple" if plan.scales.iter().all(|s| *s <= 1.0) => "ceil",
            "simple" => {
                return Err(OpError::unsupported(
                    "nearest elements of opset 10 that shrink one axis and stretch another",
                ));
            }
            mode => mode,
        };
        attrs = attrs.with("nearest_mode", nearest);
    } else {
        for name in ["exclude_outside", "antialias"] {
            attrs = attrs.with(name, a.int_or(name, 0)?);
        }
        attrs = attrs.with("cubic_coeff_a", a.float_or("cubic_coeff_a", -0.75)?);
    }
    let mut roi = None;
    if let Some(r) = a.opt_floats("roi")? {
        roi = Some(x.tensor(DType::F32, &[r.len()], r)?);
        attrs = attrs.with("extrapolation_value", plan.extrapolation);
    }
    let sizes = x.ints(a.ints("sizes")?);
    let inputs = if by_size {
        vec![Some(x.input(0)?), roi, None, Some(sizes)]
    } else {
        vec![Some(x.input(0)?), roi, Some(x.tensor(DType::F32, &[plan.scales.len()], &plan.scales)?)]
    };
    x.same_of("Resize", &inputs, attrs)
}
