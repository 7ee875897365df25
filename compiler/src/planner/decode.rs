//! From decisions to a sequence of executions, and the fast exact evaluation of a sequence.
//!
//! A [`Genome`] is an order of first executions and, for every edge (group, reading node), how the group *arrives* at that node from its
//! previous use: kept, held once it has been made again at or after some point, or made again on demand. The decoder walks the order,
//! makes what is missing on demand (depth first), and drops what the genome does not carry. Every genome decodes to a sequence that is
//! lawful but for the commit rule, and there a late commit is moved behind the last reader of the old version.
//!
//! The evaluation agrees with [`super::replay`] on [`super::replay::assemble`]'s schedule; a test holds the two together.

use super::index::{Index, NONE};
use super::problem::{Bytes, Nanos};

/// How a group arrives at a use from the use before (or from its making).
pub(crate) mod arrive {
    /// Stays live.
    pub(crate) const KEEP: u32 = 0;
    /// Dropped; held from the next time it is made again.
    pub(crate) const HOLD: u32 = 1;
    /// Dropped, and made again for this use alone.
    pub(crate) const DROP: u32 = 2;
    /// `FROM + n`: dropped; held if made again at or after node `n`'s place in the order.
    pub(crate) const FROM: u32 = 3;
}

/// Decisions: an order of first executions and an arrival per edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Genome {
    pub(crate) order: Vec<u32>,
    pub(crate) arrive: Vec<u32>,
    /// Place of each node in the order; the end is at `order.len()`.
    pub(crate) place: Vec<u32>,
    /// Per group its edges by place of the reading node, the tail edge last; rows as in `Index::group_edges`.
    pub(crate) uses: Vec<u32>,
}

impl Genome {
    /// Keeps everything.
    pub(crate) fn keep_all(index: &Index<'_>, order: Vec<u32>) -> Self {
        let mut this = Self {
            order,
            arrive: vec![arrive::KEEP; index.edge_group.len()],
            place: Vec::new(),
            uses: vec![0; index.group_edges.total()],
        };
        this.reindex(index);
        this
    }

    /// Recomputes `place` and `uses` after a change of the order.
    pub(crate) fn reindex(&mut self, index: &Index<'_>) {
        let nodes = index.nodes();
        self.place.clear();
        self.place.resize(nodes + 2, NONE);
        let mut next: Vec<u32> =
            (0..index.groups() as u32).map(|g| index.group_edges.range(g).start as u32).collect();
        for (place, &node) in self.order.iter().enumerate() {
            self.place[node as usize] = place as u32;
        }
        self.place[nodes] = self.order.len() as u32;
        self.place[nodes + 1] = self.order.len() as u32 + 1;
        let end = nodes as u32;
        for &node in self.order.iter().chain([&end]) {
            for (&edge, &group) in index.edges.row(node).iter().zip(index.input_groups.row(node)) {
                self.uses[next[group as usize] as usize] = edge;
                next[group as usize] += 1;
            }
        }
        for (group, next) in next.iter().enumerate() {
            let range = index.group_edges.range(group as u32);
            self.uses[*next as usize] = index.group_edges.row(group as u32)[range.len() - 1];
        }
    }

    /// The edge by which the group arrives at its first use after `place`.
    pub(crate) fn edge_after(&self, index: &Index<'_>, group: u32, place: u32) -> u32 {
        let uses = &self.uses[index.group_edges.range(group)];
        let at = uses.partition_point(|&e| self.place[index.edge_node[e as usize] as usize] <= place);
        uses[at.min(uses.len() - 1)]
    }
}

/// Value of a sequence of executions under a budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Score {
    pub(crate) time: Nanos,
    /// With the implementations chosen for the budget.
    pub(crate) peak: Bytes,
    pub(crate) peak_step: u32,
    /// Sum over steps of the bytes over the budget.
    pub(crate) excess: u128,
}

impl Score {
    /// Fewer bytes over the budget, then less time, then a lower peak.
    pub(crate) fn key(&self, budget: Bytes) -> (Bytes, Nanos, Bytes) {
        (self.peak.saturating_sub(budget), self.time, self.peak)
    }
}

/// A storage instance in the evaluated sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub(crate) bytes: Bytes,
    pub(crate) start: u32,
    pub(crate) last: u32,
    pub(crate) group: u32,
    into: u32,
    taken: u32,
}

/// Decodes genomes and evaluates sequences; owns all scratch memory.
pub(crate) struct Evaluator<'a> {
    pub(crate) index: &'a Index<'a>,
    /// The evaluated sequence.
    pub(crate) sequence: Vec<u32>,
    /// Per step of a decoded genome: the place in the order for which it ran.
    pub(crate) places: Vec<u32>,
    pub(crate) stored: Vec<Stored>,
    /// Executed steps so far, over all evaluations: the unit of work limits.
    pub(crate) work: u64,
    /// Every node in its fastest implementation, whatever the budget.
    pub(crate) fastest_only: bool,
    current: Vec<u32>,
    available: Vec<bool>,
    hold_from: Vec<u32>,
    next_use: Vec<u32>,
    overwrites: Vec<(u32, u32, u32)>,
    change: Vec<i64>,
    burst: Vec<u32>,
    stack: Vec<(u32, u32)>,
    last_old_read: Vec<u32>,
    committed: Vec<u32>,
    time: Nanos,
    initial: Vec<Stored>,
    initial_current: Vec<u32>,
}

impl<'a> Evaluator<'a> {
    pub(crate) fn new(index: &'a Index<'a>) -> Self {
        let mut initial = Vec::new();
        let mut initial_current = vec![NONE; index.value_group.len()];
        for (group, &root) in index.group_root.iter().enumerate() {
            if index.group_node[group] == NONE {
                initial_current[root as usize] = initial.len() as u32;
                // Not read yet: no life at all.
                let (bytes, into) = (index.group_bytes[group], initial.len() as u32);
                initial.push(Stored { bytes, start: 0, last: NONE, group: group as u32, into, taken: NONE });
            }
        }
        let states = index.problem.states.len();
        Self {
            index,
            sequence: Vec::new(),
            places: Vec::new(),
            stored: Vec::new(),
            work: 0,
            fastest_only: false,
            current: Vec::new(),
            available: vec![false; index.value_group.len()],
            hold_from: vec![0; index.groups()],
            next_use: vec![0; index.groups()],
            overwrites: Vec::new(),
            change: Vec::new(),
            burst: Vec::new(),
            stack: Vec::new(),
            last_old_read: vec![NONE; states],
            committed: vec![NONE; states],
            time: 0,
            initial,
            initial_current,
        }
    }

    fn reset(&mut self) {
        self.sequence.clear();
        self.places.clear();
        self.stored.clear();
        self.stored.extend_from_slice(&self.initial);
        self.current.clear();
        self.current.extend_from_slice(&self.initial_current);
        self.overwrites.clear();
        self.last_old_read.fill(NONE);
        self.committed.fill(NONE);
        self.time = 0;
    }

    /// Decodes the genome and evaluates the sequence; none if its time exceeds `cutoff` or no move of commits makes it lawful.
    pub(crate) fn decode(&mut self, genome: &Genome, budget: Bytes, cutoff: Nanos) -> Option<Score> {
        let index = self.index;
        self.reset();
        for (value, available) in self.available.iter_mut().enumerate() {
            *available = index.producer[value] == NONE;
        }
        for group in 0..index.groups() {
            self.next_use[group] = index.group_edges.range(group as u32).start as u32;
        }
        let end = index.nodes() as u32;
        for place in 0..=genome.order.len() {
            let node = if place == genome.order.len() { end } else { genome.order[place] };
            let place = place as u32;
            self.burst.clear();
            let inputs = if node == end { &index.kept_to_end[..] } else { index.inputs.row(node) };
            for &value in inputs {
                if !self.available[value as usize] {
                    self.demand(value, place);
                    if self.time > cutoff {
                        self.work += self.sequence.len() as u64;
                        return None;
                    }
                }
            }
            if node != end {
                self.run(node, place);
            }
            for &group in index.input_groups.row(node) {
                self.next_use[group as usize] += 1;
                self.settle(genome, group, place);
            }
            for at in 0..self.burst.len() {
                let group = self.burst[at] as usize;
                if !index.pinned[group] && place < self.hold_from[group] {
                    self.drop_group(group as u32);
                }
            }
            if node != end {
                for &value in index.outputs.row(node) {
                    let group = index.value_group[value as usize];
                    if group != NONE && index.group_root[group as usize] == value {
                        self.settle(genome, group, place);
                    }
                }
            }
        }
        if self.breaks_commit_rule() {
            let moved = self.delay_commits()?;
            return Some(self.evaluate(&moved, budget));
        }
        Some(self.finish(budget))
    }

    /// Evaluates a sequence in which every input is made before it is read.
    pub(crate) fn evaluate(&mut self, sequence: &[u32], budget: Bytes) -> Score {
        self.reset();
        for &node in sequence {
            self.emit(node, 0);
        }
        self.finish(budget)
    }

    /// Whether the evaluated sequence reads an old version after its commit.
    pub(crate) fn breaks_commit_rule(&self) -> bool {
        let pairs = self.last_old_read.iter().zip(&self.committed);
        pairs.into_iter().any(|(&read, &commit)| read != NONE && commit != NONE && read > commit)
    }

    /// Whether the first executions of the evaluated sequence have the genome's order.
    pub(crate) fn keeps_order(&self, genome: &Genome) -> bool {
        let mut next = 0;
        for &node in &self.sequence {
            let place = genome.place[node as usize] as usize;
            if place > next {
                return false;
            }
            next += usize::from(place == next);
        }
        true
    }

    /// After a use or the making of a group: carry it to the next use, or drop it.
    #[inline]
    fn settle(&mut self, genome: &Genome, group: u32, place: u32) {
        let index = self.index;
        if index.pinned[group as usize] {
            return;
        }
        let edge = genome.uses[self.next_use[group as usize] as usize] as usize;
        self.hold_from[group as usize] = match genome.arrive[edge] {
            arrive::KEEP => {
                self.hold_from[group as usize] = place;
                return;
            }
            arrive::HOLD => place + 1,
            arrive::DROP => genome.place[index.edge_node[edge] as usize],
            from => genome.place[(from - arrive::FROM) as usize],
        };
        self.drop_group(group);
    }

    #[inline]
    fn drop_group(&mut self, group: u32) {
        for &value in self.index.members.row(group) {
            self.available[value as usize] = false;
        }
    }

    /// Makes a missing value, and first whatever that needs, depth first.
    fn demand(&mut self, value: u32, place: u32) {
        let index = self.index;
        self.stack.push((index.producer[value as usize], 0));
        while let Some(&mut (node, ref mut at)) = self.stack.last_mut() {
            let inputs = index.inputs.row(node);
            let missing = inputs[*at as usize..].iter().position(|&v| !self.available[v as usize]);
            if let Some(skip) = missing {
                *at += skip as u32;
                let value = inputs[*at as usize];
                self.stack.push((index.producer[value as usize], 0));
                continue;
            }
            self.stack.pop();
            // A nested demand may have made it in the meantime.
            if index.outputs.row(node).iter().all(|&v| self.available[v as usize]) {
                continue;
            }
            self.run(node, place);
            for &value in index.outputs.row(node) {
                let group = index.value_group[value as usize];
                if group != NONE && index.group_root[group as usize] == value {
                    self.burst.push(group);
                }
            }
        }
    }

    #[inline]
    fn run(&mut self, node: u32, place: u32) {
        let index = self.index;
        for &value in index.outputs.row(node) {
            let group = index.value_group[value as usize];
            if group != NONE
                && index.group_root[group as usize] == value
                && index.members.row(group).len() > 1
            {
                self.drop_group(group);
            }
            self.available[value as usize] = true;
        }
        self.emit(node, place);
    }

    /// Appends an execution: reads, new storages, candidates for overwriting.
    #[inline]
    fn emit(&mut self, node: u32, place: u32) {
        let index = self.index;
        let step = self.sequence.len() as u32;
        self.sequence.push(node);
        self.places.push(place);
        self.time += index.time[node as usize];
        let inputs = index.inputs.row(node);
        for &value in inputs {
            let storage = self.current[value as usize];
            if storage != NONE {
                self.stored[storage as usize].last = step;
            }
        }
        for &value in index.outputs.row(node) {
            let view = index.value_view[value as usize];
            let group = index.value_group[value as usize];
            self.current[value as usize] = if view != NONE {
                self.current[view as usize]
            } else if group == NONE {
                NONE
            } else {
                let id = self.stored.len() as u32;
                let bytes = index.group_bytes[group as usize];
                self.stored.push(Stored { bytes, start: step, last: step, group, into: id, taken: NONE });
                id
            };
        }
        for pair in index.overwrites.row(node).chunks_exact(2) {
            let read = self.current[pair[1] as usize];
            if inputs.iter().filter(|&&v| self.current[v as usize] == read).count() == 1 {
                self.overwrites.push((step, self.current[pair[0] as usize], read));
            }
        }
        for &state in index.reads_state.row(node) {
            self.last_old_read[state as usize] = step;
        }
        for &state in index.commits.row(node) {
            self.committed[state as usize] = step;
        }
    }

    /// Lifetimes are known: overwrites, live bytes, implementations.
    fn finish(&mut self, budget: Bytes) -> Score {
        let index = self.index;
        let steps = self.sequence.len();
        self.work += steps as u64;
        for &value in &index.kept_to_end {
            let storage = self.current[value as usize];
            if storage != NONE {
                // Beyond every step, so that nothing overwrites it.
                self.stored[storage as usize].last = steps as u32;
            }
        }
        for at in 0..self.overwrites.len() {
            let (step, made, read) = self.overwrites[at];
            let root = self.root(read);
            let target = self.stored[root as usize];
            if target.last == step && target.taken != step && self.stored[made as usize].into == made {
                self.stored[root as usize].last = self.stored[made as usize].last;
                self.stored[root as usize].taken = step;
                self.stored[made as usize].into = root;
            }
        }
        self.change.clear();
        self.change.resize(steps + 2, 0);
        for (id, stored) in self.stored.iter().enumerate() {
            if stored.into == id as u32 && stored.last != NONE {
                self.change[stored.start as usize] += stored.bytes as i64;
                self.change[stored.last as usize + 1] -= stored.bytes as i64;
            }
        }
        let mut live = index.problem.resident as i64;
        let mut score = Score { time: self.time, peak: index.problem.resident, ..Score::default() };
        for (step, &node) in self.sequence.iter().enumerate() {
            live += self.change[step];
            let mut total = live as Bytes + index.workspace[node as usize];
            if total > budget && index.choice[node as usize] && !self.fastest_only {
                let (workspace, time) = cheaper_scratch(index, node, budget.saturating_sub(live as Bytes));
                total = live as Bytes + workspace;
                score.time += time - index.time[node as usize];
            }
            if total > score.peak {
                (score.peak, score.peak_step) = (total, step as u32);
            }
            score.excess += u128::from(total.saturating_sub(budget));
        }
        score
    }

    /// Live bytes at each step of the sequence evaluated last, with the scratch memory of the fastest implementations.
    pub(crate) fn live_bytes(&self) -> Vec<Bytes> {
        let mut live = self.index.problem.resident as i64;
        let steps = self.sequence.iter().zip(&self.change);
        steps
            .map(|(&node, &change)| {
                live += change;
                live as Bytes + self.index.workspace[node as usize]
            })
            .collect()
    }

    fn root(&self, mut storage: u32) -> u32 {
        while self.stored[storage as usize].into != storage {
            storage = self.stored[storage as usize].into;
        }
        storage
    }

    /// Whether the storage has its own life (not taken over from another) and is live at the step.
    pub(crate) fn live_at(&self, storage: u32, step: u32) -> bool {
        let stored = &self.stored[storage as usize];
        stored.into == storage && stored.last != NONE && stored.start <= step && step <= stored.last
    }

    /// The sequence with each early commit moved behind the last reader of the old version, or none if something else needs the
    /// commit earlier.
    pub(crate) fn delay_commits(&self) -> Option<Vec<u32>> {
        let index = self.index;
        let mut until: Vec<u32> = vec![NONE; index.nodes()];
        for (state, s) in index.problem.states.iter().enumerate() {
            let (read, commit) = (self.last_old_read[state], self.committed[state]);
            if read != NONE && commit != NONE && read > commit {
                let u = &mut until[s.commit as usize];
                *u = if *u == NONE { read } else { (*u).max(read) };
            }
        }
        let mut parked: Vec<(u32, u32)> = Vec::new();
        let mut out = Vec::with_capacity(self.sequence.len());
        for (step, &node) in self.sequence.iter().enumerate() {
            let step = step as u32;
            // What reads a parked node's output is parked with it, if it runs only once.
            let waits =
                parked.iter().filter(|p| index.predecessors.row(node).contains(&p.0)).map(|p| p.1).max();
            let own = until[node as usize];
            let target = match (waits, own) {
                (Some(w), NONE) => Some(w),
                (Some(w), o) => Some(w.max(o)),
                (None, NONE) => None,
                (None, o) => Some(o),
            };
            match target {
                Some(target) if target >= step => {
                    if !index.once[node as usize] {
                        return None;
                    }
                    parked.push((node, target));
                }
                _ => out.push(node),
            }
            let ready = |p: &(u32, u32)| p.1 == step;
            out.extend(parked.iter().filter(|p| ready(p)).map(|p| p.0));
            parked.retain(|p| !ready(p));
        }
        Some(out)
    }
}

/// Workspace and time of the first implementation within `room`, or of the first with the least workspace.
fn cheaper_scratch(index: &Index<'_>, node: u32, room: Bytes) -> (Bytes, Nanos) {
    let rounded = |w: Bytes| w.next_multiple_of(index.problem.alignment) + index.reserved(node);
    let implementations = &index.problem.nodes[node as usize].implementations;
    let least = implementations.iter().min_by_key(|i| i.workspace);
    let fit = implementations.iter().find(|i| rounded(i.workspace) <= room).or(least);
    fit.map_or((0, 0), |i| (rounded(i.workspace), i.time))
}
