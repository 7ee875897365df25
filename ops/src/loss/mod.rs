//! Softmax and losses.
//!
//! Gradients of softmax read its output; those of cross entropy a number or two a row (the log-sum-exp), so that probabilities, the
//! largest tensor of a language model, are never stored.

mod along;
pub mod cross_entropy;
pub mod cross_entropy_grad;
pub(crate) mod cuda;
mod labels;
pub(crate) mod linear;
pub mod linear_cross_entropy;
pub mod linear_cross_entropy_grad;
pub(crate) mod log_sum;
pub mod nll;
pub mod pointwise;
pub mod softmax;
pub(crate) use along::Along;
pub(crate) use labels::same_shape;
