//! Operators that compute each output element from one element of each input.

pub mod binary;
pub mod unary;
