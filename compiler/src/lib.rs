//! From an ONNX model to a runtime plan.

pub mod cost;
pub mod lower;
pub mod planner;
pub mod train;
