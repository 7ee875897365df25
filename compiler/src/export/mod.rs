//! From our programs and states to files that other programs read.
//!
//! [`save`] writes new elements into a copy of the model a plan was made from. [`sites`] finds where in the file that may be done,
//! [`edit`] writes a copy with other bytes in some places. No model is ever re-encoded: what is not replaced is copied byte by byte.
//! [`onnx`] writes a whole program, such as a training step, as a model of its own; [`proto`] makes its messages.

mod edit;
pub mod onnx;
mod proto;
pub mod save;
mod sites;

pub use edit::Aside;
pub use onnx::{EmitOnnxError, EmittedOnnx, emit_onnx};
pub use proto::attributes;
pub use save::{SaveError, SaveOptions, Saved, Saver};
