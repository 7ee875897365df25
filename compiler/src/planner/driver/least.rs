//! The least budget for which a plan is found.
//!
//! It depends on the problem and the options alone, never on the budget that somebody asked for: `min-budget` prints it, a refusal names
//! it, and a search that finds nothing within a budget above it starts from its plan. A search for the fewest bytes comes first, then
//! bisection towards what is proved, each try from the plans before it, and last a plan for what was reached, as for any budget: where that
//! needs less, the same again.

use super::super::bounds;
use super::super::offsets::Limits;
use super::super::outcome::{Infeasible, Options, PlanError, Planned};
use super::super::problem::{Bytes, Problem};
use super::super::strategies::{Candidate, best_cut, foresight, hindsight, square_root, window_repair};
use super::{Bounds, HUGE, Index, KEEP_ALL, LARGE, Placed, Session, working_set_bound};

/// Budgets tried between what is proved and the best plan so far.
pub const ROUNDS: u32 = 6;
/// Plans for what was reached, each for what the one before it needs.
const WITHIN: u32 = 4;
/// Rounds of other searches are numbered below this: each has random choices of its own.
const FIRST: u64 = 64;

/// The least budget within which plans of all problems are found, and these plans.
///
/// # Errors
/// A problem that is not well formed.
pub fn plan_least(problems: &[Problem], options: &Options) -> Result<(Bytes, Vec<Planned>), PlanError> {
    let indices: Vec<Index<'_>> = problems.iter().map(Index::new).collect::<Result<_, _>>()?;
    let mut sessions: Vec<Session<'_, '_>> = indices.iter().map(|i| Session::new(i, options)).collect();
    let mut budget = 0;
    for session in &mut sessions {
        let least = session.least();
        budget = budget.max(session.need(&least.1));
    }
    let plan = |s: &mut Session<'_, '_>| s.plan(budget).map_err(|e| PlanError::Infeasible(Box::new(e)));
    Ok((budget, sessions.iter_mut().map(plan).collect::<Result<_, _>>()?))
}

/// The least budget within which a plan is found.
///
/// # Errors
/// A problem that is not well formed.
pub fn least_budget(problem: &Problem, options: &Options) -> Result<Bytes, PlanError> {
    let index = Index::new(problem)?;
    let mut session = Session::new(&index, options);
    let least = session.least();
    Ok(session.need(&least.1))
}

/// Whether a plan is found within a budget, or why not. Cheaper than planning: any plan will do.
///
/// # Errors
/// A problem that is not well formed.
pub fn fits(
    problem: &Problem,
    budget: Bytes,
    options: &Options,
) -> Result<Result<(), Infeasible>, PlanError> {
    let index = Index::new(problem)?;
    let mut session = Session::new(&index, options);
    Ok(session.fits(budget))
}

impl Session<'_, '_> {
    /// The plan with the least need that is found, whatever has been planned before.
    pub(super) fn least(&mut self) -> (Candidate, Placed) {
        if let Some(least) = &self.least {
            return least.clone();
        }
        let least = self.search_least(0);
        self.within(least)
    }

    /// The plan for what a plan needs, until it needs no less: the least from now on.
    fn within(&mut self, mut least: (Candidate, Placed)) -> (Candidate, Placed) {
        let found = std::mem::take(&mut self.found);
        let plans = std::mem::take(&mut self.plans);
        let rungs = std::mem::take(&mut self.rungs);
        for _ in 0..if self.index.given.len() > LARGE { 1 } else { WITHIN } {
            let budget = self.need(&least.1);
            self.least = Some(least.clone());
            self.at_least = None;
            self.at_least = self.find(budget).ok();
            least = self.known(budget).cloned().unwrap_or(least);
            if self.need(&least.1) == budget {
                break;
            }
        }
        (self.found, self.plans, self.rungs) = (found, plans, rungs);
        self.least = Some(least.clone());
        least
    }

    /// As [`Session::plan`], as far as it takes to find any plan.
    fn fits(&mut self, budget: Bytes) -> Result<(), Infeasible> {
        if self.need(&self.keep_all_placed) <= budget {
            return Ok(());
        }
        let bounds = self.bounds(budget);
        if !bounds.are_infeasible() {
            self.plan_rungs(budget);
            let pool = self.found.iter().chain([&self.keep_all]).cloned().collect();
            if self.attempt(budget, pool, 0, &mut Bounds::any(self.index.base_time)).is_some() {
                return Ok(());
            }
        }
        let mut found = self.search_least(budget);
        if self.need(&found.1) > budget {
            found = self.within(found);
        }
        let fits = self.need(&found.1) <= budget;
        if fits { Ok(()) } else { Err(self.infeasible(budget, &found.1, bounds.are_infeasible())) }
    }

    /// A plan within a budget for which the search found none, from the one with the least need.
    pub(super) fn start_from_least(
        &mut self,
        budget: Bytes,
        bounds: &mut Bounds,
    ) -> Option<(Candidate, Placed)> {
        let least = self.least();
        if self.need(&least.1) > budget {
            return None;
        }
        let better = self.attempt(budget, vec![least.0.clone()], 2 * FIRST, bounds);
        better.filter(|b| b.1.replay.time < least.1.replay.time).or(Some(least))
    }

    /// A plan with little need; the first one within `enough`.
    fn search_least(&mut self, enough: Bytes) -> (Candidate, Placed) {
        let mut best = (self.keep_all.clone(), self.keep_all_placed.clone());
        let problem = self.index.problem;
        let mut low = bounds::least_peak(problem).max(working_set_bound(self.index));
        if self.need(&best.1) <= enough.max(low) || enough > 0 && low > enough {
            return best;
        }
        let huge = self.index.given.len() > HUGE;
        let rounds = if huge { 0 } else { u64::from(self.options.rounds.unwrap_or(ROUNDS)) };
        let work = self.context.work;
        if self.index.given.len() > LARGE {
            self.context.work /= 2;
        }
        let mut pool = vec![self.keep_all.clone()];
        if let Some(candidate) = foresight::lowest(&mut self.context, low, self.keep_all.score.peak) {
            let placed = self.place_low(&candidate, candidate.score.peak);
            pool.push(candidate.clone());
            if self.need(&placed) < self.need(&best.1) {
                best = (candidate, placed);
            }
            self.report("least budget", self.need(&best.1), &pool);
            if self.need(&best.1) <= enough.max(low) {
                self.context.work = work;
                return best;
            }
        }
        let mut target = low;
        for round in 0..=rounds {
            let (candidate, placed) = self.try_for_bytes(&mut pool, round, target);
            if self.need(&placed) < self.need(&best.1) {
                best = (candidate, placed);
            }
            let high = self.need(&best.1);
            self.report("least budget", high, &pool);
            if high > target {
                low = target;
            }
            if high <= enough || high <= low || high - low <= high / 256 {
                break;
            }
            target = (low + (high - low) / 2).next_multiple_of(problem.alignment);
        }
        self.context.work = work;
        best
    }

    /// What needs least of some candidates that were searched for under a target; they join the pool.
    fn try_for_bytes(&mut self, pool: &mut Vec<Candidate>, round: u64, target: Bytes) -> (Candidate, Placed) {
        // With the first target, which is seldom reached, fewest bytes count; then anything that fits will do.
        let base = self.index.base_time;
        let any = if round == 0 { Bounds::none(base) } else { Bounds::any(base) }.free;
        let mut live_target = target;
        let mut best: Option<(Candidate, Placed)> = None;
        let tries = if self.index.given.len() > HUGE { 1 } else { 3 };
        for again in 0..tries {
            self.context.budget = live_target;
            let mut starts = pool.clone();
            if again == 0 && round > 0 {
                let cuts = self.cuts(target, &[64, 62, 57, 50]);
                starts.extend(best_cut::run(&mut self.context, &cuts));
                starts.extend(square_root::run(&mut self.context));
                starts.extend(foresight::run(&mut self.context));
                if self.index.given.len() <= LARGE {
                    starts.extend(hindsight::run(&mut self.context));
                    starts.extend(window_repair::run(&mut self.context));
                }
            }
            // Seeds of all kinds in the first round only.
            let salt = if round + again == 0 { 0 } else { FIRST + 4 * round + again };
            let candidate = self.search(&starts, salt, round > 0, any);
            let placed = self.place_low(&candidate, target);
            let need = self.need(&placed);
            let peak = candidate.score.peak;
            pool.push(candidate.clone());
            if best.as_ref().is_none_or(|b| need < self.need(&b.1)) {
                best = Some((candidate, placed));
            }
            if need <= target || peak > live_target {
                break;
            }
            // Fragmentation.
            live_target =
                live_target.min(peak).saturating_sub((need - target).max(self.index.problem.alignment));
        }
        best.unwrap_or_else(|| (self.keep_all.clone(), self.keep_all_placed.clone()))
    }

    fn place_low(&self, candidate: &Candidate, target: Bytes) -> Placed {
        let peak = candidate.score.peak.max(target);
        let placed = self.place(&candidate.sequence, peak, Limits::quick());
        if self.need(&placed) <= peak { placed } else { self.place(&candidate.sequence, peak, KEEP_ALL) }
    }
}
