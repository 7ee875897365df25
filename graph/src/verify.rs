//! The invariants of a graph, checked between passes.
//!
//! 1. Every id is in range, and a value and what defines it (input, state, node output) point at each other.
//! 2. Nodes stand in topological order: a node reads only inputs, constants, state and results of earlier nodes.
//! 3. Value names are unique, and so are node names and state names.
//! 4. Constants have the type of their elements; a state's output has the type of its input and is made by a node.

use crate::{Graph, StateId, TensorType, ValueDef, ValueId};
use std::collections::BTreeSet;

/// A broken invariant: which, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("graph invariant broken at {at}: {what}")]
pub struct VerifyError {
    /// Node, value or state.
    pub at: String,
    /// What is wrong there.
    pub what: String,
}

fn broken<T>(at: impl ToString, what: impl ToString) -> Result<T, VerifyError> {
    Err(VerifyError { at: at.to_string(), what: what.to_string() })
}

/// Checks every invariant in the module's list.
pub fn verify(g: &Graph) -> Result<(), VerifyError> {
    let in_range = |v: ValueId| v.index() < g.values.len();
    for (i, v) in g.values.iter().enumerate() {
        let id = ValueId(i as u32);
        let ok = match &v.def {
            ValueDef::Input(k) => g.inputs.get(*k as usize).is_some_and(|x| x.value == id),
            ValueDef::Constant(l) => v.ty == TensorType::new(l.dtype(), l.shape()),
            ValueDef::State(StateId(s)) => g.states.get(*s as usize).is_some_and(|x| x.input == id),
            ValueDef::Node { node, index } => {
                g.nodes.get(node.index()).and_then(|n| n.outputs.get(*index as usize)) == Some(&id)
            }
        };
        if !ok {
            return broken(&v.name, "its definition does not point back at it");
        }
    }
    for (n, node) in g.nodes.iter().enumerate() {
        for v in node.inputs.iter().flatten().chain(&node.outputs) {
            if !in_range(*v) {
                return broken(&node.name, format!("value {} does not exist", v.0));
            }
        }
        for v in node.inputs.iter().flatten() {
            if g.producer(*v).is_some_and(|p| p.index() >= n) {
                return broken(&node.name, format!("reads {} before it is made", g.value(*v).name));
            }
        }
    }
    for v in g.outputs.iter().chain(g.inputs.iter().map(|i| &i.value)) {
        if !in_range(*v) {
            return broken("graph", format!("value {} does not exist", v.0));
        }
    }
    // Above, a value finds what defines it; here the other way round, so that nothing is defined twice.
    for (k, i) in g.inputs.iter().enumerate() {
        if !matches!(g.value(i.value).def, ValueDef::Input(d) if d as usize == k) {
            return broken(&g.value(i.value).name, "is listed as an input, but is none");
        }
    }
    for (n, node) in g.nodes.iter().enumerate() {
        for (o, v) in node.outputs.iter().enumerate() {
            let def = &g.value(*v).def;
            if !matches!(def, ValueDef::Node { node, index } if node.index() == n && *index as usize == o) {
                return broken(&node.name, format!("{} is not its output", g.value(*v).name));
            }
        }
    }
    for (i, s) in g.states.iter().enumerate() {
        if !in_range(s.input) || s.output.is_some_and(|o| !in_range(o)) {
            return broken(&s.name, "its value does not exist");
        }
        if !matches!(g.value(s.input).def, ValueDef::State(d) if d.index() == i) {
            return broken(&s.name, format!("{} is not its old version", g.value(s.input).name));
        }
        if let Some(o) = s.output {
            if g.ty(o) != g.ty(s.input) {
                return broken(&s.name, format!("its versions differ: {} and {}", g.ty(s.input), g.ty(o)));
            }
            if g.producer(o).is_none() {
                return broken(&s.name, "its new version is not made by a node");
            }
        }
    }
    unique("value", g.values.iter().map(|v| &*v.name))?;
    unique("node", g.nodes.iter().map(|n| &*n.name))?;
    unique("state", g.states.iter().map(|s| &*s.name))
}

fn unique<'a>(kind: &str, names: impl Iterator<Item = &'a str>) -> Result<(), VerifyError> {
    let mut seen = BTreeSet::new();
    for n in names {
        if !seen.insert(n) {
            return broken(n, format!("another {kind} has this name"));
        }
    }
    Ok(())
}
