//! From an ONNX model to a runtime plan.

pub mod buckets;
pub mod cost;
pub mod dynamic;
pub mod emit;
pub use trace::evaluate;
pub mod export;
pub mod import;
pub mod lower;
pub mod pipeline;
pub mod planner;
pub use trace::precision;
pub use trace::train;
pub mod variants;
