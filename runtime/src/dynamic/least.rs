//! The least pool in which a graph runs, by running it without a device.

use super::{
    executor::{Executor, Infos, Surroundings},
    world::PoolWorld,
};
use graph::{Graph, ValueId};
use std::{collections::BTreeMap, sync::Arc};

/// Steps of the search: the figure is within a 256th of the whole.
const STEPS: u32 = 8;

/// A pool in which recomputation costs more than so many times the step is too small.
const REPEATS: u64 = 4;

/// Bytes of the least pool found between `small`, which is too little, and what the graph takes without a limit.
pub(super) fn least_pool(
    graph: &Graph,
    around: &Surroundings,
    host: &BTreeMap<String, Arc<[u8]>>,
    asked: &[ValueId],
    small: u64,
) -> Option<u64> {
    let mut infos = Infos::default();
    let mut enough = |pool: u64| -> Option<u64> {
        let world = PoolWorld::new(None, 0, pool, false);
        let mut e = Executor::new(world, around, host, infos.clone(), REPEATS).ok()?;
        let done = e.ask_again(graph, asked).and_then(|()| e.finish(graph)).is_ok();
        let peak = e.world.report().peak;
        let stats = e.stats();
        infos = e.into_infos();
        (done && stats.repeat_cost <= REPEATS * stats.first_cost).then_some(peak)
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
