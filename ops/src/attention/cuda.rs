//! CUDA launches of attention.

use super::shape::{Operand, Plan};
use crate::{
    OpError, Signature,
    cuda::launch::wide_size,
    cuda::{Arg, BLOCK, Builder, Kernels, Plan as Launches, source},
};
use graph::DType;

/// Columns of the result that one block may have: 16 threads keep so many each.
const EACH: usize = 16;
/// Rows of a block.
const ROWS: usize = 16;

/// How many columns a thread keeps, a power of two so that there are few kernels, and how many blocks share the columns.
fn columns(n: usize) -> (usize, usize) {
    let each = n.div_ceil(ROWS).clamp(1, EACH).next_power_of_two();
    (each, n.div_ceil(ROWS * each).max(1))
}

fn operand(o: &Operand) -> Arg {
    let [heads, rows, columns, swapped] = o.layout();
    Arg::Dims(vec![heads as i64, rows as i64, columns as i64, swapped as i64])
}

/// Layouts of q, k, v and y, the mask's strides, the scale, the score of what the mask leaves out.
fn layout(p: &Plan) -> Result<Vec<Arg>, OpError> {
    let mut args = [&p.q, &p.k, &p.v, &p.y].map(operand).to_vec();
    let (axes, row, column) = p.mask.as_ref().map_or((&[][..], 0, 0), |m| (m.axes(), m.row, m.column));
    if axes.len() > 8 {
        return Err(OpError::unsupported("a mask over more than eight axes on CUDA"));
    }
    let or = |v: Vec<i64>, one: i64| if v.is_empty() { vec![one] } else { v };
    args.push(Arg::I32(axes.len().max(1) as i32));
    args.push(Arg::Dims(or(axes.iter().map(|(n, _)| *n as i64).collect(), 1)));
    args.push(Arg::Dims(or(axes.iter().map(|(_, s)| *s as i64).collect(), 0)));
    args.extend([row, column].map(|v| Arg::Index(v as i64)));
    args.push(Arg::F64(p.scale));
    args.push(Arg::F64(p.mask.as_ref().and_then(|m| m.fill).unwrap_or(0.0)));
    Ok(args)
}

fn mask(s: &Signature<'_>) -> Arg {
    if s.opt_input(3).is_some() { Arg::Input(3) } else { Arg::Null }
}

fn mask_dtype(s: &Signature<'_>) -> Result<DType, OpError> {
    Ok(s.opt_input(3).map_or(s.input(0)?.dtype, |m| m.dtype))
}

/// Types of statistics and of the mask, and what the mask is.
fn types(b: &mut Builder, s: &Signature<'_>, stat: DType, p: &Plan) -> Result<(), OpError> {
    let dtype = s.input(0)?.dtype;
    b.types(dtype, "STAT", stat).types(dtype, "MASK", mask_dtype(s)?);
    if p.mask.as_ref().is_some_and(|m| m.fill.is_some()) {
        b.define("KEPT", 1);
    }
    if p.guarded {
        b.define("GUARDED", 1);
    }
    Ok(())
}

fn forward(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let p = Plan::new(s, 3)?;
    let (each, chunks) = columns(p.v.columns);
    let mut b = Builder::new(s, source!("attention/attention.cu"))?;
    types(&mut b, s, s.output(1)?.dtype, &p)?;
    b.define("EACH", each);
    let mut args = vec![Arg::Input(0), Arg::Input(1), Arg::Input(2), mask(s)];
    args.extend([0, 1, 2].map(Arg::Output));
    args.extend([p.matrices, chunks].map(|v| Arg::Index(v as i64)));
    args.extend(layout(&p)?);
    let blocks = p.matrices * p.q.rows.div_ceil(ROWS) * chunks;
    b.launch("forward", blocks.min(1 << 20) as u64, BLOCK, args)?;
    Ok(b.done())
}

fn backward(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let p = Plan::new(s, 3)?;
    let mut b = Builder::new(s, source!("attention/attention.cu"))?;
    let dtype = s.input(0)?.dtype;
    let lines = p.matrices * p.q.rows;
    let less = b.workspace(lines as u64 * wide_size(dtype));
    types(&mut b, s, s.input(5)?.dtype, &p)?;
    b.define("EACH", 1).define("SIDE", 0);
    let [d_lse, rest] = [7, 8].map(|i| if s.opt_input(i).is_some() { Arg::Input(i) } else { Arg::Null });
    let count = Arg::Index(p.matrices as i64);
    let args = vec![Arg::Input(4), Arg::Input(6), d_lse, less.clone(), count.clone(), operand(&p.y)];
    b.over("remainders", lines as u64 * 32, args)?;
    for (side, own) in [&p.q, &p.k, &p.v].into_iter().enumerate() {
        let (each, chunks) = columns(own.columns);
        b.define("EACH", each).define("SIDE", side);
        let mut args =
            vec![Arg::Input(0), Arg::Input(1), Arg::Input(2), mask(s), Arg::Input(6), Arg::Input(5)];
        args.extend([
            rest.clone(),
            less.clone(),
            Arg::Output(side),
            count.clone(),
            Arg::Index(chunks as i64),
        ]);
        args.extend(layout(&p)?);
        let blocks = p.matrices * own.rows.div_ceil(ROWS) * chunks;
        b.launch("backward", blocks.min(1 << 20) as u64, BLOCK, args)?;
    }
    Ok(b.done())
}

/// Names and launches of the family.
pub(crate) const KERNELS: &[(&str, Launches)] = &[("Attention", forward), ("AttentionGrad", backward)];
