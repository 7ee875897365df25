//! A loaded plan: state in the arena, programs ready to run.

use crate::{
    RuntimeError,
    ahead::moves,
    device::{Device, DeviceMemory, RunOptions, RunReport},
    follow::{self, within},
    programs::{Chosen, Programs, Ready, usable},
    resolve::facts_of,
};
use graph::{DType, Init, InputRole, StateKind, TensorType};
use plan::{Plan, Program, ProgramKind, Replay, StateEntry, validate};
use std::{borrow::Cow, collections::BTreeMap};

/// Where weights come from: the model's file, a checkpoint, a test.
pub trait WeightSource {
    /// Gives the elements of a weight (little endian, row-major) to `sink`, in order, in pieces of any size.
    ///
    /// # Errors
    ///
    /// A text for people: the weight is not there, has another type, or cannot be read; or the sink's error.
    fn load(
        &mut self,
        name: &str,
        ty: &TensorType,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String>;
}

/// How a plan is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Accept weights whose hash is not the plan's (other weights of the same shapes).
    pub other_weights: bool,
    /// Begin within the memory that is available, where the plan's largest program needs more; see [`Session::follow_memory`].
    pub follow_memory: bool,
}

/// Inputs of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepInputs<'a> {
    /// Data and labels by input name: elements, little endian, row-major.
    pub data: &'a [(&'a str, &'a [u8])],
    /// Extents of those inputs whose sizes the program leaves open.
    pub shapes: &'a [(&'a str, &'a [u64])],
    /// Learning rate.
    pub learning_rate: f32,
    /// Number of the step, from 1.
    pub step: i64,
    /// Seed of the counter-based generator.
    pub seed: i64,
}

/// What a step gave.
#[derive(Clone, Debug, PartialEq)]
pub struct StepResult {
    /// Outputs in the program's order: name, type, elements.
    pub outputs: Vec<(String, TensorType, Vec<u8>)>,
    /// Measurements.
    pub report: RunReport,
}

impl StepResult {
    /// The first output as a number: the loss of a training step.
    pub fn loss(&self) -> Option<f64> {
        let (_, ty, bytes) = self.outputs.first()?;
        match ty.dtype {
            DType::F32 => Some(f64::from(f32::from_le_bytes(bytes.get(..4)?.try_into().ok()?))),
            DType::F64 => Some(f64::from_le_bytes(bytes.get(..8)?.try_into().ok()?)),
            _ => None,
        }
    }
}

/// A plan with its state on a device.
pub struct Session {
    pub(crate) plan: Plan,
    replays: Vec<Replay>,
    pub(crate) device: Box<dyn Device>,
    pub(crate) programs: Programs,
    /// Bytes of the arena that may be used.
    pub(crate) budget: u64,
    /// Bytes of the arena that were used since it was taken or pages were given back, at most.
    pub(crate) touched: u64,
    /// Number of what is in the input slot; another one once it is taken out.
    pub(crate) turn: u64,
}

impl Session {
    /// Validates the plan, takes the arena, streams the weights into it and prepares every program.
    pub fn load(
        plan: Plan,
        mut device: Box<dyn Device>,
        weights: &mut dyn WeightSource,
        options: LoadOptions,
    ) -> Result<Session, RuntimeError> {
        let replays = validate(&plan, facts_of(&plan))?;
        if plan.device != device.kind() {
            let (plan, device) = (plan.device.to_string(), device.kind().to_string());
            return Err(RuntimeError::Device { plan, device });
        }
        let mut budget = plan.arena;
        if let Some(a) = device.available()
            && a.bytes < plan.arena
        {
            budget = if options.follow_memory { within(a.bytes) } else { 0 };
            if budget <= plan.state_bytes {
                return Err(RuntimeError::NotEnoughMemory {
                    needed: plan.arena,
                    available: a.bytes,
                    source_of_limit: a.source.to_owned(),
                });
            }
        }
        device.allocate(plan.arena)?;
        let programs = Programs::load(&plan, &mut *device)?;
        device.warm()?;
        let touched = plan.state_bytes;
        let mut session = Session { plan, replays, device, programs, budget, touched, turn: 0 };
        for i in 0..session.plan.state.len() {
            session.initialise(i, weights, options)?;
        }
        Ok(session)
    }

    fn initialise(
        &mut self,
        i: usize,
        weights: &mut dyn WeightSource,
        options: LoadOptions,
    ) -> Result<(), RuntimeError> {
        let entry = &self.plan.state[i];
        let len = entry.ty.bytes().unwrap_or(0);
        let name = match &entry.init {
            Init::Zeros => return self.device.zero(entry.offset, len),
            Init::Literal(l) => return self.device.write(entry.offset, l.bytes()),
            Init::Weight(name) => name.clone(),
        };
        let refuse = |what: String| RuntimeError::Weight { name: name.to_string(), what };
        let (mut at, mut hasher) = (0u64, blake3::Hasher::new());
        let device = &mut self.device;
        let mut sink = |bytes: &[u8]| -> Result<(), String> {
            if at + bytes.len() as u64 > len {
                return Err(format!("it has more than the {len} bytes of {}", entry.ty));
            }
            hasher.update(bytes);
            device.write(entry.offset + at, bytes).map_err(|e| e.to_string())?;
            at += bytes.len() as u64;
            Ok(())
        };
        weights.load(&name, &entry.ty, &mut sink).map_err(refuse)?;
        if at != len {
            return Err(refuse(format!("it has {at} bytes, the plan's {} needs {len}", entry.ty)));
        }
        match entry.hash {
            Some(hash) if hash != *hasher.finalize().as_bytes() && !options.other_weights => {
                Err(refuse("its elements are not those the plan was compiled with; give --weights to use them all the same".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What the validator replayed, a program each.
    pub fn replays(&self) -> &[Replay] {
        &self.replays
    }

    /// The index of the first program of a kind.
    pub fn program(&self, kind: ProgramKind) -> Result<usize, RuntimeError> {
        let at = self.plan.programs.iter().position(|p| p.kind == kind);
        at.ok_or_else(|| RuntimeError::NoProgram(kind.to_string()))
    }

    /// The device's memory, if it has one of its own.
    pub fn device_memory(&mut self) -> Result<Option<DeviceMemory>, RuntimeError> {
        self.device.memory()
    }

    /// Bytes of the arena that may be used: the plan's, or what [`Session::set_budget`] said.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Changes between steps how much of the arena may be used. From then on the first of a kind's programs that fits runs; where none
    /// does, the whole step runs under online rematerialization. The bits stay the same. Memory beyond the new size is given back to the
    /// system. A budget above the plan's arena counts as the arena.
    ///
    /// # Errors
    ///
    /// The state alone needs more, or the system has less than a larger budget asks for. The old budget stays then.
    pub fn set_budget(&mut self, bytes: u64) -> Result<(), RuntimeError> {
        let state = self.plan.state_bytes;
        if bytes <= state && self.plan.arena > state {
            return Err(RuntimeError::Budget { budget: bytes, state });
        }
        let budget = bytes.min(self.plan.arena);
        let used = usable(&self.plan, budget).max(state);
        if let Some(a) = self.device.available().filter(|_| budget > self.budget)
            && used > self.touched.saturating_add(a.bytes)
        {
            return Err(RuntimeError::NotEnoughMemory {
                needed: used,
                available: self.touched.saturating_add(a.bytes),
                source_of_limit: a.source.to_owned(),
            });
        }
        if used < self.touched {
            self.device.release(used)?;
            self.touched = used;
        }
        self.budget = budget;
        self.turn += 1;
        Ok(())
    }

    /// Sets the budget by the memory that is available now, container limits included; to be called between steps. Returns the new
    /// budget if it changed.
    ///
    /// # Errors
    ///
    /// Not even the state fits any more.
    pub fn follow_memory(&mut self) -> Result<Option<u64>, RuntimeError> {
        let Some(a) = self.device.available() else { return Ok(None) };
        let have = self.touched.saturating_add(a.bytes);
        match follow::next(have, self.budget, &|budget| usable(&self.plan, budget)) {
            Some(budget) => self.set_budget(budget).map(|()| Some(self.budget)),
            None => Ok(None),
        }
    }

    /// Runs one step of the kind of `program`: the first program of that kind whose guard holds for the inputs' sizes and that fits the
    /// budget; [`RunReport::program`] says which. When it fails before its last operation that may fail, the state is as before; of a
    /// step in parts, so it is after [`Session::forget_parts`].
    pub fn run(
        &mut self,
        program: usize,
        inputs: &StepInputs<'_>,
        options: RunOptions,
    ) -> Result<StepResult, RuntimeError> {
        let kind = self.plan.programs[program].kind;
        self.turn += 1;
        let Session { plan, programs, device, budget, touched, .. } = self;
        let device = &mut **device;
        match programs.choose(plan, kind, inputs, *budget, device)? {
            Chosen::Ready(i, ready) => {
                let p = ready.program.as_deref().unwrap_or(&plan.programs[i]);
                *touched = (*touched).max(p.certificate.arena);
                let mut result = run_ready(device, p, plan.slot_offsets(&p.graph), ready, inputs, options)?;
                result.report.program = i;
                Ok(result)
            }
            Chosen::Dynamic(_, _, why) if device.kind() == plan::Device::Cuda => {
                let why = why.unwrap_or_else(|| "what this program is, only the step tells".to_owned());
                Err(RuntimeError::NotPlanned { why })
            }
            Chosen::Dynamic(i, d, why) => {
                *touched = (*touched).max(d.end().min(*budget));
                let mut result = d.run(device, inputs, options, *budget)?;
                (result.report.program, result.report.why_dynamic) = (i, why);
                Ok(result)
            }
        }
    }

    /// Forgets the parts of a step that were run since the last whole one, so that the state is as before them. A part that was refused
    /// leaves the earlier ones behind.
    pub fn forget_parts(&mut self) -> Result<(), RuntimeError> {
        for e in self.plan.state.iter().filter(|e| e.kind == StateKind::Accumulator) {
            self.device.zero(e.offset, e.ty.bytes().unwrap_or(0))?;
        }
        Ok(())
    }

    fn entry(&self, name: &str) -> Result<&StateEntry, RuntimeError> {
        let entry = self.plan.state.iter().find(|e| &*e.name == name);
        entry.ok_or_else(|| RuntimeError::NoTensor { kind: "state", name: name.to_owned() })
    }

    /// Reads a part of a state tensor, from byte `at` on.
    pub fn read_state(&self, name: &str, at: u64, bytes: &mut [u8]) -> Result<(), RuntimeError> {
        let entry = self.entry(name)?;
        self.within(entry, at, bytes.len())?;
        self.device.read(entry.offset + at, bytes)
    }

    /// Writes a part of a state tensor, from byte `at` on.
    pub fn write_state(&mut self, name: &str, at: u64, bytes: &[u8]) -> Result<(), RuntimeError> {
        let entry = self.entry(name)?;
        self.within(entry, at, bytes.len())?;
        let offset = entry.offset + at;
        self.device.write(offset, bytes)
    }

    fn within(&self, entry: &StateEntry, at: u64, len: usize) -> Result<(), RuntimeError> {
        let size = entry.ty.bytes().unwrap_or(0);
        if at.checked_add(len as u64).is_none_or(|end| end > size) {
            let what = format!("bytes {at} to {at}+{len} lie outside of its {size}");
            return Err(RuntimeError::Weight { name: entry.name.to_string(), what });
        }
        Ok(())
    }

    /// A whole state tensor.
    pub fn state(&self, name: &str) -> Result<Vec<u8>, RuntimeError> {
        let mut bytes = vec![0; self.entry(name)?.ty.bytes().unwrap_or(0) as usize];
        self.read_state(name, 0, &mut bytes)?;
        Ok(bytes)
    }
}

/// Binds the inputs of a prepared program, runs it, and reads its outputs.
fn run_ready(
    device: &mut dyn Device,
    p: &Program,
    slot: Option<Vec<u64>>,
    ready: &Ready,
    inputs: &StepInputs<'_>,
    options: RunOptions,
) -> Result<StepResult, RuntimeError> {
    let given = bound(p, ready, inputs)?;
    let at = slot.as_ref().unwrap_or(&p.inputs).iter().copied();
    let parts: Vec<(u64, &[u8])> = at.zip(given.iter().map(|b| &**b)).collect();
    let report = match slot {
        Some(slot) => {
            device.stage(&parts)?;
            let report = device.start(ready.handle, &moves(p, slot), options)?;
            device.finish(ready.handle)?;
            report
        }
        None => {
            parts.iter().try_for_each(|(offset, bytes)| device.write(*offset, bytes))?;
            device.run(ready.handle, options)?
        }
    };
    Ok(StepResult { outputs: outputs(device, p, ready)?, report })
}

/// Reads the outputs of a program that has run.
#[allow(clippy::type_complexity)]
pub(crate) fn outputs(
    device: &dyn Device,
    p: &Program,
    ready: &Ready,
) -> Result<Vec<(String, TensorType, Vec<u8>)>, RuntimeError> {
    let mut outputs = Vec::new();
    for (v, region) in p.graph.outputs.iter().zip(&ready.outputs) {
        let mut bytes = vec![0; region.len as usize];
        device.read(region.offset, &mut bytes)?;
        outputs.push((p.graph.value(*v).name.to_string(), p.graph.ty(*v).clone(), bytes));
    }
    Ok(outputs)
}

/// The bytes of each of a program's inputs, in order.
pub(crate) fn bound<'a>(
    p: &Program,
    ready: &'a Ready,
    inputs: &StepInputs<'a>,
) -> Result<Vec<Cow<'a, [u8]>>, RuntimeError> {
    let given: BTreeMap<&str, &[u8]> = inputs.data.iter().copied().collect();
    let mut all = Vec::new();
    for (at, input) in p.graph.inputs.iter().enumerate() {
        let value = p.graph.value(input.value);
        let bytes: Cow<'a, [u8]> = match input.role {
            InputRole::LearningRate => Cow::Owned(inputs.learning_rate.to_le_bytes().to_vec()),
            InputRole::Step => Cow::Owned(inputs.step.to_le_bytes().to_vec()),
            InputRole::Seed => Cow::Owned(inputs.seed.to_le_bytes().to_vec()),
            InputRole::Data | InputRole::Label => {
                let found = given.get(&*value.name).copied().ok_or_else(|| RuntimeError::Input {
                    name: value.name.to_string(),
                    what: format!("{} is not given", value.ty),
                })?;
                Cow::Borrowed(found)
            }
            InputRole::Constant => {
                let found = ready.constants.iter().find(|(i, _)| *i == at).map(|(_, l)| l.bytes());
                let none = || RuntimeError::Internal(format!("nobody knows {:?}", value.name));
                Cow::Borrowed(found.ok_or_else(none)?)
            }
        };
        let len = value.ty.bytes().unwrap_or(0);
        if bytes.len() as u64 != len {
            let what = format!("{} bytes are given, {} needs {len}", bytes.len(), value.ty);
            return Err(RuntimeError::Input { name: value.name.to_string(), what });
        }
        all.push(bytes);
    }
    Ok(all)
}
