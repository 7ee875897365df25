//! Which nodes lie before and after a moment, and which moments are worth a closer look.

use super::facts::Facts;
use crate::planner::problem::{Bytes, NodeId};

/// What is known of the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Nothing: before a node run its ancestors, after it its descendants.
    Free,
    /// First executions in the order of the program text.
    Given,
}

/// Fills `before` and `after` for the first execution of `node`. Only needed nodes count.
pub(super) fn around(
    facts: &Facts,
    order: Order,
    node: NodeId,
    before: &mut [bool],
    after: &mut [bool],
) -> u64 {
    match order {
        Order::Given => {
            for n in 0..before.len() {
                before[n] = facts.needed[n] && n < node as usize;
                after[n] = facts.needed[n] && n > node as usize;
            }
            before.len() as u64
        }
        Order::Free => {
            before.fill(false);
            after.fill(false);
            let nodes = &facts.problem.nodes;
            let mut steps = before.len() as u64;
            let mut stack = vec![node];
            while let Some(n) = stack.pop() {
                for &v in &nodes[n as usize].inputs {
                    steps += 1;
                    if let Some(p) = facts.problem.values[v as usize].producer
                        && !std::mem::replace(&mut before[p as usize], true)
                    {
                        stack.push(p);
                    }
                }
            }
            stack.push(node);
            while let Some(n) = stack.pop() {
                for &v in &nodes[n as usize].outputs {
                    for &r in &facts.readers[v as usize] {
                        steps += 1;
                        if !std::mem::replace(&mut after[r as usize], true) {
                            stack.push(r);
                        }
                    }
                }
            }
            steps
        }
    }
}

/// A node with an estimate of the bound at its first execution; for ranking only.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) node: NodeId,
    pub(super) estimate: f64,
}

/// Ranks the needed nodes by a fractional knapsack that ignores what recomputation itself reads. Looks at every needed node, or at
/// evenly spaced ones if that would cost more than `work` steps.
pub(super) fn rank(facts: &Facts, order: Order, budget: Bytes, work: u64) -> Vec<Candidate> {
    let needed: Vec<NodeId> =
        (0..facts.needed.len() as NodeId).filter(|&n| facts.needed[n as usize]).collect();
    let edges: usize = facts.problem.nodes.iter().map(|n| n.inputs.len() + n.outputs.len()).sum();
    let each = (2 * needed.len() + 2 * edges + facts.problem.values.len()) as u64;
    let count = (work / each.max(1)).clamp(64, needed.len().max(64) as u64) as usize;
    let stride = needed.len().div_ceil(count).max(1);
    let (mut before, mut after) = (vec![false; facts.needed.len()], vec![false; facts.needed.len()]);
    let mut ranked: Vec<Candidate> = needed
        .into_iter()
        .step_by(stride)
        .map(|node| {
            around(facts, order, node, &mut before, &mut after);
            Candidate { node, estimate: estimate(facts, node, &before, &after, budget) }
        })
        .collect();
    ranked.sort_by(|a, b| b.estimate.total_cmp(&a.estimate).then(a.node.cmp(&b.node)));
    ranked
}

/// Fractional knapsack at one node: how much time must be given up to get the demanded bytes into what is left of the budget.
fn estimate(facts: &Facts, node: NodeId, before: &[bool], after: &[bool], budget: Bytes) -> f64 {
    let read = facts.read(node);
    let (saving, _) = facts.overwriting(node);
    let working = read.iter().map(|&r| facts.bytes(r)).sum::<u64>().saturating_add(facts.made(node));
    let taken = facts.problem.resident as f64 + working as f64 + facts.workspace(node) as f64 - saving as f64;
    let mut kept: Vec<(f64, f64)> = Vec::new();
    let mut bytes = 0.0;
    for (v, value) in facts.problem.values.iter().enumerate() {
        if facts.root[v] as usize != v
            || value.resident
            || value.bytes == 0
            || !value.producer.is_none_or(|p| before[p as usize])
        {
            continue;
        }
        let demanded = value.keep_to_end || facts.readers[v].iter().any(|&r| after[r as usize]);
        if demanded && read.binary_search(&(v as u32)).is_err() {
            let time = value.producer.map_or(f64::INFINITY, |p| facts.time[p as usize] as f64);
            kept.push((value.bytes as f64, time));
            bytes += value.bytes as f64;
        }
    }
    let mut over = bytes + taken - budget as f64;
    if over <= 0.0 {
        // Not binding; the fuller the better, should nothing bind.
        return over.min(-1.0) / budget.max(1) as f64;
    }
    kept.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
    let mut time = 0.0;
    for (bytes, cost) in kept {
        if over <= 0.0 {
            break;
        }
        time += cost * (over / bytes).min(1.0);
        over -= bytes;
    }
    if over > 0.0 { f64::INFINITY } else { time }
}
