//! GRU: the steps of one direction.

use super::{
    Frame, Lengths,
    activation::{Activation, activations, check_invertible},
    copy_or_zero, expect, expect_lengths, export, import, optional, row_of, scratch, shared_attrs, turn,
    types,
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Io, KernelError, Math, lanes, par::Shared},
    export::Export,
    grad::GradCx,
    onnx::{OnnxRule, rules},
    product::gemm::{Mat, multiply_par},
};
use graph::{Attrs, DType, TensorType};

/// Runs a GRU over a sequence in one direction.
///
/// Inputs: what the sequence contributes to the gates (products and biases) `[steps, batch, 3 * hidden]`, the recurrent weight
/// `[3 * hidden, hidden]`, optional initial state `[batch, hidden]`, optional lengths (i32) `[batch]`, and with `linear_before_reset`
/// an optional bias `[hidden]` inside the reset. Gates are in ONNX's order: update, reset, hidden.
///
/// Outputs: states `[steps, batch, hidden]` (0 beyond a sequence's end), last state, activated gates `[steps, batch, 3 * hidden]`, and
/// what stands at the reset gate `[steps, batch, hidden]`: the gate times the last state, or with `linear_before_reset` what the gate is
/// multiplied with. Attributes: see [`activations`] (gates, hidden), `reverse`, `linear_before_reset`.
pub struct Gru;

pub(super) const INITIAL: usize = 2;
pub(super) const LENGTHS: usize = 3;
pub(super) const BIAS: usize = 4;

impl OpDef for Gru {
    fn name(&self) -> &'static str {
        "Gru"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["GRU" => import::gru]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let [x, states, state] = types(s, 0, 1, 3)?;
        expect(s, INITIAL, &state, "the initial state")?;
        expect_lengths(s, LENGTHS, &state)?;
        if s.opt_input(BIAS).is_some() && !linear(s.attrs)? {
            return Err(OpError::invalid("a bias inside the reset needs linear_before_reset"));
        }
        let bias = TensorType { dtype: x.dtype, shape: graph::Shape(vec![state.shape.0[1].clone()]) };
        expect(s, BIAS, &bias, "the bias inside the reset")?;
        activations::<f64, 2>(s.attrs)?;
        s.attrs.int_or("reverse", 0)?;
        Ok(vec![states.clone(), state, x, states])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        check_invertible(g.attrs())?;
        let inputs = [
            Some(g.output(2)),
            Some(g.output(3)),
            Some(g.output(0)),
            g.opt_input(1),
            g.opt_input(INITIAL),
            g.opt_input(LENGTHS),
            g.cotangent(0),
            g.cotangent(1),
            g.cotangent(2),
            g.cotangent(3),
        ];
        let attrs = shared_attrs(g.attrs());
        let d = g.b.emit("GruGrad", attrs, &inputs)?;
        for (i, d) in [0, 1, INITIAL].into_iter().zip(&d) {
            if g.needs(i) {
                g.set(i, *d);
            }
        }
        if g.needs(BIAS) {
            let bias = g.b.reduce_sum(d[3], &[0, 1], false)?;
            g.set(BIAS, bias);
        }
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let flops = Frame::of(s, 0, 1, 3).map_or(0, |f| f.flops());
        Work { flops, bytes: s.io_bytes(), product: true }
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let turned = Frame::of(s, 0, 1, 3).map_or([0; 3], |f| [f.gates, f.hidden, f.hidden]);
        Facts {
            overwrites: vec![(2, 0)],
            can_fail: s.opt_input(LENGTHS).is_some(),
            ..Facts::with_workspace(scratch(s, 0, turned))
        }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (frame, linear) = (Frame::of(s, 0, 1, 3)?, linear(s.attrs)?);
        crate::for_float!(s.input(0)?.dtype, self.name(), T => {
            let [f, g] = activations::<T, 2>(s.attrs)?;
            let cell = Cell { frame, linear, f, g };
            Ok(Box::new(move |io| cell.run(io)))
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        export::gru(x)
    }

    fn cases(&self) -> Vec<Case> {
        cases()
    }
}

pub(super) fn linear(attrs: &Attrs) -> Result<bool, OpError> {
    Ok(attrs.int_or("linear_before_reset", 0)? != 0)
}

/// A layer with fixed sizes.
#[derive(Clone, Copy)]
pub(super) struct Cell<T> {
    pub(super) frame: Frame,
    /// The reset gate multiplies the product with the state, not the state.
    pub(super) linear: bool,
    /// Of the gates, of the hidden part.
    pub(super) f: Activation<T>,
    pub(super) g: Activation<T>,
}

/// The memory of one step, each with a row for every sequence.
struct Step<'a, T> {
    t: usize,
    lengths: Lengths<'a>,
    gates: Shared<T>,
    inner: Shared<T>,
    y: Shared<T>,
    state: Shared<T>,
}

impl<T: Math> Cell<T> {
    fn run(&self, io: &Io<'_>) -> Result<(), KernelError> {
        let Frame { steps, batch, hidden, .. } = self.frame;
        let row = self.frame.row();
        let lengths = Lengths::read(io, LENGTHS, &self.frame)?;
        let turned = io.workspace::<T>();
        turn(io.input::<T>(1), hidden, turned);
        let weight = Mat::rows(turned.as_mut_ptr(), row);
        let [y, state, gates, inner] = [0, 1, 2, 3].map(|o| io.output_ptr::<T>(o).0);
        let (x, bias) = (io.input_ptr::<T>(0).0, optional::<T>(io, BIAS));
        // SAFETY: every address stays inside its tensor, whose sizes inference fixed; the steps run one after the other.
        unsafe {
            copy_or_zero(optional(io, INITIAL), state, batch * hidden);
            for k in 0..steps {
                let t = self.frame.time(k);
                let (g, inner) = (gates.add(t * batch * row), inner.add(t * batch * hidden));
                let step = Step {
                    t,
                    lengths,
                    gates: Shared(g),
                    inner: Shared(inner),
                    y: Shared(y.add(t * batch * hidden)),
                    state: Shared(state),
                };
                copy_or_zero(x.add(t * batch * row), g, batch * row);
                let (from, to) = (Mat::rows(state, hidden), Mat::rows(g, row));
                multiply_par([batch, 2 * hidden, hidden], T::ONE, from, weight, T::ONE, to);
                let (last, reset) = (weight.at(0, 2 * hidden), Mat::rows(inner, hidden));
                if self.linear {
                    (0..batch).for_each(|b| copy_or_zero(bias, inner.add(b * hidden), hidden));
                    multiply_par([batch, hidden, hidden], T::ONE, from, last, T::ONE, reset);
                }
                lanes::each(
                    batch,
                    self.frame.grain(),
                    #[inline(always)]
                    |r| r.for_each(|b| self.gates(&step, b)),
                );
                if !self.linear {
                    multiply_par([batch, hidden, hidden], T::ONE, reset, last, T::ONE, to.at(0, 2 * hidden));
                }
                lanes::each(
                    batch,
                    self.frame.grain(),
                    #[inline(always)]
                    |r| r.for_each(|b| self.state(&step, b)),
                );
            }
        }
        Ok(())
    }

    /// One sequence's update and reset gates, and the reset.
    ///
    /// # Safety
    ///
    /// The step's memory has a row for sequence `b`, which nobody else touches.
    #[inline(always)]
    unsafe fn gates(&self, s: &Step<'_, T>, b: usize) {
        let n = self.frame.hidden;
        // SAFETY: rows of the tensors.
        unsafe {
            let z = s.gates.0.add(b * 3 * n);
            let (r, h) = (z.add(n), z.add(2 * n));
            let (inner, state) = (s.inner.0.add(b * n), s.state.0.add(b * n).cast_const());
            self.f.apply(2 * n, z);
            if self.linear {
                let reads = [h.cast_const(), r.cast_const(), inner.cast_const()];
                lanes::map(n, reads, [h], |[h, r, i]| [r.fma(i, h)]);
            } else {
                lanes::map(n, [r.cast_const(), state], [inner], |[r, s]| [r * s]);
            }
        }
    }

    /// One sequence's hidden part and new state.
    ///
    /// # Safety
    ///
    /// As [`Cell::gates`].
    #[inline(always)]
    unsafe fn state(&self, s: &Step<'_, T>, b: usize) {
        let n = self.frame.hidden;
        // SAFETY: rows of the tensors.
        unsafe {
            let z = s.gates.0.add(b * 3 * n);
            let h = z.add(2 * n);
            let (y, state) = (s.y.0.add(b * n), s.state.0.add(b * n));
            if !s.lengths.has(b, s.t) {
                std::slice::from_raw_parts_mut(z, 3 * n).fill(T::ZERO);
                std::slice::from_raw_parts_mut(s.inner.0.add(b * n), n).fill(T::ZERO);
                std::slice::from_raw_parts_mut(y, n).fill(T::ZERO);
                return;
            }
            self.g.apply(n, h);
            let reads = [z, h, state].map(|p| p.cast_const());
            lanes::map(n, reads, [state, y], |[z, h, s]| [z.fma(s - h, h); 2]);
        }
    }
}

/// The address of a row of the state before a step; null for zeros.
pub(super) fn before<T>(
    frame: &Frame,
    lengths: Lengths<'_>,
    (t, b): (usize, usize),
    y: Shared<T>,
    initial: Shared<T>,
) -> *const T {
    match frame.before(lengths, t, b) {
        Some(t) => row_of(y, t * frame.batch + b, frame.hidden),
        None => row_of(initial, b, frame.hidden),
    }
}

fn cases() -> Vec<Case> {
    let attrs = |names: [&str; 2]| {
        let a = super::activation::attributes(Attrs::new(), &names, &[0.4, 0.3], &[0.3, 0.6]);
        a.expect("known activations")
    };
    let usual = || attrs(["Sigmoid", "Tanh"]);
    let linear = || usual().with("linear_before_reset", true);
    let case = |name, attrs: Attrs, steps: usize, batch: usize, hidden: usize| {
        Case::new(name, attrs, &[&[steps, batch, 3 * hidden], &[3 * hidden, hidden], &[batch, hidden]])
    };
    let lengths = |case: Case, of: &[f64]| {
        let fill = Fill::Values(of.to_vec());
        let input = CaseInput { fill, ..CaseInput::ints(DType::I32, &[of.len()], 0, 1) };
        case.input(LENGTHS, input)
    };
    let bias =
        |case: Case, hidden: usize| case.input(BIAS, CaseInput::float(&[hidden], Fill::Uniform(-1.0, 1.0)));
    let bare = |mut case: Case| {
        case.inputs[INITIAL] = None;
        case
    };
    let of = [4.0, 2.0, 0.0, 1.0];
    vec![
        case("forward", usual(), 3, 2, 3),
        case("reverse", usual().with("reverse", true), 3, 2, 3),
        case("linear", linear(), 3, 2, 3),
        bias(case("linear with a bias, reverse", linear().with("reverse", true), 3, 2, 3), 3),
        case("one step", usual(), 1, 2, 2),
        case("no step", linear(), 0, 2, 2),
        case("no sequence", usual(), 2, 0, 2),
        case("linear, no sequence", linear(), 2, 0, 2),
        case("many rows", linear(), 2, 70, 8),
        bare(case("no initial state", usual(), 3, 2, 3)),
        bare(case("linear, no initial state", linear(), 3, 2, 3)),
        lengths(case("lengths", usual(), 4, 4, 2), &of),
        lengths(case("lengths in reverse", usual().with("reverse", true), 4, 4, 2), &of),
        bias(lengths(case("linear, lengths", linear(), 4, 4, 2), &of), 2),
        bias(lengths(case("linear, lengths in reverse", linear().with("reverse", true), 4, 4, 2), &of), 2),
        bare(lengths(
            case("lengths in reverse, no initial state", linear().with("reverse", true), 4, 4, 2),
            &of,
        )),
        case("clipped", linear().with("clip", 0.5), 3, 2, 3),
        case("other functions", attrs(["HardSigmoid", "Softsign"]), 2, 2, 3),
        case("more functions", attrs(["Softplus", "ScaledTanh"]), 2, 2, 2),
    ]
}
