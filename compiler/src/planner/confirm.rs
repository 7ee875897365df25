//! Makes the advice of a refusal true: the least budget it names is one for which planning succeeds.
//!
//! The least arena that a failed search met is not always met again when it is asked for as the budget, because the search then takes other
//! ways. So it is asked for here, and what fails moves up until a plan is found.

use super::{
    driver::plan_many,
    outcome::{Infeasible, Options, PlanError},
    problem::Problem,
};

/// How often a larger budget is tried before keep-all's is named.
const TRIES: u32 = 6;

/// The refusal with a `least_arena` that was planned with success.
///
/// # Errors
/// The problem is not well formed.
pub fn confirm(problem: &Problem, refusal: Infeasible, options: &Options) -> Result<Infeasible, PlanError> {
    let mut least = refusal.least_arena.max(refusal.budget.saturating_add(1));
    for _ in 0..TRIES {
        match plan_many(problem, &[least], options)?.into_iter().next() {
            Some(Ok(_)) => return Ok(Infeasible { least_arena: least, ..refusal }),
            Some(Err(e)) => least = e.least_arena.max(least.saturating_add(least / 50)),
            None => break,
        }
    }
    let all = plan_many(problem, &[u64::MAX], options)?.into_iter().next();
    let least_arena = match all {
        Some(Ok(p)) => p.keep_all.arena,
        _ => least,
    };
    Ok(Infeasible { least_arena, ..refusal })
}
