//! Reverse mode: cotangents from the last node to the first.
//!
//! Contributions to one cotangent are added as a left fold in the order in which the forward program uses the value, so that the
//! rounding of a gradient never depends on a plan.

use crate::{Builder, OpError, find};
use graph::{Attrs, Node, NodeId, TensorType, ValueId};
use std::collections::BTreeMap;

/// What an operator's gradient rule sees: the forward node and the cotangents of its outputs.
pub struct GradCx<'a, 'g> {
    /// Emits the backward nodes.
    pub b: &'a mut Builder<'g>,
    node: &'a Node,
    cotangents: Vec<Option<ValueId>>,
    needs: Vec<bool>,
    results: Vec<Option<ValueId>>,
}

impl GradCx<'_, '_> {
    /// Attributes of the forward node.
    pub fn attrs(&self) -> &Attrs {
        &self.node.attrs
    }

    /// Input `i` of the forward node, which must be given.
    pub fn input(&self, i: usize) -> Result<ValueId, OpError> {
        self.opt_input(i).ok_or_else(|| OpError::invalid(format!("input {i} is missing")))
    }

    /// Input `i` of the forward node, if given.
    pub fn opt_input(&self, i: usize) -> Option<ValueId> {
        self.node.inputs.get(i).copied().flatten()
    }

    /// Number of inputs of the forward node.
    pub fn inputs(&self) -> usize {
        self.node.inputs.len()
    }

    /// Output `i` of the forward node.
    pub fn output(&self, i: usize) -> ValueId {
        self.node.outputs[i]
    }

    /// The type of input `i`.
    pub fn ty(&self, i: usize) -> Result<TensorType, OpError> {
        Ok(self.b.ty(self.input(i)?).clone())
    }

    /// The cotangent of output `i`; `None` if it is zero.
    pub fn cotangent(&self, i: usize) -> Option<ValueId> {
        self.cotangents.get(i).copied().flatten()
    }

    /// The cotangent of the first output; an error if it is zero, which cannot be for an operator with one output.
    pub fn cotangent0(&self) -> Result<ValueId, OpError> {
        self.cotangent(0).ok_or_else(|| OpError::invalid("the first output has no cotangent"))
    }

    /// Whether input `i` needs a cotangent.
    pub fn needs(&self, i: usize) -> bool {
        self.needs.get(i).copied().unwrap_or(false)
    }

    /// Sets the cotangent of input `i`; its type must be the input's.
    pub fn set(&mut self, i: usize, v: ValueId) {
        self.results[i] = Some(v);
    }
}

/// A gradient that cannot be written: at which node, and why.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("gradient of {op} {node:?}: {error}")]
pub struct GradError {
    /// Name of the forward node.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// Why.
    pub error: OpError,
}

/// Emits the backward nodes for every node that stands between `wrt` and the seeds.
///
/// `seeds` are values with their cotangents. Returns the cotangent of each of `wrt`, `None` where it is zero.
pub fn backward(
    b: &mut Builder<'_>,
    seeds: &[(ValueId, ValueId)],
    wrt: &[ValueId],
) -> Result<Vec<Option<ValueId>>, GradError> {
    let count = b.graph().nodes.len();
    let mut needs = vec![false; b.graph().values.len()];
    wrt.iter().for_each(|v| needs[v.index()] = true);
    for node in &b.graph().nodes {
        let differentiable = find(&node.op).is_some_and(|d| d.differentiable());
        if differentiable && node.inputs.iter().flatten().any(|v| needs[v.index()]) {
            for o in &node.outputs {
                needs[o.index()] = b.graph().ty(*o).dtype.is_float();
            }
        }
    }
    // Contributions by value, from the last use to the first; folded when the value's node is reached.
    let mut contributions: BTreeMap<ValueId, Vec<ValueId>> = BTreeMap::new();
    for (v, cotangent) in seeds {
        contributions.entry(*v).or_default().push(*cotangent);
    }
    for n in (0..count).rev() {
        let node = b.graph().node(NodeId(n as u32)).clone();
        if !node.outputs.iter().any(|o| needs[o.index()] && contributions.contains_key(o)) {
            continue;
        }
        let wrap = |error| GradError { node: node.name.to_string(), op: node.op.to_string(), error };
        b.set_scope(format!("grad/{}", node.name));
        let mut cotangents = Vec::new();
        for o in &node.outputs {
            let parts = if needs[o.index()] { contributions.get(o).cloned() } else { None };
            let total = parts.map(|p| fold(b, &p)).transpose().map_err(wrap)?;
            if let Some(t) = total {
                contributions.insert(*o, vec![t]);
            }
            cotangents.push(total);
        }
        let wanted: Vec<bool> = node.inputs.iter().map(|i| i.is_some_and(|v| needs[v.index()])).collect();
        let def =
            find(&node.op).ok_or_else(|| wrap(OpError::unsupported(format!("operator {}", node.op))))?;
        let results = vec![None; node.inputs.len()];
        let mut cx = GradCx { b, node: &node, cotangents, needs: wanted.clone(), results };
        def.gradient(&mut cx).map_err(wrap)?;
        let results = cx.results;
        // From the last input to the first, so that the reversed list is in order of use.
        for (i, r) in results.into_iter().enumerate().rev() {
            if let (Some(r), Some(v), true) = (r, node.inputs[i], wanted[i]) {
                let (got, want) = (b.ty(r), b.ty(v));
                if got != want {
                    let what = format!("the cotangent of input {i} is {got}, the input {want}");
                    return Err(wrap(OpError::invalid(what)));
                }
                contributions.entry(v).or_default().push(r);
            }
        }
    }
    let mut out = Vec::new();
    for v in wrt {
        let name = b.graph().value(*v).name.clone();
        b.set_scope(format!("grad/{name}"));
        let parts = contributions.get(v).cloned();
        let total = parts.map(|p| fold(b, &p)).transpose();
        out.push(total.map_err(|error| GradError {
            node: name.to_string(),
            op: "sum of contributions".to_owned(),
            error,
        })?);
    }
    Ok(out)
}

/// The sum of contributions listed from the last use to the first.
fn fold(b: &mut Builder<'_>, parts: &[ValueId]) -> Result<ValueId, OpError> {
    let mut parts = parts.iter().rev();
    let first = *parts.next().ok_or_else(|| OpError::invalid("no contribution"))?;
    parts.try_fold(first, |sum, p| b.call("Add", &[sum, *p]))
}
