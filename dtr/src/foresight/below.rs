//! A plan for less than the budget, where there is none for the budget itself.
//!
//! The planner is greedy: with a little more memory it keeps what it should not have, and may end where with less it does not. What fits
//! into less fits into more, so that a program should not be refused before less was tried. The budgets that are tried follow from the
//! program alone, so that two budgets between the same of them end alike.

use super::{
    planner::{Limits, plan_within},
    program::{Schedule, Straight},
};

/// The budgets lie so many to a factor of two, from what the largest op needs.
const RUNGS_PER_OCTAVE: f64 = 32.0;

/// Most budgets that are tried.
const MOST: usize = 32;

/// Most ops that are planned together, so that a refusal comes soon; one budget is always tried.
const MOST_STEPS: usize = 5_000;

/// The plan for the greatest of a few budgets below the limit that has one, with no more `effort` than is left: see [`plan_within`].
#[must_use]
pub fn plan_below(program: &Straight, limits: Limits, effort: &mut u64) -> Option<Schedule> {
    let need = program.largest_need().max(1);
    let rung = |k: i32| (need as f64 * (f64::from(k) / RUNGS_PER_OCTAVE).exp2()) as u64;
    let highest = ((limits.budget as f64 / need as f64).log2() * RUNGS_PER_OCTAVE).ceil() as i32;
    let most = (MOST_STEPS / program.steps.len().max(1)).clamp(1, MOST);
    let below = (0..=highest).rev().map(rung).filter(|b| *b < limits.budget);
    below.take(most).find_map(|budget| plan_within(program, Limits { budget, ..limits }, effort).ok())
}
