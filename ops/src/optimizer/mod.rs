//! Operators that change state: optimizer steps, running statistics, accumulated gradients, and the global gradient norm.
//!
//! They are the last nodes of a training step and work in place. All state updates take a trailing optional scalar `ok`: when it is 0
//! (a gradient is not finite), every output equals the old version bit for bit, so that a bad step changes nothing.

pub mod accumulate;
pub mod adam;
pub mod clip;
pub(crate) mod cuda;
pub mod running;
pub mod sgd;
use crate::{
    Facts, OpError, Signature,
    cpu::{Float, Io, par::Shared},
    export::{Export, Term},
};
use graph::{DType, TensorType};

/// Refuses input `i` unless it is left out or a scalar of `dtype`.
pub(crate) fn scalar(s: &Signature<'_>, i: usize, what: &str, dtype: DType) -> Result<(), OpError> {
    match s.opt_input(i) {
        Some(t) if t.dtype != dtype || t.shape.rank() != 0 => {
            Err(OpError::invalid(format!("{what} (input {i}) must be a {dtype} scalar, not {t}")))
        }
        _ => Ok(()),
    }
}

/// Refuses input `i` unless its type is that of input 0.
fn like_first(s: &Signature<'_>, i: usize, what: &str) -> Result<(), OpError> {
    let (first, t) = (s.input(0)?, s.input(i)?);
    if first != t {
        return Err(OpError::invalid(format!("{what} (input {i}) must be {first} like input 0, not {t}")));
    }
    Ok(())
}

/// The type of input 0, which must be floating-point.
fn state_type(s: &Signature<'_>) -> Result<TensorType, OpError> {
    let t = s.input(0)?;
    if !t.dtype.is_float() {
        return Err(OpError::invalid(format!("the state must be floating-point, not {}", t.dtype)));
    }
    Ok(t.clone())
}

/// Refuses more inputs than the operator has.
fn at_most(s: &Signature<'_>, n: usize) -> Result<(), OpError> {
    if s.inputs.len() > n {
        return Err(OpError::invalid(format!("at most {n} inputs, not {}", s.inputs.len())));
    }
    Ok(())
}

/// The new version in ONNX, or the old one where input `i` says that the step does not count.
fn kept_unless_ok<'a>(x: &Export<'a>, i: usize, old: Term<'a>, new: Term<'a>) -> Term<'a> {
    x.opt(i).map_or(new, |ok| ok.equals(0.0).pick(old, new))
}

fn commits(pairs: &[(usize, usize)]) -> Facts {
    Facts { commits: pairs.to_vec(), ..Facts::default() }
}

/// Whether the step counts: `ok` is left out or not 0.
fn ok(io: &Io<'_>, i: usize) -> bool {
    !io.has(i) || io.input::<f32>(i)[0] != 0.0
}

/// The factor on the gradient: 1 if it is left out.
fn gradient_scale(io: &Io<'_>, i: usize) -> f32 {
    if io.has(i) { io.input::<f32>(i)[0] } else { 1.0 }
}

/// Gives output `o` the bits of input `i`; nothing if they are one buffer.
fn keep<T: Float>(io: &Io<'_>, o: usize, i: usize) {
    let ((x, n), (y, _)) = (io.input_ptr::<T>(i), io.output_ptr::<T>(o));
    // SAFETY: both have `n` elements by inference; `copy` allows the same memory.
    unsafe { std::ptr::copy(x, y, n) };
}

/// Input `i` as an address that crosses threads.
fn read<T: Float>(io: &Io<'_>, i: usize) -> Shared<T> {
    Shared(io.input_ptr::<T>(i).0.cast_mut())
}

/// Output `o` as an address that crosses threads.
fn write<T: Float>(io: &Io<'_>, o: usize) -> Shared<T> {
    Shared(io.output_ptr::<T>(o).0)
}
