//! Large neighbourhood search on the sequence of executions, with exact incremental replay.
//!
//! A move takes one decision back (a repeated execution goes, or a group over a tight moment is dropped there), and then repairs: while
//! some moment is over the budget, a group that is live over it without being used is made again before its next reader, with what that
//! needs. What is left unread by a change goes too. The whole is kept or undone. Costs follow from what a move touches, not from the
//! length of the sequence, which is what makes tens of thousands of nodes possible.

use super::super::index::{Index, NONE};
use super::super::problem::{Bytes, Nanos};
use super::super::timeline::{Full, Timeline};
use super::drag::Drag;
use super::hindsight::from_sequence;
use super::stages::Stages;
use super::{Candidate, Context, Random};

const STAGES: u64 = 48;
const COOLING: f64 = 0.9;
/// A burst of recomputation may be this long.
const BURST: usize = 64;
/// With more nodes, or bytes left free, a start over the budget is brought down first, with this part of the work and so many failures in
/// a row.
const MANY_NODES: usize = 4_000;
const DESCENT: u64 = 4;
const FAILURES: u32 = 32;
/// Of the groups over a moment, so many are priced before one is dropped.
const PRICED: usize = 4;

/// Improves a candidate's sequence with about `work` executed steps. The answer is never worse than the start.
/// `heat` is the temperature of the beginning, in times of a typical execution.
pub(crate) fn improve(
    context: &mut Context<'_, '_>,
    start: &Candidate,
    heat: f64,
    work: u64,
    salt: u64,
) -> Candidate {
    let index = context.index;
    let timeline = Timeline::new(index, &start.sequence);
    let base = index.base_time.max(1);
    let mut search = Search {
        random: Random::new(context.seed ^ salt.wrapping_mul(0x2545_F491_4F6C_DD1D)),
        budget: context.budget,
        keep_order: context.keep_order,
        base: base as f64,
        temperature: heat * index.typical_time(),
        weight: 4.0,
        cost: f64::INFINITY,
        best: start.sequence.clone(),
        best_key: (Bytes::MAX, Nanos::MAX),
        unsaved: false,
        live: Vec::new(),
        drag: Drag::new(index.nodes()),
        timeline,
    };
    search.fit_variants();
    search.timeline.commit();
    search.settle();
    if index.given.len() > MANY_NODES || index.leaves_free() {
        search.descend(work / DESCENT);
    }
    let mut stages = Stages::new(STAGES, 12);
    while search.timeline.work < work {
        let done = search.timeline.work;
        while let Some(returns) = stages.next(done, work) {
            search.temperature *= COOLING;
            if returns {
                if search.best_key.0 > 0 {
                    search.weight *= 4.0;
                }
                search.restart();
            }
        }
        search.step();
        if search.best_key.0 == 0 && search.best_key.1 <= context.enough {
            break;
        }
    }
    search.save();
    context.evaluator.work += search.timeline.work;
    let score = context.evaluator.evaluate(&search.best, context.budget);
    if context.evaluator.breaks_commit_rule() {
        debug_assert!(false, "no move takes a commit before a reader of the old version");
        return start.clone();
    }
    let genome = from_sequence(index, &search.best);
    context
        .better(start.clone(), Candidate { strategy: start.strategy, genome, sequence: search.best, score })
}

/// Why a move was given up.
enum Failure {
    Full(Full),
    /// Nothing can be done, or not at an acceptable price.
    Hopeless,
}

impl From<Full> for Failure {
    fn from(full: Full) -> Self {
        Self::Full(full)
    }
}

struct Search<'i, 'a> {
    timeline: Timeline<'i, 'a>,
    random: Random,
    budget: Bytes,
    keep_order: bool,
    base: f64,
    temperature: f64,
    /// Weight of bytes over the budget.
    weight: f64,
    cost: f64,
    best: Vec<u32>,
    /// Bytes over the budget, and time.
    best_key: (Bytes, Nanos),
    /// The timeline is the best so far and has not been written down.
    unsaved: bool,
    live: Vec<u32>,
    drag: Drag,
}

impl<'i, 'a> Search<'i, 'a> {
    fn index(&self) -> &'i Index<'a> {
        self.timeline.index
    }

    fn over(&self) -> Bytes {
        self.timeline.peak().saturating_sub(self.budget)
    }

    fn price(&self) -> f64 {
        let over = self.over() as f64 / self.budget.max(1) as f64;
        self.timeline.time as f64 / self.base + self.weight * over
    }

    /// Takes the timeline as the current state.
    fn settle(&mut self) {
        self.cost = self.price();
        let key = (self.over(), self.timeline.time);
        if key < self.best_key {
            (self.best_key, self.unsaved) = (key, true);
        }
    }

    /// Writes the best state down before it is left.
    fn save(&mut self) {
        if std::mem::take(&mut self.unsaved) {
            self.timeline.work += self.best.len() as u64 / 8;
            self.best = self.timeline.sequence();
        }
    }

    fn restart(&mut self) {
        self.save();
        let work = self.timeline.work;
        self.timeline = Timeline::new(self.index(), &self.best);
        self.timeline.work += work;
        self.fit_variants();
        self.timeline.commit();
        self.settle();
        self.save();
    }

    /// Nodes over the budget get implementations with less scratch.
    fn fit_variants(&mut self) {
        let index = self.index();
        let mut at = self.timeline.after(0);
        while let Some(slot) = at {
            let node = self.timeline.node_at(slot);
            if index.choice[node as usize] {
                self.fit_variant(slot);
            }
            at = self.timeline.after(slot);
        }
    }

    /// The fastest implementation that fits at a slot, or the one with the least scratch.
    fn fit_variant(&mut self, slot: u32) -> bool {
        let index = self.index();
        let node = self.timeline.node_at(slot);
        let before = self.timeline.variant(slot);
        let choices = &index.problem.nodes[node as usize].implementations;
        let scratch = |v: u32| choices[v as usize].workspace.next_multiple_of(index.problem.alignment);
        let rest = self.timeline.live_at(slot).saturating_sub(scratch(before));
        let fit = (0..choices.len() as u32).find(|&v| rest + scratch(v) <= self.budget);
        let least = (0..choices.len() as u32).min_by_key(|&v| choices[v as usize].workspace);
        let variant = fit.or(least).unwrap_or(0);
        if variant != before {
            self.timeline.set_variant(slot, variant);
        }
        variant != before
    }

    /// Drops at the peak, whatever it costs, until nothing is over the budget. Where many moments are equally far over it, as in a
    /// loop written out, no single move lowers the peak, so that a search that takes what is cheaper would not begin.
    fn descend(&mut self, work: u64) {
        let end = self.timeline.work + work;
        let mut failures = 0;
        while self.over() > 0 && failures < FAILURES && self.timeline.work < end {
            self.timeline.work += 1;
            let (slot, before) = (self.timeline.peak_slot(), self.timeline.peak());
            let over = self.over();
            let fitted = self.fit_variant_over(slot);
            match if fitted { Ok(()) } else { self.drop_over(slot, over) } {
                Ok(()) if self.timeline.peak() <= before && self.timeline.live_at(slot) < before => {
                    failures = 0;
                    self.timeline.commit();
                }
                Err(Failure::Full(full)) => {
                    self.timeline.undo(0);
                    self.timeline.make_room(full);
                }
                Ok(()) | Err(Failure::Hopeless) => {
                    failures += 1;
                    self.timeline.undo(0);
                }
            }
        }
        self.settle();
        self.save();
    }

    /// [`Search::fit_variant`] where a node at a slot has a choice.
    fn fit_variant_over(&mut self, slot: u32) -> bool {
        let node = self.timeline.node_at(slot);
        node != NONE && self.index().choice[node as usize] && self.fit_variant(slot)
    }

    fn step(&mut self) {
        let unit = self.random.unit();
        let allowed = self.cost + 3.0 * self.temperature * unit * unit * unit;
        let before = self.timeline.work;
        let tried = self.propose(allowed);
        self.timeline.work += 1;
        match tried {
            Ok(()) if self.price() <= allowed => {
                if self.unsaved && self.best_key <= (self.over(), self.timeline.time) {
                    self.leave_best();
                }
                self.timeline.commit();
                self.settle();
            }
            Ok(()) | Err(Failure::Hopeless) => self.timeline.undo(0),
            Err(Failure::Full(full)) => {
                self.timeline.undo(0);
                self.timeline.make_room(full);
            }
        }
        debug_assert!(self.timeline.work > before);
    }

    /// The best state, changed but for the journal, is written down.
    fn leave_best(&mut self) {
        self.best = self.timeline.sequence_before_changes();
        self.timeline.work += self.best.len() as u64 / 8;
        self.unsaved = false;
    }

    fn propose(&mut self, allowed: f64) -> Result<(), Failure> {
        let limit = (allowed * self.base) as Nanos + 1;
        let over = self.over() > 0;
        match self.random.below(16) {
            _ if over && self.random.below(2) == 0 => self.repair(limit, 1 << 6),
            0..=7 => {
                self.delete_some()?;
                self.repair(limit, 12)
            }
            8..=9 => self.shift_repeat(),
            10 if !self.keep_order => self.shift_first(),
            11 if !self.keep_order => self.drag_across_tight_moment(),
            _ => {
                self.drop_at_tight_moment()?;
                self.repair(limit.saturating_mul(2), 6)?;
                self.delete_where_it_fits()
            }
        }
    }

    /// A repeated execution goes, and now and then its neighbours of the same burst.
    fn delete_some(&mut self) -> Result<(), Failure> {
        let slot = self.random_repeat().ok_or(Failure::Hopeless)?;
        let many = self.random.below(4) == 0;
        let near = many.then(|| self.neighbours(slot));
        self.delete(slot);
        for slot in near.into_iter().flatten() {
            let node = self.timeline.node_at(slot);
            if node != NONE && self.timeline.runs(node).first() != Some(&slot) && self.random.below(2) == 0 {
                self.delete(slot);
            }
        }
        Ok(())
    }

    fn neighbours(&self, slot: u32) -> Vec<u32> {
        let mut near = Vec::new();
        let mut at = slot;
        for _ in 0..3 {
            let Some(before) = self.timeline.before(at) else { break };
            near.push(before);
            at = before;
        }
        at = slot;
        for _ in 0..3 {
            let Some(after) = self.timeline.after(at) else { break };
            near.push(after);
            at = after;
        }
        near
    }

    /// An execution that is not the first of its node.
    fn random_repeat(&mut self) -> Option<u32> {
        let repeated = self.timeline.repeated();
        if repeated.is_empty() {
            return None;
        }
        let node = repeated[self.random.below(repeated.len())];
        let runs = self.timeline.runs(node);
        Some(runs[1 + self.random.below(runs.len() - 1)])
    }

    /// Removes an execution and whatever only it read.
    fn delete(&mut self, slot: u32) {
        let mut stack = vec![slot];
        let mut asked = true;
        while let Some(slot) = stack.pop() {
            if !std::mem::take(&mut asked) && !self.is_idle(slot) {
                continue;
            }
            let node = self.timeline.node_at(slot);
            self.timeline.remove(slot);
            for &value in self.index().inputs.row(node) {
                let producer = self.index().producer[value as usize];
                if producer == NONE {
                    continue;
                }
                let runs = self.timeline.runs(producer);
                let made = runs[..runs.partition_point(|&s| s < slot)].last().copied();
                if let Some(made) = made.filter(|&m| !stack.contains(&m) && self.is_idle(m)) {
                    stack.push(made);
                }
            }
        }
    }

    /// Whether the execution may go without anything else changing.
    fn is_idle(&self, slot: u32) -> bool {
        let node = self.timeline.node_at(slot);
        let runs = self.timeline.runs(node);
        runs.len() > 1 && (!self.keep_order || runs[0] != slot) && self.timeline.is_unread(slot)
    }

    /// Until nothing is over the budget: drops groups over the peak.
    fn repair(&mut self, limit: Nanos, most: usize) -> Result<(), Failure> {
        for _ in 0..most {
            if self.over() == 0 {
                return Ok(());
            }
            if self.timeline.time > limit {
                return Err(Failure::Hopeless);
            }
            let slot = self.timeline.peak_slot();
            if self.fit_variant_over(slot) {
                continue;
            }
            let over = self.over();
            self.drop_over(slot, over)?;
        }
        Ok(())
    }

    /// A group over some moment near the budget is dropped there.
    fn drop_at_tight_moment(&mut self) -> Result<(), Failure> {
        let slot = self.tight_moment().ok_or(Failure::Hopeless)?;
        self.drop_over(slot, Bytes::MAX)
    }

    /// What makes or reads a group over some moment near the budget moves to its other side.
    fn drag_across_tight_moment(&mut self) -> Result<(), Failure> {
        let slot = self.tight_moment().ok_or(Failure::Hopeless)?;
        self.drag.across(&mut self.timeline, slot, &mut self.random).ok_or(Failure::Hopeless)??;
        Ok(())
    }

    fn tight_moment(&mut self) -> Option<u32> {
        let peak = self.timeline.peak();
        let slack = peak / 64 * self.random.below(4) as Bytes;
        let random = &mut self.random;
        self.timeline.slot_above(peak - slack, || random.below(2) == 0)
    }

    /// Of some groups live over a slot, the one that frees most for its price is made again behind it.
    fn drop_over(&mut self, slot: u32, wanted: Bytes) -> Result<(), Failure> {
        let mut live = std::mem::take(&mut self.live);
        let random = &mut self.random;
        self.timeline.some_live_over(slot, PRICED, |n| random.below(n), &mut live);
        let mut best: Option<(f64, u32, Vec<u32>)> = None;
        for _ in 0..PRICED.min(live.len()) {
            let at = self.random.below(live.len());
            let group = live.swap_remove(at);
            let Some((before, burst)) = self.burst(group, slot) else { continue };
            let time: Nanos = burst.iter().map(|&n| self.index().time[n as usize]).sum();
            let bytes = self.index().group_bytes[group as usize].min(wanted);
            let price = (time + 1) as f64 / bytes as f64 * (0.5 + self.random.unit());
            if best.as_ref().is_none_or(|b| price < b.0) {
                best = Some((price, before, burst));
            }
        }
        self.live = live;
        let (_, before, burst) = best.ok_or(Failure::Hopeless)?;
        self.timeline.insert(&burst, before)?;
        // Executions whose readers are all behind the burst now are idle.
        for &node in &burst {
            let runs = self.timeline.runs(node);
            let place = runs.partition_point(|&s| s < before);
            if place >= 2 {
                let old = runs[place - 2];
                if self.is_idle(old) {
                    self.delete(old);
                }
            }
        }
        Ok(())
    }

    /// What must run, and before which slot, so that a group that is live over a slot need not be.
    fn burst(&mut self, group: u32, slot: u32) -> Option<(u32, Vec<u32>)> {
        let index = self.index();
        let life = self.timeline.life_over(group, slot)?;
        // The members read behind the slot from this instance, and the first of these reads.
        let mut first = self.timeline.end();
        let mut wanted: Vec<u32> = Vec::new();
        if let Some(read) = self.timeline.first_read(group, slot, life.last) {
            first = read.unwrap_or(first);
            wanted.push(index.group_root[group as usize]);
        }
        let listed = if wanted.is_empty() { index.members.row(group) } else { &[] };
        for &value in listed {
            // A view that is made behind the slot is not made again: it reads its source there.
            let producer = index.producer[value as usize];
            let makers = if producer == NONE { &[] } else { self.timeline.runs(producer) };
            let made = makers.partition_point(|&s| s <= slot);
            let next = makers.get(made).copied().unwrap_or(self.timeline.end());
            if made == 0 {
                continue;
            }
            let mut read = false;
            for &edge in index.group_edges.row(group) {
                let reader = index.edge_node[edge as usize];
                if reader as usize > index.nodes() {
                    continue;
                }
                if reader as usize == index.nodes() {
                    let kept = next == self.timeline.end() && index.kept_to_end.contains(&value);
                    read |= life.last == self.timeline.end() && kept;
                } else if index.inputs.row(reader).contains(&value) {
                    let runs = self.timeline.runs(reader);
                    for &at in &runs[runs.partition_point(|&s| s <= slot)..] {
                        if at <= life.last.min(next) && self.timeline.instance(value, at) == Some(life.start)
                        {
                            read = true;
                            first = first.min(at);
                        }
                    }
                }
            }
            if read {
                wanted.push(value);
            }
        }
        self.timeline.work += 4;
        let mut burst = Vec::new();
        for value in wanted {
            self.demand(value, first, group, &mut burst)?;
        }
        Some((first, burst))
    }

    /// Appends the executions that make a value of a dropped group again.
    fn demand(&mut self, value: u32, before: u32, dropped: u32, burst: &mut Vec<u32>) -> Option<()> {
        let index = self.index();
        let mut stack = vec![(index.producer[value as usize], 0usize)];
        while let Some(top) = stack.last_mut() {
            let node = top.0;
            if burst.contains(&node) {
                stack.pop();
                continue;
            }
            if top.1 == 0 {
                let late = |s: &u32| {
                    let commit = self.timeline.runs(index.problem.states[*s as usize].commit);
                    commit.first().is_some_and(|&c| c < before)
                };
                if index.once[node as usize]
                    || stack.len() + burst.len() > BURST
                    || index.reads_state.row(node).iter().any(late)
                {
                    return None;
                }
            }
            let Some(top) = stack.last_mut() else { break };
            let Some(&input) = index.inputs.row(node).get(top.1) else {
                burst.push(node);
                stack.pop();
                continue;
            };
            top.1 += 1;
            let producer = index.producer[input as usize];
            let group = index.value_group[input as usize];
            if producer == NONE || group == NONE || burst.contains(&producer) {
                continue;
            }
            let fixed = index.once[producer as usize];
            let there = group != dropped && self.timeline.is_live(input, before);
            if fixed || there || (group != dropped && self.random.below(8) == 0) {
                continue;
            }
            if stack.iter().any(|s| s.0 == producer) {
                continue;
            }
            self.timeline.work += 1;
            stack.push((producer, 0));
        }
        Some(())
    }

    /// Tries some repeated executions, and removes each without which nothing is over the budget.
    fn delete_where_it_fits(&mut self) -> Result<(), Failure> {
        let over = self.over();
        for _ in 0..6 {
            let Some(slot) = self.random_repeat() else { break };
            let (mark, before) = (self.timeline.mark(), self.timeline.time);
            self.delete(slot);
            if self.over() > over || self.timeline.time > before {
                self.timeline.undo(mark);
            }
        }
        Ok(())
    }

    /// Moves a repeated execution towards its first reader or some steps either way.
    fn shift_repeat(&mut self) -> Result<(), Failure> {
        let slot = self.random_repeat().ok_or(Failure::Hopeless)?;
        let hops = 1 + self.random.below(12);
        let back = self.random.below(2) == 0;
        self.shift(slot, hops, back, NONE, NONE)
    }

    /// Moves a first execution within what its neighbours allow.
    fn shift_first(&mut self) -> Result<(), Failure> {
        let index = self.index();
        let node = index.given[self.random.below(index.given.len())];
        let slot = *self.timeline.runs(node).first().ok_or(Failure::Hopeless)?;
        let first = |n: &u32| self.timeline.runs(*n).first().copied();
        let is_commit = !index.commits.row(node).is_empty();
        let bound = |n: &u32| if is_commit { self.timeline.runs(*n).last().copied() } else { first(n) };
        let low = index.predecessors.row(node).iter().filter_map(bound).max().unwrap_or(0);
        let high = index.successors.row(node).iter().filter_map(first).min().unwrap_or(self.timeline.end());
        let hops = match self.random.below(4) {
            0 => 1 << 10,
            _ => 1 + self.random.below(24),
        };
        let back = self.random.below(2) == 0;
        self.shift(slot, hops, back, low, high)
    }

    /// Moves an execution by some steps, beyond neither `low` nor `high`.
    fn shift(&mut self, slot: u32, hops: usize, back: bool, low: u32, high: u32) -> Result<(), Failure> {
        let index = self.index();
        let node = self.timeline.node_at(slot);
        let runs = self.timeline.runs(node);
        let at = runs.partition_point(|&s| s < slot);
        let low = if low == NONE { runs[at.saturating_sub(1)] } else { low };
        let high = if high == NONE { self.timeline.end() } else { high };
        let high = runs.get(at + 1).copied().unwrap_or(high).min(high);
        // Lands before `target`.
        let mut target = slot;
        for _ in 0..hops {
            if back {
                match self.timeline.before(target) {
                    Some(before) if before > low => target = before,
                    _ => break,
                }
            } else {
                let next = self.timeline.after(target).unwrap_or(self.timeline.end());
                target = next.min(high);
                if next >= high {
                    break;
                }
            }
        }
        let reads = index.reads_state.row(node);
        let late = |s: &u32| {
            let commit = self.timeline.runs(index.problem.states[*s as usize].commit);
            commit.first().is_some_and(|&c| c < target)
        };
        let unmoved = target == slot || (!back && self.timeline.after(slot) == Some(target));
        if unmoved || reads.iter().any(late) {
            return Err(Failure::Hopeless);
        }
        self.timeline.work += hops.min(64) as u64 / 8;
        self.timeline.remove(slot);
        self.timeline.insert(&[node], target)?;
        Ok(())
    }
}
