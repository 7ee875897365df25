//! Offset allocation: lifetimes and sizes to addresses (dynamic storage allocation).
//!
//! A schedule fixes which storages live when; this module finds an address for each so that no two that live together overlap and the
//! highest used byte is as low as possible. Finding the least height is NP-hard, so the answer comes in three stages, each entered only
//! while there is a gap to close: greedy placements in many orders ([`greedy`]; of many buffers in the order of time first, [`sweep`]), repair of the best order, and branch and bound over
//! canonical placements ([`search`]). Every answer carries the most bytes that are ever live, which no placement can go below.

pub mod check;
pub mod csv;
mod greedy;
mod search;
mod sweep;

#[cfg(test)]
mod tests;

use crate::planner::problem::Bytes;

/// A storage to be placed: it occupies `size` bytes during `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// First moment at which it is live.
    pub start: u64,
    /// First moment at which it is dead. A buffer with `end <= start` is never live and is put at offset 0.
    pub end: u64,
    /// Bytes. All sizes together must fit in a `u64`.
    pub size: Bytes,
}

impl Buffer {
    /// Whether there is a moment at which both are live.
    pub fn overlaps(&self, other: &Buffer) -> bool {
        self.is_live() && other.is_live() && self.start < other.end && other.start < self.end
    }

    /// Whether it needs any room at all.
    pub(crate) fn is_live(&self) -> bool {
        self.end > self.start && self.size > 0
    }
}

/// How much work a placement may cost. Units are elementary steps (one comparison of two buffers, or one buffer looked at in a search
/// node), some nanoseconds each, so that the same limits give the same answer on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Steps for the greedy orders. The first few orders run whatever this says.
    pub greedy: u64,
    /// Steps for repairing the best order.
    pub repair: u64,
    /// Steps for branch and bound.
    pub search: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { greedy: 400_000_000, repair: 20_000_000, search: 4_000_000_000 }
    }
}

impl Limits {
    /// For use inside a search that places many schedules: greedy orders and a little repair, no branch and bound.
    pub fn quick() -> Self {
        Self { greedy: 20_000_000, repair: 10_000_000, search: 0 }
    }
}

/// Why [`place`] stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The height equals the lower bound.
    Optimal,
    /// The height is within the capacity.
    Fits,
    /// No placement within the capacity exists: more bytes are live at once, or the search went through every placement.
    Infeasible,
    /// A work limit was reached first.
    WorkLimit,
}

impl StopReason {
    /// The word used in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            StopReason::Optimal => "optimal",
            StopReason::Fits => "fits",
            StopReason::Infeasible => "infeasible",
            StopReason::WorkLimit => "work-limit",
        }
    }
}

/// A valid placement. It may be higher than the capacity that was asked for; `stop` tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Address of each buffer, in the order given.
    pub offsets: Vec<Bytes>,
    /// One past the highest used byte.
    pub height: Bytes,
    /// The most bytes live at one moment; no placement is lower.
    pub lower_bound: Bytes,
    /// Why the search for a better one ended.
    pub stop: StopReason,
}

/// Places `buffers`. With a capacity, the search ends at the first placement within it; without one, at the lower bound.
///
/// Deterministic: the answer depends on the arguments alone.
pub fn place(buffers: &[Buffer], capacity: Option<Bytes>, limits: Limits) -> Placement {
    let lower_bound = live_max(buffers);
    let target = capacity.unwrap_or(lower_bound).max(lower_bound);
    let infeasible = capacity.is_some_and(|c| c < lower_bound);
    let swept = sweep::best(buffers, target);
    let done = swept.as_ref().is_some_and(|s| s.1 <= target) || buffers.len() > sweep::MANY;
    let mut proved = false;
    let mut best = match swept {
        Some((offsets, _)) if done => greedy::Placed::new(buffers, offsets, Vec::new()),
        swept => {
            let mut best = greedy::portfolio(buffers, target, limits.greedy);
            if best.height > target && !infeasible {
                greedy::repair(buffers, &mut best, target, limits.repair);
            }
            match swept {
                Some((offsets, height)) if height < best.height => {
                    greedy::Placed::new(buffers, offsets, best.order)
                }
                _ => best,
            }
        }
    };
    if best.height > target && !infeasible && limits.search > 0 {
        proved = improve(buffers, &mut best, target, capacity.is_some(), limits.search);
    }
    debug_assert!(check::validate(buffers, &best.offsets, best.height).is_ok());
    let stop = match capacity {
        _ if infeasible || proved => StopReason::Infeasible,
        _ if best.height == lower_bound => StopReason::Optimal,
        Some(c) if best.height <= c => StopReason::Fits,
        _ => StopReason::WorkLimit,
    };
    Placement { offsets: best.offsets, height: best.height, lower_bound, stop }
}

/// Branch and bound for `target`; without a capacity also for heights between the target and the best known one. True if it proved
/// that a given capacity cannot be kept.
fn improve(buffers: &[Buffer], best: &mut greedy::Placed, target: Bytes, given: bool, work: u64) -> bool {
    let first = if given { work } else { work / 2 };
    match search::fit(buffers, target, first) {
        search::Outcome::Found(offsets) => {
            *best = greedy::Placed::new(buffers, offsets, std::mem::take(&mut best.order))
        }
        search::Outcome::Impossible if given => return true,
        search::Outcome::Impossible | search::Outcome::Limit if !given => {
            let (mut low, mut share) = (target, work / 4);
            while share > 0 && best.height - low > best.height / 2048 {
                let middle = low + (best.height - low) / 2;
                match search::fit(buffers, middle, share) {
                    search::Outcome::Found(offsets) => {
                        *best = greedy::Placed::new(buffers, offsets, std::mem::take(&mut best.order))
                    }
                    _ => low = middle + 1,
                }
                share /= 2;
            }
        }
        _ => {}
    }
    false
}

/// The most bytes live at one moment: the lower bound on every placement.
pub fn live_max(buffers: &[Buffer]) -> Bytes {
    let mut events: Vec<(u64, bool, Bytes)> = Vec::with_capacity(2 * buffers.len());
    for b in buffers.iter().filter(|b| b.is_live()) {
        events.push((b.start, true, b.size));
        events.push((b.end, false, b.size));
    }
    // At equal times ends come before starts: lifetimes are half-open.
    events.sort_unstable();
    let (mut live, mut most) = (0u64, 0);
    for (_, starts, size) in events {
        live = if starts { live.saturating_add(size) } else { live.saturating_sub(size) };
        most = most.max(live);
    }
    most
}
