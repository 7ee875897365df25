//! Dependencies between nodes, as a petgraph graph, and what is derived from them.

use crate::{Graph, NodeId};
use petgraph::{Direction, algo::toposort, graph::DiGraph, visit::Dfs};

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
