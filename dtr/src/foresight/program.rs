//! A program whose every op is known before the first one runs.
//!
//! Unlike [`crate::Program`] it is a list in the order of first execution; views are no ops, and what two values share is one storage.

/// One op of a straight program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Storages that it reads, each once.
    pub reads: Vec<u32>,
    /// Storages that it makes.
    pub makes: Vec<u32>,
    /// Scratch bytes while it runs.
    pub workspace: u64,
    /// What running it costs.
    pub cost: u64,
    /// It must not run twice: what it makes is not evicted while anything could need it.
    pub once: bool,
    /// A copy from outside, cheap to repeat and read by many.
    pub leaf: bool,
    /// A storage made and one read that share a place at the first execution; nothing reads the latter afterwards.
    pub over: Option<(u32, u32)>,
    /// Storages outside that it overwrites with new versions: nothing that reads the old ones runs any more, not even again.
    pub commits: Vec<u32>,
}

/// Ops in order, and the storages between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Straight {
    /// Ops in the order of first execution.
    pub steps: Vec<Step>,
    /// Bytes of each storage. What takes none is always there.
    pub bytes: Vec<u64>,
    /// The op that makes each storage; [`Straight::OUTSIDE`] if it is not made here.
    pub makers: Vec<u32>,
    /// Storages that must be there after the last op.
    pub results: Vec<u32>,
    /// Ops from this one on run with all that they read there and held: nothing is recomputed between them.
    pub last: usize,
    /// How many ops ran before; what is left of what they made is in [`Straight::resident`].
    pub ran: usize,
    /// Storages that are there at the start.
    pub resident: Vec<u32>,
}

impl Straight {
    /// The maker of what comes from outside.
    pub const OUTSIDE: u32 = u32::MAX;

    /// The most bytes that one op needs at once: with less, no order helps.
    pub fn largest_need(&self) -> u64 {
        let bytes = |s: &u32| self.bytes[*s as usize];
        let need = |s: &Step| {
            let over = s.over.map_or(0, |(made, _)| bytes(&made));
            s.reads.iter().chain(&s.makes).map(bytes).sum::<u64>() + s.workspace - over
        };
        self.steps.iter().map(need).max().unwrap_or(0)
    }
}

/// What is done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// An op runs. Of a repeated execution, outputs that are there already are written to scratch.
    Run {
        /// The op.
        step: u32,
        /// Whether it ran before.
        again: bool,
        /// Whether it runs in place: [`Step::over`].
        over: bool,
    },
    /// A storage is given up.
    Drop {
        /// The storage.
        storage: u32,
    },
}

/// What is done, in order, and what it comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// What is done.
    pub actions: Vec<Action>,
    /// Most bytes in use at once.
    pub peak: u64,
    /// Storages that were dropped while something still needed them.
    pub evictions: u64,
    /// Repeated executions.
    pub repeats: u64,
    /// What first executions cost.
    pub first_cost: u64,
    /// What repeated executions cost.
    pub repeat_cost: u64,
}

/// Why there is no schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nothing more can go.
    #[error("out of memory at op {step}: {needed} bytes needed, {held} held of {budget}")]
    Full {
        /// The op that needed the space.
        step: u32,
        /// Bytes of its outputs and scratch.
        needed: u64,
        /// Bytes that cannot go.
        held: u64,
        /// The budget.
        budget: u64,
    },
    /// Repeated execution costs more than the limit.
    #[error("repeated execution costs more than {0}")]
    Thrashing(u64),
    /// An op that must not run twice would have to.
    #[error("op {0} must not run twice")]
    Once(u32),
    /// An op would have to read what another has overwritten.
    #[error("op {0} reads the old version of what is overwritten by then")]
    Stale(u32),
    /// The planner has looked at as much as it may.
    #[error("no plan was found with the effort that is allowed")]
    Effort,
}
