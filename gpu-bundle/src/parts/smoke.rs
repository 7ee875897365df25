//! `smoke`: a few minutes that tell whether the rest is worth starting.

use super::{budgets, data, held, kernels, losses, memory, speed};
use crate::{
    Bundle,
    models::handed,
    part::Part,
    trial::{costs, plans},
};
use plan::Device;

/// Operators of each kind of kernel.
const OPERATORS: [&str; 6] = ["Relu", "MatMul", "Softmax", "ReduceSum", "Adam", "SoftmaxCrossEntropyLoss"];

/// A few kernels, and mlp in all that the other parts ask of models.
pub fn run(bundle: &Bundle, part: &mut Part) -> Result<(), String> {
    kernels::of(bundle, part, &mut OPERATORS.iter().filter_map(|n| ops::find(n)))?;
    // Items of one file have names of their own.
    part.under("losses: ", |part| losses::one(bundle, part, "mlp"))?;
    part.under("budgets: ", |part| budgets::one(bundle, part, "mlp", &[1.0, 0.5]))?;
    part.under("memory: ", |part| memory::small(bundle, part, "mlp", 20))?;
    let (costs, clock) = (costs(&part.results.device), part.clock());
    part.item("speed: mlp", || {
        held((|| {
            let h = handed(&bundle.folder, "mlp", &costs)?;
            let planned = plans(&h.model, Device::Cuda, &[1.0], &costs, None)?.remove(0);
            let bandwidth = Some(costs.profile.bytes_per_s as u64);
            Ok(speed::measure(bundle, &h.model, &planned, &data(&h), bandwidth, clock)?.0)
        })())
    })
}
