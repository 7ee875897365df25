//! Some moments of a schedule at once, as an integer program.
//!
//! Take first executions b1, b2, ... (*moments*) of the schedule at hand, and some groups that may be decided anew. For each such group
//! and moment, *kept* says that it is live through the moment; for each node that makes one and each interval behind a moment, *again*
//! says that it runs again there. Then
//!
//! ```text
//! minimise   time(n) * again(n, i)
//! such that  a group read in interval i:       kept(g, i) or again(maker, i)
//!            a node run again in i that reads g: kept(g, i) or again(maker, i)
//!            kept(g, i + 1):                   kept(g, i) or again(maker, i), if g is made before moment i
//!            bytes kept through moment i:      at most what the budget leaves beside everything else that is live there
//! ```
//!
//! With one moment this is the program of a cut. What it does not see is how a burst of recomputation fills the memory inside an
//! interval. Such bursts come up when the answer is replayed exactly; then their moment is added, and a row for the node at the burst's
//! peak: its working set fits beside what is kept through.

use super::super::decode::Evaluator;
use super::super::index::{Index, NONE};
use super::super::integer_program::{Column, Program};
use super::super::problem::{Bytes, Nanos};

/// Costs are scaled to this for all nodes together: the solver's tolerances are absolute.
const SCALE: f64 = 100.0;

/// The schedule at hand: what is live where.
pub(crate) struct Scene<'i, 'a> {
    pub(crate) index: &'i Index<'a>,
    pub(crate) sequence: Vec<u32>,
    /// First executions in order.
    pub(crate) order: Vec<u32>,
    /// Place of each node in that order.
    pub(crate) place: Vec<u32>,
    /// Step of each place.
    steps: Vec<u32>,
    /// Live bytes at each step.
    pub(crate) live: Vec<Bytes>,
    /// Per group: steps at which an instance is made and read last.
    lives: Vec<Vec<(u32, u32)>>,
}

impl<'i, 'a> Scene<'i, 'a> {
    pub(crate) fn new(
        index: &'i Index<'a>,
        evaluator: &mut Evaluator<'_>,
        sequence: &[u32],
        budget: Bytes,
    ) -> Self {
        evaluator.evaluate(sequence, budget);
        let live = evaluator.live_bytes();
        let mut place = vec![NONE; index.nodes()];
        let (mut order, mut steps) = (Vec::new(), Vec::new());
        let mut lives: Vec<Vec<(u32, u32)>> = vec![Vec::new(); index.groups()];
        for (step, &node) in sequence.iter().enumerate() {
            let step = step as u32;
            if place[node as usize] == NONE {
                place[node as usize] = order.len() as u32;
                order.push(node);
                steps.push(step);
            }
            for &group in index.input_groups.row(node) {
                if let Some(life) = lives[group as usize].last_mut() {
                    life.1 = step;
                }
            }
            for &value in index.outputs.row(node) {
                let group = index.value_group[value as usize];
                if group != NONE && index.group_root[group as usize] == value {
                    lives[group as usize].push((step, step));
                }
            }
        }
        for &value in &index.kept_to_end {
            let group = index.value_group[value as usize];
            if group != NONE
                && let Some(life) = lives[group as usize].last_mut()
            {
                life.1 = sequence.len() as u32;
            }
        }
        Self { index, sequence: sequence.to_vec(), order, place, steps, live, lives }
    }

    /// The step of a moment.
    pub(crate) fn step(&self, moment: u32) -> u32 {
        self.steps[moment as usize]
    }

    /// The place for whose sake a step runs: that of the next first execution.
    pub(crate) fn place_of(&self, step: u32) -> u32 {
        (self.steps.partition_point(|&s| s < step) as u32).min((self.order.len() as u32).saturating_sub(1))
    }

    /// Whether a group made before a moment is live there.
    pub(crate) fn is_live(&self, group: u32, moment: u32) -> bool {
        let step = self.step(moment);
        self.lives[group as usize].iter().any(|l| l.0 < step && l.1 >= step)
    }

    /// Whether a group can be read between two steps.
    fn is_there(&self, group: u32, from: u32, to: u32) -> bool {
        self.index.group_node[group as usize] == NONE
            || self.lives[group as usize].iter().any(|l| l.0 < to && l.1 >= from)
    }

    /// Times a group is made.
    pub(crate) fn instances(&self, group: u32) -> usize {
        self.lives[group as usize].len()
    }
}

/// A node run again whose working set must fit: in the burst for the sake of a moment's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Burst {
    /// The moment behind the burst.
    pub(crate) moment: u32,
    /// The node at its peak.
    pub(crate) node: u32,
    /// What was made in the burst before counts, too.
    pub(crate) heaped: bool,
}

/// What is asked: moments, groups to decide, bursts, and bytes to leave free.
#[derive(Clone, Debug, Default)]
pub(crate) struct Question {
    /// Places, rising.
    pub(crate) moments: Vec<u32>,
    /// Groups, rising.
    pub(crate) groups: Vec<u32>,
    pub(crate) bursts: Vec<Burst>,
    /// (place, bytes).
    pub(crate) slack: Vec<(u32, Bytes)>,
}

/// The program of a question, and what its variables mean.
pub(crate) struct Moments<'s, 'i, 'a> {
    scene: &'s Scene<'i, 'a>,
    question: &'s Question,
    budget: Bytes,
    pub(crate) program: Program,
    /// Index in the question's groups, per group.
    chosen: Vec<u32>,
    /// Nodes that make members of chosen groups.
    makes: Vec<bool>,
    /// Per moment and chosen group: what says that it is kept.
    kept: Vec<Vec<Kept>>,
    /// Per moment, by node: run again behind it.
    again: Vec<std::collections::BTreeMap<u32, Column>>,
    /// Time of what the schedule at hand makes again of the chosen groups.
    pub(crate) present: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kept {
    /// Not made yet.
    Later,
    /// Read by the moment's node.
    Read,
    Variable(Column),
}

impl<'s, 'i, 'a> Moments<'s, 'i, 'a> {
    pub(crate) fn new(scene: &'s Scene<'i, 'a>, question: &'s Question, budget: Bytes) -> Self {
        let index = scene.index;
        let mut chosen = vec![NONE; index.groups()];
        let mut makes = vec![false; index.nodes()];
        for (position, &group) in question.groups.iter().enumerate() {
            chosen[group as usize] = position as u32;
            for &value in index.members.row(group) {
                makes[index.producer[value as usize] as usize] = true;
            }
        }
        let mut seen = vec![false; index.nodes()];
        let again = scene
            .sequence
            .iter()
            .filter(|&&n| std::mem::replace(&mut seen[n as usize], true) && makes[n as usize]);
        let present = again.map(|&n| index.time[n as usize]).sum();
        let mut this = Self {
            scene,
            question,
            budget,
            program: Program::default(),
            chosen,
            makes,
            kept: Vec::new(),
            again: Vec::new(),
            present,
        };
        this.declare();
        this.demands();
        this.chains();
        this.capacities();
        this.improve();
        this
    }

    fn moments(&self) -> &'s [u32] {
        &self.question.moments
    }

    /// Places of an interval.
    fn interval(&self, i: usize) -> std::ops::Range<usize> {
        let end = self.moments().get(i + 1).map_or(self.scene.order.len(), |&m| m as usize);
        self.moments()[i] as usize..end
    }

    fn made(&self, group: u32) -> u32 {
        self.scene.place[self.scene.index.group_node[group as usize] as usize]
    }

    fn declare(&mut self) {
        let index = self.scene.index;
        let base = index.base_time.max(1) as f64;
        for &moment in self.moments() {
            let node = self.scene.order[moment as usize];
            let read = index.input_groups.row(node);
            let mut kept = Vec::new();
            let mut again = std::collections::BTreeMap::new();
            for &group in &self.question.groups {
                if self.made(group) >= moment {
                    kept.push(Kept::Later);
                    continue;
                }
                kept.push(if read.contains(&group) {
                    Kept::Read
                } else {
                    Kept::Variable(self.program.binary(0.0))
                });
                let maker = index.group_node[group as usize];
                if !self.is_spent(maker, moment) {
                    again.entry(maker).or_insert_with(|| {
                        self.program.binary(index.time[maker as usize] as f64 / base * SCALE)
                    });
                }
            }
            self.kept.push(kept);
            self.again.push(again);
        }
    }

    /// Whether a node reads state that is committed before a moment.
    fn is_spent(&self, node: u32, moment: u32) -> bool {
        let index = self.scene.index;
        let late = |s: &u32| self.scene.place[index.problem.states[*s as usize].commit as usize] < moment;
        index.reads_state.row(node).iter().any(late)
    }

    /// Terms whose sum is at least 1 where a chosen group can be read in an interval; none if it is there anyway.
    fn served(&self, group: u32, i: usize) -> Option<Vec<(Column, f64)>> {
        let position = self.chosen[group as usize];
        match self.kept[i][position as usize] {
            Kept::Later | Kept::Read => None,
            Kept::Variable(kept) => {
                let again = self.again[i].get(&self.scene.index.group_node[group as usize]);
                Some([kept].into_iter().chain(again.copied()).map(|c| (c, 1.0)).collect())
            }
        }
    }

    /// What first executions and recomputation read must be there.
    fn demands(&mut self) {
        let (scene, index) = (self.scene, self.scene.index);
        let end = index.nodes() as u32;
        for i in 0..self.moments().len() {
            let mut wanted: Vec<u32> = Vec::new();
            let last = i + 1 == self.moments().len();
            let nodes = self.interval(i).skip(1).map(|p| scene.order[p]).chain(last.then_some(end));
            for node in nodes {
                wanted.extend(
                    index.input_groups.row(node).iter().filter(|&&g| self.chosen[g as usize] != NONE),
                );
            }
            wanted.sort_unstable();
            wanted.dedup();
            for group in wanted {
                if let Some(terms) = self.served(group, i) {
                    self.program.at_least(terms, 1.0);
                }
            }
            let from = scene.step(self.moments()[i]);
            let to = self.moments().get(i + 1).map_or(scene.sequence.len() as u32, |&m| scene.step(m));
            for (node, column) in self.again[i].clone() {
                for &group in index.input_groups.row(node) {
                    if self.chosen[group as usize] != NONE {
                        if let Some(mut terms) = self.served(group, i) {
                            terms.push((column, -1.0));
                            self.program.at_least(terms, 0.0);
                        }
                    } else if !scene.is_there(group, from, to) && !index.pinned[group as usize] {
                        self.program.at_most(vec![(column, 1.0)], 0.0);
                    }
                }
            }
        }
    }

    /// What is kept through a moment came through the one before or was made since.
    fn chains(&mut self) {
        for i in 1..self.moments().len() {
            for (position, &group) in self.question.groups.iter().enumerate() {
                if let Kept::Variable(kept) = self.kept[i][position]
                    && let Some(mut terms) = self.served(group, i - 1)
                {
                    terms.push((kept, -1.0));
                    self.program.at_least(terms, 0.0);
                }
                // Read at the moment itself.
                if self.kept[i][position] == Kept::Read
                    && let Some(terms) = self.served(group, i - 1)
                {
                    self.program.at_least(terms, 1.0);
                }
            }
        }
    }

    fn slack(&self, place: u32) -> Bytes {
        self.question.slack.iter().filter(|s| s.0 == place).map(|s| s.1).sum()
    }

    fn share(&self, bytes: Bytes) -> f64 {
        bytes as f64 / self.budget.max(1) as f64
    }

    /// Bytes of chosen groups that are live over a moment in the schedule at hand without being read there.
    fn chosen_over(&self, moment: u32) -> Bytes {
        let index = self.scene.index;
        let read = index.input_groups.row(self.scene.order[moment as usize]);
        let over = self
            .question
            .groups
            .iter()
            .filter(|&&g| !read.contains(&g) && self.made(g) < moment && self.scene.is_live(g, moment));
        over.map(|&g| index.group_bytes[g as usize]).sum()
    }

    fn capacities(&mut self) {
        let index = self.scene.index;
        for (i, &moment) in self.moments().iter().enumerate() {
            let live = self.scene.live[self.scene.step(moment) as usize];
            let rest = live.saturating_sub(self.chosen_over(moment)) + self.slack(moment);
            let mut terms = Vec::new();
            for (position, &group) in self.question.groups.iter().enumerate() {
                if let Kept::Variable(kept) = self.kept[i][position] {
                    terms.push((kept, self.share(index.group_bytes[group as usize])));
                }
            }
            // What is over the budget without them stays over it; nothing kept is the best then.
            self.program.at_most(terms, self.share(self.budget.saturating_sub(rest)));
        }
        for burst in &self.question.bursts {
            self.fit_burst(*burst);
        }
    }

    /// While a node runs again before a moment, its working set lies beside what is kept through.
    fn fit_burst(&mut self, burst: Burst) {
        let index = self.scene.index;
        let Some(next) = self.moments().iter().position(|&m| m == burst.moment) else { return };
        let Some(i) = next.checked_sub(1) else { return };
        let Some(&column) = self.again[i].get(&burst.node) else { return };
        let (read, makes) = (index.input_groups.row(burst.node), index.outputs.row(burst.node));
        let working: Bytes = read.iter().map(|&g| index.group_bytes[g as usize]).sum::<Bytes>()
            + makes
                .iter()
                .map(|&v| index.value_group[v as usize])
                .filter(|&g| g != NONE)
                .map(|g| index.group_bytes[g as usize])
                .sum::<Bytes>()
            + index.workspace[burst.node as usize];
        let mut terms = vec![(column, self.share(working))];
        for (position, &group) in self.question.groups.iter().enumerate() {
            let maker = index.group_node[group as usize];
            if read.contains(&group) || maker == burst.node {
                continue;
            }
            let through = match self.kept[next][position] {
                Kept::Variable(through) => through,
                Kept::Later | Kept::Read => continue,
            };
            let share = self.share(index.group_bytes[group as usize]);
            let heaped =
                burst.heaped && self.scene.place[maker as usize] < self.scene.place[burst.node as usize];
            match self.again[i].get(&maker) {
                Some(&again) if !heaped => {
                    let held = self.program.implied();
                    self.program.at_least(vec![(held, 1.0), (through, -1.0), (again, 1.0)], 0.0);
                    terms.push((held, share));
                }
                _ => terms.push((through, share)),
            }
        }
        let moment = self.moments()[next];
        let step = self.scene.step(moment) as usize;
        let node = self.scene.order[moment as usize];
        // Beside them: what else is live at the moment and not the moment's own.
        let own: Bytes = index
            .outputs
            .row(node)
            .iter()
            .map(|&v| index.value_group[v as usize])
            .filter(|&g| g != NONE)
            .chain(index.input_groups.row(node).iter().copied())
            .map(|g| index.group_bytes[g as usize])
            .sum::<Bytes>()
            + index.workspace[node as usize];
        let rest = self.scene.live[step].saturating_sub(self.chosen_over(moment)).saturating_sub(own);
        let rest = rest.max(index.problem.resident) + self.slack(moment);
        self.program.at_most(terms, self.share(self.budget.saturating_sub(rest)));
    }

    /// Only what is better than the schedule at hand is asked for.
    fn improve(&mut self) {
        let base = self.scene.index.base_time.max(1) as f64;
        let again = self.again.iter().flatten();
        let terms =
            again.map(|(&n, &c)| (c, self.scene.index.time[n as usize] as f64 / base * SCALE)).collect();
        self.program.at_most(terms, self.present as f64 / base * SCALE - 1e-5);
    }

    /// The schedule that keeps through each moment what the answer says and makes the rest again on demand.
    pub(crate) fn sequence(&self, on: &[bool]) -> Option<Vec<u32>> {
        let (scene, index) = (self.scene, self.scene.index);
        let mut there: Vec<bool> = (0..index.value_group.len())
            .map(|v| index.value_group[v] == NONE || self.chosen[index.value_group[v] as usize] == NONE)
            .collect();
        let limit = 8 * scene.order.len() + scene.sequence.len();
        let mut out = Vec::with_capacity(scene.sequence.len());
        let mut next = 0;
        let mut stack: Vec<u32> = Vec::new();
        let end = index.nodes() as u32;
        for (step, &node) in scene.sequence.iter().chain([&end]).enumerate() {
            let first = node == end || scene.steps[scene.place[node as usize] as usize] as usize == step;
            if !first && self.makes[node as usize] {
                continue;
            }
            if node != end && first && self.moments().get(next) == Some(&scene.place[node as usize]) {
                for (position, &group) in self.question.groups.iter().enumerate() {
                    if let Kept::Variable(kept) = self.kept[next][position]
                        && !on[kept as usize]
                    {
                        index.members.row(group).iter().for_each(|&v| there[v as usize] = false);
                    }
                }
                next += 1;
            }
            stack.push(node);
            while let Some(&top) = stack.last() {
                let inputs = if top == end { &index.kept_to_end[..] } else { index.inputs.row(top) };
                if let Some(&missing) = inputs.iter().find(|&&v| !there[v as usize]) {
                    let maker = index.producer[missing as usize];
                    if maker == NONE
                        || index.once[maker as usize]
                        || stack.contains(&maker)
                        || out.len() > limit
                    {
                        return None;
                    }
                    stack.push(maker);
                    continue;
                }
                stack.pop();
                if top == end {
                    break;
                }
                out.push(top);
                for &value in index.outputs.row(top) {
                    let group = index.value_group[value as usize];
                    if group != NONE
                        && index.group_root[group as usize] == value
                        && self.chosen[group as usize] != NONE
                    {
                        index.members.row(group).iter().for_each(|&v| there[v as usize] = false);
                    }
                    there[value as usize] = true;
                }
            }
        }
        Some(out)
    }
}
