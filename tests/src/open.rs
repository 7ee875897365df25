//! Small models that are walked at every step: imported open, planned as one dynamic program, trained.

use crate::{
    Weights, data,
    reference::{Reference, import_model, options},
};
use compiler::{
    cost::DeviceProfile,
    dynamic,
    import::{self, Open},
    train::{Optimizer, TrainOptions},
};
use graph::Literal;
use ops::onnx::{BatchNormMode, DropoutMode, ImportOptions};
use plan::{Plan, ProgramKind};
use runtime::{
    CpuDevice, DynamicReport, LoadOptions, RunOptions, RuntimeError, Session, StepInputs, StepResult,
};
use std::{collections::BTreeMap, path::Path};

/// Bits of the losses, the trained state, and what the last step reports.
pub type Trained = (Vec<u64>, Vec<Vec<u8>>, DynamicReport);

/// A model that is walked at every step.
pub struct Subject {
    /// The model.
    pub open: Open,
    /// How modes of nodes are read.
    pub modes: ImportOptions,
    /// Its training step.
    pub train: TrainOptions,
    /// Inputs and label of the reference.
    pub io: BTreeMap<String, Literal>,
}

impl Subject {
    /// A file of `small/`; `None` where there is no data.
    ///
    /// # Panics
    ///
    /// If it cannot be imported.
    pub fn new(file: &str, optimizer: Optimizer) -> Option<Subject> {
        let root = data("models")?;
        let model = file.split('.').next()?;
        let reference = Reference::load(&root, model);
        let path = root.join("small").join(file);
        let straight = import_model(&path, file, model, &reference.io);
        let train = options(&straight, &reference, file, optimizer);
        let modes = ImportOptions {
            training: true,
            batchnorm: BatchNormMode::Auto,
            dropout: DropoutMode::Auto,
            unbiased_running_variance: true,
        };
        let open = import::import_open(&path, &import::Options { ops: modes, ..import::Options::default() })
            .unwrap_or_else(|e| panic!("{e}"));
        Some(Subject { open, modes, train, io: reference.io })
    }

    /// The plan within a budget, of which all that the state leaves is the pool.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn plan(&self, budget: u64) -> Plan {
        self.plan_in(budget, None)
    }

    /// The plan with a pool of so many bytes.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn plan_in(&self, budget: u64, pool: Option<u64>) -> Plan {
        let rates = DeviceProfile::cpu();
        let request = dynamic::Request::new(&self.open, self.modes, Some(&self.train), &rates);
        dynamic::plan(&request, budget, pool).unwrap_or_else(|e| panic!("{e}"))
    }

    /// A session of a plan.
    ///
    /// # Errors
    ///
    /// The runtime's refusal.
    pub fn session(&self, plan: Plan) -> Result<Session, RuntimeError> {
        let device = Box::new(CpuDevice::new(2)?);
        Session::load(plan, device, &mut Weights(&self.open.weights), LoadOptions::default())
    }

    /// A session with a pool of so many bytes.
    ///
    /// # Panics
    ///
    /// If it cannot be loaded.
    pub fn in_pool(&self, pool: u64) -> Session {
        self.session(self.plan_in(1 << 40, Some(pool))).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Losses and trained state of some steps, and what the last one reports.
    ///
    /// # Errors
    ///
    /// The runtime's refusal, as text.
    ///
    /// # Panics
    ///
    /// If a plan changes on its way through a file.
    pub fn train(&self, budget: u64, lr: f32, steps: i64) -> Result<Trained, String> {
        let plan = self.plan(budget);
        // What goes through a file is what runs.
        let plan = plan::from_bytes(&plan::to_bytes(&plan).expect("bytes")).expect("a plan");
        let text = plan::text::full(&plan).expect("text");
        assert_eq!(plan::text::parse(&text).expect("a plan"), plan);
        let mut s = self.session(plan).map_err(|e| e.to_string())?;
        let (mut losses, mut report) = (Vec::new(), DynamicReport::default());
        for number in 1..=steps {
            let r = step(&mut s, &self.io, lr, number).map_err(|e| e.to_string())?;
            losses.push(r.loss().unwrap_or(f64::NAN).to_bits());
            report = r.report.dynamic.unwrap_or_default();
        }
        Ok((losses, crate::written::state(&s), report))
    }
}

/// One training step on arrays by the names of inputs (`in:` before them or not).
///
/// # Errors
///
/// The runtime's refusal.
pub fn step(
    s: &mut Session,
    io: &BTreeMap<String, Literal>,
    lr: f32,
    number: i64,
) -> Result<StepResult, RuntimeError> {
    let named: Vec<(&str, &Literal)> =
        io.iter().map(|(n, l)| (n.strip_prefix("in:").unwrap_or(n), l)).collect();
    let data: Vec<(&str, &[u8])> = named.iter().map(|(n, l)| (*n, l.bytes())).collect();
    let shapes: Vec<(&str, &[u64])> = named.iter().map(|(n, l)| (*n, l.shape())).collect();
    let inputs = StepInputs { data: &data, shapes: &shapes, learning_rate: lr, step: number, seed: 1 };
    let program = s.program(ProgramKind::Train)?;
    s.run(program, &inputs, RunOptions { check_recompute: true, measure: false })
}

/// Runs a model's outputs once within a pool; outputs by name, and the most that was in use.
///
/// # Errors
///
/// What refuses the model or the inputs, as text.
///
/// # Panics
///
/// If an output is no tensor of its type.
pub fn infer(
    path: &Path,
    io: &BTreeMap<String, Literal>,
    pool: u64,
) -> Result<(BTreeMap<String, Literal>, u64), String> {
    let modes = ImportOptions {
        training: false,
        batchnorm: BatchNormMode::Auto,
        dropout: DropoutMode::Auto,
        unbiased_running_variance: false,
    };
    let open = import::import_open(path, &import::Options { ops: modes, ..import::Options::default() })
        .map_err(|e| e.to_string())?;
    let rates = DeviceProfile::cpu();
    let request = dynamic::Request::new(&open, modes, None, &rates);
    let plan = dynamic::plan(&request, 1 << 32, Some(pool)).map_err(|e| e.to_string())?;
    let device = Box::new(CpuDevice::new(2).expect("a device"));
    let mut s = Session::load(plan, device, &mut Weights(&open.weights), LoadOptions::default())
        .map_err(|e| e.to_string())?;
    let given: Vec<(&str, &Literal)> =
        io.iter().filter_map(|(n, l)| Some((n.strip_prefix("in:")?, l))).collect();
    let data: Vec<(&str, &[u8])> = given.iter().map(|(n, l)| (*n, l.bytes())).collect();
    let shapes: Vec<(&str, &[u64])> = given.iter().map(|(n, l)| (*n, l.shape())).collect();
    let inputs = StepInputs { data: &data, shapes: &shapes, ..StepInputs::default() };
    let r =
        s.run(0, &inputs, RunOptions { check_recompute: true, measure: false }).map_err(|e| e.to_string())?;
    let literal = |(name, ty, bytes): (String, graph::TensorType, Vec<u8>)| {
        let shape = ty.shape.fixed().expect("extents").into_iter().map(|d| d as u64).collect();
        (name, Literal::new(ty.dtype, shape, bytes).expect("its type"))
    };
    Ok((r.outputs.into_iter().map(literal).collect(), r.report.dynamic.unwrap_or_default().pool.peak))
}
