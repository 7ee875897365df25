//! A step's graph as the planner of known programs sees it: ops and the storages between them.

use super::{
    executor::{NodeInfo, Surroundings, all_views, bug, host_key, size},
    world::PoolWorld,
};
use crate::RuntimeError;
use dtr::{
    TensorId,
    foresight::{Step, Straight},
};
use graph::{Graph, Literal, NodeId, ValueDef, ValueId};
use plan::align;
use std::sync::Arc;

/// Where the bytes of a leaf come from.
#[derive(Clone)]
pub(super) enum Origin {
    /// What the step is given, by [`host_key`].
    Given(Arc<str>),
    Constant(Literal),
}

/// What an op of the planned program is.
#[derive(Clone)]
pub(super) enum Work {
    /// A copy from the host.
    Leaf(ValueId, Origin),
    /// A node's kernel.
    Node(NodeId, Arc<NodeInfo>),
}

/// The planned program, and what its numbers stand for.
pub(super) struct Layout {
    pub(super) program: Straight,
    /// What each op is.
    pub(super) work: Vec<Work>,
    /// Where each value lies: its storage, and the first byte in it.
    pub(super) places: Vec<Option<(u32, u64)>>,
    /// Where storages lie that are no part of the pool.
    pub(super) outside: Vec<Option<u64>>,
    /// The storage of the online run that each one was, if it was there before.
    pub(super) before: Vec<Option<u32>>,
}

/// What ran before the plan, as the online run left it.
pub(super) struct Past<'a, 'd> {
    pub(super) world: &'a PoolWorld<'d>,
    pub(super) tensors: &'a [Option<TensorId>],
    pub(super) ran: &'a [bool],
}

struct Builder<'a, 'd> {
    g: &'a Graph,
    around: &'a Surroundings,
    past: Past<'a, 'd>,
    layout: Layout,
}

impl Layout {
    /// Takes what outputs and commits need (`nodes`, in order) apart into ops; those from `last` on run with all that they read there.
    pub(super) fn new(
        g: &Graph,
        nodes: &[(NodeId, Arc<NodeInfo>)],
        last: usize,
        around: &Surroundings,
        past: Past<'_, '_>,
    ) -> Result<Layout, RuntimeError> {
        let layout = Layout {
            program: Straight::default(),
            work: Vec::with_capacity(nodes.len()),
            places: vec![None; g.values.len()],
            outside: Vec::new(),
            before: Vec::new(),
        };
        let mut b = Builder { g, around, past, layout };
        let ran = |(n, _): &&(NodeId, Arc<NodeInfo>)| b.past.ran[n.index()];
        let (first, rest): (Vec<_>, Vec<_>) = nodes[..last].iter().partition(ran);
        for (n, info) in first {
            b.node(*n, info)?;
        }
        b.layout.program.ran = b.layout.work.len();
        for (n, info) in rest {
            b.node(*n, info)?;
        }
        // What the last ones read from the host is there before the first of them runs.
        for (n, _) in &nodes[last..] {
            for v in g.node(*n).inputs.iter().flatten().filter(|v| g.producer(**v).is_none()) {
                b.place(*v)?;
            }
        }
        for v in g.outputs.iter().filter(|v| g.producer(**v).is_none()) {
            b.place(*v)?;
        }
        b.layout.program.last = b.layout.work.len();
        for (n, info) in &nodes[last..] {
            b.node(*n, info)?;
        }
        b.finish()
    }

    /// Storages that are read at the end.
    fn results(&self, g: &Graph) -> Vec<u32> {
        let mut all: Vec<u32> = g.outputs.iter().filter_map(|v| Some(self.places[v.index()]?.0)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

impl Builder<'_, '_> {
    fn storage(&mut self, bytes: u64, maker: u32, outside: Option<u64>) -> u32 {
        let p = &mut self.layout.program;
        p.bytes.push(if outside.is_some() { 0 } else { align(bytes) });
        p.makers.push(maker);
        self.layout.outside.push(outside);
        self.layout.before.push(None);
        p.bytes.len() as u32 - 1
    }

    /// The place of a value; one that comes from the host gets its op now.
    fn place(&mut self, v: ValueId) -> Result<(u32, u64), RuntimeError> {
        if let Some(place) = self.layout.places[v.index()] {
            return Ok(place);
        }
        let value = self.g.value(v);
        let bytes = self.bytes(v)?;
        let storage = match &value.def {
            ValueDef::Node { .. } => return Err(bug(format!("{:?} is read before it is made", value.name))),
            ValueDef::State(s) => {
                let at = self.around.state(&self.g.states[s.index()].name, &value.ty)?;
                self.storage(bytes, Straight::OUTSIDE, Some(at))
            }
            ValueDef::Constant(l) => self.leaf(v, bytes, Origin::Constant(l.clone())),
            ValueDef::Input(i) => {
                let key = host_key(self.g.inputs[*i as usize].role, &value.name);
                self.leaf(v, bytes, Origin::Given(key.into()))
            }
        };
        self.layout.places[v.index()] = Some((storage, 0));
        Ok((storage, 0))
    }

    fn leaf(&mut self, v: ValueId, bytes: u64, origin: Origin) -> u32 {
        let storage = self.storage(bytes, self.layout.work.len() as u32, None);
        let cost = 1 + (bytes as f64 / self.around.rates.bytes_per_s * 1e9) as u64;
        self.layout.program.steps.push(Step { makes: vec![storage], cost, leaf: true, ..Step::default() });
        self.layout.work.push(Work::Leaf(v, origin));
        self.remember(v, storage);
        storage
    }

    fn bytes(&self, v: ValueId) -> Result<u64, RuntimeError> {
        let value = self.g.value(v);
        size(&value.ty).ok_or_else(|| bug(format!("the size of {:?} is unknown", value.name)))
    }

    /// Notes which storage of the online run a value's was.
    fn remember(&mut self, v: ValueId, storage: u32) {
        if let Some(t) = self.past.tensors[v.index()] {
            self.layout.before[storage as usize] = Some(self.past.world.tensors[t.index()].storage);
        }
    }

    fn node(&mut self, n: NodeId, info: &Arc<NodeInfo>) -> Result<(), RuntimeError> {
        let node = self.g.node(n);
        let mut reads = Vec::with_capacity(node.inputs.len());
        for v in node.inputs.iter().flatten() {
            reads.push(self.place(*v)?.0);
        }
        reads.sort_unstable();
        reads.dedup();
        let at = self.layout.work.len() as u32;
        let mut commits = Vec::new();
        let mut makes = Vec::with_capacity(node.outputs.len());
        for (o, v) in node.outputs.iter().enumerate() {
            let source = |this: &Self, i: usize| {
                let v = node.inputs.get(i).copied().flatten();
                v.and_then(|v| this.layout.places[v.index()])
                    .ok_or_else(|| bug("no such argument".to_owned()))
            };
            let view = info.facts.views.iter().find(|w| w.output == o);
            let commit = info.facts.commits.iter().find(|c| c.0 == o);
            let place = if let Some(view) = view {
                let (storage, offset) = source(self, view.input)?;
                (storage, offset + view.offset)
            } else if let Some((_, input)) = commit {
                let (state, offset) = source(self, *input)?;
                let arena = self.layout.outside[state as usize];
                let arena = arena.ok_or_else(|| bug("a commit of what is no state".to_owned()))?;
                commits.push(state);
                (self.storage(0, Straight::OUTSIDE, Some(arena + offset)), 0)
            } else {
                let storage = self.storage(self.bytes(*v)?, at, None);
                self.remember(*v, storage);
                makes.push(storage);
                (storage, 0)
            };
            self.layout.places[v.index()] = Some(place);
        }
        if all_views(&info.facts, self.g, n) {
            return Ok(());
        }
        let workspace = info.facts.implementations.first().map_or(0, |i| i.workspace);
        self.layout.program.steps.push(Step {
            reads,
            makes,
            workspace: align(workspace),
            cost: info.cost,
            once: info.facts.once || !info.facts.commits.is_empty(),
            leaf: false,
            over: None,
            commits,
        });
        self.layout.work.push(Work::Node(n, info.clone()));
        Ok(())
    }

    fn finish(mut self) -> Result<Layout, RuntimeError> {
        self.layout.program.results = self.layout.results(self.g);
        self.overwrites();
        for (s, before) in self.layout.before.iter().enumerate() {
            let there = before.and_then(|w| self.past.world.storages[w as usize].at).is_some();
            if there && self.layout.program.bytes[s] > 0 {
                self.layout.program.resident.push(s as u32);
            }
        }
        Ok(self.layout)
    }

    /// Which outputs are made in the place of an argument: nothing else reads the argument's storage afterwards.
    fn overwrites(&mut self) {
        let Layout { program, work, places, .. } = &mut self.layout;
        let is_once =
            |maker: u32| !matches!(work.get(maker as usize), Some(Work::Node(_, i)) if !i.facts.once);
        let mut left = vec![0u32; program.bytes.len()];
        program.results.iter().for_each(|s| left[*s as usize] += 1);
        program.steps[program.ran..].iter().flat_map(|s| &s.reads).for_each(|s| left[*s as usize] += 1);
        for (step, work) in program.steps.iter_mut().zip(work.iter()).skip(program.ran) {
            let Work::Node(n, info) = work else { continue };
            let node = self.g.node(*n);
            step.over = info.facts.overwrites.iter().find_map(|(o, i)| {
                let v = node.inputs.get(*i).copied().flatten()?;
                let (storage, offset) = places[v.index()]?;
                let (made, _) = places[node.outputs.get(*o)?.index()]?;
                let same = |w: &&Option<ValueId>| {
                    w.and_then(|w| places[w.index()]).is_some_and(|(s, _)| s == storage)
                };
                let times = node.inputs.iter().filter(same).count();
                let mine = !is_once(program.makers[storage as usize]);
                let bytes = program.bytes[storage as usize];
                let fits = bytes > 0 && offset == 0 && program.bytes[made as usize] == bytes;
                (mine && fits && times == 1 && left[storage as usize] == 1).then_some((made, storage))
            });
            step.reads.iter().for_each(|s| left[*s as usize] -= 1);
        }
    }
}
