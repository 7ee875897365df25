//! Recurrent layers in standard ONNX operators: their steps one after the other, since ONNX's own layers give no gates, which the backward
//! node reads. Only sizes that are known can be written so.

mod gru;
mod lstm;
mod rnn;

pub(super) use gru::{gru, gru_grad};
pub(super) use lstm::{lstm, lstm_grad};
pub(super) use rnn::{rnn, rnn_grad};

use super::{
    Frame,
    activation::{Activation, Kind, activations},
};
use crate::{
    OpError,
    export::{Export, Term},
};
use graph::{Attrs, DType};

/// A layer on its way out: its sizes, and what is read at each step.
struct Layer<'x, 'a> {
    x: &'x Export<'a>,
    frame: Frame,
    /// `[batch, 1]`.
    lengths: Option<Term<'x>>,
    dtype: DType,
}

impl<'x> Layer<'x, '_> {
    /// Of the layer whose sequence is input `first`, recurrent weight input `r` and lengths input `lengths`.
    fn new<'a>(
        x: &'x Export<'a>,
        [first, r, lengths]: [usize; 3],
        gates: usize,
    ) -> Result<Layer<'x, 'a>, OpError> {
        let frame = Frame::of(x.sig, first, r, gates)?;
        let lengths = x.opt(lengths).map(|l| l.reshape(&[frame.batch, 1]));
        Ok(Layer { x, frame, lengths, dtype: x.input(first)?.dtype() })
    }

    /// Times in the order in which the steps run.
    fn times(&self) -> Vec<usize> {
        (0..self.frame.steps).map(|k| self.frame.time(k)).collect()
    }

    fn cut(&self, v: Term<'x>, axis: i64, from: usize, to: usize) -> Term<'x> {
        let at = |n: i64| self.x.ints(&[n]);
        self.x.call("Slice", &[v, at(from as i64), at(to as i64), at(axis)], Attrs::new())
    }

    /// `[batch, columns]` of `[steps, batch, columns]`.
    fn at(&self, v: Term<'x>, t: usize, columns: usize) -> Term<'x> {
        self.cut(v, 0, t, t + 1).reshape(&[self.frame.batch, columns])
    }

    /// Gate `k` of `[batch, gates * hidden]`.
    fn gate(&self, v: Term<'x>, k: usize) -> Term<'x> {
        self.cut(v, 1, k * self.frame.hidden, (k + 1) * self.frame.hidden)
    }

    /// Rows of gates `from..to` of the recurrent weight.
    fn rows(&self, r: Term<'x>, from: usize, to: usize) -> Term<'x> {
        self.cut(r, 0, from * self.frame.hidden, to * self.frame.hidden)
    }

    /// Gates side by side.
    fn beside(&self, gates: &[Term<'x>]) -> Term<'x> {
        self.x.call("Concat", gates, Attrs::new().with("axis", 1))
    }

    /// `[steps, batch, columns]` from the steps in the order in which they ran.
    fn sequence(&self, steps: &[Term<'x>], columns: usize) -> Term<'x> {
        let batch = self.frame.batch;
        if steps.is_empty() {
            return self.x.zeros(self.dtype, &[0, batch, columns]);
        }
        let mut rows: Vec<_> = steps.iter().map(|s| s.reshape(&[1, batch, columns])).collect();
        if self.frame.reverse {
            rows.reverse();
        }
        self.x.call("Concat", &rows, Attrs::new().with("axis", 0))
    }

    /// An optional input of `[batch, hidden]`, zeros if it is left out.
    fn state(&self, i: usize) -> Term<'x> {
        self.x.opt(i).unwrap_or_else(|| self.x.zeros(self.dtype, &[self.frame.batch, self.frame.hidden]))
    }

    /// `yes` for the sequences that have a step at time `t`, else `no`.
    fn active(&self, t: usize, yes: Term<'x>, no: Term<'x>) -> Term<'x> {
        self.lengths.map_or(yes, |l| l.greater(t as f64).pick(yes, no))
    }

    /// `v` for the sequences that have a step at time `t`, else zeros.
    fn masked(&self, t: usize, v: Term<'x>) -> Term<'x> {
        self.lengths.map_or(v, |l| l.greater(t as f64).pick(v, 0.0))
    }

    /// The state before the `k`-th step, from the layer's outputs `y` and the initial state.
    fn before(&self, k: usize, y: Term<'x>, initial: Term<'x>) -> Term<'x> {
        let Some(before) = k.checked_sub(1) else { return initial };
        let t = self.frame.time(before);
        // Beyond a sequence's end the outputs are zeros, and the state is still the initial one.
        self.active(t, self.at(y, t, self.frame.hidden), initial)
    }

    /// What the `k`-th step's product had, as the kernels take it: they add what `y` has beyond a sequence's end, which is zeros.
    fn multiplied(&self, k: usize, y: Term<'x>, initial: Term<'x>) -> Term<'x> {
        match (k.checked_sub(1), self.lengths) {
            (Some(before), Some(l)) => {
                let t = self.frame.time(before);
                self.at(y, t, self.frame.hidden) + l.greater(t as f64).pick(0.0, initial)
            }
            _ => self.before(k, y, initial),
        }
    }

    fn product(&self, a: Term<'x>, b: Term<'x>) -> Term<'x> {
        self.x.call("MatMul", &[a, b], Attrs::new())
    }

    /// The sum over steps of cotangents times what they were multiplied with: `[columns, hidden]`.
    fn weight(&self, pairs: &[(Term<'x>, Term<'x>)], columns: usize) -> Term<'x> {
        let terms = pairs.iter().map(|(d, by)| self.product(d.transpose(&[1, 0]), *by));
        terms.reduce(|a, b| a + b).unwrap_or_else(|| self.x.zeros(self.dtype, &[columns, self.frame.hidden]))
    }

    /// `d` and what an optional cotangent of `[steps, batch, hidden]` adds at time `t`.
    fn plus(&self, d: Term<'x>, given: Option<Term<'x>>, t: usize) -> Term<'x> {
        given.map_or(d, |g| d + self.at(g, t, self.frame.hidden))
    }

    /// `d` and what an optional cotangent of all gates adds to gate `k` at time `t`.
    fn plus_gate(&self, d: Term<'x>, given: Option<Term<'x>>, t: usize, k: usize) -> Term<'x> {
        given.map_or(d, |g| d + self.gate(self.at(g, t, self.frame.row()), k))
    }
}

/// An activation function on its way out.
struct Function<'x, 'a> {
    x: &'x Export<'a>,
    of: Activation<f64>,
    dtype: DType,
}

/// The functions of a node.
fn functions<'x, 'a, const N: usize>(
    x: &'x Export<'a>,
    dtype: DType,
) -> Result<[Function<'x, 'a>; N], OpError> {
    Ok(activations::<f64, N>(x.sig.attrs)?.map(|of| Function { x, of, dtype }))
}

impl<'x> Function<'x, '_> {
    /// The function without the cut.
    fn uncut(self) -> Self {
        Function { of: self.of.uncut(), ..self }
    }

    fn value(&self, v: Term<'x>) -> Term<'x> {
        let (a, b) = (self.of.alpha, self.of.beta);
        match self.of.kind {
            Kind::Relu => v.call("Relu"),
            Kind::Tanh => v.call("Tanh"),
            Kind::Affine => a * v + b,
            Kind::LeakyRelu => v.at_least(0.0).pick(v, a * v),
            Kind::ThresholdedRelu => v.at_least(a).pick(v, 0.0),
            Kind::ScaledTanh => a * (b * v).call("Tanh"),
            Kind::HardSigmoid => (a * v + b).with("Max", 0.0).with("Min", 1.0),
            Kind::Elu => v.at_least(0.0).pick(v, a * (v.call("Exp") - 1.0)),
            Kind::Softsign => v / (v.call("Abs") + 1.0),
            Kind::Softplus => v.call("Softplus"),
            Kind::Sigmoid => v.call("Sigmoid"),
        }
    }

    /// Where the argument is cut, if it is.
    fn cut(&self) -> Option<f64> {
        Some(self.of.clip).filter(|c| c.is_finite())
    }

    fn apply(&self, v: Term<'x>) -> Term<'x> {
        let cut = self.cut().map_or(v, |c| v.with("Max", -c).with("Min", c));
        self.value(cut)
    }

    /// `d` times the slope where the result is `y`.
    fn pull(&self, y: Term<'x>, d: Term<'x>) -> Term<'x> {
        let (a, b) = (self.of.alpha, self.of.beta);
        let pulled = match self.of.kind {
            Kind::Relu => y.greater(0.0).pick(d, 0.0),
            Kind::Tanh => d * (1.0 - y * y),
            Kind::Affine => d * a,
            Kind::LeakyRelu => y.at_least(0.0).pick(d, d * a),
            Kind::ThresholdedRelu => y.at_least(a).and(y.equals(0.0).call("Not")).pick(d, 0.0),
            Kind::ScaledTanh => {
                let t = y / if a == 0.0 { 1.0 } else { a };
                d * ((1.0 - t * t) * (a * b))
            }
            Kind::HardSigmoid => y.greater(0.0).and(y.less(1.0)).pick(d * a, 0.0),
            Kind::Elu => y.at_least(0.0).pick(d, d * (y + a)),
            Kind::Softsign => {
                let rest = 1.0 - y.call("Abs");
                d * (rest * rest)
            }
            Kind::Softplus => d * (1.0 - (-y).call("Exp")),
            Kind::Sigmoid => d * (y * (1.0 - y)),
        };
        let Some(c) = self.cut() else { return pulled };
        let [low, high] = [-c, c].map(|end| self.value(self.x.number(self.dtype, end)));
        y.equals(low).with("Or", y.equals(high)).pick(0.0, pulled)
    }
}
