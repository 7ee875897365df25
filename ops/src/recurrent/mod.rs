//! Recurrent layers: LSTM, GRU and RNN, one node a direction.
//!
//! What every step's input contributes is one matrix product over all steps, made of canonical operators by the import rule. The node
//! here runs the steps: the product with the last hidden state, the activations, the new state. It keeps the activated gates, from which
//! the backward node (`..Grad`) follows without the inputs of any activation; the weight's gradient is again one product over all steps.
//!
//! Tensors are time-major. A sequence shorter than the others (`lengths`) leaves its state alone and outputs zeros beyond its end; in
//! reverse it begins at its own last step. One of length 0 gives its initial state and cell as the last ones: ONNX does not say, ONNX Runtime
//! gives zeros, but only so is the state after two pieces of a sequence that of the whole one, wherever it is cut.

mod activation;
pub(crate) mod cuda;
mod export;
pub mod gru;
pub mod gru_grad;
mod import;
pub mod lstm;
pub mod lstm_grad;
pub mod rnn;

use crate::{
    OpError, Signature,
    cpu::{
        Io, KernelError, Math,
        par::{self, Shared},
    },
    loss::same_shape,
    product::{
        gemm::{Mat, multiply_par},
        matmul::same_dim,
    },
};
use graph::{Attrs, DType, Dim, Shape, TensorType};

/// Elements of a row-wise piece of work, which has several transcendental functions an element.
const GRAIN: usize = 1 << 11;

/// Sizes of a layer of one direction, and the order of its steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    steps: usize,
    batch: usize,
    hidden: usize,
    /// Gates of a cell: the second tensor has `gates * hidden` columns.
    gates: usize,
    reverse: bool,
}

impl Frame {
    /// From the types of input `x`, `[steps, batch, gates * hidden]`, and of the recurrent weight, input `r`.
    fn of(s: &Signature<'_>, x: usize, r: usize, gates: usize) -> Result<Frame, OpError> {
        let (x, r) = (s.dims(x)?, s.dims(r)?);
        let (&[steps, batch, _], &[_, hidden]) = (&x[..], &r[..]) else {
            return Err(OpError::invalid("the sequence must have 3 axes and the recurrent weight 2"));
        };
        Ok(Frame { steps, batch, hidden, gates, reverse: s.attrs.int_or("reverse", 0)? != 0 })
    }

    /// Elements of the gates of one step.
    fn row(&self) -> usize {
        self.gates * self.hidden
    }

    /// The time of the `k`-th step that runs.
    fn time(&self, k: usize) -> usize {
        if self.reverse { self.steps - 1 - k } else { k }
    }

    /// The time whose state the step at time `t` starts from; `None` for the initial state.
    fn before(&self, lengths: Lengths<'_>, t: usize, b: usize) -> Option<usize> {
        if self.reverse {
            Some(t + 1).filter(|t| *t < lengths.of(b).unwrap_or(self.steps))
        } else {
            t.checked_sub(1)
        }
    }

    /// Sequences that make a piece of work.
    fn grain(&self) -> usize {
        (GRAIN / self.row().max(1)).max(1)
    }

    /// Multiply-adds of one product of a step's states with the weight, times 2, over all steps.
    fn flops(&self) -> u64 {
        [self.batch, self.row(), self.hidden, 2]
            .iter()
            .fold(self.steps as u64, |n, k| n.saturating_mul(*k as u64))
    }
}

/// The lengths of the sequences of a batch, if they differ.
#[derive(Clone, Copy)]
pub(crate) struct Lengths<'a>(Option<&'a [i32]>);

impl<'a> Lengths<'a> {
    /// Optional input `i`, checked.
    fn read(io: &'a Io<'_>, i: usize, frame: &Frame) -> Result<Lengths<'a>, KernelError> {
        if !io.has(i) {
            return Ok(Lengths(None));
        }
        let lengths = io.input::<i32>(i);
        for (b, n) in lengths.iter().enumerate() {
            if usize::try_from(*n).ok().is_none_or(|n| n > frame.steps) {
                return Err(KernelError(format!(
                    "the length {n} of sequence {b} is not between 0 and the {} steps",
                    frame.steps
                )));
            }
        }
        Ok(Lengths(Some(lengths)))
    }

    fn of(self, b: usize) -> Option<usize> {
        self.0.map(|l| l[b] as usize)
    }

    /// Whether sequence `b` has a step at time `t`.
    fn has(self, b: usize, t: usize) -> bool {
        self.of(b).is_none_or(|n| t < n)
    }
}

/// The types of `[steps, batch, gates * hidden]`, `[steps, batch, hidden]` and `[batch, hidden]` from inputs `x` and `r`, checked.
fn types(s: &Signature<'_>, x: usize, r: usize, gates: i64) -> Result<[TensorType; 3], OpError> {
    let (x, r) = (s.input(x)?, s.input(r)?);
    if !x.dtype.is_float() || r.dtype != x.dtype {
        return Err(OpError::invalid(format!(
            "the sequence and the recurrent weight must have one floating-point dtype, not {} and {}",
            x.dtype, r.dtype
        )));
    }
    let ([steps, batch, columns], [rows, hidden]) = (&x.shape.0[..], &r.shape.0[..]) else {
        return Err(OpError::invalid(format!(
            "the sequence must have 3 axes and the recurrent weight 2, not {} and {}",
            x.shape, r.shape
        )));
    };
    let want = Dim::constant(gates).mul(hidden);
    same_dim(rows, &want, "the recurrent weight's rows and the gates of the hidden size")?;
    same_dim(columns, &want, "the sequence's columns and the gates of the hidden size")?;
    let of = |dims: &[&Dim]| TensorType {
        dtype: x.dtype,
        shape: Shape(dims.iter().map(|d| (*d).clone()).collect()),
    };
    Ok([x.clone(), of(&[steps, batch, hidden]), of(&[batch, hidden])])
}

/// Refuses input `i`, if given, unless it has this type.
fn expect(s: &Signature<'_>, i: usize, want: &TensorType, what: &str) -> Result<(), OpError> {
    match s.opt_input(i) {
        Some(t) if t.dtype != want.dtype => {
            Err(OpError::invalid(format!("{what} must be {}, not {}", want.dtype, t.dtype)))
        }
        Some(t) => same_shape(&want.shape, &t.shape, what),
        None => Ok(()),
    }
}

/// Refuses lengths at input `i` unless they are one i32 a sequence.
fn expect_lengths(s: &Signature<'_>, i: usize, state: &TensorType) -> Result<(), OpError> {
    let want = TensorType { dtype: DType::I32, shape: Shape(vec![state.shape.0[0].clone()]) };
    expect(s, i, &want, "the lengths of the sequences")
}

/// The attributes that the backward node shares with the forward node.
fn shared_attrs(attrs: &Attrs) -> Attrs {
    let mut out = Attrs::new();
    for name in ["activations", "alphas", "betas", "clip", "reverse", "input_forget", "linear_before_reset"] {
        if let Some(a) = attrs.get(name) {
            out = out.with(name, a.clone());
        }
    }
    out
}

/// Bytes of a box of elements of the type of input `i`.
fn scratch(s: &Signature<'_>, i: usize, extents: [usize; 3]) -> u64 {
    let size = s.opt_input(i).map_or(0, |t| t.dtype.size());
    extents.iter().fold(size, |n, d| n.saturating_mul(*d as u64))
}

/// `to = from`, or zeros where `from` is no given input; nothing where they are the same memory.
///
/// # Safety
///
/// `from`, unless null, is readable and `to` writable for `n` elements; they are the same or do not overlap.
unsafe fn copy_or_zero<T: Math>(from: *const T, to: *mut T, n: usize) {
    // SAFETY: by this function's contract.
    unsafe {
        if from.is_null() {
            std::slice::from_raw_parts_mut(to, n).fill(T::ZERO);
        } else if !std::ptr::eq(from, to) {
            std::ptr::copy_nonoverlapping(from, to, n);
        }
    }
}

/// The address of input `i`, null if it is left out.
fn optional<T: Math>(io: &Io<'_>, i: usize) -> *const T {
    if io.has(i) { io.input_ptr::<T>(i).0 } else { std::ptr::null() }
}

/// Row `i` of rows of `n` elements at an optional address.
fn row_of<T>(p: Shared<T>, i: usize, n: usize) -> *const T {
    if p.0.is_null() { std::ptr::null() } else { p.0.wrapping_add(i * n).cast_const() }
}

/// The transpose of the recurrent weight `[rows, hidden]`, so that every step multiplies with rows that lie in order.
fn turn<T: Math>(r: &[T], hidden: usize, out: &mut [T]) {
    // Blocks that stay in the cache while they are read along columns.
    const COLUMNS: usize = 16;
    const ROWS: usize = 64;
    let (rows, out) = (r.len() / hidden.max(1), Shared(out.as_mut_ptr()));
    par::ranges(hidden.div_ceil(COLUMNS), 1, |blocks| {
        let out = &out;
        for block in blocks {
            let columns = block * COLUMNS..((block + 1) * COLUMNS).min(hidden);
            for first in (0..rows).step_by(ROWS) {
                for j in columns.clone() {
                    for i in first..(first + ROWS).min(rows) {
                        // SAFETY: inside the output, which has as many elements as the weight; written once.
                        unsafe { *out.0.add(j * rows + i) = r[i * hidden + j] };
                    }
                }
            }
        }
    });
}

/// What the recurrent weight's gradient is made of: for every step, gates' cotangents times the state the step started from.
struct WeightGradient<T> {
    /// Cotangents `[steps, batch, row]`, and how many elements a sequence's row has.
    d: *mut T,
    row: usize,
    /// Columns of the cotangents that belong to this part of the weight.
    columns: std::ops::Range<usize>,
    /// The layer's outputs `[steps, batch, hidden]`, zeros beyond the ends of sequences.
    y: *mut T,
    /// The initial state `[batch, hidden]`, or null.
    initial: *const T,
    /// `[batch, columns]`.
    scratch: *mut T,
}

impl<T: Math> WeightGradient<T> {
    /// Writes `[columns, hidden]` to `out`.
    ///
    /// # Safety
    ///
    /// The addresses are those of tensors of the frame's sizes; `out` and `scratch` are writable and overlap nothing.
    unsafe fn write(&self, frame: &Frame, lengths: Lengths<'_>, out: *mut T) {
        let Frame { steps, batch, hidden, .. } = *frame;
        let columns = self.columns.len();
        let shape = |rows: usize| [columns, hidden, rows];
        let at = |p: *mut T, t: usize, n: usize| p.wrapping_add(t * batch * n);
        let cotangents =
            |t: usize| Mat::cols(at(self.d, t, self.row).wrapping_add(self.columns.start), self.row);
        // The step at time t starts from the output one step before; where that lies beyond a sequence's end it is zero, and where t
        // does the cotangent is.
        let (d, y) = if frame.reverse { (0, 1) } else { (1, 0) };
        // SAFETY: by this function's contract; rows `d..` and `y..` of all but one step lie inside the tensors.
        unsafe {
            if steps < 2 {
                std::slice::from_raw_parts_mut(out, columns * hidden).fill(T::ZERO);
            } else {
                let y = Mat::rows(at(self.y, y, hidden), hidden);
                multiply_par(
                    shape((steps - 1) * batch),
                    T::ONE,
                    cotangents(d),
                    y,
                    T::ZERO,
                    Mat::rows(out, hidden),
                );
            }
            if self.initial.is_null() || steps == 0 {
                return;
            }
            let initial = Mat::rows(self.initial.cast_mut(), hidden);
            let first = match lengths.0 {
                Some(lengths) if frame.reverse => {
                    for (b, n) in lengths.iter().enumerate() {
                        let to = self.scratch.add(b * columns);
                        let row = |t: usize| {
                            at(self.d, t, self.row).wrapping_add(b * self.row + self.columns.start)
                        };
                        let from = (*n > 0).then(|| row(*n as usize - 1).cast_const());
                        copy_or_zero(from.unwrap_or(std::ptr::null()), to, columns);
                    }
                    Mat::cols(self.scratch, columns)
                }
                _ => cotangents(frame.time(0)),
            };
            multiply_par(shape(batch), T::ONE, first, initial, T::ONE, Mat::rows(out, hidden));
        }
    }
}

/// The sum of `a[r][j] * b[r][j]` over rows, in blocks with float64 beyond; columns side by side.
///
/// # Safety
///
/// `a` and `b` hold `rows` rows, `stride_a` and `stride_b` apart, of at least `out.len()` elements.
unsafe fn column_products<T: Math>(
    rows: usize,
    (a, stride_a): (*const T, usize),
    (b, stride_b): (*const T, usize),
    out: &mut [f64],
) {
    for r in 0..rows {
        for (j, o) in out.iter_mut().enumerate() {
            // SAFETY: by this function's contract.
            *o += unsafe { (*a.add(r * stride_a + j)).to_f64() * (*b.add(r * stride_b + j)).to_f64() };
        }
    }
}
