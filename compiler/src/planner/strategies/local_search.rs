//! Local search over arrivals and order, each step judged by decoding and exact evaluation.
//!
//! Threshold annealing from a candidate: a move changes how one or a few groups arrive at a use, or the place of one node in the order.
//! Moves look where it matters: at what is live at the peak, and at what is made again. Limits count executed steps and the arithmetic
//! uses no library functions, so that the same inputs give the same plan everywhere.

use super::super::decode::{Genome, Score, arrive};
use super::super::index::Index;
use super::stages::Stages;
use super::{Candidate, Context, Random};

/// Temperature falls in this many stages.
const STAGES: u64 = 64;
/// By this factor each.
const COOLING: f64 = 0.92;

/// Improves a candidate with at most `work` executed steps. The answer is never worse than the start.
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
    let mut stages = Stages::new(STAGES, 16);
    while context.evaluator.work < begin + work {
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
        search.step(context);
        if search.is_done() {
            break;
        }
    }
    let strategy = start.strategy;
    match context.decode(strategy, search.best, u64::MAX) {
        Some(found) => context.better(start.clone(), found),
        None => start.clone(),
    }
}

struct Search {
    random: Random,
    current: Genome,
    score: Score,
    cost: f64,
    best: Genome,
    best_score: Score,
    temperature: f64,
    /// Weight of bytes over the budget.
    weight: f64,
    /// Edges over the peak (edge, place of the peak).
    hot: Vec<(u32, u32)>,
    /// Edges served by repeated executions (edge, place of the execution).
    redone: Vec<(u32, u32)>,
    undo: Vec<(u32, u32)>,
    base: u64,
    idle: u32,
}

impl Search {
    fn new(context: &mut Context<'_, '_>, start: &Candidate, heat: f64, salt: u64) -> Self {
        let index = context.index;
        let mut this = Self {
            random: Random::new(context.seed ^ salt.wrapping_mul(0x9E37_79B9)),
            current: start.genome.clone(),
            score: start.score,
            cost: f64::INFINITY,
            best: start.genome.clone(),
            best_score: start.score,
            temperature: heat * index.typical_time(),
            weight: 4.0,
            hot: Vec::new(),
            redone: Vec::new(),
            undo: Vec::new(),
            base: index.base_time.max(1),
            idle: 0,
        };
        this.restart(context);
        this
    }

    /// Zero extra time within the budget: nothing to improve.
    fn is_done(&self) -> bool {
        (self.best_score.time <= self.base && self.redone.is_empty() && self.hot.is_empty())
            || self.idle > 100_000
    }

    /// Goes on from the best so far.
    fn restart(&mut self, context: &mut Context<'_, '_>) {
        self.current = self.best.clone();
        if let Some(score) = context.evaluator.decode(&self.current, context.budget, u64::MAX) {
            self.score = score;
            self.cost = self.price(context, score);
            self.look(context);
        }
    }

    fn price(&self, context: &Context<'_, '_>, score: Score) -> f64 {
        let budget = context.budget.max(1) as f64;
        let extra = score.time as f64 / self.base as f64;
        let over = score.peak.saturating_sub(context.budget) as f64 / budget;
        let excess = score.excess as f64 / budget / context.index.given.len().max(1) as f64;
        extra + self.weight * (over + 2.0 * excess)
    }

    /// Notes what is live at the peak and what is made again in the sequence just evaluated.
    fn look(&mut self, context: &Context<'_, '_>) {
        let (index, evaluator) = (context.index, &context.evaluator);
        self.hot.clear();
        self.redone.clear();
        let peak = self.score.peak_step;
        let Some(&place) = evaluator.places.get(peak as usize) else { return };
        let node = evaluator.sequence[peak as usize];
        for storage in 0..evaluator.stored.len() as u32 {
            let stored = &evaluator.stored[storage as usize];
            let group = stored.group;
            if index.pinned[group as usize] || stored.bytes == 0 {
                continue;
            }
            if evaluator.live_at(storage, peak)
                && stored.start != peak
                && !index.input_groups.row(node).contains(&group)
            {
                self.hot.push((self.current.edge_after(index, group, place.saturating_sub(1)), place));
            }
            let at = evaluator.places[stored.start as usize];
            if self.current.place[index.group_node[group as usize] as usize] != at {
                self.redone.push((self.current.edge_after(index, group, at.saturating_sub(1)), at));
            }
        }
    }

    fn set(&mut self, edge: u32, how: u32) {
        let old = std::mem::replace(&mut self.current.arrive[edge as usize], how);
        self.undo.push((edge, old));
    }

    fn step(&mut self, context: &mut Context<'_, '_>) {
        let index = context.index;
        self.undo.clear();
        let over = self.score.peak > context.budget;
        let mut order_before = None;
        if !context.keep_order && self.random.below(8) == 0 {
            order_before = self.move_node(index);
            if order_before.is_none() {
                context.evaluator.work += 1;
                return;
            }
        } else {
            match (over, self.random.below(8)) {
                (true, 0..=4) | (false, 0) => self.drop_hot(index),
                (true, 5) | (false, 1..=3) => self.keep_redone(),
                (_, 6) => self.shift_checkpoint(index),
                (false, 4) => self.hold_from(index),
                _ => {
                    self.drop_hot(index);
                    self.keep_redone();
                }
            }
            if self.undo.is_empty() {
                self.random_edge(index);
            }
        }
        self.undo.retain(|&(e, old)| self.current.arrive[e as usize] != old);
        if self.undo.is_empty() && order_before.is_none() {
            context.evaluator.work += 1;
            self.idle += 1;
            return;
        }
        self.idle = 0;
        let unit = self.random.unit();
        let allowed = self.cost + 3.0 * self.temperature * unit * unit * unit;
        let cutoff = (allowed * self.base as f64) as u64 + 1;
        let score = context.evaluator.decode(&self.current, context.budget, cutoff);
        let lawful = score.is_some()
            && !context.evaluator.breaks_commit_rule()
            && (!context.keep_order || context.evaluator.keeps_order(&self.current));
        if let (Some(score), true) = (score, lawful) {
            let cost = self.price(context, score);
            if cost <= allowed {
                (self.score, self.cost) = (score, cost);
                if score.key(context.budget) < self.best_score.key(context.budget) {
                    self.best_score = score;
                    self.best = self.current.clone();
                }
                self.look(context);
                return;
            }
        }
        if let Some(genome) = order_before {
            self.current = genome;
        }
        while let Some((edge, old)) = self.undo.pop() {
            self.current.arrive[edge as usize] = old;
        }
    }

    /// Something live at the peak is dropped over it.
    fn drop_hot(&mut self, index: &Index<'_>) {
        if self.hot.is_empty() {
            return;
        }
        let (edge, place) = self.hot[self.random.below(self.hot.len())];
        let next = self.current.order.get(place as usize + 1).copied();
        let reader = self.current.place[index.edge_node[edge as usize] as usize];
        let how = match (self.current.arrive[edge as usize], next) {
            (arrive::KEEP, _) if self.random.below(4) > 0 => arrive::HOLD,
            (_, Some(next)) if reader > place + 1 && self.random.below(4) > 0 => arrive::FROM + next,
            _ => arrive::DROP,
        };
        self.set(edge, how);
    }

    /// Something made again is kept or held earlier.
    fn keep_redone(&mut self) {
        if self.redone.is_empty() {
            return;
        }
        let (edge, place) = self.redone[self.random.below(self.redone.len())];
        let how = match self.current.arrive[edge as usize] {
            arrive::KEEP | arrive::HOLD => arrive::KEEP,
            _ if self.random.below(2) == 0 => arrive::KEEP,
            _ => match self.current.order.get(place as usize) {
                Some(&node) if self.random.below(2) == 0 => arrive::FROM + node,
                _ => arrive::HOLD,
            },
        };
        self.set(edge, how);
    }

    /// The point from which something made again is held moves to before or after one of its repeated executions.
    fn hold_from(&mut self, index: &Index<'_>) {
        if self.redone.is_empty() {
            return;
        }
        let (edge, place) = self.redone[self.random.below(self.redone.len())];
        let at = place as usize + self.random.below(2);
        let reader = self.current.place[index.edge_node[edge as usize] as usize] as usize;
        let how = match self.current.order.get(at) {
            Some(&node) if at < reader => arrive::FROM + node,
            _ => arrive::DROP,
        };
        self.set(edge, how);
    }

    /// A group that is kept over the peak is dropped, and a neighbour kept instead, or the reverse.
    fn shift_checkpoint(&mut self, index: &Index<'_>) {
        let from_hot = self.random.below(2) == 0;
        let list = if from_hot { &self.hot } else { &self.redone };
        if list.is_empty() {
            return;
        }
        let (edge, place) = list[self.random.below(list.len())];
        let group = index.edge_group[edge as usize];
        let producer = index.group_node[group as usize];
        // A neighbour: read or made by the producer, or made by a reader.
        let near: Vec<u32> = if self.random.below(2) == 0 {
            index.input_groups.row(producer).to_vec()
        } else {
            let readers = index.group_edges.row(group).iter().map(|&e| index.edge_node[e as usize]);
            let readers =
                readers.filter(|&n| (n as usize) < index.nodes() && self.current.place[n as usize] < place);
            let made =
                readers.flat_map(|n| index.outputs.row(n).iter().map(|&v| index.value_group[v as usize]));
            made.filter(|&g| g != super::super::index::NONE && g != group).collect()
        };
        if near.is_empty() {
            return;
        }
        let other = near[self.random.below(near.len())];
        if index.pinned[other as usize] {
            return;
        }
        let there = self.current.edge_after(index, other, place.saturating_sub(1));
        let (mine, theirs) = (self.current.arrive[edge as usize], self.current.arrive[there as usize]);
        if mine == theirs {
            self.set(edge, if mine == arrive::KEEP { arrive::HOLD } else { arrive::KEEP });
        } else {
            self.set(edge, if from_hot { arrive::HOLD } else { arrive::KEEP });
            self.set(there, if from_hot { arrive::KEEP } else { arrive::HOLD });
        }
    }

    fn random_edge(&mut self, index: &Index<'_>) {
        if index.edge_group.is_empty() {
            return;
        }
        let edge = self.random.below(index.edge_group.len()) as u32;
        if index.pinned[index.edge_group[edge as usize] as usize] {
            return;
        }
        let how = self.random.below(3) as u32;
        self.set(edge, how);
    }

    /// Moves a node to one end of its window, beside its neighbour, or anywhere between. Returns the genome before.
    fn move_node(&mut self, index: &Index<'_>) -> Option<Genome> {
        if self.current.order.is_empty() {
            return None;
        }
        let place = if !self.hot.is_empty() && self.random.below(2) == 0 {
            let (edge, _) = self.hot[self.random.below(self.hot.len())];
            let producer = index.group_node[index.edge_group[edge as usize] as usize];
            let node = if self.random.below(2) == 0 { producer } else { index.edge_node[edge as usize] };
            self.current.place[node as usize].min(self.current.order.len() as u32 - 1)
        } else {
            self.random.below(self.current.order.len()) as u32
        };
        let node = self.current.order[place as usize];
        let (low, high) = window(index, &self.current, node);
        let to = match self.random.below(3) {
            0 => low,
            1 => high,
            _ => low + self.random.below((high - low + 1) as usize) as u32,
        };
        if to == place {
            return None;
        }
        let before = self.current.clone();
        let node = self.current.order.remove(place as usize);
        self.current.order.insert(to as usize, node);
        self.current.reindex(index);
        Some(before)
    }
}

/// The places that the node may take while all others keep their order.
fn window(index: &Index<'_>, genome: &Genome, node: u32) -> (u32, u32) {
    let low = index.predecessors.row(node).iter().map(|&p| genome.place[p as usize] + 1).max().unwrap_or(0);
    let last = genome.order.len() as u32 - 1;
    let high = index.successors.row(node).iter().map(|&s| genome.place[s as usize] - 1).min().unwrap_or(last);
    (low, high)
}
