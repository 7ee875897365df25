//! Random numbers from a counter: every element is a function of seed, step and the node, so that nothing random is ever stored and a
//! recomputation gives the same bits.

pub(crate) mod cuda;
pub(crate) mod cuda_draw;
pub mod dropout;
mod export;
pub mod generate;
mod import;
pub mod philox;
pub mod sample;
use crate::{OpError, Signature};
use graph::DType;

/// Refuses seed and step (these inputs) unless both are i64 scalars.
fn check_counters(s: &Signature<'_>, first: usize) -> Result<(), OpError> {
    for (i, what) in [(first, "the seed"), (first + 1, "the step")] {
        let t = s.input(i)?;
        if t.dtype != DType::I64 || t.shape.rank() != 0 {
            return Err(OpError::invalid(format!("{what} (input {i}) must be an i64 scalar, not {t}")));
        }
    }
    Ok(())
}

/// The attribute `id`: which random node of the program this is.
fn id(s: &Signature<'_>) -> Result<u32, OpError> {
    let id = s.attrs.int("id")?;
    u32::try_from(id).map_err(|_| OpError::invalid(format!("id must be a 32-bit number, not {id}")))
}
