//! CUDA kernels as data: which source, which entry, on what grid, with what arguments.
//!
//! The sources stand beside the operators (`ops/src/<family>/*.cu`); a family's `cuda.rs` computes from shapes and attributes what is
//! launched ([`Kernels`]). Nothing here compiles or runs anything: devices do ([`Driver`](../../cuda) calls), the simulated one included,
//! for which [`HOST_HEADER`] makes the same sources C++ for the CPU.

pub(crate) mod launch;
mod registry;

use crate::{OpError, Signature};
use graph::{DType, Graph};
pub use launch::{Arg, BLOCK, Kernels, Launch, Source, dtype_name, width_name};
pub(crate) use launch::{Builder, blocks_for, source};
pub use registry::{CudaRegistry, registry};

/// What every source includes, by the name `dtrc_device.h`.
pub const DEVICE_HEADER: &str = include_str!("dtrc_device.h");
/// What sources include that multiply on tensor cores, by the name `dtrc_tensor.h`.
pub const TENSOR_HEADER: &str = include_str!("dtrc_tensor.h");
/// What the first includes where kernels run on the CPU, by the name `dtrc_host.h`.
pub const HOST_HEADER: &str = include_str!("dtrc_host.h");

/// Computes what an operator launches for a signature.
pub(crate) type Plan = fn(&Signature<'_>) -> Result<Kernels, OpError>;

/// The tables of the families.
const FAMILIES: &[&[(&str, Plan)]] = &[
    crate::attention::cuda::KERNELS,
    crate::recurrent::cuda::KERNELS,
    crate::signal::cuda::KERNELS,
    crate::indexing::samplers::KERNELS,
    crate::loss::linear::KERNELS,
    crate::normalize::groups::KERNELS,
    crate::pool::regions::KERNELS,
    crate::random::cuda_draw::KERNELS,
    crate::elementwise::cuda::FUNCTIONS,
    crate::elementwise::cuda::PLAIN,
    crate::elementwise::cuda::OTHERS,
    crate::reduce::cuda::KERNELS,
    crate::movement::cuda::KERNELS,
    crate::indexing::cuda::KERNELS,
    crate::product::cuda::KERNELS,
    crate::pool::cuda::KERNELS,
    crate::normalize::cuda::KERNELS,
    crate::loss::cuda::KERNELS,
    crate::random::cuda::KERNELS,
    crate::optimizer::cuda::KERNELS,
];

/// The plan of an operator's kernels, if it has any.
pub(crate) fn plan(op: &str) -> Option<Plan> {
    FAMILIES.iter().copied().flatten().find(|(name, _)| *name == op).map(|(_, plan)| *plan)
}

/// What [`crate::OpDef::cuda`] gives by default: what the family's table has.
pub(crate) fn kernels(op: &str, s: &Signature<'_>) -> Result<Kernels, OpError> {
    match plan(op) {
        Some(plan) => plan(s),
        None => Err(OpError::unsupported(format!("{op} has no CUDA kernel yet"))),
    }
}

/// The attribute of a float32 product that is made on tensor cores, from operands rounded to TF32.
pub(crate) const TF32: &str = "tf32";

/// Marks the products and convolutions of a graph whose operands are float32: on CUDA they are made in TF32. It changes their bits, and is
/// part of the graph and so of a plan's numerics.
pub fn use_tf32(graph: &mut Graph) {
    for n in 0..graph.nodes.len() {
        let node = &graph.nodes[n];
        let float32 = node.inputs.first().copied().flatten().is_some_and(|v| graph.ty(v).dtype == DType::F32);
        if float32 && crate::product::cuda::KERNELS.iter().any(|(op, _)| *op == &*node.op) {
            let node = &mut graph.nodes[n];
            node.attrs = std::mem::take(&mut node.attrs).with(TF32, true);
        }
    }
}

/// Whether some product of a graph is made in TF32.
pub fn uses_tf32(graph: &Graph) -> bool {
    graph.nodes.iter().any(|n| n.attrs.int_or(TF32, 0).unwrap_or(0) != 0)
}

/// Refuses a node that kernels for an architecture (`10 * major + minor`) cannot run.
pub fn on_architecture(s: &Signature<'_>, architecture: u32) -> Result<(), OpError> {
    if architecture < 80 && s.attrs.int_or(TF32, 0).unwrap_or(0) != 0 {
        let what = format!("TF32 before CUDA architecture 80 (this is {architecture}): leave out --tf32");
        return Err(OpError::unsupported(what));
    }
    let mut types = s.inputs.iter().copied().flatten().chain(s.outputs.iter().copied());
    if architecture < 80 && types.any(|t| t.dtype == DType::BF16) {
        let what =
            format!("bfloat16 before CUDA architecture 80 (this is {architecture}): use float16 or float32");
        return Err(OpError::unsupported(what));
    }
    Ok(())
}

/// What a kernel that failed says of its data, from the status it leaves: code, position and value.
pub fn failure(code: u32, row: i64, value: i64) -> String {
    match code {
        1 => format!("label {value} at row {row} is no class and not ignore_index"),
        2 => format!("index {value} at position {row} of the indices is outside of its axis"),
        3 => format!("length {value} of sequence {row} is outside of the steps that there are"),
        4 => format!("row {row} has no probabilities: e^x does not sum to a positive number"),
        5 => format!("region {row} is of image {value}, which there is not"),
        _ => format!("failure {code} (position {row}, value {value})"),
    }
}
