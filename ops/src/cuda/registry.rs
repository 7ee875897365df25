//! Operators as a plan for CUDA sees them: the facts of the CPU's, but scratch memory is that of the CUDA kernels.

use crate::{Facts, Registry, Signature, cpu::half::is_half, find};
use graph::{DType, Graph, Implementation, NodeId, OpFacts, TensorType};

/// As [`Registry`], for plans that run on CUDA. An operator without a CUDA kernel is refused, unless nothing of it is executed.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaRegistry;

impl OpFacts for CudaRegistry {
    fn infer(&self, graph: &Graph, node: NodeId) -> Result<Vec<TensorType>, String> {
        Registry.infer(graph, node)
    }

    fn facts(&self, graph: &Graph, node: NodeId) -> Result<Facts, String> {
        let facts = Registry.facts(graph, node)?;
        let node = graph.node(node);
        let op = find(&node.op).ok_or_else(|| format!("unknown operator {}", node.op))?;
        if !node.outputs.is_empty() && facts.views.len() == node.outputs.len() {
            return Ok(Facts { implementations: implementation(0), ..facts });
        }
        let sig = Signature::of(graph, node);
        if let (true, Some(half)) = (!takes_both(&node.op), beside_float32(&sig)) {
            let remedy = "compile for the CPU, or without --amp";
            return Err(format!("{} of {half} beside float32 has no CUDA kernel yet: {remedy}", node.op));
        }
        let kernels = op.cuda(&sig).map_err(|e| e.to_string())?;
        Ok(Facts { implementations: implementation(kernels.workspace), ..facts })
    }

    fn numeric_class(&self, op: &str) -> Option<u32> {
        Registry.numeric_class(op)
    }
}

/// Operators whose kernels know 16-bit floats beside float32: of parameters, statistics, masks, losses.
fn takes_both(op: &str) -> bool {
    let families = [
        "BatchNorm",
        "LayerNormalization",
        "RmsNormalization",
        "GroupNormalization",
        "Attention",
        "LinearCrossEntropy",
    ];
    matches!(op, "Cast" | "IsFinite" | "Softmax") || families.iter().any(|f| op.starts_with(f))
}

/// The 16-bit floats of a node that has tensors of float32, too: a kernel of one element type would misread them.
fn beside_float32(s: &Signature<'_>) -> Option<DType> {
    let types = || s.inputs.iter().copied().flatten().chain(s.outputs.iter().copied());
    let mixed = types().any(|t| t.dtype == DType::F32 && t.shape.rank() > 0);
    types().map(|t| t.dtype).find(|d| is_half(*d)).filter(|_| mixed)
}

fn implementation(workspace: u64) -> Vec<Implementation> {
    vec![Implementation { name: "cuda", workspace, slowdown_permille: 1000 }]
}

/// The operators as plans for CUDA, or for the CPU, see them.
pub fn registry(cuda: bool) -> &'static dyn OpFacts {
    if cuda { &CudaRegistry } else { &Registry }
}
