//! Matrix products and what is made of them: MatMul, Gemm, Einsum, convolutions.

pub mod gemm;
pub mod linear;
pub mod matmul;
