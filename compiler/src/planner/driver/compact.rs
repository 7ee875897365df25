//! The same executions in another order, so that they can be placed lower.
//!
//! The search for a schedule counts live bytes; where tensors are few and of many sizes, no placement may come near them. Of the many
//! orders that take the same time, some leave fewer holes: steps during which something sticks out above the target are moved, and a
//! move stays if a greedy placement is no higher after it.

use super::super::index::NONE;
use super::super::offsets::Limits;
use super::super::problem::Bytes;
use super::super::strategies::{Candidate, Random};
use super::{KEEP_ALL, LARGE, Placed, Session};

/// The first greedy orders only.
const GLANCE: Limits = Limits { greedy: 0, repair: 0, search: 0 };
/// Pairs of buffers that may be compared, in all placements of a compaction together.
const COMPARED: u64 = 120_000_000;
/// Moves in a row that do not lower the placement.
const PATIENCE: u32 = 1_500;

impl Session<'_, '_> {
    /// A candidate that is placed too high, with its steps moved about until it fits a budget, or else as low as that goes. `extent` is
    /// the budget that its implementations are chosen for, and what its live bytes stay within; without one they do not rise.
    pub(super) fn compacted(
        &mut self,
        start: (Candidate, Placed),
        target: Bytes,
        extent: Bytes,
    ) -> (Candidate, Placed) {
        let index = self.index;
        let (mut best, mut placed) = start;
        if self.options.live_bytes_only || best.sequence.len() > LARGE || self.need(&placed) <= target {
            return (best, placed);
        }
        let peak = if extent == Bytes::MAX { best.score.peak } else { extent };
        let resident = index.problem.resident;
        let goal = target.saturating_sub(resident);
        let mut random = Random::new(self.context.seed ^ 0x636f_6d70);
        let mut sequence = best.sequence.clone();
        let mut current = self.place(&sequence, extent, GLANCE);
        let (mut compared, mut failures) = (0, 0);
        while compared < COMPARED && failures < PATIENCE && current.layout.height > goal {
            compared += 64 + (current.layout.offsets.len() as u64).pow(2);
            failures += 1;
            let Some(moved) = shifted(self, &sequence, &current, goal, &mut random) else { continue };
            let score = self.context.evaluator.evaluate(&moved, extent);
            if self.context.evaluator.breaks_commit_rule()
                || score.peak > peak
                || score.time > best.score.time
            {
                continue;
            }
            let new = self.place(&moved, extent, GLANCE);
            if new.layout.height > current.layout.height || new.replay.time > placed.replay.time {
                continue;
            }
            if new.layout.height < current.layout.height {
                failures = 0;
            }
            (sequence, current) = (moved, new);
        }
        // The greedy orders of a glance are few.
        if current.layout.height > goal {
            let full = self.place(&sequence, extent, KEEP_ALL);
            if full.layout.height < current.layout.height {
                current = full;
            }
        }
        if current.layout.height < placed.layout.height
            && let Some(candidate) = self.context.sequence(best.strategy, sequence.clone())
            && candidate.sequence == sequence
        {
            (best, placed) = (candidate, current);
        }
        (best, placed)
    }
}

/// The sequence with one step moved, somewhere where a buffer sticks out above the goal.
fn shifted(
    session: &Session<'_, '_>,
    sequence: &[u32],
    placed: &Placed,
    goal: Bytes,
    random: &mut Random,
) -> Option<Vec<u32>> {
    let lives = &placed.layout.lifetimes;
    let high: Vec<_> = placed.above(goal).collect();
    if high.is_empty() || sequence.is_empty() {
        return None;
    }
    // What sticks out, or what lies below it at some moment.
    let out = high[random.below(high.len())];
    let at = out.start + random.below((out.end - out.start) as usize) as u32;
    let step = if random.below(2) == 0 {
        at as usize
    } else {
        let live: Vec<_> = lives.iter().filter(|l| l.start <= at && at < l.end).collect();
        let below = live[random.below(live.len())];
        if random.below(2) == 0 { below.start as usize } else { (below.end - 1) as usize }
    };
    let step = step.min(sequence.len() - 1);
    let (low, high) = window(session, sequence, step);
    let to = match random.below(4) {
        0 => low,
        1 => high,
        _ => low + random.below(high + 1 - low),
    };
    if to == step {
        return None;
    }
    let mut moved = sequence.to_vec();
    let node = moved.remove(step);
    moved.insert(to, node);
    Some(moved)
}

/// The places that a step may take while all others keep their order, each reading what it read before.
fn window(session: &Session<'_, '_>, sequence: &[u32], step: usize) -> (usize, usize) {
    let index = session.index;
    let node = sequence[step];
    let feeds = |from: u32, to: u32| {
        index.inputs.row(to).iter().any(|v| index.producer[*v as usize] == from && from != NONE)
    };
    let follows = |n: u32| {
        n == node
            || feeds(n, node)
            || feeds(node, n)
            || index.predecessors.row(node).contains(&n)
            || index.successors.row(node).contains(&n)
    };
    let low = sequence[..step].iter().rposition(|&n| follows(n)).map_or(0, |p| p + 1);
    let high = sequence[step + 1..].iter().position(|&n| follows(n)).map_or(sequence.len() - 1, |p| step + p);
    (low, high)
}
