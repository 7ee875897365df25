//! Placements in the order of time: each buffer goes into a hole of what is live when it begins.
//!
//! A buffer is compared with what is live beside it only, so that the schedule of a loop with a hundred thousand rounds is placed in a
//! second, where orders by size compare each buffer with all others. Where most sizes are equal (loops written out) little is lost by
//! it. Which hole is best depends on the schedule; a few ways are tried, forwards and backwards in time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Buffer;
use crate::planner::problem::Bytes;

/// Which hole a buffer goes into.
#[derive(Clone, Copy, Debug)]
enum Hole {
    /// The lowest.
    First,
    /// The tightest.
    Tightest,
    /// The one beside what ends at about the same time: they leave one long hole.
    Ending,
}

/// A placed buffer that is still live, in the order of addresses.
#[derive(Clone, Copy)]
struct Live {
    offset: Bytes,
    top: Bytes,
    end: u64,
}

/// Fewer buffers are placed by size in no more time.
const FEW: usize = 2_000;
/// More buffers are placed in no other way.
pub(super) const MANY: usize = 32_000;

/// The best of some placements of many buffers, with its height; stops at the first within `target`.
pub(super) fn best(buffers: &[Buffer], target: Bytes) -> Option<(Vec<Bytes>, Bytes)> {
    let live: Vec<u32> = (0..buffers.len() as u32).filter(|&i| buffers[i as usize].is_live()).collect();
    if live.len() <= FEW {
        return None;
    }
    let last = live.iter().map(|&i| buffers[i as usize].end).max().unwrap_or(0);
    let reversed: Vec<Buffer> = buffers
        .iter()
        .map(|b| Buffer {
            start: last.saturating_sub(b.end),
            end: last.saturating_sub(b.start),
            size: b.size,
        })
        .collect();
    let mut best = (vec![0; buffers.len()], Bytes::MAX);
    for hole in [Hole::First, Hole::Tightest, Hole::Ending] {
        for way in [buffers, &reversed] {
            let mut order = live.to_vec();
            let key = |b: &Buffer| (b.start, Reverse(b.end), Reverse(b.size));
            order.sort_by_key(|&i| key(&way[i as usize]));
            let found = sweep(way, &order, hole, target);
            if found.1 < best.1 {
                best = found;
            }
            if best.1 <= target {
                return Some(best);
            }
        }
    }
    Some(best)
}

fn sweep(buffers: &[Buffer], order: &[u32], hole: Hole, target: Bytes) -> (Vec<Bytes>, Bytes) {
    let (mut offsets, mut height) = (vec![0; buffers.len()], 0);
    let mut live: Vec<Live> = Vec::new();
    let mut ends: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
    for &i in order {
        let b = &buffers[i as usize];
        if ends.peek().is_some_and(|e| e.0 <= b.start) {
            while ends.peek().is_some_and(|e| e.0 <= b.start) {
                ends.pop();
            }
            live.retain(|l| l.end > b.start);
        }
        let offset = choose(&live, b, hole, target);
        let top = offset.saturating_add(b.size);
        height = height.max(top);
        offsets[i as usize] = offset;
        let at = live.partition_point(|l| l.offset < offset);
        live.insert(at, Live { offset, top, end: b.end });
        ends.push(Reverse(b.end));
    }
    (offsets, height)
}

/// The offset for a buffer. What lies above everything is the last choice, but for room below the target.
fn choose(live: &[Live], b: &Buffer, hole: Hole, target: Bytes) -> Bytes {
    let apart = |end: Option<u64>| end.map_or(u64::MAX, |e| e.abs_diff(b.end));
    let mut best: Option<((bool, u64), Bytes)> = None;
    let (mut free, mut below) = (0, None);
    for above in live.iter().map(Some).chain([None]) {
        let ceiling = above.map_or(target.max(free + b.size), |l| l.offset);
        if ceiling >= free && ceiling - free >= b.size {
            let beyond = above.is_none() && free + b.size > target;
            let (near, far) = (apart(below), apart(above.map(|l| l.end)));
            let (key, offset) = match hole {
                Hole::First => return free,
                Hole::Tightest => (ceiling - free, free),
                Hole::Ending if near <= far || above.is_none() => (near, free),
                Hole::Ending => (far, ceiling - b.size),
            };
            if best.is_none_or(|b| (beyond, key) < b.0) {
                best = Some(((beyond, key), offset));
            }
        }
        if let Some(l) = above.filter(|l| l.top >= free) {
            (free, below) = (l.top, Some(l.end));
        }
    }
    best.map_or(free, |b| b.1)
}
