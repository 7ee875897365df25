//! From a training graph to a planning problem.

use crate::{
    cost::CostModel,
    planner::problem::{Implementation, Node, Problem, State, Value},
};
use graph::{Graph, NodeId, OpFacts, ValueDef};
use ops::Registry;
use plan::{ALIGNMENT, align};

/// Bytes of a tensor beyond which it fits in no memory, and sums of sizes might not fit in their type: 64 PiB.
const LARGEST: u64 = 1 << 56;

/// A tensor or node that cannot be planned statically.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at:?}: {what}")]
pub struct LowerError {
    /// Node or value name.
    pub at: String,
    /// What is wrong.
    pub what: String,
}

/// The problem of a graph whose constants were lifted. Node and value ids are the graph's; `state_bytes` is the size of the state section.
pub fn lower(graph: &Graph, costs: &CostModel, state_bytes: u64) -> Result<Problem, LowerError> {
    lower_with(graph, costs, state_bytes, &Registry)
}

/// As [`lower`], with the operators' facts as a device has them.
pub fn lower_with(
    graph: &Graph,
    costs: &CostModel,
    state_bytes: u64,
    registry: &dyn OpFacts,
) -> Result<Problem, LowerError> {
    let mut values = Vec::with_capacity(graph.values.len());
    for v in &graph.values {
        let bytes = v.ty.bytes().ok_or_else(|| LowerError {
            at: v.name.to_string(),
            what: if v.ty.shape.fixed().is_some() {
                format!("its size, {}, is more bytes than can be counted", v.ty)
            } else {
                format!("its size, {}, is known only at run time: bind its dimensions with --dim", v.ty.shape)
            },
        })?;
        if bytes > LARGEST {
            let what = format!("its size, {}, is {bytes} bytes: more than any memory has", v.ty);
            return Err(LowerError { at: v.name.to_string(), what });
        }
        let resident = matches!(v.def, ValueDef::State(_) | ValueDef::Constant(_));
        let producer = if let ValueDef::Node { node, .. } = v.def { Some(node.0) } else { None };
        values.push(Value {
            name: v.name.to_string(),
            producer,
            bytes: if resident { 0 } else { align(bytes) },
            view_of: None,
            resident,
            keep_to_end: false,
        });
    }
    for o in &graph.outputs {
        values[o.index()].keep_to_end = true;
    }
    // Bytes from the begin of a value's storage to the value: a view may begin inside.
    let mut begins = vec![0u64; graph.values.len()];
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    for (i, n) in graph.nodes.iter().enumerate() {
        let id = NodeId(i as u32);
        let facts = registry.facts(graph, id).map_err(|what| LowerError { at: n.name.to_string(), what })?;
        let mut inputs: Vec<u32> = Vec::new();
        for v in n.inputs.iter().flatten() {
            if !inputs.contains(&v.0) {
                inputs.push(v.0);
            }
        }
        let position = |argument: usize| -> Option<u32> {
            let v = n.inputs.get(argument).copied().flatten()?;
            inputs.iter().position(|x| *x == v.0).map(|p| p as u32)
        };
        for view in &facts.views {
            let source = n.inputs.get(view.input).copied().flatten();
            let (Some(source), Some(out)) = (source, n.outputs.get(view.output)) else { continue };
            values[out.index()].view_of = Some(source.0);
            values[out.index()].bytes = 0;
            begins[out.index()] = begins[source.index()] + view.offset;
        }
        for (o, _) in &facts.commits {
            if let Some(out) = n.outputs.get(*o) {
                values[out.index()].resident = true;
                values[out.index()].bytes = 0;
            }
        }
        // A value that stands at several arguments may be overwritten only if each of them allows it; and an output takes over a storage
        // from its begin.
        let lawful = |o: usize, i: usize| {
            let v = n.inputs.get(i).copied().flatten();
            v.is_some_and(|v| begins[v.index()] == 0)
                && (0..n.inputs.len()).all(|k| n.inputs[k] != v || facts.overwrites.contains(&(o, k)))
        };
        let overwrites = facts.overwrites.iter().filter(|(o, i)| lawful(*o, *i));
        let overwrites = overwrites.filter_map(|(o, i)| Some((*o as u32, position(*i)?))).collect();
        let time = costs.time(graph, n);
        let implementations = facts
            .implementations
            .iter()
            .map(|i| Implementation {
                workspace: align(i.workspace),
                time: (u128::from(time) * u128::from(i.slowdown_permille) / 1000).max(1) as u64,
            })
            .collect();
        let commits = !facts.commits.is_empty();
        let is_output = n.outputs.iter().any(|o| graph.outputs.contains(o));
        nodes.push(Node {
            name: n.name.to_string(),
            inputs,
            outputs: n.outputs.iter().map(|o| o.0).collect(),
            implementations,
            overwrites,
            once: facts.once || commits,
            required: commits || is_output,
        });
    }
    let states = graph
        .states
        .iter()
        .filter_map(|s| Some(State { old: s.input.0, commit: graph.producer(s.output?)?.0 }))
        .collect();
    Ok(Problem { nodes, values, states, resident: state_bytes, alignment: ALIGNMENT })
}
