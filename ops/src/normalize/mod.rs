//! Normalisation over the batch, over rows, over groups of channels, over neighbouring channels.
//!
//! Forward operators output mean and inverse standard deviation beside the result, and gradients are one fused operator each that reads
//! those: nothing of the input's size is saved but the input itself.

pub mod batchnorm;
pub mod batchnorm_grad;
mod channels;
pub(crate) mod cuda;
pub mod group;
pub(crate) mod groups;
mod import_batchnorm;
pub mod layer;
pub mod lp;
pub mod lrn;
mod rows;
