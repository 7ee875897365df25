//! What `train` and `run` share: a plan from a plan file or a model, its weights, a session on a device, data.

use crate::{
    cli::Global,
    commands::{compile, show::read_plan},
    device::DeviceArgs,
    distinct::{check_external, check_read},
    error::CliError,
    files::{check_data, check_readable},
    model::{Metric, ModelArgs, ModelWeights},
    progress::note,
    units,
};
use clap::{ArgMatches, Args, parser::ValueSource};
use compiler::{
    evaluate::label_input,
    import::{self, Weights},
    pipeline::Budget,
};
use graph::{Init, InputRole};
use plan::{MAGIC, Plan, Program, ProgramKind};
use runtime::{
    CpuDevice, CudaDevice, LoadOptions, Session,
    data::dataset::{BatchArray, Dataset, Wanted},
};
use std::{
    io::Read,
    path::{Path, PathBuf},
};

/// Arguments of commands that run a plan.
#[derive(Clone, Debug, clap::Args)]
pub struct SessionArgs {
    /// The model or plan, and how to read a model.
    #[command(flatten)]
    pub model: ModelArgs,

    /// With a model: memory that the step may take (4G, 4GB, 512M, 50%). Several (2G,1G,512M) give a program each.
    #[arg(long, short, value_name = "B,..", value_delimiter = ',', value_parser = units::budget)]
    pub budget: Vec<Budget>,

    /// With a plan: the model file that holds the weights. Default: the model's name with .onnx, beside the plan.
    #[arg(long, value_name = "MODEL")]
    pub weights: Option<PathBuf>,

    /// Threads. Default: one a core. The numbers do not depend on it.
    #[arg(long, value_name = "N", value_parser = units::threads)]
    pub threads: Option<usize>,

    /// With a model: the device to plan for. A plan has its device inside.
    #[command(flatten)]
    pub device: DeviceArgs,

    /// The planner's limits.
    #[command(flatten)]
    pub planner: compile::PlannerArgs,

    /// Flags about the model that were given, which a plan has no use for.
    #[arg(skip)]
    pub about_model: Vec<String>,
}

impl SessionArgs {
    /// Notes which flags about the model stand on the command line.
    pub fn note_given(&mut self, matches: &ArgMatches) {
        let known = ModelArgs::augment_args(clap::Command::new("model"));
        let given =
            |a: &&clap::Arg| matches.value_source(a.get_id().as_str()) == Some(ValueSource::CommandLine);
        self.about_model = known
            .get_arguments()
            .filter(given)
            .filter_map(|a| Some(format!("--{}", a.get_long()?)))
            .collect();
    }
}

/// Whether a file starts like a plan; one cut short or emptied is still taken for a plan by its name, and refused as such.
pub fn is_plan(path: &Path) -> Result<bool, CliError> {
    check_readable(path)?;
    let mut head = [0; 8];
    let mut f = std::fs::File::open(path).map_err(|e| CliError::disk(path.display(), &e))?;
    let n = f.read(&mut head).map_err(|e| CliError::disk(path.display(), &e))?;
    let named = path.extension().is_some_and(|e| e == "dtrc");
    Ok(n == 8 && &head == MAGIC || named)
}

/// A plan ready to load.
pub struct Ready {
    /// The plan.
    pub plan: Plan,
    /// Where its weights are.
    pub weights: Weights,
    /// The model file.
    pub model: PathBuf,
}

/// The inference program that a command needs of a model beside the training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inference {
    /// What the flags say.
    AsAsked,
    /// The model's outputs.
    Outputs,
    /// What evaluation tells.
    Metrics,
}

/// Reads a plan, or compiles a model.
pub fn ready(args: &SessionArgs, global: Global, inference: Inference) -> Result<Ready, CliError> {
    let path = &args.model.model;
    if !is_plan(path)? {
        if args.budget.is_empty() {
            return Err(CliError::usage(
                "a model needs --budget: 4G, 4GB, 512M or a share of keep-all such as 50% (100% recomputes nothing)",
            ));
        }
        let mut model = args.model.clone();
        match inference {
            Inference::AsAsked => {}
            Inference::Outputs => model.with_inference = true,
            Inference::Metrics if model.metric.is_empty() => model.metric.push(Metric::Loss),
            Inference::Metrics => {}
        }
        let (compiled, loaded) = compile::compile(&model, &args.budget, &args.planner, &args.device, global)?;
        let first = &compiled.plan.programs[0];
        let c = &first.certificate;
        let what = match &first.dynamic {
            Some(d) => {
                format!("state {}, a pool of {} for the rest", units::bytes(d.pool), units::bytes(d.work))
            }
            None => format!(
                "arena {}, keep-all {}, predicted extra time +{:.1} %",
                units::bytes(compiled.plan.arena),
                units::bytes(compiled.keep_all),
                c.time_ns.saturating_sub(c.base_time_ns) as f64 / c.base_time_ns.max(1) as f64 * 100.0
            ),
        };
        note(global.quiet, format!("budget {} bytes: {what}", compiled.budget));
        return Ok(Ready { plan: compiled.plan, weights: loaded.weights, model: path.clone() });
    }
    if !args.budget.is_empty() {
        return Err(CliError::usage("a plan has its budget already: --budget is for models"));
    }
    // Evaluation may show less than the plan can tell.
    let idle = args.about_model.iter().map(String::as_str);
    let idle: Vec<&str> = idle.filter(|f| *f != "--metric" || inference != Inference::Metrics).collect();
    if !idle.is_empty() {
        let what = "a plan has all this inside already: compile the model anew with";
        return Err(CliError::usage(format!("{what} {}", idle.join(", "))));
    }
    let (plan, _) = read_plan(path)?;
    let beside = path.with_file_name(format!("{}.onnx", plan.model));
    let model = args.weights.clone().unwrap_or(beside);
    if args.weights.is_none() && !model.exists() {
        let what =
            format!("the weights of this plan are those of {}.onnx: give --weights MODEL.onnx", plan.model);
        return Err(CliError::bad_input(format!("{}: not found; {what}", model.display())));
    }
    check_readable(&model)?;
    check_read(&model)?;
    let mut weights = import::read_weights(&model)?;
    check_external(&weights)?;
    for s in &plan.state {
        if let Init::Weight(name) = &s.init {
            weights.fill(name, &s.ty);
        }
    }
    Ok(Ready { plan, weights, model })
}

impl SessionArgs {
    /// Loads a plan on the device it was made for; with `follow_memory` within what is available, if it can.
    pub fn load(&self, ready: &Ready, follow_memory: bool, global: Global) -> Result<Session, CliError> {
        let device: Box<dyn runtime::Device> = match ready.plan.device {
            plan::Device::Cpu => Box::new(CpuDevice::new(self.threads.unwrap_or(0))?),
            plan::Device::Cuda => {
                Box::new(CudaDevice::open().map_err(|e| CliError::unavailable(e.to_string()))?)
            }
        };
        if ready.model != self.model.model {
            note(global.quiet, format!("weights from {}", ready.model.display()));
        }
        let hashes =
            ready.plan.state.iter().filter(|e| matches!(e.init, Init::Weight(_)) && e.hash.is_none()).count();
        if hashes > 0 {
            note(
                global.quiet,
                format!("{hashes} weights were absent when the plan was made; they are taken as they are"),
            );
        }
        let options = LoadOptions { other_weights: self.weights.is_some(), follow_memory };
        let mut session =
            Session::load(ready.plan.clone(), device, &mut ModelWeights(&ready.weights), options)?;
        if let Some(m) = session.device_memory()? {
            let [arena, beside, others] =
                [m.arena, m.beside_arena(), m.total.saturating_sub(m.before)].map(units::bytes);
            let what =
                format!("arena {arena}, modules and graphs {beside}, context and other processes {others}");
            note(global.quiet, format!("device memory: {what}"));
        }
        Ok(session)
    }
}

/// The inputs that a program takes from data.
pub fn wanted(program: &Program) -> Vec<Wanted> {
    wanted_with(program, &[program])
}

/// The inputs of a program; `same` are the programs of its kind, whose nodes tell what is a label.
fn wanted_with(program: &Program, same: &[&Program]) -> Vec<Wanted> {
    // A loss in the model has its labels among the model's inputs; of one that is added they are the label, in one row. The scores have
    // their classes along the second axis.
    let classes = |name: &str| {
        let mut losses = same
            .iter()
            .flat_map(|p| p.graph.nodes.iter().filter_map(|n| Some((&p.graph, n, label_input(&n.op)?))));
        losses.find_map(|(g, n, at)| {
            let v = n.inputs.get(at).copied().flatten()?;
            let flat = g.producer(v).map(|p| g.node(p)).filter(|p| &*p.op == "Reshape");
            let source = flat.and_then(|p| p.inputs.first().copied().flatten()).unwrap_or(v);
            let scores = n.inputs.first().copied().flatten()?;
            // Where the scores are never written, their number is not looked for.
            let count = g.ty(scores).shape.0.get(1).filter(|_| at == 1).and_then(graph::Dim::as_const);
            (&*g.value(source).name == name).then_some(count.and_then(|n| u64::try_from(n).ok()))
        })
    };
    let g = &program.graph;
    g.inputs
        .iter()
        .filter(|i| matches!(i.role, InputRole::Data | InputRole::Label))
        .map(|i| {
            let name = g.value(i.value).name.to_string();
            let classes = classes(&name);
            Wanted {
                ty: g.ty(i.value).clone(),
                label: i.role == InputRole::Label || classes.is_some(),
                classes: classes.flatten(),
                name,
            }
        })
        .collect()
}

/// Opens a data set for a plan's programs of a kind and tells its notes.
pub fn open_data(path: &Path, plan: &Plan, kind: ProgramKind, global: Global) -> Result<Dataset, CliError> {
    check_data(path)?;
    let none = || CliError::bad_input(format!("the plan has no {kind} program"));
    let program = plan.interface(kind).ok_or_else(none)?;
    let same: Vec<&Program> = plan.programs.iter().filter(|p| p.kind == kind).collect();
    let data = Dataset::open(path, &wanted_with(program, &same));
    let data = data.map_err(|e| CliError::bad_input(e.to_string()))?;
    data.notes.iter().for_each(|n| note(global.quiet, n));
    Ok(data)
}

/// Elements and extents of a batch's arrays by name, as a step takes them.
#[allow(clippy::type_complexity)]
pub fn by_name(batch: &[BatchArray]) -> (Vec<(&str, &[u8])>, Vec<(&str, &[u64])>) {
    let data = batch.iter().map(|a| (a.name.as_str(), a.bytes.as_slice())).collect();
    (data, batch.iter().map(|a| (a.name.as_str(), a.shape.as_slice())).collect())
}
