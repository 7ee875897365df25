//! Rewrites of a graph by rules, as equality saturation with egg.
//!
//! A graph is cut into regions of bounded size, consecutive runs of its node order and therefore convex. Of each region an e-graph is made
//! ([`space`]), rules add equal terms to it ([`rules`]), the cheapest set of terms that gives the region's results is chosen ([`extract`])
//! and written as a graph again ([`rebuild`]). What a user asks for is a [`Level`], never a budget: a rule holds at every budget.
//!
//! Nodes with an identity of their own, those that commit state, draw random numbers or must not run twice, are terms that equal nothing
//! else. Every search has a limit on its work, none on its time, and every order is that of the graph, so that the result is a function of
//! graph, level and costs.

mod cost;
mod extract;
mod rebuild;
mod report;
pub mod rules;
mod space;
mod term;

pub use cost::Costs;
pub use report::{Fired, Missed, Report};
pub use rules::{Effect, RULES, Rule, Stage};

use graph::{Graph, ValueId};
use std::{collections::BTreeSet, fmt, ops::Range};

/// What rewrites may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Only what keeps every bit, where it saves time.
    #[default]
    Exact,
    /// What saves time, though sums may be rounded in another order.
    Fast,
    /// What saves memory, likewise, though it may take longer.
    Memory,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Exact => "exact",
            Level::Fast => "fast",
            Level::Memory => "memory",
        })
    }
}

/// Most nodes of a region.
const REGION: usize = 4096;
/// Most rounds in which rules are tried on a region.
const ROUNDS: usize = 8;
/// Most e-nodes a region's e-graph may grow to, as a multiple of its nodes, and at least.
const GROWTH: (usize, usize) = (8, 1024);

/// A graph after rewriting.
#[derive(Clone, Debug)]
pub struct Rewritten {
    /// The graph; names of inputs, states and outputs are those of before.
    pub graph: Graph,
    /// What was done, and what was not.
    pub report: Report,
}

/// A graph that cannot be written again: a rule made a term that no operator takes. A bug.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("rewriting {at:?}: {what}")]
pub struct RewriteError {
    /// Node name.
    pub at: String,
    /// What is wrong.
    pub what: String,
}

/// Rewrites a graph. `trained` are the values whose gradients will be asked for, if the training step is made afterwards
/// ([`Stage::Before`]): costs then count the gradients of what is chosen, and rules may refuse what has none.
///
/// # Errors
///
/// See [`RewriteError`].
pub fn rewrite(
    graph: &Graph,
    level: Level,
    stage: Stage,
    trained: &[ValueId],
    costs: Costs<'_>,
) -> Result<Rewritten, RewriteError> {
    let rules: Vec<&Rule> = RULES.iter().filter(|r| r.applies(level, stage)).collect();
    // Nodes that must keep an identity so that two results do not become one value.
    let mut distinct: BTreeSet<usize> = BTreeSet::new();
    loop {
        match attempt(graph, level, trained, costs, &rules, &distinct)? {
            Ok(done) => return Ok(done),
            Err(more) => {
                let before = distinct.len();
                distinct.extend(more);
                if distinct.len() == before {
                    // Results that are one value already in the given graph.
                    return Ok(Rewritten { graph: graph.clone(), report: Report::default() });
                }
            }
        }
    }
}

/// One attempt; `Err` names nodes whose results would lose their names.
fn attempt(
    graph: &Graph,
    level: Level,
    trained: &[ValueId],
    costs: Costs<'_>,
    rules: &[&Rule],
    distinct: &BTreeSet<usize>,
) -> Result<Result<Rewritten, BTreeSet<usize>>, RewriteError> {
    let needs = space::trained_values(graph, trained);
    let mut new = rebuild::Rebuild::new(graph);
    let mut report = Report::default();
    for range in regions(graph.nodes.len()) {
        let mut space = space::Space::new(graph, range.clone(), &needs, distinct);
        saturate(&mut space, rules, &mut report);
        let chosen = extract::extract(&mut space, level, costs);
        report.add(&space, &chosen);
        new.region(&space, &chosen)?;
    }
    let finished = new.finish()?;
    Ok(finished.map(|graph| Rewritten { graph, report }))
}

fn regions(nodes: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = nodes.div_ceil(REGION).max(1);
    let each = nodes.div_ceil(parts).max(1);
    (0..parts).map(move |p| (p * each).min(nodes)..((p + 1) * each).min(nodes))
}

/// Tries the rules until nothing new comes out or a limit is reached.
fn saturate(space: &mut space::Space<'_>, rules: &[&Rule], report: &mut Report) {
    let limit = (space.size() * GROWTH.0).max(GROWTH.1);
    for _ in 0..ROUNDS {
        let sites = space.sites();
        let mut changed = false;
        for rule in rules {
            for site in &sites {
                if !rule.roots.contains(&space.op(site)) {
                    continue;
                }
                if space.size() > limit {
                    space.rebuild();
                    return;
                }
                match (rule.apply)(space, site) {
                    Ok(equal) => {
                        for e in equal {
                            changed |= space.unite(rule, site, e);
                        }
                    }
                    Err(miss) => report.miss(rule.name, space.site_name(site), miss.0),
                }
            }
            space.rebuild();
        }
        if !changed {
            return;
        }
    }
}
