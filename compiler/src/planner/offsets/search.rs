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
//! Beyond the paper: a buffer passed over at its own offset must come to rest on one that is still unplaced, so it can be the next in a
//! section only above a neighbour outside of it; choices after the last one that leaves every section a next buffer are not tried;
//! attempts are short and many, with some chance in the order and a preference for the sections that failed so far; identical buffers are taken in one order; and parts that failed are remembered by what can still tell them apart (each
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

/// Steps of the shortest attempts.
const UNIT: u64 = 1_000_000;
/// Remembered failures; beyond it the memory is emptied.
const MEMORY: usize = 1 << 20;
/// Buffers beyond which a search has no chance (and recursion would be too deep), and pairs of buffers and sections.
const MOST_BUFFERS: usize = 10_000;
const MOST_PAIRS: u64 = 20_000_000;

/// Searches for a placement of height at most `capacity`, with at most about `work` steps.
pub(super) fn fit(buffers: &[Buffer], capacity: Bytes, work: u64) -> Outcome {
    let live: Vec<u32> = (0..buffers.len() as u32).filter(|&i| buffers[i as usize].is_live()).collect();
    if live.len() > MOST_BUFFERS {
        return Outcome::Limit;
    }
    let sections = Sections::new(buffers, &live);
    if sections.total > MOST_PAIRS {
        return Outcome::Limit;
    }
    let mut spent = 0;
    let mut lanes = [Lane::fixed(), Lane::near(&sections), Lane::far(&sections)];
    loop {
        // The lane that has had the least work is next.
        let Some(lane) = lanes.iter_mut().min_by_key(|l| l.spent) else { return Outcome::Limit };
        let attempt = lane.next();
        let limit = attempt.steps.min(work.saturating_sub(spent));
        if limit == 0 {
            return Outcome::Limit;
        }
        let mut search = Search::new(buffers, &live, &sections, capacity, &attempt, &lane.weights, limit);
        let end = search.run();
        spent += search.steps.max(1);
        lane.spent += search.steps.max(1);
        match end {
            End::Solved => return Outcome::Found(search.offsets(buffers.len())),
            End::Failed => return Outcome::Impossible,
            End::Limit => lane.learn(&search.failures),
        }
    }
}

/// One attempt at a solution.
struct Attempt {
    preorder: [Key; 3],
    /// How much chance there is in the preorder, in 1024ths of each key.
    noise: u64,
    seed: u64,
    /// Whether buffers of sections that failed often come first.
    weighted: bool,
    /// Steps it may take.
    steps: u64,
}

/// A row of attempts. A failed attempt is abandoned early and the next one begins elsewhere: how long a search takes varies so much from
/// one order to the next that many short ones are better than a long one.
struct Lane {
    kind: Kind,
    attempts: u64,
    spent: u64,
    /// How often each section was the one without room, lately.
    weights: Vec<u64>,
}

#[derive(Clone, Copy)]
enum Kind {
    /// The static orders in turn, each round with four times the steps of the one before.
    Fixed,
    /// The order by load with a little noise.
    Near,
    /// All orders with much noise.
    Far,
}

impl Lane {
    fn fixed() -> Self {
        Self { kind: Kind::Fixed, attempts: 0, spent: 0, weights: Vec::new() }
    }

    fn near(sections: &Sections) -> Self {
        Self { kind: Kind::Near, attempts: 0, spent: 0, weights: vec![1; sections.count] }
    }

    fn far(sections: &Sections) -> Self {
        Self { kind: Kind::Far, ..Self::near(sections) }
    }

    fn next(&mut self) -> Attempt {
        let k = self.attempts;
        self.attempts += 1;
        let turn = (k % PREORDERS.len() as u64) as usize;
        match self.kind {
            Kind::Fixed => {
                let round = (k / PREORDERS.len() as u64).min(16) as u32;
                let steps = (2 * UNIT).saturating_mul(4u64.saturating_pow(round));
                Attempt { preorder: PREORDERS[turn], noise: 0, seed: 0, weighted: false, steps }
            }
            Kind::Near | Kind::Far => {
                let (preorder, noise) =
                    if matches!(self.kind, Kind::Near) { (PREORDERS[2], 8) } else { (PREORDERS[turn], 256) };
                // The first few see the plain order under several limits, and fill the weights.
                let plain = k < PREORDERS.len() as u64;
                let (noise, weighted) = if plain { (0, false) } else { (noise, k % 2 == 1) };
                Attempt { preorder, noise, seed: k + 1, weighted, steps: UNIT * luby(k + 1) }
            }
        }
    }

    /// Remembers in which sections an attempt failed.
    fn learn(&mut self, failures: &[u64]) {
        let all = failures.iter().sum::<u64>().max(1);
        for (w, f) in self.weights.iter_mut().zip(failures) {
            *w = *w * 7 / 8 + f * 4096 / all;
        }
    }
}

/// The sequence 1, 1, 2, 1, 1, 2, 4, ... (Luby, Sinclair, Zuckerman 1993): within a logarithm of the best restart times, whatever they are.
fn luby(i: u64) -> u64 {
    let power = u64::BITS - i.leading_zeros();
    if i + 1 == 1 << power { 1 << (power - 1) } else { luby(i + 1 - (1 << (power - 1))) }
}

/// The maximal sets of buffers live together, in the order of time, as a range of sections for each buffer.
struct Sections {
    count: usize,
    /// First and last section of each live buffer, in the order of `live`.
    range: Vec<(u32, u32)>,
    /// Sum of the lengths of all ranges.
    total: u64,
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
        let range: Vec<(u32, u32)> = range.collect();
        let total = range.iter().map(|&(first, last)| u64::from(last - first) + 1).sum();
        Self { count: moments.len(), range, total }
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
    /// Whether each buffer is placed.
    placed: Vec<bool>,
    /// Buffers of each section.
    members: Vec<Vec<u32>>,
    /// A buffer of each section that kept its choice open when last looked at.
    watch: Vec<u32>,
    /// Scratch: unplaced buffers across the boundary before each section.
    crossing: Vec<u32>,
    /// Stack of parts: members of every part on the current path, in preorder.
    pool: Vec<u32>,
    /// Undo stack: (buffer, its lowest offset before).
    undo: Vec<(u32, Bytes)>,
    failed: HashSet<(u64, u64)>,
    steps: u64,
    /// How often each section was found without room.
    failures: Vec<u64>,
    limit: u64,
}

impl Search {
    fn new(
        buffers: &[Buffer],
        live: &[u32],
        sections: &Sections,
        capacity: Bytes,
        attempt: &Attempt,
        weights: &[u64],
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
        let heaviest = |k: usize| {
            let (first, last) = sections.range[k];
            weights[first as usize..=last as usize].iter().copied().max().unwrap_or(0)
        };
        let factor = |k: usize| {
            let chance =
                mix(attempt.seed.wrapping_mul(1_000_003).wrapping_add(k as u64)) % attempt.noise.max(1);
            u128::from(1024 + chance) * if attempt.weighted { u128::from(heaviest(k)) + 64 } else { 1 }
        };
        ranked.sort_by_cached_key(|&k| {
            (Reverse(attempt.preorder.map(|key| value(k, key).saturating_mul(factor(k)))), k)
        });
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
        let mut members = vec![Vec::new(); sections.count];
        for (i, item) in items.iter().enumerate() {
            members[item.first as usize..=item.last as usize].iter_mut().for_each(|m| m.push(i as u32));
        }
        Self {
            low: vec![0; items.len()],
            placed: vec![false; items.len()],
            watch: members.iter().map(|m| m.first().copied().unwrap_or(0)).collect(),
            members,
            items,
            capacity,
            crossing: vec![0; sections.count + 1],
            rest,
            pool: Vec::new(),
            undo: Vec::new(),
            failed: HashSet::new(),
            steps: sections.total / 4,
            failures: vec![0; sections.count],
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
                    self.placed[self.pool[k] as usize] = false;
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
            self.placed[m] = true;
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
        // What is passed over grows along the choices: they end where a section loses its last possible next buffer.
        let (mut good, mut bad) = (0, choices.len());
        while good < bad {
            let middle = if bad == choices.len() { (2 * good).min(bad - 1) } else { (good + bad) / 2 };
            if self.roomy(from, to, choices[middle], None) {
                good = middle + 1;
            } else {
                bad = middle;
            }
        }
        choices.truncate(good);
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
        self.placed[m as usize] = true;
        self.steps += (to - from) as u64;
        let end = if self.roomy(from, to, (offset, m + 1), Some(m)) {
            let members: Vec<u32> = self.pool[from..to].to_vec();
            self.parts(&members, Some(m), (offset, m), false)
        } else {
            End::Failed
        };
        if matches!(end, End::Solved) {
            return end;
        }
        self.placed[m as usize] = false;
        for r in &mut self.rest[item.first as usize..=item.last as usize] {
            *r += item.size;
        }
        for (j, low) in self.undo.drain(mark..).rev() {
            self.low[j as usize] = low;
        }
        end
    }

    /// Whether each section has room for its unplaced buffers above the lowest offset that one of them can take.
    fn roomy(&mut self, from: usize, to: usize, cursor: Cursor, placed: Option<u32>) -> bool {
        let (mut low, mut high) = (u32::MAX, 0);
        for k in from..to {
            let j = self.pool[k];
            if Some(j) == placed {
                continue;
            }
            let item = &self.items[j as usize];
            low = low.min(item.first);
            high = high.max(item.last);
            let mut lowest = self.low[j as usize];
            if (lowest, j) < cursor {
                if lowest.saturating_add(item.size) <= cursor.0 {
                    return false;
                }
                // Passed over: it will rest on something that is placed from here on.
                lowest = cursor.0.saturating_add(item.least_neighbour);
            }
            if lowest.saturating_add(item.size) > self.capacity {
                return false;
            }
        }
        self.steps += (to - from) as u64 / 4 + 1;
        if low == u32::MAX {
            return true;
        }
        self.steps += u64::from(high - low) / 4;
        for s in low as usize..=high as usize {
            if self.rest[s] > 0 && !self.supported(from, to, s, cursor) {
                self.failures[s] += 1;
                return false;
            }
        }
        true
    }

    /// Whether some unplaced buffer of a section can still be the next one there without wasting more than the section's slack.
    fn supported(&mut self, from: usize, to: usize, s: usize, cursor: Cursor) -> bool {
        let slack = self.capacity - self.rest[s];
        let open = |j: u32| {
            !self.placed[j as usize] && self.low[j as usize] <= slack && (self.low[j as usize], j) >= cursor
        };
        if open(self.watch[s]) {
            return true;
        }
        self.steps += self.members[s].len() as u64 / 2;
        if let Some(&j) = self.members[s].iter().find(|&&j| open(j)) {
            self.watch[s] = j;
            return true;
        }
        // A passed-over buffer comes to rest on an unplaced neighbour; to be the next one here, on one that does not cross this section.
        let (mut first, mut last) = (u32::MAX, 0);
        for &j in &self.members[s] {
            if !self.placed[j as usize] && self.low[j as usize] <= slack {
                first = first.min(self.items[j as usize].first);
                last = last.max(self.items[j as usize].last);
            }
        }
        if first == u32::MAX {
            return false;
        }
        self.steps += (to - from) as u64 / 2;
        self.pool[from..to].iter().any(|&k| {
            let (other, low) = (&self.items[k as usize], self.low[k as usize]);
            let left = other.last < s as u32 && other.last >= first;
            let right = other.first > s as u32 && other.first <= last;
            let at = if (low, k) < cursor { cursor.0.saturating_add(other.least_neighbour) } else { low };
            (left || right) && !self.placed[k as usize] && at.saturating_add(other.size) <= slack
        })
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
