//! What may be assumed of a node: the vocabulary that operators, plans and validators share.

use crate::{Graph, NodeId, TensorType, ValueId};
use std::collections::BTreeSet;

/// An output that is the bytes of an input, from an offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Which output.
    pub output: usize,
    /// Which input it lies on.
    pub input: usize,
    /// Bytes from the input's first byte to the output's.
    pub offset: u64,
}

/// One way to run a node. All implementations of an operator give the same bits; the first is the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Implementation {
    /// Short name for plans and reports.
    pub name: &'static str,
    /// Scratch bytes while it runs.
    pub workspace: u64,
    /// Estimated time as a multiple of the first implementation's, in thousandths.
    pub slowdown_permille: u32,
}

/// What may be assumed of a node, and what it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Outputs that cost no memory and no work.
    pub views: Vec<View>,
    /// Pairs (output, input): the kernel is right when the output's buffer *is* the input's.
    pub overwrites: Vec<(usize, usize)>,
    /// Pairs (output, input): the output is the next version of the state at the input, made in place.
    pub commits: Vec<(usize, usize)>,
    /// Must not run twice (discrete decisions that rounding could flip).
    pub once: bool,
    /// The kernel may refuse data (an index out of range).
    pub can_fail: bool,
    /// May be evaluated by the compiler: the result is exact, the same on every machine.
    pub folds: bool,
    /// The ways to run it; never empty.
    pub implementations: Vec<Implementation>,
}

impl Default for Facts {
    fn default() -> Facts {
        Facts {
            views: Vec::new(),
            overwrites: Vec::new(),
            commits: Vec::new(),
            once: false,
            can_fail: false,
            folds: false,
            implementations: vec![Implementation { name: "default", workspace: 0, slowdown_permille: 1000 }],
        }
    }
}

impl Facts {
    /// Facts of an operator whose one implementation needs `workspace` scratch bytes.
    pub fn with_workspace(workspace: u64) -> Facts {
        let implementations = vec![Implementation { name: "default", workspace, slowdown_permille: 1000 }];
        Facts { implementations, ..Facts::default() }
    }
}

/// Integers that nodes have read and found no fault with. A node that may refuse data, but only ones that have passed, will not.
#[derive(Clone, Debug, Default)]
pub struct Passed(BTreeSet<ValueId>);

impl Passed {
    /// Whether a node of which [`Facts::can_fail`] is true may refuse what it reads at its first execution; what it reads has passed
    /// afterwards.
    pub fn may_refuse(&mut self, graph: &Graph, node: NodeId) -> bool {
        let read = graph.node(node).inputs.iter().flatten().copied();
        let integers: Vec<ValueId> = read.filter(|v| !graph.ty(*v).dtype.is_float()).collect();
        let may = integers.is_empty() || !integers.iter().all(|v| self.0.contains(v));
        self.0.extend(integers);
        may
    }
}

/// What a validator asks about operators, so that it needs none of them.
pub trait OpFacts {
    /// Types of the node's outputs, inferred anew from its inputs and attributes; an error as text if it is malformed.
    fn infer(&self, graph: &Graph, node: NodeId) -> Result<Vec<TensorType>, String>;

    /// Facts of the node.
    fn facts(&self, graph: &Graph, node: NodeId) -> Result<Facts, String>;

    /// Numeric class of the node's operator; `None` if the operator is unknown.
    fn numeric_class(&self, op: &str) -> Option<u32>;
}
