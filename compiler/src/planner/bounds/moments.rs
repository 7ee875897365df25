//! Chooses moments that bind together, and solves their program by branch and bound.
//!
//! The moment that binds most alone comes first. Each of the moments that bind, too, is tried beside those chosen; the one with the best
//! bound after a short search stays, until none helps. Which are chosen changes how good the bound is, never whether it holds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::facts::Facts;
use super::joint::{Moment, program};
use super::region::{Order, rank};
use super::simplex::{End, Program, Tableau};
use super::{Bound, Method};
use crate::planner::problem::{Bytes, Nanos, Problem};

/// Most moments at once.
const MOMENTS: usize = 6;
/// Most moments tried beside those chosen.
const TRIED: usize = 20;
/// Least work on each: less would look at the linear relaxation alone.
const TRIAL: i128 = 6_000_000;
/// Larger tableaus are left alone.
const ELEMENTS: usize = 600_000;
/// Steps of the simplex method at one node of the tree.
const PIVOTS: usize = 4_000;
/// Variables tried before one is branched on, and steps of each trial.
const LOOKS: usize = 6;
const LOOK: usize = 12;
/// Variables closer than this to 0 or 1 are whole.
const WHOLE: f64 = 1e-5;

/// A bound raised by several moments at once, with about `work` elements of tableaus looked at. Ends early where `known`, the extra time
/// of some schedule, is reached.
pub fn sharpen(
    problem: &Problem,
    budget: Bytes,
    order: Order,
    bound: Bound,
    known: Nanos,
    work: u64,
) -> Bound {
    let Some(first) = bound.node.filter(|_| !bound.is_infeasible() && bound.extra_time < known) else {
        return bound;
    };
    let facts = Facts::new(problem);
    let mut left = Work { left: work as i128 };
    let moment = |node| Moment::new(&facts, order, node, budget);
    let mut chosen = vec![moment(first).0];
    let mut best = bound;
    let mut others: Vec<Moment> = Vec::new();
    for candidate in rank(&facts, order, budget, work / 8) {
        if candidate.estimate <= 0.0 || others.len() >= TRIED {
            break;
        }
        let (other, steps) = moment(candidate.node);
        left.take(steps);
        if other.precedes(&chosen[0]) || chosen[0].precedes(&other) {
            others.push(other);
        }
    }
    while chosen.len() < MOMENTS && best.extra_time < known && left.left > 0 {
        let mut found: Option<(Nanos, usize)> = None;
        let each = (left.left / (4 * others.len().max(1) as i128)).max(TRIAL);
        for (k, other) in others.iter().enumerate() {
            let Some(joined) = insert(&chosen, other) else { continue };
            let refs: Vec<&Moment> = joined.iter().collect();
            let Some(program) = program(&facts, &refs) else { continue };
            left.take((joined.len() * problem.values.len() * 8) as u64);
            let proven = solve(&program, known, each.min(left.left), &mut left);
            if proven > found.map_or(best.extra_time, |f| f.0) {
                found = Some((proven, k));
            }
        }
        let Some((proven, k)) = found else { break };
        best = Bound { extra_time: proven, method: Method::Moments, ..best };
        if let Some(joined) = insert(&chosen, &others.swap_remove(k)) {
            chosen = joined;
        }
    }
    if best.method == Method::Moments && best.extra_time < known {
        let refs: Vec<&Moment> = chosen.iter().collect();
        if let Some(program) = program(&facts, &refs) {
            let rest = left.left;
            best.extra_time = best.extra_time.max(solve(&program, known, rest, &mut left));
        }
    }
    best
}

/// Work that is left, and what is taken from it.
struct Work {
    left: i128,
}

impl Work {
    fn take(&mut self, steps: u64) {
        self.left -= i128::from(steps);
    }
}

/// The moments with one more, in their order; none if it has no place among them.
fn insert(chosen: &[Moment], other: &Moment) -> Option<Vec<Moment>> {
    let at = chosen.iter().position(|m| !m.precedes(other)).unwrap_or(chosen.len());
    if chosen[at..].iter().any(|m| !other.precedes(m)) || chosen[..at].iter().any(|m| !m.precedes(other)) {
        return None;
    }
    let mut joined = chosen.to_vec();
    joined.insert(at, other.clone());
    Some(joined)
}

/// An open node of the tree, least bound first; ties fall to the older one.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Open {
    bound: Reverse<Nanos>,
    age: Reverse<u64>,
    fixed: Vec<(u32, bool)>,
    branch: u32,
}

/// The bound of a program: solved, or as far as the work goes, and no further than `known`. `Nanos::MAX` if it has no solution.
fn solve(program: &Program, known: Nanos, work: i128, total: &mut Work) -> Nanos {
    if program.len() == 0 || program.elements() > ELEMENTS {
        return 0;
    }
    let end = total.left - work;
    // Nothing costs more than everything.
    let beyond = program.most().saturating_add(1);
    let known = known.min(beyond);
    let mut root = Tableau::new(program);
    if root.run(PIVOTS) == End::Limit {
        let bound = root.proves(program, known);
        total.take(root.steps);
        return bound;
    }
    total.take(root.steps);
    let mut tree =
        Tree { program, known, open: BinaryHeap::new(), settled: known, age: 0, trial: root.clone() };
    root.steps = 0;
    let mut tableau = root.clone();
    tree.take(&mut tableau, Vec::new(), 0, total);
    while total.left > end && tree.open.peek().is_some_and(|o| o.bound.0 < tree.settled) {
        let Some(node) = tree.open.pop() else { break };
        for on in [false, true] {
            let mut fixed = node.fixed.clone();
            fixed.push((node.branch, on));
            tableau.copy(&root);
            fixed.iter().for_each(|&(v, on)| tableau.fix(v, on));
            tree.take(&mut tableau, fixed, node.bound.0, total);
        }
    }
    let proven = tree.open.peek().map_or(tree.settled, |o| o.bound.0.min(tree.settled));
    if proven >= beyond { Nanos::MAX } else { proven }
}

struct Tree<'a> {
    program: &'a Program,
    known: Nanos,
    open: BinaryHeap<Open>,
    /// Least bound of the nodes that are not branched any further, and at most what is known.
    settled: Nanos,
    age: u64,
    /// Scratch memory.
    trial: Tableau,
}

impl Tree<'_> {
    /// Takes in a node whose parent proved `floor`.
    fn take(&mut self, tableau: &mut Tableau, fixed: Vec<(u32, bool)>, floor: Nanos, total: &mut Work) {
        let end = tableau.run(PIVOTS);
        let bound = tableau.proves(self.program, self.known).max(floor);
        total.take(tableau.steps);
        if bound >= self.known {
            return;
        }
        let branch = if end == End::Optimum { self.branch(tableau, total) } else { None };
        match branch {
            Some(branch) => {
                self.age += 1;
                self.open.push(Open { bound: Reverse(bound), age: Reverse(self.age), fixed, branch });
            }
            None => self.settled = self.settled.min(bound),
        }
    }

    /// The fractional variable both of whose values raise the costs most, by a short look at a few.
    fn branch(&mut self, tableau: &Tableau, total: &mut Work) -> Option<u32> {
        let values = tableau.values();
        let fraction = |v: usize| values[v].min(1.0 - values[v]);
        let mut broken: Vec<u32> =
            (0..values.len() as u32).filter(|&v| fraction(v as usize) > WHOLE).collect();
        broken.sort_by(|&a, &b| fraction(b as usize).total_cmp(&fraction(a as usize)).then(a.cmp(&b)));
        let mut best: Option<(Nanos, Nanos, u32)> = None;
        for &variable in broken.iter().take(LOOKS) {
            let mut proven = [0, 0];
            for on in [false, true] {
                let trial = &mut self.trial;
                trial.copy(tableau);
                trial.fix(variable, on);
                trial.run(LOOK);
                proven[usize::from(on)] = trial.proves(self.program, self.known).min(self.known);
                total.take(trial.steps);
            }
            let key = (proven[0].min(proven[1]), proven[0].max(proven[1]));
            if best.is_none_or(|b| key > (b.0, b.1)) {
                best = Some((key.0, key.1, variable));
            }
        }
        best.map(|b| b.2)
    }
}
