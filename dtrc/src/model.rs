//! A model as commands see it: the file, what the user says about it, the graphs of its programs.

use crate::{
    cli::Global,
    error::CliError,
    files::{check_readable, read_text},
    progress::note,
    units,
};
use compiler::{
    cost::{CostModel, DeviceProfile},
    evaluate::evaluation,
    import::{self, Imported, Open, Weights, trainable},
    pipeline::{CompileError, rewritten_programs},
    train::{Loss, Optimizer, TrainOptions, find_loss},
};
use graph::{Graph, TensorType};
use ops::onnx::{BatchNormMode, DropoutMode, ImportOptions};
use plan::ProgramKind;
use rewrite::{Level, Report};
use runtime::WeightSource;
use serde_json::json;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// A model and what is to be made of it.
#[derive(Clone, Debug, clap::Args)]
pub struct ModelArgs {
    /// The ONNX model.
    pub model: PathBuf,

    /// Bind a size: NAME=N for a named dimension, INPUT:AXIS=N for one without a name. Repeatable.
    #[arg(long = "dim", value_name = "NAME=N", value_parser = import::parse_binding)]
    pub dims: Vec<(String, i64)>,

    /// The loss: output:NAME for one in the model, or cross-entropy, nll, mse, bce on an output with the label as a new input.
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

    /// How BatchNormalization is read: as the file says, with batch statistics, or with running ones.
    #[arg(long, value_enum, default_value_t = Batchnorm::Auto)]
    pub batchnorm: Batchnorm,

    /// Update running variances with the unbiased batch variance, as PyTorch does.
    #[arg(long)]
    pub unbiased_variance: bool,

    /// How Dropout is read.
    #[arg(long, value_enum, default_value_t = Dropout::Auto)]
    pub dropout: Dropout,

    /// Train only tensors whose name matches the pattern (* and ?). Repeatable.
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

    /// What may be rewritten, the same at every budget: exact changes no bit; fast and memory may round differently, for time or for memory
    /// (attention without its scores, a loss without its logits).
    #[arg(long, value_enum, default_value_t = Rewrites::Exact)]
    pub rewrites: Rewrites,

    /// Say which rewrites fired, where, and what each saves by the cost model, and which did not and why.
    #[arg(long)]
    pub explain_rewrites: bool,
}

/// `--rewrites`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[allow(missing_docs)]
pub enum Rewrites {
    Exact,
    Fast,
    Memory,
}

impl From<Rewrites> for Level {
    fn from(r: Rewrites) -> Level {
        match r {
            Rewrites::Exact => Level::Exact,
            Rewrites::Fast => Level::Fast,
            Rewrites::Memory => Level::Memory,
        }
    }
}

/// PyTorch's default of `ignore_index`.
const IGNORE_INDEX: i64 = -100;

/// `--optimizer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[allow(missing_docs)]
pub enum OptimizerName {
    Sgd,
    Adam,
    Adamw,
}

/// `--metric`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[allow(missing_docs)]
pub enum Metric {
    Loss,
    Accuracy,
}

/// `--batchnorm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[allow(missing_docs)]
pub enum Batchnorm {
    Auto,
    Train,
    Frozen,
}

/// `--dropout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[allow(missing_docs)]
pub enum Dropout {
    Auto,
    On,
    Off,
}

fn parse_loss(text: &str) -> Result<Loss, String> {
    Ok(match text {
        "cross-entropy" => Loss::CrossEntropy,
        "nll" => Loss::Nll,
        "mse" => Loss::Mse,
        "bce" => Loss::Bce,
        _ => match text.strip_prefix("output:") {
            Some(name) if !name.is_empty() => Loss::Output(name.to_owned()),
            _ => return Err("give output:NAME, cross-entropy, nll, mse or bce".to_owned()),
        },
    })
}

fn parts(text: &str) -> Result<u32, String> {
    u32::try_from(units::count(text)?).map_err(|_| "give a number below 2^32".to_owned())
}

/// A loaded model.
pub struct Model {
    /// File name without its extension.
    pub name: String,
    /// Where its elements are.
    pub weights: Weights,
    /// Its programs.
    pub graphs: Vec<(ProgramKind, Graph)>,
    /// Parts of a training step.
    pub accumulate: u32,
    /// Times.
    pub costs: CostModel,
    /// Where shapes or branches are known only at run time: there are no graphs then.
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
}

impl ModelArgs {
    fn optimizer(&self) -> Result<Optimizer, CliError> {
        let finite = [Some(self.momentum), self.weight_decay, Some(self.eps), self.clip_norm];
        if finite.into_iter().flatten().chain(self.betas.iter().copied()).any(|x| !x.is_finite() || x < 0.0) {
            return Err(CliError::usage(
                "--momentum, --weight-decay, --betas, --eps and --clip-norm must be finite and not negative",
            ));
        }
        Ok(match self.optimizer {
            OptimizerName::Sgd => Optimizer::Sgd {
                momentum: self.momentum,
                nesterov: self.nesterov,
                weight_decay: self.weight_decay.unwrap_or(0.0),
            },
            name => Optimizer::Adam {
                beta1: self.betas[0],
                beta2: self.betas[1],
                eps: self.eps,
                weight_decay: self.weight_decay.unwrap_or(if name == OptimizerName::Adamw {
                    0.01
                } else {
                    0.0
                }),
                decoupled: name == OptimizerName::Adamw,
            },
        })
    }

    fn ignore_index(&self) -> Result<i64, CliError> {
        let classes = matches!(self.loss, Some(Loss::CrossEntropy | Loss::Nll));
        if self.ignore_index.is_some() && !classes {
            let what = "--ignore-index is for --loss cross-entropy and nll; a loss in the model has its own";
            return Err(CliError::usage(what));
        }
        Ok(self.ignore_index.unwrap_or(IGNORE_INDEX))
    }

    fn import_options(&self, training: bool) -> import::Options {
        import::Options {
            dims: self.dims.clone(),
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
        }
    }

    fn train_options(&self, graph: &Graph, candidates: &[Arc<str>]) -> Result<TrainOptions, CliError> {
        let chosen = trainable::select(graph, candidates, &self.train, &self.freeze)
            .map_err(|e| CliError::usage(e.to_string()))?;
        Ok(TrainOptions {
            loss: self.loss.clone(),
            output: self.loss_output.clone(),
            label: self.label.clone(),
            class_axis: self.class_axis,
            ignore_index: Some(self.ignore_index()?),
            optimizer: self.optimizer()?,
            clip_norm: self.clip_norm,
            accumulate: self.accumulate,
            trainable: chosen,
        })
    }

    fn import(&self, training: bool) -> Result<Imported, CliError> {
        check_readable(&self.model)?;
        Ok(import::import(&self.model, &self.import_options(training))?)
    }
}

/// The names of the tensors that would be trained, with their types.
pub fn list_trainable(args: &ModelArgs) -> Result<Vec<(String, TensorType)>, CliError> {
    let imported = args.import(true)?;
    let chosen = trainable::select(&imported.graph, &imported.candidates, &args.train, &args.freeze)
        .map_err(|e| CliError::usage(e.to_string()))?;
    let g = &imported.graph;
    let find =
        |n: &str| g.states.iter().find(|s| &*s.name == n).map(|s| (n.to_owned(), g.ty(s.input).clone()));
    Ok(chosen.iter().filter_map(|n| find(n)).collect())
}

/// Why a model cannot be planned ahead, if it cannot: a size of its inputs that nobody bound.
fn open_size(imported: &Imported) -> Option<String> {
    let g = &imported.graph;
    let open = g.inputs.iter().find(|i| g.ty(i.value).shape.fixed().is_none())?;
    let names: Vec<String> = imported.symbols.iter().take(4).map(|s| format!("--dim {s}=N")).collect();
    let value = g.value(open.value);
    Some(format!(
        "input {:?} is {}; bind its sizes with {} for a static plan",
        value.name,
        value.ty,
        names.join(" ")
    ))
}

fn tell(remarks: &[import::Remark], global: Global) {
    for r in remarks {
        let times = if r.count > 1 { format!(" ({} nodes like this)", r.count) } else { String::new() };
        let at = if r.node.is_empty() { String::new() } else { format!("{}: ", r.node) };
        note(global.quiet, format!("{at}{}{times}", r.text));
    }
}

/// As [`load_any`], for commands that need a static program.
pub fn load(args: &ModelArgs, global: Global) -> Result<Model, CliError> {
    let strict = ModelArgs { strict_static: true, ..args.clone() };
    load_any(&strict, global)
}

/// A model that is walked at every step.
fn load_open(args: &ModelArgs, global: Global, reason: String) -> Result<Model, CliError> {
    let options = args.import_options(!args.inference);
    let mut open = import::import_open(&args.model, &options)?;
    note(global.quiet, format!("dynamic, made anew at every step: {reason}"));
    if args.rewrites != Rewrites::Exact || args.explain_rewrites {
        note(global.quiet, "what is made at every step is not rewritten: bind its sizes with --dim for that");
    }
    tell(&open.remarks, global);
    open.weights.fill_hashes().map_err(|e| CliError::bad_input(e.to_string()))?;
    // Without types nobody knows whether an output is a loss but by its name.
    let named = open.source.body.outputs.iter().any(|o| &**o == "loss");
    let train = args.train_options(&open.graph, &open.candidates)?;
    let trains = !args.inference && (args.loss.is_some() || named);
    let evaluate =
        (!args.metric.is_empty()).then(|| (train.clone(), args.metric.contains(&Metric::Accuracy)));
    Ok(Model {
        name: stem(&args.model),
        weights: open.weights.clone(),
        graphs: Vec::new(),
        accumulate: args.accumulate,
        costs: costs(args.costs.as_deref())?,
        open: Some(OpenModel {
            open,
            modes: options.ops,
            train: trains.then_some(train),
            with_inference: args.with_inference,
            evaluate,
            reason,
        }),
    })
}

/// Imports the model, chooses what is trained, and builds the graphs of its programs; where they cannot be built ahead, a model that is
/// walked at every step.
pub fn load_any(args: &ModelArgs, global: Global) -> Result<Model, CliError> {
    check_readable(&args.model)?;
    let imported = import::import(&args.model, &args.import_options(!args.inference));
    let mut imported = match imported {
        Err(e) if e.is_open() && !args.strict_static => return load_open(args, global, e.reason()),
        other => other?,
    };
    if let Some(reason) = open_size(&imported) {
        if args.strict_static {
            return Err(CliError::bad_input(format!("{}: {reason}", args.model.display())));
        }
        return load_open(args, global, reason);
    }
    tell(&imported.remarks, global);
    if imported.unused_initializers > 0 {
        note(global.quiet, format!("{} unused initializers are left out", imported.unused_initializers));
    }
    let trains = !args.inference && (args.loss.is_some() || find_loss(&imported.graph).is_some());
    imported.weights.fill_hashes().map_err(|e| CliError::bad_input(e.to_string()))?;
    let train = args.train_options(&imported.graph, &imported.candidates)?;
    let chosen = &train.trainable;
    if trains {
        let sizes = imported.graph.states.iter().filter(|s| chosen.iter().any(|c| **c == *s.name));
        let n: u64 = sizes.filter_map(|s| imported.graph.ty(s.input).shape.elements()).sum();
        note(global.quiet, format!("{} trainable tensors with {n} elements", chosen.len()));
    }
    let evaluates = !args.metric.is_empty();
    let mut infer =
        if args.with_inference || evaluates || !trains { Some(args.import(false)?.graph) } else { None };
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
    let unreached = programs.unreached;
    if let Some(first) = unreached.first() {
        note(
            global.quiet,
            format!("the loss does not reach {} trainable tensors, {first:?} first", unreached.len()),
        );
    }
    Ok(Model {
        name: stem(&args.model),
        weights: imported.weights,
        graphs: programs.graphs,
        accumulate: args.accumulate,
        costs,
        open: None,
    })
}

/// Tells what rewriting did: the whole list on stdout, or one object with `--json`.
fn explain(reports: &[(ProgramKind, Report)], level: Level, global: Global) {
    if global.json {
        let program = |(kind, r): &(ProgramKind, Report)| {
            let fired = r.fired.iter().map(|f| {
                json!({"rule": f.rule, "at": f.at, "nanoseconds_saved": f.nanoseconds, "bytes_saved": f.bytes})
            });
            let missed = r.missed.iter().map(|m| json!({"rule": m.rule, "at": m.at, "why": m.why}));
            let (fired, missed): (Vec<_>, Vec<_>) = (fired.collect(), missed.collect());
            json!({"program": kind.to_string(), "fired": fired, "not_fired": missed})
        };
        let programs: Vec<_> = reports.iter().map(program).collect();
        println!("{}", json!({"schema": 1, "rewrites": level.to_string(), "programs": programs}));
        return;
    }
    for (kind, report) in reports {
        println!("rewrites of {kind}, {level}: {} fired", report.fired.len());
        for (rule, (times, nanoseconds, bytes)) in report.totals() {
            println!(
                "  {rule:<28} {times:>5} times, saves {} of writing, {:.3} ms",
                signed(bytes),
                nanoseconds as f64 / 1e6
            );
        }
        print!("{report}");
    }
}

/// Bytes that may be fewer than none.
fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", units::bytes(bytes.unsigned_abs()))
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

/// The model's own weights, streamed from its files.
pub struct ModelWeights<'a>(pub &'a Weights);

impl WeightSource for ModelWeights<'_> {
    fn load(
        &mut self,
        name: &str,
        ty: &TensorType,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let weight = self.0.get(name).ok_or("the model has no such tensor")?;
        if weight.tensor.ty() != *ty {
            return Err(format!("the model's is {}, the plan's {ty}", weight.tensor.ty()));
        }
        self.0.read(name, &mut |chunk| sink(chunk).map_err(std::io::Error::other)).map_err(|e| e.to_string())
    }
}
