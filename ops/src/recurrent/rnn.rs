//! RNN: the plain recurrent layer, the steps of one direction, and its gradient.

use super::{
    Frame, Lengths, WeightGradient,
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

/// Runs a plain recurrent layer over a sequence in one direction.
///
/// Inputs: what the sequence contributes (products and biases) `[steps, batch, hidden]`, the recurrent weight `[hidden, hidden]`, optional
/// initial state `[batch, hidden]`, optional lengths (i32) `[batch]`. Outputs: states `[steps, batch, hidden]` (0 beyond a sequence's
/// end), last state. Attributes: see [`activations`] (one), `reverse`.
pub struct Rnn;

/// The gradient of [`Rnn`].
///
/// Inputs: states, recurrent weight; optional: initial state, lengths; optional cotangents of states and of the last state. Outputs:
/// cotangents of the sequence, the recurrent weight, the initial state. Attributes: as there.
pub struct RnnGrad;

pub(super) const INITIAL: usize = 2;
pub(super) const LENGTHS: usize = 3;
/// Cotangents of both outputs.
pub(super) const D: usize = 4;

fn infer(s: &Signature<'_>) -> Result<[TensorType; 2], OpError> {
    let [states, _, state] = types(s, 0, 1, 1)?;
    expect(s, INITIAL, &state, "the initial state")?;
    expect_lengths(s, LENGTHS, &state)?;
    activations::<f64, 1>(s.attrs)?;
    s.attrs.int_or("reverse", 0)?;
    Ok([states, state])
}

impl OpDef for Rnn {
    fn name(&self) -> &'static str {
        "Rnn"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["RNN" => import::rnn]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        Ok(infer(s)?.to_vec())
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        check_invertible(g.attrs())?;
        let inputs = [
            Some(g.output(0)),
            g.opt_input(1),
            g.opt_input(INITIAL),
            g.opt_input(LENGTHS),
            g.cotangent(0),
            g.cotangent(1),
        ];
        let attrs = shared_attrs(g.attrs());
        let d = g.b.emit("RnnGrad", attrs, &inputs)?;
        for (i, d) in d.into_iter().enumerate() {
            if g.needs(i) {
                g.set(i, d);
            }
        }
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let flops = Frame::of(s, 0, 1, 1).map_or(0, |f| f.flops());
        Work { flops, bytes: s.io_bytes(), product: true }
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let turned = Frame::of(s, 0, 1, 1).map_or([0; 3], |f| [f.gates, f.hidden, f.hidden]);
        Facts {
            overwrites: vec![(0, 0)],
            can_fail: s.opt_input(LENGTHS).is_some(),
            ..Facts::with_workspace(scratch(s, 0, turned))
        }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let frame = Frame::of(s, 0, 1, 1)?;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => {
            let [f] = activations::<T, 1>(s.attrs)?;
            Ok(Box::new(move |io| forward(&frame, &f, io)))
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        export::rnn(x)
    }

    fn cases(&self) -> Vec<Case> {
        let attrs = |name: &str| {
            let a = super::activation::attributes(Attrs::new(), &[name], &[0.4], &[0.3]);
            a.expect("a known activation")
        };
        let case = |name, attrs: Attrs, steps: usize, batch: usize, hidden: usize| {
            Case::new(name, attrs, &[&[steps, batch, hidden], &[hidden, hidden], &[batch, hidden]])
        };
        let lengths = |case: Case, of: &[f64]| {
            let fill = Fill::Values(of.to_vec());
            let input = CaseInput { fill, ..CaseInput::ints(DType::I32, &[of.len()], 0, 1) };
            case.input(LENGTHS, input)
        };
        let bare = |mut case: Case| {
            case.inputs[INITIAL] = None;
            case
        };
        let reverse = || attrs("Tanh").with("reverse", true);
        let of = [4.0, 2.0, 0.0, 1.0];
        vec![
            case("forward", attrs("Tanh"), 3, 2, 4),
            case("reverse", reverse(), 3, 2, 4),
            case("one step", attrs("Tanh"), 1, 2, 3),
            case("no step", attrs("Tanh"), 0, 2, 3),
            case("no sequence", attrs("Tanh"), 2, 0, 3),
            case("many rows", attrs("Sigmoid"), 2, 70, 8),
            bare(case("no initial state", attrs("Tanh"), 3, 2, 4)),
            lengths(case("lengths", attrs("Tanh"), 4, 4, 3), &of),
            lengths(case("lengths in reverse", reverse(), 4, 4, 3), &of),
            bare(lengths(case("lengths in reverse, no initial state", reverse(), 4, 4, 3), &of)),
            case("clipped", attrs("Affine").with("clip", 0.5), 3, 2, 4),
            case("rectified", attrs("Relu"), 3, 2, 4),
        ]
    }
}

impl OpDef for RnnGrad {
    fn name(&self) -> &'static str {
        "RnnGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let [states, state] = infer(s)?;
        expect(s, D, &states, "a cotangent")?;
        expect(s, D + 1, &state, "a cotangent")?;
        Ok(vec![states, s.input(1)?.clone(), state])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let flops = Frame::of(s, 0, 1, 1).map_or(0, |f| f.flops().saturating_mul(2));
        Work { flops, bytes: s.io_bytes(), product: true }
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let rows = Frame::of(s, 0, 1, 1).map_or([0; 3], |f| [f.batch, f.hidden, 1]);
        Facts {
            overwrites: if s.opt_input(D).is_some() { vec![(0, D)] } else { vec![] },
            can_fail: s.opt_input(LENGTHS).is_some(),
            ..Facts::with_workspace(scratch(s, 0, rows))
        }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let frame = Frame::of(s, 0, 1, 1)?;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => {
            let [f] = activations::<T, 1>(s.attrs)?;
            Ok(Box::new(move |io| backward(&frame, &f, io)))
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        export::rnn_grad(x)
    }

    fn cases(&self) -> Vec<Case> {
        let attrs = super::activation::attributes(Attrs::new(), &["Tanh"], &[], &[]);
        let attrs = attrs.expect("a known activation");
        let (t, b, h) = (3, 5, 4);
        let all: [&[usize]; 6] = [&[t, b, h], &[h, h], &[b, h], &[b], &[t, b, h], &[b, h]];
        let lengths = CaseInput::ints(DType::I32, &[b], 0, 4);
        let mut last = Case::new("of the last state", attrs.clone(), &all);
        for i in [INITIAL, LENGTHS, D] {
            last.inputs[i] = None;
        }
        vec![Case::new("everything", attrs.with("reverse", true), &all).input(LENGTHS, lengths), last]
    }
}

fn forward<T: Math>(frame: &Frame, f: &Activation<T>, io: &Io<'_>) -> Result<(), KernelError> {
    let Frame { steps, batch, hidden, .. } = *frame;
    let lengths = Lengths::read(io, LENGTHS, frame)?;
    let turned = io.workspace::<T>();
    turn(io.input::<T>(1), hidden, turned);
    let weight = Mat::rows(turned.as_mut_ptr(), hidden);
    let [y, state] = [0, 1].map(|o| io.output_ptr::<T>(o).0);
    let x = io.input_ptr::<T>(0).0;
    // SAFETY: every address stays inside its tensor, whose sizes inference fixed; the steps run one after the other.
    unsafe {
        copy_or_zero(optional(io, INITIAL), state, batch * hidden);
        for k in 0..steps {
            let t = frame.time(k);
            let y = y.add(t * batch * hidden);
            copy_or_zero(x.add(t * batch * hidden), y, batch * hidden);
            let (from, to) = (Mat::rows(state, hidden), Mat::rows(y, hidden));
            multiply_par([batch, hidden, hidden], T::ONE, from, weight, T::ONE, to);
            let (y, state) = (Shared(y), Shared(state));
            lanes::each(batch, frame.grain(), |r| {
                let (y, state) = (&y, &state);
                for b in r {
                    let y = y.0.add(b * hidden);
                    if lengths.has(b, t) {
                        f.apply(hidden, y);
                        copy_or_zero(y, state.0.add(b * hidden), hidden);
                    } else {
                        copy_or_zero(std::ptr::null(), y, hidden);
                    }
                }
            });
        }
    }
    Ok(())
}

fn backward<T: Math>(frame: &Frame, f: &Activation<T>, io: &Io<'_>) -> Result<(), KernelError> {
    let Frame { steps, batch, hidden, .. } = *frame;
    let lengths = Lengths::read(io, LENGTHS, frame)?;
    let [y, r] = [0, 1].map(|i| Shared(io.input_ptr::<T>(i).0.cast_mut()));
    let [out, dr, dstate] = [0, 1, 2].map(|o| io.output_ptr::<T>(o).0);
    let dy = Shared(optional::<T>(io, D).cast_mut());
    let scratch = io.workspace::<T>().as_mut_ptr();
    // SAFETY: as in `forward`.
    unsafe {
        copy_or_zero(optional(io, D + 1), dstate, batch * hidden);
        for k in (0..steps).rev() {
            let t = frame.time(k);
            let d = out.add(t * batch * hidden);
            let (to, state) = (Shared(d), Shared(dstate));
            lanes::each(
                batch,
                frame.grain(),
                #[inline(always)]
                |r| {
                    let (to, state, y, dy) = (&to, &state, &y, &dy);
                    for b in r {
                        let (d, s) = (to.0.add(b * hidden), state.0.add(b * hidden));
                        if !lengths.has(b, t) {
                            copy_or_zero(std::ptr::null(), d, hidden);
                            continue;
                        }
                        let at = t * batch + b;
                        let given = row_of(*dy, at, hidden);
                        if given.is_null() {
                            copy_or_zero(s, d, hidden);
                        } else {
                            lanes::map(hidden, [s.cast_const(), given], [d], |[s, d]| [s + d]);
                        }
                        f.pull(hidden, row_of(*y, at, hidden), d);
                        copy_or_zero(std::ptr::null(), s, hidden);
                    }
                },
            );
            let (from, weight) = (Mat::rows(d, hidden), Mat::rows(r.0, hidden));
            multiply_par([batch, hidden, hidden], T::ONE, from, weight, T::ONE, Mat::rows(dstate, hidden));
        }
        let initial = optional(io, INITIAL);
        WeightGradient { d: out, row: hidden, columns: 0..hidden, y: y.0, initial, scratch }
            .write(frame, lengths, dr);
    }
    Ok(())
}
