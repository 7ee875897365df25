//! The least pool in which a graph runs, by running it without a device.

use super::{
    executor::{Done, Executor, Infos, Surroundings},
    world::PoolWorld,
};
use graph::{Graph, ValueId};
use std::collections::BTreeMap;

/// Steps of the search: the figure is within a 256th of the whole.
const STEPS: u32 = 8;

/// A pool in which recomputation costs more than so many times the step is too small.
const REPEATS: u64 = 4;

/// Bytes of the least pool found between `small`, which is too little, and what the graph takes without a limit.
pub(super) fn least_pool(
    graph: &Graph,
    around: &Surroundings,
    host: &BTreeMap<String, &[u8]>,
    asked: &[ValueId],
    small: u64,
) -> Option<u64> {
    let mut infos = Infos::default();
    let mut enough = |pool: u64| -> Option<u64> {
        let world = PoolWorld::new(None, 0, pool, false);
        let mut e = Executor::new(world, around, host, infos.clone(), REPEATS).ok()?;
        let done = e.ask_again(graph, asked).and_then(|()| e.finish(graph));
        let (mut peak, stats) = (e.world.report().peak, e.stats());
        infos = e.into_infos();
        let (mut first, mut repeat) = (stats.first_cost, stats.repeat_cost);
        if let Done::Planned(script) = done.ok()? {
            first += script.first_cost;
            repeat += script.repeat_cost;
            peak = peak.max(script.peak);
        }
        (repeat <= REPEATS * first).then_some(peak)
    };
    let mut high = plan::align(enough(1 << 48)?);
    // The peak alone says nothing of gaps.
    while enough(high).is_none() {
        high = plan::align(high.checked_add(high / 8 + 256)?);
    }
    let mut low = small.min(high);
    for _ in 0..STEPS {
        let middle = plan::align(low + (high - low) / 2);
        if middle >= high || middle <= low {
            break;
        }
        if enough(middle).is_some() {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(high)
}
