//! `smoke`: a few minutes that tell whether the rest is worth starting.

use super::{budgets, kernels, losses, memory};
use crate::{Bundle, part::Part};

/// Operators of each kind of kernel.
const OPERATORS: [&str; 6] = ["Relu", "MatMul", "Softmax", "ReduceSum", "Adam", "SoftmaxCrossEntropyLoss"];

/// A few kernels, and mlp in all that the other parts ask of models.
pub fn run(bundle: &Bundle, part: &mut Part) -> Result<(), String> {
    kernels::of(bundle, part, &mut OPERATORS.iter().filter_map(|n| ops::find(n)))?;
    // Items of one file have names of their own.
    part.under("losses: ", |part| losses::one(bundle, part, "mlp"))?;
    part.under("budgets: ", |part| budgets::one(bundle, part, "mlp", &[1.0, 0.5]))?;
    part.under("memory: ", |part| memory::small(bundle, part, "mlp", 20))
}
