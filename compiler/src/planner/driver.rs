//! From a problem and a budget to a plan: orders, keep-all, seeds, search, offsets.

mod compact;
mod fit;
mod least;

pub use least::{ROUNDS, fits, least_budget, plan_least};

use std::collections::BTreeSet;

use super::bounds::{self, Bound, Effort, Order};
use super::decode::Evaluator;
use super::index::{Index, NONE};
use super::offsets::{Buffer, Limits, Placement, place};
use super::order;
use super::outcome::{Cut, Infeasible, KeepAll, Layout, Options, PlanError, Planned, Progress, StopReason};
use super::problem::{Bytes, Nanos, Problem};
use super::replay::{Holder, Lifetime, Replay, assemble, replay};
use super::schedule::Schedule;
use super::strategies::{
    Candidate, Context, best_cut, chain, dtr_seeds, exact, foresight, hindsight, ilp_windows, keep_all,
    local_search, neighbourhood, sequence_search, square_root, window_repair,
};

/// Work on each printed bound.
const BOUNDING: Effort = Effort { scan: 30_000_000, relax: 20_000_000, branch: 60_000_000 };
/// Work on each resident set that seeds the search.
const SEEDING: Effort = Effort { scan: 10_000_000, relax: 6_000_000, branch: 12_000_000 };

/// The same where each look at the graph is long.
const SEEDING_MANY: Effort = Effort { scan: 5_000_000, relax: 3_000_000, branch: 6_000_000 };
/// Work on the offsets of keep-all, the figure that budgets in percent refer to.
const KEEP_ALL: Limits = Limits { greedy: 40_000_000, repair: 10_000_000, search: 100_000_000 };
/// Work on the bound of several moments at once, where a plan is not within a part of the base time of the simpler one.
const JOINT: u64 = 900_000_000;
const NEAR: Nanos = 2_000;
/// Searches in all where a plan with bytes left free is known already.
const FITTED_ROUNDS: u64 = 3;
/// An extra time that no plan has.
const ANY: Nanos = Nanos::MAX / 4;
/// Between the resident bytes and keep-all's peak: budgets that any compile for a larger one plans first.
const RUNGS: u64 = 24;
/// A plan by more than this part of the base time above the bound is worth another search.
const FAR: Nanos = 200;
/// Of many nodes windows are decided by this part of the base time above the bound.
const FAR_OF_MANY: Nanos = 500;
/// Searches for one budget, where what is found cannot be placed.
const ATTEMPTS: u64 = 6;
/// A plan of few nodes by more than this part of the base time above the bound is searched for longer, in a round of this number.
const UNEVEN: Nanos = 333;
const LONGER: u64 = 1 << 20;
/// Less than this part of the base time is not worth another one.
const WORTH: Nanos = 1_000;
/// Above so many nodes every change is evaluated incrementally; searches that replay the whole sequence are left out.
const LARGE: usize = 700;
/// Above so many nodes, seeds and rungs that take longer than the search makes of them are left out.
const HUGE: usize = 10_000;

/// Plans a problem within a budget.
///
/// # Errors
/// A problem that is not well formed, or no plan within the budget.
pub fn plan(problem: &Problem, budget: Bytes, options: &Options) -> Result<Planned, PlanError> {
    let mut results = plan_many(problem, &[budget], options)?;
    results.remove(0).map_err(|e| PlanError::Infeasible(Box::new(e)))
}

/// Plans a problem within several budgets; answers in the order asked. A larger budget starts from the plans of the smaller ones and
/// never takes more time.
///
/// # Errors
/// A problem that is not well formed. A budget without a plan is an error of its own.
pub fn plan_many(
    problem: &Problem,
    budgets: &[Bytes],
    options: &Options,
) -> Result<Vec<Result<Planned, Infeasible>>, PlanError> {
    let index = Index::new(problem)?;
    let mut session = Session::new(&index, options);
    let mut rising: Vec<usize> = (0..budgets.len()).collect();
    rising.sort_by_key(|&i| (budgets[i], i));
    let mut found: Vec<Option<Result<Found, Infeasible>>> = budgets.iter().map(|_| None).collect();
    for &i in &rising {
        found[i] = Some(session.find(budgets[i]));
    }
    let plan = |(found, &budget): (Result<Found, Infeasible>, &Bytes)| Ok(session.planned(budget, found?));
    Ok(found.into_iter().flatten().zip(budgets).map(plan).collect())
}

/// Executed steps that the search may simulate: what small problems need to settle, and some seconds of it for large ones.
fn default_work(nodes: u64) -> u64 {
    (nodes * 120_000).clamp(1_000_000, 24_000_000) + nodes.saturating_sub(1_000).min(20_000) * 16_000
}

/// What online rematerialization alone makes of a budget: extra time as a fraction of the base time, per heuristic, in the given order;
/// none where it runs out of memory or more than doubles the time. The budget bounds its live bytes; it knows no addresses.
///
/// # Errors
/// A problem that is not well formed.
pub fn online(
    problem: &Problem,
    budget: Bytes,
    heuristics: &[dtr::Heuristic],
) -> Result<Vec<Option<f64>>, PlanError> {
    Ok(dtr_seeds::online(&Index::new(problem)?, budget, heuristics))
}

/// A schedule with its replay and addresses.
#[derive(Clone, Default)]
struct Placed {
    schedule: Schedule,
    replay: Replay,
    layout: Layout,
}

impl Placed {
    fn arena(&self, problem: &Problem) -> Bytes {
        problem.resident + self.layout.height
    }

    /// What reaches above a height of the transient section at some moment of its life.
    fn above(&self, height: Bytes) -> impl Iterator<Item = &Lifetime> {
        let placed = self.layout.lifetimes.iter().zip(&self.layout.offsets);
        placed.filter(move |(l, offset)| l.start < l.end && **offset + l.size > height).map(|p| p.0)
    }
}

/// What is proved of a budget.
#[derive(Clone, Copy)]
struct Bounds {
    free: Bound,
    /// Of schedules in the given order, where that is kept.
    fixed: Option<Bound>,
}

impl Bounds {
    fn none(base_time: Nanos) -> Self {
        let free = Bound { extra_time: 0, base_time, node: None, method: bounds::Method::Nothing };
        Self { free, fixed: None }
    }

    /// As if nothing better could be: whatever fits ends the search.
    fn any(base_time: Nanos) -> Self {
        let none = Self::none(base_time);
        Self { free: Bound { extra_time: ANY, ..none.free }, ..none }
    }

    /// The one that holds for the schedules looked at.
    fn nearest(&self) -> Bound {
        self.fixed.unwrap_or(self.free)
    }

    fn are_infeasible(&self) -> bool {
        self.free.is_infeasible() || self.fixed.is_some_and(|b| b.is_infeasible())
    }
}

/// What came of a budget that can be kept.
#[derive(Clone, Copy)]
struct Found {
    bounds: Bounds,
    work: u64,
}

/// What is common to all budgets, and the candidates found so far.
struct Session<'i, 'a> {
    index: &'i Index<'a>,
    options: &'i Options,
    context: Context<'i, 'a>,
    keep_all: Candidate,
    keep_all_summary: KeepAll,
    keep_all_placed: Placed,
    naive_peak: Bytes,
    found: Vec<Candidate>,
    /// All plans so far, whatever they were made for: what fits one budget fits any other that it needs no more than, as it is, addresses
    /// included.
    plans: Vec<(Candidate, Placed)>,
    /// Of many nodes, what the planner of dynamic programs makes of the budget last searched for.
    ahead: Option<Candidate>,
    /// Budgets that have been planned on the way to others.
    rungs: BTreeSet<Bytes>,
    /// What the last local search on seeds of all kinds began with.
    starts: Vec<Candidate>,
    /// The plan with the least need, once it has been searched for, and what was found of that budget.
    least: Option<(Candidate, Placed)>,
    at_least: Option<Found>,
}

impl<'i, 'a> Session<'i, 'a> {
    fn new(index: &'i Index<'a>, options: &'i Options) -> Self {
        let size = index.given.len() as u64;
        let work = options.work.unwrap_or_else(|| default_work(size));
        let orders = if options.keep_order {
            vec![index.given.clone()]
        } else {
            order::candidates(index).into_iter().map(|o| o.1).collect()
        };
        let mut context = Context {
            index,
            budget: Bytes::MAX,
            keep_order: options.keep_order,
            orders,
            evaluator: Evaluator::new(index),
            seed: options.seed,
            enough: index.base_time,
            work,
        };
        context.sort_orders();
        // Budgets in percent refer to its figure: it depends on nothing that a caller grants.
        context.work = default_work(size);
        let keep_all = keep_all::run(&mut context);
        context.work = work;
        if !options.keep_order && context.orders[0] != keep_all.genome.order {
            context.orders.insert(0, keep_all.genome.order.clone());
        }
        let mut this = Self {
            index,
            options,
            context,
            keep_all,
            keep_all_summary: KeepAll::default(),
            keep_all_placed: Placed::default(),
            naive_peak: naive_peak(index),
            found: Vec::new(),
            plans: Vec::new(),
            ahead: None,
            rungs: BTreeSet::new(),
            starts: Vec::new(),
            least: None,
            at_least: None,
        };
        // Every fastest implementation: no budget is short.
        let limits = if options.live_bytes_only { Limits::quick() } else { KEEP_ALL };
        let placed = this.place(&this.keep_all.sequence, Bytes::MAX, limits);
        let live_peak = placed.replay.peak;
        let (keep_all, placed) = this.compacted((this.keep_all.clone(), placed), live_peak, Bytes::MAX);
        this.keep_all = keep_all;
        this.keep_all_summary = KeepAll { live_peak: placed.replay.peak, arena: placed.arena(index.problem) };
        this.keep_all_placed = placed;
        this.report("keep all", Bytes::MAX, &[]);
        this
    }

    fn report(&self, phase: &'static str, budget: Bytes, candidates: &[Candidate]) {
        if let Some(progress) = &self.options.progress {
            let best = candidates.iter().chain([&self.keep_all]).min_by_key(|c| c.score.key(budget));
            let fits = best.filter(|b| b.score.peak <= budget);
            progress(&Progress {
                phase,
                extra_fraction: fits.map(|b| {
                    (b.score.time - self.index.base_time) as f64 / self.index.base_time.max(1) as f64
                }),
                peak: best.map_or(0, |b| b.score.peak),
            });
        }
    }

    /// Assembles, replays and places a sequence.
    fn place(&self, sequence: &[u32], budget: Bytes, limits: Limits) -> Placed {
        let problem = self.index.problem;
        let schedule = assemble(problem, sequence, budget);
        // Candidates are lawful by construction; a broken one would show as an empty replay, which no caller takes for a plan.
        let replay = replay(problem, &schedule).unwrap_or_default();
        debug_assert_eq!(replay.storages.len(), sequence.len());
        let buffers = buffers(&replay);
        let capacity = (budget != Bytes::MAX).then(|| budget.saturating_sub(problem.resident));
        let Placement { offsets, height, .. } = place(&buffers, capacity, limits);
        let layout = Layout { lifetimes: replay.lifetimes.clone(), offsets, height };
        Placed { schedule, replay, layout }
    }

    /// The placement that fits was the first one to do so; a lower one leaves more to whoever shares the memory.
    fn settle(&self, placed: Placed) -> Placed {
        if self.options.live_bytes_only
            || placed.layout.height <= placed.replay.peak - self.index.problem.resident
        {
            return placed;
        }
        // The budget decides which implementations run, so the schedule stays as it is.
        let buffers = buffers(&placed.replay);
        let Placement { offsets, height, .. } = place(&buffers, None, KEEP_ALL);
        if height >= placed.layout.height {
            return placed;
        }
        let layout = Layout { lifetimes: placed.replay.lifetimes.clone(), offsets, height };
        Placed { layout, ..placed }
    }

    fn plan(&mut self, budget: Bytes) -> Result<Planned, Infeasible> {
        let found = self.find(budget)?;
        Ok(self.planned(budget, found))
    }

    /// Searches for plans within a budget; the best of all that are known then fits it.
    fn find(&mut self, budget: Bytes) -> Result<Found, Infeasible> {
        let start_work = self.context.evaluator.work;
        let asked = budget;
        let budget = self.usable(budget);
        // As it was placed: at its own arena nothing is to be recomputed.
        if self.need(&self.keep_all_placed) <= budget {
            return Ok(Found { bounds: Bounds::none(self.index.base_time), work: 0 });
        }
        if let (Some(found), Some(least)) = (self.at_least, &self.least)
            && self.need(&least.1) == budget
        {
            return Ok(found);
        }
        let mut bounds = self.bounds(budget);
        let hopeless = bounds.are_infeasible();
        if !hopeless {
            self.plan_rungs(budget);
        }
        let mut pool = self.found.clone();
        pool.push(self.keep_all.clone());
        // What is proved impossible is not searched for.
        let mut best = if hopeless { None } else { self.attempt(budget, pool, 0, &mut bounds) };
        if best.is_none() && self.known(budget).is_none() && !bounds.are_infeasible() {
            best = self.start_from_least(budget, &mut bounds);
        }
        let work = self.context.evaluator.work - start_work;
        if let Some((candidate, placed)) = best {
            let placed = self.settle(placed);
            self.found.push(candidate.clone());
            self.plans.push((candidate, placed));
        }
        if self.known(budget).is_some() {
            return Ok(Found { bounds, work });
        }
        let least = self.least();
        let refusal = self.infeasible(asked, &least.1, bounds.are_infeasible());
        self.found.push(least.0);
        Err(refusal)
    }

    /// What of a budget can be filled: sizes and addresses are multiples of the alignment.
    fn usable(&self, budget: Bytes) -> Bytes {
        let problem = self.index.problem;
        let spare = budget.saturating_sub(problem.resident);
        if self.options.live_bytes_only { budget } else { budget - spare % problem.alignment.max(1) }
    }

    /// The fastest of the plans so far that a budget has room for.
    fn known(&self, budget: Bytes) -> Option<&(Candidate, Placed)> {
        let fit = self.plans.iter().chain(&self.least).filter(|k| self.need(&k.1) <= budget);
        fit.min_by_key(|k| (k.1.replay.time, self.need(&k.1)))
    }

    /// What the budget bounds: the arena, or the live bytes alone.
    fn need(&self, placed: &Placed) -> Bytes {
        if self.options.live_bytes_only { placed.replay.peak } else { placed.arena(self.index.problem) }
    }

    /// What is proved of a budget before anything is searched.
    fn bounds(&self, budget: Bytes) -> Bounds {
        let problem = self.index.problem;
        let mut bounds = Bounds::none(self.index.base_time);
        if self.keep_all.score.peak > budget {
            bounds.free = bounds::order_free(problem, budget, self.effort(BOUNDING));
            if self.options.keep_order {
                bounds.fixed = Some(bounds::keep_order(problem, budget, self.effort(BOUNDING)));
            }
            self.report("bound", budget, &[]);
        }
        bounds
    }

    /// Searches for a plan within a budget, starting from the pool, and from seeds in round 0. What the search proves raises the bounds.
    ///
    /// A schedule whose live bytes fit may not find addresses within the budget. Then less is asked for, until something fits, and after
    /// that more again, between what could be placed and what could not.
    fn attempt(
        &mut self,
        budget: Bytes,
        pool: Vec<Candidate>,
        first: u64,
        bounds: &mut Bounds,
    ) -> Option<(Candidate, Placed)> {
        self.ahead = None;
        let found = self.search_and_place(budget, pool, first, bounds);
        // Placement can cost more than the search has gained.
        let known = found.as_ref().map_or(Nanos::MAX, |f| f.1.replay.time);
        match self.ahead.take().filter(|a| self.index.given.len() > LARGE && a.score.time < known) {
            Some(ahead) => {
                self.placed_or_fitted(&ahead, budget).filter(|f| f.1.replay.time < known).or(found)
            }
            None => found,
        }
    }

    fn search_and_place(
        &mut self,
        budget: Bytes,
        mut pool: Vec<Candidate>,
        first: u64,
        bounds: &mut Bounds,
    ) -> Option<(Candidate, Placed)> {
        let mut live_budget = budget;
        let mut fit: Option<(Candidate, Placed)> = None;
        let mut fitted: Option<(Candidate, Placed)> = None;
        // Live bytes that were too many, and the time that they would have given.
        let mut failed: Option<(Bytes, Nanos)> = None;
        let rounds = if self.index.given.len() > HUGE { ATTEMPTS / 2 } else { ATTEMPTS };
        for round in first..first + rounds {
            self.context.budget = live_budget;
            let mut candidate = self.search(&pool, round, false, bounds.nearest());
            if round == 0 && self.index.given.len() <= LARGE {
                candidate = self.search_longer(candidate, &mut pool, bounds.nearest());
            }
            if round == first && bounds.free.extra_time != ANY && !self.is_enough(&candidate) {
                candidate = self.solve(candidate, bounds.fixed.as_mut().unwrap_or(&mut bounds.free));
                if let Some(fixed) = &mut bounds.fixed {
                    *fixed = self.sharpen(Order::Given, *fixed, &candidate);
                }
                bounds.free = self.sharpen(Order::Free, bounds.free, &candidate);
            }
            if candidate.score.peak > budget {
                break;
            }
            let (candidate, placed) = self.place_within(candidate, budget);
            let need = self.need(&placed);
            let time = placed.replay.time;
            pool.push(candidate.clone());
            let alignment = self.index.problem.alignment;
            if need <= budget {
                if fit.as_ref().is_none_or(|f| time < f.1.replay.time) {
                    fit = Some((candidate, placed));
                }
                let Some((too_much, at_best)) = failed.filter(|_| self.index.given.len() <= LARGE) else {
                    break;
                };
                let known = fit.as_ref().map_or(time, |f| f.1.replay.time);
                let gain = known.saturating_sub(at_best);
                let step = (too_much - live_budget) / 2;
                if gain <= self.index.base_time / WORTH || step < alignment.max(budget / 1024) {
                    break;
                }
                live_budget += step;
                continue;
            }
            failed = Some((live_budget, failed.map_or(time, |f| f.1.min(time))));
            if let Some(fit) = &fit {
                let low = fit.0.score.peak.min(live_budget);
                if live_budget - low < alignment.max(budget / 1024) {
                    break;
                }
                live_budget = low + (live_budget - low) / 2;
                continue;
            }
            // Bytes may be left free where they are missing, or everywhere: neither is always the cheaper way.
            if self.index.given.len() > LARGE && fitted.is_none() {
                fitted = self.fitted(&candidate, &placed, budget, 3000 + round);
                if fitted.is_some() && (round > first || self.index.given.len() > HUGE) {
                    break;
                }
            }
            if fitted.is_some() && round + 1 >= first + FITTED_ROUNDS {
                break;
            }
            // Fragmentation: ask for that much less, and a little more each time.
            let lost = (need - budget).max(alignment);
            let peak = pool.last().map_or(live_budget, |c| c.score.peak);
            live_budget = live_budget.min(peak).saturating_sub(lost + lost / 4 * (round - first));
        }
        fit.into_iter().chain(fitted).min_by_key(|f| f.1.replay.time)
    }

    /// The candidate, or a better one by a longer search from the same starts, where it is far from the bound. Of few nodes few save much,
    /// and a short search may miss the one set of them that fits.
    fn search_longer(&mut self, candidate: Candidate, pool: &mut Vec<Candidate>, bound: Bound) -> Candidate {
        let base = self.index.base_time;
        let left = candidate.score.time.saturating_sub(base + bound.extra_time);
        if candidate.score.peak <= self.context.budget && left <= base / UNEVEN {
            return candidate;
        }
        let mut starts = std::mem::take(&mut self.starts);
        starts.push(candidate.clone());
        let found = self.search(&starts, LONGER, false, bound);
        pool.push(candidate.clone());
        self.context.better(candidate, found)
    }

    /// Places a candidate whose live bytes fit.
    fn place_within(&mut self, candidate: Candidate, budget: Bytes) -> (Candidate, Placed) {
        let problem = self.index.problem;
        let placed = self.place(&candidate.sequence, budget, Limits::quick());
        // A plan that nearly fits is worth more than a search for one with less.
        let over = placed.arena(problem).saturating_sub(budget);
        if over == 0 || self.options.live_bytes_only {
            return (candidate, placed);
        }
        let near = over < budget.saturating_sub(problem.resident) / 32;
        let patience = self.patience(placed.layout.offsets.len());
        let placed = if near { self.place(&candidate.sequence, budget, patience) } else { placed };
        self.compacted((candidate, placed), budget, budget)
    }

    fn is_enough(&self, candidate: &Candidate) -> bool {
        candidate.score.peak <= self.context.budget && candidate.score.time <= self.context.enough
    }

    /// On small problems: the best schedule, and the bound raised to what is proven.
    fn solve(&mut self, candidate: Candidate, bound: &mut Bound) -> Candidate {
        let Some(solved) = exact::run(&mut self.context, Some(&candidate)) else { return candidate };
        if solved.least_extra > bound.extra_time {
            *bound = Bound { extra_time: solved.least_extra, method: bounds::Method::Exhaustive, ..*bound };
        }
        solved.better.unwrap_or(candidate)
    }

    /// The bound raised by several moments at once, where the candidate is far from it.
    fn sharpen(&self, order: Order, bound: Bound, candidate: &Candidate) -> Bound {
        let base = self.index.base_time;
        let fits = candidate.score.peak <= self.context.budget;
        let known = if fits { candidate.score.time - base } else { Nanos::MAX };
        if known.saturating_sub(bound.extra_time) <= base / NEAR {
            return bound;
        }
        let part = self.effort(Effort { scan: 0, relax: 0, branch: JOINT }).branch;
        bounds::sharpen(self.index.problem, self.context.budget, order, bound, known, part)
    }

    /// Plans, with less work, the last fixed rungs below a budget. Compiles for budgets that lie close together then start from the
    /// same plans, and the larger budget's plan is hardly ever the slower one.
    fn plan_rungs(&mut self, budget: Bytes) {
        let resident = self.index.problem.resident;
        let step = ((self.keep_all.score.peak - resident) / RUNGS).max(1);
        let below = (budget.saturating_sub(resident) / step).min(RUNGS - 1);
        if self.index.given.len() > HUGE {
            return;
        }
        for rung in below.saturating_sub(1)..=below {
            let at = resident + rung * step;
            if at >= budget || !self.rungs.insert(at) {
                continue;
            }
            self.context.budget = at;
            self.context.enough = self.index.base_time;
            let known: Vec<Candidate> = self.found.iter().chain([&self.keep_all]).cloned().collect();
            let mut seeds: Vec<Candidate> = known.iter().map(|c| self.context.rescored(c)).collect();
            seeds.extend(square_root::run(&mut self.context));
            let cuts = self.cuts(at, &[64, 57]);
            seeds.extend(best_cut::run(&mut self.context, &cuts));
            let starts = best_per_strategy(seeds, at);
            let work = self.context.work / 16;
            for start in starts.iter().take(2) {
                let improved = neighbourhood::improve(&mut self.context, start, 0.5, work, rung);
                if improved.score.peak <= at {
                    let placed = self.place(&improved.sequence, at, Limits::quick());
                    self.found.push(improved.clone());
                    self.plans.push((improved, placed));
                }
            }
        }
        self.report("rungs", budget, &[]);
    }

    /// Seeds and local search under the context's budget.
    fn search(&mut self, pool: &[Candidate], round: u64, hopeless: bool, bound: Bound) -> Candidate {
        let budget = self.context.budget;
        let base = self.index.base_time;
        self.context.enough = base.saturating_add(bound.extra_time);
        let mut seeds: Vec<Candidate> = Vec::new();
        for known in pool {
            seeds.push(self.context.rescored(known));
        }
        let fits = |c: &Candidate| c.score.peak <= budget;
        if let Some(done) = seeds.iter().find(|c| fits(c) && c.score.time == base) {
            return done.clone();
        }
        if round == 0 {
            seeds.extend(square_root::run(&mut self.context));
            self.report("square root", budget, &seeds);
            seeds.extend(chain::run(&mut self.context));
            self.report("chain", budget, &seeds);
            let mut cuts = self.options.cuts.clone();
            let parts: &[Bytes] = match self.index.given.len() {
                n if n > HUGE => &[64, 58],
                n if n > LARGE => &[64, 62, 58, 50],
                _ => &[64, 63, 62, 60, 57, 54, 50, 45],
            };
            cuts.extend(self.cuts(budget, parts));
            seeds.extend(best_cut::run(&mut self.context, &cuts));
            self.report("best cut", budget, &seeds);
            if self.index.given.len() <= HUGE {
                seeds.extend(dtr_seeds::run(&mut self.context));
            }
            self.report("dtr", budget, &seeds);
            seeds.extend(hindsight::run(&mut self.context));
            self.report("hindsight", budget, &seeds);
            let ahead = foresight::run(&mut self.context);
            self.ahead = ahead.iter().min_by_key(|c| c.score.key(budget)).cloned();
            seeds.extend(ahead);
            self.report("foresight", budget, &seeds);
            if self.index.given.len() <= LARGE {
                seeds.extend(window_repair::run(&mut self.context));
            }
            self.report("window repair", budget, &seeds);
        }
        // A seed at the bound needs no search.
        let at_bound = |c: &Candidate| fits(c) && c.score.time - base <= bound.extra_time;
        if let Some(done) = seeds.iter().find(|c| at_bound(c)) {
            return done.clone();
        }
        let mut starts = best_per_strategy(seeds, budget);
        let large = self.index.given.len() > LARGE;
        starts.truncate(if (round == 0 || round == LONGER) && !large { 4 } else { 2 });
        if round == 0 {
            self.starts.clone_from(&starts);
        }
        let share = match (hopeless || round > 0, large || hopeless) {
            _ if round == LONGER => self.context.work * 2,
            (false, _) => self.context.work,
            (true, false) => self.context.work / 2,
            (true, true) => self.context.work / 4,
        };
        let heat = 1.0;
        // Long searches gain most late: there the best start gets most.
        let early = if large { share / 4 } else { share / 2 };
        let first = early / starts.len().max(1) as u64;
        let mut improved: Vec<Candidate> = Vec::new();
        for (salt, start) in starts.iter().enumerate() {
            let salt = salt as u64 + 16 * round;
            let context = &mut self.context;
            if large {
                improved.push(neighbourhood::improve(context, start, heat, first, salt));
                continue;
            }
            let repaired = window_repair::repair(context, start.clone());
            let trimmed = window_repair::trim(context, repaired);
            let decoded = local_search::improve(context, &trimmed, heat, first / 3, salt);
            let decoded = sequence_search::improve(context, &decoded, heat, first / 3, salt);
            improved.push(neighbourhood::improve(context, &decoded, heat, first / 3, salt));
        }
        improved.sort_by_key(|c| c.score.key(budget));
        if at_bound(&improved[0]) {
            return improved.swap_remove(0);
        }
        improved.truncate(if large { 1 } else { 2 });
        self.report("local search", budget, &improved);
        let second = (share - early) / improved.len().max(1) as u64;
        for (salt, candidate) in improved.iter_mut().enumerate() {
            let salt = 1000 + salt as u64 + 16 * round;
            let context = &mut self.context;
            if large {
                *candidate = neighbourhood::improve(context, candidate, heat / 4.0, second, salt);
                continue;
            }
            let decoded = neighbourhood::improve(context, candidate, heat / 4.0, second / 3, salt);
            let decoded = local_search::improve(context, &decoded, heat / 4.0, second / 3, salt);
            *candidate = sequence_search::improve(context, &decoded, heat / 4.0, second / 3, salt);
        }
        self.report("local search", budget, &improved);
        let best = improved.into_iter().min_by_key(|c| c.score.key(budget));
        let Some(best) = best else { return self.keep_all.clone() };
        if hopeless || at_bound(&best) {
            return best;
        }
        // What is left to gain at most.
        let gap = |c: &Candidate| c.score.time.saturating_sub(base).saturating_sub(bound.extra_time);
        if large && gap(&best) <= base / FAR_OF_MANY {
            return best;
        }
        let context = &mut self.context;
        let found = ilp_windows::improve(context, &best, if large { share / 8 } else { share });
        self.report("local search", budget, std::slice::from_ref(&found));
        if gap(&found) <= base / FAR {
            return found;
        }
        let more = match self.index.given.len() {
            n if n > HUGE => share / 4,
            n if n > LARGE => share,
            _ => share / 2,
        };
        neighbourhood::improve(&mut self.context, &found, heat / 2.0, more, 2000 + 16 * round)
    }

    /// An effort in proportion to the work that the caller grants.
    fn effort(&self, full: Effort) -> Effort {
        let usual = default_work(self.index.given.len() as u64);
        let part = |steps: u64| {
            (u128::from(steps) * u128::from(self.context.work.min(usual)) / u128::from(usual)) as u64
        };
        Effort { scan: part(full.scan), relax: part(full.relax), branch: part(full.branch) }
    }

    /// Resident sets of the best cuts at these 64ths of the budget: somewhat below it bursts of recomputation have room.
    fn cuts(&self, budget: Bytes, parts: &[Bytes]) -> Vec<Cut> {
        let order = if self.options.keep_order { Order::Given } else { Order::Free };
        let problem = self.index.problem;
        let spare = budget.saturating_sub(problem.resident);
        let mut cuts: Vec<Cut> = Vec::new();
        let effort = self.effort(if self.index.given.len() > 500 { SEEDING_MANY } else { SEEDING });
        for &part in parts {
            let budget = problem.resident + spare / 64 * part + spare % 64;
            let (bound, resident) = bounds::with_resident_set(problem, budget, order, effort);
            if bound.is_infeasible() {
                break;
            }
            if let Some(node) = bound.node
                && cuts.iter().all(|c| c.resident != resident || c.node != node)
            {
                cuts.push(Cut { node, resident });
            }
        }
        cuts
    }

    /// The best plan known for a budget for which one was found.
    fn planned(&self, budget: Bytes, found: Found) -> Planned {
        let problem = self.index.problem;
        let base_time = self.index.base_time;
        let all = (&self.keep_all, &self.keep_all_placed);
        let known = self.known(self.usable(budget)).map(|(c, p)| (c, p));
        let (candidate, placed) = known.filter(|_| self.need(all.1) > budget).unwrap_or(all);
        let placed = placed.clone();
        let Found { bounds, work } = found;
        let extra = placed.replay.time - base_time;
        let stop = match bounds.nearest().extra_time {
            _ if extra == 0 => StopReason::NothingToGain,
            bound if extra <= bound => StopReason::BoundReached,
            _ => StopReason::WorkLimit,
        };
        Planned {
            live_peak: placed.replay.peak,
            arena: placed.arena(problem),
            time: placed.replay.time,
            base_time,
            keep_all: self.keep_all_summary,
            naive_peak: self.naive_peak,
            bound: Some(bounds.free.extra_time.min(extra)),
            keep_order_bound: self.options.keep_order.then(|| bounds.fixed.map_or(0, |f| f.extra_time)),
            strategy: candidate.strategy.into(),
            stop,
            work,
            schedule: placed.schedule,
            layout: placed.layout,
        }
    }

    fn infeasible(&self, budget: Bytes, placed: &Placed, none: bool) -> Infeasible {
        let problem = self.index.problem;
        let replay = &placed.replay;
        let working_set = working_set_bound(self.index);
        let bound = working_set.max(bounds::least_peak(problem)).min(replay.peak);
        let proved = budget < bound || none;
        let step = replay.peak_step as u32;
        let mut largest: Vec<(String, Bytes)> = replay
            .lifetimes
            .iter()
            .filter(|l| l.start <= step && step < l.end && l.size > 0)
            .map(|l| (holder_name(problem, &placed.schedule, l.holder), l.size))
            .collect();
        largest.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        largest.truncate(5);
        let at_peak = placed.schedule.steps.get(replay.peak_step).map(|s| s.node);
        let name = |n: u32| problem.nodes[n as usize].name.clone();
        Infeasible {
            budget,
            state_floor: problem.resident,
            least_arena: placed.arena(problem),
            least_peak: replay.peak,
            lower_bound: bound,
            binding_node: at_peak.map_or_else(String::new, name),
            largest,
            proved,
        }
    }
}

impl Context<'_, '_> {
    /// Orders by the peak of keep-all, least first; equal ones stay as they are.
    fn sort_orders(&mut self) {
        let index = self.index;
        let mut keyed: Vec<(Bytes, Vec<u32>)> = std::mem::take(&mut self.orders)
            .into_iter()
            .map(|o| {
                let genome = super::decode::Genome::keep_all(index, o);
                let score = self.evaluator.decode(&genome, Bytes::MAX, Nanos::MAX);
                (score.map_or(Bytes::MAX, |s| s.peak), genome.order)
            })
            .collect();
        keyed.sort_by_key(|k| k.0);
        self.orders = keyed.into_iter().map(|k| k.1).collect();
    }
}

/// What a schedule places.
fn buffers(replay: &Replay) -> Vec<Buffer> {
    let buffer = |l: &Lifetime| Buffer { start: l.start.into(), end: l.end.into(), size: l.size };
    replay.lifetimes.iter().map(buffer).collect()
}

fn holder_name(problem: &Problem, schedule: &Schedule, holder: Holder) -> String {
    match holder {
        Holder::Input(value) => problem.values[value as usize].name.clone(),
        Holder::Output(step, output) => {
            let node = &problem.nodes[schedule.steps[step].node as usize];
            problem.values[node.outputs[output as usize] as usize].name.clone()
        }
        Holder::Workspace(step) => {
            format!("workspace of {}", problem.nodes[schedule.steps[step].node as usize].name)
        }
    }
}

/// The best candidate of each strategy, best first.
fn best_per_strategy(mut candidates: Vec<Candidate>, budget: Bytes) -> Vec<Candidate> {
    candidates.sort_by_key(|c| c.score.key(budget));
    let mut seen: Vec<&'static str> = Vec::new();
    candidates.retain(|c| {
        !seen.contains(&c.strategy) && {
            seen.push(c.strategy);
            true
        }
    });
    candidates
}

/// Live peak of the given order without overwrites, in the fastest implementations.
fn naive_peak(index: &Index<'_>) -> Bytes {
    let mut schedule = assemble(index.problem, &index.given, Bytes::MAX);
    for step in &mut schedule.steps {
        step.overwrites.clear();
    }
    replay(index.problem, &schedule).map_or(0, |r| r.peak)
}

/// No schedule needs less: the inputs, outputs and least workspace of one needed node, after the best lawful overwrite of each output,
/// beside what is always there.
pub(crate) fn working_set_bound(index: &Index<'_>) -> Bytes {
    let problem = index.problem;
    let mut bound = problem.resident;
    for &node in &index.given {
        let n = &problem.nodes[node as usize];
        let inputs: Bytes = index.input_groups.row(node).iter().map(|&g| index.group_bytes[g as usize]).sum();
        let mut outputs = 0;
        for (position, &value) in n.outputs.iter().enumerate() {
            let group = index.value_group[value as usize];
            let own = group != NONE && index.group_root[group as usize] == value;
            let may_share = n.overwrites.iter().any(|p| p.0 as usize == position);
            if own && !may_share {
                outputs += index.group_bytes[group as usize];
            }
        }
        let workspace = n.implementations.iter().map(|i| i.workspace).min().unwrap_or(0);
        let total = problem.resident + inputs + outputs + workspace.next_multiple_of(problem.alignment);
        bound = bound.max(total);
    }
    bound
}
