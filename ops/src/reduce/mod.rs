//! Reductions over axes, and running sums.
//!
//! Results do not depend on the number of threads: the order in which elements are combined follows from shapes alone. Sums of f32 are
//! taken in short blocks of fixed lanes and gathered in f64, so they are accurate for any length.

mod backward;
pub(crate) mod cuda;
mod cumsum;
mod engine;
mod operators;
mod space;

pub use backward::{ReduceExtremeGrad, ReduceProdGrad};
pub use cumsum::CumSum;
pub use operators::{
    ReduceL1, ReduceL2, ReduceLogSumExp, ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum,
    ReduceSumSquare,
};
