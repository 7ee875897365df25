//! Programs whose shapes or branches are known only when they run.
//!
//! At every step the program is walked with the inputs at hand (`trace`); where a shape, a branch or a trip count depends on a value, that
//! value is computed on the way. What comes out is a plain graph, from which the training step is made as the compiler makes it, and which
//! runs under Dynamic Tensor Rematerialization (arXiv 2006.09616) inside of a pool of fixed size. The walk and the step are the compiler's
//! own, so that the bits are those of a plan for the same sizes.

mod executor;
mod layout;
mod least;
mod planning;
mod plans;
mod pool;
mod refusal;
mod script;
mod ways;
mod world;

pub use pool::Pool;
pub use refusal::{Least, PoolFull};
pub use ways::{Roomy, least_pool, roomy_pool};
pub use world::{Holder, PoolReport};

use crate::{
    RunOptions, RunReport, RuntimeError, StepInputs, StepResult,
    device::{Device, Eager},
    resolve::Region,
};
use executor::{Done, Executor, Infos, PATIENCE, Surroundings, bug, host_key};
use graph::{Bindings, Graph, InputRole, TensorType};
use least::Known;
use plan::{Plan, ProgramKind, Rates};
use plans::Plans;
use script::Script;
use std::{collections::BTreeMap, sync::Arc};
use trace::{Limits, Recipe};
use world::PoolWorld;

/// Most nodes of a step: what a loop that never ends would reach.
pub(crate) const MAX_NODES: usize = 1 << 20;
/// Most of them where data decide how many there are and the arena is small, and what bytes of it make room for one more.
const MAX_OPEN: usize = 1 << 17;
const NODE_BYTES: u64 = 2048;
/// Graphs that are kept for the sizes they were made for.
const KEPT: usize = 8;

/// What a dynamic program did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DynamicReport {
    /// The pool.
    pub pool: PoolReport,
    /// Nodes that ran at least once.
    pub nodes: u64,
    /// Storages that were evicted to make room.
    pub evictions: u64,
    /// Executions that were repetitions.
    pub remats: u64,
    /// Estimated cost of the repetitions over that of the first executions, in thousandths.
    pub extra_permille: u64,
    /// Estimated time of the first executions.
    pub estimated_ns: u64,
    /// What planning this step took; 0 where a plan was kept.
    pub planning_ns: u64,
}

pub(crate) type Key = Vec<(String, Vec<u64>)>;

/// What the graph of a step comes from.
enum Origin {
    Recipe(Arc<Recipe>),
    /// A static program's, that runs in less memory than it was planned for.
    Graph(Arc<Graph>),
}

/// A dynamic program that was loaded.
pub(crate) struct DynamicProgram {
    origin: Origin,
    /// First byte of the pool, and its bytes.
    pool: (u64, u64),
    /// The plan's, in bytes.
    budget: u64,
    kind: ProgramKind,
    inputs: Vec<(String, InputRole, TensorType)>,
    around: Surroundings,
    /// Steps for sizes that came before, the latest last, where nothing but sizes decides.
    kept: Vec<Kept>,
}

/// A step that was made for sizes that may come again.
struct Kept {
    key: Key,
    graph: Arc<Graph>,
    infos: Infos,
    /// What the device does, if it was planned.
    script: Option<Script>,
}

impl DynamicProgram {
    pub(crate) fn load(
        plan: &Plan,
        program: &plan::Program,
        info: &plan::Dynamic,
    ) -> Result<Self, RuntimeError> {
        let recipe = Recipe::from_bytes(&info.recipe).map_err(|e| RuntimeError::Prepare {
            node: program.kind.to_string(),
            op: "program".to_owned(),
            what: e.to_string(),
        })?;
        let g = &program.graph;
        let data = g.inputs.iter().filter(|i| i.role == InputRole::Data);
        let data = data.map(|i| (&g.value(i.value).name, g.ty(i.value)));
        if !recipe.source.inputs.iter().map(|(n, t)| (n, t)).eq(data) {
            return Err(RuntimeError::Prepare {
                node: program.kind.to_string(),
                op: "program".to_owned(),
                what: "its recipe has other inputs".to_owned(),
            });
        }
        let origin = Origin::Recipe(Arc::new(recipe));
        Ok(DynamicProgram::new(plan, program, origin, (info.pool, info.work), info.rates))
    }

    /// A static program under online rematerialization in all that the state leaves of its arena.
    pub(crate) fn of_static(plan: &Plan, program: &plan::Program) -> Self {
        let pool = (plan.state_bytes, program.certificate.arena.saturating_sub(plan.state_bytes));
        let origin = Origin::Graph(Arc::new(program.graph.clone()));
        DynamicProgram::new(plan, program, origin, pool, Rates::of(plan.device))
    }

    fn new(
        plan: &Plan,
        program: &plan::Program,
        origin: Origin,
        pool: (u64, u64),
        rates: Rates,
    ) -> DynamicProgram {
        let g = &program.graph;
        let input = |i: &graph::Input| (g.value(i.value).name.to_string(), i.role, g.ty(i.value).clone());
        let states = plan.state.iter().map(|e| (e.name.clone(), (e.offset, e.ty.clone()))).collect();
        DynamicProgram {
            origin,
            pool,
            budget: plan.budget,
            kind: program.kind,
            inputs: g.inputs.iter().map(input).collect(),
            around: Surroundings { states, rates, plans: Plans::default() },
            kept: Vec::new(),
        }
    }

    /// Its recipe, if it has one.
    pub(crate) fn recipe(&self) -> Option<Arc<Recipe>> {
        if let Origin::Recipe(r) = &self.origin { Some(r.clone()) } else { None }
    }

    /// First byte after its pool.
    pub(crate) fn end(&self) -> u64 {
        self.pool.0.saturating_add(self.pool.1)
    }

    fn refuse(&self, what: String) -> RuntimeError {
        RuntimeError::Prepare { node: self.kind.to_string(), op: "program".to_owned(), what }
    }

    /// Runs one step in as much of its pool as lies below byte `limit` of the arena.
    pub(crate) fn run(
        &mut self,
        device: &mut dyn Device,
        inputs: &StepInputs<'_>,
        options: RunOptions,
        limit: u64,
    ) -> Result<StepResult, RuntimeError> {
        let (key, bindings) = self.bind(inputs)?;
        let scalars = Scalars::new(inputs);
        let host = scalars.host(inputs);
        let at = self.kept.iter().position(|k| k.key == key);
        let kept = at.map(|i| self.kept.remove(i));
        let (base, bytes) = (self.pool.0, self.pool.1.min(limit.saturating_sub(self.pool.0)));
        let mut known = Known::default();
        let (mut result, mut fresh) = (None, None);
        let outcome = device.eager(&mut |eager| {
            if let Some(kept) = &kept
                && let Some(script) = kept.script.as_ref().filter(|s| s.pool == (base, bytes))
            {
                check_labels(&kept.graph, inputs)?;
                script.play(&kept.graph, eager, &host, options.check_recompute)?;
                result = Some(collect(&kept.graph, script.results(), eager, report(script)));
                return Ok(());
            }
            let world = PoolWorld::new(Some(eager), base, bytes, options.check_recompute);
            let infos = kept.as_ref().map(|k| k.infos.clone()).unwrap_or_default();
            let mut e = Executor::new(world, &self.around, &host, infos, PATIENCE)?;
            let graph = match &kept {
                Some(k) => k.graph.clone(),
                None => self.make(&mut e, &bindings, &mut known)?,
            };
            known.step = Some(graph.clone());
            check_labels(&graph, inputs)?;
            let done = e.finish_walked(&graph, known.walked.as_ref())?;
            let mut figures = e.figures();
            let (mut infos, eager) = e.into_parts();
            let eager = eager.ok_or_else(|| bug("a step without a device".to_owned()))?;
            let script = match done {
                Done::Planned(script) => {
                    script.play(&graph, eager, &host, options.check_recompute)?;
                    figures.add(report(&script));
                    result = Some(collect(&graph, script.results(), eager, figures));
                    // The script holds what it needs of them.
                    infos = Infos::default();
                    Some(script)
                }
                Done::Online(regions) => {
                    result = Some(collect(&graph, &regions, eager, figures));
                    None
                }
            };
            if known.walked.is_none() {
                fresh = Some(Kept { key: key.clone(), graph, infos, script });
            }
            Ok(())
        });
        // A step that was refused for its data may be given others.
        if let Some(kept) = fresh.or(kept) {
            self.kept.push(kept);
            if self.kept.len() > KEPT {
                self.kept.remove(0);
            }
        }
        match outcome {
            Ok(()) => result.ok_or_else(|| bug("a step without results".to_owned())),
            Err(RuntimeError::PoolFull(mut full)) => {
                full.least = self.least(device, &bindings, &host, known, full.pool);
                // Less of the pool than the plan has is for want of budget.
                let whole = full.pool == self.pool.1 && self.recipe().is_some();
                let spare = self.budget.saturating_sub(self.end()) >= plan::ALIGNMENT;
                full.budget = (whole && spare).then_some(self.budget);
                Err(RuntimeError::PoolFull(full))
            }
            Err(e) => Err(e),
        }
    }

    /// Sizes from the inputs' shapes.
    pub(crate) fn bind(&self, inputs: &StepInputs<'_>) -> Result<(Key, Bindings), RuntimeError> {
        let mut bindings = Bindings::new();
        let mut key = Key::new();
        for (name, role, ty) in &self.inputs {
            if !matches!(role, InputRole::Data | InputRole::Label) {
                continue;
            }
            let refuse = |what: String| RuntimeError::Input { name: name.clone(), what };
            let given = inputs.data.iter().find(|(n, _)| n == name);
            let (_, bytes) = given.ok_or_else(|| refuse(format!("{ty} is not given")))?;
            let shape = inputs.shapes.iter().find(|(n, _)| n == name).map(|(_, s)| s.to_vec());
            let shape = match (shape, ty.shape.fixed()) {
                (Some(s), _) => s,
                (None, Some(s)) => s.into_iter().map(|d| d as u64).collect(),
                (None, None) => return Err(refuse(format!("its shape is open, {ty}, and none is given"))),
            };
            let elements = shape.iter().try_fold(ty.dtype.size(), |n, d| n.checked_mul(*d));
            if elements != Some(bytes.len() as u64) {
                return Err(refuse(format!(
                    "{} bytes do not make up the shape {shape:?} of {}",
                    bytes.len(),
                    ty.dtype
                )));
            }
            key.push((name.clone(), shape.clone()));
            if *role == InputRole::Label {
                continue;
            }
            if shape.len() != ty.shape.rank() {
                return Err(refuse(format!("its shape is {shape:?}, the model's {ty}")));
            }
            for (d, n) in ty.shape.0.iter().zip(&shape) {
                let n = i64::try_from(*n).map_err(|_| refuse(format!("extent {n} is too large")))?;
                match (d.as_symbol(), d.as_const()) {
                    (Some(s), _) => {
                        let before = *bindings.entry(s.clone()).or_insert(n);
                        if before != n {
                            return Err(refuse(format!(
                                "size {s} is {n} here and {before} in another input"
                            )));
                        }
                    }
                    (None, Some(c)) if c == n => {}
                    _ => return Err(refuse(format!("its shape is {shape:?}, the model's {ty}"))),
                }
            }
        }
        Ok((key, bindings))
    }

    /// The step's graph; notes what the walk that it comes from found and asked for, or how far it came.
    fn make(
        &self,
        e: &mut Executor<'_, '_>,
        bindings: &Bindings,
        known: &mut Known,
    ) -> Result<Arc<Graph>, RuntimeError> {
        let recipe = match &self.origin {
            Origin::Recipe(recipe) => recipe,
            Origin::Graph(g) => return Ok(g.clone()),
        };
        // A node takes some 2 KB beside the arena: a loop that only data end is not to take far more there than the budget.
        let open = usize::try_from(self.budget / NODE_BYTES).unwrap_or(MAX_NODES).clamp(MAX_OPEN, MAX_NODES);
        let limits = Limits { nodes: MAX_NODES, open };
        let (forward, traced) = loop {
            let mut oracle = Running { e: &mut *e, failed: None };
            let walked = recipe.forward(bindings, limits, &mut oracle);
            let failed = oracle.failed.take();
            match (walked, failed) {
                (_, Some(_)) if e.outgrown() => e.renew()?,
                (_, Some((error, graph))) => {
                    known.walked = Some((graph, e.asked().to_vec()));
                    return Err(error);
                }
                (Err(e), None) => return Err(RuntimeError::Trace(e)),
                (Ok(t), None) => break t,
            }
        };
        let step = if traced.asked {
            recipe.program_of_run(self.kind, &forward)
        } else {
            recipe.program(self.kind, &forward)
        };
        let step = step.map_err(|e| self.refuse(e.to_string()))?;
        let asked = e.asked().to_vec();
        e.rebase(&forward, &step)?;
        if traced.asked {
            known.walked = Some((forward, asked));
        }
        Ok(Arc::new(step))
    }

    /// What pool would do for inputs that were too much for one of `small` bytes. Where the walk did not come to its end, it is done again
    /// with memory beside the arena, as far as the device lends some.
    fn least(
        &self,
        device: &mut dyn Device,
        bindings: &Bindings,
        host: &BTreeMap<String, &[u8]>,
        mut known: Known,
        small: u64,
    ) -> Option<Least> {
        if let (None, Some(beside)) = (&known.step, least::beside(small)) {
            let mut whole = Known::default();
            // What is left there of the step that failed is of no use.
            let _ = device.eager(&mut |eager| {
                eager.discard(self.pool.0, small);
                Ok(())
            });
            let walk = device.eager_beside(beside, &mut |eager, base| {
                let world = PoolWorld::new(Some(eager), base, beside, false);
                let mut e = Executor::new(world, &self.around, host, Infos::default(), least::REPEATS)?;
                e.allow(least::BESIDE_NS);
                whole.step = Some(self.make(&mut e, bindings, &mut whole)?);
                Ok(())
            });
            if walk.is_ok() {
                known = whole;
            }
        }
        least::pool(&known, &self.around, host, small)
    }
}

/// Computes what the walk asks for.
struct Running<'e, 'd, 's: 'd> {
    e: &'e mut Executor<'d, 's>,
    /// Why a value could not be computed, and what the graph was then.
    failed: Option<(RuntimeError, Graph)>,
}

impl trace::Oracle for Running<'_, '_, '_> {
    fn elements(&mut self, graph: &Graph, value: graph::ValueId) -> Result<Option<graph::Literal>, String> {
        self.e.elements(graph, value).map_err(|e| {
            let text = e.to_string();
            self.failed = Some((e, graph.clone()));
            text
        })
    }

    fn forget(&mut self) {
        self.e.forget();
    }

    fn reserve(&mut self, graph: &Graph, bytes: u64) -> Result<(), String> {
        self.e.reserve(bytes).map_err(|e| {
            let text = e.to_string();
            self.failed = Some((e, graph.clone()));
            text
        })
    }
}

/// The label's shape follows from the model's output.
fn check_labels(graph: &Graph, inputs: &StepInputs<'_>) -> Result<(), RuntimeError> {
    for i in graph.inputs.iter().filter(|i| i.role == InputRole::Label) {
        let value = graph.value(i.value);
        let given = inputs.data.iter().find(|(n, _)| **n == *value.name);
        let len = given.map(|(_, b)| b.len() as u64);
        if len != value.ty.bytes() {
            let what = format!(
                "{} bytes are given, {} needs {}",
                len.unwrap_or(0),
                value.ty,
                value.ty.bytes().unwrap_or(0)
            );
            return Err(RuntimeError::Input { name: value.name.to_string(), what });
        }
    }
    Ok(())
}

/// What a step reads beside its data.
struct Scalars {
    learning_rate: [u8; 4],
    step: [u8; 8],
    seed: [u8; 8],
}

impl Scalars {
    fn new(inputs: &StepInputs<'_>) -> Scalars {
        Scalars {
            learning_rate: inputs.learning_rate.to_le_bytes(),
            step: inputs.step.to_le_bytes(),
            seed: inputs.seed.to_le_bytes(),
        }
    }

    /// The inputs' elements by [`host_key`].
    fn host<'a>(&'a self, inputs: &StepInputs<'a>) -> BTreeMap<String, &'a [u8]> {
        let mut host: BTreeMap<String, &[u8]> =
            inputs.data.iter().map(|(n, b)| (host_key(InputRole::Data, n), *b)).collect();
        let mut scalar = |role, bytes: &'a [u8]| host.insert(host_key(role, ""), bytes);
        scalar(InputRole::LearningRate, &self.learning_rate);
        scalar(InputRole::Step, &self.step);
        scalar(InputRole::Seed, &self.seed);
        host
    }
}

/// What an online run, a script or both did.
#[derive(Clone, Copy, Default)]
struct Figures {
    pool: PoolReport,
    firsts: u64,
    evictions: u64,
    repeats: u64,
    first_cost: u64,
    repeat_cost: u64,
    planning_ns: u64,
}

impl Figures {
    fn add(&mut self, other: Figures) {
        self.pool.peak = self.pool.peak.max(other.pool.peak);
        self.pool.moved += other.pool.moved;
        self.firsts += other.firsts;
        self.evictions += other.evictions;
        self.repeats += other.repeats;
        self.first_cost += other.first_cost;
        self.repeat_cost += other.repeat_cost;
        self.planning_ns += other.planning_ns;
    }
}

/// The figures of a script.
fn report(s: &Script) -> Figures {
    Figures {
        pool: PoolReport { peak: s.peak, moved: s.moved },
        firsts: s.firsts,
        evictions: s.evictions,
        repeats: s.repeats,
        first_cost: s.first_cost,
        repeat_cost: s.repeat_cost,
        planning_ns: 0,
    }
}

/// The outputs' elements and the figures of the run.
fn collect(graph: &Graph, regions: &[Region], device: &dyn Eager, f: Figures) -> StepResult {
    let mut outputs = Vec::new();
    for (v, region) in graph.outputs.iter().zip(regions) {
        let mut bytes = vec![0; region.len as usize];
        device.read(region.offset, &mut bytes);
        outputs.push((graph.value(*v).name.to_string(), graph.ty(*v).clone(), bytes));
    }
    let dynamic = DynamicReport {
        pool: f.pool,
        nodes: f.firsts,
        evictions: f.evictions,
        remats: f.repeats,
        extra_permille: f.repeat_cost.saturating_mul(1000) / f.first_cost.max(1),
        estimated_ns: f.first_cost,
        planning_ns: f.planning_ns,
    };
    StepResult { outputs, report: RunReport { dynamic: Some(dynamic), ..RunReport::default() } }
}
