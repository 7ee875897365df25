//! Local search on the sequence of executions itself.
//!
//! Any sequence that makes values before it reads them is lawful (but for the commit rule), and lifetimes follow from it. So a repeated
//! execution may be deleted, inserted before a reader together with what it needs, or moved. This space holds every schedule, also those
//! that no genome decodes to: values made again several times between two uses, and bursts that drop what they have just made.

use super::super::decode::Score;
use super::super::index::{Index, NONE};
use super::hindsight::from_sequence;
use super::stages::Stages;
use super::{Candidate, Context, Random};

const STAGES: u64 = 48;
const COOLING: f64 = 0.9;

/// Improves a candidate's sequence with about `work` executed steps. The answer is never worse than the start.
/// `heat` is the temperature of the beginning, in times of a typical execution.
pub(crate) fn improve(
    context: &mut Context<'_, '_>,
    start: &Candidate,
    heat: f64,
    work: u64,
    salt: u64,
) -> Candidate {
    let mut search = Search::new(context, start, heat, salt);
    let begin = context.evaluator.work;
    let mut stages = Stages::new(STAGES, 12);
    let mut idle = 0;
    while context.evaluator.work < begin + work && idle < 20_000 {
        let done = context.evaluator.work - begin;
        while let Some(returns) = stages.next(done, work) {
            search.temperature *= COOLING;
            if returns {
                if search.best_score.peak > context.budget {
                    search.weight *= 4.0;
                }
                search.restart(context);
            }
        }
        idle = if search.step(context) { 0 } else { idle + 1 };
        context.evaluator.work += 8;
    }
    let (sequence, score) = (search.best, search.best_score);
    let genome = from_sequence(context.index, &sequence);
    context.better(start.clone(), Candidate { strategy: start.strategy, genome, sequence, score })
}

/// The sequence without repeated executions that nothing reads, and, where the order is free, without first executions that nothing
/// reads before the node runs again.
pub(crate) fn drop_unread(index: &Index<'_>, sequence: &[u32], keep_order: bool) -> Vec<u32> {
    let mut runs = vec![0u32; index.nodes()];
    for &node in sequence {
        runs[node as usize] += 1;
    }
    let mut first = vec![NONE; index.nodes()];
    for (step, &node) in sequence.iter().enumerate().rev() {
        first[node as usize] = step as u32;
    }
    let mut wanted = vec![false; index.value_group.len()];
    for &value in &index.kept_to_end {
        wanted[value as usize] = true;
    }
    let mut out = Vec::with_capacity(sequence.len());
    for (step, &node) in sequence.iter().enumerate().rev() {
        let outputs = index.outputs.row(node);
        let read = outputs.iter().any(|&v| wanted[v as usize]);
        let fixed = runs[node as usize] == 1 || (keep_order && first[node as usize] == step as u32);
        if !read && !fixed {
            runs[node as usize] -= 1;
            continue;
        }
        for &value in outputs {
            wanted[value as usize] = false;
        }
        for &value in index.inputs.row(node) {
            wanted[value as usize] = true;
        }
        out.push(node);
    }
    out.reverse();
    out
}

struct Search {
    random: Random,
    current: Vec<u32>,
    score: Score,
    cost: f64,
    best: Vec<u32>,
    best_score: Score,
    temperature: f64,
    weight: f64,
    base: u64,
    /// Steps that repeat a node.
    repeats: Vec<u32>,
    /// First step of each node.
    first: Vec<u32>,
    /// Live over the peak step without being used there: (group, last read).
    hot: Vec<(u32, u32)>,
}

impl Search {
    fn new(context: &mut Context<'_, '_>, start: &Candidate, heat: f64, salt: u64) -> Self {
        let index = context.index;
        let base = index.base_time.max(1);
        let mut this = Self {
            random: Random::new(context.seed ^ salt.wrapping_mul(0x51_7CC1_B727)),
            current: Vec::new(),
            score: start.score,
            cost: f64::INFINITY,
            best: start.sequence.clone(),
            best_score: start.score,
            temperature: heat * index.typical_time(),
            weight: 4.0,
            base,
            repeats: Vec::new(),
            first: Vec::new(),
            hot: Vec::new(),
        };
        this.restart(context);
        this
    }

    fn restart(&mut self, context: &mut Context<'_, '_>) {
        self.current = self.best.clone();
        self.score = context.evaluator.evaluate(&self.current, context.budget);
        self.cost = self.price(context, self.score);
        self.look(context);
    }

    fn price(&self, context: &Context<'_, '_>, score: Score) -> f64 {
        let budget = context.budget.max(1) as f64;
        let over = score.peak.saturating_sub(context.budget) as f64 / budget;
        let excess = score.excess as f64 / budget / context.index.given.len().max(1) as f64;
        score.time as f64 / self.base as f64 + self.weight * (over + 2.0 * excess)
    }

    fn look(&mut self, context: &Context<'_, '_>) {
        let (index, evaluator) = (context.index, &context.evaluator);
        self.first.clear();
        self.first.resize(index.nodes(), NONE);
        self.repeats.clear();
        for (step, &node) in self.current.iter().enumerate() {
            if self.first[node as usize] == NONE {
                self.first[node as usize] = step as u32;
            } else {
                self.repeats.push(step as u32);
            }
        }
        self.hot.clear();
        let peak = self.score.peak_step;
        let Some(&node) = self.current.get(peak as usize) else { return };
        for storage in 0..evaluator.stored.len() as u32 {
            let stored = &evaluator.stored[storage as usize];
            if evaluator.live_at(storage, peak)
                && stored.start != peak
                && stored.last > peak
                && stored.bytes > 0
                && !index.pinned[stored.group as usize]
                && !index.input_groups.row(node).contains(&stored.group)
            {
                self.hot.push((stored.group, stored.last));
            }
        }
    }

    /// One proposal; false if there was nothing to try.
    fn step(&mut self, context: &mut Context<'_, '_>) -> bool {
        let index = context.index;
        let over = self.score.peak > context.budget;
        let proposal = match (over, self.random.below(10)) {
            (true, 0..=4) | (false, 0..=1) => self.insert_at_peak(index),
            (true, 5..=6) | (false, 2..=5) => self.delete(index, context.keep_order),
            (_, 9) if !context.keep_order => self.shift_first(index),
            (_, 7) => self.insert_at_peak(index).and_then(|s| self.delete_from(index, s, context.keep_order)),
            _ => self.shift_repeat(index),
        };
        let Some(proposal) = proposal else { return false };
        let unit = self.random.unit();
        let allowed = self.cost + 3.0 * self.temperature * unit * unit * unit;
        let time: u64 = proposal.iter().map(|&n| index.time[n as usize]).sum();
        if time as f64 / self.base as f64 > allowed {
            context.evaluator.work += proposal.len() as u64 / 4;
            return true;
        }
        let score = context.evaluator.evaluate(&proposal, context.budget);
        if context.evaluator.breaks_commit_rule() {
            return true;
        }
        let cost = self.price(context, score);
        if cost <= allowed {
            (self.current, self.score, self.cost) = (proposal, score, cost);
            if score.key(context.budget) < self.best_score.key(context.budget) {
                self.best_score = score;
                self.best.clone_from(&self.current);
            }
            self.look(context);
        }
        true
    }

    fn delete(&mut self, index: &Index<'_>, keep_order: bool) -> Option<Vec<u32>> {
        if self.repeats.is_empty() {
            return None;
        }
        let step = self.repeats[self.random.below(self.repeats.len())] as usize;
        let mut sequence = self.current.clone();
        sequence.remove(step);
        Some(drop_unread(index, &sequence, keep_order))
    }

    /// Deletes a repeat of a proposal that has not been looked at.
    fn delete_from(
        &mut self,
        index: &Index<'_>,
        mut sequence: Vec<u32>,
        keep_order: bool,
    ) -> Option<Vec<u32>> {
        for _ in 0..8 {
            let step = self.random.below(sequence.len());
            let node = sequence[step];
            if sequence[..step].contains(&node) {
                sequence.remove(step);
                return Some(drop_unread(index, &sequence, keep_order));
            }
        }
        None
    }

    /// Makes something live over the peak again before its next reader, with what that needs.
    fn insert_at_peak(&mut self, index: &Index<'_>) -> Option<Vec<u32>> {
        if self.hot.is_empty() {
            return None;
        }
        let (group, last) = self.hot[self.random.below(self.hot.len())];
        let members = index.members.row(group);
        let reads =
            |step: usize| index.inputs.row(self.current[step]).iter().copied().find(|v| members.contains(v));
        let peak = self.score.peak_step as usize;
        let readers: Vec<usize> = (peak + 1..=(last as usize).min(self.current.len() - 1))
            .filter(|&s| reads(s).is_some())
            .collect();
        // Mostly before the first reader, sometimes before a later one.
        let at = if self.random.below(4) == 0 { self.random.below(readers.len().max(1)) } else { 0 };
        let at = *readers.get(at)?;
        let value = reads(at)?;
        self.insert_before(index, value, at)
    }

    /// The sequence with the value made again before step `at`: its inputs that are dead there are made again too, or now and then read
    /// from their old instance, which then lives longer.
    fn insert_before(&mut self, index: &Index<'_>, value: u32, at: usize) -> Option<Vec<u32>> {
        let live = LiveValues::new(index, &self.current, at);
        let mut burst: Vec<u32> = Vec::new();
        let mut stack = vec![(index.producer[value as usize], 0usize)];
        let mut on: Vec<u32> = vec![stack[0].0];
        while let Some(top) = stack.last_mut() {
            let node = top.0;
            if node == NONE || index.once[node as usize] || on.len() > 200 {
                return None;
            }
            let inputs = index.inputs.row(node);
            if let Some(&input) = inputs.get(top.1) {
                top.1 += 1;
                let producer = index.producer[input as usize];
                let group = index.value_group[input as usize];
                let there = group == NONE && index.value_view[input as usize] == NONE;
                let fixed = producer == NONE || there || index.once[producer as usize];
                if fixed || on.contains(&producer) || live.is_live(input) || self.random.below(8) == 0 {
                    continue;
                }
                on.push(producer);
                stack.push((producer, 0));
            } else {
                burst.push(node);
                stack.pop();
            }
        }
        let mut sequence = Vec::with_capacity(self.current.len() + burst.len());
        sequence.extend_from_slice(&self.current[..at]);
        sequence.extend(burst);
        sequence.extend_from_slice(&self.current[at..]);
        Some(sequence)
    }

    /// Moves a repeat to just before its first reader, or anywhere after its node's first run.
    fn shift_repeat(&mut self, index: &Index<'_>) -> Option<Vec<u32>> {
        if self.repeats.is_empty() {
            return None;
        }
        let step = self.repeats[self.random.below(self.repeats.len())] as usize;
        let node = self.current[step];
        let reader = (step + 1..self.current.len())
            .find(|&s| index.inputs.row(self.current[s]).iter().any(|v| index.outputs.row(node).contains(v)));
        let low = self.first[node as usize] as usize + 1;
        let to = match (self.random.below(2), reader) {
            (0, Some(reader)) => reader - 1,
            _ => {
                let reach = 1 + self.random.below(16);
                let back = self.random.below(2) == 0;
                if back {
                    step.saturating_sub(reach).max(low)
                } else {
                    (step + reach).min(self.current.len() - 1)
                }
            }
        };
        self.moved(step, to)
    }

    /// Moves a first run within what the order of first runs allows.
    fn shift_first(&mut self, index: &Index<'_>) -> Option<Vec<u32>> {
        let step = self.random.below(self.current.len());
        let node = self.current[step];
        if self.first[node as usize] as usize != step {
            return None;
        }
        let first = |n: &u32| self.first[*n as usize] as usize;
        let low = index.predecessors.row(node).iter().map(|p| first(p) + 1).max().unwrap_or(0);
        let mut high = index.successors.row(node).iter().map(first).min().unwrap_or(self.current.len()) - 1;
        // A second run would take the first one's place.
        if let Some(next) = (step + 1..=high).find(|&s| self.current[s] == node) {
            high = next - 1;
        }
        let to = match self.random.below(3) {
            0 => low,
            1 => high,
            _ => low + self.random.below(high + 1 - low),
        };
        self.moved(step, to)
    }

    fn moved(&self, from: usize, to: usize) -> Option<Vec<u32>> {
        if from == to {
            return None;
        }
        let mut sequence = self.current.clone();
        let node = sequence.remove(from);
        sequence.insert(to, node);
        Some(sequence)
    }
}

/// Whether values are read at or after a step before they are made again.
struct LiveValues {
    live: Vec<bool>,
}

impl LiveValues {
    fn new(index: &Index<'_>, sequence: &[u32], at: usize) -> Self {
        let mut live = vec![false; index.value_group.len()];
        let mut decided = vec![false; index.value_group.len()];
        for &node in &sequence[at..] {
            for &value in index.inputs.row(node) {
                if !std::mem::replace(&mut decided[value as usize], true) {
                    live[value as usize] = true;
                }
            }
            for &value in index.outputs.row(node) {
                decided[value as usize] = true;
            }
        }
        for &value in &index.kept_to_end {
            if !decided[value as usize] {
                live[value as usize] = true;
            }
        }
        Self { live }
    }

    fn is_live(&self, value: u32) -> bool {
        self.live[value as usize]
    }
}
