//! The problem in the form that the search reads: flat tables.
//!
//! Decisions are taken per *group*: a storage-making value and all views of it. A group's *uses* are the nodes that read any member,
//! one edge each. Resident values belong to no group. Nodes that nothing required depends on are left out of the base order.

use super::check::{ProblemError, check, storage_root};
use super::problem::{Bytes, Nanos, Problem};

/// No group, no storage, no producer.
pub(crate) const NONE: u32 = u32::MAX;

/// Lists of numbers, one list a row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    start: Vec<u32>,
    items: Vec<u32>,
}

impl Rows {
    pub(crate) fn new(rows: impl IntoIterator<Item = Vec<u32>>) -> Self {
        let mut this = Self { start: vec![0], items: Vec::new() };
        for row in rows {
            this.items.extend(row);
            this.start.push(this.items.len() as u32);
        }
        this
    }

    #[inline]
    pub(crate) fn range(&self, row: u32) -> std::ops::Range<usize> {
        self.start[row as usize] as usize..self.start[row as usize + 1] as usize
    }

    #[inline]
    pub(crate) fn row(&self, row: u32) -> &[u32] {
        &self.items[self.range(row)]
    }

    pub(crate) fn total(&self) -> usize {
        self.items.len()
    }
}

/// The indexed problem.
#[derive(Clone)]
pub(crate) struct Index<'a> {
    pub(crate) problem: &'a Problem,
    /// Needed nodes in the given order.
    pub(crate) given: Vec<u32>,
    pub(crate) needed: Vec<bool>,
    pub(crate) inputs: Rows,
    pub(crate) outputs: Rows,
    /// Per node: its input groups, without duplicates, and in parallel `uses` the edges (group, node).
    pub(crate) input_groups: Rows,
    pub(crate) edges: Rows,
    pub(crate) edge_group: Vec<u32>,
    /// Reading node; `nodes.len()` for "the end" and one more for "never" (each group's tail edge).
    pub(crate) edge_node: Vec<u32>,
    /// Per group: its edges; the tail edge is the last.
    pub(crate) group_edges: Rows,
    pub(crate) members: Rows,
    pub(crate) group_root: Vec<u32>,
    pub(crate) group_bytes: Vec<Bytes>,
    /// Producer of the root, or [`NONE`] for a staged input.
    pub(crate) group_node: Vec<u32>,
    /// The decoder never drops it: it cannot be made again.
    pub(crate) pinned: Vec<bool>,
    pub(crate) value_group: Vec<u32>,
    pub(crate) value_view: Vec<u32>,
    pub(crate) producer: Vec<u32>,
    pub(crate) once: Vec<bool>,
    /// Fastest time and its workspace, rounded; with what is left free for placement while the node runs.
    pub(crate) time: Vec<Nanos>,
    pub(crate) workspace: Vec<Bytes>,
    /// The latter alone; empty if it is nowhere anything.
    reserve: Vec<Bytes>,
    /// Nodes with more than one implementation.
    pub(crate) choice: Vec<bool>,
    /// Per node: pairs (output value, input value) that may share and have equal sizes.
    pub(crate) overwrites: Rows,
    /// Per node: states whose old version it reads (its own commit excluded).
    pub(crate) reads_state: Rows,
    /// Per node: states that it commits.
    pub(crate) commits: Rows,
    /// Needed predecessors and successors: data, and readers of an old version before its commit.
    pub(crate) predecessors: Rows,
    pub(crate) successors: Rows,
    pub(crate) kept_to_end: Vec<u32>,
    pub(crate) base_time: Nanos,
}

impl<'a> Index<'a> {
    /// Checks and indexes a problem.
    pub(crate) fn new(problem: &'a Problem) -> Result<Self, ProblemError> {
        check(problem)?;
        let (nodes, values) = (problem.nodes.len(), problem.values.len());
        let needed = needed_nodes(problem);
        let given: Vec<u32> = (0..nodes as u32).filter(|&n| needed[n as usize]).collect();

        let mut value_group = vec![NONE; values];
        let mut group_root = Vec::new();
        let mut members: Vec<Vec<u32>> = Vec::new();
        let root: Vec<u32> = (0..values as u32).map(|v| storage_root(problem, v)).collect();
        for v in 0..values {
            if root[v] as usize == v && !problem.values[v].resident {
                value_group[v] = group_root.len() as u32;
                group_root.push(v as u32);
                members.push(vec![v as u32]);
            }
        }
        for v in 0..values {
            if root[v] as usize != v && value_group[root[v] as usize] != NONE {
                value_group[v] = value_group[root[v] as usize];
                members[value_group[v] as usize].push(v as u32);
            }
        }
        let mut once: Vec<bool> = problem.nodes.iter().map(|n| n.once).collect();
        for state in &problem.states {
            once[state.commit as usize] = true;
        }
        let producer: Vec<u32> = problem.values.iter().map(|v| v.producer.unwrap_or(NONE)).collect();
        let group_node: Vec<u32> = group_root.iter().map(|&v| producer[v as usize]).collect();
        let pinned = group_node.iter().map(|&n| n == NONE || once[n as usize]).collect();
        let kept_to_end: Vec<u32> =
            (0..values as u32).filter(|&v| problem.values[v as usize].keep_to_end).collect();

        // Edges, in the given order of their reading nodes.
        let mut group_edges: Vec<Vec<u32>> = vec![Vec::new(); group_root.len()];
        let (mut edge_group, mut edge_node) = (Vec::new(), Vec::new());
        let (mut input_groups, mut edges) = (vec![Vec::new(); nodes + 1], vec![Vec::new(); nodes + 1]);
        let mut add = |node: u32, read: &[u32]| {
            for &v in read {
                let group = value_group[v as usize];
                if group != NONE && !input_groups[node as usize].contains(&group) {
                    group_edges[group as usize].push(edge_group.len() as u32);
                    input_groups[node as usize].push(group);
                    edges[node as usize].push(edge_group.len() as u32);
                    edge_group.push(group);
                    edge_node.push(node);
                }
            }
        };
        for &n in &given {
            add(n, &problem.nodes[n as usize].inputs);
        }
        add(nodes as u32, &kept_to_end);
        for (group, own) in group_edges.iter_mut().enumerate() {
            own.push(edge_group.len() as u32);
            edge_group.push(group as u32);
            edge_node.push(nodes as u32 + 1);
        }
        let mut by_root = vec![None; values];
        for (s, state) in problem.states.iter().enumerate() {
            by_root[state.old as usize] = Some(s);
        }
        let old_state: Vec<Option<usize>> = root.iter().map(|&r| by_root[r as usize]).collect();
        let mut commits = vec![Vec::new(); nodes];
        for (s, state) in problem.states.iter().enumerate() {
            commits[state.commit as usize].push(s as u32);
        }
        let reads_state: Vec<Vec<u32>> = (0..nodes)
            .map(|n| {
                let read = problem.nodes[n].inputs.iter().filter_map(|&v| old_state[v as usize]);
                let mut read: Vec<u32> = read.map(|s| s as u32).filter(|s| !commits[n].contains(s)).collect();
                read.sort_unstable();
                read.dedup();
                read
            })
            .collect();
        let predecessors = predecessors(problem, &given, &reads_state);
        let mut successors = vec![Vec::new(); nodes];
        for &n in &given {
            for &p in &predecessors[n as usize] {
                successors[p as usize].push(n);
            }
        }
        let size = |v: u32| problem.values[v as usize].bytes;
        let overwrites: Vec<Vec<u32>> = Vec::from_iter(problem.nodes.iter().map(|n| {
            let pairs = n.overwrites.iter().map(|p| (n.outputs[p.0 as usize], n.inputs[p.1 as usize]));
            let fit = pairs.filter(|&(o, i)| {
                let groups = (value_group[o as usize], value_group[i as usize]);
                root[o as usize] == o
                    && groups.0 != NONE
                    && groups.1 != NONE
                    && size(o) == size(root[i as usize])
            });
            fit.flat_map(|(o, i)| [o, i]).collect()
        }));
        let first = |n: &super::problem::Node| n.implementations[0];
        let this = Self {
            problem,
            inputs: Rows::new(problem.nodes.iter().map(|n| n.inputs.clone())),
            outputs: Rows::new(problem.nodes.iter().map(|n| n.outputs.clone())),
            input_groups: Rows::new(input_groups),
            edges: Rows::new(edges),
            edge_group,
            edge_node,
            group_edges: Rows::new(group_edges),
            group_bytes: group_root.iter().map(|&v| size(v)).collect(),
            members: Rows::new(members),
            group_root,
            group_node,
            pinned,
            value_group,
            value_view: problem.values.iter().map(|v| v.view_of.unwrap_or(NONE)).collect(),
            producer,
            once,
            time: problem.nodes.iter().map(|n| first(n).time).collect(),
            workspace: problem
                .nodes
                .iter()
                .map(|n| first(n).workspace.next_multiple_of(problem.alignment))
                .collect(),
            reserve: Vec::new(),
            choice: problem.nodes.iter().map(|n| n.implementations.len() > 1).collect(),
            overwrites: Rows::new(overwrites),
            reads_state: Rows::new(reads_state),
            commits: Rows::new(commits),
            predecessors: Rows::new(predecessors),
            successors: Rows::new(successors),
            base_time: given.iter().map(|&n| first(&problem.nodes[n as usize]).time).sum(),
            kept_to_end,
            needed,
            given,
        };
        if this.is_order(&this.given) { Ok(this) } else { Err(ProblemError::CommitOrder) }
    }

    /// The same problem with so many bytes left free while each node runs.
    pub(crate) fn with_reserve(&self, reserve: Vec<Bytes>) -> Self {
        let mut this = self.clone();
        this.workspace = (0..self.nodes() as u32)
            .map(|n| self.workspace[n as usize] - self.reserved(n) + reserve[n as usize])
            .collect();
        this.reserve = reserve;
        this
    }

    /// Whether bytes are left free for placement anywhere.
    pub(crate) fn leaves_free(&self) -> bool {
        !self.reserve.is_empty()
    }

    /// Bytes left free while a node runs.
    #[inline]
    pub(crate) fn reserved(&self, node: u32) -> Bytes {
        self.reserve.get(node as usize).copied().unwrap_or(0)
    }

    /// Number of nodes, needed or not.
    pub(crate) fn nodes(&self) -> usize {
        self.problem.nodes.len()
    }

    /// Time of a typical execution, each weighted by its own time, as a fraction of the base time: the scale of a search's steps.
    pub(crate) fn typical_time(&self) -> f64 {
        let squares: f64 =
            self.given.iter().map(|&n| (self.time[n as usize] as f64) * (self.time[n as usize] as f64)).sum();
        let base = self.base_time.max(1) as f64;
        squares / base / base
    }

    /// Number of groups.
    pub(crate) fn groups(&self) -> usize {
        self.group_root.len()
    }

    /// Whether the sequence is an order of all needed nodes that respects all precedences.
    pub(crate) fn is_order(&self, order: &[u32]) -> bool {
        let mut position = vec![NONE; self.nodes()];
        for (p, &n) in order.iter().enumerate() {
            position[n as usize] = p as u32;
        }
        order.len() == self.given.len()
            && order.iter().all(|&n| {
                position[n as usize] != NONE
                    && self.predecessors.row(n).iter().all(|&p| position[p as usize] < position[n as usize])
            })
    }
}

/// Required nodes, producers of what is kept, and all that they depend on.
fn needed_nodes(problem: &Problem) -> Vec<bool> {
    let mut needed: Vec<bool> = problem.nodes.iter().map(|n| n.required).collect();
    for value in problem.values.iter().filter(|v| v.keep_to_end) {
        if let Some(node) = value.producer {
            needed[node as usize] = true;
        }
    }
    for id in (0..problem.nodes.len()).rev() {
        if needed[id] {
            for &input in &problem.nodes[id].inputs {
                if let Some(node) = problem.values[input as usize].producer {
                    needed[node as usize] = true;
                }
            }
        }
    }
    needed
}

/// Per needed node: producers of its inputs, and for a commit all needed readers of the old version.
fn predecessors(problem: &Problem, given: &[u32], reads_state: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let mut predecessors = vec![Vec::new(); problem.nodes.len()];
    for &n in given {
        let inputs = problem.nodes[n as usize].inputs.iter();
        predecessors[n as usize].extend(inputs.filter_map(|&v| problem.values[v as usize].producer));
        for &s in &reads_state[n as usize] {
            let commit = problem.states[s as usize].commit;
            if commit != n {
                predecessors[commit as usize].push(n);
            }
        }
    }
    for list in &mut predecessors {
        list.sort_unstable();
        list.dedup();
    }
    predecessors
}
