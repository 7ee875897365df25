//! Dependencies between nodes, as a petgraph graph, and what is derived from them.

use crate::{Graph, Init, NodeId, State, StateId, StateKind, ValueDef, ValueId};
use petgraph::{Direction, algo::toposort, graph::DiGraph, visit::Dfs};
use std::collections::BTreeSet;

/// The nodes as a petgraph graph: an edge from each producer to each reader. Node indices equal [`NodeId`]s.
pub fn dependencies(graph: &Graph) -> DiGraph<(), ()> {
    let mut g = DiGraph::with_capacity(graph.nodes.len(), graph.nodes.len() * 2);
    for _ in &graph.nodes {
        g.add_node(());
    }
    for (n, node) in graph.nodes.iter().enumerate() {
        for v in node.inputs.iter().flatten() {
            if let Some(p) = graph.producer(*v) {
                g.update_edge(p.0.into(), (n as u32).into(), ());
            }
        }
    }
    g
}

/// An order in which every node stands after those it reads from, or a node on a cycle.
pub fn topological_order(graph: &Graph) -> Result<Vec<NodeId>, NodeId> {
    toposort(&dependencies(graph), None)
        .map(|order| order.into_iter().map(|n| NodeId(n.index() as u32)).collect())
        .map_err(|c| NodeId(c.node_id().index() as u32))
}

/// Whether each node is among `of` or something `of` depends on.
pub fn ancestors(deps: &DiGraph<(), ()>, of: &[NodeId]) -> Vec<bool> {
    let reversed = petgraph::visit::Reversed(deps);
    let mut seen = vec![false; deps.node_count()];
    for n in of {
        if seen[n.index()] {
            continue;
        }
        let mut dfs = Dfs::new(reversed, n.0.into());
        while let Some(x) = dfs.next(reversed) {
            seen[x.index()] = true;
        }
    }
    debug_assert!(
        of.iter().all(|n| deps.neighbors_directed(n.0.into(), Direction::Incoming).all(|p| seen[p.index()]))
    );
    seen
}

impl Graph {
    /// Puts the nodes into a topological order that changes as little as possible: of the nodes that could come next, always the one
    /// that stood first. Needed after an input was added to a node.
    pub fn restore_order(&mut self) -> Result<(), NodeId> {
        let deps = dependencies(self);
        let mut missing: Vec<usize> =
            deps.node_indices().map(|n| deps.neighbors_directed(n, Direction::Incoming).count()).collect();
        let mut ready: BTreeSet<usize> = (0..missing.len()).filter(|n| missing[*n] == 0).collect();
        let mut order = Vec::with_capacity(missing.len());
        while let Some(n) = ready.pop_first() {
            order.push(n);
            for r in deps.neighbors_directed((n as u32).into(), Direction::Outgoing) {
                missing[r.index()] -= 1;
                if missing[r.index()] == 0 {
                    ready.insert(r.index());
                }
            }
        }
        if order.len() < missing.len() {
            let stuck = (0..missing.len()).find(|n| missing[*n] > 0).unwrap_or(0);
            return Err(NodeId(stuck as u32));
        }
        let mut new_index = vec![0u32; order.len()];
        for (new, old) in order.iter().enumerate() {
            new_index[*old] = new as u32;
        }
        for v in &mut self.values {
            if let ValueDef::Node { node, .. } = &mut v.def {
                *node = NodeId(new_index[node.index()]);
            }
        }
        let mut nodes: Vec<Option<crate::Node>> =
            std::mem::take(&mut self.nodes).into_iter().map(Some).collect();
        self.nodes = order.iter().filter_map(|n| nodes[*n].take()).collect();
        Ok(())
    }

    /// Turns every constant that a node reads into a frozen state, so that it has a place in the state section.
    pub fn lift_constants(&mut self) {
        let mut read = vec![false; self.values.len()];
        for v in self.nodes.iter().flat_map(|n| n.inputs.iter().flatten()).chain(&self.outputs) {
            read[v.index()] = true;
        }
        for (i, v) in self.values.iter_mut().enumerate() {
            let ValueDef::Constant(literal) = &v.def else { continue };
            if !read[i] {
                continue;
            }
            self.states.push(State {
                name: v.name.clone(),
                kind: StateKind::Frozen,
                input: ValueId(i as u32),
                output: None,
                init: Init::Literal(literal.clone()),
            });
            v.def = ValueDef::State(StateId(self.states.len() as u32 - 1));
        }
    }

    /// Removes inputs and states that no node reads and that are no output, but for states that are updated.
    pub fn drop_unread(&mut self) {
        let mut read = vec![false; self.values.len()];
        for v in self.nodes.iter().flat_map(|n| n.inputs.iter().flatten()).chain(&self.outputs) {
            read[v.index()] = true;
        }
        let states = self.states.iter().filter(|s| s.output.is_none()).map(|s| s.input);
        let gone: BTreeSet<ValueId> =
            states.chain(self.inputs.iter().map(|i| i.value)).filter(|v| !read[v.index()]).collect();
        if gone.is_empty() {
            return;
        }
        let mut next = 0;
        let new_id: Vec<u32> = (0..self.values.len())
            .map(|i| {
                let id = next;
                next += u32::from(!gone.contains(&ValueId(i as u32)));
                id
            })
            .collect();
        let map = |v: &mut ValueId| *v = ValueId(new_id[v.index()]);
        self.states.retain(|s| !gone.contains(&s.input));
        self.inputs.retain(|i| !gone.contains(&i.value));
        let mut i = 0;
        self.values.retain(|_| {
            i += 1;
            !gone.contains(&ValueId(i - 1))
        });
        for n in &mut self.nodes {
            n.inputs.iter_mut().flatten().for_each(map);
            n.outputs.iter_mut().for_each(map);
        }
        self.outputs.iter_mut().for_each(map);
        for (k, i) in self.inputs.iter_mut().enumerate() {
            map(&mut i.value);
            self.values[i.value.index()].def = ValueDef::Input(k as u32);
        }
        for (i, s) in self.states.iter_mut().enumerate() {
            map(&mut s.input);
            s.output.iter_mut().for_each(map);
            self.values[s.input.index()].def = ValueDef::State(StateId(i as u32));
        }
    }
}
