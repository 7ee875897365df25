//! A plan with its addresses: what the device does, call by call.
//!
//! Addresses follow from the plan alone, so that a step of the same sizes in the same pool is this list again: nothing is decided anew.

use super::{
    executor::bug,
    layout::{Layout, Origin, Work},
    pool::Pool,
    world::PoolWorld,
};
use crate::{RuntimeError, device::Eager, resolve::Region};
use dtr::foresight::{Action, Schedule};
use graph::{Graph, ValueId};
use std::collections::BTreeMap;

/// One thing that the device does.
enum Move {
    /// A leaf is copied from the host.
    Write { step: u32, at: u64 },
    /// A kernel runs on the next regions of the list.
    Call { step: u32, scratch: Option<Region> },
    /// A tensor slides.
    Shift { from: u64, to: u64, len: u64 },
}

/// What the device does for one step.
pub(crate) struct Script {
    moves: Vec<Move>,
    /// Inputs and outputs of the calls, one call after the other.
    regions: Vec<Option<Region>>,
    work: Vec<Work>,
    /// Where the outputs of the graph lie at the end.
    results: Vec<Region>,
    /// First byte and bytes of the pool it was made for.
    pub(crate) pool: (u64, u64),
    /// Most bytes in use, bytes moved.
    pub(crate) peak: u64,
    pub(crate) moved: u64,
    /// Ops that run once, evictions, repetitions, and what first and repeated executions cost.
    pub(crate) firsts: u64,
    pub(crate) evictions: u64,
    pub(crate) repeats: u64,
    pub(crate) first_cost: u64,
    pub(crate) repeat_cost: u64,
}

struct Writer<'a> {
    g: &'a Graph,
    layout: &'a Layout,
    pool: Pool,
    base: u64,
    /// Where each storage lies in the arena.
    at: Vec<Option<u64>>,
    /// States of which a commit has written the new version.
    stale: Vec<bool>,
    /// The op whose first execution comes next.
    next: usize,
    script: Script,
}

impl Script {
    /// Gives every storage of a plan its addresses. What the online run left in the pool stays where it is. The list of what each op is
    /// goes from the layout to the script.
    ///
    /// A plan that is none of this program's is refused, wherever it comes from: every op runs in its turn, on what is there.
    pub(super) fn new(
        g: &Graph,
        layout: &mut Layout,
        schedule: &Schedule,
        world: &PoolWorld<'_>,
    ) -> Result<Script, RuntimeError> {
        let (pool, base) = (world.pool.clone(), world.base());
        let script = Script {
            moves: Vec::with_capacity(schedule.actions.len()),
            regions: Vec::with_capacity(4 * schedule.actions.len()),
            work: Vec::new(),
            results: Vec::new(),
            pool: (base, pool.bytes()),
            peak: 0,
            moved: 0,
            firsts: 0,
            evictions: schedule.evictions,
            repeats: schedule.repeats,
            first_cost: schedule.first_cost,
            repeat_cost: schedule.repeat_cost,
        };
        let stale = vec![false; layout.outside.len()];
        let (at, next) = (layout.outside.clone(), layout.program.ran);
        let mut w = Writer { g, layout, pool, base, at, stale, next, script };
        w.take_over(world);
        for action in &schedule.actions {
            match *action {
                Action::Drop { storage } => w.drop(storage)?,
                Action::Run { step, again, over } => w.run(step, again, over)?,
            }
        }
        if w.next != w.layout.program.steps.len() {
            return Err(foreign());
        }
        let results: Result<Vec<Region>, _> = g.outputs.iter().map(|v| w.region(*v)).collect();
        w.script.results = results?;
        w.script.peak = w.pool.peak();
        let mut script = w.script;
        script.work = std::mem::take(&mut layout.work);
        // It may be kept for steps to come.
        script.moves.shrink_to_fit();
        script.regions.shrink_to_fit();
        Ok(script)
    }

    /// Runs it.
    pub(super) fn play(
        &self,
        g: &Graph,
        device: &mut dyn Eager,
        host: &BTreeMap<String, &[u8]>,
        check: bool,
    ) -> Result<(), RuntimeError> {
        // What is missing is missed before anything is committed.
        for work in &self.work {
            if let Work::Leaf(v, Origin::Given(key)) = work {
                given(g, *v, key, host)?;
            }
        }
        let mut regions = self.regions.iter();
        let mut hashes: BTreeMap<u32, blake3::Hash> = BTreeMap::new();
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for m in &self.moves {
            match *m {
                Move::Shift { from, to, len } => device.shift(from, to, len),
                Move::Write { step, at } => match &self.work[step as usize] {
                    Work::Leaf(_, Origin::Constant(l)) => device.write(at, l.bytes()),
                    Work::Leaf(v, Origin::Given(key)) => device.write(at, given(g, *v, key, host)?),
                    Work::Node(..) => return Err(bug("a node is no leaf".to_owned())),
                },
                Move::Call { step, scratch } => {
                    let Work::Node(n, info) = &self.work[step as usize] else {
                        return Err(bug("a leaf is no node".to_owned()));
                    };
                    let node = g.node(*n);
                    let kernel = info.prepared.as_ref().ok_or_else(|| bug("no kernel".to_owned()))?;
                    inputs.clear();
                    inputs.extend(regions.by_ref().take(node.inputs.len()));
                    outputs.clear();
                    outputs.extend(regions.by_ref().take(node.outputs.len()).flatten());
                    device.call(kernel, &inputs, &outputs, scratch).map_err(|what| RuntimeError::Kernel {
                        node: node.name.to_string(),
                        op: node.op.to_string(),
                        what,
                    })?;
                    if check {
                        let hash = hash(device, &outputs);
                        if *hashes.entry(step).or_insert(hash) != hash {
                            let (node, op) = (node.name.to_string(), node.op.to_string());
                            return Err(RuntimeError::RecomputeDiffers { node, op });
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Where the outputs of the graph lie.
    pub(super) fn results(&self) -> &[Region] {
        &self.results
    }
}

/// The elements that the step is given for a value.
fn given<'h>(
    g: &Graph,
    v: ValueId,
    key: &str,
    host: &BTreeMap<String, &'h [u8]>,
) -> Result<&'h [u8], RuntimeError> {
    let value = g.value(v);
    let bytes = host.get(key).copied().filter(|b| Some(b.len() as u64) == value.ty.bytes());
    bytes.ok_or_else(|| RuntimeError::Input {
        name: value.name.to_string(),
        what: format!("{} is not given", value.ty),
    })
}

fn foreign() -> RuntimeError {
    bug("a plan of another program".to_owned())
}

fn hash(device: &dyn Eager, outputs: &[Region]) -> blake3::Hash {
    let mut h = blake3::Hasher::new();
    let mut buffer = Vec::new();
    for o in outputs {
        buffer.resize(o.len as usize, 0);
        device.read(o.offset, &mut buffer);
        h.update(&buffer);
    }
    h.finalize()
}

impl Writer<'_> {
    /// Finds the storages that are there already; what is not in the plan goes.
    fn take_over(&mut self, world: &PoolWorld<'_>) {
        let mut planned = vec![None; world.storages.len()];
        for (s, before) in self.layout.before.iter().enumerate() {
            if let Some(before) = before {
                planned[*before as usize] = Some(s as u32);
            }
        }
        for (w, storage) in world.storages.iter().enumerate().filter(|(_, s)| s.bytes > 0) {
            match (storage.at, planned[w]) {
                (Some(at), Some(s)) => {
                    self.at[s as usize] = Some(at);
                    self.pool.pass_on(at - self.base, s);
                }
                (Some(at), None) => self.pool.free(at - self.base),
                (None, _) => {}
            }
        }
    }

    fn region(&self, v: ValueId) -> Result<Region, RuntimeError> {
        let place = self.layout.places[v.index()];
        let (storage, offset) = place.ok_or_else(|| bug("a value without a place".to_owned()))?;
        let at = match self.at[storage as usize] {
            Some(at) => at,
            // What has no elements lies anywhere.
            None if self.layout.program.bytes[storage as usize] == 0 => self.base,
            None => return Err(bug(format!("{:?} is not there", self.g.value(v).name))),
        };
        let len = self.g.ty(v).bytes().unwrap_or(0);
        Ok(Region { offset: at + offset, len })
    }

    fn drop(&mut self, storage: u32) -> Result<(), RuntimeError> {
        if !matches!(self.layout.outside.get(storage as usize), Some(None)) {
            return Err(foreign());
        }
        if let Some(at) = self.at[storage as usize].take() {
            self.pool.free(at - self.base);
        }
        Ok(())
    }

    fn run(&mut self, id: u32, again: bool, over: bool) -> Result<(), RuntimeError> {
        let step = self.layout.program.steps.get(id as usize).ok_or_else(foreign)?;
        let in_turn = if again { (id as usize) < self.next && !step.once } else { id as usize == self.next };
        if !in_turn {
            return Err(foreign());
        }
        self.next += usize::from(!again);
        let over = step.over.filter(|_| over);
        let own = |s: &&u32| self.layout.program.bytes[**s as usize] > 0 && Some(**s) != over.map(|o| o.0);
        let makes: Vec<u32> = step.makes.iter().filter(own).copied().collect();
        let bytes: u64 = makes.iter().map(|s| self.layout.program.bytes[*s as usize]).sum();
        let cheap = !matches!(&self.layout.work[id as usize], Work::Node(_, info) if info.product);
        let start = self.base + self.find(bytes + step.workspace, cheap)?;
        self.pool.touch(bytes + step.workspace);
        // Scratch lies on the side of the hole.
        let (mut at, scratch) = if cheap { (start + step.workspace, start) } else { (start, start + bytes) };
        // Where outputs are written: what is there already is not disturbed.
        let mut fresh = Vec::with_capacity(makes.len());
        for s in makes {
            fresh.push((s, at, self.at[s as usize]));
            at += self.layout.program.bytes[s as usize];
        }
        let Work::Node(n, info) = &self.layout.work[id as usize] else {
            let at = fresh.first().map_or(self.base, |f| f.1);
            self.script.moves.push(Move::Write { step: id, at });
            self.settle(&fresh);
            self.script.firsts += u64::from(!again);
            return Ok(());
        };
        let node = self.g.node(*n);
        if step.reads.iter().any(|s| self.stale[*s as usize]) {
            return Err(bug(format!("{:?} would read what the step has overwritten", node.name)));
        }
        step.commits.iter().for_each(|s| self.stale[*s as usize] = true);
        for v in &node.inputs {
            let region = v.map(|v| self.region(v)).transpose()?;
            self.script.regions.push(region);
        }
        if let Some((made, read)) = over {
            self.at[made as usize] = self.at[read as usize].take();
            if let Some(at) = self.at[made as usize] {
                self.pool.pass_on(at - self.base, made);
            }
        }
        for (s, at, _) in &fresh {
            self.at[*s as usize] = Some(*at);
        }
        for v in &node.outputs {
            let region = self.region(*v)?;
            self.script.regions.push(Some(region));
        }
        let workspace = info.facts.implementations.first().map_or(0, |i| i.workspace);
        let scratch = (workspace > 0).then_some(Region { offset: scratch, len: workspace });
        self.script.moves.push(Move::Call { step: id, scratch });
        self.settle(&fresh);
        self.script.firsts += u64::from(!again);
        Ok(())
    }

    /// Outputs that were there before stay there; the others take their places.
    fn settle(&mut self, fresh: &[(u32, u64, Option<u64>)]) {
        for (s, at, before) in fresh.iter().copied() {
            self.at[s as usize] = before.or(Some(at));
            if before.is_none() {
                self.pool.take(at - self.base, self.layout.program.bytes[s as usize], s);
            }
        }
    }

    /// A hole of so many bytes; tensors slide if none is long enough.
    fn find(&mut self, bytes: u64, cheap: bool) -> Result<u64, RuntimeError> {
        if bytes == 0 {
            return Ok(0);
        }
        if let Some(at) = self.pool.find(bytes, cheap) {
            return Ok(at);
        }
        for (storage, from, to, len) in self.pool.slide(bytes) {
            if from != to {
                self.script.moves.push(Move::Shift { from: self.base + from, to: self.base + to, len });
                self.script.moved += len;
                self.at[storage as usize] = Some(self.base + to);
            }
        }
        self.pool.find(bytes, cheap).ok_or_else(|| bug("a plan does not fit its pool".to_owned()))
    }
}
