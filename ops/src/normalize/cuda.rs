//! CUDA launches of normalisations.

use super::{batchnorm::eps, channels::Channels, layer::rows_of};
use crate::{
    OpError, Signature,
    cuda::launch::{block_of, wide_size},
    cuda::{Arg, Builder, Kernels, Plan, source},
};

fn index(v: usize) -> Arg {
    Arg::Index(v as i64)
}

fn given(s: &Signature<'_>, i: usize) -> Arg {
    if s.opt_input(i).is_some() { Arg::Input(i) } else { Arg::Null }
}

fn batch(s: &Signature<'_>, main: usize) -> Result<(Builder, Channels), OpError> {
    let mut b = Builder::new(s, source!("normalize/batchnorm.cu"))?;
    b.types(s.input(main)?.dtype, "STAT", s.input(1)?.dtype);
    Ok((b, Channels::new(&s.dims(main)?)))
}

/// A block for each channel.
fn by_channel(
    mut b: Builder,
    d: Channels,
    entry: &'static str,
    mut args: Vec<Arg>,
    last: Vec<Arg>,
) -> Result<Kernels, OpError> {
    args.extend([d.n, d.c, d.s].map(index));
    args.extend(last);
    b.launch(entry, d.c.min(1 << 20) as u64, block_of(d.count() as u64), args)?;
    Ok(b.done())
}

/// A thread for each element.
fn by_element(
    mut b: Builder,
    d: Channels,
    entry: &'static str,
    mut args: Vec<Arg>,
    last: Arg,
) -> Result<Kernels, OpError> {
    let n = d.n * d.c * d.s;
    args.extend([n, d.c, d.s].map(index));
    args.push(last);
    b.over(entry, n as u64, args)?;
    Ok(b.done())
}

fn train(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (b, d) = batch(s, 0)?;
    let args = (0..3).map(Arg::Input).chain((0..4).map(Arg::Output)).collect();
    by_channel(b, d, "train", args, vec![Arg::F64(eps(s.attrs)?)])
}

fn train_gradient(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (b, d) = batch(s, 0)?;
    let args = (0..8).map(|i| given(s, i)).chain((0..3).map(Arg::Output)).collect();
    by_channel(b, d, "train_gradient", args, vec![])
}

fn infer(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (b, d) = batch(s, 0)?;
    let args = (0..5).map(Arg::Input).chain([Arg::Output(0)]).collect();
    by_element(b, d, "infer", args, Arg::F64(eps(s.attrs)?))
}

fn infer_gradient(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (b, d) = batch(s, 4)?;
    let e = Arg::F64(eps(s.attrs)?);
    if s.opt_input(0).is_none() {
        let args = vec![Arg::Input(1), Arg::Input(3), Arg::Input(4), Arg::Output(0)];
        return by_element(b, d, "infer_gradient_x", args, e);
    }
    let args = (0..5).map(Arg::Input).chain((0..5).map(Arg::Output)).collect();
    by_channel(b, d, "infer_gradient", args, vec![e])
}

fn rows(s: &Signature<'_>, centred: bool) -> Result<Builder, OpError> {
    let mut b = Builder::new(s, source!("normalize/rows.cu"))?;
    b.types(s.input(0)?.dtype, "STAT", s.input(1)?.dtype).define("CENTRED", i32::from(centred));
    Ok(b)
}

fn forward(s: &Signature<'_>, centred: bool) -> Result<Kernels, OpError> {
    let (mut b, d) = (rows(s, centred)?, rows_of(s)?);
    let statistics = if centred { [Arg::Output(1), Arg::Output(2)] } else { [Arg::Null, Arg::Output(1)] };
    let mut args = vec![Arg::Input(0), Arg::Input(1), given(s, 2), Arg::Output(0)];
    args.extend(statistics);
    args.extend([index(d.rows), index(d.len), Arg::F64(eps(s.attrs)?)]);
    b.launch("forward", d.rows.min(1 << 20) as u64, block_of(d.len as u64), args)?;
    Ok(b.done())
}

fn backward(s: &Signature<'_>, centred: bool) -> Result<Kernels, OpError> {
    let (mut b, d) = (rows(s, centred)?, rows_of(s)?);
    // Inputs: x, scale, the mean if centred, 1 / deviation, dy, cotangents of the statistics.
    let shift = usize::from(centred);
    let (mean, inverse, dy) =
        (if centred { Arg::Input(2) } else { Arg::Null }, Arg::Input(2 + shift), Arg::Input(3 + shift));
    let d_mean = if centred { given(s, 5) } else { Arg::Null };
    let d_inverse = given(s, 4 + 2 * shift);
    let chunk = d.rows.div_ceil(64).max(16);
    let chunks = d.rows.div_ceil(chunk);
    let partial = b.workspace((chunks * d.len * (1 + shift)) as u64 * wide_size(s.input(0)?.dtype));
    let mut args = vec![Arg::Input(0), mean.clone(), inverse.clone(), dy.clone(), partial.clone()];
    args.extend([d.rows, d.len, chunk, chunks].map(index));
    b.over("columns", (chunks * d.len) as u64, args)?;
    let d_bias = if centred { Arg::Output(2) } else { Arg::Null };
    b.over("combine", d.len as u64, vec![partial, Arg::Output(1), d_bias, index(d.len), index(chunks)])?;
    let mut args = vec![Arg::Input(0), Arg::Input(1), mean, inverse, dy, d_mean, d_inverse, Arg::Output(0)];
    args.extend([index(d.rows), index(d.len)]);
    b.launch("backward", d.rows.min(1 << 20) as u64, block_of(d.len as u64), args)?;
    Ok(b.done())
}

/// Names and launches of the family.
pub(crate) const KERNELS: &[(&str, Plan)] = &[
    ("BatchNormTraining", train),
    ("BatchNormGrad", train_gradient),
    ("BatchNormInference", infer),
    ("BatchNormInferenceGrad", infer_gradient),
    ("LayerNormalization", |s| forward(s, true)),
    ("LayerNormalizationGrad", |s| backward(s, true)),
    ("RmsNormalization", |s| forward(s, false)),
    ("RmsNormalizationGrad", |s| backward(s, false)),
];
