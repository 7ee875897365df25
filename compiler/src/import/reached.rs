//! Which tensors a loss has no gradient for, as far as the file alone tells.
//!
//! Of a program that is walked at every step nobody knows the graph beforehand. What no way through the file leads to, or none but through
//! conditions, trip counts and operators without a gradient (a Range, a comparison), gets zeros at every step, whatever data decide.

use std::collections::{BTreeMap, BTreeSet};
use trace::{Body, Source, SourceNode};

/// The names in `of` to which no differentiable way leads back from the outputs in `from`.
pub fn unreached(source: &Source, from: &[&str], of: &[String]) -> Vec<String> {
    let mut ways = Ways::default();
    ways.body(&source.body);
    let mut found: BTreeSet<&str> = BTreeSet::new();
    let mut next: Vec<&str> = from.to_vec();
    while let Some(name) = next.pop() {
        if found.insert(name) {
            next.extend(ways.0.get(name).into_iter().flatten());
        }
    }
    of.iter().filter(|n| !found.contains(n.as_str())).cloned().collect()
}

/// From what is made to what it is made from.
#[derive(Default)]
struct Ways<'s>(BTreeMap<&'s str, Vec<&'s str>>);

impl<'s> Ways<'s> {
    fn body(&mut self, body: &'s Body) {
        body.nodes.iter().for_each(|n| self.node(n));
    }

    fn link(&mut self, to: &'s str, from: impl IntoIterator<Item = &'s str>) {
        self.0.entry(to).or_default().extend(from);
    }

    fn node(&mut self, node: &'s SourceNode) {
        node.bodies.iter().for_each(|(_, b)| self.body(b));
        let of_model = node.domain.is_empty();
        if of_model && (&*node.op_type == "NonZero" || has_no_gradient(&node.op_type)) {
            return;
        }
        let decides = match &*node.op_type {
            "If" if of_model => 1,
            "Loop" if of_model => 2,
            _ => 0,
        };
        let given: Vec<&str> = node.inputs.iter().skip(decides).map(|n| &**n).collect();
        let made: Vec<&str> = node.bodies.iter().flat_map(|(_, b)| &b.outputs).map(|n| &**n).collect();
        // Which of them goes where matters little: too many ways only keep a tensor from being named.
        for to in node.outputs.iter().chain(node.bodies.iter().flat_map(|(_, b)| &b.inputs)) {
            self.link(to, given.iter().chain(&made).copied());
        }
    }
}

fn has_no_gradient(op: &str) -> bool {
    ops::find(op).is_some_and(|d| !d.differentiable())
}
