//! The numerics hash: equal hash, equal bits. Of a whole plan it stands in the plan; of its training programs alone it says whether a
//! checkpoint goes on with the same bits.

use crate::{Device, Dynamic, Plan, Program, ProgramKind, choice::deciding};
use graph::{Graph, OpFacts};

/// Hashes all that decides the bits of a step: the graph (operators, attributes, types, the order of contributions), the numeric class
/// of each operator, the device kind, the parts of a step and the version of dtrc. Budget, order, places and recomputation do not enter.
pub fn numerics<'a>(
    device: Device,
    accumulate: u32,
    programs: impl IntoIterator<Item = (ProgramKind, &'a Graph, Option<&'a Dynamic>)>,
    ops: &dyn OpFacts,
) -> [u8; 32] {
    let mut h = blake3::Hasher::new();
    h.update(env!("CARGO_PKG_VERSION").as_bytes());
    h.update(device.to_string().as_bytes());
    h.update(&accumulate.to_le_bytes());
    for (kind, g, dynamic) in programs {
        h.update(kind.to_string().as_bytes());
        for n in &g.nodes {
            h.update(format!("{}#{:?}", n.op, ops.numeric_class(&n.op)).as_bytes());
        }
        // The wire form of a graph is canonical, so its bytes stand for all the rest.
        match postcard::to_stdvec(g) {
            Ok(bytes) => h.update(&bytes),
            Err(e) => h.update(e.to_string().as_bytes()),
        };
        if let Some(d) = dynamic {
            h.update(&d.recipe);
        }
    }
    *h.finalize().as_bytes()
}

/// [`numerics`] of a plan: buckets and budgets change no bit.
pub fn plan_numerics(plan: &Plan, ops: &dyn OpFacts) -> [u8; 32] {
    let all: Vec<&Program> = plan.programs.iter().collect();
    numerics(plan.device, plan.accumulate, deciding(&all), ops)
}

/// [`plan_numerics`] of a plan's training programs: programs for evaluation beside them change no bit of training.
pub fn training_numerics(plan: &Plan, ops: &dyn OpFacts) -> [u8; 32] {
    let training: Vec<&Program> = plan.programs.iter().filter(|p| p.kind != ProgramKind::Infer).collect();
    numerics(plan.device, plan.accumulate, deciding(&training), ops)
}

/// A hash as text.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
