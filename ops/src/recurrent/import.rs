//! ONNX's LSTM, GRU and RNN: directions taken apart, the sequence's part of the gates as one product over all steps.

use super::activation::attributes;
use crate::{OpError, movement, onnx::ImportCx};
use graph::{Attr, Attrs, DType, Shape, ValueId};

/// What tells the three layers apart.
struct Layer {
    op: &'static str,
    gates: usize,
    activations: &'static [&'static str],
}

/// One direction's weights.
struct Direction {
    attrs: Attrs,
    w: ValueId,
    r: ValueId,
    /// Biases of the sequence's and of the state's part.
    biases: Option<[ValueId; 2]>,
    initial: Option<ValueId>,
    cell: Option<ValueId>,
    peepholes: Option<ValueId>,
}

/// A layer's sequence and sizes.
struct Sequence {
    x: ValueId,
    steps: usize,
    batch: usize,
    hidden: usize,
    lengths: Option<ValueId>,
    batch_first: bool,
}

pub(super) fn lstm(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let layer = Layer { op: "Lstm", gates: 4, activations: &["Sigmoid", "Tanh", "Tanh"] };
    let coupled = cx.attrs.int_or("input_forget", 0)? != 0;
    let (seq, directions) = read(cx, &layer)?;
    let mut results = Vec::new();
    for d in directions {
        let bias = sum(cx, d.biases)?;
        let xw = project(cx, &seq, &layer, d.w, bias)?;
        let attrs = if coupled { d.attrs.with("input_forget", true) } else { d.attrs };
        let inputs = [Some(xw), Some(d.r), d.initial, d.cell, seq.lengths, d.peepholes];
        results.push(cx.b.emit(layer.op, attrs, &inputs)?);
    }
    outputs(cx, &seq, &results, 3)
}

pub(super) fn gru(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let layer = Layer { op: "Gru", gates: 3, activations: &["Sigmoid", "Tanh"] };
    let linear = cx.attrs.int_or("linear_before_reset", 0)? != 0;
    let (seq, directions) = read(cx, &layer)?;
    let mut results = Vec::new();
    for d in directions {
        let (bias, inner, attrs) = match d.biases {
            Some(biases) if linear => {
                // The hidden part's second bias stands inside the reset.
                let cut = [2 * seq.hidden, seq.hidden];
                let [sequence, state] = biases.map(|b| split(cx, b, 0, &cut));
                let (sequence, state) = (sequence?, state?);
                let outer = cx.b.call("Add", &[sequence[0], state[0]])?;
                let bias = cx.b.op("Concat", Attrs::new().with("axis", 0i64), &[outer, sequence[1]])?;
                (Some(bias), Some(state[1]), d.attrs.with("linear_before_reset", true))
            }
            None if linear => (None, None, d.attrs.with("linear_before_reset", true)),
            biases => (sum(cx, biases)?, None, d.attrs),
        };
        let xw = project(cx, &seq, &layer, d.w, bias)?;
        results.push(cx.b.emit(layer.op, attrs, &[Some(xw), Some(d.r), d.initial, seq.lengths, inner])?);
    }
    outputs(cx, &seq, &results, 2)
}

pub(super) fn rnn(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let layer = Layer { op: "Rnn", gates: 1, activations: &["Tanh"] };
    let (seq, directions) = read(cx, &layer)?;
    let mut results = Vec::new();
    for d in directions {
        let bias = sum(cx, d.biases)?;
        let xw = project(cx, &seq, &layer, d.w, bias)?;
        results.push(cx.b.emit(layer.op, d.attrs, &[Some(xw), Some(d.r), d.initial, seq.lengths])?);
    }
    outputs(cx, &seq, &results, 2)
}

/// The inputs common to the three: x, W, R, B, sequence_lens, initial_h; and initial_c and P of an LSTM.
fn read(cx: &mut ImportCx<'_, '_>, layer: &Layer) -> Result<(Sequence, Vec<Direction>), OpError> {
    let reversed: &[bool] = match cx.attrs.str_or("direction", "forward")? {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => {
            return Err(OpError::invalid(format!(
                "direction must be forward, reverse or bidirectional, not {other:?}"
            )));
        }
    };
    let count = reversed.len();
    let batch_first = match cx.attrs.int_or("layout", 0)? {
        0 => false,
        1 => true,
        n => return Err(OpError::invalid(format!("layout must be 0 or 1, not {n}"))),
    };
    let mut x = cx.input(0)?;
    if batch_first && cx.ty(0)?.shape.rank() == 3 {
        x = cx.b.transpose(x, &[1, 0, 2])?;
    }
    let dims = crate::fixed(&cx.b.ty(x).shape, "the shape of the sequence")?;
    let weight = crate::fixed(&cx.ty(2)?.shape, "the shape of the recurrent weight")?;
    let (&[steps, batch, size], &[_, _, hidden]) = (&dims[..], &weight[..]) else {
        return Err(OpError::invalid("the sequence and the weights must have 3 axes"));
    };
    if let Some(n) = cx.attrs.opt_int("hidden_size")?
        && n != hidden as i64
    {
        return Err(OpError::invalid(format!(
            "hidden_size is {n}, the recurrent weight has {hidden} columns"
        )));
    }
    // No product of sizes below overflows.
    let rows = movement::count(&[hidden, 2 * layer.gates], DType::F64)? / 2;
    movement::count(&[steps.max(1), batch.max(1), size.max(rows).max(1)], DType::F64)?;
    let w = parts(cx, 1, &[count, rows, size], "the weight")?;
    let r = parts(cx, 2, &[count, rows, hidden], "the recurrent weight")?;
    let (Some(w), Some(r)) = (w, r) else { return Err(OpError::invalid("a weight is missing")) };
    let b = parts(cx, 3, &[count, 2 * rows], "the bias")?;
    let initial = state(cx, 5, [count, batch, hidden], batch_first, "the initial state")?;
    let (mut cell, mut peepholes) = (None, None);
    if layer.op == "Lstm" {
        cell = state(cx, 6, [count, batch, hidden], batch_first, "the initial cell")?;
        peepholes = parts(cx, 7, &[count, 3 * hidden], "the peepholes")?;
    }
    let attrs = attributes_of(cx, layer, reversed)?;
    let mut directions = Vec::new();
    for (i, attrs) in attrs.into_iter().enumerate() {
        let biases = match &b {
            Some(b) => {
                let cut = split(cx, b[i], 0, &[rows, rows])?;
                Some([cut[0], cut[1]])
            }
            None => None,
        };
        let of = |v: &Option<Vec<ValueId>>| v.as_ref().map(|v| v[i]);
        directions.push(Direction {
            attrs,
            w: w[i],
            r: r[i],
            biases,
            initial: of(&initial),
            cell: of(&cell),
            peepholes: of(&peepholes),
        });
    }
    let lengths = lengths(cx, steps)?;
    Ok((Sequence { x, steps, batch, hidden, lengths, batch_first }, directions))
}

/// The attributes of each direction: its activations, the clip, the order of the steps.
fn attributes_of(cx: &ImportCx<'_, '_>, layer: &Layer, reversed: &[bool]) -> Result<Vec<Attrs>, OpError> {
    let n = layer.activations.len();
    let names: Vec<&str> = match cx.attrs.opt_strs("activations")? {
        Some(names) => names.iter().map(String::as_str).collect(),
        None => layer.activations.repeat(reversed.len()),
    };
    if names.len() != n * reversed.len() {
        return Err(OpError::invalid(format!(
            "{} activations are needed, not {names:?}",
            n * reversed.len()
        )));
    }
    let numbers = |name| Ok::<_, OpError>(cx.attrs.opt_floats(name)?.unwrap_or_default());
    let all = attributes(Attrs::new(), &names, numbers("activation_alpha")?, numbers("activation_beta")?)?;
    let clip = cx.attrs.float_or("clip", 0.0)?;
    let part = |name: &str, i: usize| match all.get(name) {
        Some(Attr::Strs(v)) => Attr::Strs(v[i * n..(i + 1) * n].to_vec()),
        Some(Attr::Floats(v)) => Attr::Floats(v[i * n..(i + 1) * n].to_vec()),
        _ => Attr::Int(0),
    };
    let of = |(i, reverse): (usize, &bool)| {
        let mut attrs = Attrs::new().with("reverse", *reverse);
        for name in ["activations", "alphas", "betas"] {
            attrs = attrs.with(name, part(name, i));
        }
        if clip == 0.0 { attrs } else { attrs.with("clip", clip) }
    };
    Ok(reversed.iter().enumerate().map(of).collect())
}

/// Input `i`, of shape `want`, cut along its first axis, which is dropped; `None` if it is left out.
fn parts(
    cx: &mut ImportCx<'_, '_>,
    i: usize,
    want: &[usize],
    what: &str,
) -> Result<Option<Vec<ValueId>>, OpError> {
    let Some(v) = cx.opt_input(i) else { return Ok(None) };
    directions(cx, v, want, what).map(Some)
}

fn directions(
    cx: &mut ImportCx<'_, '_>,
    v: ValueId,
    want: &[usize],
    what: &str,
) -> Result<Vec<ValueId>, OpError> {
    let got = crate::fixed(&cx.b.ty(v).shape, what)?;
    if got != want {
        return Err(OpError::invalid(format!(
            "{what} must have shape {}, not {}",
            Shape::from(want),
            Shape::from(&got[..])
        )));
    }
    let cut = split(cx, v, 0, &vec![1; want[0]])?;
    let shape = Shape::from(&want[1..]);
    cut.into_iter().map(|v| cx.b.reshape(v, &shape)).collect()
}

/// Input `i` as one state a direction, `[batch, hidden]`; `None` if it is left out or zero.
fn state(
    cx: &mut ImportCx<'_, '_>,
    i: usize,
    want: [usize; 3],
    batch_first: bool,
    what: &str,
) -> Result<Option<Vec<ValueId>>, OpError> {
    let Some(mut v) = cx.opt_input(i) else { return Ok(None) };
    // A constant, not a state whose first version is zero.
    let zero = cx.b.graph().constant(v).is_some_and(|l| l.to_floats().iter().all(|x| *x == 0.0));
    if batch_first && cx.b.ty(v).shape.rank() == 3 {
        v = cx.b.transpose(v, &[1, 0, 2])?;
    }
    let states = directions(cx, v, &want, what)?;
    Ok(if zero { None } else { Some(states) })
}

/// The lengths of the sequences (input 4) as i32; `None` if they are known to be all steps.
fn lengths(cx: &mut ImportCx<'_, '_>, steps: usize) -> Result<Option<ValueId>, OpError> {
    let Some(v) = cx.opt_input(4) else { return Ok(None) };
    let full = |l: &graph::Literal| l.to_ints().is_some_and(|l| l.iter().all(|n| *n == steps as i64));
    if cx.b.graph().constant(v).is_some_and(full) {
        return Ok(None);
    }
    cx.b.cast(v, DType::I32).map(Some)
}

fn split(cx: &mut ImportCx<'_, '_>, v: ValueId, axis: usize, cut: &[usize]) -> Result<Vec<ValueId>, OpError> {
    if cut.len() == 1 {
        return Ok(vec![v]);
    }
    let cut: Vec<i64> = cut.iter().map(|n| *n as i64).collect();
    cx.b.emit("Split", Attrs::new().with("axis", axis as i64).with("split", cut), &[Some(v)])
}

fn sum(cx: &mut ImportCx<'_, '_>, biases: Option<[ValueId; 2]>) -> Result<Option<ValueId>, OpError> {
    biases.map(|b| cx.b.call("Add", &b)).transpose()
}

/// What the sequence contributes to the gates of all steps: one product.
fn project(
    cx: &mut ImportCx<'_, '_>,
    seq: &Sequence,
    layer: &Layer,
    w: ValueId,
    bias: Option<ValueId>,
) -> Result<ValueId, OpError> {
    let size = cx.b.ty(w).shape.fixed().and_then(|d| d.last().copied()).unwrap_or(0);
    let rows = cx.b.reshape(seq.x, &Shape::from(&[seq.steps * seq.batch, size][..]))?;
    let xw = match bias {
        Some(bias) => cx.b.op("Gemm", Attrs::new().with("trans_b", true), &[rows, w, bias])?,
        None => cx.b.matmul(rows, w, false, true)?,
    };
    cx.b.reshape(xw, &Shape::from(&[seq.steps, seq.batch, layer.gates * seq.hidden][..]))
}

/// Puts the directions' results together: the first of each as all states, the others, up to `count`, as last states.
fn outputs(
    cx: &mut ImportCx<'_, '_>,
    seq: &Sequence,
    results: &[Vec<ValueId>],
    count: usize,
) -> Result<(), OpError> {
    for k in 0..count {
        if cx.used.get(k) != Some(&true) {
            continue;
        }
        let (shape, axis) = match k {
            0 => (vec![seq.steps, 1, seq.batch, seq.hidden], 1i64),
            _ => (vec![1, seq.batch, seq.hidden], 0),
        };
        let mut all = Vec::new();
        for r in results {
            all.push(cx.b.reshape(r[k], &Shape::from(&shape[..]))?);
        }
        let mut v = match all[..] {
            [v] => v,
            _ => cx.b.op("Concat", Attrs::new().with("axis", axis), &all)?,
        };
        if seq.batch_first {
            v = cx.b.transpose(v, if k == 0 { &[2, 0, 1, 3] } else { &[1, 0, 2] })?;
        }
        cx.set(k, v);
    }
    Ok(())
}
