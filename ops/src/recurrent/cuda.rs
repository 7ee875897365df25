//! CUDA launches of recurrent layers.

use super::{Frame, activation::Activation, activation::activations, gru, gru_grad, lstm, lstm_grad, rnn};
use crate::{
    OpError, Signature,
    cuda::launch::block_of,
    cuda::{Arg, BLOCK, Builder, Kernels, Plan, dtype_name, source},
};
use graph::Attrs;

fn index(v: usize) -> Arg {
    Arg::Index(v as i64)
}

fn given(s: &Signature<'_>, i: usize) -> Arg {
    if s.opt_input(i).is_some() { Arg::Input(i) } else { Arg::Null }
}

fn builder(s: &Signature<'_>, f: &Frame) -> Result<Builder, OpError> {
    let mut b = Builder::new(s, source!("recurrent/recurrent.cu"))?;
    b.define("T", dtype_name(s.input(0)?.dtype)).define("CELL", f.gates);
    Ok(b)
}

/// The functions of a cell: their numbers, then their parameters.
fn functions<const N: usize>(
    attrs: &Attrs,
    change: impl Fn(usize, Activation<f64>) -> Activation<f64>,
) -> Result<Vec<Arg>, OpError> {
    let all = activations::<f64, N>(attrs)?;
    let all: Vec<_> = all.into_iter().enumerate().map(|(i, a)| change(i, a).numbers()).collect();
    let kinds = all.iter().map(|(kind, _)| Arg::I32(*kind));
    Ok(kinds.chain(all.iter().map(|(_, p)| Arg::Params(*p))).collect())
}

fn flag(attrs: &Attrs, name: &str) -> Result<Arg, OpError> {
    Ok(Arg::I32((attrs.int_or(name, 0)? != 0).into()))
}

/// A block for each sequence; `lengths` is the input that has their lengths.
fn sequences(
    b: &mut Builder,
    s: &Signature<'_>,
    f: &Frame,
    entry: &'static str,
    [first, last]: [Vec<Arg>; 2],
    lengths: usize,
) -> Result<(), OpError> {
    let mut args = first;
    args.push(given(s, lengths));
    args.extend([f.steps, f.batch, f.hidden].map(index));
    args.extend([Arg::I32(f.reverse.into()), Arg::Status, Arg::Call]);
    args.extend(last);
    b.launch(entry, f.batch.min(1 << 20) as u64, block_of(f.row().max(128) as u64), args)
}

/// The next launches are sums over all steps.
fn sums(b: &mut Builder, s: &Signature<'_>) -> Result<(), OpError> {
    b.source(source!("recurrent/weights.cu")).define("T", dtype_name(s.input(0)?.dtype));
    Ok(())
}

/// A part of the weight's gradient: cotangents and which of their columns, states (of the steps before, or with `aligned` of the same
/// steps), where it goes.
struct Part {
    d: Arg,
    row: usize,
    columns: std::ops::Range<usize>,
    states: Arg,
    initial: Arg,
    aligned: bool,
    out: Arg,
}

fn weights(b: &mut Builder, s: &Signature<'_>, f: &Frame, lengths: usize, p: Part) -> Result<(), OpError> {
    let mut args = vec![p.d, p.states, p.initial, given(s, lengths), p.out];
    args.extend([f.steps, f.batch, f.hidden].map(index));
    args.push(Arg::I32(f.reverse.into()));
    args.extend([p.row, p.columns.start, p.columns.len()].map(index));
    args.push(Arg::I32(p.aligned.into()));
    sums(b, s)?;
    let blocks = f.hidden.div_ceil(16) * p.columns.len().div_ceil(16);
    b.launch("weights", blocks.min(1 << 20) as u64, BLOCK, args)
}

fn lstm(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let f = Frame::of(s, 0, 1, 4)?;
    let mut b = builder(s, &f)?;
    let mut first: Vec<Arg> =
        [0, 1, lstm::INITIAL, lstm::CELL, lstm::PEEPHOLES].into_iter().map(|i| given(s, i)).collect();
    first.extend((0..5).map(Arg::Output));
    let mut last = vec![flag(s.attrs, "input_forget")?];
    last.extend(functions::<3>(s.attrs, uncut_last)?);
    sequences(&mut b, s, &f, "forward", [first, last], lstm::LENGTHS)?;
    Ok(b.done())
}

/// The function of the cell is not cut.
fn uncut_last(i: usize, a: Activation<f64>) -> Activation<f64> {
    if i == 2 { a.uncut() } else { a }
}

fn lstm_gradient(s: &Signature<'_>) -> Result<Kernels, OpError> {
    use lstm_grad::{CELL, D, INITIAL, LENGTHS, PEEPHOLES, R, Y};
    let f = Frame::of(s, 0, R, 4)?;
    let mut b = builder(s, &f)?;
    b.define("GRADIENT", 1);
    let mut first: Vec<Arg> =
        [0, 1, R, CELL, PEEPHOLES, D, D + 1, D + 2, D + 3, D + 4].into_iter().map(|i| given(s, i)).collect();
    first.extend([0, 2, 3].map(Arg::Output));
    let mut last = vec![flag(s.attrs, "input_forget")?];
    last.extend(functions::<3>(s.attrs, uncut_last)?);
    sequences(&mut b, s, &f, "backward", [first, last], LENGTHS)?;
    let row = f.row();
    let part = Part {
        d: Arg::Output(0),
        row,
        columns: 0..row,
        states: Arg::Input(Y),
        initial: given(s, INITIAL),
        aligned: false,
        out: Arg::Output(1),
    };
    weights(&mut b, s, &f, LENGTHS, part)?;
    if s.opt_input(PEEPHOLES).is_some() {
        let mut args = vec![Arg::Output(0), Arg::Input(1), given(s, CELL), Arg::Output(4)];
        args.extend([f.steps, f.batch, f.hidden].map(index));
        args.push(Arg::I32(f.reverse.into()));
        b.over("peepholes", 3 * f.hidden as u64, args)?;
    }
    Ok(b.done())
}

fn gru(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let f = Frame::of(s, 0, 1, 3)?;
    let mut b = builder(s, &f)?;
    let mut first: Vec<Arg> = [0, 1, gru::INITIAL, gru::BIAS].into_iter().map(|i| given(s, i)).collect();
    first.extend((0..4).map(Arg::Output));
    let mut last = vec![flag(s.attrs, "linear_before_reset")?];
    last.extend(functions::<2>(s.attrs, |_, a| a)?);
    sequences(&mut b, s, &f, "forward", [first, last], gru::LENGTHS)?;
    Ok(b.done())
}

fn gru_gradient(s: &Signature<'_>) -> Result<Kernels, OpError> {
    use gru_grad::{D, INITIAL, LENGTHS, R, Y};
    let f = Frame::of(s, 0, R, 3)?;
    let linear = gru::linear(s.attrs)?;
    let mut b = builder(s, &f)?;
    b.define("GRADIENT", 1);
    let mut first: Vec<Arg> =
        [0, 1, Y, R, INITIAL, D, D + 1, D + 2, D + 3].into_iter().map(|i| given(s, i)).collect();
    let resets = if linear { Arg::Output(3) } else { Arg::Null };
    first.extend([Arg::Output(0), Arg::Output(2), resets]);
    let mut last = vec![flag(s.attrs, "linear_before_reset")?];
    last.extend(functions::<2>(s.attrs, |_, a| a)?);
    sequences(&mut b, s, &f, "backward", [first, last], LENGTHS)?;
    let (row, hidden) = (f.row(), f.hidden);
    let gates = Part {
        d: Arg::Output(0),
        row,
        columns: 0..2 * hidden,
        states: Arg::Input(Y),
        initial: given(s, INITIAL),
        aligned: false,
        out: Arg::Output(1),
    };
    weights(&mut b, s, &f, LENGTHS, gates)?;
    // The part of the hidden gate: from what the reset was multiplied with, or what it gave.
    let hidden_part = Part {
        d: Arg::Output(if linear { 3 } else { 0 }),
        row: if linear { hidden } else { row },
        columns: if linear { 0..hidden } else { 2 * hidden..row },
        states: Arg::Input(if linear { Y } else { 1 }),
        initial: given(s, INITIAL),
        aligned: !linear,
        out: Arg::OutputFrom(1, (2 * hidden * hidden) as u64 * s.input(0)?.dtype.size()),
    };
    weights(&mut b, s, &f, LENGTHS, hidden_part)?;
    Ok(b.done())
}

fn rnn(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let f = Frame::of(s, 0, 1, 1)?;
    let mut b = builder(s, &f)?;
    let first = vec![Arg::Input(0), Arg::Input(1), given(s, rnn::INITIAL), Arg::Output(0), Arg::Output(1)];
    sequences(&mut b, s, &f, "forward", [first, functions::<1>(s.attrs, |_, a| a)?], rnn::LENGTHS)?;
    Ok(b.done())
}

fn rnn_gradient(s: &Signature<'_>) -> Result<Kernels, OpError> {
    use rnn::{D, INITIAL, LENGTHS};
    let f = Frame::of(s, 0, 1, 1)?;
    let mut b = builder(s, &f)?;
    b.define("GRADIENT", 1);
    let mut first = vec![Arg::Input(0), Arg::Input(1), given(s, D), given(s, D + 1)];
    first.extend([Arg::Output(0), Arg::Output(2)]);
    sequences(&mut b, s, &f, "backward", [first, functions::<1>(s.attrs, |_, a| a)?], LENGTHS)?;
    let part = Part {
        d: Arg::Output(0),
        row: f.hidden,
        columns: 0..f.hidden,
        states: Arg::Input(0),
        initial: given(s, INITIAL),
        aligned: false,
        out: Arg::Output(1),
    };
    weights(&mut b, s, &f, LENGTHS, part)?;
    Ok(b.done())
}

/// Names and launches of the family.
pub(crate) const KERNELS: &[(&str, Plan)] = &[
    ("Lstm", lstm),
    ("LstmGrad", lstm_gradient),
    ("Gru", gru),
    ("GruGrad", gru_gradient),
    ("Rnn", rnn),
    ("RnnGrad", rnn_gradient),
];
