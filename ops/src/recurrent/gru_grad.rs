//! The backward steps of a GRU.

use super::{
    Frame, Lengths, WeightGradient,
    activation::activations,
    copy_or_zero, expect, expect_lengths, export,
    gru::{Cell, before, linear},
    optional, row_of, scratch, types,
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Io, KernelError, Math, lanes, par::Shared},
    export::Export,
    product::gemm::{Mat, multiply_par},
};
use graph::{Attrs, DType, TensorType};

/// The gradient of [`Gru`](super::gru::Gru).
///
/// Inputs: gates, what stood at the reset gate, states, recurrent weight; optional: initial state, lengths; optional cotangents of states,
/// last state, gates and the reset. Outputs: cotangents of the sequence, the recurrent weight, the initial state, and with
/// `linear_before_reset` of what the reset gate was multiplied with, whose sum is that of the bias there. Attributes: as there.
pub struct GruGrad;

pub(super) const Y: usize = 2;
pub(super) const R: usize = 3;
pub(super) const INITIAL: usize = 4;
pub(super) const LENGTHS: usize = 5;
/// Cotangents of the four outputs.
pub(super) const D: usize = 6;

impl OpDef for GruGrad {
    fn name(&self) -> &'static str {
        "GruGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let [x, states, state] = types(s, 0, R, 3)?;
        for i in [1, Y] {
            s.input(i)?;
            expect(s, i, &states, "resets and states")?;
        }
        expect(s, INITIAL, &state, "the initial state")?;
        expect_lengths(s, LENGTHS, &state)?;
        for (i, want) in [&states, &state, &x, &states].into_iter().enumerate() {
            expect(s, D + i, want, "a cotangent")?;
        }
        activations::<f64, 2>(s.attrs)?;
        s.attrs.int_or("reverse", 0)?;
        let mut out = vec![x, s.input(R)?.clone(), state];
        out.extend(linear(s.attrs)?.then_some(states));
        Ok(out)
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let flops = Frame::of(s, 0, R, 3).map_or(0, |f| f.flops().saturating_mul(2));
        Work { flops, bytes: s.io_bytes(), product: true }
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let rows = Frame::of(s, 0, R, 3).map_or([0; 3], |f| [f.batch, f.hidden, 4]);
        let mut overwrites = vec![(0, 0)];
        if s.outputs.len() > 3 {
            overwrites.push((3, 1));
        }
        Facts {
            overwrites,
            can_fail: s.opt_input(LENGTHS).is_some(),
            ..Facts::with_workspace(scratch(s, 0, rows))
        }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (frame, linear) = (Frame::of(s, 0, R, 3)?, linear(s.attrs)?);
        crate::for_float!(s.input(0)?.dtype, self.name(), T => {
            let [f, g] = activations::<T, 2>(s.attrs)?;
            let cell = Cell { frame, linear, f, g };
            Ok(Box::new(move |io| backward(&cell, io)))
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        export::gru_grad(x)
    }

    fn cases(&self) -> Vec<Case> {
        let attrs = super::activation::attributes(Attrs::new(), &["Sigmoid", "Tanh"], &[], &[]);
        let attrs = attrs.expect("known activations");
        let (t, b, h) = (3, 5, 4);
        let all: [&[usize]; 10] = [
            &[t, b, 3 * h],
            &[t, b, h],
            &[t, b, h],
            &[3 * h, h],
            &[b, h],
            &[b],
            &[t, b, h],
            &[b, h],
            &[t, b, 3 * h],
            &[t, b, h],
        ];
        let gates = CaseInput::float(&[t, b, 3 * h], Fill::Uniform(0.1, 0.9));
        let everything = |name, attrs: Attrs| {
            let lengths = CaseInput::ints(DType::I32, &[b], 0, 4);
            Case::new(name, attrs, &all).input(0, gates.clone()).input(LENGTHS, lengths)
        };
        let mut plain = Case::new("plain", attrs.clone(), &all[..7]).input(0, gates.clone());
        (plain.inputs[INITIAL], plain.inputs[LENGTHS]) = (None, None);
        vec![
            everything("everything", attrs.clone().with("reverse", true)),
            everything("linear, everything", attrs.with("linear_before_reset", true)),
            plain,
        ]
    }
}

/// The memory of one step, each with a row for every sequence; optional parts are null.
struct Step<'a, T> {
    t: usize,
    lengths: Lengths<'a>,
    gates: Shared<T>,
    inner: Shared<T>,
    /// States of all steps.
    y: Shared<T>,
    initial: Shared<T>,
    dy: Shared<T>,
    dgates: Shared<T>,
    given: Shared<T>,
    /// The cotangent of the state, as it stands.
    dstate: Shared<T>,
    /// Where the gates' cotangents go; may be `gates`.
    out: Shared<T>,
    /// Where the reset's cotangents go; may be `inner` if the layer is linear before the reset.
    reset: Shared<T>,
    /// Three runs a row.
    scratch: Shared<T>,
}

fn backward<T: Math>(cell: &Cell<T>, io: &Io<'_>) -> Result<(), KernelError> {
    let frame = &cell.frame;
    let Frame { steps, batch, hidden, .. } = *frame;
    let row = frame.row();
    let lengths = Lengths::read(io, LENGTHS, frame)?;
    let [gates, inner, y, r] = [0, 1, Y, R].map(|i| Shared(io.input_ptr::<T>(i).0.cast_mut()));
    let opt = |i: usize| Shared(optional::<T>(io, i).cast_mut());
    let [out, dr, dstate] = [0, 1, 2].map(|o| io.output_ptr::<T>(o).0);
    let scratch = io.workspace::<T>().as_mut_ptr();
    let weight = Mat::rows(r.0, hidden);
    // SAFETY: every address stays inside its tensor, whose sizes inference fixed; the steps run one after the other.
    unsafe {
        // Of all steps, or of one at a time.
        let resets = if cell.linear { io.output_ptr::<T>(3).0 } else { scratch.add(3 * batch * hidden) };
        copy_or_zero(opt(D + 1).0, dstate, batch * hidden);
        for k in (0..steps).rev() {
            let t = frame.time(k);
            let at = |p: Shared<T>, n: usize| Shared(row_of(p, t, batch * n).cast_mut());
            let step = Step {
                t,
                lengths,
                gates: at(gates, row),
                inner: at(inner, hidden),
                y,
                initial: opt(INITIAL),
                dy: at(opt(D), hidden),
                dgates: at(opt(D + 2), row),
                given: at(opt(D + 3), hidden),
                dstate: Shared(dstate),
                out: at(Shared(out), row),
                reset: if cell.linear { at(Shared(resets), hidden) } else { Shared(resets) },
                scratch: Shared(scratch),
            };
            lanes::each(
                batch,
                frame.grain(),
                #[inline(always)]
                |r| r.for_each(|b| gates_back(cell, &step, b)),
            );
            let (d, to) = (Mat::rows(step.out.0, row), Mat::rows(dstate, hidden));
            let (last, reset) = (weight.at(2 * hidden, 0), Mat::rows(step.reset.0, hidden));
            let square = [batch, hidden, hidden];
            if cell.linear {
                multiply_par(square, T::ONE, reset, last, T::ONE, to);
            } else {
                multiply_par(square, T::ONE, d.at(0, 2 * hidden), last, T::ZERO, reset);
                lanes::each(
                    batch,
                    frame.grain(),
                    #[inline(always)]
                    |r| r.for_each(|b| reset_back(cell, &step, b)),
                );
            }
            multiply_par([batch, hidden, 2 * hidden], T::ONE, d, weight, T::ONE, to);
        }
        let initial = opt(INITIAL).0.cast_const();
        let part = |d, row, columns| WeightGradient { d, row, columns, y: y.0, initial, scratch };
        part(out, row, 0..2 * hidden).write(frame, lengths, dr);
        let last = dr.add(2 * hidden * hidden);
        if cell.linear {
            part(resets, hidden, 0..hidden).write(frame, lengths, last);
        } else {
            let (d, by) = (Mat::cols(out.wrapping_add(2 * hidden), row), Mat::rows(inner.0, hidden));
            let shape = [hidden, hidden, steps * batch];
            if steps * batch == 0 {
                std::slice::from_raw_parts_mut(last, hidden * hidden).fill(T::ZERO);
            }
            multiply_par(shape, T::ONE, d, by, T::ZERO, Mat::rows(last, hidden));
        }
    }
    Ok(())
}

/// One sequence's step up to the reset; a linear layer's is complete but for the products. Leaves in `dstate` what goes through none.
///
/// # Safety
///
/// The step's memory has a row for sequence `b`, which nobody else touches.
#[inline(always)]
unsafe fn gates_back<T: Math>(cell: &Cell<T>, s: &Step<'_, T>, b: usize) {
    let n = cell.frame.hidden;
    // SAFETY: rows of the tensors; scratch has three runs of `n` elements a row.
    unsafe {
        let add = |d: *mut T, from: *const T| {
            if !from.is_null() {
                lanes::map(n, [d.cast_const(), from], [d], |[d, x]| [d + x]);
            }
        };
        let (dstate, out, reset) = (s.dstate.0.add(b * n), s.out.0.add(b * 3 * n), s.reset.0.add(b * n));
        if !s.lengths.has(b, s.t) {
            std::slice::from_raw_parts_mut(out, 3 * n).fill(T::ZERO);
            std::slice::from_raw_parts_mut(reset, n).fill(T::ZERO);
            return;
        }
        add(dstate, row_of(s.dy, b, n));
        let gates = s.gates.0.add(b * 3 * n).cast_const();
        let [z, r, h] = [0, 1, 2].map(|k| gates.add(k * n));
        let scratch = s.scratch.0.add(b * 3 * n);
        let [dz, dr, dh] = [0, 1, 2].map(|k| scratch.add(k * n));
        let given = |k: usize| {
            let p = row_of(s.dgates, b, 3 * n);
            if p.is_null() { p } else { p.add(k * n) }
        };
        let ds = dstate.cast_const();
        let before = before(&cell.frame, s.lengths, (s.t, b), s.y, s.initial);
        if before.is_null() {
            lanes::map(n, [ds, z, h], [dz, dh], |[d, z, h]| [-(d * h), d * (T::ONE - z)]);
        } else {
            lanes::map(n, [ds, z, h, before], [dz, dh], |[d, z, h, s]| [d * (s - h), d * (T::ONE - z)]);
        }
        lanes::map(n, [ds, z], [dstate], |[d, z]| [d * z]);
        add(dz, given(0));
        cell.f.pull(n, z, dz);
        add(dh, given(2));
        cell.g.pull(n, h, dh);
        if cell.linear {
            let inner = s.inner.0.add(b * n).cast_const();
            lanes::map(n, [dh.cast_const(), inner, r], [dr, reset], |[d, i, r]| [d * i, d * r]);
            add(reset, row_of(s.given, b, n));
            add(dr, given(1));
            cell.f.pull(n, r, dr);
            std::ptr::copy_nonoverlapping(dr, out.add(n), n);
        } else if !std::ptr::eq(gates, out) {
            // The reset gate itself, until its cotangent is known.
            std::ptr::copy_nonoverlapping(r, out.add(n), n);
        }
        std::ptr::copy_nonoverlapping(dz, out, n);
        std::ptr::copy_nonoverlapping(dh, out.add(2 * n), n);
    }
}

/// One sequence's reset, from the cotangent of the gate times the state in `reset`.
///
/// # Safety
///
/// As [`gates_back`], which has run.
#[inline(always)]
unsafe fn reset_back<T: Math>(cell: &Cell<T>, s: &Step<'_, T>, b: usize) {
    let n = cell.frame.hidden;
    if !s.lengths.has(b, s.t) {
        return;
    }
    // SAFETY: rows of the tensors.
    unsafe {
        let (dstate, reset) = (s.dstate.0.add(b * n), s.reset.0.add(b * n));
        let dr = s.scratch.0.add(b * 3 * n + n);
        let r = s.out.0.add(b * 3 * n + n);
        let given = row_of(s.given, b, n);
        if !given.is_null() {
            lanes::map(n, [reset.cast_const(), given], [reset], |[d, x]| [d + x]);
        }
        let before = before(&cell.frame, s.lengths, (s.t, b), s.y, s.initial);
        if before.is_null() {
            std::slice::from_raw_parts_mut(dr, n).fill(T::ZERO);
        } else {
            lanes::map(n, [reset.cast_const(), before], [dr], |[d, s]| [d * s]);
        }
        let reads = [dstate, reset, r].map(|p| p.cast_const());
        lanes::map(n, reads, [dstate], |[d, x, r]| [x.fma(r, d)]);
        let given = row_of(s.dgates, b, 3 * n);
        if !given.is_null() {
            lanes::map(n, [dr.cast_const(), given.add(n)], [dr], |[d, x]| [d + x]);
        }
        cell.f.pull(n, r, dr);
        std::ptr::copy_nonoverlapping(dr, r, n);
    }
}
