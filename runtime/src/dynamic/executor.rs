//! Runs a graph that may still grow, node by node, under online rematerialization.
//!
//! The machine of the `dtr` crate decides what goes and what comes back; the world beside it has the bytes. What runs so has its commits
//! last: before the first one everything that the others read is brought back and held, so that a step that fails has changed no state, and
//! nothing is recomputed from a state that is already new.

use super::{
    plans::Plans,
    script::Script,
    world::{HostBytes, OpRecord, PoolWorld, TensorRecord, Work},
};
use crate::{
    RuntimeError,
    device::{Eager, Prepared},
    resolve::Region,
};
use dtr::{Heuristic, Machine, Output, Program, TensorId};
use graph::{Facts, Graph, InputRole, Literal, NodeId, OpFacts, TensorType, ValueDef, ValueId};
use ops::{Registry, Signature};
use plan::{Rates, align};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// Recomputation that costs more than so many times the step itself ends it.
pub(super) const PATIENCE: u64 = 64;

/// The same where the whole step is known.
pub(super) const PLANNED_PATIENCE: u64 = 8;
/// What a step is taken to cost at least, in estimated nanoseconds: of the first ops some may have to be repeated often.
const FEW_NS: u64 = 250_000;
/// Exact neighbourhoods take a millisecond an eviction in graphs of more nodes.
const LARGE: usize = 3_000;
/// Patience with those.
const LARGE_PATIENCE: u64 = 4;

/// What deciding for one execution counts as, in storages that the planner looks at.
pub(super) const EXECUTION: u64 = 64;
/// What following an edge between storages counts as.
const EDGE: u64 = 2;

fn machine(heuristic: Heuristic) -> Result<Machine, RuntimeError> {
    let mut options = dtr::Options::new(u64::MAX, heuristic);
    options.dealloc = dtr::Dealloc::Retire;
    options.order_remats = true;
    Machine::new(Program::new(), options).map_err(|e| bug(e.to_string()))
}

/// What is known of a node once its types are.
pub(crate) struct NodeInfo {
    pub(super) facts: Facts,
    pub(super) cost: u64,
    /// Its arithmetic is that of a matrix product: dear to repeat.
    pub(super) product: bool,
    pub(super) prepared: Option<Prepared>,
}

/// What outlives a run of a graph that does not change.
#[derive(Clone, Default)]
pub(crate) struct Infos(Vec<Option<Arc<NodeInfo>>>);

/// What a step reads from outside.
pub(crate) struct Surroundings {
    /// First byte of each state in the arena, and its type.
    pub(crate) states: BTreeMap<Arc<str>, (u64, TensorType)>,
    pub(crate) rates: Rates,
    /// Plans of programs of which more than sizes decides: the same decisions come again.
    pub(crate) plans: Plans,
}

impl Surroundings {
    /// Where a state lies. A recipe that makes another type of it is none of this plan's.
    pub(super) fn state(&self, name: &str, ty: &TensorType) -> Result<u64, RuntimeError> {
        let no_state = || RuntimeError::NoTensor { kind: "state", name: name.to_owned() };
        let (at, own) = self.states.get(name).ok_or_else(no_state)?;
        if own == ty {
            return Ok(*at);
        }
        let what = format!("it is {ty} in the program and {own} in the plan's state");
        Err(RuntimeError::Weight { name: name.to_owned(), what })
    }
}

/// What a walk wanted of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The elements of a value.
    Elements(ValueId),
    /// So many bytes of the host until the step ends.
    Room(u64),
    /// Elements that were given are gone.
    Forget,
}

/// Elements of so few bytes are bookkeeping.
const FREE_ROOM: u64 = 1 << 12;

/// For so many bytes it is worth giving pages back.
const MANY: u64 = 1 << 20;

/// How a step was brought to its end.
pub(crate) enum Done {
    /// It is still to be played.
    Planned(Script),
    /// It ran; there its outputs are.
    Online(Vec<Region>),
}

pub(crate) struct Executor<'d, 's: 'd> {
    machine: Machine,
    pub(crate) world: PoolWorld<'d>,
    pub(super) around: &'s Surroundings,
    /// Elements of inputs, by [`host_key`].
    host: &'s BTreeMap<String, &'s [u8]>,
    pub(super) tensors: Vec<Option<TensorId>>,
    pub(super) ran: Vec<bool>,
    infos: Infos,
    /// What was asked for before the graph was whole, in order.
    pub(super) asked: Vec<Asked>,
    /// Bytes of the host that count until the step ends; what was read counts until it is forgotten.
    pub(super) room: u64,
    /// Nodes that were seen by the latest look backwards carry its number.
    marks: Vec<u32>,
    mark: u32,
    /// Whether values are still being asked for, and whether the machine has exact neighbourhoods.
    asking: bool,
    exact: bool,
    /// It had them for too many ops, and stopped.
    outgrown: bool,
    /// The planner found no way for this step.
    unplannable: bool,
    /// How many times the cost of the step recomputation may take.
    pub(super) patience: u64,
    /// What all executions may cost together.
    allowance: u64,
    /// What deciding may take: see [`dtr::foresight::plan_within`].
    pub(super) effort: u64,
    /// The least that the step is taken to cost.
    step_cost: u64,
    planning_ns: u64,
}

impl<'d, 's: 'd> Executor<'d, 's> {
    pub(crate) fn new(
        world: PoolWorld<'d>,
        around: &'s Surroundings,
        host: &'s BTreeMap<String, &'s [u8]>,
        infos: Infos,
        patience: u64,
    ) -> Result<Self, RuntimeError> {
        let machine = machine(Heuristic::DTR)?;
        Ok(Executor {
            machine,
            world,
            around,
            host,
            tensors: Vec::new(),
            ran: Vec::new(),
            infos,
            asked: Vec::new(),
            room: 0,
            marks: Vec::new(),
            mark: 0,
            asking: true,
            exact: true,
            outgrown: false,
            unplannable: false,
            patience,
            allowance: u64::MAX,
            effort: u64::MAX,
            step_cost: FEW_NS,
            planning_ns: 0,
        })
    }

    /// Ends the run before executions cost more than so many estimated nanoseconds.
    pub(super) fn allow(&mut self, nanoseconds: u64) {
        self.allowance = nanoseconds;
    }

    /// The figures of what ran online.
    pub(super) fn figures(&self) -> super::Figures {
        let s = self.machine.stats();
        super::Figures {
            pool: self.world.report(),
            firsts: s.firsts,
            evictions: s.evictions - s.eager,
            repeats: s.remats,
            first_cost: s.first_cost,
            repeat_cost: s.repeat_cost,
            planning_ns: self.planning_ns,
        }
    }

    /// What may be used again for the same graph, and the device.
    pub(super) fn into_parts(self) -> (Infos, Option<&'d mut dyn Eager>) {
        (self.infos, self.world.device)
    }

    /// What may be used again for the same graph.
    pub(crate) fn into_infos(self) -> Infos {
        self.infos
    }

    /// Whether the run stopped because exact neighbourhoods take too long for so many ops; see [`Executor::renew`].
    pub(super) fn outgrown(&self) -> bool {
        self.outgrown
    }

    /// Forgets all that ran, to begin again with a machine for many ops.
    pub(super) fn renew(&mut self) -> Result<(), RuntimeError> {
        // What every iteration reads has as many neighbours as there are iterations.
        self.machine = machine(Heuristic::DTR_LOCAL)?;
        self.world.clear();
        (self.exact, self.outgrown) = (false, false);
        self.patience = self.patience.min(LARGE_PATIENCE);
        self.tensors.clear();
        self.ran.clear();
        self.asked.clear();
        self.room = 0;
        Ok(())
    }

    /// Takes over what another run of the same graph found out about its nodes.
    pub(super) fn recall(&mut self, infos: &Infos) {
        let known = infos.0.iter().enumerate().filter(|(_, i)| i.is_some());
        for (i, info) in known {
            if let Some(own @ None) = self.infos.0.get_mut(i) {
                *own = info.clone();
            }
        }
    }

    pub(super) fn grow(&mut self, g: &Graph) {
        self.tensors.resize(g.values.len().max(self.tensors.len()), None);
        self.ran.resize(g.nodes.len().max(self.ran.len()), false);
        self.infos.0.resize(g.nodes.len().max(self.infos.0.len()), None);
        self.marks.resize(g.nodes.len().max(self.marks.len()), 0);
    }

    /// Goes on with another graph that has the nodes which ran under the same names. What is another op there, or reads or makes something
    /// else (another precision, say), runs again.
    pub(crate) fn rebase(&mut self, old: &Graph, new: &Graph) -> Result<(), RuntimeError> {
        let values: HashMap<&str, usize> =
            new.values.iter().enumerate().map(|(i, v)| (&*v.name, i)).collect();
        let nodes: HashMap<&str, usize> = new.nodes.iter().enumerate().map(|(i, n)| (&*n.name, i)).collect();
        let tensors = std::mem::take(&mut self.tensors);
        let ran = std::mem::take(&mut self.ran);
        let infos = std::mem::take(&mut self.infos.0);
        self.grow(new);
        // The same value in both graphs: values that no node makes, and outputs of nodes that are the same.
        let mut same: Vec<Option<usize>> = old
            .values
            .iter()
            .map(|v| {
                let at = *values.get(&*v.name)?;
                let made = |v: &graph::Value| matches!(v.def, ValueDef::Node { .. });
                (!made(v) && !made(&new.values[at]) && v.ty == new.values[at].ty).then_some(at)
            })
            .collect();
        for (i, n) in old.nodes.iter().enumerate() {
            let Some(at) = nodes.get(&*n.name).copied() else { continue };
            let to = &new.nodes[at];
            let equal = |a: &ValueId, b: &ValueId| {
                let (a, b) = (old.value(*a), new.value(*b));
                a.name == b.name && a.ty == b.ty
            };
            let alike = n.op == to.op
                && n.attrs == to.attrs
                && n.inputs.len() == to.inputs.len()
                && n.inputs.iter().zip(&to.inputs).all(|(a, b)| match (a, b) {
                    (Some(a), Some(b)) => same[a.index()] == Some(b.index()),
                    (a, b) => a.is_none() && b.is_none(),
                })
                && n.outputs.len() == to.outputs.len()
                && n.outputs.iter().zip(&to.outputs).all(|(a, b)| equal(a, b));
            if !alike {
                continue;
            }
            n.outputs.iter().zip(&to.outputs).for_each(|(a, b)| same[a.index()] = Some(b.index()));
            self.ran[at] = ran.get(i).copied().unwrap_or(false);
            self.infos.0[at] = infos.get(i).cloned().flatten();
        }
        let asked = std::mem::take(&mut self.asked);
        self.asked.extend(asked.iter().filter_map(|a| match a {
            Asked::Elements(v) => {
                values.get(&*old.values[v.index()].name).map(|v| Asked::Elements(ValueId(*v as u32)))
            }
            Asked::Room(_) | Asked::Forget => Some(*a),
        }));
        let mut changed = Vec::new();
        for (i, t) in tensors.into_iter().enumerate() {
            match (t, same[i]) {
                (Some(t), Some(at)) => self.tensors[at] = Some(t),
                (Some(t), None) if values.contains_key(&*old.values[i].name) => changed.push(t),
                _ => {}
            }
        }
        // Nobody reads them any more.
        changed.into_iter().try_for_each(|t| self.release(t))
    }

    pub(super) fn info(&mut self, g: &Graph, n: NodeId) -> Result<Arc<NodeInfo>, RuntimeError> {
        if let Some(info) = &self.infos.0[n.index()]
            && (info.prepared.is_some() || self.world.device.is_none() || all_views(&info.facts, g, n))
        {
            return Ok(info.clone());
        }
        let node = g.node(n);
        let refuse = |what: String| RuntimeError::Prepare {
            node: node.name.to_string(),
            op: node.op.to_string(),
            what,
        };
        let values = node.inputs.iter().flatten().chain(&node.outputs);
        if let Some(v) = values.copied().find(|v| !is_bounded(g.ty(*v))) {
            return Err(refuse(format!("{} {} is too large", g.value(v).name, g.ty(v))));
        }
        let facts = Registry.facts(g, n).map_err(refuse)?;
        let prepared = match &mut self.world.device {
            Some(device) if !all_views(&facts, g, n) => Some(device.prepare(g, n)?),
            _ => None,
        };
        let (cost, product) =
            if all_views(&facts, g, n) { (1, false) } else { cost(&self.around.rates, g, n) };
        let info = Arc::new(NodeInfo { facts, cost, product, prepared });
        self.infos.0[n.index()] = Some(info.clone());
        Ok(info)
    }

    /// The tensor of a value that needs no node, or of one whose node ran.
    fn tensor(&mut self, g: &Graph, v: ValueId) -> Result<TensorId, RuntimeError> {
        if let Some(t) = self.tensors[v.index()] {
            return Ok(t);
        }
        let value = g.value(v);
        let (work, at) = match &value.def {
            ValueDef::Node { .. } => return Err(bug(format!("{:?} is read before it is made", value.name))),
            ValueDef::State(s) => {
                let at = self.around.state(&g.states[s.index()].name, &value.ty)?;
                (Work::Resident, Some(at))
            }
            ValueDef::Constant(l) => (Work::Host(HostBytes::Constant(l.clone())), None),
            ValueDef::Input(i) => {
                let role = g.inputs[*i as usize].role;
                let given = self.host.get(&host_key(role, &value.name)).copied();
                let what = || format!("{} is not given", value.ty);
                let given = given
                    .ok_or_else(|| RuntimeError::Input { name: value.name.to_string(), what: what() })?;
                (Work::Host(HostBytes::Given(given)), None)
            }
        };
        let bytes = size(&value.ty).ok_or_else(|| bug(format!("the size of {:?} is unknown", value.name)))?;
        let resident = matches!(work, Work::Resident);
        let storage = self.world.storage(bytes, at);
        let own = self.world.storages[storage as usize].bytes;
        let cost = 1 + (bytes as f64 / self.around.rates.bytes_per_s * 1e9) as u64;
        let first = self.world.tensors.len() as u32;
        self.world.tensors.push(TensorRecord { storage, offset: 0, bytes });
        self.world.storages[storage as usize].readers += 1;
        self.world.ops.push(OpRecord {
            work,
            inputs: Vec::new(),
            first,
            outputs: 1,
            workspace: 0,
            cheap: true,
            over: None,
            name: value.name.clone(),
            op: "Input".into(),
        });
        let op = self.machine.declare(&[], &[Output::New { bytes: own }], cost, false);
        let op = op.map_err(|e| bug(e.to_string()))?;
        self.step(|m, w| m.compute(op, w))?;
        let t = TensorId(first);
        if resident {
            self.step(|m, w| m.pin(t, w))?;
        }
        self.tensors[v.index()] = Some(t);
        Ok(t)
    }

    /// One command of the machine.
    fn step(
        &mut self,
        f: impl FnOnce(&mut Machine, &mut PoolWorld<'d>) -> Result<(), dtr::Error>,
    ) -> Result<(), RuntimeError> {
        // One nested recomputation alone may take for ever.
        self.machine.limit_repeats(self.most_repeats());
        let looks = |m: &Machine| {
            let stats = m.stats();
            (stats.firsts + stats.remats) * EXECUTION + stats.followed * EDGE
        };
        let before = looks(&self.machine);
        let done = f(&mut self.machine, &mut self.world);
        self.effort = self.effort.saturating_sub(looks(&self.machine) - before);
        done.map_err(|e| match e {
            dtr::Error::World(inner) => match inner.downcast::<RuntimeError>() {
                Ok(e) => *e,
                Err(e) => bug(e.to_string()),
            },
            dtr::Error::Thrash { .. } => self.full(self.world.asked(), 0, true),
            dtr::Error::Oom { op, pinned, locked, .. } => self.full(op.0, pinned + locked, false),
            e => bug(e.to_string()),
        })?;
        if self.effort == 0 || self.machine.stats().repeat_cost > self.most_repeats() {
            return Err(self.full(self.world.asked(), 0, true));
        }
        Ok(())
    }

    /// What recomputation may cost.
    fn most_repeats(&self) -> u64 {
        self.patience.saturating_mul(self.machine.stats().first_cost.max(self.step_cost))
    }

    /// The refusal at an op.
    fn full(&self, op: u32, held: u64, thrashing: bool) -> RuntimeError {
        let record = &self.world.ops[op as usize];
        let pool = &self.world.pool;
        RuntimeError::PoolFull(Box::new(super::PoolFull {
            node: record.name.to_string(),
            op: record.op.to_string(),
            needed: self.world.needed(),
            live: pool.live(),
            base: self.world.base(),
            pool: pool.bytes(),
            largest_hole: pool.largest_hole().min(pool.bytes().saturating_sub(pool.live())),
            // What is read stays on the host until the walk has ended.
            held: held + pool.lent(),
            thrashing,
            holders: self.world.holders(10),
            least: None,
            budget: None,
        }))
    }

    /// An output and the argument in whose place it may be made: nothing else reads the argument's storage afterwards.
    fn overwrite(
        &self,
        g: &Graph,
        n: NodeId,
        facts: &Facts,
        args: &[TensorId],
        argument: &[Option<usize>],
        uses: &[u32],
    ) -> Option<(u32, u32)> {
        let node = g.node(n);
        facts.overwrites.iter().find_map(|(o, i)| {
            let v = node.inputs.get(*i).copied().flatten()?;
            let t = args[argument[*i]?];
            let times = node.inputs.iter().filter(|w| **w == Some(v)).count();
            let from = self.world.tensors[t.index()];
            let storage = self.world.storages[from.storage as usize];
            let last = uses.get(v.index()) == Some(&1) && times == 1 && storage.readers == 1;
            let same = from.offset == 0
                && storage.bytes > 0
                && Some(storage.bytes) == size(g.ty(node.outputs[*o])).map(align);
            let mine = g
                .producer(v)
                .is_some_and(|p| self.infos.0[p.index()].as_ref().is_some_and(|i| !i.facts.once));
            (last && same && mine).then_some((*o as u32, t.0))
        })
    }

    /// Runs a node whose arguments' nodes ran. `last` says how often each value will still be read, this node included; empty if nobody
    /// knows yet.
    fn execute(&mut self, g: &Graph, n: NodeId, last: &[u32]) -> Result<(), RuntimeError> {
        if self.asking && self.exact && self.world.ops.len() > LARGE {
            self.outgrown = true;
            return Err(bug("a machine that was outgrown".to_owned()));
        }
        let info = self.info(g, n)?;
        let node = g.node(n);
        let mut args: Vec<TensorId> = Vec::with_capacity(node.inputs.len());
        let mut argument: Vec<Option<usize>> = Vec::with_capacity(node.inputs.len());
        for v in &node.inputs {
            argument.push(match v {
                None => None,
                Some(v) => {
                    args.push(self.tensor(g, *v)?);
                    Some(args.len() - 1)
                }
            });
        }
        let first = self.world.tensors.len() as u32;
        let mut outputs = Vec::with_capacity(node.outputs.len());
        for (o, v) in node.outputs.iter().enumerate() {
            let ty = g.ty(*v);
            let bytes =
                size(ty).ok_or_else(|| bug(format!("the size of {:?} is unknown", g.value(*v).name)))?;
            let source = |i: usize| {
                argument.get(i).copied().flatten().ok_or_else(|| bug("no such argument".to_owned()))
            };
            let view = info.facts.views.iter().find(|w| w.output == o);
            let commit = info.facts.commits.iter().find(|c| c.0 == o);
            let (storage, offset) = if let Some(view) = view {
                let argument = source(view.input)?;
                let from = self.world.tensors[args[argument].index()];
                outputs.push(Output::AliasOf { argument });
                (from.storage, from.offset + view.offset)
            } else if let Some((_, input)) = commit {
                let state = self.world.region(args[source(*input)?].0);
                let state = state.ok_or_else(|| bug("a commit of what is no state".to_owned()))?;
                outputs.push(Output::New { bytes: 0 });
                (self.world.storage(0, Some(state.offset)), 0)
            } else {
                outputs.push(Output::New { bytes: align(bytes) });
                (self.world.storage(bytes, None), 0)
            };
            self.world.tensors.push(TensorRecord { storage, offset, bytes });
            self.world.storages[storage as usize].readers += 1;
        }
        let over = self.overwrite(g, n, &info.facts, &args, &argument, last);
        let views = all_views(&info.facts, g, n);
        self.world.ops.push(OpRecord {
            work: if views { Work::View } else { Work::Kernel(info.prepared.clone()) },
            inputs: argument.iter().map(|a| a.map(|a| args[a].0)).collect(),
            first,
            outputs: node.outputs.len() as u32,
            workspace: info.facts.implementations.first().map_or(0, |i| i.workspace),
            cheap: !info.product,
            over,
            name: node.name.clone(),
            op: node.op.clone(),
        });
        let once = info.facts.once || !info.facts.commits.is_empty();
        let stats = self.machine.stats();
        if stats.first_cost.saturating_add(stats.repeat_cost).saturating_add(info.cost) > self.allowance {
            return Err(self.full(self.world.asked(), 0, true));
        }
        let op = self.machine.declare(&args, &outputs, info.cost, once).map_err(|e| bug(e.to_string()))?;
        self.step(|m, w| m.compute(op, w))?;
        for (o, v) in node.outputs.iter().enumerate() {
            self.tensors[v.index()] = Some(TensorId(first + o as u32));
        }
        self.ran[n.index()] = true;
        Ok(())
    }

    /// Runs every node that a value depends on, and the value's own.
    fn reach(&mut self, g: &Graph, v: ValueId) -> Result<(), RuntimeError> {
        self.grow(g);
        let mut wanted: Vec<NodeId> = Vec::new();
        // A loop asks once an iteration: what is looked at must be what is new.
        self.mark += 1;
        let mut stack = vec![v];
        while let Some(v) = stack.pop() {
            if let Some(n) = g.producer(v)
                && !self.ran[n.index()]
                && std::mem::replace(&mut self.marks[n.index()], self.mark) != self.mark
            {
                wanted.push(n);
                stack.extend(g.node(n).inputs.iter().flatten());
            }
        }
        wanted.sort_unstable();
        wanted.into_iter().try_for_each(|n| self.execute(g, n, &[]))
    }

    /// The elements of a value, computed now if need be.
    pub(crate) fn elements(&mut self, g: &Graph, v: ValueId) -> Result<Option<Literal>, RuntimeError> {
        let ty = g.ty(v).clone();
        let (Some(shape), Some(_)) = (ty.shape.fixed(), size(&ty)) else { return Ok(None) };
        self.asked.push(Asked::Elements(v));
        self.reach(g, v)?;
        let bytes = self.read(g, v)?;
        let shape = shape.into_iter().map(|d| d as u64).collect();
        Literal::new(ty.dtype, shape, bytes).map(Some).map_err(|e| bug(e.to_string()))
    }

    /// What was asked for, in order.
    pub(crate) fn asked(&self) -> &[Asked] {
        &self.asked
    }

    /// Goes through what was asked for in another run.
    pub(crate) fn ask_again(&mut self, g: &Graph, asked: &[Asked]) -> Result<(), RuntimeError> {
        for a in asked {
            match a {
                Asked::Elements(v) => {
                    self.reach(g, *v)?;
                    self.read(g, *v)?;
                }
                Asked::Room(bytes) => self.take_room(*bytes)?,
                Asked::Forget => self.world.pool.lend(self.room),
            }
        }
        Ok(())
    }

    /// Elements that were read are on the host no longer; what follows from them stays.
    pub(crate) fn forget(&mut self) {
        self.asked.push(Asked::Forget);
        self.world.pool.lend(self.room);
    }

    /// Takes bytes of the host into account until the step ends.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<(), RuntimeError> {
        self.asked.push(Asked::Room(bytes));
        self.take_room(bytes)
    }

    fn take_room(&mut self, bytes: u64) -> Result<(), RuntimeError> {
        self.lend(bytes, None, "what data decide".into())?;
        self.room += align(bytes);
        Ok(())
    }

    /// Makes room for bytes that will lie on the host, beside the tensor that they are a copy of.
    fn lend(&mut self, bytes: u64, of: Option<TensorId>, name: Arc<str>) -> Result<(), RuntimeError> {
        let args: Vec<TensorId> = of.into_iter().collect();
        let op = self.machine.declare(&args, &[Output::New { bytes: 0 }], 1, false);
        let op = op.map_err(|e| bug(e.to_string()))?;
        self.world.lend_record(bytes, of.map(|t| t.0), name);
        self.step(|m, w| m.compute(op, w))?;
        self.world.pool.lend(self.world.pool.lent() + align(bytes));
        if bytes >= MANY {
            self.world.discard();
        }
        Ok(())
    }

    /// The bytes of a value whose node ran.
    fn read(&mut self, g: &Graph, v: ValueId) -> Result<Arc<[u8]>, RuntimeError> {
        let bytes = g.ty(v).bytes().unwrap_or(0);
        if bytes > FREE_ROOM {
            // It must be there beside its copy.
            let t = self.tensor(g, v)?;
            self.lend(bytes, Some(t), g.value(v).name.clone())?;
        }
        let t = self.tensor(g, v)?;
        // One more reference that is given back: what is read is used, but may go again afterwards.
        if !self.machine.is_defined(t) {
            let op = self
                .machine
                .declare(&[t], &[Output::New { bytes: 0 }], 1, false)
                .map_err(|e| bug(e.to_string()))?;
            self.world.touch_record(t.0);
            self.step(|m, w| m.compute(op, w))?;
        }
        let region = self.world.region(t.0).ok_or_else(|| bug("a value is not there".to_owned()))?;
        let Some(device) = self.world.device.as_deref_mut() else { return Ok([].into()) };
        // One allocation: this may be the largest tensor of the model.
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, region.len as usize).collect();
        if let Some(bytes) = Arc::get_mut(&mut bytes) {
            device.read(region.offset, bytes);
        }
        Ok(bytes)
    }

    /// As [`Executor::finish`], with what the walk of the step's graph asked for: where deciding as ops come would take too long with the
    /// machine that answered, all is done again with one for many ops.
    pub(super) fn finish_walked(
        &mut self,
        g: &Graph,
        walked: Option<&(Graph, Vec<Asked>)>,
    ) -> Result<Done, RuntimeError> {
        let done = self.finish(g);
        let (Some((forward, asked)), true) = (walked, self.outgrown) else { return done };
        self.renew()?;
        self.infos = Infos::default();
        self.ask_again(forward, asked)?;
        self.rebase(forward, g)?;
        self.finish(g)
    }

    /// Plans all that outputs and commits need, or runs it.
    pub(crate) fn finish(&mut self, g: &Graph) -> Result<Done, RuntimeError> {
        self.asking = false;
        self.world.pool.lend(self.room);
        self.grow(g);
        let ends = g.states.iter().filter_map(|s| s.output);
        let mut needed = vec![false; g.nodes.len()];
        let mut stack: Vec<ValueId> = g.outputs.iter().copied().chain(ends).collect();
        while let Some(v) = stack.pop() {
            if let Some(n) = g.producer(v)
                && !std::mem::replace(&mut needed[n.index()], true)
            {
                stack.extend(g.node(n).inputs.iter().flatten());
            }
        }
        let mut uses = vec![0u32; g.values.len()];
        g.outputs.iter().for_each(|v| uses[v.index()] += 1);
        for (_, n) in g.nodes.iter().enumerate().filter(|(i, _)| needed[*i] && !self.ran[*i]) {
            n.inputs.iter().flatten().for_each(|v| uses[v.index()] += 1);
        }
        for (i, n) in uses.iter().enumerate() {
            if *n == 0 {
                self.let_go(g, ValueId(i as u32))?;
            }
        }
        let start = std::time::Instant::now();
        if !self.unplannable {
            let planned = self.planned(g, &needed);
            self.planning_ns = start.elapsed().as_nanos() as u64;
            if let Some(script) = planned? {
                return Ok(Done::Planned(script));
            }
            self.unplannable = true;
        }
        self.online(g, needed, uses).map(Done::Online)
    }

    /// Decides as ops come: where the planner sees no way, nested recomputation in another order may find one.
    fn online(
        &mut self,
        g: &Graph,
        needed: Vec<bool>,
        mut uses: Vec<u32>,
    ) -> Result<Vec<Region>, RuntimeError> {
        self.patience = self.patience.min(PLANNED_PATIENCE);
        if g.nodes.len() > LARGE && self.exact {
            if !self.world.ops.is_empty() {
                self.outgrown = true;
                return Err(bug("a machine that was outgrown".to_owned()));
            }
            self.machine = machine(Heuristic::DTR_EQ)?;
            self.patience = self.patience.min(LARGE_PATIENCE);
        }
        self.step_cost = 0;
        for i in (0..g.nodes.len()).filter(|i| needed[*i]) {
            self.step_cost += self.info(g, NodeId(i as u32))?.cost;
        }
        let mut commits = Vec::new();
        for (i, needed) in needed.into_iter().enumerate() {
            let n = NodeId(i as u32);
            if !needed || self.ran[i] {
                continue;
            }
            if self.info(g, n)?.facts.commits.is_empty() {
                self.execute(g, n, &uses)?;
                // What is read at the end is not made twice.
                for v in g.node(n).outputs.iter().filter(|v| g.outputs.contains(v)) {
                    let t = self.tensor(g, *v)?;
                    self.step(|m, w| m.hold(t, w))?;
                }
                self.used(g, n, &mut uses)?;
            } else {
                commits.push(n);
            }
        }
        let held = commits.iter().flat_map(|n| g.node(*n).inputs.iter().flatten()).chain(&g.outputs);
        for v in held.copied().collect::<Vec<_>>() {
            let made_by_commit = g.producer(v).is_some_and(|n| !self.ran[n.index()]);
            if !made_by_commit {
                let t = self.tensor(g, v)?;
                self.step(|m, w| m.hold(t, w))?;
            }
        }
        for n in commits {
            self.execute(g, n, &uses)?;
            self.used(g, n, &mut uses)?;
        }
        g.outputs
            .iter()
            .map(|v| {
                let t = self.tensor(g, *v)?;
                self.world.region(t.0).ok_or_else(|| bug("an output is not there".to_owned()))
            })
            .collect()
    }

    /// A node ran: what it was the last to read goes.
    fn used(&mut self, g: &Graph, n: NodeId, uses: &mut [u32]) -> Result<(), RuntimeError> {
        let node = g.node(n);
        for v in node.inputs.iter().flatten() {
            uses[v.index()] -= 1;
            if uses[v.index()] == 0 {
                self.let_go(g, *v)?;
            }
        }
        for v in node.outputs.iter().filter(|v| uses[v.index()] == 0) {
            self.let_go(g, *v)?;
        }
        Ok(())
    }

    fn let_go(&mut self, g: &Graph, v: ValueId) -> Result<(), RuntimeError> {
        if matches!(g.value(v).def, ValueDef::State(_)) {
            return Ok(());
        }
        match self.tensors[v.index()] {
            Some(t) => self.release(t),
            None => Ok(()),
        }
    }

    fn release(&mut self, t: TensorId) -> Result<(), RuntimeError> {
        let storage = self.world.tensors[t.index()].storage;
        self.world.storages[storage as usize].readers -= 1;
        self.step(|m, w| m.release(t, w))
    }
}

/// The key of an input's elements: its name, marked as one, or what it is for. A name may be any text, and is no such word for that.
pub(crate) fn host_key(role: InputRole, name: &str) -> String {
    let what = match role {
        InputRole::Data | InputRole::Label => return format!("={name}"),
        InputRole::LearningRate => "learning rate",
        InputRole::Step => "step",
        InputRole::Seed => "seed",
        // Graphs that run here have their constants inside.
        InputRole::Constant => "constant",
    };
    what.to_owned()
}

pub(super) fn all_views(facts: &Facts, g: &Graph, n: NodeId) -> bool {
    let outputs = g.node(n).outputs.len();
    outputs > 0 && facts.views.len() == outputs
}

/// Whether the product of all extents that are not 0 is far from overflowing: what is empty may have other axes of any length.
fn is_bounded(ty: &TensorType) -> bool {
    let extents = ty.shape.0.iter().filter_map(|d| d.as_const()).filter_map(|n| u64::try_from(n).ok());
    let product = extents.filter(|n| *n > 0).try_fold(ty.dtype.size(), u64::checked_mul);
    product.is_some_and(|n| n <= 1 << 56)
}

pub(super) fn size(ty: &TensorType) -> Option<u64> {
    ty.bytes().filter(|b| *b <= 1 << 48)
}

/// Estimated nanoseconds of a node, at least 1, and whether it is a product.
fn cost(rates: &Rates, g: &Graph, n: NodeId) -> (u64, bool) {
    let node = g.node(n);
    let Some(op) = ops::find(&node.op) else { return (1, false) };
    let work = op.work(&Signature::of(g, node));
    let ns = rates.nanoseconds(work.flops, work.bytes, work.product);
    (ns.clamp(1.0, 1e12) as u64, work.product)
}

pub(crate) fn bug(what: String) -> RuntimeError {
    RuntimeError::Internal(what)
}
