//! CUDA launches of reductions and running sums.

use crate::{
    OpError, Signature,
    cuda::launch::{block_of, wide_size},
    cuda::{Arg, BLOCK, Builder, Kernels, Plan, blocks_for, dtype_name, source},
};

/// Terms that one block adds at least, before the terms of an output are shared out.
const SLICE: u64 = 4096;
/// Slices of an output at most, and blocks that are enough for a device.
const SLICES: u64 = 256;
const ENOUGH: u64 = 512;

/// Axes of one kind, merged: extents and strides, outermost first.
#[derive(Default)]
struct Axes {
    extents: Vec<i64>,
    strides: Vec<i64>,
}

impl Axes {
    fn push_front(&mut self, extent: i64, stride: i64) {
        match (self.extents.first_mut(), self.strides.first()) {
            (Some(e), Some(s)) if stride == *e * s => *e *= extent,
            _ => {
                self.extents.insert(0, extent);
                self.strides.insert(0, stride);
            }
        }
    }

    fn count(&self) -> u64 {
        self.extents.iter().product::<i64>() as u64
    }

    fn args(&self) -> Result<[Arg; 3], OpError> {
        if self.extents.len() > 8 {
            return Err(OpError::unsupported("a reduction over more than eight runs of axes on CUDA"));
        }
        // One axis of extent 1 where there is none, so that kernels need no case for it.
        let or = |v: &[i64], one: i64| if v.is_empty() { vec![one] } else { v.to_vec() };
        let rank = Arg::I32(self.extents.len().max(1) as i32);
        Ok([rank, Arg::Dims(or(&self.extents, 1)), Arg::Dims(or(&self.strides, 0))])
    }
}

/// Kept and reduced axes, and the extent of a kept innermost run (which is then in neither).
fn split(s: &Signature<'_>) -> Result<(Axes, Axes, Option<i64>), OpError> {
    let dims = s.dims(0)?;
    let axes = s.attrs.ints("axes")?;
    let (mut kept, mut reduced, mut run) = (Axes::default(), Axes::default(), None);
    let (mut stride, mut innermost) = (1i64, true);
    for (i, n) in dims.iter().enumerate().rev() {
        let n = *n as i64;
        if n != 1 {
            let is_reduced = axes.contains(&(i as i64));
            if is_reduced {
                innermost = false;
                reduced.push_front(n, stride);
            } else if innermost {
                run = Some(run.unwrap_or(1) * n);
            } else {
                kept.push_front(n, stride);
            }
        }
        stride *= n;
    }
    Ok((kept, reduced, run))
}

fn reduce(s: &Signature<'_>, r: &str) -> Result<Kernels, OpError> {
    let dtype = s.input(0)?.dtype;
    let (kept, reduced, run) = split(s)?;
    let count = reduced.count();
    let outputs = kept.count() * run.unwrap_or(1) as u64;
    let mut b = Builder::new(s, source!("reduce/reduce.cu"))?;
    b.define("T", dtype_name(dtype)).define("R", r);
    // Slices follow from the shape alone: they are the order of additions.
    let tasks = match run {
        None => outputs,
        Some(run) => kept.count() * (run as u64).div_ceil(32),
    };
    let per = if run.is_some() { SLICE / 32 } else { SLICE };
    let wanted = (count / per).min(ENOUGH / tasks.max(1)).clamp(1, SLICES);
    let slice = count.div_ceil(wanted).max(1);
    let slices = count.div_ceil(slice).max(1);
    let partial = if slices > 1 { b.workspace(outputs * slices * wide_size(dtype)) } else { Arg::Null };
    let index = |v: u64| Arg::Index(v as i64);
    let mut args = vec![Arg::Input(0), Arg::Output(0), partial.clone(), index(outputs)];
    if let Some(run) = run {
        args.push(Arg::Index(run));
    }
    args.extend([index(count), index(slice), index(slices)]);
    args.extend(kept.args()?);
    args.extend(reduced.args()?);
    if outputs > 0 {
        let blocks = (tasks * slices).min(1 << 20);
        match run {
            None => b.launch("runs", blocks, block_of(slice), args)?,
            Some(_) => b.launch("columns", blocks, BLOCK, args)?,
        }
        if slices > 1 {
            let args = vec![partial, Arg::Output(0), index(outputs), index(count), index(slices)];
            b.launch("gather", blocks_for(outputs), BLOCK, args)?;
        }
    }
    Ok(b.done())
}

fn log_sum_exp(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (outputs, count, last) = whole(s)?;
    let mut b = Builder::new(s, source!("reduce/logsumexp.cu"))?;
    b.define("T", dtype_name(s.input(0)?.dtype));
    let args = [vec![Arg::Input(0), Arg::Output(0)], last].concat();
    b.launch("log_sum_exp", outputs.min(1 << 20), block_of(count), args)?;
    Ok(b.done())
}

/// Kept and reduced axes, none apart; and their arguments after the number of outputs and of terms.
fn whole(s: &Signature<'_>) -> Result<(u64, u64, Vec<Arg>), OpError> {
    let (mut kept, reduced, run) = split(s)?;
    if let Some(run) = run {
        // The stride of the run is 1, and it does not merge with what lies outside of reduced axes.
        kept.extents.push(run);
        kept.strides.push(1);
    }
    let (outputs, count) = (kept.count(), reduced.count());
    let mut args = vec![Arg::Index(outputs as i64), Arg::Index(count as i64)];
    args.extend(kept.args()?);
    args.extend(reduced.args()?);
    Ok((outputs, count, args))
}

/// Gradients: `extreme` by blocks, `product` by threads.
fn backward(s: &Signature<'_>, extreme: bool) -> Result<Kernels, OpError> {
    let (outputs, count, last) = whole(s)?;
    let mut b = Builder::new(s, source!("reduce/backward.cu"))?;
    b.define("T", dtype_name(s.input(0)?.dtype));
    let inputs = (0..s.inputs.len()).map(Arg::Input);
    let args = [inputs.chain([Arg::Output(0)]).collect(), last].concat();
    match extreme {
        _ if count == 0 => {}
        true => b.launch("extreme", outputs.min(1 << 20), block_of(count), args)?,
        false => {
            // Products of 16-bit floats are kept in float32 until they are whole.
            let dtype = s.input(0)?.dtype;
            let narrow = wide_size(dtype) > dtype.size();
            let all: usize = s.dims(0)?.iter().product();
            let before = if narrow { b.workspace(all as u64 * wide_size(dtype)) } else { Arg::Output(0) };
            let at = s.inputs.len() + 1;
            let args = [&args[..at], &[before], &args[at..]].concat();
            b.over("product", outputs, args)?;
        }
    }
    Ok(b.done())
}

fn cumsum(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let dims = s.dims(0)?;
    let axis = s.attrs.int("axis")? as usize;
    let (outer, inner): (usize, usize) = (dims[..axis].iter().product(), dims[axis + 1..].iter().product());
    let lines = (outer * inner) as i64;
    let mut b = Builder::new(s, source!("reduce/cumsum.cu"))?;
    b.define("T", dtype_name(s.input(0)?.dtype));
    let flag = |name| Ok::<_, OpError>(Arg::I32(s.attrs.int(name)? as i32));
    let mut args = vec![Arg::Input(0), Arg::Output(0), Arg::Index(lines)];
    args.extend([
        Arg::Index(dims[axis] as i64),
        Arg::Index(inner as i64),
        flag("exclusive")?,
        flag("reverse")?,
    ]);
    b.over("cumsum", lines as u64, args)?;
    Ok(b.done())
}

/// Names and launches of the family.
pub(crate) const KERNELS: &[(&str, Plan)] = &[
    ("ReduceSum", |s| reduce(s, "Total")),
    ("ReduceMean", |s| reduce(s, "Mean")),
    ("ReduceMax", |s| reduce(s, "Maximum")),
    ("ReduceMin", |s| reduce(s, "Minimum")),
    ("ReduceProd", |s| reduce(s, "Product")),
    ("ReduceL1", |s| reduce(s, "L1")),
    ("ReduceL2", |s| reduce(s, "L2")),
    ("ReduceSumSquare", |s| reduce(s, "SumSquare")),
    ("ReduceLogSumExp", log_sum_exp),
    ("ReduceExtremeGrad", |s| backward(s, true)),
    ("ReduceProdGrad", |s| backward(s, false)),
    ("CumSum", cumsum),
];
