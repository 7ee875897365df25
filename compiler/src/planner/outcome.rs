//! What a caller asks and gets: options, plans, refusals, progress.

use std::fmt;
use std::sync::Arc;

use super::check::ProblemError;
use super::problem::{Bytes, Nanos, NodeId};
use super::replay::Lifetime;
use super::schedule::Schedule;

/// How to plan.
#[derive(Clone, Default)]
pub struct Options {
    /// The given order of first executions is fixed; only repetitions are chosen.
    pub keep_order: bool,
    /// The budget bounds the live bytes; the arena may be higher. For comparison with planners that know no addresses.
    pub live_bytes_only: bool,
    /// Seed of all random choices.
    pub seed: u64,
    /// Executed steps that the search may simulate per budget; none: in proportion to the size of the problem.
    pub work: Option<u64>,
    /// Budgets tried on the way to the least one; none: [`super::ROUNDS`]. With more, a figure may come out that a search with fewer
    /// does not reach.
    pub rounds: Option<u32>,
    /// Resident sets of cuts, from a bound's relaxation: further seeds.
    pub cuts: Vec<Cut>,
    /// Called when a phase ends.
    pub progress: Option<ProgressFn>,
}

/// What is resident at the first execution of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The node.
    pub node: NodeId,
    /// Per value of the problem: resident. Missing entries are not.
    pub resident: Vec<bool>,
}

/// A progress callback.
pub type ProgressFn = Arc<dyn Fn(&Progress) + Send + Sync>;

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("keep_order", &self.keep_order)
            .field("live_bytes_only", &self.live_bytes_only)
            .field("seed", &self.seed)
            .field("work", &self.work)
            .field("cuts", &self.cuts.len())
            .finish_non_exhaustive()
    }
}

/// Where the planner stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// The phase that ended.
    pub phase: &'static str,
    /// Extra time over the base time of the best schedule within the budget, if there is one.
    pub extra_fraction: Option<f64>,
    /// The least live peak so far.
    pub peak: Bytes,
}

/// Addresses of all buffers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Storages and workspaces: lives in steps and what they hold.
    pub lifetimes: Vec<Lifetime>,
    /// Offset of each in the transient section, which begins behind the resident bytes.
    pub offsets: Vec<Bytes>,
    /// Height of the transient section.
    pub height: Bytes,
}

/// Why the search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Nothing is made again and every fastest implementation is used.
    NothingToGain,
    /// The extra time equals a proven lower bound.
    BoundReached,
    /// The work limit was reached.
    WorkLimit,
}

impl StopReason {
    /// The words used in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NothingToGain => "nothing to gain",
            Self::BoundReached => "bound reached",
            Self::WorkLimit => "work limit",
        }
    }
}

/// The best plan without recomputation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepAll {
    /// Its live peak.
    pub live_peak: Bytes,
    /// Its arena: resident bytes and the placed transient section.
    pub arena: Bytes,
}

/// A plan within a budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// The executions.
    pub schedule: Schedule,
    /// Addresses of storages and workspaces.
    pub layout: Layout,
    /// Most bytes live at one step.
    pub live_peak: Bytes,
    /// Bytes of the whole arena: resident bytes and transient section.
    pub arena: Bytes,
    /// Time of all executions.
    pub time: Nanos,
    /// Time of one execution of every needed node, each in its fastest implementation.
    pub base_time: Nanos,
    /// The best plan without recomputation.
    pub keep_all: KeepAll,
    /// Live peak in the given order, without overwrites.
    pub naive_peak: Bytes,
    /// Proven least extra time of any schedule within the budget, in any order.
    pub bound: Option<Nanos>,
    /// Proven least extra time of a schedule that keeps the given order, where that was asked for.
    pub keep_order_bound: Option<Nanos>,
    /// The strategy that the plan comes from.
    pub strategy: String,
    /// Why the search ended.
    pub stop: StopReason,
    /// Executed steps simulated.
    pub work: u64,
}

impl Planned {
    /// Extra time over the base time, as a fraction of it.
    #[must_use]
    pub fn extra_fraction(&self) -> f64 {
        (self.time - self.base_time) as f64 / self.base_time.max(1) as f64
    }
}

/// No plan within the budget.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no plan within {budget} bytes: {}; the least peak reached is {least_peak}, no plan needs less than {lower_bound}, \
         and step {binding_node:?} binds", if *proved { "proved impossible" } else { "none was found" })]
pub struct Infeasible {
    /// The budget asked for.
    pub budget: Bytes,
    /// Bytes that are there always: parameters, optimizer state, constants.
    pub state_floor: Bytes,
    /// The least budget for which planning is known to succeed.
    pub least_arena: Bytes,
    /// Its live peak.
    pub least_peak: Bytes,
    /// Proven: no schedule has a lower live peak.
    pub lower_bound: Bytes,
    /// The node at the peak of the plan with the least peak.
    pub binding_node: String,
    /// The largest tensors live there, with their bytes, largest first.
    pub largest: Vec<(String, Bytes)>,
    /// The budget is below the proven bound. Otherwise a plan may exist that was not found.
    pub proved: bool,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The problem is not well formed.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// Nothing fits.
    #[error(transparent)]
    Infeasible(Box<Infeasible>),
}
