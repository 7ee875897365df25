//! [`super::super::lstm`] and [`super::super::lstm_grad`].

use super::{Layer, functions};
use crate::{
    OpError,
    export::{Export, Term},
};

/// The peepholes of the input, output and forget gates, if there are any.
fn peepholes<'x>(x: &Export<'x>, l: &Layer<'x, '_>, i: usize) -> Option<[Term<'x>; 3]> {
    let p = x.opt(i)?;
    let hidden = l.frame.hidden;
    Some([0, 1, 2].map(|k| l.cut(p, 0, k * hidden, (k + 1) * hidden)))
}

pub(in crate::recurrent) fn lstm(x: &Export<'_>) -> Result<(), OpError> {
    let l = Layer::new(x, [0, 1, 4], 4)?;
    let ([f, g, h], hidden) = (functions::<3>(x, l.dtype)?, l.frame.hidden);
    let (h, coupled) = (h.uncut(), x.sig.attrs.int_or("input_forget", 0)? != 0);
    let (seen, turned, p) = (x.input(0)?, x.input(1)?.transpose(&[1, 0]), peepholes(x, &l, 5));
    let (mut state, mut cell) = (l.state(2), l.state(3));
    let (mut states, mut gates, mut cells) = (Vec::new(), Vec::new(), Vec::new());
    for t in l.times() {
        let row = l.at(seen, t, 4 * hidden) + l.product(state, turned);
        let see = |k: usize, weight: usize, c| {
            let gate = l.gate(row, k);
            p.map_or(gate, |p| gate + p[weight] * c)
        };
        let i = f.apply(see(0, 0, cell));
        let forget = if coupled { 1.0 - i } else { f.apply(see(2, 2, cell)) };
        let input = g.apply(l.gate(row, 3));
        let new = forget * cell + i * input;
        let o = f.apply(see(1, 1, new));
        let y = o * h.apply(new);
        (state, cell) = (l.active(t, y, state), l.active(t, new, cell));
        states.push(l.masked(t, y));
        gates.push(l.masked(t, l.beside(&[i, o, forget, input])));
        cells.push(cell);
    }
    x.set(0, l.sequence(&states, hidden));
    x.set(1, state);
    x.set(2, cell);
    x.set(3, l.sequence(&gates, 4 * hidden));
    x.set(4, l.sequence(&cells, hidden));
    Ok(())
}

pub(in crate::recurrent) fn lstm_grad(x: &Export<'_>) -> Result<(), OpError> {
    let l = Layer::new(x, [0, 3, 6], 4)?;
    let ([f, g, h], hidden) = (functions::<3>(x, l.dtype)?, l.frame.hidden);
    let (h, coupled) = (h.uncut(), x.sig.attrs.int_or("input_forget", 0)? != 0);
    let (gates, cells, y, r) = (x.input(0)?, x.input(1)?, x.input(2)?, x.input(3)?);
    let (initial, first, p) = (l.state(4), l.state(5), peepholes(x, &l, 7));
    let (dy, dgates, dcells) = (x.opt(8), x.opt(11), x.opt(12));
    let nothing = x.zeros(l.dtype, &[l.frame.batch, hidden]);
    let (mut dstate, mut dcell) = (l.state(9), l.state(10));
    let (mut out, mut pairs, mut seen) = (Vec::new(), Vec::new(), Vec::new());
    for (k, t) in l.times().into_iter().enumerate().rev() {
        let row = l.at(gates, t, 4 * hidden);
        let [i, o, forget, input] = [0, 1, 2, 3].map(|k| l.gate(row, k));
        let cell = l.at(cells, t, hidden);
        let before = k.checked_sub(1).map_or(first, |k| l.at(cells, l.frame.time(k), hidden));
        let arrived = l.plus(dcell, dcells, t);
        let ds = l.plus(dstate, dy, t);
        let shown = h.apply(cell);
        let d_o = f.pull(o, l.plus_gate(ds * shown, dgates, t, 1));
        let mut dc = arrived + h.pull(shown, ds * o);
        if let Some([_, p, _]) = p {
            dc = dc + d_o * p;
        }
        let (mut di, mut df) = (dc * input, l.plus_gate(dc * before, dgates, t, 2));
        if coupled {
            (di, df) = (di - df, nothing);
        } else {
            df = f.pull(forget, df);
        }
        let di = f.pull(i, l.plus_gate(di, dgates, t, 0));
        let dg = g.pull(input, l.plus_gate(dc * i, dgates, t, 3));
        let mut passed = dc * forget;
        if let Some([p, _, q]) = p {
            passed = passed + di * p + df * q;
        }
        dcell = l.active(t, passed, arrived);
        let d = l.masked(t, l.beside(&[di, d_o, df, dg]));
        dstate = l.active(t, nothing, dstate) + l.product(d, r);
        pairs.push((d, l.multiplied(k, y, initial)));
        // The output gate sees the new cell.
        seen.push(
            [before, cell, before].into_iter().enumerate().map(|(k, c)| l.gate(d, k) * c).collect::<Vec<_>>(),
        );
        out.push(d);
    }
    out.reverse();
    x.set(0, l.sequence(&out, 4 * hidden));
    x.set(1, l.weight(&pairs, 4 * hidden));
    x.set(2, dstate);
    x.set(3, dcell);
    if p.is_some() {
        let sum = |k: usize| {
            let all = seen.iter().map(|s| s[k].sum(&[0], false)).reduce(|a, b| a + b);
            all.unwrap_or_else(|| x.zeros(l.dtype, &[hidden]))
        };
        let parts = [0, 1, 2].map(sum);
        x.set(4, x.call("Concat", &parts, graph::Attrs::new().with("axis", 0)));
    }
    Ok(())
}
