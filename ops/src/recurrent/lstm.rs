//! LSTM: the steps of one direction.

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

/// Runs an LSTM over a sequence in one direction.
///
/// Inputs: what the sequence contributes to the gates (products and biases) `[steps, batch, 4 * hidden]`, the recurrent weight
/// `[4 * hidden, hidden]`, optional initial state and cell `[batch, hidden]`, optional lengths (i32) `[batch]`, optional peepholes
/// `[3 * hidden]` (input, output, forget). Gates are in ONNX's order: input, output, forget, cell.
///
/// Outputs: states `[steps, batch, hidden]` (0 beyond a sequence's end), last state, last cell, activated gates `[steps, batch, 4 * hidden]`
/// and cells `[steps, batch, hidden]` (beyond the end: the last). Attributes: see [`activations`] (gates, cell, state), `reverse`,
/// `input_forget` (the forget gate is 1 less the input gate). The clip is of the gates' arguments, not of the cell's, as ONNX Runtime reads
/// it.
pub struct Lstm;

pub(super) const INITIAL: usize = 2;
pub(super) const CELL: usize = 3;
pub(super) const LENGTHS: usize = 4;
pub(super) const PEEPHOLES: usize = 5;

impl OpDef for Lstm {
    fn name(&self) -> &'static str {
        "Lstm"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["LSTM" => import::lstm]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let [x, states, state] = types(s, 0, 1, 4)?;
        expect(s, INITIAL, &state, "the initial state")?;
        expect(s, CELL, &state, "the initial cell")?;
        expect_lengths(s, LENGTHS, &state)?;
        expect(s, PEEPHOLES, &peepholes(&state), "the peepholes")?;
        activations::<f64, 3>(s.attrs)?;
        s.attrs.int_or("input_forget", 0)?;
        s.attrs.int_or("reverse", 0)?;
        Ok(vec![states.clone(), state.clone(), state, x, states])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        check_invertible(g.attrs())?;
        let inputs = [
            Some(g.output(3)),
            Some(g.output(4)),
            Some(g.output(0)),
            g.opt_input(1),
            g.opt_input(INITIAL),
            g.opt_input(CELL),
            g.opt_input(LENGTHS),
            g.opt_input(PEEPHOLES),
            g.cotangent(0),
            g.cotangent(1),
            g.cotangent(2),
            g.cotangent(3),
            g.cotangent(4),
        ];
        let attrs = shared_attrs(g.attrs());
        let d = g.b.emit("LstmGrad", attrs, &inputs)?;
        let to = [0, 1, INITIAL, CELL, PEEPHOLES];
        for (i, d) in to.into_iter().zip(d) {
            if g.needs(i) {
                g.set(i, d);
            }
        }
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let flops = Frame::of(s, 0, 1, 4).map_or(0, |f| f.flops());
        Work { flops, bytes: s.io_bytes(), product: true }
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let turned = Frame::of(s, 0, 1, 4).map_or([0; 3], |f| [f.gates, f.hidden, f.hidden]);
        Facts {
            overwrites: vec![(3, 0)],
            can_fail: s.opt_input(LENGTHS).is_some(),
            ..Facts::with_workspace(scratch(s, 0, turned))
        }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let frame = Frame::of(s, 0, 1, 4)?;
        let coupled = s.attrs.int_or("input_forget", 0)? != 0;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => {
            let [f, g, h] = activations::<T, 3>(s.attrs)?;
            let cell = Cell { frame, coupled, f, g, h: h.uncut() };
            Ok(Box::new(move |io| cell.run(io)))
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        export::lstm(x)
    }

    fn cases(&self) -> Vec<Case> {
        cases()
    }
}

/// The type of the peepholes of a state `[batch, hidden]`.
pub(super) fn peepholes(state: &TensorType) -> TensorType {
    let hidden = graph::Dim::constant(3).mul(&state.shape.0[1]);
    TensorType { dtype: state.dtype, shape: graph::Shape(vec![hidden]) }
}

/// A layer with fixed sizes.
#[derive(Clone, Copy)]
pub(super) struct Cell<T> {
    pub(super) frame: Frame,
    /// The forget gate is 1 less the input gate.
    pub(super) coupled: bool,
    /// Of the gates, of the cell's input, of the cell.
    pub(super) f: Activation<T>,
    pub(super) g: Activation<T>,
    pub(super) h: Activation<T>,
}

/// The memory of one step, each with a row for every sequence.
struct Step<'a, T> {
    t: usize,
    lengths: Lengths<'a>,
    gates: Shared<T>,
    /// The cell before the step; null for zeros.
    before: Shared<T>,
    cell: Shared<T>,
    y: Shared<T>,
    state: Shared<T>,
    /// Null if there are none.
    peepholes: Shared<T>,
}

impl<T: Math> Cell<T> {
    fn run(&self, io: &Io<'_>) -> Result<(), KernelError> {
        let Frame { steps, batch, hidden, .. } = self.frame;
        let row = self.frame.row();
        let lengths = Lengths::read(io, LENGTHS, &self.frame)?;
        let turned = io.workspace::<T>();
        turn(io.input::<T>(1), hidden, turned);
        let [y, state, last, gates, cells] = [0, 1, 2, 3, 4].map(|o| io.output_ptr::<T>(o).0);
        let x = io.input_ptr::<T>(0).0;
        let initial = Shared(optional::<T>(io, CELL).cast_mut());
        let mut before = initial;
        // SAFETY: every address stays inside its tensor, whose sizes inference fixed; the steps run one after the other.
        unsafe {
            copy_or_zero(optional(io, INITIAL), state, batch * hidden);
            for k in 0..steps {
                let t = self.frame.time(k);
                let (g, cell) = (gates.add(t * batch * row), cells.add(t * batch * hidden));
                copy_or_zero(x.add(t * batch * row), g, batch * row);
                let weight = Mat::rows(turned.as_mut_ptr(), row);
                multiply_par(
                    [batch, row, hidden],
                    T::ONE,
                    Mat::rows(state, hidden),
                    weight,
                    T::ONE,
                    Mat::rows(g, row),
                );
                let step = Step {
                    t,
                    lengths,
                    gates: Shared(g),
                    before,
                    cell: Shared(cell),
                    y: Shared(y.add(t * batch * hidden)),
                    state: Shared(state),
                    peepholes: Shared(optional::<T>(io, PEEPHOLES).cast_mut()),
                };
                lanes::each(
                    batch,
                    self.frame.grain(),
                    #[inline(always)]
                    |r| r.for_each(|b| self.step(&step, b)),
                );
                before = Shared(cell);
            }
            copy_or_zero(before.0.cast_const(), last, batch * hidden);
        }
        Ok(())
    }

    /// One sequence's step, after the products.
    ///
    /// # Safety
    ///
    /// The step's memory has a row for sequence `b`, which nobody else touches.
    #[inline(always)]
    unsafe fn step(&self, s: &Step<'_, T>, b: usize) {
        let n = self.frame.hidden;
        // SAFETY: rows of the tensors; peepholes have three runs of `n` elements.
        unsafe {
            let i = s.gates.0.add(b * 4 * n);
            let (o, f, g) = (i.add(n), i.add(2 * n), i.add(3 * n));
            let (cell, y, state) = (s.cell.0.add(b * n), s.y.0.add(b * n), s.state.0.add(b * n));
            let mut before = row_of(s.before, b, n);
            if !s.lengths.has(b, s.t) {
                copy_or_zero(before, cell, n);
                std::slice::from_raw_parts_mut(y, n).fill(T::ZERO);
                std::slice::from_raw_parts_mut(i, 4 * n).fill(T::ZERO);
                return;
            }
            let add_cell = |gate: *mut T, weight: usize, cell: *const T| {
                let weight = s.peepholes.0.add(weight * n).cast_const();
                lanes::map(n, [gate.cast_const(), weight, cell], [gate], |[g, w, c]| [w.fma(c, g)]);
            };
            let peepholes = !s.peepholes.0.is_null();
            if before.is_null() {
                // Zeros to read, where the new cell goes.
                std::slice::from_raw_parts_mut(cell, n).fill(T::ZERO);
                before = cell;
            }
            if peepholes {
                add_cell(i, 0, before);
                add_cell(f, 2, before);
                self.f.apply(n, i);
            } else {
                self.f.apply(2 * n, i);
            }
            if self.coupled {
                lanes::map(n, [i.cast_const()], [f], |[i]| [T::ONE - i]);
            } else {
                self.f.apply(n, f);
            }
            self.g.apply(n, g);
            let reads = [i, f, g].map(|p| p.cast_const());
            lanes::map(n, [reads[0], reads[1], reads[2], before], [cell], |[i, f, g, c]| [f.fma(c, i * g)]);
            if peepholes {
                add_cell(o, 1, cell);
                self.f.apply(n, o);
            }
            copy_or_zero(cell, state, n);
            self.h.apply(n, state);
            lanes::map(n, [o.cast_const(), state.cast_const()], [state, y], |[o, h]| [o * h; 2]);
        }
    }
}

/// Cases of the layer: every input, both directions, all activations in turn.
fn cases() -> Vec<Case> {
    let attrs = |names: [&str; 3]| {
        let a = super::activation::attributes(Attrs::new(), &names, &[0.4, 0.3, 0.2], &[0.3, 0.6, 0.1]);
        a.expect("known activations")
    };
    let usual = || attrs(["Sigmoid", "Tanh", "Tanh"]);
    let case = |name, attrs: Attrs, steps: usize, batch: usize, hidden: usize| {
        Case::new(
            name,
            attrs,
            &[&[steps, batch, 4 * hidden], &[4 * hidden, hidden], &[batch, hidden], &[batch, hidden]],
        )
    };
    let lengths = |case: Case, of: &[f64]| {
        let fill = Fill::Values(of.to_vec());
        let input = CaseInput { fill, ..CaseInput::ints(DType::I32, &[of.len()], 0, 1) };
        case.input(LENGTHS, input)
    };
    let peepholes = |case: Case, hidden: usize| {
        case.input(PEEPHOLES, CaseInput::float(&[3 * hidden], Fill::Uniform(-1.0, 1.0)))
    };
    let reverse = || usual().with("reverse", true);
    let mut bare = case("no initial state", usual(), 3, 2, 3);
    bare.inputs.truncate(INITIAL);
    let mut bare_back =
        lengths(case("lengths in reverse, no initial state", reverse(), 3, 2, 2), &[3.0, 2.0]);
    (bare_back.inputs[INITIAL], bare_back.inputs[CELL]) = (None, None);
    let all = peepholes(
        lengths(case("everything", reverse().with("input_forget", true), 3, 3, 2), &[2.0, 3.0, 0.0]),
        2,
    );
    vec![
        case("forward", usual(), 3, 2, 3),
        case("reverse", reverse(), 3, 2, 3),
        case("one step", usual(), 1, 2, 2),
        case("no step", usual(), 0, 2, 2),
        case("no sequence", usual(), 2, 0, 2),
        case("many rows", usual(), 2, 70, 8),
        bare,
        lengths(case("lengths", usual(), 4, 4, 2), &[4.0, 2.0, 0.0, 1.0]),
        lengths(case("lengths in reverse", reverse(), 4, 4, 2), &[4.0, 2.0, 0.0, 1.0]),
        bare_back,
        peepholes(case("peepholes", usual(), 3, 2, 2), 2),
        case("coupled gates", usual().with("input_forget", true), 2, 2, 3),
        all,
        case("clipped", usual().with("clip", 0.5), 3, 2, 3),
        case("other functions", attrs(["HardSigmoid", "Softsign", "ScaledTanh"]), 2, 2, 3),
        case("more functions", attrs(["Softplus", "Affine", "LeakyRelu"]).with("clip", 1.5), 2, 2, 2),
        case("yet more", attrs(["Elu", "LeakyRelu", "Affine"]), 2, 2, 2),
    ]
}
