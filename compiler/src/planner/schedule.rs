//! A schedule: which node runs when, how, and over whose storage.
//!
//! It holds decisions only. What is live when, and whether the schedule is lawful, is said by [`super::replay`].

use super::problem::NodeId;

/// One execution of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The node that runs.
    pub node: NodeId,
    /// Index in the node's implementations.
    pub implementation: u32,
    /// Pairs (index in the node's outputs, index in its inputs): this output takes over that input's storage.
    pub overwrites: Vec<(u32, u32)>,
}

/// A sequence of executions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The executions in order.
    pub steps: Vec<Step>,
}

impl Schedule {
    /// The nodes in order of execution.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeId> {
        self.steps.iter().map(|s| s.node).collect()
    }

    /// Number of executions beyond each node's first.
    #[must_use]
    pub fn recomputations(&self) -> usize {
        let mut seen = vec![false; self.steps.iter().map(|s| s.node as usize + 1).max().unwrap_or(0)];
        self.steps.iter().filter(|s| std::mem::replace(&mut seen[s.node as usize], true)).count()
    }
}
