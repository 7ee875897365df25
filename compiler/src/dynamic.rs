//! Plans of models whose shapes or branches are known only at run time.
//!
//! Nothing is scheduled here: the plan carries the program itself and says how much memory it may take. The runtime walks it at every step
//! and runs what comes out under online rematerialization. The whole program is one region; the pool has what the state leaves of the
//! budget.

use crate::{
    cost::DeviceProfile,
    emit::{self, EmitError},
    import::Open,
    train::{self, Loss, Names, TrainError, TrainOptions, label_taken},
};
use graph::{DType, Graph, Init, InputRole, Shape, StateKind, TensorType};
use ops::{Builder, Registry, onnx::ImportOptions};
use plan::{
    ALIGNMENT, Certificate, Device, Dynamic, Guard, Plan, Program, ProgramKind, ValidateError, numerics,
    validate,
};
use trace::{Recipe, RecipeError};

/// Why a dynamic plan cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum DynamicError {
    /// The state alone fills the budget.
    #[error(
        "the budget of {budget} bytes leaves nothing for the dynamic program: the state alone needs {state}; give more than that, plus what \
         its largest operation needs"
    )]
    State {
        /// Bytes of the budget.
        budget: u64,
        /// Bytes of the state.
        state: u64,
    },
    /// The program cannot be written.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// The states cannot be laid out.
    #[error(transparent)]
    Emit(#[from] EmitError),
    /// The plan is not valid: a bug.
    #[error(transparent)]
    Validate(#[from] ValidateError),
}

/// What a dynamic plan is made of.
pub struct Request<'a> {
    /// Name of the model, for people.
    pub model: &'a str,
    /// The model.
    pub open: &'a Open,
    /// How modes of nodes are read in training.
    pub modes: ImportOptions,
    /// The training step; `None` for outputs only.
    pub train: Option<&'a TrainOptions>,
    /// Also a program for the outputs beside the training step.
    pub with_inference: bool,
    /// What that program gives in place of the outputs: the loss of these options and, if so said, the rows that are classified right.
    pub evaluate: Option<(&'a TrainOptions, bool)>,
    /// Why the model is not static.
    pub reason: &'a str,
    /// The device kind.
    pub device: Device,
    /// Rates for the costs of recomputation.
    pub rates: &'a DeviceProfile,
    /// Hash of a weight, where its elements are there.
    pub weight_hash: &'a dyn Fn(&str) -> Option<[u8; 32]>,
}

impl<'a> Request<'a> {
    /// A model's training step, or its outputs, on the CPU; weights have no hashes.
    pub fn new(
        open: &'a Open,
        modes: ImportOptions,
        train: Option<&'a TrainOptions>,
        rates: &'a DeviceProfile,
    ) -> Request<'a> {
        Request {
            model: "model",
            open,
            modes,
            train,
            with_inference: false,
            evaluate: None,
            reason: "it is asked for",
            device: Device::Cpu,
            rates,
            weight_hash: &|_| None,
        }
    }
}

/// A program before it has a pool: its inputs and states, and what it is made from.
pub(crate) struct Template {
    pub(crate) kind: ProgramKind,
    pub(crate) graph: Graph,
    pub(crate) recipe: Recipe,
}

/// The programs of a dynamic plan.
pub(crate) fn templates(request: &Request<'_>) -> Vec<Template> {
    let mut kinds: Vec<ProgramKind> = match request.train {
        Some(train) if train.accumulate > 1 => vec![ProgramKind::Micro, ProgramKind::Last],
        Some(_) => vec![ProgramKind::Train],
        None => Vec::new(),
    };
    if request.with_inference || request.evaluate.is_some() || kinds.is_empty() {
        kinds.push(ProgramKind::Infer);
    }
    let made = |kind| {
        let train = request.train.filter(|_| kind != ProgramKind::Infer);
        let mut modes = request.modes;
        modes.training = train.is_some();
        let recipe = Recipe {
            source: request.open.source.clone(),
            modes: modes.into(),
            train: train.cloned(),
            evaluate: request.evaluate.filter(|_| train.is_none()).map(|(o, accuracy)| (o.clone(), accuracy)),
        };
        let losses = train.or(request.evaluate.map(|(o, _)| o));
        Template { kind, graph: template(request.open, train, losses, kind), recipe }
    };
    kinds.into_iter().map(made).collect()
}

/// What decides the bits of a dynamic plan's programs: the kind, the graph of inputs and states, and the recipe.
pub fn recipes(request: &Request<'_>) -> Result<Vec<(ProgramKind, Graph, Vec<u8>)>, DynamicError> {
    let bytes = |t: Template| Ok((t.kind, t.graph, t.recipe.to_bytes()?));
    templates(request).into_iter().map(bytes).collect()
}

/// The programs with a pool of `work` bytes after the state.
pub(crate) fn programs(
    request: &Request<'_>,
    templates: Vec<Template>,
    state_bytes: u64,
    work: u64,
) -> Result<Vec<Program>, DynamicError> {
    let rates = request.rates.rates();
    let arena = state_bytes + work;
    let made = |Template { kind, graph, recipe }| {
        Ok(Program {
            kind,
            guard: Guard::default(),
            inputs: vec![state_bytes; graph.inputs.len()],
            graph,
            steps: Vec::new(),
            certificate: Certificate {
                live_peak: arena,
                arena,
                strategy: "online DTR".to_owned(),
                stop_reason: "known only at run time".to_owned(),
                ..Certificate::default()
            },
            dynamic: Some(Dynamic {
                recipe: recipe.to_bytes()?,
                reason: request.reason.to_owned(),
                pool: state_bytes,
                work,
                rates,
            }),
        })
    };
    templates.into_iter().map(made).collect()
}

/// Whether the options of a training step name what the model has, as far as that is known before a step is walked.
///
/// # Errors
///
/// The loss reads an output that is not there, or the label has the name of another tensor.
pub fn check(open: &Open, options: &TrainOptions) -> Result<(), TrainError> {
    let outputs = &open.source.body.outputs;
    let asked = match &options.loss {
        Some(Loss::Output(name)) => Some(name),
        _ => options.output.as_ref(),
    };
    if let Some(name) = asked.filter(|n| !outputs.iter().any(|o| **o == ***n)) {
        let available = outputs.iter().map(ToString::to_string).collect();
        return Err(TrainError::NoOutput { name: name.clone(), available });
    }
    let adds_label = !matches!(options.loss, None | Some(Loss::Output(_)));
    if adds_label && Names::of_source(&open.source).has(&options.label) {
        let output = asked.cloned().or_else(|| outputs.first().map(ToString::to_string)).unwrap_or_default();
        return Err(TrainError::Loss { output, error: label_taken(&options.label) });
    }
    Ok(())
}

/// Parameters that get zeros for a gradient at every step, whatever data decide: no differentiable way leads to them from the loss.
pub fn unreached(open: &Open, options: &TrainOptions) -> Vec<String> {
    let outputs: Vec<&str> = open.source.body.outputs.iter().map(|o| &**o).collect();
    let from = match (&options.loss, &options.output) {
        (Some(Loss::Output(name)), _) | (Some(_), Some(name)) => vec![name.as_str()],
        (Some(_), None) => outputs.into_iter().take(1).collect(),
        (None, _) => outputs,
    };
    crate::import::unreached(&open.source, &from, &options.trainable)
}

/// The plan of a dynamic model. `pool` is the size of the pool; without it the pool has all of the budget that the state leaves.
pub fn plan(request: &Request<'_>, budget: u64, pool: Option<u64>) -> Result<Plan, DynamicError> {
    let accumulate = request.train.map_or(1, |t| t.accumulate.max(1));
    let templates = templates(request);
    let graphs: Vec<&Graph> = templates.iter().map(|t| &t.graph).collect();
    let (state, state_bytes) = emit::state_section(&graphs, request.weight_hash)?;
    let left = budget.saturating_sub(state_bytes) / ALIGNMENT * ALIGNMENT;
    let work = pool.map_or(left, |p| (p / ALIGNMENT * ALIGNMENT).min(left));
    if work == 0 {
        return Err(DynamicError::State { budget, state: state_bytes });
    }
    let arena = state_bytes + work;
    let programs = programs(request, templates, state_bytes, work)?;
    let hashed = programs.iter().map(|p| (p.kind, &p.graph, p.dynamic.as_ref()));
    let plan = Plan {
        model: request.model.to_owned(),
        device: request.device,
        budget,
        arena,
        numerics: numerics(request.device, accumulate, hashed, &Registry),
        provenance: format!("dtrc {}", env!("CARGO_PKG_VERSION")),
        state,
        state_bytes,
        slot_bytes: 0,
        accumulate,
        programs,
    };
    validate(&plan, &Registry)?;
    Ok(plan)
}

/// Inputs and states of a program: those of the model, and what training adds.
fn template(
    open: &Open,
    options: Option<&TrainOptions>,
    losses: Option<&TrainOptions>,
    kind: ProgramKind,
) -> Graph {
    let mut g = open.graph.clone();
    let names = Names::of_source(&open.source);
    let scalar = |dtype| TensorType { dtype, shape: Shape::scalar() };
    if let Some(o) = losses.filter(|o| !matches!(o.loss, None | Some(Loss::Output(_)))) {
        // Its shape follows from the output, which is not known yet.
        let classes = matches!(o.loss, Some(Loss::CrossEntropy | Loss::Nll));
        let dtype = if classes { DType::I64 } else { DType::F32 };
        let ty = TensorType { dtype, shape: Shape(vec![graph::Dim::symbol("?")]) };
        g.add_input(o.label.as_str(), ty, InputRole::Label);
    }
    let Some(options) = options else {
        g.states
            .iter_mut()
            .filter(|s| s.kind == StateKind::Statistic)
            .for_each(|s| s.kind = StateKind::Frozen);
        return g;
    };
    if kind != ProgramKind::Train {
        g.add_state(names.state(train::LOSS_SUM), scalar(DType::F32), StateKind::Accumulator, Init::Zeros);
        // What the parts of a step add up of running statistics.
        let statistics = g.states.iter().filter(|s| s.kind == StateKind::Statistic);
        let pending: Vec<_> =
            statistics.map(|s| (names.memory(&s.name, train::PENDING), g.ty(s.input).clone())).collect();
        for (name, ty) in pending {
            g.add_state(name, ty, StateKind::Accumulator, Init::Zeros);
        }
    }
    if options.amp.is_some_and(|a| a.scales()) {
        use train::{GOOD, SCALE, SKIPPED, initial_scale};
        for (name, init) in [(SCALE, initial_scale()), (GOOD, Init::Zeros), (SKIPPED, Init::Zeros)] {
            g.add_state(names.state(name), scalar(DType::F32), StateKind::Optimizer, init);
        }
    }
    if kind != ProgramKind::Micro && options.optimizer.counts() {
        let name = names.state(train::UPDATE);
        g.add_state(name, scalar(DType::F32), StateKind::Optimizer, train::first_update());
    }
    let mut parameters = Vec::new();
    for s in &mut g.states {
        if options.trainable.iter().any(|n| **n == *s.name) {
            s.kind = StateKind::Parameter;
            parameters.push((s.name.clone(), s.input));
        }
    }
    for (name, v) in parameters {
        let ty = g.ty(v).clone();
        if kind != ProgramKind::Micro {
            for memory in options.optimizer.memory() {
                let name = names.memory(&name, memory);
                g.add_state(name, ty.clone(), StateKind::Optimizer, Init::Zeros);
            }
        }
        if kind != ProgramKind::Train {
            g.add_state(names.memory(&name, train::GRADIENT), ty, StateKind::Accumulator, Init::Zeros);
        }
    }
    // These are told apart by their role alone.
    for (name, dtype, role) in [
        ("lr", DType::F32, InputRole::LearningRate),
        ("step", DType::I64, InputRole::Step),
        ("seed", DType::I64, InputRole::Seed),
    ] {
        let name = Builder::new(&mut g).unique(name);
        g.add_input(name, scalar(dtype), role);
    }
    g
}
