//! CUDA launches of a linear layer's cross entropy.

use super::{labels::Reduction, linear_cross_entropy::Layer};
use crate::{
    OpError, Signature,
    cuda::launch::wide_size,
    cuda::{Arg, BLOCK, Builder, Kernels, Plan, dtype_name, source},
};

/// Rows of a block, and columns of a gradient that a thread keeps at most.
const ROWS: usize = 16;
const EACH: usize = 16;

fn index(v: usize) -> Arg {
    Arg::Index(v as i64)
}

fn given(s: &Signature<'_>, i: usize) -> Arg {
    if s.opt_input(i).is_some() { Arg::Input(i) } else { Arg::Null }
}

/// Rows, depth, classes, and the strides of a class's weights.
fn sizes(l: &Layer) -> [Arg; 5] {
    let [row, column] = if l.turned { [l.depth, 1] } else { [1, l.classes] };
    [l.rows, l.depth, l.classes, row, column].map(index)
}

fn ignored(s: &Signature<'_>) -> Result<[Arg; 2], OpError> {
    let i = s.attrs.opt_int("ignore_index")?;
    Ok([Arg::I32(i.is_some().into()), Arg::I64(i.unwrap_or(0))])
}

fn forward(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (l, dtype, labels) = (Layer::new(s)?, s.input(0)?.dtype, s.input(2)?.dtype);
    let mut b = Builder::new(s, source!("loss/linear.cu"))?;
    b.types(dtype, "STAT", s.output(1)?.dtype).define("L", dtype_name(labels));
    let rows = b.workspace(2 * l.rows as u64 * wide_size(dtype));
    let mut args = vec![
        Arg::Input(0),
        Arg::Input(1),
        Arg::Input(2),
        given(s, 3),
        Arg::Output(1),
        Arg::Output(2),
        rows.clone(),
    ];
    args.extend(sizes(&l));
    args.extend(ignored(s)?);
    args.extend([Arg::Status, Arg::Call]);
    b.launch("forward", l.rows.div_ceil(ROWS).min(1 << 20) as u64, BLOCK, args)?;
    b.source(source!("loss/labels.cu"));
    b.define("T", dtype_name(s.output(0)?.dtype)).define("L", dtype_name(labels));
    let mean = Arg::I32((Reduction::of(s.attrs)? == Reduction::Mean).into());
    b.launch("total", 1, BLOCK, vec![rows, Arg::Output(0), index(l.rows), mean])?;
    Ok(b.done())
}

fn backward(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (l, dtype, labels) = (Layer::new(s)?, s.input(0)?.dtype, s.input(2)?.dtype);
    let mean = Reduction::of(s.attrs)? == Reduction::Mean;
    let mut b = Builder::new(s, source!("loss/labels.cu"))?;
    b.define("T", dtype_name(dtype)).define("L", dtype_name(labels));
    let total = if mean { b.workspace(wide_size(dtype)) } else { Arg::Null };
    if mean {
        let mut args = vec![Arg::Input(2), Arg::Null, total.clone(), index(l.rows), index(l.classes)];
        args.extend(ignored(s)?);
        b.launch("weights_total", 1, BLOCK, args)?;
    }
    b.source(source!("loss/linear.cu"));
    let each = l.depth.div_ceil(ROWS).clamp(1, EACH).next_power_of_two();
    let chunks = l.depth.div_ceil(ROWS * each).max(1);
    b.types(dtype, "STAT", s.input(4)?.dtype).define("L", dtype_name(labels)).define("EACH", each);
    for (side, own) in [l.rows, l.classes].into_iter().enumerate() {
        b.define("SIDE", side);
        let d_bias = if side == 1 { Arg::Output(2) } else { Arg::Null };
        let mut args = vec![Arg::Input(0), Arg::Input(1), Arg::Input(2), given(s, 3), Arg::Input(4)];
        args.extend([given(s, 5), given(s, 6), given(s, 7), total.clone(), Arg::Output(side), d_bias]);
        args.extend(sizes(&l));
        args.push(index(chunks));
        args.extend(ignored(s)?);
        b.launch("backward", (own.div_ceil(ROWS) * chunks).min(1 << 20) as u64, BLOCK, args)?;
    }
    Ok(b.done())
}

/// Names and launches.
pub(crate) const KERNELS: &[(&str, Plan)] =
    &[("LinearCrossEntropy", forward), ("LinearCrossEntropyGrad", backward)];
