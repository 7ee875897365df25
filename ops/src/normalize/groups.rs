//! CUDA launches of normalisations over groups of channels, lines and neighbouring channels.

use super::{batchnorm::eps, channels::Channels, group::layout, lrn::Rule};
use crate::{
    OpError, Signature,
    cuda::launch::{block_of, wide_size},
    cuda::{Arg, Builder, Kernels, Plan, dtype_name, source},
    loss::Along,
};

/// Blocks that stride over more work than that.
const MOST: usize = 1 << 20;

fn index(v: usize) -> Arg {
    Arg::Index(v as i64)
}

fn given(s: &Signature<'_>, i: usize) -> Arg {
    if s.opt_input(i).is_some() { Arg::Input(i) } else { Arg::Null }
}

fn group(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let ((d, per_group), dtype) = (layout(s)?, s.input(0)?.dtype);
    let groups = d.c / per_group.max(1);
    let mut b = Builder::new(s, source!("normalize/group.cu"))?;
    b.types(dtype, "STAT", s.input(1)?.dtype);
    let mut args: Vec<Arg> = (0..3).map(Arg::Input).chain((0..3).map(Arg::Output)).collect();
    args.extend([d.n * groups, groups, per_group, d.s].map(index));
    args.push(Arg::F64(eps(s.attrs)?));
    b.launch("forward", (d.n * groups).min(MOST) as u64, block_of((per_group * d.s) as u64), args)?;
    Ok(b.done())
}

fn group_gradient(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let ((d, per_group), dtype) = (layout(s)?, s.input(0)?.dtype);
    let groups = d.c / per_group.max(1);
    let mut b = Builder::new(s, source!("normalize/group.cu"))?;
    b.types(dtype, "STAT", s.input(1)?.dtype);
    let sums = b.workspace(2 * (d.n * d.c) as u64 * wide_size(dtype));
    let mut args = vec![Arg::Input(0), Arg::Input(2), Arg::Input(3), Arg::Input(4), sums.clone()];
    args.extend([d.n * d.c, per_group, d.s].map(index));
    b.launch("parts", (d.n * d.c).min(MOST) as u64, block_of(d.s as u64), args)?;
    let args = vec![sums.clone(), Arg::Output(1), Arg::Output(2), index(d.n), index(d.c)];
    b.over("combine", d.c as u64, args)?;
    let mut args: Vec<Arg> = (0..7).map(|i| given(s, i)).chain([sums, Arg::Output(0)]).collect();
    args.extend([d.n * groups, groups, per_group, d.s].map(index));
    b.launch("backward", (d.n * groups).min(MOST) as u64, block_of((per_group * d.s) as u64), args)?;
    Ok(b.done())
}

fn lp(s: &Signature<'_>, entry: &'static str, args: Vec<Arg>) -> Result<Kernels, OpError> {
    let a = Along::of(s)?;
    let mut b = Builder::new(s, source!("normalize/lp.cu"))?;
    b.define("T", dtype_name(s.input(0)?.dtype)).define("P", s.attrs.int("p")?);
    let lines = a.outer * a.inner;
    let args = [args, [lines, a.n, a.inner].map(index).to_vec()].concat();
    b.launch(entry, lines.min(MOST) as u64, block_of(a.n as u64), args)?;
    Ok(b.done())
}

fn response(s: &Signature<'_>, gradient: bool) -> Result<Kernels, OpError> {
    let (d, rule, dtype) = (Channels::new(&s.dims(0)?), Rule::of(s.attrs)?, s.input(0)?.dtype);
    let n = d.n * d.c * d.s;
    let mut b = Builder::new(s, source!("normalize/lrn.cu"))?;
    b.define("T", dtype_name(dtype));
    let mut last = [n, d.c, d.s, rule.down.min(d.c), rule.up.min(d.c)].map(index).to_vec();
    last.extend([rule.alpha, rule.beta, rule.bias].map(Arg::F64));
    let with = |first: Vec<Arg>| [first, last.clone()].concat();
    if !gradient {
        b.over("forward", n as u64, with(vec![Arg::Input(0), Arg::Output(0)]))?;
        return Ok(b.done());
    }
    let terms = b.workspace(n as u64 * wide_size(dtype));
    b.over("terms", n as u64, with(vec![Arg::Input(0), Arg::Input(1), terms.clone()]))?;
    b.over("backward", n as u64, with(vec![Arg::Input(0), Arg::Input(1), terms, Arg::Output(0)]))?;
    Ok(b.done())
}

/// Names and launches.
pub(crate) const KERNELS: &[(&str, Plan)] = &[
    ("GroupNormalization", group),
    ("GroupNormalizationGrad", group_gradient),
    ("LpNormalization", |s| lp(s, "forward", vec![Arg::Input(0), Arg::Output(0), Arg::Output(1)])),
    ("LpNormalizationGrad", |s| {
        let inputs = [0, 1, 2, 3].map(|i| given(s, i)).to_vec();
        lp(s, "backward", [inputs, vec![Arg::Output(0)]].concat())
    }),
    ("LRN", |s| response(s, false)),
    ("LrnGrad", |s| response(s, true)),
];
