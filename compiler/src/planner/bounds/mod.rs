//! Proven lower bounds: on the peak, and on the extra time under a budget.
//!
//! [`order_free`] holds for every schedule; [`keep_order`] only for those that keep the order of first executions, and carries that name
//! so that the two are never mixed up. Both look at single moments of the schedule ([`cut`] says how and why they are valid), relaxed
//! first over many moments, then by branch and bound at the best ones. [`sharpen`] takes several moments together. [`cut_resident_set`] hands the best moment's choice to the
//! planner as a seed. All arithmetic that ends in a bound is in integers and rounds outward; all limits count work.

mod cut;
mod facts;
mod flow;
mod joint;
mod moments;
mod peak;
mod region;
mod search;
mod simplex;

#[cfg(test)]
mod tests;

pub use moments::sharpen;
pub use peak::{least_peak, least_peak_with};
pub use region::Order;

use crate::planner::problem::{Bytes, Nanos, NodeId, Problem};
use cut::Cut;
use facts::Facts;

/// How much work a bound may cost, in elementary steps of some nanoseconds each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Steps for ranking the nodes.
    pub scan: u64,
    /// Steps for the relaxed bounds at the best-ranked ones.
    pub relax: u64,
    /// Steps for branch and bound at the best of those.
    pub branch: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Self { scan: 60_000_000, relax: 60_000_000, branch: 60_000_000 }
    }
}

impl Effort {
    /// A first answer, in a fraction of a second on thousands of nodes.
    pub fn quick() -> Self {
        Self { scan: 10_000_000, relax: 5_000_000, branch: 0 }
    }

    /// For certificates that may take some ten seconds.
    pub fn thorough() -> Self {
        Self { scan: 400_000_000, relax: 400_000_000, branch: 800_000_000 }
    }
}

/// What proves a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// No moment binds: the bound is zero.
    Nothing,
    /// The budget is below the least peak, or below what must be kept at some moment.
    Peak,
    /// The best multiplier at one cut (the value of its linear relaxation).
    Relaxed,
    /// Branch and bound at one cut.
    Branched,
    /// Branch and bound over several moments at once.
    Moments,
    /// A search over all schedules of a small problem.
    Exhaustive,
}

impl Method {
    /// The word used in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Nothing => "none",
            Method::Peak => "least-peak",
            Method::Relaxed => "cut-relaxed",
            Method::Branched => "cut-branched",
            Method::Moments => "moments",
            Method::Exhaustive => "exhaustive",
        }
    }
}

/// A proven lower bound on extra time: what a schedule takes beyond running every needed node once, as fast as it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// No schedule within the budget takes less extra time. `Nanos::MAX` if there is no schedule.
    pub extra_time: Nanos,
    /// Time of running every needed node once.
    pub base_time: Nanos,
    /// The node at whose first execution the bound is found.
    pub node: Option<NodeId>,
    /// What proves it.
    pub method: Method,
}

impl Bound {
    /// Whether the bound says that no schedule keeps the budget.
    pub fn is_infeasible(&self) -> bool {
        self.extra_time == Nanos::MAX
    }

    /// Extra time over base time; infinite if there is no schedule.
    pub fn fraction(&self) -> f64 {
        match (self.is_infeasible(), self.base_time) {
            (true, _) => f64::INFINITY,
            (false, 0) => 0.0,
            (false, base) => self.extra_time as f64 / base as f64,
        }
    }
}

/// A lower bound that holds for any order and any recomputation.
pub fn order_free(problem: &Problem, budget: Bytes, effort: Effort) -> Bound {
    bound(problem, budget, Order::Free, effort).0
}

/// A lower bound for schedules whose first executions come in the order of the program text. A schedule in another order may be better.
pub fn keep_order(problem: &Problem, budget: Bytes, effort: Effort) -> Bound {
    bound(problem, budget, Order::Given, effort).0
}

/// For each value, whether it is resident through the cut that binds most, by the best choice found there: the values to keep while the
/// rest is made again on demand. Values that neither what follows the cut nor the recomputation reads count as kept, and all of them if
/// nothing binds. None if the budget is proven too small.
pub fn cut_resident_set(problem: &Problem, budget: Bytes, order: Order, effort: Effort) -> Option<Vec<bool>> {
    let (bound, dropped) = bound(problem, budget, order, effort);
    (!bound.is_infeasible()).then(|| {
        let facts = Facts::new(problem);
        (0..problem.values.len()).map(|v| dropped.binary_search(&facts.root[v]).is_err()).collect()
    })
}

/// A bound, and the values that are resident at its node by the best choice found there (see [`cut_resident_set`]).
pub fn with_resident_set(
    problem: &Problem,
    budget: Bytes,
    order: Order,
    effort: Effort,
) -> (Bound, Vec<bool>) {
    let (bound, dropped) = bound(problem, budget, order, effort);
    let facts = Facts::new(problem);
    let kept = facts.root.iter().map(|root| dropped.binary_search(root).is_err()).collect();
    (bound, kept)
}

/// How many of the best-ranked nodes get a relaxed bound at once; later ones only as far as the work goes.
const CLOSE: usize = 4;
/// How many of the best relaxed bounds are branched.
const BRANCHED: usize = 3;

/// The first nodes' cuts may cost so many times the work: on deep graphs with many short-cuts a single flow has no end otherwise.
const ONE_CUT: u64 = 8;

/// The best bound over many nodes, and the sorted roots of the storages that the best choice there gives up.
fn bound(problem: &Problem, budget: Bytes, order: Order, effort: Effort) -> (Bound, Vec<u32>) {
    let facts = Facts::new(problem);
    let base_time = facts.base_time();
    let none = Bound { extra_time: 0, base_time, node: None, method: Method::Nothing };
    if least_peak_with(problem, effort) > budget {
        return (Bound { extra_time: Nanos::MAX, method: Method::Peak, ..none }, Vec::new());
    }
    let ranked = region::rank(&facts, order, budget, effort.scan);
    let (mut before, mut after) = (vec![false; problem.nodes.len()], vec![false; problem.nodes.len()]);
    let mut build = |node: NodeId| {
        region::around(&facts, order, node, &mut before, &mut after);
        Cut::new(&facts, node, &before, &after, budget)
    };
    let mut relaxed: Vec<(Nanos, NodeId, Option<cut::Choice>)> = Vec::new();
    let mut steps = 0;
    let mut price = 0;
    let mut best = 0;
    for (k, candidate) in ranked.iter().enumerate() {
        let close = if k < CLOSE { ONE_CUT } else { 1 };
        if candidate.estimate <= 0.0 || steps > effort.relax.saturating_mul(close) {
            break;
        }
        let mut cut = build(candidate.node);
        cut.limit(effort.relax.saturating_mul(ONE_CUT));
        // Beyond the first ones a node must show at the best price so far that it is worth a search for its own.
        if k < CLOSE || search::glance(&mut cut, price) > best - best / 8 {
            let solution = search::solve_relaxed(&mut cut);
            if solution.bound == Nanos::MAX {
                return (
                    Bound {
                        extra_time: Nanos::MAX,
                        node: Some(candidate.node),
                        method: Method::Peak,
                        ..none
                    },
                    Vec::new(),
                );
            }
            if solution.bound > best {
                best = solution.bound;
                price = solution.choice.as_ref().map_or(price, |c| c.price());
            }
            relaxed.push((solution.bound, candidate.node, solution.choice));
        }
        steps += cut.steps();
    }
    relaxed.sort_by_key(|r| (std::cmp::Reverse(r.0), r.1));
    let Some(&(extra_time, node, _)) = relaxed.first() else { return (none, Vec::new()) };
    let mut result = Bound { extra_time, node: Some(node), method: Method::Relaxed, ..none };
    if extra_time == 0 {
        result = none;
    }
    let mut chosen: Option<(NodeId, cut::Choice)> = relaxed.first().and_then(|r| Some((r.1, r.2.clone()?)));
    if effort.branch > 0 {
        for (relaxed_bound, node, _) in relaxed.into_iter().take(BRANCHED) {
            let mut cut = build(node);
            cut.limit((effort.branch / BRANCHED as u64).saturating_mul(ONE_CUT));
            let solution = search::solve(&mut cut, effort.branch / BRANCHED as u64);
            if solution.bound == Nanos::MAX {
                return (
                    Bound { extra_time: Nanos::MAX, node: Some(node), method: Method::Peak, ..none },
                    Vec::new(),
                );
            }
            let found = solution.bound.max(relaxed_bound);
            let first = result.node == Some(node);
            if found > result.extra_time {
                let method = if solution.branched { Method::Branched } else { Method::Relaxed };
                result = Bound { extra_time: found, node: Some(node), method, ..none };
            } else if !first {
                continue;
            }
            chosen = solution.choice.map(|c| (node, c)).or(chosen);
        }
    }
    let mut dropped = Vec::new();
    if let Some((node, choice)) = chosen {
        let cut = build(node);
        dropped = cut.roots().zip(&choice.kept).filter(|(_, kept)| !**kept).map(|(root, _)| root).collect();
        dropped.sort_unstable();
    }
    (result, dropped)
}
