//! How random ONNX operators are read.

use crate::{
    OpError,
    onnx::{DropoutMode, ImportCx, onnx_dtype},
};
use graph::{Attrs, DType, InputRole, Shape, TensorType, ValueId};

/// Seed and step of the program, made on first use.
fn counters(cx: &mut ImportCx<'_, '_>) -> [ValueId; 2] {
    [(InputRole::Seed, "seed"), (InputRole::Step, "step")].map(|(role, name)| {
        if let Some(v) = cx.b.graph().input_with_role(role) {
            return v;
        }
        let name = cx.b.unique(name);
        let ty = TensorType { dtype: DType::I64, shape: Shape::scalar() };
        cx.b.graph_mut().add_input(name, ty, role)
    })
}

/// A number for the node being read that no other random node of the program has: from its name, so that changes elsewhere in the model
/// leave its random numbers alone.
fn fresh_id(cx: &ImportCx<'_, '_>) -> i64 {
    // FNV-1a.
    let mut hash =
        cx.b.scope().bytes().fold(0x811C_9DC5u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    let taken = |id: u32| cx.b.graph().nodes.iter().any(|n| n.attrs.int_or("id", -1) == Ok(i64::from(id)));
    while taken(hash) {
        hash = hash.wrapping_add(1);
    }
    i64::from(hash)
}

/// Dropout of all opsets.
pub(super) fn dropout(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let (x, ty) = (cx.input(0)?, cx.ty(0)?);
    let mask = cx.used.get(1) == Some(&true);
    let on = match (cx.options.training, cx.options.dropout) {
        (false, _) | (true, DropoutMode::Off) => false,
        (true, DropoutMode::On) => true,
        (true, DropoutMode::Auto) => {
            let told = cx.opset < 12 || in_training_mode(cx)?;
            if !told {
                let text = "Dropout was exported for inference and does nothing; --dropout on brings it back, \
                            --dropout off says that this is meant";
                cx.remark("dropout", text);
            }
            told
        }
    };
    let ratio = if on { cx.float_attr_or_input("ratio", 1)?.unwrap_or(0.5) } else { 0.0 };
    if ratio == 0.0 {
        cx.set(0, x);
        if mask {
            let yes = cx.b.scalar(DType::Bool, 1.0);
            let all = cx.b.expand(yes, &ty.shape)?;
            cx.set(1, all);
        }
        return Ok(());
    }
    let attrs = Attrs::new().with("ratio", ratio).with("id", fresh_id(cx));
    let [seed, step] = counters(cx);
    let y = cx.b.op("Dropout", attrs.clone(), &[x, seed, step])?;
    cx.set(0, y);
    if mask {
        let attrs = attrs.with("shape", dims(&ty.shape)?);
        let kept = cx.b.op("DropoutMask", attrs, &[seed, step])?;
        cx.set(1, kept);
    }
    Ok(())
}

/// Input 2 of newer opsets, false if left out.
fn in_training_mode(cx: &ImportCx<'_, '_>) -> Result<bool, OpError> {
    match cx.opt_literal(2, "training_mode")? {
        None => Ok(false),
        Some(l) => Ok(l.to_floats().first().is_some_and(|v| *v != 0.0)),
    }
}

fn dims(shape: &Shape) -> Result<Vec<i64>, OpError> {
    Ok(crate::fixed(shape, "the shape")?.into_iter().map(|d| d as i64).collect())
}

/// Attributes that name shape, dtype and node, for an operator that gives the shape or takes it from an input.
fn like(cx: &ImportCx<'_, '_>) -> Result<Attrs, OpError> {
    let (shape, dtype) = match cx.opt_input(0) {
        Some(v) => {
            let t = cx.b.ty(v);
            (dims(&t.shape)?, if t.dtype.is_float() { t.dtype } else { DType::F32 })
        }
        None => (cx.attrs.ints("shape")?.to_vec(), DType::F32),
    };
    let dtype = if cx.attrs.get("dtype").is_some() { onnx_dtype(cx.attrs.int("dtype")?)? } else { dtype };
    Ok(Attrs::new().with("shape", shape).with("dtype", dtype).with("id", fresh_id(cx)))
}

fn generate(cx: &mut ImportCx<'_, '_>, op: &str, numbers: [(&str, f64); 2]) -> Result<(), OpError> {
    let mut attrs = like(cx)?;
    for (name, default) in numbers {
        attrs = attrs.with(name, cx.attrs.float_or(name, default)?);
    }
    // Half precision is rounded from float32.
    let to = attrs.dtype("dtype")?;
    if matches!(to, DType::F16 | DType::BF16) {
        attrs = attrs.with("dtype", DType::F32);
    }
    let inputs = counters(cx);
    let y = cx.b.op(op, attrs, &inputs)?;
    let y = cx.b.cast(y, to)?;
    cx.set(0, y);
    Ok(())
}

/// RandomUniform and RandomUniformLike.
pub(super) fn uniform(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    generate(cx, "RandomUniform", [("low", 0.0), ("high", 1.0)])
}

/// RandomNormal and RandomNormalLike.
pub(super) fn normal(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    generate(cx, "RandomNormal", [("mean", 0.0), ("scale", 1.0)])
}

fn sample(cx: &mut ImportCx<'_, '_>, op: &str, attrs: Attrs) -> Result<(), OpError> {
    let attrs = attrs.with("id", fresh_id(cx));
    let [seed, step] = counters(cx);
    let x = cx.input(0)?;
    let y = cx.b.op(op, attrs, &[x, seed, step])?;
    cx.set(0, y);
    Ok(())
}

/// Bernoulli; the output has the input's type unless told otherwise.
pub(super) fn bernoulli(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let own = cx.ty(0)?.dtype;
    let dtype = if cx.attrs.get("dtype").is_some() { onnx_dtype(cx.attrs.int("dtype")?)? } else { own };
    sample(cx, "Bernoulli", Attrs::new().with("dtype", dtype))
}

/// Multinomial; int32 unless told otherwise.
pub(super) fn multinomial(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let dtype =
        if cx.attrs.get("dtype").is_some() { onnx_dtype(cx.attrs.int("dtype")?)? } else { DType::I32 };
    let samples = cx.attrs.int_or("sample_size", 1)?;
    sample(cx, "Multinomial", Attrs::new().with("dtype", dtype).with("samples", samples))
}
