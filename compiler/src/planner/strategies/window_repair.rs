//! Window repair at the peak.
//!
//! While a candidate is over the budget: look at the window of steps around its peak, drop the group there whose absence costs least for
//! what it frees, judged by exact evaluation of the most promising few. The reverse, once it fits: keep again what is made again at the
//! highest price, as far as the budget allows.

use super::super::decode::{Genome, arrive};
use super::super::index::NONE;
use super::{Candidate, Context};

/// How many changes are evaluated exactly for each one taken.
const TRIES: usize = 6;

/// Repairs keep-all in the first orders.
pub(crate) fn run(context: &mut Context<'_, '_>) -> Vec<Candidate> {
    let mut out = Vec::new();
    let orders: Vec<Vec<u32>> = context.orders.iter().take(2).cloned().collect();
    for order in orders {
        let genome = Genome::keep_all(context.index, order);
        if let Some(start) = context.decode("window repair", genome, u64::MAX) {
            let repaired = repair(context, start);
            out.push(trim(context, repaired));
        }
    }
    out
}

/// Drops until it fits or nothing helps.
pub(crate) fn repair(context: &mut Context<'_, '_>, start: Candidate) -> Candidate {
    let index = context.index;
    let mut current = start;
    let limit = 4 * index.given.len() + 16;
    let end = context.evaluator.work + context.work / 8;
    for _ in 0..limit {
        if current.score.peak <= context.budget || context.evaluator.work > end {
            break;
        }
        let moves = drops_at_peak(context, &current);
        let mut best: Option<(f64, Candidate)> = None;
        for (edge, how) in moves.into_iter().take(TRIES) {
            let mut genome = current.genome.clone();
            genome.arrive[edge as usize] = how;
            let cutoff = current.score.time.saturating_add(index.base_time);
            let Some(candidate) = context.decode(current.strategy, genome, cutoff) else { continue };
            if candidate.score.excess >= current.score.excess {
                continue;
            }
            let gain = (current.score.excess - candidate.score.excess) as f64;
            let price = candidate.score.time.saturating_sub(current.score.time) as f64 / gain;
            if best.as_ref().is_none_or(|b| price < b.0) {
                best = Some((price, candidate));
            }
        }
        match best {
            Some((_, candidate)) => current = candidate,
            None => break,
        }
    }
    current
}

/// Decisions whose change drops a group over the peak, the cheapest time for the bytes first.
fn drops_at_peak(context: &mut Context<'_, '_>, current: &Candidate) -> Vec<(u32, u32)> {
    let index = context.index;
    let genome = &current.genome;
    let Some(score) = context.evaluator.decode(genome, context.budget, u64::MAX) else { return Vec::new() };
    let evaluator = &context.evaluator;
    let Some(&place) = evaluator.places.get(score.peak_step as usize) else { return Vec::new() };
    let node = evaluator.sequence[score.peak_step as usize];
    let mut moves: Vec<(f64, u32, u32)> = Vec::new();
    for storage in 0..evaluator.stored.len() as u32 {
        let stored = evaluator.stored[storage as usize];
        let group = stored.group;
        if !evaluator.live_at(storage, score.peak_step)
            || stored.bytes == 0
            || index.pinned[group as usize]
            || index.input_groups.row(node).contains(&group)
            || stored.start == score.peak_step
        {
            continue;
        }
        let edge = genome.edge_after(index, group, place.saturating_sub(1));
        let reader = index.edge_node[edge as usize];
        let how = match genome.arrive[edge as usize] {
            arrive::KEEP => arrive::HOLD,
            arrive::DROP => continue,
            // It was made again before the peak and is held over it.
            _ => match genome.order.get(place as usize + 1) {
                Some(&next) if genome.place[reader as usize] > place + 1 => arrive::FROM + next,
                _ => arrive::DROP,
            },
        };
        if how == genome.arrive[edge as usize] {
            continue;
        }
        let producer = index.group_node[group as usize];
        if producer == NONE {
            continue;
        }
        let needed = (stored.bytes).min(current.score.peak - context.budget) as f64;
        moves.push((index.time[producer as usize] as f64 / needed, edge, how));
    }
    moves.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    moves.into_iter().map(|m| (m.1, m.2)).collect()
}

/// Keeps again what need not be dropped, the dearest first.
pub(crate) fn trim(context: &mut Context<'_, '_>, start: Candidate) -> Candidate {
    let index = context.index;
    let mut current = start;
    let mut edges: Vec<(u64, u32)> = (0..index.edge_group.len() as u32)
        .filter(|&e| current.genome.arrive[e as usize] != arrive::KEEP)
        .map(|e| (index.time[index.group_node[index.edge_group[e as usize] as usize] as usize], e))
        .collect();
    edges.sort_by_key(|&(t, e)| (std::cmp::Reverse(t), e));
    let end = context.evaluator.work + context.work / 8;
    for (_, edge) in edges {
        if context.evaluator.work > end {
            break;
        }
        let old = std::mem::replace(&mut current.genome.arrive[edge as usize], arrive::KEEP);
        let score = context.evaluator.decode(&current.genome, context.budget, current.score.time);
        let better = score.is_some_and(|s| s.key(context.budget) < current.score.key(context.budget));
        if !better {
            current.genome.arrive[edge as usize] = old;
            continue;
        }
        match context.decode(current.strategy, current.genome.clone(), u64::MAX) {
            Some(candidate) => current = candidate,
            None => current.genome.arrive[edge as usize] = old,
        }
    }
    current
}
