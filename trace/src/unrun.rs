//! What a body that never runs would have given: only its types, for the empty tensors of what was to be collected.
//!
//! A loop of no iterations still has scan outputs, of extent 0. Where the file leaves the shape of an element open, the body is walked once
//! with what it would have read, nothing is computed, and all of it is taken back. Where data decide in the body, so that no walk tells, the
//! file's word is taken with the sizes of the inputs in it.

use crate::{
    Body, SourceNode,
    error::{TraceError, TraceErrorKind},
    walk::{Item, Walk, at, wrong},
};
use graph::{Bindings, Dim, InputRole, Literal, Symbol, TensorType, ValueId};
use std::collections::BTreeSet;

/// What is not known yet where sizes are open.
const UNCOLLECTED: &str = "the shape of what no iteration collects";

/// What a body that never runs would have read, in the order of its inputs.
pub(crate) struct Unrun<'a> {
    /// Numbers.
    pub(crate) first: &'a [Literal],
    /// What there is before the first iteration.
    pub(crate) carried: &'a [Item],
    /// Types of what there is not.
    pub(crate) rows: &'a [TensorType],
}

impl<'s> Walk<'s, '_, '_> {
    /// Types of a body's outputs from `from` on, as the file says them, or else as the body would have made them.
    pub(crate) fn unrun_types(
        &mut self,
        node: &SourceNode,
        body: &'s Body,
        from: usize,
        given: Unrun<'_>,
    ) -> Result<Vec<TensorType>, TraceError> {
        let said = |sizes: &Bindings| -> Option<Vec<TensorType>> {
            let types = (from..body.outputs.len()).map(|o| body.output_types.get(o).cloned().flatten());
            let bound = types.map(|t| {
                let mut t = t?;
                t.shape = t.shape.substitute(sizes);
                t.shape.fixed().is_some().then_some(t)
            });
            bound.collect()
        };
        if let Some(types) = said(&Bindings::new()) {
            return Ok(types);
        }
        let before = self.b.mark();
        let graph = self.b.graph();
        let (inputs, states) = (graph.inputs.len(), graph.states.len());
        let first_new = graph.values.len();
        let traced = std::mem::take(&mut self.traced);
        let (depth, unrun) = (self.depth, std::mem::replace(&mut self.unrun, true));
        let found = self.body_types(node, body, from, given);
        (self.depth, self.unrun, self.traced) = (depth, unrun, traced);
        // Tensors of the file keep their names, whether they are in the graph or not.
        let graph = self.b.graph_mut();
        graph.inputs.truncate(inputs);
        graph.states.truncate(states);
        let new = graph.values[first_new..].iter().map(|v| v.name.clone());
        let of_file: Vec<_> = new.filter(|n| self.source.tensors.contains_key(n)).collect();
        self.b.rollback(before);
        for name in of_file {
            self.b.unique(&name);
        }
        self.forget(body, first_new);
        found.or_else(|e| {
            let silent = match &e.kind {
                TraceErrorKind::Dynamic { dims, .. } => dims.is_empty(),
                TraceErrorKind::Model(_) | TraceErrorKind::Op(_) | TraceErrorKind::Unsupported(_) => true,
                _ => false,
            };
            if !silent {
                return Err(e);
            }
            if let Some(types) = said(self.sizes) {
                return Ok(types);
            }
            if let Some(dims) = self.sizes_said(body, from) {
                return Err(at(node, TraceErrorKind::Dynamic { what: UNCOLLECTED.to_owned(), dims }));
            }
            let what = "no iteration ran, the file does not say the shape of what it would have collected, and its body does not tell";
            Err(wrong(node, format!("{what}: {e}")))
        })
    }

    /// The sizes of the program's inputs that the file's word on a body's outputs waits for; `None` if they alone do not settle it.
    fn sizes_said(&self, body: &Body, from: usize) -> Option<Vec<String>> {
        let open = |ty: &TensorType| -> Vec<Symbol> {
            let all = ty.shape.0.iter().flat_map(Dim::symbols);
            all.filter(|s| !self.sizes.contains_key(s)).collect()
        };
        let given: BTreeSet<Symbol> = self.source.inputs.iter().flat_map(|(_, ty)| open(ty)).collect();
        let mut waits_for = BTreeSet::new();
        for o in from..body.outputs.len() {
            waits_for.extend(open(body.output_types.get(o)?.as_ref()?));
        }
        waits_for.is_subset(&given).then(|| waits_for.iter().map(ToString::to_string).collect())
    }

    fn body_types(
        &mut self,
        node: &SourceNode,
        body: &'s Body,
        from: usize,
        given: Unrun<'_>,
    ) -> Result<Vec<TensorType>, TraceError> {
        self.walk_on(node, 1)?;
        self.b.set_scope(&*node.name);
        let mut items: Vec<Item> = Vec::with_capacity(body.inputs.len());
        items.extend(given.first.iter().map(|l| Item::Tensor(self.b.constant(l.clone()))));
        items.extend(given.carried.iter().cloned());
        for ty in given.rows {
            let name = self.b.unique(&node.name);
            items.push(Item::Tensor(self.b.graph_mut().add_input(name, ty.clone(), InputRole::Data)));
        }
        for (name, item) in body.inputs.iter().zip(items) {
            self.items.insert(name.clone(), item);
        }
        let results = self.body(body)?;
        let types = results.into_iter().skip(from).map(|item| match item {
            Item::Tensor(v) => Ok(self.b.ty(v).clone()),
            _ => Err(wrong(node, "a scan output is no tensor")),
        });
        types.collect()
    }

    /// Names of a body that stand for values from `first` on stand for nothing again.
    fn forget(&mut self, body: &Body, first: usize) {
        let reads = body.nodes.iter().flat_map(|n| n.inputs.iter().chain(&n.outputs));
        for name in body.inputs.iter().chain(&body.outputs).chain(reads) {
            if self.items.get(name).is_some_and(|item| reaches(item, first)) {
                self.items.remove(name);
            }
        }
        for (_, inner) in body.nodes.iter().flat_map(|n| &n.bodies) {
            self.forget(inner, first);
        }
    }

    /// No tensor of a type, with further extents: each stands at its axis once the ones before it do. One of them is 0.
    pub(crate) fn empty(
        &mut self,
        node: &SourceNode,
        ty: &TensorType,
        extents: &[(usize, u64)],
    ) -> Result<ValueId, TraceError> {
        let Some(shape) = ty.shape.fixed() else {
            let dims = ty.shape.0.iter().flat_map(|d| d.symbols()).map(|s| s.to_string()).collect();
            return Err(at(node, TraceErrorKind::Dynamic { what: UNCOLLECTED.to_owned(), dims }));
        };
        let mut shape: Vec<u64> = shape.into_iter().map(|d| d as u64).collect();
        for (axis, n) in extents {
            shape.insert((*axis).min(shape.len()), *n);
        }
        let none = Literal::new(ty.dtype, shape, Vec::new()).map_err(|e| wrong(node, e.to_string()))?;
        self.b.set_scope(&*node.name);
        Ok(self.b.constant(none))
    }
}

fn reaches(item: &Item, first: usize) -> bool {
    match item {
        Item::Tensor(v) => v.index() >= first,
        Item::Sequence(parts) => parts.iter().any(|v| v.index() >= first),
        Item::Optional(inner) => inner.as_ref().is_some_and(|i| reaches(i, first)),
    }
}
