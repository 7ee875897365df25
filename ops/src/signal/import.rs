//! ONNX's DFT and STFT, and the tables that become constants.

use super::{dft, frame, tables};
use crate::{
    OpError,
    movement::slice::slice_axis,
    onnx::{ImportCx, normalize_axis, onnx_dtype},
};
use graph::{DType, Literal, Shape, ValueId};

/// Most elements of a window or a filter bank that becomes a constant.
const MOST: i64 = 1 << 22;

/// DFT: the axis is an attribute until opset 19 and an input since 20.
pub(super) fn dft(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let shape = cx.ty(0)?.shape;
    let axis =
        if cx.opset < 20 { cx.attrs.int_or("axis", 1)? } else { one_int(cx, 2, "the axis")?.unwrap_or(-2) };
    let axis = normalize_axis(axis, shape.rank())?;
    let (inverse, half) = (cx.attrs.int_or("inverse", 0)? != 0, cx.attrs.int_or("onesided", 0)? != 0);
    let dim = &shape.0[axis];
    let n =
        dim.as_const().ok_or_else(|| OpError::Dynamic(format!("the extent {dim} that is transformed")))?;
    let default = if inverse && half { (n - 1).saturating_mul(2) } else { n };
    let length = one_int(cx, 1, "the length of the transform")?.unwrap_or(default);
    let mut x = cx.input(0)?;
    let mut attrs = dft::attrs(axis as i64, length, if half && !inverse { length / 2 + 1 } else { length });
    if inverse {
        attrs = attrs.with("inverse", true).with("scale", 1.0 / length as f64);
    }
    if inverse && half {
        x = whole_spectrum(cx, x, axis, length)?;
        attrs = attrs.with("real", true);
    }
    let y = cx.b.op("Dft", attrs, &[x])?;
    cx.set(0, y);
    Ok(())
}

/// Half a spectrum, each element that stands for two doubled: the real part of its transform is that of the whole.
fn whole_spectrum(
    cx: &mut ImportCx<'_, '_>,
    mut x: ValueId,
    axis: usize,
    length: i64,
) -> Result<ValueId, OpError> {
    let ty = cx.b.ty(x).clone();
    let n = ty.shape.0[axis].as_const().unwrap_or(0);
    let used = n.min(length / 2 + 1);
    if used < n {
        x = slice_axis(cx.b, x, axis, 0, used)?;
    }
    if used > MOST {
        return Err(OpError::unsupported(format!("a spectrum of {used} elements")));
    }
    let mut weights = vec![2.0; used.max(0) as usize];
    for (k, w) in weights.iter_mut().enumerate() {
        if k == 0 || 2 * k as i64 == length {
            *w = 1.0;
        }
    }
    let mut shape = vec![1u64; ty.shape.rank()];
    shape[axis] = weights.len() as u64;
    let weights = cx.b.constant(table(ty.dtype, shape, &weights)?);
    cx.b.call("Mul", &[x, weights])
}

/// STFT: frames, times the window, transformed.
pub(super) fn stft(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let mut x = cx.input(0)?;
    let ty = cx.ty(0)?;
    if ty.shape.rank() == 2 {
        let dims = ty.shape.0.iter().cloned().chain([1usize.into()]).collect();
        x = cx.b.reshape(x, &Shape(dims))?;
    }
    let step =
        one_int(cx, 1, "the frame step")?.ok_or_else(|| OpError::invalid("the frame step is missing"))?;
    let window = match cx.opt_input(2) {
        None => None,
        Some(w) => match &crate::fixed(&cx.b.ty(w).shape, "the shape of the window")?[..] {
            [n] => Some((w, *n as i64)),
            _ => return Err(OpError::invalid("the window must have 1 axis")),
        },
    };
    let length = match (one_int(cx, 3, "the frame length")?, window) {
        (Some(n), Some((_, w))) if n != w => {
            return Err(OpError::invalid(format!("the window has {w} elements, a frame {n}")));
        }
        (Some(n), _) | (None, Some((_, n))) => n,
        (None, None) => {
            let dim = cx.b.ty(x).shape.0.get(1).cloned().unwrap_or_else(|| 0usize.into());
            dim.as_const().ok_or_else(|| OpError::Dynamic(format!("the length {dim} of the signal")))?
        }
    };
    let mut y = cx.b.op("Frame", frame::attrs(length, step), &[x])?;
    if let Some((w, n)) = window {
        let w = cx.b.reshape(w, &Shape::from(&[n as usize, 1][..]))?;
        y = cx.b.call("Mul", &[y, w])?;
    }
    let half = cx.attrs.int_or("onesided", 1)? != 0;
    let y = cx.b.op("Dft", dft::attrs(2, length, if half { length / 2 + 1 } else { length }), &[y])?;
    cx.set(0, y);
    Ok(())
}

pub(super) fn hann(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    window(cx, &[0.5, 0.5])
}

pub(super) fn hamming(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    window(cx, &[25.0 / 46.0, 21.0 / 46.0])
}

pub(super) fn blackman(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    window(cx, &[0.42, 0.5, 0.08])
}

fn window(cx: &mut ImportCx<'_, '_>, coefficients: &[f64]) -> Result<(), OpError> {
    let size =
        one_int(cx, 0, "the size of the window")?.ok_or_else(|| OpError::invalid("the size is missing"))?;
    let size = extent(size, "a window")?;
    let values = tables::window(size, cx.attrs.int_or("periodic", 1)? != 0, coefficients);
    let dtype = onnx_dtype(cx.attrs.int_or("output_datatype", 1)?)?;
    let v = cx.b.constant(table(dtype, vec![size as u64], &values)?);
    cx.set(0, v);
    Ok(())
}

/// MelWeightMatrix of known parameters.
pub(super) fn mel_weights(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let mut numbers = [0.0; 5];
    let names = [
        "the number of bands",
        "the length of the transform",
        "the sample rate",
        "the lower edge",
        "the upper edge",
    ];
    for (i, (number, name)) in numbers.iter_mut().zip(names).enumerate() {
        let l = cx.opt_literal(i, name)?.ok_or_else(|| OpError::invalid(format!("{name} is missing")))?;
        match l.to_floats()[..] {
            [x] if x.is_finite() => *number = x,
            _ => return Err(OpError::invalid(format!("{name} must be one number"))),
        }
    }
    let [bands, length, rate, low, high] = numbers;
    if rate <= 0.0 || low < 0.0 || high < low {
        return Err(OpError::invalid(format!("a mel scale from {low} to {high} Hz at a rate of {rate}")));
    }
    let (bands, length) = (extent(bands as i64, "the bands")?, extent(length as i64, "a transform")?);
    let shape = vec![(length / 2 + 1) as u64, bands as u64];
    extent((shape[0] * shape[1]) as i64, "a filter bank")?;
    let dtype = onnx_dtype(cx.attrs.int_or("output_datatype", 1)?)?;
    let values = tables::mel(bands, length, rate, low, high);
    let v = cx.b.constant(table(dtype, shape, &values)?);
    cx.set(0, v);
    Ok(())
}

fn extent(n: i64, what: &str) -> Result<usize, OpError> {
    match usize::try_from(n) {
        Ok(size) if n <= MOST => Ok(size),
        Ok(_) => Err(OpError::unsupported(format!("{what} of {n} elements"))),
        Err(_) => Err(OpError::invalid(format!("{what} of {n} elements"))),
    }
}

fn one_int(cx: &ImportCx<'_, '_>, i: usize, what: &str) -> Result<Option<i64>, OpError> {
    match cx.opt_ints(i, what)?.as_deref() {
        None => Ok(None),
        Some([n]) => Ok(Some(*n)),
        Some(_) => Err(OpError::invalid(format!("{what} must be one integer"))),
    }
}

fn table(dtype: DType, shape: Vec<u64>, values: &[f64]) -> Result<Literal, OpError> {
    let bytes: Vec<u8> = values.iter().flat_map(|v| Literal::scalar(dtype, *v).bytes().to_vec()).collect();
    Literal::new(dtype, shape, bytes).map_err(|e| OpError::invalid(e.to_string()))
}
