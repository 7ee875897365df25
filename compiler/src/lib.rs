//! From an ONNX model to a runtime plan.

pub mod planner;
