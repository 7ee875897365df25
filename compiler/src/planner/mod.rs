//! The planner: from a [`Problem`] and a budget to a schedule with addresses and a certificate.
//!
//! It knows neither ONNX nor kernels. A problem comes from a training graph, from a graph in JSON or from a recorded log; every
//! strategy reads the same problem and returns the same kind of schedule, and one exact replay judges them all.

pub mod offsets;
pub mod problem;

#[cfg(test)]
pub(crate) mod testing;

pub use problem::{Bytes, Nanos, Problem};
