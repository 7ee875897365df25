//! Programs whose shapes or branches are known only when they run.
//!
//! At every step the program is walked with the inputs at hand (`trace`); where a shape, a branch or a trip count depends on a value, that
//! value is computed on the way. What comes out is a plain graph, from which the training step is made as the compiler makes it, and which
//! runs under Dynamic Tensor Rematerialization (arXiv 2006.09616) inside of a pool of fixed size. The walk and the step are the compiler's
//! own, so that the bits are those of a plan for the same sizes.

mod executor;
mod least;
mod pool;
mod world;

pub use world::{Holder, PoolReport};

use crate::{
    RunOptions, RunReport, RuntimeError, StepInputs, StepResult,
    device::{Device, Eager},
    resolve::Region,
};
use executor::{Executor, Infos, PATIENCE, Surroundings, bug, host_key};
use graph::{Bindings, Graph, InputRole, TensorType};
use plan::{Plan, ProgramKind, Rates};
use std::{collections::BTreeMap, fmt, sync::Arc};
use trace::{Limits, Recipe};
use world::PoolWorld;

/// Most nodes of a step: what a loop that never ends would reach.
pub(crate) const MAX_NODES: usize = 4 << 20;
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
}

/// A pool that is too small: what was asked of it when nothing more could go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolFull {
    /// Node that needed the space.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// Bytes that it needs at once, outputs and scratch.
    pub needed: u64,
    /// Bytes in use.
    pub live: u64,
    /// Bytes of the pool.
    pub pool: u64,
    /// Longest run of free bytes.
    pub largest_hole: u64,
    /// Bytes that cannot go: arguments of what is running, values that are kept.
    pub held: u64,
    /// It would do, but with so much recomputation that nobody would wait for it.
    pub thrashing: bool,
    /// Who holds most.
    pub holders: Vec<Holder>,
    /// The least pool that would do for these inputs, if the program was known to its end.
    pub least: Option<u64>,
}

impl fmt::Display for PoolFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.thrashing {
            write!(f, "recomputation costs many times the step itself: ")?;
        }
        write!(
            f,
            "out of memory at {} {:?}: it needs {} bytes at once; of the pool's {} bytes {} are in use, {} of them cannot go, and the \
             longest free run is {}; the largest holders are",
            self.op, self.node, self.needed, self.pool, self.live, self.held, self.largest_hole
        )?;
        for (i, h) in self.holders.iter().enumerate() {
            write!(f, "{} {:?} {}", if i == 0 { "" } else { "," }, h.node, h.bytes)?;
        }
        match self.least {
            Some(n) => write!(f, "; a pool of {n} bytes would do"),
            None => write!(f, "; give a larger budget"),
        }
    }
}

impl std::error::Error for PoolFull {}

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
    kind: ProgramKind,
    inputs: Vec<(String, InputRole, TensorType)>,
    around: Surroundings,
    /// Steps for sizes that came before, the latest last, where nothing but sizes decides.
    kept: Vec<(Key, Arc<Graph>, Infos)>,
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
        let states = plan.state.iter().map(|e| (e.name.clone(), e.offset)).collect();
        DynamicProgram {
            origin,
            pool,
            kind: program.kind,
            inputs: g.inputs.iter().map(input).collect(),
            around: Surroundings { states, rates },
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
        let host = self.host(inputs);
        let at = self.kept.iter().position(|(k, _, _)| *k == key);
        let kept = at.map(|i| self.kept.remove(i));
        let (pool, work) = (self.pool.0, self.pool.1.min(limit.saturating_sub(self.pool.0)));
        let mut made = None;
        let mut result = None;
        let outcome = device.eager(&mut |eager| {
            let world = PoolWorld::new(Some(eager), pool, work, options.check_recompute);
            let infos = kept.as_ref().map(|(_, _, i)| i.clone()).unwrap_or_default();
            let mut e = Executor::new(world, &self.around, &host, infos, PATIENCE)?;
            let (graph, asked) = match &kept {
                Some((_, g, _)) => (g.clone(), false),
                None => {
                    let (g, asked) = self.make(&mut e, &bindings)?;
                    (Arc::new(g), asked)
                }
            };
            made = Some((graph.clone(), e.asked().to_vec()));
            check_labels(&graph, inputs)?;
            let regions = e.finish(&graph)?;
            result = Some(collect(&graph, &regions, &mut e));
            let infos = e.into_infos();
            if !asked {
                self.kept.push((key.clone(), graph, infos));
                if self.kept.len() > KEPT {
                    self.kept.remove(0);
                }
            }
            Ok(())
        });
        match outcome {
            Ok(()) => result.ok_or_else(|| bug("a step without results".to_owned())),
            Err(RuntimeError::PoolFull(mut full)) => {
                if let Some((graph, asked)) = made {
                    full.least = least::least_pool(&graph, &self.around, &host, &asked, full.pool);
                }
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

    /// The inputs' elements by [`host_key`].
    fn host(&self, inputs: &StepInputs<'_>) -> BTreeMap<String, Arc<[u8]>> {
        let mut host: BTreeMap<String, Arc<[u8]>> =
            inputs.data.iter().map(|(n, b)| ((*n).to_owned(), Arc::from(*b))).collect();
        let mut scalar = |role, bytes: Arc<[u8]>| host.insert(host_key(role, "").to_owned(), bytes);
        scalar(InputRole::LearningRate, Arc::from(inputs.learning_rate.to_le_bytes()));
        scalar(InputRole::Step, Arc::from(inputs.step.to_le_bytes()));
        scalar(InputRole::Seed, Arc::from(inputs.seed.to_le_bytes()));
        host
    }

    /// The step's graph, and whether it depends on more than sizes.
    fn make(&self, e: &mut Executor<'_, '_>, bindings: &Bindings) -> Result<(Graph, bool), RuntimeError> {
        let recipe = match &self.origin {
            Origin::Recipe(recipe) => recipe,
            Origin::Graph(g) => return Ok(((**g).clone(), false)),
        };
        let mut oracle = Running { e, failed: None };
        let walked = recipe.forward(bindings, Limits { nodes: MAX_NODES }, &mut oracle);
        let failed = oracle.failed.take();
        let (forward, traced) = match (walked, failed) {
            (_, Some(e)) => return Err(e),
            (Err(e), None) => return Err(RuntimeError::Trace(e)),
            (Ok(t), None) => t,
        };
        let step = recipe.program(self.kind, &forward).map_err(|e| self.refuse(e.to_string()))?;
        e.rebase(&forward, &step);
        Ok((step, traced.asked))
    }
}

/// Computes what the walk asks for.
struct Running<'e, 'd, 's> {
    e: &'e mut Executor<'d, 's>,
    failed: Option<RuntimeError>,
}

impl trace::Oracle for Running<'_, '_, '_> {
    fn elements(&mut self, graph: &Graph, value: graph::ValueId) -> Result<Option<graph::Literal>, String> {
        self.e.elements(graph, value).map_err(|e| {
            let text = e.to_string();
            self.failed = Some(e);
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

/// The outputs' elements and the figures of the run.
fn collect(graph: &Graph, regions: &[Region], e: &mut Executor<'_, '_>) -> StepResult {
    let mut outputs = Vec::new();
    for (v, region) in graph.outputs.iter().zip(regions) {
        let mut bytes = vec![0; region.len as usize];
        if let Some(device) = e.world.device.as_deref_mut() {
            Eager::read(device, region.offset, &mut bytes);
        }
        outputs.push((graph.value(*v).name.to_string(), graph.ty(*v).clone(), bytes));
    }
    let stats = e.stats();
    let dynamic = DynamicReport {
        pool: e.world.report(),
        nodes: stats.firsts,
        evictions: stats.evictions - stats.eager,
        remats: stats.remats,
        extra_permille: stats.repeat_cost.saturating_mul(1000) / stats.first_cost.max(1),
    };
    StepResult { outputs, report: RunReport { dynamic: Some(dynamic), ..RunReport::default() } }
}
