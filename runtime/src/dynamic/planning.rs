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
    plans::Search,
    script::Script,
};
use crate::RuntimeError;
use dtr::foresight::Limits;
use graph::{Facts, Graph, NodeId, Passed, StateId, Value, ValueDef, ValueId};
use std::sync::Arc;

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
        let mut effort = self.effort;
        let script = self.planned_within(g, needed, &mut effort);
        self.effort = effort;
        script
    }

    fn planned_within(
        &mut self,
        g: &Graph,
        needed: &[bool],
        effort: &mut u64,
    ) -> Result<Option<Script>, RuntimeError> {
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
        let first_cost = first.program.steps.iter().map(|s| s.cost).sum::<u64>();
        let patience = self.patience.min(PLANNED_PATIENCE);
        let limits = Limits { budget, repeat_cost: patience.saturating_mul(first_cost) };
        // Where sizes alone decide, the step's script is kept.
        let may_come_again = !self.asked.is_empty();
        let mut plan = |layout: &Layout, limits, search| {
            self.around.plans.plan(&layout.program, limits, search, may_come_again, effort)
        };
        let mut layouts = vec![first];
        for search in [Search::Whole, Search::Below] {
            let mut best = plan(&layouts[0], limits, search).map(|s| (0, s));
            if early.is_some() && best.as_ref().is_none_or(|(_, s)| s.repeat_cost > 0) {
                if layouts.len() == 1 {
                    layouts.push(self.layout(g, &late)?);
                }
                let repeat_cost = best.as_ref().map_or(limits.repeat_cost, |(_, s)| s.repeat_cost - 1);
                let cheaper = plan(&layouts[1], Limits { repeat_cost, ..limits }, search);
                best = cheaper.map(|s| (1, s)).or(best);
            }
            if let Some((at, schedule)) = best {
                return Script::new(g, &mut layouts[at], &schedule, &self.world).map(Some);
            }
        }
        Ok(None)
    }

    fn layout(&self, g: &Graph, order: &Order) -> Result<Layout, RuntimeError> {
        let past = Past { world: &self.world, tensors: &self.tensors, ran: &self.ran };
        Layout::new(g, &order.nodes, order.last, self.around, past)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dynamic::{
        executor::{Infos, Surroundings},
        plans::Plans,
        world::PoolWorld,
    };
    use dtr::foresight::{self, Action, Schedule, Straight};
    use graph::{Attrs, DType, Init, InputRole, Shape, StateKind, TensorType};
    use ops::Builder;
    use plan::{ALIGNMENT, Device, Rates};
    use std::collections::BTreeMap;

    /// `a = x w` is read behind the update of `w`, with more in between than a small pool holds; that the loss is finite is tested at the
    /// end. With `gather`, the very last node may refuse its data.
    fn graph(gather: bool) -> Graph {
        let mut g = Graph::default();
        let ty = TensorType::new(DType::F32, [64usize].as_slice());
        let x = g.add_input("x", ty.clone(), InputRole::Data);
        let at = g.add_input("at", TensorType::new(DType::I64, [64usize].as_slice()), InputRole::Data);
        let lr = g.add_input("lr", TensorType::new(DType::F32, Shape::scalar()), InputRole::LearningRate);
        let w = g.add_state("w", ty, StateKind::Parameter, Init::Zeros);
        let mut b = Builder::new(&mut g);
        let a = b.call("Mul", &[x, w]).unwrap();
        let loss = b.reduce_sum(a, &[0], false).unwrap();
        let (p, q) = (b.call("Exp", &[x]).unwrap(), b.call("Sigmoid", &[x]).unwrap());
        let between = b.call("Mul", &[p, q]).unwrap();
        let between = b.call("Mul", &[between, p]).unwrap();
        let mut end = b.call("Mul", &[between, a]).unwrap();
        if gather {
            end = b.op("Gather", Attrs::new().with("axis", 0i64), &[end, at]).unwrap();
        }
        let ok = b.call("IsFinite", &[loss]).unwrap();
        let new = b.emit("Sgd", Attrs::new(), &[Some(w), Some(x), Some(lr), None, None, Some(ok)]);
        let new = new.unwrap()[0];
        g.states[0].output = Some(new);
        g.outputs = vec![loss, end];
        g
    }

    /// Calls `f` with an executor and the nodes of a graph.
    fn with(g: &Graph, pool: u64, f: impl FnOnce(&Executor<'_, '_>, Order)) {
        let ty = g.ty(g.states[0].input).clone();
        let states = BTreeMap::from([(g.states[0].name.clone(), (0, ty))]);
        let around = Surroundings { states, rates: Rates::of(Device::Cpu), plans: Plans::default() };
        let host = BTreeMap::new();
        let world = PoolWorld::new(None, ALIGNMENT, pool, false);
        let mut e = Executor::new(world, &around, &host, Infos::default(), PLANNED_PATIENCE).unwrap();
        e.grow(g);
        let all = (0..g.nodes.len() as u32).map(NodeId);
        let nodes = all.map(|n| (n, e.info(g, n).unwrap())).collect();
        f(&e, Order::late(nodes));
    }

    #[test]
    fn a_commit_runs_behind_the_last_reader_and_what_may_fail() {
        let g = graph(false);
        with(&g, 1 << 20, |_, late| {
            let early = late.early(&g).unwrap();
            let ops: Vec<&str> = early.nodes.iter().map(|(n, _)| &*g.node(*n).op).collect();
            assert_eq!(ops[..4], ["Mul", "ReduceSum", "IsFinite", "Sgd"], "{ops:?}");
            assert_eq!(ops.len(), g.nodes.len());
        });
        let g = graph(true);
        with(&g, 1 << 20, |_, late| assert!(late.early(&g).is_none()));
    }

    /// Told of no commits the planner drops `a` and makes it again from the new `w`: the script is the last to see that.
    #[test]
    fn what_would_read_a_state_behind_its_commit_is_refused() {
        let g = graph(false);
        let (mut caught, mut planned) = (0, 0);
        for pool in (3..=8).map(|n| n * ALIGNMENT) {
            with(&g, pool, |e, late| {
                let layout = || e.layout(&g, &late.early(&g).unwrap()).unwrap();
                let program = layout().program;
                let limits = Limits { budget: pool, repeat_cost: u64::MAX };
                if let Ok(s) = foresight::plan(&program, limits) {
                    assert!(Script::new(&g, &mut layout(), &s, &e.world).is_ok());
                    planned += 1;
                }
                let mut untold = program.clone();
                untold.steps.iter_mut().for_each(|s| s.commits.clear());
                let Ok(s) = foresight::plan(&untold, limits) else { return };
                match Script::new(&g, &mut layout(), &s, &e.world) {
                    Ok(_) => {}
                    Err(e) => {
                        assert!(e.to_string().contains("overwritten"), "{e}");
                        caught += 1;
                    }
                }
            });
        }
        assert!(caught > 0 && planned > 0, "{caught} caught, {planned} planned");
    }

    /// No op is left out, runs out of turn or twice that must not; nothing is given up that is not the plan's.
    #[test]
    fn a_plan_of_another_program_is_refused() {
        let g = graph(false);
        with(&g, 1 << 20, |e, late| {
            let early = late.early(&g).unwrap();
            let limits = Limits { budget: 1 << 20, repeat_cost: u64::MAX };
            let layout = |order: &Order| e.layout(&g, order).unwrap();
            let play = |order, s: &Schedule| {
                let made = Script::new(&g, &mut layout(order), s, &e.world);
                made.err().map_or_else(String::new, |e| e.to_string())
            };
            let own = foresight::plan(&layout(&late).program, limits).unwrap();
            assert_eq!(play(&late, &own), "");
            assert!(play(&early, &own).contains("is not there"));
            let changed = |f: &dyn Fn(&mut Vec<Action>)| {
                let mut s = own.clone();
                f(&mut s.actions);
                play(&late, &s)
            };
            let runs = |a: &Action| matches!(a, Action::Run { .. });
            for (i, action) in own.actions.iter().enumerate().filter(|(_, a)| runs(a)) {
                let said = [
                    changed(&|a| {
                        a.remove(i);
                    }),
                    changed(&|a| a.insert(i, *action)),
                ];
                assert!(said.iter().all(|s| s.contains("another program")), "{i}: {said:?}");
            }
            let program = layout(&late).program;
            let state = program.makers.iter().position(|m| *m == Straight::OUTSIDE).unwrap() as u32;
            for storage in [state, program.bytes.len() as u32] {
                assert!(changed(&|a| a.insert(0, Action::Drop { storage })).contains("another program"));
            }
            let once = program.steps.iter().position(|s| s.once).unwrap() as u32;
            for step in [once, program.steps.len() as u32] {
                let again = Action::Run { step, again: true, over: false };
                assert!(changed(&|a| a.push(again)).contains("another program"));
            }
        });
    }
}
