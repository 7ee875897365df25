//! Greedy placements: take the buffers in some order, put each at the lowest gap (or the tightest one) among those already placed.
//!
//! On training graphs one of a few orders nearly always reaches the lower bound, and a whole order costs milliseconds; that is why a
//! portfolio of orders comes before any search. Repair then moves the buffers that stick out to the front of the best order and tries
//! again ("squeaky wheel" optimisation).

use std::cmp::Reverse;

use super::Buffer;
use crate::planner::problem::Bytes;

/// A complete placement and the order that gave it.
pub(super) struct Placed {
    pub(super) offsets: Vec<Bytes>,
    pub(super) height: Bytes,
    pub(super) order: Vec<u32>,
    fit: Fit,
}

impl Placed {
    /// A placement found by other means.
    pub(super) fn new(buffers: &[Buffer], offsets: Vec<Bytes>, order: Vec<u32>) -> Self {
        let tops =
            buffers.iter().zip(&offsets).filter(|(b, _)| b.is_live()).map(|(b, &o)| o.saturating_add(b.size));
        let height = tops.max().unwrap_or(0);
        Self { offsets, height, order, fit: Fit::First }
    }
}

/// Which gap a buffer goes into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    /// The lowest that is large enough.
    First,
    /// The smallest that is large enough.
    Best,
}

/// The orders tried, best first by experience. In each, ties fall to the later criteria and at last to the buffer's index.
#[derive(Clone, Copy, Debug)]
enum Order {
    SizeDuration,
    AreaSize,
    SizeStart,
    DurationSize,
    ContentionSize,
    ContentionArea,
    ContentionDuration,
    SizeEnd,
    DurationStart,
    StartSize,
    StartDuration,
    EndSize,
    ContentionShare,
}

const ORDERS: [Order; 13] = [
    Order::SizeDuration,
    Order::AreaSize,
    Order::SizeStart,
    Order::DurationSize,
    Order::ContentionSize,
    Order::ContentionArea,
    Order::ContentionDuration,
    Order::SizeEnd,
    Order::DurationStart,
    Order::StartSize,
    Order::StartDuration,
    Order::EndSize,
    Order::ContentionShare,
];

/// Orders that run whatever the work limit says.
const ALWAYS: usize = 2;

/// The best of the greedy placements; stops at `target`.
pub(super) fn portfolio(buffers: &[Buffer], target: Bytes, work: u64) -> Placed {
    let live: Vec<u32> = (0..buffers.len() as u32).filter(|&i| buffers[i as usize].is_live()).collect();
    let mut best: Option<Placed> = None;
    let mut steps = 0;
    let contention = contention(buffers, &live);
    'all: for (k, order) in ORDERS.into_iter().enumerate() {
        let order = sorted(buffers, &live, &contention, order);
        for fit in [Fit::First, Fit::Best] {
            if k >= ALWAYS && steps > work {
                break 'all;
            }
            let ceiling = best.as_ref().map_or(u64::MAX, |b| b.height);
            if let Some((offsets, height)) = in_order(buffers, &order, fit, ceiling, &mut steps) {
                best = Some(Placed { offsets, height, order: order.clone(), fit });
                if height <= target {
                    break 'all;
                }
            }
        }
    }
    best.unwrap_or_else(|| Placed::new(buffers, vec![0; buffers.len()], live))
}

/// Moves the buffers that reach above `target` towards the front of the order and places again, keeping the best placement seen.
pub(super) fn repair(buffers: &[Buffer], best: &mut Placed, target: Bytes, work: u64) {
    let mut order = best.order.clone();
    let mut offsets = best.offsets.clone();
    let mut steps = 0;
    let mut round = 0u64;
    while steps < work && best.height > target {
        let (mut up, mut rest): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::with_capacity(order.len()));
        let mut earliest = order.len();
        for (at, &i) in order.iter().enumerate() {
            if offsets[i as usize].saturating_add(buffers[i as usize].size) > target {
                if up.is_empty() {
                    earliest = at;
                }
                up.push(i);
            } else {
                rest.push(i);
            }
        }
        if up.is_empty() {
            return;
        }
        // How far they move varies from round to round, so that the walk does not fall into a short cycle.
        let to = match round % 3 {
            0 => 0,
            1 => earliest / 2,
            _ => earliest - earliest / 4,
        };
        let to = to.min(rest.len());
        let moved: Vec<u32> = rest[..to].iter().chain(&up).chain(&rest[to..]).copied().collect();
        if moved == order && round > 3 {
            return;
        }
        order = moved;
        let fit = if round % 4 == 3 { Fit::Best } else { best.fit };
        if let Some((new, height)) = in_order(buffers, &order, fit, u64::MAX, &mut steps) {
            if height < best.height {
                *best = Placed { offsets: new.clone(), height, order: order.clone(), fit };
            }
            offsets = new;
        }
        round += 1;
    }
}

/// For each buffer the most bytes live at one moment of its life.
fn contention(buffers: &[Buffer], live: &[u32]) -> Vec<Bytes> {
    let mut times: Vec<u64> =
        live.iter().flat_map(|&i| [buffers[i as usize].start, buffers[i as usize].end]).collect();
    times.sort_unstable();
    times.dedup();
    let at = |t: u64| times.partition_point(|&x| x < t);
    let mut change = vec![(0u64, 0u64); times.len() + 1];
    for &i in live {
        let b = &buffers[i as usize];
        let (s, e) = (at(b.start), at(b.end));
        change[s].0 = change[s].0.saturating_add(b.size);
        change[e].1 = change[e].1.saturating_add(b.size);
    }
    let mut level = 0u64;
    let levels: Vec<u64> = change
        .iter()
        .map(|&(up, down)| {
            level = level.saturating_add(up).saturating_sub(down);
            level
        })
        .collect();
    // Sparse table of maxima, so that long lifetimes cost no more than short ones.
    let mut table = vec![levels];
    while 1 << table.len() <= times.len() {
        let (prev, half) = (&table[table.len() - 1], 1 << (table.len() - 1));
        let next = (0..prev.len() - half).map(|k| prev[k].max(prev[k + half])).collect();
        table.push(next);
    }
    let mut result = vec![0; buffers.len()];
    for &i in live {
        let (s, e) = (at(buffers[i as usize].start), at(buffers[i as usize].end));
        let level = (e - s).ilog2() as usize;
        result[i as usize] = table[level][s].max(table[level][e - (1 << level)]);
    }
    result
}

fn sorted(buffers: &[Buffer], live: &[u32], contention: &[Bytes], order: Order) -> Vec<u32> {
    let mut ids = live.to_vec();
    let b = |i: u32| &buffers[i as usize];
    let duration = |i: u32| b(i).end - b(i).start;
    let area = |i: u32| u128::from(b(i).size) * u128::from(duration(i));
    let load = |i: u32| contention[i as usize];
    match order {
        Order::SizeDuration => ids.sort_by_key(|&i| (Reverse((b(i).size, duration(i))), b(i).start)),
        Order::SizeStart => ids.sort_by_key(|&i| (Reverse(b(i).size), b(i).start)),
        Order::SizeEnd => ids.sort_by_key(|&i| (Reverse(b(i).size), Reverse(b(i).end))),
        Order::AreaSize => ids.sort_by_key(|&i| (Reverse((area(i), b(i).size)), b(i).start)),
        Order::DurationSize => ids.sort_by_key(|&i| (Reverse((duration(i), b(i).size)), b(i).start)),
        Order::DurationStart => ids.sort_by_key(|&i| (Reverse(duration(i)), b(i).start)),
        Order::StartSize => ids.sort_by_key(|&i| (b(i).start, Reverse(b(i).size))),
        Order::StartDuration => ids.sort_by_key(|&i| (b(i).start, Reverse(duration(i)))),
        Order::EndSize => ids.sort_by_key(|&i| (Reverse((b(i).end, b(i).size)), b(i).start)),
        Order::ContentionSize => ids.sort_by_key(|&i| (Reverse((load(i), b(i).size)), b(i).start)),
        Order::ContentionArea => ids.sort_by_key(|&i| (Reverse((load(i), area(i))), b(i).start)),
        Order::ContentionDuration => ids.sort_by_key(|&i| (Reverse((load(i), duration(i))), b(i).start)),
        Order::ContentionShare => {
            ids.sort_by_key(|&i| (Reverse(area(i).saturating_mul(u128::from(load(i)))), b(i).start))
        }
    }
    ids
}

/// A placed buffer, in the order of addresses.
#[derive(Clone, Copy)]
struct Slot {
    offset: Bytes,
    top: Bytes,
    start: u64,
    end: u64,
}

/// Places in the given order. None as soon as the height reaches `ceiling`: it would not be better.
fn in_order(
    buffers: &[Buffer],
    order: &[u32],
    fit: Fit,
    ceiling: Bytes,
    steps: &mut u64,
) -> Option<(Vec<Bytes>, Bytes)> {
    let mut offsets = vec![0; buffers.len()];
    let mut slots: Vec<Slot> = Vec::with_capacity(order.len());
    let mut height = 0;
    for &i in order {
        let b = &buffers[i as usize];
        let mut free = 0u64;
        let mut tightest: Option<(Bytes, Bytes)> = None;
        for s in &slots {
            *steps += 1;
            if s.start >= b.end || b.start >= s.end {
                continue;
            }
            if s.offset > free && s.offset - free >= b.size {
                let room = s.offset - free;
                if fit == Fit::First {
                    tightest = Some((room, free));
                    break;
                }
                if tightest.is_none_or(|(r, _)| room < r) {
                    tightest = Some((room, free));
                }
            }
            free = free.max(s.top);
        }
        let offset = tightest.map_or(free, |(_, at)| at);
        let top = offset.saturating_add(b.size);
        if top >= ceiling {
            return None;
        }
        height = height.max(top);
        offsets[i as usize] = offset;
        let at = slots.partition_point(|s| s.offset < offset);
        slots.insert(at, Slot { offset, top, start: b.start, end: b.end });
    }
    Some((offsets, height))
}
