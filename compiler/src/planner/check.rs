//! Well-formedness of a problem.
//!
//! Everything after it indexes without looking: a problem that passes has only valid indices, a topological node order, consistent
//! producers and views whose source is at hand when they are made.

use super::problem::{Bytes, Nanos, Node, NodeId, Problem, ValueId};

/// Sizes add up to less than this: parts of sums over trees, added with a sign, are some times as large.
pub const MOST_BYTES: Bytes = 1 << 58;

/// Times add up to less than this: a schedule may run a node again 2^12 times, and eight times the sum is a whole number in a float.
pub const MOST_TIME: Nanos = 1 << 50;

/// There are fewer nodes, and fewer values, than this: a bit or two of an index may say something else.
const MOST_IDS: usize = 1 << 28;

/// Why a problem is not well formed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProblemError {
    /// An index points outside its table.
    #[error("node {node:?}: index out of range")]
    Index {
        /// Name of the node.
        node: String,
    },
    /// A node reads a value that an earlier node does not make.
    #[error("node {node:?} reads {value:?} before it is made")]
    Order {
        /// Name of the node.
        node: String,
        /// Name of the value.
        value: String,
    },
    /// A value's producer and the node's outputs disagree.
    #[error("value {value:?}: its producer does not list it exactly once")]
    Producer {
        /// Name of the value.
        value: String,
    },
    /// A node has no implementation.
    #[error("node {node:?} has no implementation")]
    NoImplementation {
        /// Name of the node.
        node: String,
    },
    /// A view's source is neither read nor made by the node that makes the view, or the view has bytes of its own.
    #[error(
        "value {value:?} is a view whose source its node neither reads nor makes before it, or it has bytes of its own"
    )]
    View {
        /// Name of the value.
        value: String,
    },
    /// A resident value has bytes of its own.
    #[error("resident value {value:?} has bytes of its own")]
    ResidentBytes {
        /// Name of the value.
        value: String,
    },
    /// A committed state's old version is not a resident value without producer.
    #[error("state {value:?}: its old version is not a resident value without producer")]
    State {
        /// Name of the old value.
        value: String,
    },
    /// In the given order a node reads the old version of a state after its commit.
    #[error("the given order of nodes reads an old version of a state after its commit")]
    CommitOrder,
    /// The alignment is zero.
    #[error("the alignment is zero")]
    Alignment,
    /// What is added up without a look at overflows adds up to too much.
    #[error(transparent)]
    TooLarge(Box<TooLarge>),
    /// Too many nodes or values.
    #[error("{count} {what} are more than a plan can have: there must be less than {MOST_IDS}")]
    TooMany {
        /// `nodes` or `values`.
        what: &'static str,
        /// How many there are.
        count: usize,
    },
}

/// A sum beyond its limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {what} add up to {sum}, and a plan can count less than {limit}; most by {at:?}")]
pub struct TooLarge {
    /// `sizes in bytes` or `times in nanoseconds`.
    pub what: &'static str,
    /// The sum.
    pub sum: u128,
    /// What is too much.
    pub limit: u64,
    /// Name of the largest value, or of the node that takes longest.
    pub at: String,
}

/// Checks that a problem is well formed.
///
/// # Errors
/// The first thing found wrong.
pub fn check(problem: &Problem) -> Result<(), ProblemError> {
    let values = problem.values.len();
    if problem.alignment == 0 {
        return Err(ProblemError::Alignment);
    }
    let mut made_by: Vec<Option<NodeId>> = vec![None; values];
    for (id, node) in problem.nodes.iter().enumerate() {
        let name = || node.name.clone();
        let known = |v: &ValueId| (*v as usize) < values;
        let pairs =
            |p: &(u32, u32)| (p.0 as usize) < node.outputs.len() && (p.1 as usize) < node.inputs.len();
        if !(node.inputs.iter().all(known)
            && node.outputs.iter().all(known)
            && node.overwrites.iter().all(pairs))
        {
            return Err(ProblemError::Index { node: name() });
        }
        if node.implementations.is_empty() {
            return Err(ProblemError::NoImplementation { node: name() });
        }
        for &input in &node.inputs {
            let value = &problem.values[input as usize];
            if value.producer.is_some() && made_by[input as usize].is_none() {
                return Err(ProblemError::Order { node: name(), value: value.name.clone() });
            }
        }
        for &output in &node.outputs {
            let value = &problem.values[output as usize];
            if value.producer != Some(id as NodeId) || made_by[output as usize].is_some() {
                return Err(ProblemError::Producer { value: value.name.clone() });
            }
            if let Some(source) = value.view_of {
                let here = node.inputs.contains(&source)
                    || made_by.get(source as usize).is_some_and(|&n| n == Some(id as NodeId));
                if !here || value.bytes != 0 {
                    return Err(ProblemError::View { value: value.name.clone() });
                }
            }
            made_by[output as usize] = Some(id as NodeId);
        }
    }
    for (id, value) in problem.values.iter().enumerate() {
        if value.producer.is_some() != made_by[id].is_some() {
            return Err(ProblemError::Producer { value: value.name.clone() });
        }
        if value.producer.is_none() && value.view_of.is_some() {
            return Err(ProblemError::View { value: value.name.clone() });
        }
        if value.resident && value.bytes != 0 {
            return Err(ProblemError::ResidentBytes { value: value.name.clone() });
        }
    }
    for state in &problem.states {
        let old = problem.values.get(state.old as usize);
        let (Some(old), true) = (old, (state.commit as usize) < problem.nodes.len()) else {
            return Err(ProblemError::Index { node: format!("commit {}", state.commit) });
        };
        if !old.resident || old.producer.is_some() {
            return Err(ProblemError::State { value: old.name.clone() });
        }
    }
    check_sums(problem)
}

/// Sums of bytes and times are taken without overflow checks afterwards: bound them here.
fn check_sums(problem: &Problem) -> Result<(), ProblemError> {
    let nodes = problem.nodes.iter().flat_map(|n| &n.implementations);
    let bytes = problem.values.iter().map(|v| v.bytes).chain(nodes.clone().map(|i| i.workspace));
    let bytes =
        bytes.map(u128::from).sum::<u128>() + u128::from(problem.resident) + u128::from(problem.alignment);
    let times: u128 = nodes.map(|i| u128::from(i.time)).sum();
    let too_large = |what, sum, limit, at: Option<&String>| {
        let at = at.cloned().unwrap_or_default();
        Err(ProblemError::TooLarge(Box::new(TooLarge { what, sum, limit, at })))
    };
    if bytes >= u128::from(MOST_BYTES) {
        let largest = problem.values.iter().max_by_key(|v| v.bytes);
        return too_large("sizes in bytes", bytes, MOST_BYTES, largest.map(|v| &v.name));
    }
    if times >= u128::from(MOST_TIME) {
        let longest = |n: &&Node| n.implementations.iter().map(|i| i.time).max();
        let longest = problem.nodes.iter().max_by_key(longest);
        return too_large("times in nanoseconds", times, MOST_TIME, longest.map(|n| &n.name));
    }
    for (what, count) in [("nodes", problem.nodes.len()), ("values", problem.values.len())] {
        if count >= MOST_IDS {
            return Err(ProblemError::TooMany { what, count });
        }
    }
    Ok(())
}

/// The value at the end of the chain of views: the one whose storage `value` lies on.
#[must_use]
pub fn storage_root(problem: &Problem, mut value: ValueId) -> ValueId {
    while let Some(source) = problem.values[value as usize].view_of {
        value = source;
    }
    value
}
