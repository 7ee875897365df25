//! The exact replay: what a schedule means.
//!
//! One program judges every strategy. It executes the schedule on instances and storages, finds the first rule that is broken, and
//! otherwise says what is live at each step, the peak, the time, and the lifetime of every buffer for the placement of offsets.

use super::check::storage_root;
use super::problem::{Bytes, Nanos, NodeId, Problem, ValueId};
use super::schedule::{Schedule, Step};

/// The rule that a schedule breaks, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// No such node or implementation.
    #[error("step {step}: no such node or implementation")]
    Unknown {
        /// Index of the step.
        step: usize,
    },
    /// An input was never made.
    #[error("step {step}, node {node:?}: input {value:?} has not been made")]
    InputMissing {
        /// Index of the step.
        step: usize,
        /// Name of the node.
        node: String,
        /// Name of the value.
        value: String,
    },
    /// The old version of a state is read after its commit.
    #[error("step {step}, node {node:?}: reads {value:?}, overwritten at step {commit}")]
    ReadAfterCommit {
        /// Index of the step.
        step: usize,
        /// Name of the node.
        node: String,
        /// Name of the state's old value.
        value: String,
        /// Step of the commit.
        commit: usize,
    },
    /// A node that runs once ran again.
    #[error("step {step}, node {node:?}: runs once, but runs again")]
    RunTwice {
        /// Index of the step.
        step: usize,
        /// Name of the node.
        node: String,
    },
    /// A required node never runs.
    #[error("node {node:?} is required but never runs")]
    RequiredMissing {
        /// Name of the node.
        node: String,
    },
    /// A value to be kept to the end is never made.
    #[error("value {value:?} is to be kept to the end but never made")]
    KeptMissing {
        /// Name of the value.
        value: String,
    },
    /// An overwrite that the node does not offer, or that does not fit.
    #[error("step {step}, node {node:?}: overwrite of input {input} by output {output}: {reason}")]
    BadOverwrite {
        /// Index of the step.
        step: usize,
        /// Name of the node.
        node: String,
        /// Index of the output.
        output: u32,
        /// Index of the input.
        input: u32,
        /// What is wrong.
        reason: OverwriteFault,
    },
    /// Something on an overwritten storage is read later.
    #[error("step {step}, node {node:?}: {value:?} was overwritten at step {overwrite}")]
    Overwritten {
        /// Step of the read; the number of steps for a value kept to the end.
        step: usize,
        /// Name of the node; empty for a value kept to the end.
        node: String,
        /// Name of the value.
        value: String,
        /// Step of the overwrite.
        overwrite: usize,
    },
}

/// Why an overwrite is unlawful at its own step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverwriteFault {
    /// The node has no such pair.
    #[error("the node offers no such pair")]
    NotOffered,
    /// The input's storage is resident, or the output has no storage of its own.
    #[error("not a transient storage")]
    NotTransient,
    /// The storage is smaller than the output.
    #[error("the storage is too small")]
    TooSmall,
    /// Another input of the step lies on the storage, or another output takes it.
    #[error("another input or output of the step uses the storage")]
    Shared,
}

/// What a buffer of the schedule holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A staged input, there from the beginning.
    Input(ValueId),
    /// The storage made by this step for its output of this index (and later overwrites of it).
    Output(usize, u32),
    /// The scratch memory of this step.
    Workspace(usize),
}

/// A storage's life in steps `[start, end)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// First step.
    pub start: u32,
    /// Step after the last.
    pub end: u32,
    /// Bytes, a multiple of the problem's alignment.
    pub size: Bytes,
    /// What it holds.
    pub holder: Holder,
}

/// Where a step's values lie: indices in [`Replay::lifetimes`], none for resident values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepStorages {
    /// One entry an input.
    pub inputs: Vec<Option<u32>>,
    /// One entry an output.
    pub outputs: Vec<Option<u32>>,
    /// The workspace, if it has bytes.
    pub workspace: Option<u32>,
}

/// What a lawful schedule does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Live bytes at each step, state, workspace and everything else included.
    pub live: Vec<Bytes>,
    /// The largest of them; at least the resident bytes.
    pub peak: Bytes,
    /// The first step at which it is reached.
    pub peak_step: usize,
    /// Sum of the executions' times.
    pub time: Nanos,
    /// Lives of all storages and workspaces.
    pub lifetimes: Vec<Lifetime>,
    /// Where each step's values lie.
    pub storages: Vec<StepStorages>,
}

/// One instance: its storage and the storage's generation (an overwrite begins a new one).
#[derive(Clone, Copy)]
struct Instance {
    storage: Option<u32>,
    generation: u32,
}

struct Replayer<'a> {
    problem: &'a Problem,
    /// Index of the state whose old version the value is or views.
    old_of: Vec<Option<u32>>,
    current: Vec<Option<Instance>>,
    lifetimes: Vec<Lifetime>,
    /// Per storage: the generation, and the step of the last overwrite.
    generations: Vec<(u32, usize)>,
    committed: Vec<Option<usize>>,
    runs: Vec<u32>,
    once: Vec<bool>,
}

/// Replays a schedule of a well-formed problem (see [`super::check`]).
///
/// # Errors
/// The first rule that the schedule breaks.
pub fn replay(problem: &Problem, schedule: &Schedule) -> Result<Replay, ReplayError> {
    let mut replayer = Replayer::new(problem);
    let mut out = Replay { peak: problem.resident, ..Replay::default() };
    for (index, step) in schedule.steps.iter().enumerate() {
        let storages = replayer.step(index, step)?;
        out.time += problem.nodes[step.node as usize].implementations[step.implementation as usize].time;
        out.storages.push(storages);
    }
    replayer.finish(schedule.steps.len())?;
    out.lifetimes = replayer.lifetimes;
    out.live = live_bytes(problem, schedule.steps.len(), &out.lifetimes);
    for (step, &live) in out.live.iter().enumerate() {
        if live > out.peak {
            (out.peak, out.peak_step) = (live, step);
        }
    }
    Ok(out)
}

/// Live bytes at each of `steps` steps.
fn live_bytes(problem: &Problem, steps: usize, lifetimes: &[Lifetime]) -> Vec<Bytes> {
    let mut change = vec![0i64; steps + 1];
    for life in lifetimes.iter().filter(|l| l.start < l.end) {
        change[life.start as usize] += life.size as i64;
        change[life.end as usize] -= life.size as i64;
    }
    let mut live = problem.resident as i64;
    change[..steps]
        .iter()
        .map(|c| {
            live += c;
            live as Bytes
        })
        .collect()
}

impl<'a> Replayer<'a> {
    fn new(problem: &'a Problem) -> Self {
        let old_of = (0..problem.values.len() as ValueId)
            .map(|v| storage_root(problem, v))
            .map(|root| problem.states.iter().position(|s| s.old == root).map(|s| s as u32))
            .collect();
        let mut once: Vec<bool> = problem.nodes.iter().map(|n| n.once).collect();
        for state in &problem.states {
            once[state.commit as usize] = true;
        }
        let mut this = Self {
            problem,
            old_of,
            current: vec![None; problem.values.len()],
            lifetimes: Vec::new(),
            generations: Vec::new(),
            committed: vec![None; problem.states.len()],
            runs: vec![0; problem.nodes.len()],
            once,
        };
        for (id, value) in problem.values.iter().enumerate() {
            if value.producer.is_none() {
                let storage = (!value.resident).then(|| {
                    // Its life ends at its last read: none yet.
                    let holder = Holder::Input(id as ValueId);
                    this.storage(Lifetime { start: 0, end: 0, size: value.bytes, holder })
                });
                this.current[id] = Some(Instance { storage, generation: 0 });
            }
        }
        this
    }

    fn storage(&mut self, life: Lifetime) -> u32 {
        self.lifetimes.push(life);
        self.generations.push((0, 0));
        (self.lifetimes.len() - 1) as u32
    }

    fn step(&mut self, index: usize, step: &Step) -> Result<StepStorages, ReplayError> {
        let problem = self.problem;
        let node = problem.nodes.get(step.node as usize).ok_or(ReplayError::Unknown { step: index })?;
        let implementation = node.implementations.get(step.implementation as usize);
        let implementation = implementation.ok_or(ReplayError::Unknown { step: index })?;
        if self.once[step.node as usize] && self.runs[step.node as usize] > 0 {
            return Err(ReplayError::RunTwice { step: index, node: node.name.clone() });
        }
        self.runs[step.node as usize] += 1;
        let mut storages = StepStorages::default();
        for &input in &node.inputs {
            storages.inputs.push(self.read(index, &node.name, input)?);
        }
        for (position, &output) in node.outputs.iter().enumerate() {
            let storage = self.make(index, step, position as u32, output, &mut storages)?;
            storages.outputs.push(storage);
        }
        for &(output, input) in &step.overwrites {
            if storages.outputs.get(output as usize).is_none() {
                return Err(self.bad_overwrite(index, step, (output, input), OverwriteFault::NotOffered));
            }
            if step.overwrites.iter().filter(|p| p.0 == output).count() > 1 {
                return Err(self.bad_overwrite(index, step, (output, input), OverwriteFault::Shared));
            }
        }
        for (state, committed) in problem.states.iter().zip(&mut self.committed) {
            if state.commit == step.node {
                *committed = Some(index);
            }
        }
        let workspace = implementation.workspace.next_multiple_of(problem.alignment);
        if workspace > 0 {
            let (start, end) = (index as u32, index as u32 + 1);
            let holder = Holder::Workspace(index);
            storages.workspace = Some(self.storage(Lifetime { start, end, size: workspace, holder }));
        }
        Ok(storages)
    }

    /// Reads the value's newest instance.
    fn read(&mut self, index: usize, node: &str, value: ValueId) -> Result<Option<u32>, ReplayError> {
        let name = || self.problem.values[value as usize].name.clone();
        let Some(instance) = self.current[value as usize] else {
            return Err(ReplayError::InputMissing { step: index, node: node.into(), value: name() });
        };
        if let Some(state) = self.old_of[value as usize]
            && let Some(commit) = self.committed[state as usize]
        {
            return Err(ReplayError::ReadAfterCommit {
                step: index,
                node: node.into(),
                value: name(),
                commit,
            });
        }
        if let Some(storage) = instance.storage {
            let (generation, overwrite) = self.generations[storage as usize];
            if generation != instance.generation {
                return Err(ReplayError::Overwritten {
                    step: index,
                    node: node.into(),
                    value: name(),
                    overwrite,
                });
            }
            self.lifetimes[storage as usize].end = index as u32 + 1;
        }
        Ok(instance.storage)
    }

    /// Makes an instance of an output, on new storage, its view's source or an overwritten input.
    fn make(
        &mut self,
        index: usize,
        step: &Step,
        position: u32,
        output: ValueId,
        storages: &mut StepStorages,
    ) -> Result<Option<u32>, ReplayError> {
        let value = &self.problem.values[output as usize];
        let pair = step.overwrites.iter().find(|p| p.0 == position).copied();
        let instance = if let Some(source) = value.view_of {
            // A well-formed view's source is an input or an earlier output of this node.
            self.current[source as usize].unwrap_or(Instance { storage: None, generation: 0 })
        } else if value.resident {
            Instance { storage: None, generation: 0 }
        } else if let Some(pair) = pair {
            let storage = self
                .overwritten(step, pair, storages)
                .map_err(|fault| self.bad_overwrite(index, step, pair, fault))?;
            self.generations[storage as usize].0 += 1;
            self.generations[storage as usize].1 = index;
            Instance { storage: Some(storage), generation: self.generations[storage as usize].0 }
        } else {
            let (start, end) = (index as u32, index as u32 + 1);
            let holder = Holder::Output(index, position);
            let storage = self.storage(Lifetime { start, end, size: value.bytes, holder });
            Instance { storage: Some(storage), generation: 0 }
        };
        if let Some(pair) = pair
            && (value.view_of.is_some() || value.resident)
        {
            return Err(self.bad_overwrite(index, step, pair, OverwriteFault::NotTransient));
        }
        self.current[output as usize] = Some(instance);
        Ok(instance.storage)
    }

    /// The storage that the pair takes over.
    fn overwritten(
        &self,
        step: &Step,
        (output, input): (u32, u32),
        storages: &StepStorages,
    ) -> Result<u32, OverwriteFault> {
        let node = &self.problem.nodes[step.node as usize];
        if !node.overwrites.contains(&(output, input)) {
            return Err(OverwriteFault::NotOffered);
        }
        let storage = storages.inputs[input as usize].ok_or(OverwriteFault::NotTransient)?;
        let inputs_on_it = storages.inputs.iter().filter(|s| **s == Some(storage)).count();
        if inputs_on_it > 1 || storages.outputs.contains(&Some(storage)) {
            return Err(OverwriteFault::Shared);
        }
        let bytes = self.problem.values[node.outputs[output as usize] as usize].bytes;
        if self.lifetimes[storage as usize].size < bytes {
            return Err(OverwriteFault::TooSmall);
        }
        Ok(storage)
    }

    fn bad_overwrite(
        &self,
        index: usize,
        step: &Step,
        pair: (u32, u32),
        reason: OverwriteFault,
    ) -> ReplayError {
        let node = self.problem.nodes[step.node as usize].name.clone();
        ReplayError::BadOverwrite { step: index, node, output: pair.0, input: pair.1, reason }
    }

    /// What must hold at the end; extends the lives of what is kept.
    fn finish(&mut self, steps: usize) -> Result<(), ReplayError> {
        let problem = self.problem;
        for (node, runs) in problem.nodes.iter().zip(&self.runs) {
            if node.required && *runs == 0 {
                return Err(ReplayError::RequiredMissing { node: node.name.clone() });
            }
        }
        for (id, value) in problem.values.iter().enumerate().filter(|(_, v)| v.keep_to_end) {
            let Some(instance) = self.current[id] else {
                return Err(ReplayError::KeptMissing { value: value.name.clone() });
            };
            if let Some(storage) = instance.storage {
                let (generation, overwrite) = self.generations[storage as usize];
                if generation != instance.generation {
                    let value = value.name.clone();
                    return Err(ReplayError::Overwritten {
                        step: steps,
                        node: String::new(),
                        value,
                        overwrite,
                    });
                }
                self.lifetimes[storage as usize].end = steps as u32;
            }
        }
        Ok(())
    }
}

/// Chooses the overwrites of an order of execution: each one that the node offers, that is lawful and that needs no larger storage
/// than the output itself, in the order in which the node offers them. Orders that read a missing instance get no overwrites there.
#[must_use]
pub fn choose_overwrites(problem: &Problem, order: &[NodeId]) -> Vec<Vec<(u32, u32)>> {
    let lives = StorageLives::new(problem, order);
    let mut taken_into: Vec<u32> = (0..lives.last.len() as u32).collect();
    let mut last = lives.last.clone();
    let mut chosen = Vec::with_capacity(order.len());
    for (index, &node) in order.iter().enumerate() {
        let node = &problem.nodes[node as usize];
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        for &(output, input) in &node.overwrites {
            let (Some(made), Some(read)) =
                (lives.outputs[index][output as usize], lives.inputs[index][input as usize])
            else {
                continue;
            };
            let root = find(&taken_into, read);
            let is_view = problem.values[node.outputs[output as usize] as usize].view_of.is_some();
            let fits =
                lives.size[root as usize] == problem.values[node.outputs[output as usize] as usize].bytes;
            let alone = lives.inputs[index]
                .iter()
                .filter(|s| s.is_some_and(|s| find(&taken_into, s) == root))
                .count()
                == 1;
            let free = !pairs.iter().any(|p| p.0 == output || p.1 == input);
            if !is_view && fits && alone && free && last[root as usize] == index {
                taken_into[made as usize] = root;
                last[root as usize] = last[made as usize];
                pairs.push((output, input));
            }
        }
        chosen.push(pairs);
    }
    chosen
}

fn find(into: &[u32], mut storage: u32) -> u32 {
    while into[storage as usize] != storage {
        storage = into[storage as usize];
    }
    storage
}

/// Storages of an order of execution without overwrites, and the last step that reads each.
struct StorageLives {
    inputs: Vec<Vec<Option<u32>>>,
    outputs: Vec<Vec<Option<u32>>>,
    size: Vec<Bytes>,
    last: Vec<usize>,
}

impl StorageLives {
    fn new(problem: &Problem, order: &[NodeId]) -> Self {
        let mut this = Self { inputs: Vec::new(), outputs: Vec::new(), size: Vec::new(), last: Vec::new() };
        let mut current: Vec<Option<u32>> = vec![None; problem.values.len()];
        for (id, value) in problem.values.iter().enumerate() {
            if value.producer.is_none() && !value.resident {
                current[id] = Some(this.push(value.bytes, 0));
            }
        }
        for (index, &node) in order.iter().enumerate() {
            let node = &problem.nodes[node as usize];
            let inputs: Vec<_> = node.inputs.iter().map(|&v| current[v as usize]).collect();
            for storage in inputs.iter().flatten() {
                this.last[*storage as usize] = index;
            }
            let mut outputs = Vec::with_capacity(node.outputs.len());
            for &output in &node.outputs {
                let value = &problem.values[output as usize];
                let storage = match value.view_of {
                    Some(source) => current[source as usize],
                    None if value.resident => None,
                    None => Some(this.push(value.bytes, index)),
                };
                current[output as usize] = storage;
                outputs.push(storage);
            }
            this.inputs.push(inputs);
            this.outputs.push(outputs);
        }
        for (id, value) in problem.values.iter().enumerate() {
            if let (true, Some(storage)) = (value.keep_to_end, current[id]) {
                this.last[storage as usize] = order.len();
            }
        }
        this
    }

    fn push(&mut self, size: Bytes, last: usize) -> u32 {
        self.size.push(size);
        self.last.push(last);
        (self.size.len() - 1) as u32
    }
}

/// Makes a schedule of an order of execution: greedy overwrites, and at each step the fastest implementation whose workspace fits the
/// budget beside what is live (the one with the least workspace where none fits).
#[must_use]
pub fn assemble(problem: &Problem, order: &[NodeId], budget: Bytes) -> Schedule {
    let overwrites = choose_overwrites(problem, order);
    let mut schedule = Schedule {
        steps: order
            .iter()
            .zip(overwrites)
            .map(|(&node, overwrites)| Step { node, implementation: 0, overwrites })
            .collect(),
    };
    let Ok(first) = replay(problem, &schedule) else {
        return schedule;
    };
    for (index, step) in schedule.steps.iter_mut().enumerate() {
        let node = &problem.nodes[step.node as usize];
        let scratch = |w: Bytes| w.next_multiple_of(problem.alignment);
        let rest = first.live[index] - scratch(node.implementations[0].workspace);
        step.implementation =
            choose_implementation(node.implementations.iter(), |w| rest + scratch(w) <= budget);
    }
    schedule
}

/// Index of the first implementation that fits, or else of the first with the least workspace.
fn choose_implementation<'a>(
    implementations: impl Iterator<Item = &'a super::problem::Implementation>,
    fits: impl Fn(Bytes) -> bool,
) -> u32 {
    let mut least: Option<(Bytes, u32)> = None;
    for (index, implementation) in implementations.enumerate() {
        if fits(implementation.workspace) {
            return index as u32;
        }
        if least.is_none_or(|(w, _)| implementation.workspace < w) {
            least = Some((implementation.workspace, index as u32));
        }
    }
    least.map_or(0, |l| l.1)
}
