//! Tensors in files: npy, npz, and data sets of them.

pub mod array;
mod cut;
pub mod dataset;
pub mod npy;
pub mod npz;

/// A data file that cannot be used: where and why.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {what}")]
pub struct DataError {
    /// The file, with the array's name where there is one.
    pub file: String,
    /// What is wrong and what to do.
    pub what: String,
}
