//! Reverse mode: cotangents from the last node to the first.
//!
//! Contributions to one cotangent are added as a left fold from the value's last use in the forward program to its first, so that the
//! rounding of a gradient never depends on a plan. That is the order in which the backward program makes them: each is added as soon as it
//! is there, and none has to wait for another.

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
    guarded: &'a mut BTreeMap<ValueId, ValueId>,
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

    /// Declares that output 0 is input `i`, but 0 where that is not a number, and of the same type.
    pub fn guards(&mut self, i: usize) {
        if let Some(v) = self.opt_input(i) {
            self.guarded.insert(v, self.node.outputs[0]);
        }
    }

    /// Output `i`, or what the forward program reads in its place that is 0 where the output is not a number ([`GradCx::guards`]).
    ///
    /// Where it is not, its cotangent is 0: a product of the two is 0 by what guards it, and NaN by the output itself.
    pub fn guarded_output(&self, i: usize) -> ValueId {
        let output = self.output(i);
        self.guarded.get(&output).copied().unwrap_or(output)
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
    // The sum of the contributions so far, by value.
    let mut sums: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    for (v, cotangent) in seeds {
        let wrap =
            |error| GradError { node: "loss".to_owned(), op: "sum of contributions".to_owned(), error };
        add(b, &mut sums, *v, *cotangent).map_err(wrap)?;
    }
    let mut guarded = BTreeMap::new();
    for n in (0..count).rev() {
        let node = b.graph().node(NodeId(n as u32)).clone();
        if !node.outputs.iter().any(|o| needs[o.index()] && sums.contains_key(o)) {
            continue;
        }
        let wrap = |error| GradError { node: node.name.to_string(), op: node.op.to_string(), error };
        b.set_scope(format!("grad/{}", node.name));
        let total = |o: &ValueId| if needs[o.index()] { sums.get(o).copied() } else { None };
        let cotangents = node.outputs.iter().map(total).collect();
        let wanted: Vec<bool> = node.inputs.iter().map(|i| i.is_some_and(|v| needs[v.index()])).collect();
        let def =
            find(&node.op).ok_or_else(|| wrap(OpError::unsupported(format!("operator {}", node.op))))?;
        let results = vec![None; node.inputs.len()];
        let mut cx =
            GradCx { b, node: &node, cotangents, needs: wanted.clone(), results, guarded: &mut guarded };
        def.gradient(&mut cx).map_err(wrap)?;
        let results = cx.results;
        for (i, r) in results.into_iter().enumerate() {
            if let (Some(r), Some(v), true) = (r, node.inputs[i], wanted[i]) {
                let (got, want) = (b.ty(r), b.ty(v));
                if got != want {
                    let what = format!("the cotangent of input {i} is {got}, the input {want}");
                    return Err(wrap(OpError::invalid(what)));
                }
                add(b, &mut sums, v, r).map_err(wrap)?;
            }
        }
    }
    Ok(wrt.iter().map(|v| sums.get(v).copied()).collect())
}

/// Adds a contribution to the cotangent of a value.
fn add(
    b: &mut Builder<'_>,
    sums: &mut BTreeMap<ValueId, ValueId>,
    v: ValueId,
    part: ValueId,
) -> Result<(), OpError> {
    let sum = match sums.get(&v) {
        Some(sum) => b.call("Add", &[*sum, part])?,
        None => part,
    };
    sums.insert(v, sum);
    Ok(())
}
