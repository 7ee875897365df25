//! The backward steps of an LSTM.

use super::{
    Frame, Lengths, WeightGradient,
    activation::activations,
    column_products, copy_or_zero, expect, expect_lengths, export,
    lstm::{Cell, peepholes},
    optional, row_of, scratch, types,
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{
        CpuKernel, Io, KernelError, Math,
        lanes::{self, LANES},
        par::{self, Shared},
    },
    export::Export,
    product::gemm::{Mat, multiply_par},
};
use graph::{Attrs, DType, TensorType};

/// The gradient of [`Lstm`](super::lstm::Lstm).
///
/// Inputs: gates, cells and states that it gave, recurrent weight; optional: initial state, initial cell, lengths, peepholes; optional
/// cotangents of states, last state, last cell, gates, cells. Outputs: cotangents of the sequence, the recurrent weight, the initial
/// state and cell, and of the peepholes if there are any. Attributes: as there.
pub struct LstmGrad;

pub(super) const Y: usize = 2;
pub(super) const R: usize = 3;
pub(super) const INITIAL: usize = 4;
pub(super) const CELL: usize = 5;
pub(super) const LENGTHS: usize = 6;
pub(super) const PEEPHOLES: usize = 7;
/// Cotangents of the five outputs.
pub(super) const D: usize = 8;

impl OpDef for LstmGrad {
    fn name(&self) -> &'static str {
        "LstmGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let [x, states, state] = types(s, 0, R, 4)?;
        for i in [1, Y] {
            s.input(i)?;
            expect(s, i, &states, "cells and states")?;
        }
        let peepholes = peepholes(&state);
        expect(s, INITIAL, &state, "the initial state")?;
        expect(s, CELL, &state, "the initial cell")?;
        expect_lengths(s, LENGTHS, &state)?;
        expect(s, PEEPHOLES, &peepholes, "the peepholes")?;
        for (i, want) in [&states, &state, &state, &x, &states].into_iter().enumerate() {
            expect(s, D + i, want, "a cotangent")?;
        }
        activations::<f64, 3>(s.attrs)?;
        s.attrs.int_or("input_forget", 0)?;
        s.attrs.int_or("reverse", 0)?;
        let mut out = vec![x, s.input(R)?.clone(), state.clone(), state];
        out.extend(s.opt_input(PEEPHOLES).map(|_| peepholes));
        Ok(out)
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let flops = Frame::of(s, 0, R, 4).map_or(0, |f| f.flops().saturating_mul(2));
        Work { flops, bytes: s.io_bytes(), product: true }
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let rows = Frame::of(s, 0, R, 4).map_or([0; 3], |f| [f.batch, f.hidden, 5]);
        Facts {
            overwrites: vec![(0, 0)],
            can_fail: s.opt_input(LENGTHS).is_some(),
            ..Facts::with_workspace(scratch(s, 0, rows))
        }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let frame = Frame::of(s, 0, R, 4)?;
        let coupled = s.attrs.int_or("input_forget", 0)? != 0;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => {
            let [f, g, h] = activations::<T, 3>(s.attrs)?;
            let cell = Cell { frame, coupled, f, g, h: h.uncut() };
            Ok(Box::new(move |io| backward(&cell, io)))
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        export::lstm_grad(x)
    }

    fn cases(&self) -> Vec<Case> {
        let attrs = super::activation::attributes(Attrs::new(), &["Sigmoid", "Tanh", "Tanh"], &[], &[]);
        let attrs = attrs.expect("known activations");
        let (t, b, h) = (3, 5, 4);
        let all: [&[usize]; 13] = [
            &[t, b, 4 * h],
            &[t, b, h],
            &[t, b, h],
            &[4 * h, h],
            &[b, h],
            &[b, h],
            &[b],
            &[3 * h],
            &[t, b, h],
            &[b, h],
            &[b, h],
            &[t, b, 4 * h],
            &[t, b, h],
        ];
        let lengths = CaseInput::ints(DType::I32, &[b], 0, 4);
        let gates = CaseInput::float(&[t, b, 4 * h], Fill::Uniform(0.1, 0.9));
        let everything = Case::new("everything", attrs.clone().with("reverse", true), &all)
            .input(0, gates.clone())
            .input(LENGTHS, lengths);
        let mut plain = Case::new("plain", attrs, &all[..9]).input(0, gates);
        for i in [INITIAL, CELL, LENGTHS, PEEPHOLES] {
            plain.inputs[i] = None;
        }
        vec![everything, plain]
    }
}

/// The memory of one step, each with a row for every sequence; optional parts are null.
struct Step<'a, T> {
    t: usize,
    lengths: Lengths<'a>,
    gates: Shared<T>,
    cell: Shared<T>,
    before: Shared<T>,
    peepholes: Shared<T>,
    dy: Shared<T>,
    dgates: Shared<T>,
    dcells: Shared<T>,
    /// Cotangents of the state and the cell, as they stand.
    dstate: Shared<T>,
    dcell: Shared<T>,
    /// Where the gates' cotangents go; may be `gates`.
    out: Shared<T>,
    /// Five runs a row.
    scratch: Shared<T>,
}

fn backward<T: Math>(cell: &Cell<T>, io: &Io<'_>) -> Result<(), KernelError> {
    let frame = &cell.frame;
    let Frame { steps, batch, hidden, .. } = *frame;
    let row = frame.row();
    let lengths = Lengths::read(io, LENGTHS, frame)?;
    let [gates, cells, y, r] = [0, 1, Y, R].map(|i| Shared(io.input_ptr::<T>(i).0.cast_mut()));
    let opt = |i: usize| Shared(optional::<T>(io, i).cast_mut());
    let [out, dr, dstate, dcell] = [0, 1, 2, 3].map(|o| io.output_ptr::<T>(o).0);
    let scratch = io.workspace::<T>().as_mut_ptr();
    // SAFETY: every address stays inside its tensor, whose sizes inference fixed; the steps run one after the other.
    unsafe {
        copy_or_zero(opt(D + 1).0, dstate, batch * hidden);
        copy_or_zero(opt(D + 2).0, dcell, batch * hidden);
        for k in (0..steps).rev() {
            let t = frame.time(k);
            let at = |p: Shared<T>, n: usize| Shared(row_of(p, t, batch * n).cast_mut());
            let before = match k {
                0 => opt(CELL),
                _ => Shared(row_of(cells, frame.time(k - 1), batch * hidden).cast_mut()),
            };
            let step = Step {
                t,
                lengths,
                gates: at(gates, row),
                cell: at(cells, hidden),
                before,
                peepholes: opt(PEEPHOLES),
                dy: at(opt(D), hidden),
                dgates: at(opt(D + 3), row),
                dcells: at(opt(D + 4), hidden),
                dstate: Shared(dstate),
                dcell: Shared(dcell),
                out: at(Shared(out), row),
                scratch: Shared(scratch),
            };
            lanes::each(
                batch,
                frame.grain(),
                #[inline(always)]
                |r| r.for_each(|b| step_back(cell, &step, b)),
            );
            let (d, weight) = (Mat::rows(step.out.0, row), Mat::rows(r.0, hidden));
            multiply_par([batch, hidden, row], T::ONE, d, weight, T::ONE, Mat::rows(dstate, hidden));
        }
        let initial = opt(INITIAL).0.cast_const();
        WeightGradient { d: out, row, columns: 0..row, y: y.0, initial, scratch }.write(frame, lengths, dr);
        if io.has(PEEPHOLES) {
            peephole_gradient(frame, [Shared(out), cells, opt(CELL)], io.output_ptr::<T>(4).0);
        }
    }
    Ok(())
}

/// One sequence's step, before the product with the weight. Leaves in `dstate` what does not go through that product.
///
/// # Safety
///
/// The step's memory has a row for sequence `b`, which nobody else touches.
#[inline(always)]
unsafe fn step_back<T: Math>(cell: &Cell<T>, s: &Step<'_, T>, b: usize) {
    let n = cell.frame.hidden;
    // SAFETY: rows of the tensors; scratch has five runs of `n` elements a row.
    unsafe {
        let add = |d: *mut T, from: *const T| {
            if !from.is_null() {
                lanes::map(n, [d.cast_const(), from], [d], |[d, x]| [d + x]);
            }
        };
        let (dstate, dcell, out) = (s.dstate.0.add(b * n), s.dcell.0.add(b * n), s.out.0.add(b * 4 * n));
        add(dcell, row_of(s.dcells, b, n));
        if !s.lengths.has(b, s.t) {
            std::slice::from_raw_parts_mut(out, 4 * n).fill(T::ZERO);
            return;
        }
        add(dstate, row_of(s.dy, b, n));
        let gates = s.gates.0.add(b * 4 * n).cast_const();
        let [i, o, f, g] = [0, 1, 2, 3].map(|k| gates.add(k * n));
        let scratch = s.scratch.0.add(b * 5 * n);
        let [di, d_o, df, dg, hc] = [0, 1, 2, 3, 4].map(|k| scratch.add(k * n));
        let given = |k: usize| {
            let p = row_of(s.dgates, b, 4 * n);
            if p.is_null() { p } else { p.add(k * n) }
        };
        let peephole = |k: usize| s.peepholes.0.add(k * n).cast_const();
        let peepholes = !s.peepholes.0.is_null();

        copy_or_zero(s.cell.0.add(b * n), hc, n);
        cell.h.apply(n, hc);
        let ds = dstate.cast_const();
        lanes::map(n, [ds, hc.cast_const(), o], [d_o, di], |[d, h, o]| [d * h, d * o]);
        add(d_o, given(1));
        cell.f.pull(n, o, d_o);
        // `di` holds the cotangent of the activated cell for a moment.
        cell.h.pull(n, hc, di);
        add(dcell, di);
        if peepholes {
            lanes::map(n, [dcell.cast_const(), d_o.cast_const(), peephole(1)], [dcell], |[c, d, p]| {
                [d.fma(p, c)]
            });
        }
        let mut before = row_of(s.before, b, n);
        if before.is_null() {
            std::slice::from_raw_parts_mut(hc, n).fill(T::ZERO);
            before = hc;
        }
        let dc = dcell.cast_const();
        lanes::map(n, [dc, i, g, before], [di, dg, df], |[d, i, g, c]| [d * g, d * i, d * c]);
        add(df, given(2));
        if cell.coupled {
            lanes::map(n, [di.cast_const(), df.cast_const()], [di, df], |[i, f]| [i - f, T::ZERO]);
        } else {
            cell.f.pull(n, f, df);
        }
        add(di, given(0));
        cell.f.pull(n, i, di);
        add(dg, given(3));
        cell.g.pull(n, g, dg);
        lanes::map(n, [dc, f], [dcell], |[d, f]| [d * f]);
        if peepholes {
            let reads = [dc, di.cast_const(), df.cast_const(), peephole(0), peephole(2)];
            lanes::map(n, reads, [dcell], |[c, i, f, p, q]| [f.fma(q, i.fma(p, c))]);
        }
        std::ptr::copy_nonoverlapping(scratch, out, 4 * n);
        std::slice::from_raw_parts_mut(dstate, n).fill(T::ZERO);
    }
}

/// Sums over steps and sequences of the gates' cotangents times the cells they saw: input, output, forget.
///
/// # Safety
///
/// Cotangents and cells are tensors of the frame's sizes, the initial cell too unless it is null; `out` has room.
unsafe fn peephole_gradient<T: Math>(frame: &Frame, [d, cells, initial]: [Shared<T>; 3], out: *mut T) {
    let Frame { steps, batch, hidden, .. } = *frame;
    let (row, out) = (frame.row(), Shared(out));
    par::ranges(hidden.div_ceil(LANES) * 3, 1, |r| {
        let (d, cells, initial, out) = (&d, &cells, &initial, &out);
        for piece in r {
            let (gate, first) = (piece % 3, piece / 3 * LANES);
            let mut sums = [0.0; LANES];
            let sums = &mut sums[..LANES.min(hidden - first)];
            for t in 0..steps {
                // The output gate sees the new cell.
                let seen = if gate == 1 {
                    Some(t)
                } else if frame.reverse {
                    Some(t + 1).filter(|t| *t < steps)
                } else {
                    t.checked_sub(1)
                };
                let seen = seen.map_or(initial.0, |t| row_of(*cells, t, batch * hidden).cast_mut());
                if seen.is_null() {
                    continue;
                }
                let d = row_of(*d, t, batch * row).wrapping_add(gate * hidden + first);
                let seen = seen.wrapping_add(first).cast_const();
                // SAFETY: rows of the tensors.
                unsafe { column_products(batch, (d, row), (seen, hidden), sums) };
            }
            for (j, sum) in sums.iter().enumerate() {
                // SAFETY: inside the output, written once.
                unsafe { *out.0.add(gate * hidden + first + j) = T::from_f64(*sum) };
            }
        }
    });
}
