//! What is to be planned: nodes, values on storages, state and its commits.
//!
//! This is the planner's only input. It is deliberately smaller than the graph: sizes are numbers, operators are times and facts. The
//! meaning of a schedule (what is live when, what may be read, what may be overwritten) is defined by the replay over these types.
//!
//! # Meaning
//!
//! * A schedule is a sequence of node executions. A node may run more than once, unless it is [`Node::once`]; every
//!   [`Node::required`] node runs at least once.
//! * An execution makes one *instance* of each output. An instance lives from that execution to its last read before the node's next
//!   execution. An output nobody reads lives only while its node runs. A value with [`Value::keep_to_end`] is live at the end.
//! * A value with [`Value::view_of`] has no bytes of its own: its instance lies on the storage of the source instance it was made from
//!   and keeps that storage alive. Views of views share the first storage.
//! * A value without a producer is there from the beginning: a [`Value::resident`] one for ever, at no further cost (its bytes are in
//!   [`Problem::resident`]); any other one (a staged input) until its last read. It cannot be made again.
//! * While a node runs, its inputs, its outputs and its workspace are live together. An output that overwrites an input takes over the
//!   storage of that input's instance: lawful only if this is the last read of everything on that storage, it is not resident,
//!   its storage is large enough, and the pair is in [`Node::overwrites`].
//! * A node in [`State::commit`] overwrites its state in place. It runs once, and after it nothing that reads the old version (the
//!   state's value or a view of it) may run, neither first nor again.

/// A number of bytes.
pub type Bytes = u64;
/// A time in nanoseconds, measured or estimated.
pub type Nanos = u64;
/// Index of a node in [`Problem::nodes`].
pub type NodeId = u32;
/// Index of a value in [`Problem::values`].
pub type ValueId = u32;

/// One way to run a node. All implementations of a node are bit-equal: they differ in scratch memory and time only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Implementation {
    /// Scratch bytes while the node runs.
    pub workspace: Bytes,
    /// Duration of one execution.
    pub time: Nanos,
}

/// An operation to be scheduled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Stable name, for reports.
    pub name: String,
    /// Values read, without duplicates, in argument order.
    pub inputs: Vec<ValueId>,
    /// Values made.
    pub outputs: Vec<ValueId>,
    /// The ways to run it, cheapest time first; never empty.
    pub implementations: Vec<Implementation>,
    /// Pairs (index in `outputs`, index in `inputs`): the output may take over the input's storage.
    pub overwrites: Vec<(u32, u32)>,
    /// Must not run twice: commits, discrete decisions.
    pub once: bool,
    /// Must run at least once. A node that is not required runs only if something reads it.
    pub required: bool,
}

/// A tensor of the problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Stable name, for reports.
    pub name: String,
    /// The node that makes it; none for state, constants and staged inputs.
    pub producer: Option<NodeId>,
    /// Bytes of its storage, rounded to [`Problem::alignment`]; 0 for a view and for a resident value.
    pub bytes: Bytes,
    /// The value on whose storage this one lies.
    pub view_of: Option<ValueId>,
    /// Always there and paid for in [`Problem::resident`] (state old or new, constants).
    pub resident: bool,
    /// Must be live when the schedule ends (results that are read back).
    pub keep_to_end: bool,
}

/// A persistent variable that the step updates in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The resident value that holds the version before the step.
    pub old: ValueId,
    /// The node that overwrites it.
    pub commit: NodeId,
}

/// A planning problem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problem {
    /// Nodes in a valid topological order: the order of the program text.
    pub nodes: Vec<Node>,
    /// All values.
    pub values: Vec<Value>,
    /// State that some node commits.
    pub states: Vec<State>,
    /// Bytes of the state section: parameters, optimizer, statistics, constants. Live always.
    pub resident: Bytes,
    /// Every storage size is a multiple of it (256 for plans, 1 for imported graphs and logs).
    pub alignment: Bytes,
}
