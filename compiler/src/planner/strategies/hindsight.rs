//! Online traces, read with hindsight.
//!
//! An online run evicts when memory is short and makes again what is missing. Here it walks the order of first executions and evicts by
//! the next use, which a plan knows and an online run does not. The trace is a candidate as it is, what it held without need being
//! trimmed by exact lifetimes, and once more turned into decisions.

use super::super::decode::{Genome, arrive};
use super::super::index::{Index, NONE};
use super::super::problem::{Bytes, Nanos};
use super::{Candidate, Context, sequence_search};

/// Two candidates per order and share of the budget that the online run may use.
pub(crate) fn run(context: &mut Context<'_, '_>) -> Vec<Candidate> {
    let mut out = Vec::new();
    let index = context.index;
    if index.given.len() > 6000 {
        return out;
    }
    let orders: Vec<Vec<u32>> = context.orders.iter().take(2).cloned().collect();
    let spare = context.budget.saturating_sub(index.problem.resident);
    // Each eviction looks at all that is live, so that long chains of small values would take as long as the whole search.
    let end = context.evaluator.work + context.work / 4;
    for order in &orders {
        for part in [16, 15, 14, 13, 12] {
            let budget = index.problem.resident + spare / 16 * part + spare % 16;
            let mut online = Online::new(index, order, budget);
            online.work = end.saturating_sub(context.evaluator.work);
            let (trace, left) = online.run();
            context.evaluator.work = end.saturating_sub(left).max(context.evaluator.work);
            let Some(trace) = trace else { continue };
            context.evaluator.work += 4 * trace.len() as u64;
            let genome = from_sequence(index, &trace);
            let trace = sequence_search::drop_unread(index, &trace, context.keep_order);
            out.extend(context.sequence("hindsight", trace));
            out.extend(context.decode("hindsight decoded", genome, index.base_time.saturating_mul(8)));
        }
    }
    out
}

/// The decisions behind a sequence of executions: its first executions are the order, and each use tells how its group arrived.
pub(crate) fn from_sequence(index: &Index<'_>, sequence: &[u32]) -> Genome {
    let mut first = vec![true; index.nodes()];
    let order: Vec<u32> =
        sequence.iter().copied().filter(|&n| std::mem::replace(&mut first[n as usize], false)).collect();
    debug_assert!(index.is_order(&order), "first executions out of order");
    let mut genome = Genome::keep_all(index, order);
    // Per group: place at which its present instance was made, and place of the last use that was a first execution.
    let mut made = vec![0u32; index.groups()];
    let mut used = vec![NONE; index.groups()];
    let mut place = 0u32;
    let end = index.nodes() as u32;
    for &node in sequence.iter().chain([&end]) {
        let is_first = genome.place[node as usize] == place;
        if is_first {
            let pairs = index.input_groups.row(node).iter().zip(index.edges.row(node));
            for (&group, &edge) in pairs {
                let g = group as usize;
                let before = if used[g] == NONE {
                    genome.place.get(index.group_node[g] as usize)
                } else {
                    Some(&used[g])
                };
                let before = before.copied().unwrap_or(0);
                if !index.pinned[g] && made[g] > before {
                    genome.arrive[edge as usize] = if made[g] == place {
                        arrive::DROP
                    } else {
                        arrive::FROM + genome.order[made[g] as usize]
                    };
                }
                used[g] = place;
            }
        } else {
            // Read again after its last use in the order: the tail edge tells whether it was still the old instance.
            for &group in index.input_groups.row(node) {
                let g = group as usize;
                let edge = genome.edge_after(index, group, place.saturating_sub(1)) as usize;
                let is_tail = index.edge_node[edge] == end + 1;
                if is_tail && !index.pinned[g] && made[g] > used[g] && used[g] != NONE {
                    let from = genome.order.get(made[g] as usize).map_or(arrive::HOLD, |n| arrive::FROM + n);
                    if genome.arrive[edge] == arrive::KEEP {
                        genome.arrive[edge] = from;
                    }
                }
            }
        }
        if node != end {
            for &value in index.outputs.row(node) {
                let group = index.value_group[value as usize];
                if group != NONE && index.group_root[group as usize] == value {
                    made[group as usize] = place;
                }
            }
        }
        place += u32::from(is_first);
    }
    genome
}

/// An online run over an order.
struct Online<'i, 'a> {
    index: &'i Index<'a>,
    order: &'i [u32],
    keep: Genome,
    budget: Bytes,
    available: Vec<bool>,
    /// Storage present, per group; bytes of all.
    present: Vec<bool>,
    pool: Vec<u32>,
    used: Bytes,
    locks: Vec<u32>,
    /// Start time of each place in a run without recomputation.
    begins: Vec<Nanos>,
    next_use: Vec<u32>,
    trace: Vec<u32>,
    place: u32,
    /// Groups that may still be looked at.
    work: u64,
}

impl<'i, 'a> Online<'i, 'a> {
    fn new(index: &'i Index<'a>, order: &'i [u32], budget: Bytes) -> Self {
        let keep = Genome::keep_all(index, order.to_vec());
        let mut begins: Vec<Nanos> = vec![0];
        for &n in order {
            begins.push(begins[begins.len() - 1] + index.time[n as usize].max(1));
        }
        begins.push(begins[begins.len() - 1].saturating_mul(4));
        let staged: Bytes =
            (0..index.groups()).filter(|&g| index.group_node[g] == NONE).map(|g| index.group_bytes[g]).sum();
        Self {
            keep,
            budget,
            available: index.producer.iter().map(|&p| p == NONE).collect(),
            present: vec![false; index.groups()],
            pool: Vec::new(),
            used: index.problem.resident + staged,
            locks: vec![0; index.groups()],
            begins,
            next_use: (0..index.groups() as u32).map(|g| index.group_edges.range(g).start as u32).collect(),
            trace: Vec::new(),
            place: 0,
            work: u64::MAX,
            index,
            order,
        }
    }

    /// The trace, or none if it runs away or out of work; and the work left.
    fn run(mut self) -> (Option<Vec<u32>>, u64) {
        let finished = self.walk();
        (finished.then_some(self.trace), self.work)
    }

    fn walk(&mut self) -> bool {
        let index = self.index;
        let end = index.nodes() as u32;
        let limit = 12 * index.given.len() + 64;
        for place in 0..=self.order.len() {
            self.place = place as u32;
            let node = self.order.get(place).copied().unwrap_or(end);
            let inputs = if node == end { &index.kept_to_end[..] } else { index.inputs.row(node) };
            self.lock(node, 1);
            for &value in inputs {
                if !self.available[value as usize] && !self.demand(value, limit) {
                    return false;
                }
            }
            if self.work == 0 {
                return false;
            }
            if node != end {
                self.execute(node);
            }
            self.lock(node, -1);
            for &group in index.input_groups.row(node) {
                self.next_use[group as usize] += 1;
                self.release(group);
            }
            if node != end {
                for group in self.made_groups(node) {
                    self.release(group);
                }
            }
        }
        true
    }

    fn made_groups(&self, node: u32) -> Vec<u32> {
        let index = self.index;
        let groups = index.outputs.row(node).iter().map(|&v| (v, index.value_group[v as usize]));
        groups.filter(|&(v, g)| g != NONE && index.group_root[g as usize] == v).map(|p| p.1).collect()
    }

    fn lock(&mut self, node: u32, by: i32) {
        for &group in self.index.input_groups.row(node) {
            self.locks[group as usize] = self.locks[group as usize].wrapping_add_signed(by);
        }
    }

    /// Frees a group that has no use left in the order.
    fn release(&mut self, group: u32) {
        let range = self.index.group_edges.range(group);
        let dead = self.next_use[group as usize] as usize + 1 == range.end;
        if dead
            && self.present[group as usize]
            && self.locks[group as usize] == 0
            && !self.index.pinned[group as usize]
        {
            self.evict(group);
        }
    }

    fn evict(&mut self, group: u32) {
        self.present[group as usize] = false;
        self.used -= self.index.group_bytes[group as usize];
        self.pool.retain(|&g| g != group);
        for &value in self.index.members.row(group) {
            self.available[value as usize] = false;
        }
    }

    fn demand(&mut self, value: u32, limit: usize) -> bool {
        let index = self.index;
        let mut stack = vec![index.producer[value as usize]];
        self.lock(stack[0], 1);
        while let Some(&node) = stack.last() {
            if self.trace.len() > limit || self.work == 0 {
                return false;
            }
            let missing = index.inputs.row(node).iter().find(|&&v| !self.available[v as usize]);
            if let Some(&missing) = missing {
                let next = index.producer[missing as usize];
                self.lock(next, 1);
                stack.push(next);
                continue;
            }
            stack.pop();
            self.execute(node);
            self.lock(node, -1);
            // Not wanted again in the order: it stays for the present demand, and goes when memory is short.
        }
        true
    }

    fn execute(&mut self, node: u32) {
        let index = self.index;
        let made = self.made_groups(node);
        let fresh = made.iter().filter(|&&g| !self.present[g as usize]);
        let need: Bytes =
            fresh.map(|&g| index.group_bytes[g as usize]).sum::<Bytes>() + index.workspace[node as usize];
        while self.used + need > self.budget {
            self.work = self.work.saturating_sub(4 * self.pool.len() as u64);
            let Some(group) = self.victim() else { break };
            self.evict(group);
        }
        for group in made {
            if !std::mem::replace(&mut self.present[group as usize], true) {
                self.used += index.group_bytes[group as usize];
                if !index.pinned[group as usize] {
                    self.pool.push(group);
                }
            }
            for &value in index.members.row(group) {
                self.available[value as usize] = false;
            }
        }
        for &value in index.outputs.row(node) {
            self.available[value as usize] = true;
        }
        self.trace.push(node);
    }

    fn victim(&self) -> Option<u32> {
        let index = self.index;
        let free =
            self.pool.iter().filter(|&&g| self.locks[g as usize] == 0 && index.group_bytes[g as usize] > 0);
        let scored = free.map(|&g| (self.score(g), g));
        scored.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))).map(|s| s.1)
    }

    /// Lowest goes first: the least cost of making again over bytes and time to the next use.
    fn score(&self, group: u32) -> f64 {
        let index = self.index;
        let edge = self.keep.uses[self.next_use[group as usize] as usize];
        let at = self.keep.place[index.edge_node[edge as usize] as usize] as usize;
        let until = self.begins[at] - self.begins[self.place as usize];
        self.cost(group) / (index.group_bytes[group as usize] as f64 * (until + 1) as f64)
    }

    /// Time to make the group again: its node and the missing ones above it, up to a few.
    fn cost(&self, group: u32) -> f64 {
        let index = self.index;
        let mut sum = 0;
        let mut seen: Vec<u32> = vec![index.group_node[group as usize]];
        let mut at = 0;
        while at < seen.len() && seen.len() < 24 {
            let node = seen[at];
            at += 1;
            sum += index.time[node as usize].max(1);
            for &value in index.inputs.row(node) {
                let producer = index.producer[value as usize];
                if !self.available[value as usize] && !seen.contains(&producer) {
                    seen.push(producer);
                }
            }
        }
        sum as f64
    }
}
