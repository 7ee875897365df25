//! Plans of several programs (buckets of sizes, budgets) and what it takes to train with them.

use crate::Weights;
use compiler::{
    buckets,
    cost::{CostModel, DeviceProfile},
    dynamic,
    import::{self, Options as ImportOptions, trainable},
    pipeline::{Budget, Request, plan_programs, programs},
    planner::Options,
    train::{Loss, Optimizer, TrainOptions},
    variants::{self, Part},
};
use plan::{Guard, Plan, ProgramKind};
use rand::{Rng, SeedableRng, rngs::StdRng};
use runtime::{CpuDevice, Device, LoadOptions, RunOptions, RuntimeError, Session, StepInputs, StepResult};
use std::path::{Path, PathBuf};

/// A model file and how it is trained.
pub struct Subject {
    /// The file.
    pub path: PathBuf,
    /// The loss; `None` for the one in the model.
    pub loss: Option<Loss>,
    /// The optimizer.
    pub optimizer: Optimizer,
}

/// A batch: name, extents, elements.
pub type Batch = Vec<(String, Vec<u64>, Vec<u8>)>;

/// Momentum is state that a wrong step would leave a trace in.
pub fn momentum() -> Optimizer {
    Optimizer::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 }
}

impl Subject {
    /// The model in this file.
    pub fn new(path: &Path, loss: Option<Loss>) -> Subject {
        Subject { path: path.to_owned(), loss, optimizer: momentum() }
    }

    fn options(&self, dims: &[(&str, i64)]) -> ImportOptions {
        let dims = dims.iter().map(|(n, d)| ((*n).to_owned(), *d)).collect();
        ImportOptions { dims, ..ImportOptions::default() }
    }

    fn train(&self, graph: &graph::Graph, candidates: &[std::sync::Arc<str>]) -> TrainOptions {
        TrainOptions {
            loss: self.loss.clone(),
            output: None,
            label: "target".to_owned(),
            class_axis: None,
            ignore_index: Some(-100),
            optimizer: self.optimizer.clone(),
            clip_norm: None,
            accumulate: 1,
            trainable: trainable::select(graph, candidates, &[], &[]).expect("candidates"),
            amp: None,
        }
    }

    /// The plan with these sizes bound, one program for each budget.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn fixed(&self, dims: &[(&str, i64)], budgets: &[Budget]) -> Plan {
        let imported = import::import(&self.path, &self.options(dims)).unwrap_or_else(|e| panic!("{e}"));
        let train = self.train(&imported.graph, &imported.candidates);
        let (graphs, _) = programs(&imported.graph, Some(&train), None).unwrap_or_else(|e| panic!("{e}"));
        with_request(|request| match budgets {
            [budget] => plan_programs(graphs, *budget, request),
            _ => {
                let part = |(kind, graph)| Part { kind, guard: Guard::default(), graph };
                variants::plan(graphs.into_iter().map(part).collect(), None, budgets, None, request)
            }
        })
    }

    /// The plan with some sizes bound and others in buckets; without bounds a dynamic one.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn open(&self, dims: &[(&str, i64)], bounds: &[(&str, &[i64])], budgets: &[Budget]) -> Plan {
        let options = self.options(dims);
        let open = import::import_open(&self.path, &options).unwrap_or_else(|e| panic!("{e}"));
        let train = self.train(&open.graph, &open.candidates);
        let rates = DeviceProfile::cpu();
        let request = dynamic::Request::new(&open, options.ops, Some(&train), &rates);
        if bounds.is_empty() {
            let [Budget::Bytes(n)] = budgets else { panic!("a dynamic plan has a budget in bytes") };
            return dynamic::plan(&request, *n, None).unwrap_or_else(|e| panic!("{e}"));
        }
        let bounds: Vec<_> = bounds.iter().map(|(n, b)| ((*n).to_owned(), b.to_vec())).collect();
        let guards = buckets::product(&open, &bounds).unwrap_or_else(|e| panic!("{e}"));
        let parts = buckets::parts(&request, &guards).unwrap_or_else(|e| panic!("{e}"));
        let plan = with_request(|r| variants::plan(parts, Some(&request), budgets, None, r));
        // What goes through a file, as bytes or as text, is what runs.
        let bytes = plan::to_bytes(&plan).expect("bytes");
        assert_eq!(plan::from_bytes(&bytes).expect("a plan"), plan);
        let text = plan::text::full(&plan).expect("text");
        assert_eq!(plan::text::parse(&text).expect("a plan"), plan);
        plan
    }

    /// A session on the CPU.
    ///
    /// # Panics
    ///
    /// If the plan cannot be loaded.
    pub fn session(&self, plan: Plan) -> Session {
        self.session_on(plan, Box::new(CpuDevice::new(1).expect("threads")), LoadOptions::default())
            .unwrap_or_else(|e| panic!("{e}"))
    }

    /// A session on a device.
    ///
    /// # Errors
    ///
    /// The runtime's refusal.
    pub fn session_on(
        &self,
        plan: Plan,
        device: Box<dyn Device>,
        options: LoadOptions,
    ) -> Result<Session, RuntimeError> {
        let weights = import::read_weights(&self.path).unwrap_or_else(|e| panic!("{e}"));
        Session::load(plan, device, &mut Weights(&weights), options)
    }
}

fn with_request(
    f: impl FnOnce(&Request<'_>) -> Result<compiler::pipeline::Compiled, compiler::pipeline::CompileError>,
) -> Plan {
    let request = Request {
        model: "subject",
        accumulate: 1,
        device: plan::Device::Cpu,
        weight_hash: &|_| None,
        costs: &CostModel::estimated(DeviceProfile::cpu()),
        planner: &Options { work: Some(100_000), ..Options::default() },
    };
    f(&request).unwrap_or_else(|e| panic!("{e}")).plan
}

/// Integers in `[0, below)`.
pub fn ints(name: &str, shape: &[u64], below: i64, seed: u64) -> (String, Vec<u64>, Vec<u8>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let n: u64 = shape.iter().product();
    let bytes = (0..n).flat_map(|_| rng.random_range(0..below).to_le_bytes()).collect();
    (name.to_owned(), shape.to_vec(), bytes)
}

/// Floats in `[-1, 1)`.
pub fn floats(name: &str, shape: &[u64], seed: u64) -> (String, Vec<u64>, Vec<u8>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let n: u64 = shape.iter().product();
    let bytes = (0..n).flat_map(|_| rng.random_range(-1.0f32..1.0).to_le_bytes()).collect();
    (name.to_owned(), shape.to_vec(), bytes)
}

/// One training step.
///
/// # Errors
///
/// The runtime's refusal.
pub fn step(session: &mut Session, batch: &Batch, step: i64) -> Result<StepResult, RuntimeError> {
    let data: Vec<(&str, &[u8])> = batch.iter().map(|(n, _, b)| (n.as_str(), b.as_slice())).collect();
    let shapes: Vec<(&str, &[u64])> = batch.iter().map(|(n, s, _)| (n.as_str(), s.as_slice())).collect();
    let inputs = StepInputs { data: &data, shapes: &shapes, learning_rate: 0.05, step, seed: 1 };
    let program = session.program(ProgramKind::Train)?;
    session.run(program, &inputs, RunOptions { check_recompute: true, measure: false })
}

/// Parameters and what the optimizer remembers of them, by name.
///
/// # Panics
///
/// If the state cannot be read.
pub fn trained(session: &Session) -> Vec<(String, Vec<u8>)> {
    let kinds = [graph::StateKind::Parameter, graph::StateKind::Optimizer, graph::StateKind::Statistic];
    let states = session.plan().state.iter().filter(|e| kinds.contains(&e.kind));
    let mut out: Vec<(String, Vec<u8>)> =
        states.map(|e| (e.name.to_string(), session.state(&e.name).expect("a state"))).collect();
    out.sort();
    out
}
