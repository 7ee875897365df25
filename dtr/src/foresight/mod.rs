//! Deciding with the whole program known: what goes is chosen by what it costs to get back and by when that will be needed.
//!
//! The machine of this crate decides as ops come. A runtime that has unrolled its loops knows better: all ops, their order and sizes lie
//! before it, and only addresses are still open. So it plans first. The plan is a simulation in one pass over the program:
//!
//! - What an op reads and is not there comes back in *one* run over its evicted ancestors, in program order, each of them once. Nested
//!   recomputation, argument by argument, repeats what two arguments share, at every level.
//! - The victim is the least `cost / (bytes * distance)`: the cost of the evicted neighbourhood, in which dropping would leave a gap, over
//!   the bytes it frees and the cost of what runs until it is needed. A storage is also needed by what can be recomputed from it, so that
//!   intermediates stay while a neighbour will ask for them, and go at once when none will.
//! - Scores lie in a heap and are computed anew when they come up: they grow as time passes and neighbours go. An eviction costs a walk
//!   over one neighbourhood, not over all of them.
//!
//! - An op that overwrites a state (a *commit*) is the end of what can be made from the old version. What an op will still read and could
//!   not be made any more comes back before it, and from then on the only copy of what is needed is not evicted. So an update may run as
//!   soon as its gradient is there and the old version has been read for the last time: gradients need not be kept to the end.
//!
//! With equal costs and sizes the gaps between what is kept are even, which is the square-root schedule of a chain, and within a gap that
//! is recomputed the same happens again with what is free then.

mod below;
mod planner;
mod program;
mod score;
mod state;

pub use below::plan_below;
pub use planner::{Limits, plan, plan_within};
pub use program::{Action, Failure, Schedule, Step, Straight};
