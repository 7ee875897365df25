//! The least peak that any schedule of a problem can have.
//!
//! Some bytes are live together in every schedule: all that one node reads, makes and needs for scratch; what cannot be made again and
//! is still to be read; everything that is to be live at the end; and, at the moment when the last of a node's inputs is made, the
//! other inputs beside the working set of its maker.

use super::Effort;
use super::cut::Cut;
use super::facts::Facts;
use super::region::{Order, around};
use crate::planner::problem::{Bytes, NodeId, Problem, ValueId};

/// A lower bound on the peak of every schedule, in any order, with any recomputation.
pub fn least_peak(problem: &Problem) -> Bytes {
    least_peak_with(problem, Effort::default())
}

/// [`least_peak`] under a work limit.
pub fn least_peak_with(problem: &Problem, effort: Effort) -> Bytes {
    let facts = Facts::new(problem);
    let mut peak = at_the_end(&facts);
    for node in (0..problem.nodes.len() as NodeId).filter(|&n| facts.needed[n as usize]) {
        peak = peak.max(working_set(&facts, node, &[]));
        peak = peak.max(last_input(&facts, node, peak));
    }
    peak.max(irreplaceable(&facts, effort)).saturating_add(problem.resident)
}

/// Bytes of all storages live at the end.
fn at_the_end(facts: &Facts) -> Bytes {
    let values = facts.problem.values.iter().enumerate().filter(|(_, v)| v.keep_to_end);
    let mut roots: Vec<ValueId> = values.map(|(v, _)| facts.root[v]).collect();
    roots.sort_unstable();
    roots.dedup();
    roots.iter().map(|&r| facts.bytes(r)).fold(0, Bytes::saturating_add)
}

/// Bytes live while a node runs, if the storages `beside` are live then and are read later.
fn working_set(facts: &Facts, node: NodeId, beside: &[ValueId]) -> Bytes {
    let mut roots = facts.read(node);
    roots.extend_from_slice(beside);
    roots.sort_unstable();
    roots.dedup();
    let (saving, hosts) = facts.overwriting(node);
    // Storages that are read later cannot be taken over.
    let lost: Bytes = beside.iter().filter_map(|r| hosts.get(r)).sum();
    let live = roots.iter().map(|&r| facts.bytes(r)).fold(0, Bytes::saturating_add);
    let live = live.saturating_add(facts.made(node)).saturating_add(facts.workspace(node));
    live.saturating_sub(saving.saturating_sub(lost))
}

/// The moment when the last of a node's inputs is made, at best; or anything up to `known`, where it is no more than that.
fn last_input(facts: &Facts, node: NodeId, known: Bytes) -> Bytes {
    let inputs = &facts.problem.nodes[node as usize].inputs;
    let mut least = None;
    // The newest is the likeliest to be made last for nothing.
    for &last in inputs.iter().rev() {
        let Some(maker) = facts.problem.values[last as usize].producer else { continue };
        let outputs = &facts.problem.nodes[maker as usize].outputs;
        // Storages that this very execution makes are in its working set already.
        let made = |v: ValueId| outputs.contains(&v) || outputs.contains(&facts.root[v as usize]);
        let others: Vec<ValueId> =
            inputs.iter().filter(|&&v| !made(v)).map(|&v| facts.root[v as usize]).collect();
        let live = working_set(facts, maker, &others);
        if live <= known {
            return live;
        }
        least = Some(least.map_or(live, |l: Bytes| l.min(live)));
    }
    least.unwrap_or(0)
}

/// Moments at which results that cannot be made again lie beside a working set.
fn irreplaceable(facts: &Facts, effort: Effort) -> Bytes {
    let problem = facts.problem;
    let staged = problem.values.iter().any(|v| v.producer.is_none() && !v.resident && v.bytes > 0);
    if !staged && problem.states.is_empty() && !problem.nodes.iter().any(|n| n.once) {
        return 0;
    }
    let mut ranked: Vec<(Bytes, NodeId)> = (0..problem.nodes.len() as NodeId)
        .filter(|&n| facts.needed[n as usize])
        .map(|n| (working_set(facts, n, &[]), n))
        .collect();
    ranked.sort_by_key(|&(bytes, n)| (std::cmp::Reverse(bytes), n));
    let (mut before, mut after) = (vec![false; problem.nodes.len()], vec![false; problem.nodes.len()]);
    let (mut best, mut steps) = (0, 0);
    for (_, node) in ranked {
        steps += around(facts, Order::Free, node, &mut before, &mut after);
        let mut cut = Cut::new(facts, node, &before, &after, Bytes::MAX);
        let spare = u128::from(Bytes::MAX).saturating_sub(cut.capacity.max(0) as u128);
        let live = cut.least_bytes() + cut.least_workspace() + spare - u128::from(problem.resident);
        best = best.max(Bytes::try_from(live).unwrap_or(Bytes::MAX));
        steps += cut.steps();
        if steps > effort.scan {
            break;
        }
    }
    best
}
