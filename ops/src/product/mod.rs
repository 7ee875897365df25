//! Matrix products and what is made of them: MatMul, Gemm, Einsum, convolutions.

mod col2im;
pub mod conv;
mod correlate;
pub(crate) mod cuda;
mod depthwise;
mod einsum;
pub mod gemm;
pub mod grad_weight;
pub(crate) mod integer;
pub mod linear;
pub mod matmul;
mod panel;
mod tiles;
pub(crate) mod window;
