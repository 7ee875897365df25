//! Evenly spaced checkpoints (Chen et al. 2016), on any graph.
//!
//! The cut is at the peak of keep-all. Of the groups that cross it, those that are also live over a checkpoint place in their near uses
//! stay; the others are made again. A sweep over the number of checkpoints, each put where the fewest bytes cross.

use super::super::decode::{Genome, arrive};
use super::super::index::{Index, NONE};
use super::super::problem::Bytes;
use super::{Candidate, Context, take_better};

/// Numbers of checkpoints tried up to twice the square root; each decodes the whole sequence.
const MOST: usize = 200;

/// The best number of checkpoints for each of the first orders.
pub(crate) fn run(context: &mut Context<'_, '_>) -> Vec<Candidate> {
    let mut out = Vec::new();
    let orders: Vec<Vec<u32>> = context.orders.iter().take(2).cloned().collect();
    for order in orders {
        let keep = Genome::keep_all(context.index, order);
        let Some(score) = context.evaluator.decode(&keep, context.budget, u64::MAX) else { continue };
        let turn = context.evaluator.places.get(score.peak_step as usize).copied().unwrap_or(0);
        let crossing = Crossing::new(context.index, &keep, turn);
        let mut best = None;
        let most = (2.0 * f64::from(turn + 1).sqrt()) as usize + 2;
        let mut last = Vec::new();
        for count in (0..most)
            .step_by(most.div_ceil(MOST))
            .chain((1..6).map(|i| most << i))
            .filter(|&c| c <= turn as usize)
        {
            let places = crossing.checkpoints(count);
            if places == last && count > 0 {
                continue;
            }
            let genome = crossing.genome(context.index, &keep, &places);
            last = places;
            let cutoff = context.index.base_time.saturating_mul(8);
            let candidate = context.decode("square root", genome, cutoff);
            take_better(context.budget, &mut best, candidate);
        }
        out.extend(best);
    }
    out
}

/// The groups that cross the turn: their edge over it and the range of their near uses.
pub(super) struct Crossing {
    pub(super) turn: u32,
    /// (group, edge, first place, last near place).
    pub(super) groups: Vec<(u32, u32, u32, u32)>,
    /// Per place before the turn: bytes of near ranges over it.
    pub(super) weight: Vec<Bytes>,
}

impl Crossing {
    pub(super) fn new(index: &Index<'_>, keep: &Genome, turn: u32) -> Self {
        let mut this = Self { turn, groups: Vec::new(), weight: vec![0; turn as usize + 1] };
        for group in 0..index.groups() as u32 {
            let node = index.group_node[group as usize];
            if index.pinned[group as usize] || node == NONE || keep.place[node as usize] >= turn {
                continue;
            }
            let uses = &keep.uses[index.group_edges.range(group)];
            let place = |e: u32| keep.place[index.edge_node[e as usize] as usize];
            let after = uses.partition_point(|&e| place(e) < turn);
            let made = keep.place[node as usize];
            let near = if after == 0 { made } else { place(uses[after - 1]) };
            this.groups.push((group, uses[after], made, near));
            for weight in &mut this.weight[made as usize..near as usize] {
                *weight += index.group_bytes[group as usize];
            }
        }
        this
    }

    /// The lightest place in each of `count` equal parts.
    pub(super) fn checkpoints(&self, count: usize) -> Vec<u32> {
        let length = self.turn as usize;
        let part = |i: usize| i * length / (count + 1);
        (1..=count)
            .filter_map(|i| {
                let half = (length / (count + 1)).div_ceil(2);
                let range = part(i).saturating_sub(half)..(part(i) + half).min(length);
                range.min_by_key(|&p| (self.weight[p], p.abs_diff(part(i)))).map(|p| p as u32)
            })
            .collect()
    }

    fn genome(&self, index: &Index<'_>, keep: &Genome, checkpoints: &[u32]) -> Genome {
        let mut genome = keep.clone();
        let mut checkpoints = checkpoints.to_vec();
        checkpoints.sort_unstable();
        for &(group, edge, made, near) in &self.groups {
            let next = checkpoints.partition_point(|&c| c < made);
            let kept = checkpoints.get(next).is_some_and(|&c| c < near);
            if !kept && index.group_bytes[group as usize] > 0 {
                genome.arrive[edge as usize] = arrive::HOLD;
            }
        }
        genome
    }
}
