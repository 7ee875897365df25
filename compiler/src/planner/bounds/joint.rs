//! Several moments at once: what is kept through each, what is run again between them.
//!
//! Where a burst of recomputation fills the memory by itself, one moment says too little: what it gives up is made again at once, held,
//! and in the way of the next. Take nodes b1, b2, ... each of which must have run before the next one can, and look at their first
//! executions. With *before* and *after* of each as in [`super::cut`], and for each moment i
//!
//! * kept(i, s): storage s, made in before(i), lives through the moment;
//! * again(i, n): node n of before(i) runs between this moment and the next one, or behind the last;
//! * ever(i, n): it runs at any time behind the moment,
//!
//! every schedule within the budget satisfies
//!
//! ```text
//! a storage read between i and i + 1:       kept(i, s) or again(i, maker)
//! one read at any time after i:             kept(i, s) or ever(i, maker)
//! a storage read by a node run again in i:  kept(i, s) or again(i, maker), and the same with ever
//! a node run ever after i:                  again(j, n) for some j >= i
//! one kept through i + 1:                   kept(i, s) or again(i, maker), if it is made in before(i)
//! bytes kept through i:                     at most what the working set of the moment leaves
//! ```
//!
//! and takes at least the time of what is again. What is surely read between two moments are the inputs of nodes after the one and
//! before the other, and of the next moment's node. A node of before(i) has run for the first time by moment i, and the intervals do not
//! overlap: nothing is counted twice. What is not asked for anywhere has no variable; the rows that are there hold all variables that
//! can serve them.

use std::collections::{BTreeMap, BTreeSet};

use super::cut::Site;
use super::facts::Facts;
use super::region::{Order, around};
use super::simplex::Program;
use crate::planner::problem::{Bytes, NodeId, ValueId};

/// The first execution of a node.
#[derive(Clone)]
pub(super) struct Moment {
    pub(super) node: NodeId,
    before: Vec<bool>,
    after: Vec<bool>,
    site: Site,
    /// What the working set and the least workspace leave.
    capacity: i128,
}

impl Moment {
    /// The moment of a node, and the work of finding what is before and after it.
    pub(super) fn new(facts: &Facts, order: Order, node: NodeId, budget: Bytes) -> (Self, u64) {
        let (mut before, mut after) =
            (vec![false; facts.problem.nodes.len()], vec![false; facts.problem.nodes.len()]);
        let steps = around(facts, order, node, &mut before, &mut after);
        let site = Site::new(facts, node);
        let capacity = i128::from(budget) - site.fixed as i128 - i128::from(facts.workspace(node));
        (Self { node, before, after, site, capacity }, steps)
    }

    /// Whether the moment comes before another in every schedule looked at.
    pub(super) fn precedes(&self, other: &Self) -> bool {
        self.after[other.node as usize]
    }
}

/// The program of moments in their order. None if one of them alone has no room.
pub(super) fn program(facts: &Facts, moments: &[&Moment]) -> Option<Program> {
    if moments.iter().any(|m| m.capacity < 0) {
        return None;
    }
    let mut builder =
        Builder { facts, moments, wanted: vec![BTreeSet::new(); moments.len()], open: Vec::new() };
    let demands = builder.demands();
    builder.close();
    Some(builder.rows(&demands))
}

/// A value read after a moment.
struct Demand {
    moment: usize,
    value: ValueId,
    /// Read before the next moment; otherwise at any time.
    soon: bool,
}

struct Builder<'a> {
    facts: &'a Facts<'a>,
    moments: &'a [&'a Moment],
    /// Per moment the storages of which it matters whether they are there.
    wanted: Vec<BTreeSet<ValueId>>,
    open: Vec<(usize, ValueId)>,
}

impl Builder<'_> {
    /// Whether a storage is made by the moment, so that rows speak of it, and costs bytes there.
    fn counts(&self, moment: usize, root: ValueId) -> bool {
        let at = self.moments[moment];
        let maker = self.facts.problem.values[root as usize].producer;
        maker.is_none_or(|m| at.before[m as usize]) && at.site.bytes(self.facts, root) > 0
    }

    fn want(&mut self, moment: usize, root: ValueId) {
        if self.counts(moment, root) && self.wanted[moment].insert(root) {
            self.open.push((moment, root));
        }
    }

    fn demands(&mut self) -> Vec<Demand> {
        let mut demands = Vec::new();
        let problem = self.facts.problem;
        for (i, at) in self.moments.iter().enumerate() {
            for (v, value) in problem.values.iter().enumerate() {
                let root = self.facts.root[v];
                if value.producer.is_some_and(|p| !at.before[p as usize]) || !self.counts(i, root) {
                    continue;
                }
                let readers = &self.facts.readers[v];
                let later = value.keep_to_end || readers.iter().any(|&r| at.after[r as usize]);
                let soon = match self.moments.get(i + 1) {
                    None => later,
                    Some(next) => readers
                        .iter()
                        .any(|&r| r == next.node || (at.after[r as usize] && next.before[r as usize])),
                };
                if soon || later {
                    demands.push(Demand { moment: i, value: v as ValueId, soon });
                }
            }
        }
        for demand in &demands {
            let root = self.facts.root[demand.value as usize];
            let last = if demand.soon { demand.moment } else { self.moments.len() - 1 };
            (demand.moment..=last).for_each(|j| self.want(j, root));
        }
        demands
    }

    /// Whether a node may run again behind a moment.
    fn repeats(&self, moment: usize, node: NodeId) -> bool {
        let before = &self.moments[moment].before;
        before[node as usize] && !self.facts.spent(node, before)
    }

    /// Follows what makers read, and what is kept back to the moment before.
    fn close(&mut self) {
        while let Some((i, root)) = self.open.pop() {
            for j in 0..self.moments.len() {
                self.want(j, root);
            }
            if let Some(maker) = self.facts.problem.values[root as usize].producer
                && self.repeats(i, maker)
            {
                for read in self.facts.read(maker) {
                    self.want(i, read);
                }
            }
        }
    }

    fn rows(&self, demands: &[Demand]) -> Program {
        let facts = self.facts;
        let values = &facts.problem.values;
        let mut program = Program::default();
        let mut kept: Vec<BTreeMap<ValueId, u32>> = Vec::new();
        let mut again: Vec<BTreeMap<NodeId, u32>> = Vec::new();
        let views = self.views(demands);
        let mut makers: BTreeSet<NodeId> =
            self.wanted.iter().flatten().filter_map(|&r| values[r as usize].producer).collect();
        makers.extend(views.iter().flatten());
        for (i, wanted) in self.wanted.iter().enumerate() {
            kept.push(wanted.iter().map(|&root| (root, program.variable(0))).collect());
            let repeated = makers.iter().copied().filter(|&n| self.repeats(i, n));
            again.push(repeated.map(|n| (n, program.variable(facts.time[n as usize]))).collect());
        }
        // Behind the last moment both are the same.
        let mut ever: Vec<BTreeMap<NodeId, u32>> = Vec::new();
        for i in 0..self.moments.len() - 1 {
            ever.push(again[i].keys().map(|&n| (n, program.variable(0))).collect());
            for (node, &column) in &ever[i] {
                let mut terms: Vec<_> =
                    again[i..].iter().filter_map(|a| a.get(node)).map(|&c| (c, 1)).collect();
                terms.push((column, -1));
                program.at_least(terms, 0);
            }
        }
        let serve = |i: usize, root: ValueId, made: &[BTreeMap<NodeId, u32>]| -> Vec<(u32, i64)> {
            let made = values[root as usize].producer.and_then(|m| made[i].get(&m));
            kept[i].get(&root).into_iter().chain(made).map(|&column| (column, 1)).collect()
        };
        for (demand, views) in demands.iter().zip(&views) {
            let (i, root) = (demand.moment, facts.root[demand.value as usize]);
            let mut ask = |makers: &[NodeId]| {
                for made in demand.soon.then_some(&again[i]).into_iter().chain(ever.get(i)) {
                    let made = makers.iter().filter_map(|m| made.get(m));
                    let terms = kept[i].get(&root).into_iter().chain(made).map(|&column| (column, 1));
                    program.at_least(terms.collect(), 1);
                }
            };
            ask(values[root as usize].producer.as_slice());
            views.iter().for_each(|view| ask(&[*view]));
        }
        for (i, at) in self.moments.iter().enumerate() {
            for made in [&again, &ever] {
                for (&node, &column) in made.get(i).into_iter().flatten() {
                    for root in facts.read(node) {
                        if self.wanted[i].contains(&root) && values[root as usize].producer != Some(node) {
                            let mut terms = serve(i, root, made);
                            terms.push((column, -1));
                            program.at_least(terms, 0);
                        }
                    }
                }
            }
            if i > 0 {
                for (&root, &column) in &kept[i] {
                    if self.wanted[i - 1].contains(&root) {
                        let mut terms = serve(i - 1, root, &again);
                        terms.push((column, -1));
                        program.at_least(terms, 0);
                    }
                }
            }
            let bytes = |root: ValueId| -i64::try_from(at.site.bytes(facts, root)).unwrap_or(0);
            let terms = kept[i].iter().map(|(&root, &column)| (column, bytes(root))).filter(|t| t.1 != 0);
            let terms: Vec<_> = terms.collect();
            program.at_least(terms, -i64::try_from(at.capacity).unwrap_or(i64::MAX));
        }
        program
    }

    /// Per demand the makers of views between the value and its storage: made again, too, unless the storage is kept.
    fn views(&self, demands: &[Demand]) -> Vec<Vec<NodeId>> {
        let values = &self.facts.problem.values;
        let between = |demand: &Demand| {
            let mut at = demand.value;
            let mut makers = Vec::new();
            while let (Some(source), Some(maker)) =
                (values[at as usize].view_of, values[at as usize].producer)
            {
                if self.facts.time[maker as usize] > 0 && !makers.contains(&maker) {
                    makers.push(maker);
                }
                at = source;
            }
            makers
        };
        demands.iter().map(between).collect()
    }
}
