//! The least pool in which a step runs, by running it without a device.
//!
//! Sizes and order decide what goes and what comes back, elements do not: once the elements that the walk asked for have been seen, the
//! rest of the step is the same with and without a device. So the run is repeated as it was, in pools of other sizes: what the walk asked
//! for on the walk's graph, then the step. The figure that comes out is one of a run that succeeded.

use super::{
    executor::{Asked, Done, Executor, Infos, Surroundings},
    refusal::Least,
    world::PoolWorld,
};
use graph::Graph;
use std::{collections::BTreeMap, sync::Arc};

/// The pools that are tried lie less than 5 % apart. The figure is where bisection ends: what fits in a pool need not in a larger one,
/// so that some below it may do, too.
const RUNGS_PER_OCTAVE: f64 = 16.0;

/// A pool in which recomputation costs more than so many times the step is too small.
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
    let mut trial = Trial { known, around, host, infos: Infos::default() };
    let least = trial.search(small)?;
    Some(if known.step.is_some() { Least::Enough(least) } else { Least::SoFar(least) })
}

/// A pool in which nothing has to go.
pub(super) fn roomy(known: &Known, around: &Surroundings, host: &BTreeMap<String, &[u8]>) -> Option<u64> {
    Trial { known, around, host, infos: Infos::default() }.roomy()
}

/// A step that is tried in pools of several sizes.
struct Trial<'a> {
    known: &'a Known,
    around: &'a Surroundings,
    host: &'a BTreeMap<String, &'a [u8]>,
    infos: Infos,
}

impl Trial<'_> {
    /// What the step uses of a pool, if it runs there.
    fn enough(&mut self, pool: u64) -> Option<u64> {
        let known = self.known;
        let world = PoolWorld::new(None, 0, pool, false);
        let mut e = Executor::new(world, self.around, self.host, Infos::default(), REPEATS).ok()?;
        if let Some((graph, asked)) = &known.walked {
            let mut done = e.ask_again(graph, asked);
            if e.outgrown() {
                e.renew().ok()?;
                done = e.ask_again(graph, asked);
            }
            done.ok()?;
            if let Some(step) = &known.step {
                e.rebase(graph, step);
            }
        }
        let Some(step) = &known.step else { return Some(e.world.report().peak) };
        e.recall(&self.infos);
        let done = e.finish_walked(step, known.walked.as_ref());
        let (mut peak, stats) = (e.world.report().peak, e.stats());
        let done = done.ok()?;
        // A run that failed may have got no further than the walk's graph, whose nodes have other numbers.
        self.infos = e.into_infos();
        let (mut first, mut repeat) = (stats.first_cost, stats.repeat_cost);
        if let Done::Planned(script) = done {
            first += script.first_cost;
            repeat += script.repeat_cost;
            peak = peak.max(script.peak);
        }
        (repeat <= REPEATS * first).then_some(peak)
    }

    /// What is used where there is no limit.
    fn roomy(&mut self) -> Option<u64> {
        let mut high = plan::align(self.enough(1 << 48)?);
        // The peak alone says nothing of gaps.
        while self.enough(high).is_none() {
            high = plan::align(high.checked_add(high / 8 + 256)?);
        }
        Some(high)
    }

    /// The lowest rung that does, by bisection over a ladder that does not depend on where one begins; `small` bytes do not.
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
            if pool > small && (pool == roomy || self.enough(pool).is_some()) {
                high = middle;
            } else {
                low = middle;
            }
        }
        Some(rung(high))
    }
}
