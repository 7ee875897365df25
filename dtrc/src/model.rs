//! A model as commands see it: the file, what the user says about it, the graphs of its programs.

mod sizes;
mod told;
mod training;
mod values;
mod weights;

pub use self::{training::print_trainable, values::Metric, weights::ModelWeights};

use self::{
    sizes::open_size,
    told::{explain, tell, tell_halves, tell_measured, unread_inputs},
    values::{Batchnorm, Dropout, Half, OptimizerName, Rewrites, parse_loss, parts},
};
use crate::{
    cli::Global,
    dims::{self, DimArg},
    distinct::check_external,
    error::CliError,
    files::{check_readable, read_text},
    progress::note,
    units,
};
use compiler::{
    buckets,
    cost::{CostModel, DeviceProfile},
    dynamic,
    evaluate::evaluation,
    import::{self, Open, Weights},
    pipeline::{CompileError, rewritten_programs},
    train::{Loss, TrainError, TrainOptions, find_loss},
    variants::Part,
};
use graph::{DType, Graph, TensorType};
use ops::onnx::{BatchNormMode, DropoutMode, ImportOptions};
use plan::{Guard, ProgramKind};
use std::path::{Path, PathBuf};
use trace::TraceErrorKind;

/// A model and what is to be made of it.
#[derive(Clone, Debug, clap::Args)]
pub struct ModelArgs {
    /// The ONNX model.
    pub model: PathBuf,

    /// Bind a size: NAME=N for a named dimension, INPUT:AXIS=N for one without a name. NAME=128,256,512 makes buckets, a static program
    /// each: the smallest that a batch fits into runs, on the batch's own sizes, without padding. NAME<=512 is one bucket; what is beyond
    /// the last one runs under online DTR. Of a model that stays dynamic for its conditions, the greatest sizes are those that its pool is
    /// made for: what is beyond runs as far as that pool does. Repeatable: several lists make all their combinations.
    #[arg(long = "dim", value_name = "NAME=N", value_parser = dims::dim)]
    pub dims: Vec<DimArg>,

    /// The loss: output:NAME for one in the model, or cross-entropy (of scores), nll (of log-probabilities), mse, bce (of probabilities, as
    /// a sigmoid gives them) on an output with the label as a new input.
    /// Default: the model's only scalar output.
    #[arg(long, value_parser = parse_loss)]
    pub loss: Option<Loss>,

    /// The output that the loss reads. Default: the first.
    #[arg(long = "loss-output", value_name = "NAME")]
    pub loss_output: Option<String>,

    /// Name of the label input that the loss adds.
    #[arg(long, default_value = "target")]
    pub label: String,

    /// Axis of the classes in the output. Default: the last of three axes, otherwise the second.
    #[arg(long, allow_hyphen_values = true)]
    pub class_axis: Option<i64>,

    /// The label that counts nothing in an added loss (cross-entropy, nll): rows with it give no loss and no gradient. Default: -100, as
    /// in PyTorch. A loss in the model has its own.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub ignore_index: Option<i64>,

    /// How parameters move.
    #[arg(long, value_enum, default_value_t = OptimizerName::Sgd)]
    pub optimizer: OptimizerName,

    /// Momentum of SGD.
    #[arg(long, default_value_t = 0.0)]
    pub momentum: f64,

    /// Nesterov's form of momentum.
    #[arg(long)]
    pub nesterov: bool,

    /// Weight decay. Default: 0.01 for AdamW, otherwise 0.
    #[arg(long)]
    pub weight_decay: Option<f64>,

    /// Decay of Adam's moments.
    #[arg(long, num_args = 2, value_names = ["BETA1", "BETA2"], default_values_t = [0.9, 0.999])]
    pub betas: Vec<f64>,

    /// Added to Adam's denominator.
    #[arg(long, default_value_t = 1e-8)]
    pub eps: f64,

    /// Scale the gradients down to this global norm.
    #[arg(long, value_name = "NORM")]
    pub clip_norm: Option<f64>,

    /// Add the gradients of N batches before each update.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = parts)]
    pub accumulate: u32,

    /// Mixed precision: what products, normalisations and activations read and write is stored as bfloat16 or float16. Arithmetic,
    /// parameters, their gradients and the optimizer stay float32. With fp16 the loss is scaled, and a step whose gradients overflow is
    /// skipped.
    #[arg(long, value_enum)]
    pub amp: Option<Half>,

    /// How BatchNormalization is trained: as the file says, with batch statistics, or with running ones. Inference takes running ones.
    #[arg(long, value_enum, default_value_t = Batchnorm::Auto)]
    pub batchnorm: Batchnorm,

    /// Update running variances with the unbiased batch variance, as PyTorch does.
    #[arg(long)]
    pub unbiased_variance: bool,

    /// How Dropout is read.
    #[arg(long, value_enum, default_value_t = Dropout::Auto)]
    pub dropout: Dropout,

    /// Train only tensors whose name matches the pattern (* and ?). Repeatable. What is small enough to be a constant of the program, such
    /// as a learned factor of one element, is trained if it is named in full.
    #[arg(long = "train", value_name = "GLOB")]
    pub train: Vec<String>,

    /// Leave tensors alone whose name matches the pattern. Repeatable.
    #[arg(long, value_name = "GLOB")]
    pub freeze: Vec<String>,

    /// Print the trainable tensors and stop there.
    #[arg(long)]
    pub list_trainable: bool,

    /// Refuse models of which anything is known only at run time, instead of making their program anew at every step.
    #[arg(long)]
    pub strict_static: bool,

    /// The command has no use for a dynamic program, whatever the user asked for.
    #[arg(skip)]
    pub only_static: bool,

    /// Plan the model's outputs only, without a training step.
    #[arg(long)]
    pub inference: bool,

    /// Also plan the model's outputs (for evaluation) over the same state in the same memory.
    #[arg(long)]
    pub with_inference: bool,

    /// What evaluation tells: loss, accuracy (of class labels, without ignored ones). The inference program then takes the label and gives
    /// these instead of the model's outputs. Default of train --eval-data: loss.
    #[arg(long, value_name = "METRIC,..", value_enum, value_delimiter = ',')]
    pub metric: Vec<Metric>,

    /// Measured times, from dtrc profile.
    #[arg(long, value_name = "FILE")]
    pub costs: Option<PathBuf>,

    /// Extents of the labels in the data, where there are data: they tell which axis of the scores the classes lie along.
    #[arg(skip)]
    pub label_extents: Option<Vec<u64>>,

    /// What may be rewritten, the same at every budget: exact changes no bit; fast and memory may round differently, for time or for memory
    /// (attention without its scores, a loss without its logits).
    #[arg(long, value_enum, default_value_t = Rewrites::Exact)]
    pub rewrites: Rewrites,

    /// Say which rewrites fired, where, and what each saves by the cost model, and which did not and why.
    #[arg(long)]
    pub explain_rewrites: bool,
}

/// A loaded model.
pub struct Model {
    /// File name without its extension.
    pub name: String,
    /// Where its elements are.
    pub weights: Weights,
    /// Its programs, with the sizes that each is for.
    pub parts: Vec<Part>,
    /// Parts of a training step.
    pub accumulate: u32,
    /// Times.
    pub costs: CostModel,
    /// Upper bounds of sizes, where they have some: the largest of each.
    pub bounds: Option<Guard>,
    /// Where shapes or branches are known only at run time; the parts are buckets then, if there are any.
    pub open: Option<OpenModel>,
}

/// A model whose program is made anew at every step.
pub struct OpenModel {
    /// The model.
    pub open: Open,
    /// How its nodes are read.
    pub modes: ImportOptions,
    /// The training step; `None` for outputs only.
    pub train: Option<TrainOptions>,
    /// Also plan its outputs.
    pub with_inference: bool,
    /// What to give in place of the outputs.
    pub evaluate: Option<(TrainOptions, bool)>,
    /// Why it is not static.
    pub reason: String,
    /// Whether sizes that are not bound are all that is open, as far as is known.
    pub waits_for_sizes: bool,
}

impl ModelArgs {
    fn import_options(&self, training: bool) -> import::Options {
        import::Options {
            dims: self.dims.iter().filter_map(DimArg::fixed).collect(),
            ops: ImportOptions {
                training,
                batchnorm: match self.batchnorm {
                    Batchnorm::Auto => BatchNormMode::Auto,
                    Batchnorm::Train => BatchNormMode::Train,
                    Batchnorm::Frozen => BatchNormMode::Frozen,
                },
                dropout: match self.dropout {
                    Dropout::Auto => DropoutMode::Auto,
                    Dropout::On => DropoutMode::On,
                    Dropout::Off => DropoutMode::Off,
                },
                unbiased_running_variance: self.unbiased_variance,
            },
            // A pattern chooses among the tensors that look like parameters; a name in full says that one is.
            named: self.train.iter().filter(|g| !g.contains(['*', '?'])).cloned().collect(),
        }
    }
}

/// As [`load_any`], for commands that need a static program and say what can be done where there is none.
pub fn load(args: &ModelArgs, global: Global) -> Result<Model, CliError> {
    let strict = ModelArgs { strict_static: true, only_static: true, ..args.clone() };
    load_any(&strict, global)
}

impl Model {
    /// The graphs of its programs.
    pub fn graphs(&self) -> Vec<(ProgramKind, Graph)> {
        self.parts.iter().map(|p| (p.kind, p.graph.clone())).collect()
    }
}

impl OpenModel {
    /// What the compiler makes a dynamic program of.
    pub fn request<'a>(
        &'a self,
        name: &'a str,
        rates: &'a DeviceProfile,
        weight_hash: &'a dyn Fn(&str) -> Option<[u8; 32]>,
    ) -> dynamic::Request<'a> {
        dynamic::Request {
            model: name,
            open: &self.open,
            modes: self.modes,
            train: self.train.as_ref(),
            with_inference: self.with_inference,
            evaluate: self.evaluate.as_ref().map(|(o, accuracy)| (o, *accuracy)),
            reason: &self.reason,
            device: plan::Device::Cpu,
            rates,
            weight_hash,
        }
    }
}

/// Says which parameters get no gradient, or zeros at every step.
fn tell_unreached(names: &[String], global: Global) {
    let Some(first) = names.first() else { return };
    let which = match names.len() {
        1 => format!("trainable tensor {first:?}"),
        n => format!("{n} trainable tensors, {first:?} first,"),
    };
    note(global.quiet, format!("the loss does not depend on {which} by any differentiable way"));
}

/// What a command that needs a static program says of a model that is none: `dims` would make it one, or data decide.
fn needs_static(args: &ModelArgs, dims: Option<String>, reason: &str) -> CliError {
    let what = match dims {
        Some(dims) => format!("this command needs a static model: bind its sizes with {dims}"),
        None => format!(
            "this command needs a static model, and here data decide ({reason}): compile --budget BYTES and train take it, its program is made anew at every step"
        ),
    };
    CliError::bad_input(format!("{}: {what}", args.model.display()))
}

/// A model with buckets: static programs at the bounds, and a dynamic one for all else.
fn load_buckets(args: &ModelArgs, global: Global, bounds: &[(String, Vec<i64>)]) -> Result<Model, CliError> {
    if args.strict_static {
        let what = "several sizes or a bound in --dim make a program that is dynamic beyond them: give one size here (--dim NAME=N)";
        return Err(CliError::usage(what));
    }
    let given = bounds.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>().join(", ");
    let mut model = read_open(args, global, format!("{given} beyond the last bucket"), false)?;
    let Some(open) = &mut model.open else { return Ok(model) };
    let guards = buckets::product(&open.open, bounds).map_err(|e| CliError::usage(e.to_string()))?;
    let no_hash = |_: &str| None;
    let last = guards.last().cloned().unwrap_or_default();
    model.bounds = Some(last.clone());
    let request = open.request(&model.name, &model.costs.profile, &no_hash);
    let forward = match buckets::forward(&request, &last) {
        Ok(g) => g,
        Err(CompileError::Bucket { error, .. }) if matches!(error.kind, TraceErrorKind::Dynamic { .. }) => {
            open.reason = format!("even at {last} something is known only at run time: {error}");
            note(global.quiet, format!("dynamic, made anew at every step: {}", open.reason));
            return Ok(model);
        }
        Err(e) => return Err(CliError::bad_input(format!("{}: {e}", args.model.display()))),
    };
    if !args.inference && args.loss.is_none() && open.train.is_none() && find_loss(&forward).is_some() {
        let train = args.train_options(&open.open.graph, &open.open.candidates)?;
        tell_unreached(&compiler::dynamic::unreached(&open.open, &train), global);
        open.train = Some(train);
    }
    let request = open.request(&model.name, &model.costs.profile, &no_hash);
    model.parts = buckets::parts(&request, &guards)?;
    let alone = buckets::is_for_bounds_alone(&request, &last);
    note(
        global.quiet,
        format!(
            "a static program for each of {}; beyond them dynamic, made anew at every step",
            guards.iter().map(|g| format!("({g})")).collect::<Vec<_>>().join(" ")
        ),
    );
    if alone {
        let what = "the number of nodes follows from the sizes (a loop is unrolled by its length)";
        note(
            global.quiet,
            format!(
                "{what}: what is planned runs batches of just these sizes, smaller ones run dynamic, too"
            ),
        );
    }
    Ok(model)
}

/// A model that is walked at every step.
fn load_open(args: &ModelArgs, global: Global, reason: String, sizes: bool) -> Result<Model, CliError> {
    note(global.quiet, format!("dynamic, made anew at every step: {reason}"));
    read_open(args, global, reason, sizes)
}

fn read_open(args: &ModelArgs, global: Global, reason: String, sizes: bool) -> Result<Model, CliError> {
    let options = args.import_options(!args.inference);
    let mut open = import::import_open(&args.model, &options)?;
    if args.rewrites != Rewrites::Exact || args.explain_rewrites {
        note(
            global.quiet,
            "what is made at every step, and buckets beside it, are not rewritten: bind one size (--dim NAME=N)",
        );
    }
    tell(&open.remarks, global);
    check_external(&open.weights)?;
    open.weights.fill_hashes().map_err(|e| CliError::bad_input(e.to_string()))?;
    // Without types nobody knows whether an output is a loss but by its name.
    let named = open.source.body.outputs.iter().any(|o| &**o == "loss");
    let train = args.train_options(&open.graph, &open.candidates)?;
    let trains = !args.inference && (args.loss.is_some() || named);
    check_amp(args, trains)?;
    if trains && train.trainable.is_empty() {
        return Err(CompileError::Train(TrainError::NothingToTrain).into());
    }
    if trains {
        compiler::dynamic::check(&open, &train).map_err(CompileError::from)?;
        tell_unreached(&compiler::dynamic::unreached(&open, &train), global);
        tell_halves(&open.graph, &open.candidates, global.quiet);
    }
    let evaluate =
        (!args.metric.is_empty()).then(|| (train.clone(), args.metric.contains(&Metric::Accuracy)));
    Ok(Model {
        name: stem(&args.model),
        weights: open.weights.clone(),
        parts: Vec::new(),
        accumulate: args.accumulate,
        costs: costs(args.costs.as_deref())?,
        bounds: None,
        open: Some(OpenModel {
            open,
            modes: options.ops,
            train: trains.then_some(train),
            with_inference: args.with_inference,
            evaluate,
            reason,
            waits_for_sizes: sizes,
        }),
    })
}

/// Imports the model, chooses what is trained, and builds the graphs of its programs; where they cannot be built ahead, a model that is
/// walked at every step.
pub fn load_any(args: &ModelArgs, global: Global) -> Result<Model, CliError> {
    if args.inference && args.batchnorm == Batchnorm::Train {
        let what = "--batchnorm train is for training: with --inference running statistics are used";
        return Err(CliError::usage(what));
    }
    check_readable(&args.model)?;
    let bounds: Vec<_> = args.dims.iter().filter_map(DimArg::bounds).collect();
    if !bounds.is_empty() {
        return load_buckets(args, global, &bounds);
    }
    let imported = import::import(&args.model, &args.import_options(!args.inference));
    let mut imported = match imported {
        Err(e) if e.is_open() && !args.strict_static => {
            return load_open(args, global, e.reason(), e.hint_of_dims().is_some());
        }
        Err(e) if e.is_open() && args.only_static => {
            return Err(needs_static(args, e.hint_of_dims(), &e.reason()));
        }
        other => other?,
    };
    if let Some(reason) = open_size(&imported) {
        if args.only_static {
            let dims: Vec<String> = imported.symbols.iter().map(ToString::to_string).collect();
            return Err(needs_static(args, import::dim_flags(&dims), &reason));
        }
        if args.strict_static {
            return Err(CliError::bad_input(format!("{}: {reason}", args.model.display())));
        }
        return load_open(args, global, reason, true);
    }
    tell(&imported.remarks, global);
    if imported.unused_initializers > 0 {
        note(global.quiet, format!("{} unused initializers are left out", imported.unused_initializers));
    }
    let trains = !args.inference && (args.loss.is_some() || find_loss(&imported.graph).is_some());
    check_amp(args, trains)?;
    check_external(&imported.weights)?;
    imported.weights.fill_hashes().map_err(|e| CliError::bad_input(e.to_string()))?;
    let train = args.train_options(&imported.graph, &imported.candidates)?;
    let chosen = &train.trainable;
    let halves = import::trainable::halves(&imported.graph, &imported.candidates);
    if trains && chosen.is_empty() && halves > 0 {
        return Err(CliError::bad_input(format!(
            "{}: its weights are 16-bit floats, and dtrc trains float32 and float64: convert the model first",
            args.model.display()
        )));
    }
    if trains {
        let sizes = imported.graph.states.iter().filter(|s| chosen.iter().any(|c| **c == *s.name));
        let types: Vec<&TensorType> = sizes.map(|s| imported.graph.ty(s.input)).collect();
        let n: u64 = types.iter().filter_map(|t| t.shape.elements()).sum();
        let bytes = units::bytes(types.iter().filter_map(|t| t.bytes()).sum());
        note(global.quiet, format!("{} trainable tensors with {n} elements, {bytes}", chosen.len()));
        tell_halves(&imported.graph, &imported.candidates, global.quiet);
    }
    let evaluates = !args.metric.is_empty();
    let mut infer = if args.with_inference || evaluates || !trains {
        Some(import::import(&args.model, &args.import_options(false))?.graph)
    } else {
        None
    };
    if let Some(g) = infer.as_mut().filter(|_| evaluates) {
        *g = evaluation(g, &train, args.metric.contains(&Metric::Accuracy)).map_err(CompileError::from)?;
    }
    let costs = costs(args.costs.as_deref())?;
    let level = args.rewrites.into();
    let programs =
        rewritten_programs(&imported.graph, trains.then_some(&train), infer.as_ref(), level, &costs)?;
    if args.explain_rewrites {
        explain(&programs.reports, level, global);
    }
    let halves = |g: &Graph| g.values.iter().any(|v| matches!(v.ty.dtype, DType::F16 | DType::BF16));
    if args.amp.is_some() && !programs.graphs.iter().any(|(_, g)| halves(g)) {
        note(global.quiet, "--amp changes nothing: the model has no product of float32 tensors");
    }
    if let Some(path) = &args.costs {
        tell_measured(path, &costs, &programs.graphs, global);
    }
    let unreached = programs.unreached;
    tell_unreached(&unreached, global);
    let unread: Vec<String> = unread_inputs(&imported.graph, &programs.graphs);
    if !unread.is_empty() {
        note(global.quiet, format!("inputs that nothing reads are left out: {}", unread.join(", ")));
    }
    Ok(Model {
        name: stem(&args.model),
        weights: imported.weights,
        parts: programs
            .graphs
            .into_iter()
            .map(|(kind, graph)| Part { kind, guard: Guard::default(), graph })
            .collect(),
        accumulate: args.accumulate,
        costs,
        bounds: None,
        open: None,
    })
}

/// Mixed precision is of training steps.
fn check_amp(args: &ModelArgs, trains: bool) -> Result<(), CliError> {
    if args.amp.is_some() && !trains {
        let what =
            "--amp is for training, and nothing is trained here: give a loss (--loss), or leave out --amp";
        return Err(CliError::usage(what));
    }
    Ok(())
}

/// File name without its extension.
fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "model".to_owned(), |s| s.to_string_lossy().into_owned())
}

/// Measured times from a file, or estimates.
pub fn costs(path: Option<&Path>) -> Result<CostModel, CliError> {
    let Some(path) = path else { return Ok(CostModel::estimated(DeviceProfile::cpu())) };
    let text = read_text(path)?;
    serde_json::from_str(&text)
        .map_err(|e| CliError::bad_input(format!("{}: not a costs file: {e}", path.display())))
}
