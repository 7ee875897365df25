//! LpPool and GlobalLpPool: p-norms under windows, made of sums of powers.

use super::import_window;
use crate::{OpError, onnx::ImportCx};
use graph::ValueId;

/// The rule of `LpPool`.
pub(super) fn import_windows(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let attrs = import_window(cx)?.with("divide", "nothing");
    let (p, powers) = powers(cx)?;
    let sums = cx.b.op("AveragePool", attrs, &[powers])?;
    root(cx, p, sums)
}

/// The rule of `GlobalLpPool`.
pub(super) fn import_global(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let (p, powers) = powers(cx)?;
    let axes: Vec<i64> = (2..cx.ty(0)?.shape.rank() as i64).collect();
    let sums = cx.b.reduce_sum(powers, &axes, true)?;
    root(cx, p, sums)
}

/// |x|^p.
fn powers(cx: &mut ImportCx<'_, '_>) -> Result<(f64, ValueId), OpError> {
    let (x, p) = (cx.input(0)?, cx.attrs.float_or("p", 2.0)?);
    if p.is_nan() || p <= 0.0 {
        return Err(OpError::invalid(format!("p must be positive, not {p}")));
    }
    let powers = if p == 2.0 {
        cx.b.call("Mul", &[x, x])?
    } else {
        let size = cx.b.call("Abs", &[x])?;
        if p == 1.0 {
            size
        } else {
            let exponent = cx.b.scalar(cx.b.ty(x).dtype, p);
            cx.b.call("Pow", &[size, exponent])?
        }
    };
    Ok((p, powers))
}

/// Sets the output to sums^(1/p).
fn root(cx: &mut ImportCx<'_, '_>, p: f64, sums: ValueId) -> Result<(), OpError> {
    let y = if p == 1.0 {
        sums
    } else if p == 2.0 {
        cx.b.call("Sqrt", &[sums])?
    } else {
        let exponent = cx.b.scalar(cx.b.ty(sums).dtype, 1.0 / p);
        cx.b.call("Pow", &[sums, exponent])?
    };
    cx.set(0, y);
    Ok(())
}
