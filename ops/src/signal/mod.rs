//! Signals: discrete Fourier transforms, frames of a signal, windows, mel filter banks.
//!
//! ONNX's STFT is frames, a window and a transform; windows and filter banks are constants that import rules compute.

pub(crate) mod cuda;
pub mod dft;
mod fft;
pub mod frame;
mod import;
mod tables;
