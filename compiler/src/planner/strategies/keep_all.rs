//! Keep-all: the best peak without recomputation.
//!
//! Evaluates every candidate order, then moves single nodes: producers of what is live at the peak later, readers of it earlier.

use super::super::decode::Genome;
use super::super::problem::Bytes;
use super::super::timeline::Timeline;
use super::{Candidate, Context, Random};

/// The least peak over the candidate orders and a local search from the best of them, every node in its fastest implementation.
pub(crate) fn run(context: &mut Context<'_, '_>) -> Candidate {
    let given = std::mem::replace(&mut context.budget, Bytes::MAX);
    let index = context.index;
    context.evaluator.fastest_only = true;
    let mut best: Option<Candidate> = None;
    for order in context.orders.clone() {
        take_lower(&mut best, context.decode("keep all", Genome::keep_all(index, order), u64::MAX));
    }
    // Without nodes, inputs and constants are the outputs, and there is nothing to move.
    if let (Some(start), false) = (best.clone(), context.keep_order || index.given.is_empty()) {
        let many = index.given.len() > 700;
        let improved = if many { improve_many(context, start) } else { improve(context, start) };
        take_lower(&mut best, improved);
    }
    context.evaluator.fastest_only = false;
    context.budget = given;
    // The given order always decodes: the index has checked it.
    best.unwrap_or_else(|| {
        let genome = Genome::keep_all(index, index.given.clone());
        let score = context.evaluator.evaluate(&index.given, given);
        Candidate { strategy: "keep all", genome, sequence: index.given.clone(), score }
    })
}

fn take_lower(best: &mut Option<Candidate>, new: Option<Candidate>) {
    if let Some(new) = new
        && best.as_ref().is_none_or(|b| new.score.peak < b.score.peak)
    {
        *best = Some(new);
    }
}

fn improve(context: &mut Context<'_, '_>, start: Candidate) -> Option<Candidate> {
    let index = context.index;
    let mut random = Random::new(context.seed ^ 0x6b65_6570);
    let mut current = start;
    let end = context.evaluator.work + context.work / 16;
    let mut failures = 0;
    let patience = 200 + 4 * index.given.len();
    while context.evaluator.work < end && failures < patience {
        // A budget just under the peak: its excess tells two orders of equal peak apart.
        let target = current.score.peak - current.score.peak / 64;
        let score = context.evaluator.decode(&current.genome, target, u64::MAX)?;
        let live: Vec<u32> = (0..context.evaluator.stored.len() as u32)
            .filter(|&s| context.evaluator.live_at(s, score.peak_step))
            .map(|s| context.evaluator.stored[s as usize].group)
            .collect();
        let peak = context.evaluator.places[score.peak_step as usize];
        let Some(genome) = shift(index, &current.genome, &live, peak, &mut random) else {
            failures += 1;
            context.evaluator.work += 8;
            continue;
        };
        let before = (current.score.peak, score.excess);
        let Some(score) = context.evaluator.decode(&genome, target, u64::MAX) else { continue };
        if context.evaluator.breaks_commit_rule() || (score.peak, score.excess) > before {
            failures += 1;
            continue;
        }
        if (score.peak, score.excess) < before {
            failures = 0;
        } else {
            failures += 1;
        }
        current =
            Candidate { strategy: "keep all", genome, sequence: context.evaluator.sequence.clone(), score };
    }
    context.decode("keep all", current.genome, u64::MAX)
}

/// The same for many nodes, by incremental replay: a move counts if the peak does not rise.
pub(crate) fn improve_many(context: &mut Context<'_, '_>, start: Candidate) -> Option<Candidate> {
    let index = context.index;
    let mut random = Random::new(context.seed ^ 0x6b65_6570);
    let mut timeline = Timeline::new(index, &start.sequence);
    let (mut live, mut peak) = (Vec::new(), timeline.peak_slot());
    timeline.live_over(peak, &mut live);
    let (mut failures, patience) = (0, 64 + index.given.len() / 8);
    while timeline.work < context.work / 16 && failures < patience && !live.is_empty() {
        timeline.work += 1;
        failures += 1;
        let group = live[random.below(live.len())];
        let edges = index.group_edges.row(group);
        let pick = random.below(edges.len());
        let tail = pick + 1 == edges.len();
        let node =
            if tail { index.group_node[group as usize] } else { index.edge_node[edges[pick] as usize] };
        // Neither the end nor what is there from the beginning can be moved.
        if node as usize >= index.nodes() {
            continue;
        }
        let Some(&slot) = timeline.runs(node).first() else { continue };
        let first = |n: &u32| timeline.runs(*n).first().copied();
        let low = index.predecessors.row(node).iter().filter_map(first).max().unwrap_or(0);
        let high = index.successors.row(node).iter().filter_map(first).min().unwrap_or(timeline.end());
        // Lands before `target`: beyond the peak, or as far as its neighbours let it.
        let target = match (slot <= peak, random.below(2)) {
            (true, 0) => high,
            (true, _) => timeline.after(peak).unwrap_or(timeline.end()).min(high),
            (false, 0) => timeline.after(low).unwrap_or(high),
            (false, _) => timeline.after(low).unwrap_or(high).max(peak),
        };
        if target == slot || timeline.after(slot) == Some(target) {
            continue;
        }
        let before = timeline.peak();
        timeline.remove(slot);
        if let Err(full) = timeline.insert(&[node], target) {
            timeline.undo(0);
            timeline.make_room(full);
        } else if timeline.peak() > before {
            timeline.undo(0);
            continue;
        } else if timeline.peak() < before {
            failures = 0;
        }
        timeline.commit();
        peak = timeline.peak_slot();
        timeline.live_over(peak, &mut live);
    }
    context.evaluator.work += timeline.work;
    context.decode("keep all", Genome::keep_all(index, timeline.sequence()), u64::MAX)
}

/// Moves one node that has to do with a group live at the peak to the other side of the peak, as far as its neighbours let it.
fn shift(
    index: &super::super::index::Index<'_>,
    genome: &Genome,
    live: &[u32],
    peak: u32,
    random: &mut Random,
) -> Option<Genome> {
    if live.is_empty() {
        return None;
    }
    let group = live[random.below(live.len())];
    let edges = index.group_edges.row(group);
    let pick = random.below(edges.len());
    // The tail edge stands for the producer.
    let node = if pick + 1 == edges.len() {
        index.group_node[group as usize]
    } else {
        index.edge_node[edges[pick] as usize]
    };
    if node as usize >= index.nodes() {
        return None;
    }
    let place = genome.place[node as usize];
    let (low, high) = window(index, genome, node);
    let to = if place <= peak {
        if random.below(2) == 0 { high } else { (peak + 1).clamp(low, high) }
    } else if random.below(2) == 0 {
        low
    } else {
        peak.clamp(low, high)
    };
    (to != place).then(|| move_node(index, genome, place, to))
}

/// The places that the node may take while all others keep their order.
pub(crate) fn window(index: &super::super::index::Index<'_>, genome: &Genome, node: u32) -> (u32, u32) {
    let low = index.predecessors.row(node).iter().map(|&p| genome.place[p as usize] + 1).max().unwrap_or(0);
    let last = genome.order.len() as u32 - 1;
    let high = index.successors.row(node).iter().map(|&s| genome.place[s as usize] - 1).min().unwrap_or(last);
    (low, high)
}

/// The genome with the node at one place moved to another.
pub(crate) fn move_node(
    index: &super::super::index::Index<'_>,
    genome: &Genome,
    from: u32,
    to: u32,
) -> Genome {
    let mut genome = genome.clone();
    let node = genome.order.remove(from as usize);
    genome.order.insert(to as usize, node);
    genome.reindex(index);
    genome
}
