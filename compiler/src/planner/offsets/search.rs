//! Branch and bound: is there a placement within a capacity?
//!
//! The search follows the ideas of MiniMalloc (Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine
//! Learning", ASPLOS 2023):
//!
//! * **Canonical placements.** If any placement fits, one fits in which every buffer rests on the floor or on another buffer. Taken in
//!   the order of (offset, index), each buffer then goes exactly to its lowest free offset, so a placement is an order and nothing
//!   else, and offsets never fall along it.
//! * **Sections.** Moments with the same maximal set of live buffers. Above the lowest offset that any unplaced buffer of a section can
//!   still take there must be room for all of them together.
//! * **Dominance.** A buffer is not put so high that another unplaced one would fit entirely below it.
//! * **Decomposition.** Where no unplaced buffer crosses a boundary the rest falls into independent parts; each is searched alone, and
//!   one that fails condemns the choice before it.
//! * **Static orders with restarts.** Which order of the choices is lucky differs from instance to instance: several take turns, with
//!   growing budgets.
//!
//! Beyond the paper: a buffer passed over at its own offset must come to rest on one that is still unplaced, which raises its lowest
//! offset; identical buffers are taken in one order; and parts that failed are remembered by what can still tell them apart (each
//! buffer's lowest offset and whether it was passed over).

use std::cmp::Reverse;
use std::collections::HashSet;

use super::Buffer;
use crate::planner::problem::Bytes;

/// The end of a search.
pub(super) enum Outcome {
    /// Offsets within the capacity, one a buffer.
    Found(Vec<Bytes>),
    /// There are none.
    Impossible,
    /// The work limit came first.
    Limit,
}

/// Steps of the first turn of each order; later rounds double it.
const FIRST_TURN: u64 = 2_000_000;
/// Remembered failures; beyond it the memory is emptied.
const MEMORY: usize = 1 << 20;
/// Buffers beyond which a search has no chance (and recursion would be too deep).
const MOST_BUFFERS: usize = 20_000;

/// Searches for a placement of height at most `capacity`, with at most about `work` steps.
pub(super) fn fit(buffers: &[Buffer], capacity: Bytes, work: u64) -> Outcome {
    let live: Vec<u32> = (0..buffers.len() as u32).filter(|&i| buffers[i as usize].is_live()).collect();
    if live.len() > MOST_BUFFERS {
        return Outcome::Limit;
    }
    let sections = Sections::new(buffers, &live);
    let mut spent = 0;
    let mut turn = FIRST_TURN.max(64 * live.len() as u64);
    loop {
        for preorder in PREORDERS {
            let limit = turn.min(work.saturating_sub(spent));
            if limit == 0 {
                return Outcome::Limit;
            }
            let mut search = Search::new(buffers, &live, &sections, capacity, preorder, limit);
            let end = search.run();
            spent += search.steps.max(1);
            match end {
                End::Solved => return Outcome::Found(search.offsets(buffers.len())),
                End::Failed => return Outcome::Impossible,
                End::Limit => {}
            }
        }
        turn *= 2;
    }
}

/// The maximal sets of buffers live together, in the order of time, as a range of sections for each buffer.
struct Sections {
    count: usize,
    /// First and last section of each live buffer, in the order of `live`.
    range: Vec<(u32, u32)>,
}

impl Sections {
    fn new(buffers: &[Buffer], live: &[u32]) -> Self {
        // A moment is a section of its own only where an end follows a start: anywhere else a neighbouring moment has all it has.
        let mut events: Vec<(u64, bool)> = live
            .iter()
            .flat_map(|&i| [(buffers[i as usize].start, true), (buffers[i as usize].end, false)])
            .collect();
        events.sort_unstable();
        let mut moments = Vec::new();
        for pair in events.windows(2) {
            if pair[0].1 && !pair[1].1 {
                moments.push(pair[0].0);
            }
        }
        let range = live.iter().map(|&i| {
            let b = &buffers[i as usize];
            let first = moments.partition_point(|&m| m < b.start);
            let past = moments.partition_point(|&m| m < b.end);
            (first as u32, past as u32 - 1)
        });
        Self { count: moments.len(), range: range.collect() }
    }
}

/// By what the choices at one offset are ordered, largest first.
#[derive(Clone, Copy)]
enum Key {
    /// Length of life.
    Width,
    /// Size times length of life.
    Area,
    /// The most bytes live at one moment of its life.
    Total,
    /// Size.
    Size,
    /// Number of sections it crosses.
    Span,
}

const PREORDERS: [[Key; 3]; 6] = [
    [Key::Width, Key::Area, Key::Total],
    [Key::Total, Key::Area, Key::Width],
    [Key::Total, Key::Width, Key::Area],
    [Key::Area, Key::Total, Key::Width],
    [Key::Total, Key::Size, Key::Width],
    [Key::Span, Key::Size, Key::Total],
];

/// A buffer as the search sees it; its index is its rank in the preorder.
#[derive(Clone, Copy)]
struct Item {
    first: u32,
    last: u32,
    size: Bytes,
    /// The least size among those that overlap it.
    least_neighbour: Bytes,
    original: u32,
}

/// Where in the canonical order the search stands: offset and index of the buffer placed last.
type Cursor = (Bytes, u32);

enum End {
    Solved,
    Failed,
    Limit,
}

struct Search {
    items: Vec<Item>,
    capacity: Bytes,
    /// Lowest offset each unplaced buffer can take; of a placed one, its offset.
    low: Vec<Bytes>,
    /// Bytes of unplaced buffers in each section.
    rest: Vec<Bytes>,
    /// Scratch: lowest offset of an unplaced buffer in each section.
    least: Vec<Bytes>,
    /// Scratch: unplaced buffers across the boundary before each section.
    crossing: Vec<u32>,
    /// Stack of parts: members of every part on the current path, in preorder.
    pool: Vec<u32>,
    /// Undo stack: (buffer, its lowest offset before).
    undo: Vec<(u32, Bytes)>,
    failed: HashSet<(u64, u64)>,
    steps: u64,
    limit: u64,
}

impl Search {
    fn new(
        buffers: &[Buffer],
        live: &[u32],
        sections: &Sections,
        capacity: Bytes,
        preorder: [Key; 3],
        limit: u64,
    ) -> Self {
        let mut rest = vec![0u64; sections.count];
        for (k, &i) in live.iter().enumerate() {
            let (first, last) = sections.range[k];
            for r in &mut rest[first as usize..=last as usize] {
                *r = r.saturating_add(buffers[i as usize].size);
            }
        }
        let total = |k: usize| {
            let (first, last) = sections.range[k];
            rest[first as usize..=last as usize].iter().copied().max().unwrap_or(0)
        };
        let value = |k: usize, key: Key| -> u128 {
            let b = &buffers[live[k] as usize];
            match key {
                Key::Width => u128::from(b.end - b.start),
                Key::Area => u128::from(b.size) * u128::from(b.end - b.start),
                Key::Total => u128::from(total(k)),
                Key::Size => u128::from(b.size),
                Key::Span => u128::from(sections.range[k].1 - sections.range[k].0),
            }
        };
        let mut ranked: Vec<usize> = (0..live.len()).collect();
        ranked.sort_by_cached_key(|&k| (Reverse(preorder.map(|key| value(k, key))), k));
        let mut items: Vec<Item> = ranked
            .iter()
            .map(|&k| {
                let (first, last) = sections.range[k];
                Item {
                    first,
                    last,
                    size: buffers[live[k] as usize].size,
                    least_neighbour: u64::MAX,
                    original: live[k],
                }
            })
            .collect();
        let mut smallest = vec![(u64::MAX, u64::MAX); sections.count];
        for item in &items {
            for s in &mut smallest[item.first as usize..=item.last as usize] {
                *s = if item.size < s.0 { (item.size, s.0) } else { (s.0, s.1.min(item.size)) };
            }
        }
        for item in &mut items {
            let range = &smallest[item.first as usize..=item.last as usize];
            let others = range.iter().map(|s| if s.0 == item.size { s.1 } else { s.0 });
            item.least_neighbour = others.min().unwrap_or(u64::MAX);
        }
        Self {
            low: vec![0; items.len()],
            items,
            capacity,
            least: vec![0; sections.count],
            crossing: vec![0; sections.count + 1],
            rest,
            pool: Vec::new(),
            undo: Vec::new(),
            failed: HashSet::new(),
            steps: 0,
            limit,
        }
    }

    fn offsets(&self, count: usize) -> Vec<Bytes> {
        let mut offsets = vec![0; count];
        for (item, &low) in self.items.iter().zip(&self.low) {
            offsets[item.original as usize] = low;
        }
        offsets
    }

    fn run(&mut self) -> End {
        if self.rest.iter().any(|&r| r > self.capacity) {
            return End::Failed;
        }
        let members: Vec<u32> = (0..self.items.len() as u32).collect();
        self.parts(&members, None, (0, 0), true)
    }

    /// Searches each independent part of `members` (without `placed`).
    fn parts(&mut self, members: &[u32], placed: Option<u32>, cursor: Cursor, fresh: bool) -> End {
        let base = self.pool.len();
        let ends = self.split(members, placed);
        let mut end = End::Solved;
        let mut from = base;
        for to in ends {
            end = self.part(from, to, cursor, fresh);
            if !matches!(end, End::Solved) {
                // The parts solved before it are taken back (their lowest offsets by whoever undoes the choice above).
                for k in base..from {
                    let item = self.items[self.pool[k] as usize];
                    self.rest[item.first as usize..=item.last as usize]
                        .iter_mut()
                        .for_each(|r| *r += item.size);
                }
                break;
            }
            from = to;
        }
        self.pool.truncate(base);
        end
    }

    /// Pushes the members of each part on the pool, the most constrained part first; returns where each ends.
    fn split(&mut self, members: &[u32], placed: Option<u32>) -> Vec<usize> {
        let (mut low, mut high) = (u32::MAX, 0);
        for &m in members.iter().filter(|&&m| Some(m) != placed) {
            low = low.min(self.items[m as usize].first);
            high = high.max(self.items[m as usize].last);
        }
        if low == u32::MAX {
            return Vec::new();
        }
        // crossing[s]: change, then number, of members that are live in both section s - 1 and section s.
        self.crossing[low as usize..=high as usize + 1].fill(0);
        for &m in members.iter().filter(|&&m| Some(m) != placed) {
            let item = &self.items[m as usize];
            self.crossing[item.first as usize + 1] = self.crossing[item.first as usize + 1].wrapping_add(1);
            self.crossing[item.last as usize + 1] = self.crossing[item.last as usize + 1].wrapping_sub(1);
        }
        let mut bounds = Vec::new();
        let mut level = 0u32;
        for s in low as usize + 1..=high as usize {
            level = level.wrapping_add(self.crossing[s]);
            if level == 0 && self.rest[s] > 0 {
                bounds.push(s as u32);
            }
        }
        self.steps += u64::from(high - low) / 4 + members.len() as u64 / 4;
        let from = self.pool.len();
        if bounds.is_empty() {
            self.pool.extend(members.iter().copied().filter(|&m| Some(m) != placed));
            return vec![self.pool.len()];
        }
        bounds.push(u32::MAX);
        let mut groups: Vec<Vec<u32>> = vec![Vec::new(); bounds.len()];
        for &m in members.iter().filter(|&&m| Some(m) != placed) {
            let first = self.items[m as usize].first;
            groups[bounds.partition_point(|&b| b <= first)].push(m);
        }
        groups.retain(|g| !g.is_empty());
        groups.sort_by_cached_key(|g| self.slack(g));
        let mut at = from;
        groups
            .iter()
            .map(|g| {
                self.pool.extend_from_slice(g);
                at += g.len();
                at
            })
            .collect()
    }

    /// How much room the fullest section of a part has left.
    fn slack(&self, members: &[u32]) -> Bytes {
        let fullest = members.iter().map(|&m| {
            let item = &self.items[m as usize];
            let rest = self.rest[item.first as usize..=item.last as usize].iter().copied().max().unwrap_or(0);
            self.low[m as usize].saturating_add(rest)
        });
        self.capacity.saturating_sub(fullest.max().unwrap_or(0))
    }

    /// Searches the part `pool[from..to]`.
    fn part(&mut self, from: usize, to: usize, cursor: Cursor, fresh: bool) -> End {
        if to - from == 1 {
            let m = self.pool[from] as usize;
            let item = self.items[m];
            if self.low[m].saturating_add(item.size) > self.capacity {
                return End::Failed;
            }
            self.rest[item.first as usize..=item.last as usize].iter_mut().for_each(|r| *r -= item.size);
            return End::Solved;
        }
        self.steps += 2 * (to - from) as u64;
        if self.steps > self.limit {
            return End::Limit;
        }
        let key = self.key(from, to, cursor, fresh);
        if self.failed.contains(&key) {
            return End::Failed;
        }
        let mut ceiling = u64::MAX;
        for &m in &self.pool[from..to] {
            ceiling = ceiling.min(self.low[m as usize].saturating_add(self.items[m as usize].size));
        }
        let mut choices: Vec<Cursor> = Vec::new();
        for &m in &self.pool[from..to] {
            let at = (self.low[m as usize], m);
            if at.0 < ceiling && (fresh || at > cursor) {
                choices.push(at);
            }
        }
        choices.sort_unstable();
        for (k, &choice) in choices.iter().enumerate() {
            if choices[..k].iter().any(|c| c.0 == choice.0 && self.identical(c.1, choice.1)) {
                continue;
            }
            match self.place(from, to, choice) {
                End::Failed => {}
                other => return other,
            }
        }
        if self.failed.len() >= MEMORY {
            self.failed.clear();
        }
        self.failed.insert(key);
        End::Failed
    }

    fn identical(&self, a: u32, b: u32) -> bool {
        let (a, b) = (&self.items[a as usize], &self.items[b as usize]);
        (a.first, a.last, a.size) == (b.first, b.last, b.size)
    }

    /// Places one buffer at its lowest offset, searches the rest and takes it back unless all is solved.
    fn place(&mut self, from: usize, to: usize, (offset, m): Cursor) -> End {
        let item = self.items[m as usize];
        let top = offset.saturating_add(item.size);
        let mark = self.undo.len();
        for k in from..to {
            let j = self.pool[k];
            let other = &self.items[j as usize];
            if j != m && other.first <= item.last && item.first <= other.last && self.low[j as usize] < top {
                self.undo.push((j, self.low[j as usize]));
                self.low[j as usize] = top;
            }
        }
        for r in &mut self.rest[item.first as usize..=item.last as usize] {
            *r -= item.size;
        }
        self.steps += (to - from) as u64;
        let end = if self.roomy(from, to, (offset, m)) {
            let members: Vec<u32> = self.pool[from..to].to_vec();
            self.parts(&members, Some(m), (offset, m), false)
        } else {
            End::Failed
        };
        if matches!(end, End::Solved) {
            return end;
        }
        for r in &mut self.rest[item.first as usize..=item.last as usize] {
            *r += item.size;
        }
        for (j, low) in self.undo.drain(mark..).rev() {
            self.low[j as usize] = low;
        }
        end
    }

    /// Whether each section has room for its unplaced buffers above the lowest offset that one of them can take.
    fn roomy(&mut self, from: usize, to: usize, cursor: Cursor) -> bool {
        let (mut low, mut high) = (u32::MAX, 0);
        for &j in self.pool[from..to].iter().filter(|&&j| j != cursor.1) {
            low = low.min(self.items[j as usize].first);
            high = high.max(self.items[j as usize].last);
        }
        if low == u32::MAX {
            return true;
        }
        self.least[low as usize..=high as usize].fill(u64::MAX);
        for &j in self.pool[from..to].iter().filter(|&&j| j != cursor.1) {
            let item = self.items[j as usize];
            let mut lowest = self.low[j as usize];
            if (lowest, j) <= cursor {
                if lowest.saturating_add(item.size) <= cursor.0 {
                    return false;
                }
                // Passed over: it will rest on something that is placed from here on.
                lowest = cursor.0.saturating_add(item.least_neighbour);
            }
            if lowest.saturating_add(item.size) > self.capacity {
                return false;
            }
            for s in &mut self.least[item.first as usize..=item.last as usize] {
                *s = (*s).min(lowest);
            }
            self.steps += u64::from(item.last - item.first) / 4;
        }
        (low as usize..=high as usize)
            .all(|s| self.rest[s] == 0 || self.least[s].saturating_add(self.rest[s]) <= self.capacity)
    }

    /// What tells one part from another for all that is to come.
    fn key(&self, from: usize, to: usize, cursor: Cursor, fresh: bool) -> (u64, u64) {
        let (mut a, mut b) = (0u64, 0u64);
        for &m in &self.pool[from..to] {
            let at = (self.low[m as usize], m);
            let passed = !fresh && at <= cursor;
            let word = mix(at.0 ^ mix(u64::from(m) << 1 | u64::from(passed)));
            a = a.wrapping_add(word);
            b = b.wrapping_add(mix(word ^ 0x9e37_79b9_7f4a_7c15));
        }
        (a, b)
    }
}

/// A 64-bit finaliser: every input bit reaches every output bit.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
