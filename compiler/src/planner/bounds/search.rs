//! Solves a cut: the best multiplier first (the relaxed bound), then branch and bound over storages.
//!
//! Each node of the tree is bounded by its own best multiplier, so that the least bound over the open nodes is proven whenever the work
//! ends. Choices that fit the capacity come up on the way; the best of them is the resident set that seeds the planner.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::cut::{Choice, Cut, Fixed};
use crate::planner::problem::Nanos;

/// What is known about a cut.
#[derive(Clone, Debug)]
pub(super) struct Solution {
    /// Proven: no schedule with this cut has less extra time. `Nanos::MAX` if none keeps the capacity.
    pub(super) bound: Nanos,
    /// The best choice that fits, if one came up. Its time is at least the bound; if equal the cut is solved.
    pub(super) choice: Option<Choice>,
    /// Whether the bound is better than the relaxed one.
    pub(super) branched: bool,
}

/// Price searches end after this many cuts; they nearly always converge before.
const PRICES: usize = 24;

/// What one search over prices found: the bound and the two choices on either side of the capacity.
struct Relaxed {
    bound: Nanos,
    over: Choice,
    fits: Option<Choice>,
    /// Nothing fits: proven by exact byte counts.
    hopeless: bool,
}

/// The relaxed bound: the best multiplier between "only time counts" and "only bytes count".
fn relax(cut: &mut Cut, fixed: &Fixed) -> Relaxed {
    let mut over = cut.best(0, fixed);
    let mut bound = cut.proves(&over);
    if cut.fits(&over) {
        return Relaxed { bound, fits: Some(over.clone()), over, hopeless: false };
    }
    let (mut fits, exact) = cut.keep_least(fixed);
    bound = bound.max(cut.proves(&fits));
    if !cut.fits(&fits) {
        return Relaxed { bound, over: fits, fits: None, hopeless: exact };
    }
    for _ in 0..PRICES {
        let price = cut.level(&over, &fits);
        let found = cut.best(price, fixed);
        bound = bound.max(cut.proves(&found));
        if cut.gave_up() {
            break;
        }
        let converged = cut.no_better(&found, &over) || cut.no_better(&found, &fits);
        if cut.fits(&found) {
            fits = found;
        } else {
            over = found;
        }
        if converged {
            break;
        }
    }
    Relaxed { bound, over, fits: Some(fits), hopeless: false }
}

/// The bound at a known price only: one cut.
pub(super) fn glance(cut: &mut Cut, price: u128) -> Nanos {
    let open = vec![None; cut.len()];
    let choice = cut.best(price, &open);
    cut.proves(&choice)
}

/// Whether what must be kept at any price exceeds the capacity.
fn hopeless(cut: &mut Cut) -> bool {
    cut.capacity < (cut.least_bytes() + cut.least_workspace()) as i128
}

/// The relaxed bound.
pub(super) fn solve_relaxed(cut: &mut Cut) -> Solution {
    if hopeless(cut) {
        return Solution { bound: Nanos::MAX, choice: None, branched: false };
    }
    let open = vec![None; cut.len()];
    let relaxed = relax(cut, &open);
    Solution { bound: relaxed.bound, choice: relaxed.fits, branched: false }
}

/// An open node of the tree, least bound first; ties fall to the older one.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Open {
    bound: Reverse<Nanos>,
    age: Reverse<u64>,
    fixed: Fixed,
    branch: usize,
}

/// The tree of a branch and bound.
struct Tree {
    open: BinaryHeap<Open>,
    age: u64,
    /// The best choice that fits.
    best: Option<Choice>,
    /// Least bound of the nodes that cannot be branched any further.
    settled: Nanos,
}

impl Tree {
    fn incumbent(&self) -> Nanos {
        self.best.as_ref().and_then(|b| Nanos::try_from(b.time).ok()).unwrap_or(Nanos::MAX)
    }

    /// Takes in a node whose parent proved `floor`.
    fn take(&mut self, cut: &mut Cut, fixed: Fixed, floor: Nanos) {
        let relaxed = relax(cut, &fixed);
        let bound = relaxed.bound.max(floor);
        let Some(fits) = relaxed.fits else {
            if !relaxed.hopeless {
                self.settled = self.settled.min(bound);
            }
            return;
        };
        let differ = |&k: &usize| fixed[k].is_none() && relaxed.over.kept[k] != fits.kept[k];
        let branch = (0..fixed.len()).filter(differ).max_by_key(|&k| (cut.bytes(k), Reverse(k)));
        let filled = cut.fill(fits, &relaxed.over);
        if self.best.as_ref().is_none_or(|b| (filled.time, filled.bytes) < (b.time, b.bytes)) {
            self.best = Some(filled);
        }
        match branch {
            Some(branch) => {
                self.age += 1;
                self.open.push(Open { bound: Reverse(bound), age: Reverse(self.age), fixed, branch });
            }
            None => self.settled = self.settled.min(bound),
        }
    }
}

/// Branch and bound until solved, or until about `work` arcs have been looked at.
pub(super) fn solve(cut: &mut Cut, work: u64) -> Solution {
    if hopeless(cut) {
        return Solution { bound: Nanos::MAX, choice: None, branched: false };
    }
    let limit = cut.steps().saturating_add(work);
    let mut tree = Tree { open: BinaryHeap::new(), age: 0, best: None, settled: Nanos::MAX };
    tree.take(cut, vec![None; cut.len()], 0);
    let relaxed = tree.open.peek().map_or(tree.settled, |o| o.bound.0);
    while cut.steps() <= limit
        && tree.open.peek().is_some_and(|o| o.bound.0 < tree.incumbent().min(tree.settled))
    {
        let Some(node) = tree.open.pop() else { break };
        for keep in [false, true] {
            let mut fixed = node.fixed.clone();
            fixed[node.branch] = Some(keep);
            tree.take(cut, fixed, node.bound.0);
        }
    }
    let open = tree.open.peek().map_or(Nanos::MAX, |o| o.bound.0);
    let bound = open.min(tree.settled).min(tree.incumbent());
    Solution { bound, choice: tree.best, branched: bound > relaxed }
}
