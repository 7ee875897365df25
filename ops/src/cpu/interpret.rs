//! The reference interpreter: every node once, in the order of the text, every value in memory of its own.
//!
//! It is what plans are compared with in tests; it knows no budget and is not fast.

use super::evaluate;
use crate::{OpError, Signature, find};
use graph::{Graph, Literal, ValueDef, ValueId};
use std::collections::BTreeMap;

/// A node that cannot be evaluated, and why.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{op} {node:?}: {error}")]
pub struct InterpretError {
    /// Node name, or the name of the input or state that has no elements.
    pub node: String,
    /// Operator, `input` or `state`.
    pub op: String,
    /// Why.
    pub error: OpError,
}

/// Evaluates the graph. `given` holds the elements of inputs and of states before the step; the result holds every value.
pub fn interpret(
    graph: &Graph,
    given: &BTreeMap<ValueId, Literal>,
) -> Result<BTreeMap<ValueId, Literal>, InterpretError> {
    let mut values = BTreeMap::new();
    for (i, v) in graph.values.iter().enumerate() {
        let id = ValueId(i as u32);
        let kind = match &v.def {
            ValueDef::Constant(l) => {
                values.insert(id, l.clone());
                continue;
            }
            ValueDef::Input(_) => "input",
            ValueDef::State(_) => "state",
            ValueDef::Node { .. } => continue,
        };
        let l = given.get(&id).ok_or_else(|| InterpretError {
            node: v.name.to_string(),
            op: kind.to_owned(),
            error: OpError::invalid("no elements are given"),
        })?;
        values.insert(id, l.clone());
    }
    for node in &graph.nodes {
        let wrap = |error| InterpretError { node: node.name.to_string(), op: node.op.to_string(), error };
        let def = find(&node.op).ok_or_else(|| wrap(OpError::unsupported("unknown operator")))?;
        let inputs: Vec<Option<&Literal>> =
            node.inputs.iter().map(|i| i.and_then(|v| values.get(&v))).collect();
        let outputs = evaluate(def, &Signature::of(graph, node), &inputs).map_err(wrap)?;
        values.extend(node.outputs.iter().copied().zip(outputs));
    }
    Ok(values)
}
