//! CUDA launches of Fourier transforms and frames.

use super::{dft::Plan, frame::sizes};
use crate::{
    OpError, Signature,
    cuda::launch::wide_size,
    cuda::{Arg, Builder, Kernels, Plan as Launches, dtype_name, source, width_name},
};

fn index(v: usize) -> Arg {
    Arg::Index(v as i64)
}

/// Pairs of twos as fours: half as many launches for as many operations. A length of 1 is one pass over single elements.
fn passes(factors: &[usize]) -> Vec<usize> {
    let twos = factors.iter().take_while(|f| **f == 2).count();
    let mut out = vec![4; twos / 2];
    out.extend(&factors[twos / 2 * 2..]);
    if out.is_empty() { vec![1] } else { out }
}

fn transform(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (p, dtype) = (Plan::of(s)?, s.input(0)?.dtype);
    let (lines, n) = (p.lines(), p.length);
    let mut b = Builder::new(s, source!("signal/dft.cu"))?;
    b.define("T", dtype_name(dtype));
    if lines == 0 {
        return Ok(b.done());
    }
    if lines.checked_mul(n).is_none_or(|all| all >= 1 << 30) {
        return Err(OpError::unsupported(format!("{lines} transforms of length {n} at once on CUDA")));
    }
    let complex = 2 * wide_size(dtype);
    let roots = b.workspace(n as u64 * complex);
    let passes = passes(&p.factors);
    let between = (passes.len() - 1).min(2);
    let buffers: Vec<Arg> = (0..between).map(|_| b.workspace((lines * n) as u64 * complex)).collect();
    b.over("roots", n as u64, vec![roots.clone(), index(n), Arg::I32(p.positive.into())])?;
    let mut done = 1;
    for (k, factor) in passes.iter().enumerate() {
        let buffer = |k: usize| buffers.get(k % 2).cloned().unwrap_or(Arg::Null);
        let last = k + 1 == passes.len();
        let from = if k == 0 { Arg::Null } else { buffer(k - 1) };
        let (to, y) = if last { (Arg::Null, Arg::Output(0)) } else { (buffer(k), Arg::Null) };
        let mut args = vec![Arg::Input(0), from, to, y, roots.clone()];
        args.extend([lines, n, *factor, done, p.n, p.bins, p.inner, p.parts[0], p.parts[1]].map(index));
        args.push(Arg::F64(p.scale));
        b.over("pass", (lines * n) as u64, args)?;
        done *= factor;
    }
    Ok(b.done())
}

fn frames(s: &Signature<'_>, gradient: bool) -> Result<Kernels, OpError> {
    let (length, step) = sizes(s)?;
    let (signal, frames) = if gradient { (s.out_dims(0)?, s.dims(0)?) } else { (s.dims(0)?, s.out_dims(0)?) };
    // A step beyond the end is never taken.
    let step = step.min(signal[1].max(1));
    let mut b = Builder::new(s, source!("signal/frame.cu"))?;
    let n: usize = s.out_dims(0)?.iter().product();
    let mut args = vec![Arg::Input(0), Arg::Output(0)];
    args.extend([n, frames[1], length, frames[3], step, signal[1]].map(index));
    if gradient {
        b.define("T", dtype_name(s.input(0)?.dtype)).define("GRADIENT", 1);
        b.over("add_frames", n as u64, args)?;
    } else {
        b.define("T", width_name(s.input(0)?.dtype));
        b.over("frame", n as u64, args)?;
    }
    Ok(b.done())
}

/// Names and launches of the family.
pub(crate) const KERNELS: &[(&str, Launches)] =
    &[("Dft", transform), ("Frame", |s| frames(s, false)), ("FrameGrad", |s| frames(s, true))];
