//! From an ONNX model to a runtime plan.

pub mod cost;
pub mod emit;
pub mod evaluate;
pub mod export;
pub mod import;
pub mod lower;
pub mod pipeline;
pub mod planner;
pub mod train;
