//! From the chosen terms back to a graph.
//!
//! What is kept keeps its name and its place; what is new stands where the node stood that it replaces, is named after it, and its
//! outputs take over the names of the values that they replace.

use crate::{
    RewriteError,
    extract::{Chosen, roots},
    space::{Leaf, Space},
    term::{Head, Term},
};
use egg::Id;
use graph::{Graph, Node, NodeId, ValueDef, ValueId};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// A graph under construction.
pub(crate) struct Rebuild<'g> {
    old: &'g Graph,
    new: Graph,
    /// Values of the old graph in the new one.
    map: BTreeMap<ValueId, ValueId>,
    /// Names of the old graph, and those that were made up.
    names: BTreeSet<Arc<str>>,
    /// Names of the old graph that the new one has.
    taken: BTreeSet<Arc<str>>,
    /// Nodes with the position at which they should stand.
    drafts: Vec<(usize, Node)>,
    /// Constants that rules made in the region at hand.
    fresh: BTreeMap<u32, ValueId>,
}

impl<'g> Rebuild<'g> {
    pub(crate) fn new(old: &'g Graph) -> Rebuild<'g> {
        let names = old.values.iter().map(|v| v.name.clone()).chain(old.nodes.iter().map(|n| n.name.clone()));
        let mut r = Rebuild {
            old,
            new: Graph::default(),
            map: BTreeMap::new(),
            names: names.collect(),
            taken: BTreeSet::new(),
            drafts: Vec::new(),
            fresh: BTreeMap::new(),
        };
        for i in &old.inputs {
            let v = old.value(i.value);
            let new = r.new.add_input(v.name.clone(), v.ty.clone(), i.role);
            r.keep(i.value, new);
        }
        for s in &old.states {
            let ty = old.ty(s.input).clone();
            let new = r.new.add_state(s.name.clone(), ty, s.kind, s.init.clone());
            r.new.values[new.index()].name = old.value(s.input).name.clone();
            r.keep(s.input, new);
        }
        r
    }

    fn keep(&mut self, old: ValueId, new: ValueId) {
        self.map.insert(old, new);
        self.taken.insert(self.old.value(old).name.clone());
    }

    /// A name like `hint` that neither graph has.
    fn unique(&mut self, hint: &str) -> Arc<str> {
        let mut name: Arc<str> = hint.into();
        let mut n = 1;
        while !self.names.insert(name.clone()) {
            n += 1;
            name = format!("{hint}.{n}").into();
        }
        name
    }

    /// A value from outside of all regions so far.
    fn outside(&mut self, v: ValueId) -> Result<ValueId, RewriteError> {
        if let Some(new) = self.map.get(&v) {
            return Ok(*new);
        }
        let old = self.old.value(v);
        let ValueDef::Constant(l) = &old.def else {
            return Err(RewriteError { at: old.name.to_string(), what: "is read before it is made".into() });
        };
        let new = self.new.add_constant(old.name.clone(), l.clone());
        self.keep(v, new);
        Ok(new)
    }

    /// Writes a region.
    pub(crate) fn region(&mut self, space: &Space<'_>, chosen: &Chosen) -> Result<(), RewriteError> {
        self.fresh.clear();
        let find = |id: Id| space.egraph.find(id);
        // The graph's own nodes and values by what they became.
        let mut own_nodes: BTreeMap<(Id, Term), usize> = BTreeMap::new();
        let mut replaced: BTreeMap<Id, usize> = BTreeMap::new();
        for (n, class, term) in &space.nodes {
            own_nodes.entry((find(*class), space.canonical(term))).or_insert(*n);
            replaced.entry(find(*class)).or_insert(*n);
        }
        let mut own_values: BTreeMap<Id, Vec<ValueId>> = BTreeMap::new();
        for (v, class) in &space.values {
            own_values.entry(find(*class)).or_default().push(*v);
        }
        let region_roots = roots(space);
        let order = self.order(space, chosen, &region_roots)?;
        // Names of kept nodes first: a new one must not take them.
        for class in &order {
            if let Some(n) = chosen.term(space, *class).and_then(|t| own_nodes.get(&(*class, t.clone()))) {
                let node = &self.old.nodes[*n];
                self.taken.insert(node.name.clone());
                self.taken.extend(node.outputs.iter().map(|o| self.old.value(*o).name.clone()));
            }
        }
        let mut made: BTreeMap<Id, Vec<ValueId>> = BTreeMap::new();
        let mut at: BTreeMap<Id, usize> = BTreeMap::new();
        for class in order {
            let term = self.need(space, chosen, class)?;
            let Head::Op(kind) = term.head else { continue };
            let kind = &space.kinds[kind as usize];
            let mut args = Vec::new();
            let mut place = 0;
            for a in &term.args {
                if let Some(Term { head: Head::Proj(_), args: tuple }) = chosen.term(space, *a) {
                    place = place.max(at.get(&find(tuple[0])).copied().unwrap_or(0));
                }
                args.push(self.resolve(space, chosen, &made, *a)?);
            }
            let mut args = args.into_iter();
            let inputs = kind.given.iter().map(|g| if *g { args.next() } else { None }).collect();
            let own = own_nodes.get(&(class, term.clone())).copied();
            // The parts of this tuple and the values of the graph that they are now.
            let types = space.egraph[class].data.types.clone();
            let part = |i: usize| {
                let part = Term { head: Head::Proj(i as u32), args: vec![class] };
                space.egraph.lookup(part).map(find)
            };
            let stands_for = |i: usize| part(i).and_then(|p| own_values.get(&p)).cloned().unwrap_or_default();
            let replaces = replaced.get(&class).copied().or_else(|| {
                let v = stands_for(0).into_iter().next()?;
                self.old.producer(v).map(NodeId::index)
            });
            let position = own.or(replaces).unwrap_or(place);
            let name = match (own, replaces) {
                (Some(n), _) => self.old.nodes[n].name.clone(),
                (None, Some(n)) => {
                    let hint = format!("{}/{}", self.old.nodes[n].name, kind.op);
                    self.unique(&hint)
                }
                (None, None) => {
                    let hint =
                        format!("{}/{}", self.old.nodes[place.min(self.old.nodes.len() - 1)].name, kind.op);
                    self.unique(&hint)
                }
            };
            let mut outputs = Vec::new();
            for (i, ty) in types.into_iter().enumerate() {
                let own_name = own.map(|n| self.old.value(self.old.nodes[n].outputs[i]).name.clone());
                let name = match own_name {
                    Some(name) => name,
                    None => {
                        let mut names = stands_for(i).into_iter().map(|v| self.old.value(v).name.clone());
                        let free = names.find(|n| !self.taken.contains(n));
                        match free {
                            Some(free) => {
                                self.taken.insert(free.clone());
                                free
                            }
                            None => self.unique(&format!("{name}:{i}")),
                        }
                    }
                };
                let index = i as u32;
                outputs.push(self.new.add_value(name, ty, ValueDef::Node { node: NodeId(u32::MAX), index }));
            }
            made.insert(class, outputs.clone());
            at.insert(class, position);
            let node = Node { name, op: kind.op.clone(), attrs: kind.attrs.clone(), inputs, outputs };
            self.drafts.push((position, node));
        }
        for v in region_roots {
            let new = self.resolve(space, chosen, &made, space.values[&v])?;
            self.map.insert(v, new);
        }
        Ok(())
    }

    fn need(&self, space: &Space<'_>, chosen: &Chosen, class: Id) -> Result<Term, RewriteError> {
        let missing = || RewriteError {
            at: self.old.nodes.get(space.range.start).map_or_else(String::new, |n| n.name.to_string()),
            what: "a chosen term needs a class that was not chosen".into(),
        };
        chosen.term(space, class).cloned().ok_or_else(missing)
    }

    /// Classes of operators that the roots need, arguments first.
    fn order(&self, space: &Space<'_>, chosen: &Chosen, roots: &[ValueId]) -> Result<Vec<Id>, RewriteError> {
        let (mut order, mut seen) = (Vec::new(), BTreeSet::new());
        let mut stack: Vec<(Id, bool)> = Vec::new();
        for v in roots {
            stack.push((space.egraph.find(space.values[v]), false));
            while let Some((class, done)) = stack.pop() {
                let term = self.need(space, chosen, class)?;
                if done {
                    if matches!(term.head, Head::Op(_)) {
                        order.push(class);
                    }
                    continue;
                }
                if !seen.insert(class) {
                    continue;
                }
                stack.push((class, true));
                stack.extend(term.args.iter().rev().map(|a| (space.egraph.find(*a), false)));
            }
        }
        Ok(order)
    }

    /// The value of a tensor's class.
    fn resolve(
        &mut self,
        space: &Space<'_>,
        chosen: &Chosen,
        made: &BTreeMap<Id, Vec<ValueId>>,
        class: Id,
    ) -> Result<ValueId, RewriteError> {
        let term = self.need(space, chosen, class)?;
        match term.head {
            Head::Leaf(l) => match &space.leaves[l as usize] {
                Leaf::Value(v) | Leaf::Constant(_, Some(v)) => self.outside(*v),
                Leaf::Constant(literal, None) => {
                    if let Some(v) = self.fresh.get(&l) {
                        return Ok(*v);
                    }
                    let name = self.unique("rewrite/const");
                    let v = self.new.add_constant(name, literal.clone());
                    self.fresh.insert(l, v);
                    Ok(v)
                }
            },
            Head::Proj(i) => {
                let tuple = space.egraph.find(term.args[0]);
                let value = made.get(&tuple).and_then(|o| o.get(i as usize)).copied();
                value.ok_or_else(|| RewriteError {
                    at: self.old.nodes[space.range.start].name.to_string(),
                    what: "an output is read before its operator is written".into(),
                })
            }
            Head::Op(_) => Err(RewriteError {
                at: self.old.nodes[space.range.start].name.to_string(),
                what: "a tuple stands where a tensor should".into(),
            }),
        }
    }

    /// The whole graph; or the nodes whose results became other values, so that their names are lost.
    pub(crate) fn finish(mut self) -> Result<Result<Graph, BTreeSet<usize>>, RewriteError> {
        let mut lost = BTreeSet::new();
        let mut named: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        for v in self.old.outputs.clone() {
            let new = self.outside(v)?;
            let (want, have) = (self.old.value(v).name.clone(), self.new.value(new).name.clone());
            let shared = named.insert(new, v).is_some_and(|other| other != v);
            if want != have
                && (shared
                    || self.taken.contains(&want)
                    || self.new.inputs.iter().any(|i| i.value == new)
                    || matches!(self.new.value(new).def, ValueDef::State(_) | ValueDef::Constant(_)))
                || shared
            {
                lost.extend(self.old.producer(v).map(NodeId::index));
            } else if want != have {
                self.taken.insert(want.clone());
                self.new.values[new.index()].name = want;
            }
            self.new.outputs.push(new);
        }
        for (i, s) in self.old.states.iter().enumerate() {
            if let Some(o) = s.output {
                self.new.states[i].output = Some(self.outside(o)?);
            }
        }
        if !lost.is_empty() {
            return Ok(Err(lost));
        }
        self.drafts.sort_by_key(|(position, _)| *position);
        for (n, (_, node)) in self.drafts.into_iter().enumerate() {
            for o in &node.outputs {
                if let ValueDef::Node { node, .. } = &mut self.new.values[o.index()].def {
                    *node = NodeId(n as u32);
                }
            }
            self.new.nodes.push(node);
        }
        let mut graph = self.new;
        graph.restore_order().map_err(|n| RewriteError {
            at: graph.node(n).name.to_string(),
            what: "depends on itself".into(),
        })?;
        Ok(Ok(graph))
    }
}
