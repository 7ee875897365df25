//! Plans a step before it runs: where its commits stand, and which schedule is taken.
//!
//! A commit may run once its gradient is there, every other node has read the old version of its state, and nothing that may refuse its
//! data is still to come; memory and addresses are settled before the first op runs. Gradients then go as soon as they are used. What is
//! recomputed later must not read the old version, which the planner sees to. Where that costs more, or finds no way (the norm of all
//! gradients scales them, say, so that all are wanted twice), commits come last, after all that they read is there: both orders are planned,
//! and the cheaper one is taken.

use super::{
    executor::{Executor, NodeInfo, PLANNED_PATIENCE, bug, size},
    layout::{Layout, Past},
    script::Script,
};
use crate::RuntimeError;
use dtr::foresight::{self, Limits, Schedule, Straight};
use graph::{Facts, Graph, NodeId, Passed, StateId, Value, ValueDef, ValueId};
use std::sync::{Arc, Mutex};

/// A schedule, and which order it is for.
#[derive(Clone)]
struct Planned {
    is_late: bool,
    schedule: Arc<Schedule>,
}

/// The latest plans, with the programs and the bytes they are for.
#[derive(Default)]
pub(crate) struct Plans(Mutex<Vec<(Straight, u64, Planned)>>);

/// How many of them.
const PLANS: usize = 8;

impl Plans {
    fn find(&self, program: &Straight, budget: u64) -> Option<Planned> {
        let all = self.0.lock().ok()?;
        all.iter().rev().find(|(p, b, _)| *b == budget && p == program).map(|(_, _, s)| s.clone())
    }

    fn keep(&self, program: Straight, budget: u64, planned: Planned) {
        if let Ok(mut all) = self.0.lock() {
            if all.len() == PLANS {
                all.remove(0);
            }
            all.push((program, budget, planned));
        }
    }
}

/// Nodes in the order of their first execution; those from `last` on run when nothing is recomputed any more.
struct Order {
    nodes: Vec<(NodeId, Arc<NodeInfo>)>,
    last: usize,
}

impl Order {
    /// Commits at the end.
    fn late(nodes: Vec<(NodeId, Arc<NodeInfo>)>) -> Order {
        let (mut nodes, commits): (Vec<_>, Vec<_>) =
            nodes.into_iter().partition(|(_, info)| info.facts.commits.is_empty());
        let last = nodes.len();
        nodes.extend(commits);
        Order { nodes, last }
    }

    /// Commits as early as they may run; `None` if that is the end.
    fn early(&self, g: &Graph) -> Option<Order> {
        let moves = self.moving(g);
        let (with_place, moving): (Vec<_>, Vec<_>) = self.nodes.iter().partition(|(n, _)| !moves[n.index()]);
        let mut history = History::new(g);
        let (mut passed, mut refused) = (Passed::default(), 0);
        for (i, (n, info)) in with_place.iter().enumerate() {
            history.ran(*n, &info.facts, i + 1);
            if info.facts.can_fail && passed.may_refuse(g, *n) {
                refused = i + 1;
            }
        }
        // Scalars before commits, as in the order that they come from: they may read what is overwritten.
        let mut placed = Vec::with_capacity(moving.len());
        for (n, info) in moving {
            let first = if info.facts.commits.is_empty() { 0 } else { refused };
            let at = history.ready(*n, &info.facts).max(first);
            history.ran(*n, &info.facts, at);
            placed.push((at, (*n, info.clone())));
        }
        placed.sort_by_key(|p| p.0);
        let commits = placed.iter().filter(|(_, (_, info))| !info.facts.commits.is_empty());
        if commits.map(|p| p.0).min().is_none_or(|at| at == with_place.len()) {
            return None;
        }
        let mut placed = placed.into_iter().peekable();
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for i in 0..=with_place.len() {
            while let Some((_, node)) = placed.next_if(|p| p.0 == i) {
                nodes.push(node);
            }
            nodes.extend(with_place.get(i).copied().cloned());
        }
        let last = nodes.len();
        Some(Order { nodes, last })
    }

    /// Commits, and the scalars that only they read: whether the loss is finite, say, which is written behind the gradients.
    fn moving(&self, g: &Graph) -> Vec<bool> {
        let mut moves = vec![false; g.nodes.len()];
        let mut stays = vec![false; g.values.len()];
        g.outputs.iter().for_each(|v| stays[v.index()] = true);
        for (n, info) in self.nodes.iter().rev() {
            let node = g.node(*n);
            let small = |v: &ValueId| size(g.ty(*v)).is_some_and(|bytes| bytes <= plan::ALIGNMENT);
            let scalars = node.outputs.iter().all(|v| small(v) && !stays[v.index()]);
            let free = scalars && !info.facts.once && !info.facts.can_fail;
            moves[n.index()] = free || !info.facts.commits.is_empty();
            if !moves[n.index()] {
                node.inputs.iter().flatten().for_each(|v| stays[v.index()] = true);
            }
        }
        moves
    }
}

/// How many nodes that are no commits must run before what: until a value is made, and until the old version of a state is read no more.
struct History<'g> {
    g: &'g Graph,
    made: Vec<usize>,
    read: Vec<usize>,
    /// The state whose bytes a value is.
    state: Vec<Option<StateId>>,
}

impl<'g> History<'g> {
    fn new(g: &'g Graph) -> Self {
        let state = |v: &Value| if let ValueDef::State(s) = v.def { Some(s) } else { None };
        History {
            g,
            made: vec![0; g.values.len()],
            read: vec![0; g.states.len()],
            state: g.values.iter().map(state).collect(),
        }
    }

    /// A node runs as number `at`, or behind it.
    fn ran(&mut self, n: NodeId, facts: &Facts, at: usize) {
        let node = self.g.node(n);
        for s in node.inputs.iter().flatten().filter_map(|v| self.state[v.index()]) {
            self.read[s.index()] = self.read[s.index()].max(at);
        }
        for view in &facts.views {
            let of = node.inputs.get(view.input).copied().flatten().and_then(|v| self.state[v.index()]);
            if let Some(o) = node.outputs.get(view.output) {
                self.state[o.index()] = of;
            }
        }
        node.outputs.iter().for_each(|o| self.made[o.index()] = at);
    }

    /// Behind which number a commit may run.
    fn ready(&self, n: NodeId, facts: &Facts) -> usize {
        let node = self.g.node(n);
        let made = node.inputs.iter().flatten().map(|v| self.made[v.index()]);
        let old = facts.commits.iter().filter_map(|(_, input)| node.inputs.get(*input).copied().flatten());
        let read = old.filter_map(|v| self.state[v.index()]).map(|s| self.read[s.index()]);
        made.chain(read).max().unwrap_or(0)
    }
}

impl Executor<'_, '_> {
    /// The step planned ahead, if the planner finds a way.
    pub(super) fn planned(&mut self, g: &Graph, needed: &[bool]) -> Result<Option<Script>, RuntimeError> {
        let mut nodes = Vec::new();
        for i in (0..g.nodes.len()).filter(|i| needed[*i]) {
            let n = NodeId(i as u32);
            nodes.push((n, self.info(g, n)?));
        }
        let late = Order::late(nodes);
        let early = late.early(g);
        let first = self.layout(g, early.as_ref().unwrap_or(&late))?;
        let budget = self.world.pool.bytes() - self.room.min(self.world.pool.bytes());
        if self.world.device.is_none() && first.program.largest_need() > budget {
            return Err(bug("an op does not fit the pool".to_owned()));
        }
        if let Some(Planned { is_late, schedule }) = self.around.plans.find(&first.program, budget) {
            let layout = if is_late { self.layout(g, &late)? } else { first };
            return Script::new(g, &layout, &schedule, &self.world).map(Some);
        }
        let first_cost = first.program.steps.iter().map(|s| s.cost).sum::<u64>();
        let patience = self.patience.min(PLANNED_PATIENCE);
        let mut limits = Limits { budget, repeat_cost: patience.saturating_mul(first_cost) };
        let mut best = foresight::plan(&first.program, limits).ok();
        let mut other = None;
        if early.is_some() && best.as_ref().is_none_or(|b| b.repeat_cost > 0) {
            let layout = self.layout(g, &late)?;
            limits.repeat_cost = best.as_ref().map_or(limits.repeat_cost, |b| b.repeat_cost - 1);
            if let Ok(cheaper) = foresight::plan(&layout.program, limits) {
                (best, other) = (Some(cheaper), Some(layout));
            }
        }
        let Some(schedule) = best else { return Ok(None) };
        let script = Script::new(g, other.as_ref().unwrap_or(&first), &schedule, &self.world)?;
        if !self.asked.is_empty() {
            let planned = Planned { is_late: other.is_some(), schedule: Arc::new(schedule) };
            self.around.plans.keep(first.program, budget, planned);
        }
        Ok(Some(script))
    }

    fn layout(&self, g: &Graph, order: &Order) -> Result<Layout, RuntimeError> {
        let past = Past { world: &self.world, tensors: &self.tensors, ran: &self.ran };
        Layout::new(g, &order.nodes, order.last, self.around, past)
    }
}
