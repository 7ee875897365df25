//! [`super::super::rnn`].

use super::{Layer, functions};
use crate::{OpError, export::Export};

pub(in crate::recurrent) fn rnn(x: &Export<'_>) -> Result<(), OpError> {
    let l = Layer::new(x, [0, 1, 3], 1)?;
    let [f] = functions::<1>(x, l.dtype)?;
    let (seen, turned, hidden) = (x.input(0)?, x.input(1)?.transpose(&[1, 0]), l.frame.hidden);
    let (mut state, mut states) = (l.state(2), Vec::new());
    for t in l.times() {
        let y = f.apply(l.at(seen, t, hidden) + l.product(state, turned));
        state = l.active(t, y, state);
        states.push(l.masked(t, y));
    }
    x.set(0, l.sequence(&states, hidden));
    x.set(1, state);
    Ok(())
}

pub(in crate::recurrent) fn rnn_grad(x: &Export<'_>) -> Result<(), OpError> {
    let l = Layer::new(x, [0, 1, 3], 1)?;
    let [f] = functions::<1>(x, l.dtype)?;
    let (y, r, initial, dy, hidden) = (x.input(0)?, x.input(1)?, l.state(2), x.opt(4), l.frame.hidden);
    let nothing = x.zeros(l.dtype, &[l.frame.batch, hidden]);
    let (mut dstate, mut out, mut pairs) = (l.state(5), Vec::new(), Vec::new());
    for (k, t) in l.times().into_iter().enumerate().rev() {
        let d = l.plus(dstate, dy, t);
        let d = l.masked(t, f.pull(l.at(y, t, hidden), d));
        dstate = l.active(t, nothing, dstate) + l.product(d, r);
        pairs.push((d, l.multiplied(k, y, initial)));
        out.push(d);
    }
    out.reverse();
    x.set(0, l.sequence(&out, hidden));
    x.set(1, l.weight(&pairs, hidden));
    x.set(2, dstate);
    Ok(())
}
