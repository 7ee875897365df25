//! What the bounds derive from a problem once: storages, which nodes must run, least times, working sets.

use std::collections::BTreeMap;

use crate::planner::problem::{Bytes, Nanos, NodeId, Problem, ValueId};

/// Derived facts. Indices are those of the problem.
pub(super) struct Facts<'a> {
    pub(super) problem: &'a Problem,
    /// The value on whose storage each value lies.
    pub(super) root: Vec<ValueId>,
    /// Nodes that run in every schedule: required ones, makers of what must be live at the end, and all they read.
    pub(super) needed: Vec<bool>,
    /// The needed nodes that read each value.
    pub(super) readers: Vec<Vec<NodeId>>,
    /// Least time of one execution.
    pub(super) time: Vec<Nanos>,
    /// Commits, by the storage root of the state's old version.
    pub(super) commits: BTreeMap<ValueId, NodeId>,
}

impl<'a> Facts<'a> {
    pub(super) fn new(problem: &'a Problem) -> Self {
        let values = &problem.values;
        let root: Vec<ValueId> = (0..values.len() as ValueId)
            .map(|v| {
                let mut at = v;
                // A chain longer than the values there are would be a cycle.
                for _ in 0..values.len() {
                    match values[at as usize].view_of {
                        Some(source) => at = source,
                        None => break,
                    }
                }
                at
            })
            .collect();
        let mut needed = vec![false; problem.nodes.len()];
        let mut stack: Vec<NodeId> =
            (0..problem.nodes.len() as NodeId).filter(|&n| problem.nodes[n as usize].required).collect();
        stack.extend(values.iter().filter(|v| v.keep_to_end).filter_map(|v| v.producer));
        while let Some(n) = stack.pop() {
            if !std::mem::replace(&mut needed[n as usize], true) {
                stack.extend(
                    problem.nodes[n as usize].inputs.iter().filter_map(|&v| values[v as usize].producer),
                );
            }
        }
        let mut readers = vec![Vec::new(); values.len()];
        for (n, node) in problem.nodes.iter().enumerate().filter(|&(n, _)| needed[n]) {
            for &v in &node.inputs {
                readers[v as usize].push(n as NodeId);
            }
        }
        let time = problem
            .nodes
            .iter()
            .map(|n| n.implementations.iter().map(|i| i.time).min().unwrap_or(0))
            .collect();
        let commits = problem.states.iter().map(|s| (root[s.old as usize], s.commit)).collect();
        Self { problem, root, needed, readers, time, commits }
    }

    /// Time of running every needed node once: what the extra time comes on top of.
    pub(super) fn base_time(&self) -> Nanos {
        (0..self.time.len()).filter(|&n| self.needed[n]).map(|n| self.time[n]).fold(0, Nanos::saturating_add)
    }

    /// Bytes that a storage adds to the live set; 0 for what the state section holds.
    pub(super) fn bytes(&self, root: ValueId) -> Bytes {
        let value = &self.problem.values[root as usize];
        if value.resident { 0 } else { value.bytes }
    }

    /// Whether no execution of the node can follow once all of `before` has run: it runs once, or it reads state that a node of
    /// `before` has overwritten.
    pub(super) fn spent(&self, node: NodeId, before: &[bool]) -> bool {
        let facts = &self.problem.nodes[node as usize];
        let stale =
            |v: &ValueId| self.commits.get(&self.root[*v as usize]).is_some_and(|&c| before[c as usize]);
        facts.once || facts.inputs.iter().any(stale) || self.commits.values().any(|&c| c == node)
    }

    /// Storage roots that a node reads, in order, without duplicates.
    pub(super) fn read(&self, node: NodeId) -> Vec<ValueId> {
        let mut roots: Vec<ValueId> =
            self.problem.nodes[node as usize].inputs.iter().map(|&v| self.root[v as usize]).collect();
        roots.sort_unstable();
        roots.dedup();
        roots
    }

    /// Bytes of the storages that a node makes.
    pub(super) fn made(&self, node: NodeId) -> Bytes {
        let outputs = &self.problem.nodes[node as usize].outputs;
        outputs
            .iter()
            .filter(|&&v| self.root[v as usize] == v)
            .map(|&v| self.bytes(v))
            .fold(0, Bytes::saturating_add)
    }

    /// The least scratch memory of any implementation.
    pub(super) fn workspace(&self, node: NodeId) -> Bytes {
        self.problem.nodes[node as usize].implementations.iter().map(|i| i.workspace).min().unwrap_or(0)
    }

    /// What overwriting can save while the node runs: outputs that may take over the storage of an input. First the saving at most
    /// possible; then, for storages that alone can serve some output, what keeping them past the node takes back from it.
    pub(super) fn overwriting(&self, node: NodeId) -> (Bytes, BTreeMap<ValueId, Bytes>) {
        let facts = &self.problem.nodes[node as usize];
        let mut hosts: BTreeMap<u32, Vec<ValueId>> = BTreeMap::new();
        for &(output, input) in &facts.overwrites {
            let (Some(&out), Some(&inp)) =
                (facts.outputs.get(output as usize), facts.inputs.get(input as usize))
            else {
                continue;
            };
            let host = self.root[inp as usize];
            // The host may itself lie on a larger storage that it took over, so its own size says nothing here.
            let serves = self.root[out as usize] == out && !self.problem.values[host as usize].resident;
            if serves && !hosts.entry(output).or_default().contains(&host) {
                hosts.entry(output).or_default().push(host);
            }
        }
        let mut saving = 0;
        let mut only: BTreeMap<ValueId, Bytes> = BTreeMap::new();
        for (output, hosts) in hosts {
            let bytes = self.bytes(facts.outputs[output as usize]);
            match hosts[..] {
                [host] => {
                    // Two outputs that only this storage can serve: one of them is.
                    let best = only.entry(host).or_default();
                    *best = (*best).max(bytes);
                }
                _ => saving += bytes,
            }
        }
        (only.values().fold(saving, |sum, &b| sum.saturating_add(b)), only)
    }
}
