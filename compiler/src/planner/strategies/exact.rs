//! Exact search on small problems: the least extra time of any schedule, or a bound on it.
//!
//! Dijkstra's algorithm over pairs (what has run, what is live), where a first execution costs nothing and a repeated one its time. Values
//! are dropped only when the next execution needs the room, and then no more of them than it needs: holding on to a value never hurts.
//! An integer program over stages and values (Jain et al. 2020) has the square of the nodes in variables; this has states only as far as
//! they are cheaper than the best schedule known, and when its work ends, the least open state still is a proof.
//!
//! A view is a bit beside its storage's: it has no bytes and goes when the storage does. To make a storage anew while one of it is there
//! never helps, so one bit says enough, except where a node makes it together with another value that is missing.
//!
//! For plain problems: no overwrites, state, choices of implementation, or views of one of several outputs.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::super::index::{Index, NONE};
use super::super::problem::{Bytes, Nanos};
use super::{Candidate, Context};

/// Problems of up to this many needed nodes are tried.
const NODES: usize = 60;
/// Most states held at once: some 100 bytes each.
const STATES: usize = 1_500_000;

/// What the search found.
pub(crate) struct Exact {
    /// A schedule better than the one known.
    pub(crate) better: Option<Candidate>,
    /// Proven: no schedule within the budget has less extra time; `Nanos::MAX` if there is none.
    pub(crate) least_extra: Nanos,
}

/// Searches schedules that take less time than the one known; none if the problem is not small and plain.
pub(crate) fn run(context: &mut Context<'_, '_>, known: Option<&Candidate>) -> Option<Exact> {
    let index = context.index;
    let plain = Plain::new(index)?;
    let fits = known.filter(|k| k.score.peak <= context.budget);
    let limit = fits.map_or(Nanos::MAX, |k| k.score.time - index.base_time);
    let states = STATES.min((context.work / 2) as usize);
    let mut search = Search {
        plain: &plain,
        budget: context.budget,
        keep_order: context.keep_order,
        states: Vec::new(),
        known: HashMap::new(),
        open: BinaryHeap::new(),
        limit,
    };
    let found = search.run(states);
    context.evaluator.work += 4 * search.states.len() as u64;
    Some(match found {
        Found::Schedule(sequence, extra) => {
            let score = context.evaluator.evaluate(&sequence, context.budget);
            let genome = super::hindsight::from_sequence(index, &sequence);
            debug_assert_eq!(score.time, index.base_time + extra);
            let better = Candidate { strategy: "exact", genome, sequence, score };
            Exact { better: Some(better), least_extra: extra }
        }
        Found::Nothing => Exact { better: None, least_extra: limit },
        Found::Open(least) => Exact { better: None, least_extra: least.min(limit) },
    })
}

/// The problem in bits.
struct Plain {
    /// Needed nodes, in the given order.
    nodes: Vec<PlainNode>,
    /// Per bit: groups, then views.
    bytes: Vec<Bytes>,
    /// Per bit: itself and, for a group, the views of it.
    whole: Vec<u128>,
    /// Live before the first step.
    initial: u128,
    /// Live at the end.
    kept: u128,
    resident: Bytes,
}

struct PlainNode {
    id: u32,
    inputs: u128,
    outputs: u128,
    time: Nanos,
    workspace: Bytes,
    once: bool,
}

impl Plain {
    fn new(index: &Index<'_>) -> Option<Self> {
        let problem = index.problem;
        let views: Vec<u32> =
            (0..problem.values.len() as u32).filter(|&v| index.value_view[v as usize] != NONE).collect();
        let bits = index.groups() + views.len();
        let small = index.given.len() <= NODES && bits <= 128;
        let choice = index.choice.iter().any(|&c| c);
        let group = |v: u32| index.value_group[v as usize];
        // One of several outputs, of which there are views.
        let parted = |n: &u32| {
            let made = index.outputs.row(*n);
            let viewed = |v: &u32| group(*v) != NONE && index.members.row(group(*v)).len() > 1;
            made.len() > 1 && made.iter().any(viewed)
        };
        if !small || choice || !problem.states.is_empty() || index.overwrites.total() > 0 {
            return None;
        }
        if !views.is_empty() && index.given.iter().any(parted) {
            return None;
        }
        let mask = |values: &[u32]| {
            values.iter().fold(0u128, |m, &v| {
                let storage = if group(v) == NONE { 0 } else { 1 << group(v) };
                let view = views.binary_search(&v).map_or(0, |at| 1 << (index.groups() + at));
                m | storage | view
            })
        };
        let mut whole: Vec<u128> = (0..bits).map(|bit| 1 << bit).collect();
        for v in views.iter().filter(|v| group(**v) != NONE) {
            whole[group(*v) as usize] |= mask(&[*v]);
        }
        let mut bytes = index.group_bytes.clone();
        bytes.resize(bits, 0);
        let nodes = index
            .given
            .iter()
            .map(|&id| PlainNode {
                id,
                inputs: mask(index.inputs.row(id)),
                outputs: mask(index.outputs.row(id)),
                time: index.time[id as usize],
                workspace: index.workspace[id as usize],
                once: index.once[id as usize],
            })
            .collect();
        let staged = (0..index.groups()).filter(|&g| index.group_node[g] == NONE);
        Some(Self {
            nodes,
            bytes,
            whole,
            initial: staged.fold(0, |m, g| m | 1 << g),
            kept: mask(&index.kept_to_end),
            resident: problem.resident,
        })
    }

    fn bytes_of(&self, mut set: u128) -> Bytes {
        let mut sum = self.resident;
        while set != 0 {
            sum += self.bytes[set.trailing_zeros() as usize];
            set &= set - 1;
        }
        sum
    }
}

#[derive(Clone, Copy)]
struct State {
    ran: u64,
    live: u128,
    extra: Nanos,
    parent: u32,
    /// The node that led here.
    node: u32,
}

enum Found {
    Schedule(Vec<u32>, Nanos),
    /// No schedule is better than the limit.
    Nothing,
    /// Work ended; no schedule is better than this.
    Open(Nanos),
}

struct Search<'p> {
    plain: &'p Plain,
    budget: Bytes,
    keep_order: bool,
    states: Vec<State>,
    /// The least extra time at which each state was met.
    known: HashMap<(u64, u128), Nanos>,
    /// Least extra time first, then the most nodes run, then the newest.
    open: BinaryHeap<(Reverse<Nanos>, u32, u32)>,
    limit: Nanos,
}

impl Search<'_> {
    fn run(&mut self, most: usize) -> Found {
        let all = u64::MAX >> (64 - self.plain.nodes.len().max(1));
        let all = if self.plain.nodes.is_empty() { 0 } else { all };
        self.push(State { ran: 0, live: self.plain.initial, extra: 0, parent: NONE, node: NONE });
        while let Some((Reverse(extra), _, at)) = self.open.pop() {
            let state = self.states[at as usize];
            if self.known[&(state.ran, state.live)] < extra {
                continue;
            }
            if state.ran == all && self.plain.kept & !state.live == 0 {
                return Found::Schedule(self.sequence(at), extra);
            }
            if self.states.len() > most {
                return Found::Open(extra);
            }
            self.expand(at, state);
        }
        Found::Nothing
    }

    fn push(&mut self, state: State) {
        if state.extra >= self.limit {
            return;
        }
        let best = self.known.entry((state.ran, state.live)).or_insert(Nanos::MAX);
        if state.extra < *best {
            *best = state.extra;
            let at = self.states.len() as u32;
            self.open.push((Reverse(state.extra), state.ran.count_ones(), at));
            self.states.push(state);
        }
    }

    fn expand(&mut self, at: u32, state: State) {
        let next = (!state.ran).trailing_zeros() as usize;
        for position in 0..self.plain.nodes.len() {
            let node = &self.plain.nodes[position];
            let first = state.ran >> position & 1 == 0;
            let useful = first || (!node.once && node.outputs & !state.live != 0);
            let early = first && self.keep_order && position != next;
            if !useful || early || node.inputs & !state.live != 0 {
                continue;
            }
            let extra = if first { state.extra } else { state.extra.saturating_add(node.time) };
            let ran = state.ran | 1 << position;
            let step =
                State { ran, live: state.live | node.outputs, extra, parent: at, node: position as u32 };
            let needed = self.plain.bytes_of(step.live).saturating_add(node.workspace);
            let over = needed.saturating_sub(self.budget);
            let droppable = state.live & !node.inputs & !node.outputs;
            self.drop_some(step, droppable, over);
        }
    }

    /// Pushes the step with each least set of droppable storages that frees enough dropped.
    fn drop_some(&mut self, step: State, droppable: u128, over: Bytes) {
        if over == 0 {
            return self.push(step);
        }
        let mut rest = droppable;
        // Sets are made in rising order of their values, so that each comes up once.
        while rest != 0 {
            if self.plain.bytes_of(rest) - self.plain.resident < over {
                return;
            }
            let value = rest.trailing_zeros();
            rest &= rest - 1;
            let bytes = self.plain.bytes[value as usize];
            if bytes > 0 {
                let dropped = State { live: step.live & !self.plain.whole[value as usize], ..step };
                self.drop_some(dropped, rest, over.saturating_sub(bytes));
            }
        }
    }

    fn sequence(&self, mut at: u32) -> Vec<u32> {
        let mut sequence = Vec::new();
        while self.states[at as usize].parent != NONE {
            sequence.push(self.plain.nodes[self.states[at as usize].node as usize].id);
            at = self.states[at as usize].parent;
        }
        sequence.reverse();
        sequence
    }
}
