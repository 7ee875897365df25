//! CUDA launches of state updates and of what they ask of all gradients.

use super::running::parts;
use crate::{
    OpError, Signature,
    cuda::{Arg, BLOCK, Builder, Kernels, Plan, dtype_name, source},
};
use graph::DType;

fn given(s: &Signature<'_>, i: usize) -> Arg {
    if s.opt_input(i).is_some() { Arg::Input(i) } else { Arg::Null }
}

fn builder(s: &Signature<'_>, dtype: DType) -> Result<Builder, OpError> {
    let mut b = Builder::new(s, source!("optimizer/optimizer.cu"))?;
    b.define("T", dtype_name(dtype));
    Ok(b)
}

/// A kernel over the elements of input 0: inputs in order, outputs, their number, `last`, the status.
fn update(
    s: &Signature<'_>,
    entry: &'static str,
    inputs: usize,
    outputs: Vec<Arg>,
    last: Vec<Arg>,
) -> Result<Kernels, OpError> {
    let n: usize = s.dims(0)?.iter().product();
    let mut b = builder(s, s.input(0)?.dtype)?;
    let mut args: Vec<Arg> = (0..inputs).map(|i| given(s, i)).collect();
    args.extend(outputs);
    args.push(Arg::Index(n as i64));
    args.extend(last);
    args.push(Arg::Status);
    b.over(entry, n as u64, args)?;
    Ok(b.done())
}

fn adam(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let float = |name, or| s.attrs.float_or(name, or).map(Arg::F64);
    let rule = vec![
        float("beta1", 0.9)?,
        float("beta2", 0.999)?,
        float("eps", 1e-8)?,
        float("weight_decay", 0.0)?,
        Arg::I32((s.attrs.int_or("decoupled", 0)? != 0).into()),
    ];
    update(s, "adam", 8, (0..3).map(Arg::Output).collect(), rule)
}

fn sgd(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let float = |name| s.attrs.float_or(name, 0.0);
    let rule = vec![
        Arg::F64(float("momentum")?),
        Arg::F64(1.0 - float("dampening")?),
        Arg::F64(float("weight_decay")?),
        Arg::I32((s.attrs.int_or("nesterov", 0)? != 0).into()),
    ];
    let buffer = if s.opt_input(3).is_some() { Arg::Output(1) } else { Arg::Null };
    update(s, "sgd", 6, vec![Arg::Output(0), buffer], rule)
}

fn running(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let momentum = s.attrs.float_or("momentum", 0.9)?;
    let share = (1.0 - momentum) * s.attrs.float_or("scale", 1.0)?;
    let rule = vec![Arg::F64(momentum.powi(parts(s)?)), Arg::F64(momentum), Arg::F64(share)];
    update(s, "running", 4, vec![Arg::Output(0)], rule)
}

fn zeros(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let n = s.output(0)?.bytes().ok_or_else(|| OpError::Dynamic("the size of the accumulator".into()))?;
    let mut b = Builder::new(s, source!("movement/copy.cu"))?;
    b.define("T", "u8");
    b.over("fill", n, vec![Arg::Output(0), Arg::Index(n as i64), Arg::U64(0)])?;
    Ok(b.done())
}

fn finite(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let mut b = Builder::new(s, source!("movement/copy.cu"))?;
    b.define("T", "u32");
    b.over("fill", 1, vec![Arg::Output(0), Arg::Index(1), Arg::U64(u64::from(1f32.to_bits()))])?;
    for (i, t) in s.inputs.iter().enumerate() {
        let Some(t) = t else { continue };
        let n: usize = s.dims(i)?.iter().product();
        b.source(source!("optimizer/optimizer.cu")).define("T", dtype_name(t.dtype));
        b.over("finite", n as u64, vec![Arg::Input(i), Arg::Output(0), Arg::Index(n as i64)])?;
    }
    Ok(b.done())
}

fn squares(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let n: usize = s.dims(0)?.iter().product();
    let mut b = builder(s, s.input(0)?.dtype)?;
    let slice = n.div_ceil(1024).max(2048);
    let slices = n.div_ceil(slice);
    let sums = b.workspace(slices as u64 * 8);
    let index = |v: usize| Arg::Index(v as i64);
    b.launch("squares", slices as u64, BLOCK, vec![Arg::Input(0), sums.clone(), index(n), index(slice)])?;
    b.launch("squares_total", 1, BLOCK, vec![sums, Arg::Output(0), index(slices)])?;
    Ok(b.done())
}

fn clip(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let mut b = builder(s, DType::F32)?;
    let sum = b.workspace(8);
    let (max, pre) = (s.attrs.float_or("max_norm", f64::INFINITY)?, s.attrs.float_or("pre_scale", 1.0)?);
    let n = s.inputs.len().max(1);
    for i in 0..n {
        let ends = [Arg::I32((i == 0).into()), Arg::I32((i + 1 == n).into())];
        let mut args = vec![given(s, i), sum.clone(), Arg::Output(0)];
        args.extend(ends);
        args.extend([Arg::F64(max), Arg::F64(pre)]);
        b.launch("clip", 1, 32, args)?;
    }
    Ok(b.done())
}

/// Names and launches of the family.
pub(crate) const KERNELS: &[(&str, Plan)] = &[
    ("Adam", adam),
    ("Sgd", sgd),
    ("RunningUpdate", running),
    ("Accumulate", |s| update(s, "accumulate", 3, vec![Arg::Output(0)], vec![])),
    ("Reset", zeros),
    ("IsFinite", finite),
    ("SumSquares", squares),
    ("ClipScale", clip),
];
