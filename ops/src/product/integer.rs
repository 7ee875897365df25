//! Quantized operators of ONNX: integers with a scale and a zero point, and products of them.
//!
//! They become canonical operators. Products are exact: sums of 8-bit products are far below what 64-bit floats hold.

use crate::{
    OpError,
    movement::slice::slice_axis,
    onnx::{ImportCx, normalize_axis},
};
use graph::{Attrs, DType, Dim, Shape, TensorType, ValueId};

/// `v`, one number for each `block` elements along `axis` of a tensor like `x`, as one number for each element.
fn by_blocks(
    cx: &mut ImportCx<'_, '_>,
    v: ValueId,
    x: &TensorType,
    axis: i64,
    block: i64,
) -> Result<ValueId, OpError> {
    let (ty, axis) = (cx.b.ty(v).clone(), normalize_axis(axis, x.shape.rank())?);
    let sizes = (x.shape.0[axis].as_const(), ty.shape.0.get(axis).and_then(Dim::as_const));
    let (Some(n), Some(blocks)) = sizes else {
        return Err(OpError::Dynamic("the axis that is cut into blocks".to_owned()));
    };
    let others =
        |s: &Shape| s.0.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, d)| d.clone()).collect();
    let same: (Vec<Dim>, Vec<Dim>) = (others(&x.shape), others(&ty.shape));
    if block < 1 || same.0 != same.1 || blocks != n.saturating_add(block - 1) / block {
        let what = format!("numbers {ty} do not fit blocks of {block} along axis {axis} of {x}");
        return Err(OpError::invalid(what));
    }
    let (mut apart, mut wide, mut all) = (ty.shape.clone(), ty.shape.clone(), ty.shape);
    apart.0.insert(axis + 1, Dim::constant(1));
    wide.0.insert(axis + 1, Dim::constant(block));
    all.0[axis] = Dim::constant(blocks.saturating_mul(block));
    let v = cx.b.reshape(v, &apart)?;
    let v = cx.b.expand(v, &wide)?;
    let v = cx.b.reshape(v, &all)?;
    slice_axis(cx.b, v, axis, 0, n)
}

/// `v` as [`along`] or, where the node has a `block_size`, as [`by_blocks`].
fn scaled(cx: &mut ImportCx<'_, '_>, v: ValueId, x: &TensorType, axis: i64) -> Result<ValueId, OpError> {
    match cx.attrs.int_or("block_size", 0)? {
        0 => along(cx, v, x, axis),
        block => by_blocks(cx, v, x, axis, block),
    }
}

/// `v` along `axis` of a tensor like `x`; scalars and vectors of one element are the same everywhere.
fn along(cx: &mut ImportCx<'_, '_>, v: ValueId, x: &TensorType, axis: i64) -> Result<ValueId, OpError> {
    let ty = cx.b.ty(v).clone();
    match ty.shape.rank() {
        0 => Ok(v),
        1 if ty.shape.elements() == Some(1) => cx.b.reshape(v, &Shape::scalar()),
        1 => {
            let axis = normalize_axis(axis, x.shape.rank())?;
            let mut line = vec![Dim::constant(1); x.shape.rank()];
            line[axis] = ty.shape.0[0].clone();
            cx.b.reshape(v, &Shape(line))
        }
        n => Err(OpError::invalid(format!("scales and zero points have at most one axis, not {n}"))),
    }
}

/// The integers of input `i` less the zero point at input `zero`, as `dtype`.
fn centred(
    cx: &mut ImportCx<'_, '_>,
    (i, zero): (usize, usize),
    axis: i64,
    dtype: DType,
) -> Result<ValueId, OpError> {
    let (x, ty) = (cx.input(i)?, cx.ty(i)?);
    let x = cx.b.cast(x, dtype)?;
    let Some(z) = cx.opt_input(zero) else { return Ok(x) };
    let z = scaled(cx, z, &ty, axis)?;
    let z = cx.b.cast(z, dtype)?;
    cx.b.call("Sub", &[x, z])
}

/// `v` over `scale`, rounded to even, plus the zero point, saturated to the zero point's type.
fn quantized(
    cx: &mut ImportCx<'_, '_>,
    v: ValueId,
    scale: ValueId,
    zero: Option<ValueId>,
    to: DType,
) -> Result<ValueId, OpError> {
    let (low, high) = match to {
        DType::U8 => (0i64, 255i64),
        DType::I8 => (-128, 127),
        DType::U16 => (0, 65_535),
        DType::I16 => (-32_768, 32_767),
        d => return Err(OpError::unsupported(format!("quantization to {d}"))),
    };
    let dtype = cx.b.ty(v).dtype;
    let scale = cx.b.cast(scale, dtype)?;
    let q = cx.b.call("Div", &[v, scale])?;
    let mut q = cx.b.call("Round", &[q])?;
    if let Some(z) = zero {
        let z = cx.b.cast(z, dtype)?;
        q = cx.b.call("Add", &[q, z])?;
    }
    let q = cx.b.op("Clip", Attrs::new().with("min", low as f64).with("max", high as f64), &[q])?;
    cx.b.cast(q, to)
}

/// DequantizeLinear: (x - zero) * scale.
pub(crate) fn dequantize(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let (axis, ty) = (cx.attrs.int_or("axis", 1)?, cx.ty(0)?);
    let (scale, dtype) = (cx.input(1)?, cx.ty(1)?.dtype);
    let x = centred(cx, (0, 2), axis, dtype)?;
    let scale = scaled(cx, scale, &ty, axis)?;
    let y = cx.b.call("Mul", &[x, scale])?;
    cx.set(0, y);
    Ok(())
}

/// QuantizeLinear: x / scale + zero.
pub(crate) fn quantize(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let (axis, x, ty, scale) = (cx.attrs.int_or("axis", 1)?, cx.input(0)?, cx.ty(0)?, cx.input(1)?);
    let to = match (cx.opt_input(2), cx.attrs.int_or("output_dtype", 0)?) {
        (Some(z), _) => cx.b.ty(z).dtype,
        (None, 0) => DType::U8,
        (None, code) => crate::onnx::onnx_dtype(code)?,
    };
    let scale = scaled(cx, scale, &ty, axis)?;
    let zero = cx.opt_input(2).map(|z| scaled(cx, z, &ty, axis)).transpose()?;
    let y = quantized(cx, x, scale, zero, to)?;
    cx.set(0, y);
    Ok(())
}

/// DynamicQuantizeLinear: to u8, scale and zero point from the range of the elements and 0.
pub(crate) fn dynamic_quantize(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let (x, ty) = (cx.input(0)?, cx.ty(0)?);
    let axes: Vec<i64> = (0..ty.shape.rank() as i64).collect();
    let attrs = Attrs::new().with("axes", axes).with("keepdims", false);
    let [nothing, levels] = [0.0, 255.0].map(|v| cx.b.scalar(ty.dtype, v));
    let low = cx.b.op("ReduceMin", attrs.clone(), &[x])?;
    let low = cx.b.call("Min", &[low, nothing])?;
    let high = cx.b.op("ReduceMax", attrs, &[x])?;
    let high = cx.b.call("Max", &[high, nothing])?;
    let range = cx.b.call("Sub", &[high, low])?;
    let scale = cx.b.call("Div", &[range, levels])?;
    let below = cx.b.call("Sub", &[nothing, low])?;
    let zero = quantized(cx, below, scale, None, DType::U8)?;
    let y = quantized(cx, x, scale, Some(zero), DType::U8)?;
    for (i, v) in [y, scale, zero].into_iter().enumerate() {
        cx.set(i, v);
    }
    Ok(())
}

/// MatMulInteger: the product of the differences from the zero points, in 32 bits.
pub(crate) fn matmul(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let y = integer_product(cx, [(0, 2), (1, 3)])?;
    let y = cx.b.cast(y, DType::I32)?;
    cx.set(0, y);
    Ok(())
}

/// QLinearMatMul: as [`matmul`], with scales, quantized again.
pub(crate) fn quantized_matmul(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let y = integer_product(cx, [(0, 2), (3, 5)])?;
    for i in [1, 4, 6] {
        if cx.ty(i)?.shape.elements() != Some(1) {
            return Err(OpError::unsupported("a scale for each row or column"));
        }
    }
    rescaled(cx, y, [1, 4, 6, 7])
}

/// Rows of the left side and columns of the right one have zero points; the result is in 64-bit floats.
fn integer_product(cx: &mut ImportCx<'_, '_>, sides: [(usize, usize); 2]) -> Result<ValueId, OpError> {
    let a = centred(cx, sides[0], -2, DType::F64)?;
    let b = centred(cx, sides[1], -1, DType::F64)?;
    if cx.b.ty(a).shape.rank() < 2 || cx.b.ty(b).shape.rank() < 2 {
        return Err(OpError::unsupported("an integer product with a vector"));
    }
    cx.b.matmul(a, b, false, false)
}

/// ConvInteger: the convolution of the differences from the zero points, in 32 bits.
pub(crate) fn conv(cx: &mut ImportCx<'_, '_>, attrs: Attrs) -> Result<(), OpError> {
    let x = centred(cx, (0, 2), 1, DType::F64)?;
    let w = centred(cx, (1, 3), 0, DType::F64)?;
    let y = cx.b.op("Conv", attrs, &[x, w])?;
    let y = cx.b.cast(y, DType::I32)?;
    cx.set(0, y);
    Ok(())
}

/// QLinearConv: as [`conv`], with a bias and scales, quantized again.
pub(crate) fn quantized_conv(cx: &mut ImportCx<'_, '_>, attrs: Attrs) -> Result<(), OpError> {
    let x = centred(cx, (0, 2), 1, DType::F64)?;
    let w = centred(cx, (3, 5), 0, DType::F64)?;
    let mut inputs = vec![x, w];
    if let Some(bias) = cx.opt_input(8) {
        inputs.push(cx.b.cast(bias, DType::F64)?);
    }
    let y = cx.b.op("Conv", attrs, &inputs)?;
    rescaled(cx, y, [1, 4, 6, 7])
}

/// `v` by the scales at two inputs, quantized by the scale and zero point at two others.
fn rescaled(cx: &mut ImportCx<'_, '_>, v: ValueId, [a, b, y, zero]: [usize; 4]) -> Result<(), OpError> {
    let ty = cx.b.ty(v).clone();
    let scale = |cx: &mut ImportCx<'_, '_>, i: usize| {
        let s = cx.input(i)?;
        let s = along(cx, s, &ty, 1)?;
        cx.b.cast(s, DType::F64)
    };
    let (a, b, y) = (scale(cx, a)?, scale(cx, b)?, scale(cx, y)?);
    let both = cx.b.call("Mul", &[a, b])?;
    let real = cx.b.call("Mul", &[v, both])?;
    let zero = cx.input(zero)?;
    let to = cx.b.ty(zero).dtype;
    let zero = along(cx, zero, &ty, 1)?;
    let q = quantized(cx, real, y, Some(zero), to)?;
    cx.set(0, q);
    Ok(())
}
