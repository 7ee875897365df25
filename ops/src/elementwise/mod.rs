//! Operators that compute each output element from one element of each input.

pub mod activation;
pub mod binary;
pub mod bits;
pub mod cast;
pub mod compare;
pub(crate) mod cuda;
pub mod extreme;
pub(crate) mod lanes;
mod number;
pub mod power;
pub mod prelu;
pub mod select;
pub mod trigonometry;
pub mod unary;
