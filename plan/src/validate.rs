//! What a right plan is.
//!
//! The validator replays each program and checks:
//!
//! 1. The graph is well formed, every size is known, and every type follows from the operators.
//! 2. State entries lie in the state section without overlap; each is the state of a program, and every state of a program is one of them,
//!    with its type, its first elements and its kind.
//! 3. A step reads only instances that are live; after a commit nothing reads the old version or a view of it, nor is it an output.
//! 4. Storages that are live together do not overlap, workspaces included, and all lie in the arena.
//! 5. Views, overwrites, commits and implementations are the operators' facts; views are aligned to their elements. What is overwritten
//!    is not read any more, and not by another argument of the same step.
//! 6. A node that must not run twice does not; every state with a new version is committed, once. After the first commit no node may find
//!    fault with its data: what may refuse its integers runs for the first time only where a node that ran before has passed them.
//! 7. Outputs are live at the end. Live peak and arena are the certified ones; the arena is at most the budget.
//! 8. A dynamic program has no nodes and steps of its own, its pool lies in the arena's free part, and its states are the plan's.
//! 9. The numerics hash is that of the programs. There is a program, and parts of a step exactly where gradients are accumulated.
//! 10. A program with a guard has a dynamic one of its kind, whose inputs at the guard's upper bounds it has; of two for the same sizes the
//!     later one needs less.
//!
//! Nothing here trusts the plan: ids are checked before they are used as indices and sums before they are used as addresses.

use crate::{
    ALIGNMENT, Dynamic, Place, Plan, Program, ProgramKind, Run, StateEntry, Step, align, choice,
    plan_numerics,
};
use graph::{Facts, Graph, Init, OpFacts, Passed, StateId, StateKind, TensorType, ValueDef, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// A plan that must not run: where and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid plan: {at}: {what}")]
pub struct ValidateError {
    /// Program and step, with the node's name.
    pub at: String,
    /// The broken rule.
    pub what: String,
}

/// What the replay of a program found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Live bytes while each step runs, state included.
    pub live: Vec<u64>,
    /// Live bytes after each drop, in the order of steps and drops.
    pub live_after_drops: Vec<u64>,
    /// Greatest of the live bytes at a step, or of the state where there is none.
    pub peak: u64,
    /// First step at which it is reached.
    pub peak_step: usize,
    /// First byte after everything.
    pub arena: u64,
    /// Steps that run a node for at least the second time.
    pub recomputed: Vec<usize>,
}

/// Checks every rule in the module's list. Returns the replay of each program.
pub fn validate(plan: &Plan, ops: &dyn OpFacts) -> Result<Vec<Replay>, ValidateError> {
    let fail = |what: String| Err(ValidateError { at: "plan".to_owned(), what });
    if plan.arena > plan.budget {
        return fail(format!(
            "the arena of {} bytes is larger than the budget of {}",
            plan.arena, plan.budget
        ));
    }
    if plan.programs.is_empty() {
        return fail("it has no program".to_owned());
    }
    let parts = plan.programs.iter().any(|p| matches!(p.kind, ProgramKind::Micro | ProgramKind::Last));
    if plan.accumulate == 0 || (plan.accumulate > 1) != parts {
        return fail(format!("a step in {} parts does not fit its programs", plan.accumulate));
    }
    state_section(plan).map_err(|what| ValidateError { at: "plan".to_owned(), what })?;
    choice::check(plan).map_err(|(i, what)| ValidateError {
        at: format!("program {i} ({})", plan.programs[i].kind),
        what,
    })?;
    if plan_numerics(plan, ops) != plan.numerics {
        return fail("the numerics hash is not that of the programs".to_owned());
    }
    let check = |(i, p): (usize, &Program)| match &p.dynamic {
        Some(d) => dynamic(plan, p, d)
            .map_err(|what| ValidateError { at: format!("program {i} ({})", p.kind), what }),
        None => Walk::new(plan, p, i, ops)?.run(),
    };
    plan.programs.iter().enumerate().map(check).collect()
}

/// The program at `index` over another graph: that of sizes within its guard. It must have the same nodes in the same order, wired alike;
/// extents and what follows from them may differ. All rules for places and lifetimes are checked on it.
///
/// # Errors
///
/// The steps and offsets are not lawful for this graph, which may be right for another program.
pub fn validate_at(
    plan: &Plan,
    index: usize,
    graph: Graph,
    ops: &dyn OpFacts,
) -> Result<(Program, Replay), ValidateError> {
    let planned = &plan.programs[index];
    let at = || format!("program {index} ({})", planned.kind);
    if let Some(what) = other_structure(&planned.graph, &graph) {
        return Err(ValidateError { at: at(), what });
    }
    let Program { kind, guard, inputs, steps, certificate, .. } = planned;
    let program = Program {
        kind: *kind,
        guard: guard.clone(),
        graph,
        inputs: inputs.clone(),
        steps: steps.clone(),
        certificate: certificate.clone(),
        dynamic: None,
    };
    let replay = Walk { exact: false, ..Walk::new(plan, &program, index, ops)? }.run()?;
    Ok((program, replay))
}

/// Where two graphs differ in more than extents and attributes.
fn other_structure(a: &Graph, b: &Graph) -> Option<String> {
    let node = |(x, y): (&graph::Node, &graph::Node)| {
        if x.op != y.op {
            let name = if x.name == y.name { String::new() } else { format!("{:?}, ", y.name) };
            return Some(format!("node {:?}, {}, is {name}{}, for these sizes", x.name, x.op, y.op));
        }
        (x.inputs != y.inputs || x.outputs != y.outputs)
            .then(|| format!("node {:?}, {}, reads or makes other values for these sizes", x.name, x.op))
    };
    if let Some(what) = a.nodes.iter().zip(&b.nodes).find_map(node) {
        return Some(what);
    }
    let counts = [
        ("nodes", a.nodes.len(), b.nodes.len()),
        ("values", a.values.len(), b.values.len()),
        ("inputs", a.inputs.len(), b.inputs.len()),
        ("states", a.states.len(), b.states.len()),
    ];
    if let Some((what, n, m)) = counts.into_iter().find(|(_, n, m)| n != m) {
        return Some(format!("it has {m} {what} for these sizes, not {n}"));
    }
    if let Some((x, _)) = a.inputs.iter().zip(&b.inputs).find(|(x, y)| x != y) {
        return Some(format!("input {:?} is another one", a.value(x.value).name));
    }
    let alike = |x: &graph::State, y: &graph::State| {
        x.name == y.name && x.kind == y.kind && x.input == y.input && x.output == y.output
    };
    if let Some((x, _)) = a.states.iter().zip(&b.states).find(|(x, y)| !alike(x, y)) {
        return Some(format!("state {:?} is another one", x.name));
    }
    (a.outputs != b.outputs).then(|| "its outputs are others".to_owned())
}

/// The state section: entries in order, without overlap, each of them the state of a program.
fn state_section(plan: &Plan) -> Result<(), String> {
    let Some(top) = plan.state_bytes.checked_sub(plan.slot_bytes).filter(|t| t.is_multiple_of(ALIGNMENT))
    else {
        return Err("the input slot is larger than the state section, or not aligned".to_owned());
    };
    let mut end = 0u64;
    let mut kinds: BTreeMap<&str, Option<StateKind>> = BTreeMap::new();
    for s in &plan.state {
        let stop = s.ty.bytes().and_then(|b| s.offset.checked_add(align(b)));
        match stop {
            Some(stop) if s.offset >= end && s.offset.is_multiple_of(ALIGNMENT) && stop <= top => end = stop,
            _ => {
                return Err(format!(
                    "state {:?} overlaps another or lies outside of the state section",
                    s.name
                ));
            }
        }
        if let Init::Literal(l) = &s.init
            && TensorType::new(l.dtype(), l.shape()) != s.ty
        {
            return Err(format!("state {:?} begins with elements of another type", s.name));
        }
        if kinds.insert(&s.name, None).is_some() {
            return Err(format!("two states have the name {:?}", s.name));
        }
    }
    if plan.state_bytes > plan.arena || !plan.state_bytes.is_multiple_of(ALIGNMENT) {
        return Err("the state section is larger than the arena or not aligned".to_owned());
    }
    for s in plan.programs.iter().flat_map(|p| &p.graph.states) {
        if let Some(kind) = kinds.get_mut(&*s.name) {
            // One program trains what another only reads.
            match kind {
                None | Some(StateKind::Frozen) => *kind = Some(s.kind),
                Some(k) if s.kind == StateKind::Frozen || *k == s.kind => {}
                Some(k) => {
                    return Err(format!("state {:?} is both {k:?} and {:?}", s.name, s.kind));
                }
            }
        }
    }
    for s in &plan.state {
        match kinds.get(&*s.name).copied().flatten() {
            Some(kind) if kind == s.kind => {}
            Some(kind) => return Err(format!("state {:?} is {kind:?}, not {:?}", s.name, s.kind)),
            None => return Err(format!("state {:?} is of no program", s.name)),
        }
    }
    Ok(())
}

/// A dynamic program: what it says of itself before it is made.
fn dynamic(plan: &Plan, p: &Program, d: &Dynamic) -> Result<Replay, String> {
    graph::verify(&p.graph).map_err(|e| e.to_string())?;
    if !p.graph.nodes.is_empty() || !p.graph.outputs.is_empty() || !p.steps.is_empty() {
        return Err("it is dynamic, and yet has nodes, outputs or steps".to_owned());
    }
    let end = d.pool.checked_add(d.work).filter(|e| *e <= plan.arena);
    let Some(end) = end.filter(|_| d.pool >= plan.state_bytes && d.pool.is_multiple_of(ALIGNMENT)) else {
        return Err(format!(
            "its pool of {} bytes at {} lies outside of the arena's free part",
            d.work, d.pool
        ));
    };
    if p.inputs.len() != p.graph.inputs.len() || p.inputs.iter().any(|i| *i != d.pool) {
        return Err("its inputs do not stand at the pool's first byte, to be placed at run time".to_owned());
    }
    let rates =
        [d.rates.product_flops_per_s, d.rates.other_flops_per_s, d.rates.bytes_per_s, d.rates.launch_ns];
    if rates.iter().any(|r| !r.is_finite() || *r < 0.0) || rates[..3].contains(&0.0) {
        return Err("its rates are not positive numbers".to_owned());
    }
    let entries: BTreeMap<&str, &StateEntry> = plan.state.iter().map(|e| (&*e.name, e)).collect();
    for s in &p.graph.states {
        if s.output.is_some()
            || entries.get(&*s.name).is_none_or(|e| e.ty != *p.graph.ty(s.input) || e.init != s.init)
        {
            return Err(format!(
                "state {:?} is not in the state section with its type and first elements",
                s.name
            ));
        }
    }
    Ok(Replay { peak: end, arena: end, ..Replay::default() })
}

/// Whether all extents are known and their product, zeros left out, is far from overflowing.
fn is_bounded(ty: &TensorType) -> bool {
    let extents = ty.shape.0.iter().map(|d| d.as_const().and_then(|n| u64::try_from(n).ok()));
    extents
        .into_iter()
        .try_fold(ty.dtype.size(), |n, d| n.checked_mul(d?.max(1)))
        .is_some_and(|n| n <= 1 << 56)
}

/// A storage: an interval of the arena and the values whose instances lie on it.
struct Storage {
    start: u64,
    bytes: u64,
    holders: BTreeSet<ValueId>,
    owner: Owner,
}

/// Whose memory a storage is.
#[derive(Clone, Copy, PartialEq)]
enum Owner {
    /// Its own part of the arena.
    Arena,
    /// The state section: the version before the step.
    Old(StateId),
    /// The state section: the version after the commit.
    New,
}

struct Walk<'a> {
    plan: &'a Plan,
    program: &'a Program,
    at: String,
    ops: &'a dyn OpFacts,
    storages: Vec<Storage>,
    /// Live storages outside of the state section by first byte.
    live: BTreeMap<u64, usize>,
    live_bytes: u64,
    /// Where the live instance of a value lies: storage and byte offset on it.
    instances: Vec<Option<(usize, u64)>>,
    committed: Vec<bool>,
    passed: Passed,
    runs: Vec<u32>,
    replay: Replay,
    /// The graph is the one that was planned, and not one of smaller sizes.
    exact: bool,
}

impl<'a> Walk<'a> {
    fn new(
        plan: &'a Plan,
        program: &'a Program,
        index: usize,
        ops: &'a dyn OpFacts,
    ) -> Result<Self, ValidateError> {
        let g = &program.graph;
        let at = format!("program {index} ({})", program.kind);
        graph::verify(g).map_err(|e| ValidateError { at: at.clone(), what: e.to_string() })?;
        let mut w = Walk {
            plan,
            program,
            at,
            ops,
            storages: Vec::new(),
            live: BTreeMap::new(),
            live_bytes: plan.state_bytes,
            instances: vec![None; g.values.len()],
            committed: vec![false; g.states.len()],
            passed: Passed::default(),
            runs: vec![0; g.nodes.len()],
            replay: Replay { arena: plan.state_bytes, ..Replay::default() },
            exact: true,
        };
        // Operators infer types from these: beyond known sizes they are not asked.
        if let Some(v) = g.values.iter().find(|v| !is_bounded(&v.ty)) {
            return Err(w.error(format!("the size of {:?}, {}, is unknown or too large", v.name, v.ty)));
        }
        if plan.slot_bytes > 0 && plan.slot_offsets(g).is_none() {
            return Err(w.error(format!("its inputs do not fit the slot of {} bytes", plan.slot_bytes)));
        }
        for n in 0..g.nodes.len() {
            let id = graph::NodeId(n as u32);
            w.at = format!("program {index} ({}), node {:?}", program.kind, g.node(id).name);
            let types = ops.infer(g, id).map_err(|e| w.error(e))?;
            if types.len() != g.node(id).outputs.len()
                || !types.iter().zip(&g.node(id).outputs).all(|(t, o)| t == g.ty(*o))
            {
                return Err(w.error("its types do not follow from its operator".to_owned()));
            }
        }
        w.at = format!("program {index} ({})", program.kind);
        let entries: BTreeMap<&str, &StateEntry> = plan.state.iter().map(|e| (&*e.name, e)).collect();
        for (i, s) in g.states.iter().enumerate() {
            let e = entries.get(&*s.name).filter(|e| &e.ty == g.ty(s.input) && e.init == s.init);
            let e = e.ok_or_else(|| {
                w.error(format!(
                    "state {:?} is not in the state section with its type and first elements",
                    s.name
                ))
            })?;
            let bytes = align(e.ty.bytes().unwrap_or(0));
            w.instances[s.input.index()] = Some((w.storages.len(), 0));
            w.storages.push(Storage {
                start: e.offset,
                bytes,
                holders: BTreeSet::from([s.input]),
                owner: Owner::Old(StateId(i as u32)),
            });
        }
        if program.inputs.len() != g.inputs.len() {
            return Err(w.error("the number of input offsets is wrong".to_owned()));
        }
        for (i, offset) in g.inputs.iter().zip(&program.inputs) {
            let storage = w.allocate(*offset, w.bytes(i.value)?, Some(i.value))?;
            w.instances[i.value.index()] = Some((storage, 0));
        }
        Ok(w)
    }

    fn error(&self, what: String) -> ValidateError {
        ValidateError { at: self.at.clone(), what }
    }

    fn name(&self, v: ValueId) -> String {
        format!("{:?}", self.program.graph.value(v).name)
    }

    fn bytes(&self, v: ValueId) -> Result<u64, ValidateError> {
        let bytes = self.program.graph.ty(v).bytes();
        bytes.map(align).ok_or_else(|| self.error(format!("the size of {} is unknown", self.name(v))))
    }

    /// Takes `[start, start + bytes)` of the arena for a live storage.
    fn allocate(&mut self, start: u64, bytes: u64, holder: Option<ValueId>) -> Result<usize, ValidateError> {
        let end =
            start.checked_add(bytes).filter(|e| *e <= self.plan.arena && start >= self.plan.state_bytes);
        let end = end.ok_or_else(|| {
            self.error(format!("{bytes} bytes at {start} lie outside of the arena's free part"))
        })?;
        if !start.is_multiple_of(ALIGNMENT) {
            return Err(self.error(format!("offset {start} is not a multiple of {ALIGNMENT}")));
        }
        let before = self.live.range(..end).next_back().map(|(_, s)| &self.storages[*s]);
        if let Some(s) = before.filter(|s| s.start + s.bytes > start) {
            let other = s.holders.iter().next().map_or_else(|| "the workspace".to_owned(), |v| self.name(*v));
            return Err(self.error(format!("{bytes} bytes at {start} overlap {other}, which is live")));
        }
        let id = self.storages.len();
        self.storages.push(Storage {
            start,
            bytes,
            holders: holder.into_iter().collect(),
            owner: Owner::Arena,
        });
        if bytes > 0 {
            self.live.insert(start, id);
        }
        self.live_bytes += bytes;
        self.replay.arena = self.replay.arena.max(end);
        Ok(id)
    }

    fn release(&mut self, storage: usize) {
        let s = &self.storages[storage];
        if s.owner == Owner::Arena {
            self.live_bytes -= s.bytes;
            if s.bytes > 0 {
                self.live.remove(&s.start);
            }
        }
    }

    /// Ends the instance of a value; its storage goes with the last one.
    fn drop_value(&mut self, v: ValueId) -> Result<(), ValidateError> {
        let (storage, _) = self.instances[v.index()]
            .take()
            .ok_or_else(|| self.error(format!("drops {}, which is not live", self.name(v))))?;
        let s = &mut self.storages[storage];
        s.holders.remove(&v);
        if s.holders.is_empty() {
            self.release(storage);
        }
        Ok(())
    }

    fn run(mut self) -> Result<Replay, ValidateError> {
        let base = self.at.clone();
        // A program of no steps holds the state all the same.
        self.replay.peak = self.live_bytes;
        for (i, step) in self.program.steps.iter().enumerate() {
            let Step::Run(run) = step else {
                self.at = format!("{base}, step {i}");
                return Err(self.error("copy and wait steps are not used by this version".to_owned()));
            };
            let node = self.program.graph.nodes.get(run.node.index());
            let node = node.ok_or_else(|| self.error(format!("step {i} runs a node that does not exist")))?;
            self.at = format!("{base}, step {i} ({:?})", node.name);
            self.step(i, run)?;
        }
        self.at = base;
        let g = &self.program.graph;
        for o in &g.outputs {
            let Some((storage, _)) = self.instances[o.index()] else {
                return Err(self.error(format!("output {} is not live at the end", self.name(*o))));
            };
            if self.is_stale(storage) {
                return Err(
                    self.error(format!("output {} is the old version of a committed state", self.name(*o)))
                );
            }
        }
        for (s, state) in g.states.iter().enumerate() {
            if state.output.is_some() != self.committed[s] {
                return Err(self.error(format!("state {:?} is not committed exactly once", state.name)));
            }
        }
        let c = &self.program.certificate;
        if !self.exact {
            if self.replay.arena > c.arena {
                return Err(self.error(format!("it reaches beyond its arena of {} bytes", c.arena)));
            }
            return Ok(self.replay);
        }
        if c.live_peak != self.replay.peak || c.arena != self.replay.arena {
            let found = format!("live peak {} and arena {}", self.replay.peak, self.replay.arena);
            return Err(self.error(format!(
                "the certificate says live peak {} and arena {}, the replay {found}",
                c.live_peak, c.arena
            )));
        }
        let times = self.program.steps.iter().filter_map(|s| match s {
            Step::Run(r) => Some(r.time_ns),
            _ => None,
        });
        let time = times.fold(0u64, u64::saturating_add);
        if c.time_ns != time {
            let said = c.time_ns;
            return Err(
                self.error(format!("the certificate says {said} ns, the executions take {time} together"))
            );
        }
        Ok(self.replay)
    }

    /// Whether a storage is the old version of a state that was committed.
    fn is_stale(&self, storage: usize) -> bool {
        matches!(self.storages[storage].owner, Owner::Old(s) if self.committed[s.index()])
    }

    /// Refuses to write a storage in place while an argument reads it: `lawful` tells at which inputs the operator bears it. The others
    /// may lie there shifted or repeated, and would see elements of the result. Where a storage has no bytes, any other may begin.
    fn written_in_place(
        &self,
        storage: usize,
        run: &Run,
        lawful: impl Fn(usize) -> bool,
    ) -> Result<(), ValidateError> {
        if self.storages[storage].bytes == 0 {
            return Ok(());
        }
        for (k, v) in self.program.graph.node(run.node).inputs.iter().enumerate() {
            let Some(v) = v else { continue };
            // A commit of this step has another storage for the same bytes, so starts are compared.
            let reads = self.instances[v.index()].is_some_and(|(s, at)| {
                self.storages[s].start == self.storages[storage].start
                    && self.storages[s].bytes > 0
                    && (at != 0 || !lawful(k))
            });
            if reads {
                return Err(self.error(format!(
                    "writes in place what it reads through {}, its input {k}",
                    self.name(*v)
                )));
            }
        }
        Ok(())
    }

    fn step(&mut self, index: usize, run: &Run) -> Result<(), ValidateError> {
        let node = self.program.graph.node(run.node);
        if run.queue != 0 {
            return Err(self.error("only queue 0 is used by this version".to_owned()));
        }
        let facts = self.ops.facts(&self.program.graph, run.node).map_err(|e| self.error(e))?;
        let implementation = facts.implementations.get(usize::from(run.implementation));
        let implementation =
            *implementation.ok_or_else(|| self.error("no such implementation".to_owned()))?;
        if self.runs[run.node.index()] > 0 {
            if facts.once || !facts.commits.is_empty() {
                return Err(self.error("runs twice, but must not".to_owned()));
            }
            self.replay.recomputed.push(index);
        }
        if facts.can_fail && self.runs[run.node.index()] == 0 {
            let may_refuse = self.passed.may_refuse(&self.program.graph, run.node);
            if self.committed.contains(&true) && may_refuse {
                return Err(self.error("may refuse its data, but runs after a commit".to_owned()));
            }
        }
        self.runs[run.node.index()] += 1;
        for v in node.inputs.iter().flatten() {
            let Some((storage, _)) = self.instances[v.index()] else {
                return Err(self.error(format!("reads {}, which is not live", self.name(*v))));
            };
            if self.is_stale(storage) {
                return Err(self
                    .error(format!("reads the old version of a committed state through {}", self.name(*v))));
            }
        }
        if run.outputs.len() != node.outputs.len() {
            return Err(self.error("the number of places is not the number of outputs".to_owned()));
        }
        // A second execution makes new instances; old ones must have been dropped before.
        for o in &node.outputs {
            if self.instances[o.index()].is_some() {
                return Err(
                    self.error(format!("makes {} anew while an instance of it is live", self.name(*o)))
                );
            }
        }
        let workspace = align(implementation.workspace);
        let scratch = match (run.workspace, workspace) {
            (None, 0) => None,
            (Some(at), w) if w > 0 => Some(self.allocate(at, w, None)?),
            (Some(_), _) if !self.exact => None,
            _ => return Err(self.error("the workspace is not the implementation's".to_owned())),
        };
        let mut taken = BTreeSet::new();
        for (o, place) in run.outputs.iter().enumerate() {
            self.place(o, *place, run, &facts, &mut taken)?;
        }
        self.replay.live.push(self.live_bytes);
        if self.live_bytes > self.replay.peak {
            (self.replay.peak, self.replay.peak_step) = (self.live_bytes, index);
        }
        if let Some(s) = scratch {
            self.release(s);
        }
        if !run.drops.is_sorted_by(|a, b| a < b) {
            return Err(self.error("its drops are not in the order of values".to_owned()));
        }
        for v in &run.drops {
            if v.index() >= self.instances.len() {
                return Err(self.error("drops a value that does not exist".to_owned()));
            }
            if matches!(self.program.graph.value(*v).def, ValueDef::State(_)) {
                return Err(self.error(format!("drops the state {}", self.name(*v))));
            }
            self.drop_value(*v)?;
            self.replay.live_after_drops.push(self.live_bytes);
        }
        // What was overwritten must be dead now: nobody holds the storage but its new value.
        for (storage, o) in taken {
            if self.storages[storage].holders.iter().any(|h| *h != o) {
                return Err(
                    self.error(format!("overwrites a storage that is still read, with {}", self.name(o)))
                );
            }
        }
        Ok(())
    }

    fn place(
        &mut self,
        o: usize,
        place: Place,
        run: &Run,
        facts: &Facts,
        taken: &mut BTreeSet<(usize, ValueId)>,
    ) -> Result<(), ValidateError> {
        let node = self.program.graph.node(run.node);
        let value = node.outputs[o];
        let is_view = facts.views.iter().find(|v| v.output == o);
        let is_commit = facts.commits.iter().find(|c| c.0 == o);
        let source = |input: u32| {
            let v = node.inputs.get(input as usize).copied().flatten();
            v.ok_or_else(|| self.error(format!("output {o} lies on input {input}, which is not there")))
        };
        let instance = match place {
            Place::New { space, offset } => {
                if space != 0 {
                    return Err(self.error("only space 0 is used by this version".to_owned()));
                }
                if is_view.is_some() || is_commit.is_some() {
                    return Err(
                        self.error(format!("output {o} is a view or a commit and has no storage of its own"))
                    );
                }
                (self.allocate(offset, self.bytes(value)?, Some(value))?, 0)
            }
            Place::View { input } => {
                let fact = is_view.filter(|v| v.input == input as usize);
                let fact =
                    *fact.ok_or_else(|| self.error(format!("output {o} is no view of input {input}")))?;
                let v = source(input)?;
                let (storage, at) =
                    self.instances[v.index()].ok_or_else(|| self.error("no source".to_owned()))?;
                let g = &self.program.graph;
                let end = g.ty(value).bytes().and_then(|b| b.checked_add(fact.offset));
                if end.is_none_or(|e| g.ty(v).bytes().is_none_or(|source| e > source)) {
                    return Err(self.error(format!("output {o} reaches beyond its source")));
                }
                // Within the source, and so within the arena: no sum overflows.
                let at = at + fact.offset;
                let size = g.ty(value).dtype.size();
                if !(self.storages[storage].start + at).is_multiple_of(size) {
                    return Err(
                        self.error(format!("output {o} does not begin at a multiple of its {size} bytes"))
                    );
                }
                self.storages[storage].holders.insert(value);
                (storage, at)
            }
            Place::Overwrite { input } => {
                if !facts.overwrites.contains(&(o, input as usize)) {
                    return Err(self.error(format!("output {o} may not overwrite input {input}")));
                }
                let v = source(input)?;
                let (storage, at) =
                    self.instances[v.index()].ok_or_else(|| self.error("no source".to_owned()))?;
                let s = &self.storages[storage];
                if s.owner != Owner::Arena || at != 0 || self.bytes(value)? > s.bytes {
                    return Err(self.error(format!("output {o} cannot take the storage of {}", self.name(v))));
                }
                if taken.iter().any(|(t, _)| *t == storage) {
                    return Err(self.error("two outputs overwrite one storage".to_owned()));
                }
                self.written_in_place(storage, run, |k| facts.overwrites.contains(&(o, k)))?;
                taken.insert((storage, value));
                self.storages[storage].holders.insert(value);
                (storage, 0)
            }
            Place::Commit { input } => {
                if is_commit != Some(&(o, input as usize)) {
                    return Err(self.error(format!("output {o} does not commit input {input}")));
                }
                let v = source(input)?;
                let ValueDef::State(s) = self.program.graph.value(v).def else {
                    return Err(self.error(format!("{} is not a state", self.name(v))));
                };
                if self.program.graph.states[s.index()].output != Some(value) {
                    return Err(self.error(format!(
                        "{} is not the new version of {}",
                        self.name(value),
                        self.name(v)
                    )));
                }
                if std::mem::replace(&mut self.committed[s.index()], true) {
                    return Err(self.error("a state is committed twice".to_owned()));
                }
                let Some((storage, _)) = self.instances[v.index()] else {
                    return Err(self.error("no source".to_owned()));
                };
                self.written_in_place(storage, run, |k| k == input as usize)?;
                // The new version lies where the old one was; as a storage it is another one.
                let Storage { start, bytes, .. } = self.storages[storage];
                self.storages.push(Storage {
                    start,
                    bytes,
                    holders: BTreeSet::from([value]),
                    owner: Owner::New,
                });
                (self.storages.len() - 1, 0)
            }
        };
        self.instances[value.index()] = Some(instance);
        Ok(())
    }
}
