//! What an operator costs: predicted time, and bytes written.
//!
//! Before the training step is made, what is chosen forward decides what its gradient will be; so the cost of an operator that depends on
//! something trained is that of its gradient as well. The gradient is written for the operator alone and priced node by node.

use crate::{
    space::Space,
    term::{Head, Term},
};
use graph::{Graph, InputRole, Node, NodeId, OpFacts, ValueId};
use ops::{Builder, Registry, grad::backward};
use std::{collections::BTreeMap, ops::Add};

/// Where times come from.
#[derive(Clone, Copy)]
pub struct Costs<'a> {
    /// Predicted nanoseconds of one execution of a node.
    pub time: &'a dyn Fn(&Graph, &Node) -> u64,
}

/// Storages are counted in multiples of this many bytes, as a plan does.
const ALIGNMENT: u64 = 256;
/// The price of a term that cannot be used: no gradient can be written for it.
const NEVER: u64 = 1 << 56;

/// Time and bytes of some operators, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) nanoseconds: u64,
    pub(crate) bytes: u64,
    pub(crate) nodes: u64,
    /// Bytes of inputs that the gradient reads.
    pub(crate) kept: u64,
}

impl Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            nanoseconds: self.nanoseconds.saturating_add(other.nanoseconds),
            bytes: self.bytes.saturating_add(other.bytes),
            nodes: self.nodes.saturating_add(other.nodes),
            kept: self.kept.saturating_add(other.kept),
        }
    }
}

/// Prices, remembered by operator and types.
pub(crate) struct Prices<'a> {
    costs: Costs<'a>,
    known: BTreeMap<(u32, String), Cost>,
}

impl<'a> Prices<'a> {
    pub(crate) fn new(costs: Costs<'a>) -> Prices<'a> {
        Prices { costs, known: BTreeMap::new() }
    }

    pub(crate) fn of(&mut self, space: &Space<'_>, term: &Term) -> Cost {
        use std::fmt::Write;
        let Head::Op(kind) = term.head else { return Cost::default() };
        let mut types = String::new();
        for a in &term.args {
            let known = &space.egraph[*a].data;
            // Writing to a string cannot fail.
            let _ = write!(types, "{} {} {};", known.types[0], known.trained, known.constant.is_some());
        }
        if let Some(cost) = self.known.get(&(kind, types.clone())) {
            return *cost;
        }
        let never = Cost { nanoseconds: NEVER, bytes: NEVER, nodes: 1, kept: 0 };
        let cost = self.price(space, kind, term).unwrap_or(never);
        self.known.insert((kind, types), cost);
        cost
    }

    fn price(&self, space: &Space<'_>, kind: u32, term: &Term) -> Option<Cost> {
        let kind = &space.kinds[kind as usize];
        let mut graph = Graph::default();
        let mut given = term.args.iter();
        let (mut args, mut trained) = (Vec::new(), Vec::new());
        for (i, g) in kind.given.iter().enumerate() {
            let Some(id) = given.next().filter(|_| *g) else {
                args.push(None);
                continue;
            };
            let known = &space.egraph[*id].data;
            let name = format!("x{i}");
            let v = match &known.constant {
                Some(l) => graph.add_constant(name, l.clone()),
                None => graph.add_input(name, known.types[0].clone(), InputRole::Data),
            };
            if known.trained {
                trained.push(v);
            }
            args.push(Some(v));
        }
        let mut b = Builder::new(&mut graph);
        let outputs = b.emit(&kind.op, kind.attrs.clone(), &args).ok()?;
        let first = *outputs.first()?;
        let forward = b.graph().nodes.len();
        if !trained.is_empty() && b.ty(first).dtype.is_float() && b.graph().producer(first).is_some() {
            let ty = b.ty(first).clone();
            let cotangent: ValueId = b.graph_mut().add_input("cotangent", ty, InputRole::Data);
            let one = ops::find(&kind.op)?.differentiable();
            if one {
                backward(&mut b, &[(first, cotangent)], &trained).ok()?;
            }
        }
        let mut cost = Cost { nodes: 1, ..Cost::default() };
        for (n, node) in graph.nodes.iter().enumerate() {
            let nanoseconds = (self.costs.time)(&graph, node);
            let bytes = bytes(&graph, NodeId(n as u32))?;
            cost = cost + Cost { nanoseconds, bytes, ..Cost::default() };
        }
        let read = graph.nodes[forward..].iter().flat_map(|n| n.inputs.iter().flatten());
        let mut kept: Vec<ValueId> =
            read.copied().filter(|v| args.contains(&Some(*v)) && graph.constant(*v).is_none()).collect();
        kept.sort();
        kept.dedup();
        cost.kept = kept.iter().filter_map(|v| graph.ty(*v).bytes()).sum();
        Some(cost)
    }
}

/// Bytes that a node writes: outputs that are no views, and its workspace.
fn bytes(graph: &Graph, n: NodeId) -> Option<u64> {
    let facts = Registry.facts(graph, n).ok()?;
    let outputs = &graph.node(n).outputs;
    let own = (0..outputs.len()).filter(|o| facts.views.iter().all(|v| v.output != *o));
    let all = own.map(|o| graph.ty(outputs[o]).bytes().unwrap_or(0));
    let workspace = facts.implementations.first().map_or(0, |i| i.workspace);
    let sizes = all.chain([workspace]).map(|b| b.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX));
    Some(sizes.fold(0, u64::saturating_add))
}
