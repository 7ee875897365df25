//! CUDA launches of softmax and losses.

use super::{along::Along, labels::Reduction};
use crate::{
    OpError, Signature,
    cuda::launch::{block_of, wide_size},
    cuda::{Arg, BLOCK, Builder, Kernels, Plan, dtype_name, source},
};

fn index(v: usize) -> Arg {
    Arg::Index(v as i64)
}

fn given(s: &Signature<'_>, i: usize) -> Arg {
    if s.opt_input(i).is_some() { Arg::Input(i) } else { Arg::Null }
}

fn softmax(s: &Signature<'_>, entry: &'static str, logarithm: bool) -> Result<Kernels, OpError> {
    let a = Along::of(s)?;
    let lines = if a.n == 0 { 0 } else { a.outer * a.inner };
    let mut b = Builder::new(s, source!("loss/softmax.cu"))?;
    b.types(s.input(0)?.dtype, "OUT", s.output(0)?.dtype);
    let mut args: Vec<Arg> = (0..s.inputs.len()).map(Arg::Input).chain([Arg::Output(0)]).collect();
    args.extend([lines, a.n, a.inner].map(index));
    args.push(Arg::I32(logarithm.into()));
    b.launch(entry, lines.min(1 << 20) as u64, block_of(a.n as u64), args)?;
    Ok(b.done())
}

/// Whether a label is ignored, and which.
fn ignored(s: &Signature<'_>) -> Result<[Arg; 2], OpError> {
    let i = s.attrs.opt_int("ignore_index")?;
    Ok([Arg::I32(i.is_some().into()), Arg::I64(i.unwrap_or(0))])
}

/// A loss over labels; `lse` says whether it also gives the log-sum-exp of each row.
fn loss(s: &Signature<'_>, lse: bool) -> Result<Kernels, OpError> {
    let a = Along::new(&s.dims(0)?, 1);
    let (lines, dtype) = (a.outer * a.inner, s.input(0)?.dtype);
    let kind = Reduction::of(s.attrs)?;
    let mut b = Builder::new(s, source!("loss/labels.cu"))?;
    b.define("T", dtype_name(dtype)).define("L", dtype_name(s.input(1)?.dtype));
    let each = kind == Reduction::None;
    let rows = if each { Arg::Null } else { b.workspace(lines as u64 * 2 * wide_size(dtype)) };
    let mut args = vec![Arg::Input(0), Arg::Input(1), given(s, 2), Arg::Output(0)];
    if lse {
        args.push(Arg::Output(1));
    }
    args.push(rows.clone());
    args.extend([lines, a.n, a.inner].map(index));
    args.push(Arg::I32(each.into()));
    args.extend(ignored(s)?);
    args.extend([Arg::Status, Arg::Call]);
    if lse {
        b.launch("cross_entropy", lines.min(1 << 20) as u64, block_of(a.n as u64), args)?;
    } else {
        b.over("likelihood", lines as u64, args)?;
    }
    if !each {
        let mean = Arg::I32((kind == Reduction::Mean).into());
        b.launch("total", 1, BLOCK, vec![rows, Arg::Output(0), index(lines), mean])?;
    }
    Ok(b.done())
}

/// The gradient of a loss over labels along `a`; inputs by number: labels, dy, class weights.
fn gradient(
    s: &Signature<'_>,
    a: Along,
    [labels, dy, weights]: [usize; 3],
    cross_entropy: bool,
) -> Result<Kernels, OpError> {
    let (lines, dtype) = (a.outer * a.inner, s.output(0)?.dtype);
    let kind = Reduction::of(s.attrs)?;
    let mut b = Builder::new(s, source!("loss/labels.cu"))?;
    b.define("T", dtype_name(dtype)).define("L", dtype_name(s.input(labels)?.dtype));
    let total = if kind == Reduction::Mean { b.workspace(wide_size(dtype)) } else { Arg::Null };
    if kind == Reduction::Mean {
        let mut args = vec![Arg::Input(labels), given(s, weights), total.clone(), index(lines), index(a.n)];
        args.extend(ignored(s)?);
        b.launch("weights_total", 1, BLOCK, args)?;
    }
    let kind = Arg::I32(match kind {
        Reduction::None => 0,
        Reduction::Mean => 1,
        Reduction::Sum => 2,
    });
    let mut args = if cross_entropy {
        vec![Arg::Input(0), Arg::Input(1), Arg::Input(2), given(s, dy), given(s, weights), given(s, 5), total]
    } else {
        vec![Arg::Input(labels), Arg::Input(dy), given(s, weights), total]
    };
    args.push(Arg::Output(0));
    args.extend([lines, a.n, a.inner].map(index));
    args.push(kind);
    args.extend(ignored(s)?);
    if cross_entropy {
        let blocks = if a.n == 0 { 0 } else { lines.min(1 << 20) as u64 };
        b.launch("cross_entropy_gradient", blocks, block_of(a.n as u64), args)?;
    } else {
        b.over("likelihood_gradient", (lines * a.n) as u64, args)?;
    }
    Ok(b.done())
}

fn mean(s: &Signature<'_>, f: &str) -> Result<Kernels, OpError> {
    let (n, dtype): (usize, _) = (s.dims(0)?.iter().product(), s.input(0)?.dtype);
    let mut b = Builder::new(s, source!("loss/pointwise.cu"))?;
    b.define("T", dtype_name(dtype)).define("F", f);
    let slice = n.div_ceil(1024).max(2048);
    let slices = n.div_ceil(slice);
    let sums = b.workspace(slices as u64 * wide_size(dtype));
    b.launch(
        "partial",
        slices as u64,
        BLOCK,
        vec![Arg::Input(0), Arg::Input(1), sums.clone(), index(n), index(slice)],
    )?;
    b.launch("mean", 1, BLOCK, vec![sums, Arg::Output(0), index(n), index(slices)])?;
    Ok(b.done())
}

fn mean_gradient(s: &Signature<'_>, f: &str) -> Result<Kernels, OpError> {
    let n: usize = s.dims(0)?.iter().product();
    let mut b = Builder::new(s, source!("loss/pointwise.cu"))?;
    b.define("T", dtype_name(s.input(0)?.dtype)).define("F", f);
    let args = vec![Arg::Input(0), Arg::Input(1), Arg::Input(2), Arg::Output(0), index(n)];
    b.over("gradient", n as u64, args)?;
    Ok(b.done())
}

/// Names and launches of the family.
pub(crate) const KERNELS: &[(&str, Plan)] = &[
    ("Softmax", |s| softmax(s, "softmax", false)),
    ("LogSoftmax", |s| softmax(s, "softmax", true)),
    ("SoftmaxGrad", |s| softmax(s, "gradient", false)),
    ("LogSoftmaxGrad", |s| softmax(s, "gradient", true)),
    ("SoftmaxCrossEntropyLoss", |s| loss(s, true)),
    ("NegativeLogLikelihoodLoss", |s| loss(s, false)),
    ("SoftmaxCrossEntropyGrad", |s| gradient(s, Along::new(&s.dims(0)?, 1), [1, 3, 4], true)),
    ("NegativeLogLikelihoodGrad", |s| gradient(s, Along::new(&s.out_dims(0)?, 1), [0, 1, 2], false)),
    ("MseLoss", |s| mean(s, "Mse")),
    ("MseLossGrad", |s| mean_gradient(s, "Mse")),
    ("BceWithLogitsLoss", |s| mean(s, "BceWithLogits")),
    ("BceWithLogitsLossGrad", |s| mean_gradient(s, "BceWithLogits")),
    ("BceLoss", |s| mean(s, "Bce")),
    ("BceLossGrad", |s| mean_gradient(s, "Bce")),
];
