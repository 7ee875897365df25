//! ONNX BatchNormalization: which statistics it uses, and how the running ones change.

use crate::{
    OpError,
    onnx::{BatchNormMode, ImportCx},
};
use graph::{Attrs, Dim, Shape, TensorType, ValueDef, ValueId};

/// BatchNormalization of all opsets.
pub(super) fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    if cx.opset < 9 && cx.attrs.int_or("spatial", 1)? == 0 {
        return Err(OpError::unsupported("BatchNormalization with spatial = 0"));
    }
    let out_type = cx.ty(0)?;
    // A tensor of one axis has one channel.
    let mut x = cx.input(0)?;
    if out_type.shape.rank() == 1 {
        let shape = Shape(vec![out_type.shape.0[0].clone(), Dim::constant(1)]);
        x = cx.b.reshape(x, &shape)?;
    }
    let dtype = out_type.dtype;
    let params = [1, 2, 3, 4].map(|i| cx.input(i));
    let [scale, bias, mean, var] = params;
    let (scale, bias, mean, var) = (scale?, bias?, mean?, var?);
    let eps = cx.attrs.float_or("epsilon", 1e-5)?;
    let eps = Attrs::new().with("eps", eps);
    let (scale, bias) = (cx.b.cast(scale, dtype)?, cx.b.cast(bias, dtype)?);
    let y = if trains(cx)? {
        let out = cx.b.emit("BatchNormTraining", eps, &[Some(x), Some(scale), Some(bias)])?;
        let factor = unbiased_factor(cx, &cx.b.ty(x).clone())?;
        running(cx, 1, mean, out[1], 1.0)?;
        running(cx, 2, var, out[2], factor)?;
        if cx.opset < 14 {
            cx.set(3, out[1]);
            cx.set(4, out[2]);
        }
        out[0]
    } else {
        let (m, v) = (cx.b.cast(mean, dtype)?, cx.b.cast(var, dtype)?);
        for (i, v) in [mean, var].into_iter().chain([mean, var]).enumerate().take(cx.used.len().max(1) - 1) {
            cx.set(i + 1, v);
        }
        cx.b.op("BatchNormInference", eps, &[x, scale, bias, m, v])?
    };
    let y = cx.b.reshape(y, &out_type.shape)?;
    cx.set(0, y);
    Ok(())
}

/// Whether the node uses the statistics of the batch.
fn trains(cx: &mut ImportCx<'_, '_>) -> Result<bool, OpError> {
    let in_file = if cx.opset >= 14 {
        cx.attrs.int_or("training_mode", 0)? != 0
    } else if cx.opset < 7 {
        cx.attrs.int_or("is_test", 0)? == 0
    } else {
        cx.used.len() > 1
    };
    if in_file && !cx.options.training {
        let text = "BatchNormalization was exported for training: an inference program takes its running statistics, \
                    not the batch's";
        cx.remark("batchnorm", text);
    }
    Ok(match (cx.options.training, cx.options.batchnorm) {
        (false, _) | (_, BatchNormMode::Frozen) => false,
        (true, BatchNormMode::Train) => true,
        (true, BatchNormMode::Auto) => {
            if !in_file {
                let text = "BatchNormalization was exported for inference: its statistics stay as they are; \
                            --batchnorm train uses those of the batch, --batchnorm frozen says that this is meant";
                cx.remark("batchnorm", text);
            }
            in_file
        }
    })
}

/// What makes a biased variance of the batch the one that the running variance takes in.
fn unbiased_factor(cx: &ImportCx<'_, '_>, x: &TensorType) -> Result<f64, OpError> {
    if !cx.options.unbiased_running_variance {
        return Ok(1.0);
    }
    let mut n = 1i64;
    for (i, d) in x.shape.0.iter().enumerate().filter(|(i, _)| *i != 1) {
        let extent = d.as_const().ok_or_else(|| OpError::Dynamic(format!("extent {d} of axis {i}")))?;
        n = n.saturating_mul(extent);
    }
    if n < 2 {
        let what = format!("training needs more than {n} element a channel for an unbiased variance");
        return Err(OpError::invalid(what));
    }
    Ok(n as f64 / (n - 1) as f64)
}

/// Output `i`: the running statistic after the step.
fn running(
    cx: &mut ImportCx<'_, '_>,
    i: usize,
    old: ValueId,
    batch: ValueId,
    factor: f64,
) -> Result<(), OpError> {
    let momentum = cx.attrs.float_or("momentum", 0.9)?;
    let dtype = cx.b.ty(old).dtype;
    let batch = cx.b.cast(batch, dtype)?;
    if let ValueDef::State(s) = cx.b.graph().value(old).def {
        let attrs = Attrs::new().with("momentum", momentum).with("scale", factor);
        // A layer that runs again goes on from its last update.
        let latest = cx.b.graph().states[s.index()].output.unwrap_or(old);
        let new = cx.b.op("RunningUpdate", attrs, &[latest, batch])?;
        cx.update_statistic(old, new);
        cx.set(i, new);
    } else if cx.used.get(i) == Some(&true) {
        // Not a state: an ordinary value of the program.
        let keep = cx.b.scalar(dtype, momentum);
        let share = cx.b.scalar(dtype, (1.0 - momentum) * factor);
        let (old, batch) = (cx.b.call("Mul", &[old, keep])?, cx.b.call("Mul", &[batch, share])?);
        let new = cx.b.call("Add", &[old, batch])?;
        cx.set(i, new);
    }
    Ok(())
}
