//! [`super::super::gru`] and [`super::super::gru_grad`].

use super::{Layer, functions};
use crate::{OpError, export::Export, recurrent::gru::linear};

pub(in crate::recurrent) fn gru(x: &Export<'_>) -> Result<(), OpError> {
    let l = Layer::new(x, [0, 1, 3], 3)?;
    let ([f, g], linear, hidden) = (functions::<2>(x, l.dtype)?, linear(x.sig.attrs)?, l.frame.hidden);
    let (seen, r, bias) = (x.input(0)?, x.input(1)?, x.opt(4));
    let [gates_turned, last_turned] = [(0, 2), (2, 3)].map(|(a, b)| l.rows(r, a, b).transpose(&[1, 0]));
    let mut state = l.state(2);
    let (mut states, mut gates, mut inners) = (Vec::new(), Vec::new(), Vec::new());
    for t in l.times() {
        let seen = l.at(seen, t, 3 * hidden);
        let both = f.apply(l.cut(seen, 1, 0, 2 * hidden) + l.product(state, gates_turned));
        let (z, r, h) = (l.gate(both, 0), l.gate(both, 1), l.gate(seen, 2));
        let (inner, h) = if linear {
            let inner = l.product(state, last_turned);
            let inner = bias.map_or(inner, |b| inner + b);
            (inner, h + r * inner)
        } else {
            let inner = r * state;
            (inner, h + l.product(inner, last_turned))
        };
        let h = g.apply(h);
        let y = z * (state - h) + h;
        state = l.active(t, y, state);
        states.push(l.masked(t, y));
        gates.push(l.masked(t, l.beside(&[z, r, h])));
        inners.push(l.masked(t, inner));
    }
    x.set(0, l.sequence(&states, hidden));
    x.set(1, state);
    x.set(2, l.sequence(&gates, 3 * hidden));
    x.set(3, l.sequence(&inners, hidden));
    Ok(())
}

pub(in crate::recurrent) fn gru_grad(x: &Export<'_>) -> Result<(), OpError> {
    let l = Layer::new(x, [0, 3, 5], 3)?;
    let ([f, g], linear, hidden) = (functions::<2>(x, l.dtype)?, linear(x.sig.attrs)?, l.frame.hidden);
    let (gates, inner, y, r) = (x.input(0)?, x.input(1)?, x.input(2)?, x.input(3)?);
    let (initial, dy, dgates, dinner) = (l.state(4), x.opt(6), x.opt(8), x.opt(9));
    let (upper, last) = (l.rows(r, 0, 2), l.rows(r, 2, 3));
    let mut dstate = l.state(7);
    let (mut out, mut resets, mut pairs, mut last_pairs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (k, t) in l.times().into_iter().enumerate().rev() {
        let row = l.at(gates, t, 3 * hidden);
        let [z, r, h] = [0, 1, 2].map(|k| l.gate(row, k));
        let (inner, before) = (l.at(inner, t, hidden), l.before(k, y, initial));
        let ds = l.plus(dstate, dy, t);
        let dz = f.pull(z, l.plus_gate(ds * (before - h), dgates, t, 0));
        let dh = g.pull(h, l.plus_gate(ds * (1.0 - z), dgates, t, 2));
        let from = if linear { dh * r } else { l.product(dh, last) };
        let reset = l.plus(from, dinner, t);
        let (dr, through) =
            if linear { (dh * inner, l.product(reset, last)) } else { (reset * before, reset * r) };
        let dr = f.pull(r, l.plus_gate(dr, dgates, t, 1));
        let both = l.beside(&[dz, dr]);
        dstate = l.active(t, ds * z + through + l.product(both, upper), dstate);
        let (both, dh, reset) = (l.masked(t, both), l.masked(t, dh), l.masked(t, reset));
        pairs.push((both, l.multiplied(k, y, initial)));
        last_pairs.push(if linear { (reset, l.multiplied(k, y, initial)) } else { (dh, inner) });
        out.push(l.beside(&[both, dh]));
        resets.push(reset);
    }
    out.reverse();
    resets.reverse();
    x.set(0, l.sequence(&out, 3 * hidden));
    let parts = [l.weight(&pairs, 2 * hidden), l.weight(&last_pairs, hidden)];
    x.set(1, x.call("Concat", &parts, graph::Attrs::new().with("axis", 0)));
    x.set(2, dstate);
    x.set(3, l.sequence(&resets, hidden));
    Ok(())
}
