//! The least pool in which a step runs, by running it without a device.
//!
//! Sizes and order decide what goes and what comes back, elements do not: once the elements that the walk asked for have been seen, the
//! rest of the step is the same with and without a device. So the run is repeated as it was, in pools of other sizes: what the walk asked
//! for on the walk's graph, then the step. The figure that comes out is one of a run that succeeded.
//!
//! What runs in a pool need not run in a larger one: the planner is greedy. Bisection finds one edge between pools that do and pools that
//! do not; from there smaller pools are tried one by one, until many in a row do not do.

use super::{
    executor::{Asked, Done, EXECUTION, Executor, Infos, PATIENCE, Surroundings},
    refusal::Least,
    world::PoolWorld,
};
use graph::Graph;
use std::{collections::BTreeMap, sync::Arc};

/// The pools that are tried lie some 2 % apart.
const RUNGS_PER_OCTAVE: f64 = 32.0;

/// So many pools below the least that does are tried: down to seven tenths of it.
const BELOW: u32 = 16;

/// What all trials together may look at, as the planner counts it: some seconds, more of a long step. What is looked for is the
/// least pool that is found by then.
fn effort(nodes: usize) -> u64 {
    (400_000_000 + nodes as u64 * 16 * NODE).min(1_200_000_000)
}

/// One of them may take one part in so many.
const TRIAL: u64 = 3;

/// What a node of a trial counts as, beside the search: its facts, its place in the program, its addresses.
const NODE: u64 = 16 * EXECUTION;

/// How many times what a walk beside the arena costs its repetitions may.
pub(super) const REPEATS: u64 = 4;

/// What a walk that did not come to its end in a pool may take beside the arena to come there, in bytes, if that is more: what a process
/// takes anyway, or some times the pool, and never much.
pub(super) fn beside(pool: u64) -> Option<u64> {
    Some(pool.saturating_mul(4).clamp(8 << 20, 64 << 20)).filter(|n| *n > pool)
}

/// The estimated time that it may take: a refusal should come soon.
pub(super) const BESIDE_NS: u64 = 1_000_000_000;

/// What is known of a step.
#[derive(Default)]
pub(super) struct Known {
    /// The walk's graph with what it asked for, in order, if it did; as far as it came.
    pub(super) walked: Option<(Graph, Vec<Asked>)>,
    /// The step's graph, if the walk came to its end.
    pub(super) step: Option<Arc<Graph>>,
}

/// The least pool found above `small`, which is too little.
pub(super) fn pool(
    known: &Known,
    around: &Surroundings,
    host: &BTreeMap<String, &[u8]>,
    small: u64,
) -> Option<Least> {
    let least = Trial::new(known, around, host).search(small)?;
    Some(if known.step.is_some() { Least::Enough(least) } else { Least::SoFar(least) })
}

/// The least pool found in which each of some steps runs, that come with the pools in which nothing of them has to go, largest first at best.
/// It is not the greatest of their least pools: that of one may be a hole between those of another.
pub(super) fn for_all(
    steps: &[(u64, Known)],
    around: &Surroundings,
    host: &BTreeMap<String, &[u8]>,
) -> Option<u64> {
    let (mut least, mut sound) = (0, 0);
    for (roomy, known) in steps.iter().cycle() {
        if sound == steps.len() {
            break;
        }
        if *roomy <= least || least > 0 && Trial::new(known, around, host).does(least) {
            sound += 1;
        } else {
            least = Trial::new(known, around, host).search(least)?;
            sound = 1;
        }
    }
    Some(least)
}

/// A pool in which nothing has to go.
pub(super) fn roomy(known: &Known, around: &Surroundings, host: &BTreeMap<String, &[u8]>) -> Option<u64> {
    Trial::new(known, around, host).roomy()
}

/// A step that is tried in pools of several sizes.
struct Trial<'a> {
    known: &'a Known,
    around: &'a Surroundings,
    host: &'a BTreeMap<String, &'a [u8]>,
    infos: Infos,
    /// Of the graphs that a trial goes through.
    nodes: usize,
    /// What is left for trials.
    effort: u64,
    /// What one of them may take of it.
    share: u64,
}

impl<'a> Trial<'a> {
    fn new(known: &'a Known, around: &'a Surroundings, host: &'a BTreeMap<String, &'a [u8]>) -> Trial<'a> {
        let nodes = known.step.as_ref().map_or(0, |g| g.nodes.len())
            + known.walked.as_ref().map_or(0, |(g, _)| g.nodes.len());
        let effort = effort(nodes);
        Trial { known, around, host, infos: Infos::default(), nodes, effort, share: effort / TRIAL }
    }

    /// Whether the step is seen to run in a pool with what is left for trials.
    fn does(&mut self, pool: u64) -> bool {
        self.effort = self.effort.saturating_sub(self.nodes as u64 * NODE);
        let share = self.effort.min(self.share);
        let mut left = share;
        let done = share > 0 && self.enough(pool, &mut left).is_some();
        self.effort -= share - left;
        done
    }

    /// What the step uses of a pool, if it runs there with no more effort than is left.
    fn enough(&mut self, pool: u64, effort: &mut u64) -> Option<u64> {
        let world = PoolWorld::new(None, 0, pool, false);
        let mut e = Executor::new(world, self.around, self.host, Infos::default(), PATIENCE).ok()?;
        e.effort = *effort;
        let peak = self.run(&mut e);
        *effort = e.effort;
        // A run that failed may have got no further than the walk's graph, whose nodes have other numbers.
        if peak.is_some() && self.known.step.is_some() {
            self.infos = e.into_infos();
        }
        peak
    }

    /// The run itself: what the walk asked for, as far as it came, then the step.
    fn run(&self, e: &mut Executor<'_, '_>) -> Option<u64> {
        let known = self.known;
        if let Some((graph, asked)) = &known.walked {
            let mut done = e.ask_again(graph, asked);
            if e.outgrown() {
                e.renew().ok()?;
                done = e.ask_again(graph, asked);
            }
            done.ok()?;
            if let Some(step) = &known.step {
                e.rebase(graph, step).ok()?;
            }
        }
        let Some(step) = &known.step else { return Some(e.world.report().peak) };
        e.recall(&self.infos);
        let done = e.finish_walked(step, known.walked.as_ref()).ok()?;
        let peak = e.world.report().peak;
        Some(if let Done::Planned(script) = done { peak.max(script.peak) } else { peak })
    }

    /// What is used where there is no limit.
    fn roomy(&mut self) -> Option<u64> {
        let mut high = plan::align(self.enough(1 << 48, &mut { u64::MAX })?);
        // The peak alone says nothing of gaps.
        while self.enough(high, &mut { u64::MAX }).is_none() {
            high = plan::align(high.checked_add(high / 8 + 256)?);
        }
        Some(high)
    }

    /// The lowest rung that is seen to do, on a ladder that does not depend on where one begins; `small` bytes do not.
    fn search(&mut self, small: u64) -> Option<u64> {
        let roomy = self.roomy()?;
        let rung = |k: u32| {
            let bytes = plan::ALIGNMENT as f64 * (f64::from(k) / RUNGS_PER_OCTAVE).exp2();
            plan::align(bytes as u64).min(roomy)
        };
        let (mut low, mut high) = (0, 0);
        while rung(high) < roomy {
            high += RUNGS_PER_OCTAVE as u32;
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let pool = rung(middle);
            if pool > small && (pool == roomy || self.does(pool)) {
                high = middle;
            } else {
                low = middle;
            }
        }
        let mut next = low;
        while next > 0 && high - next <= BELOW && rung(next) > small && self.effort > 0 {
            if rung(next) < rung(next + 1) && self.does(rung(next)) {
                high = next;
            }
            next -= 1;
        }
        Some(rung(high))
    }
}
