//! `dtrc run`: a plan's program on data, outputs to an npz file.

use crate::{
    cli::Global,
    commands::compile,
    error::CliError,
    progress::note,
    session::{Inference, SessionArgs, by_name, is_plan, open_data, ready},
    synthetic,
};
use compiler::pipeline::Budget;
use graph::{DType, Literal};
use plan::ProgramKind;
use runtime::{RunOptions, Session, StepInputs, data::npz};
use serde_json::{Value, json};
use std::{path::PathBuf, time::Instant};

/// Arguments of `dtrc run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
An inference plan (compile --inference) gives the model's outputs; a training plan runs one step and gives its loss, and with --state the
parameters, statistics and optimizer state after it. Nothing is written back: dtrc train does that.

Examples:
  dtrc run model.onnx --inference --data inputs.npz -o outputs.npz
  dtrc run model.dtrc --data batch.npz --lr 0.1 --state -o after.npz")]
pub struct Args {
    /// The plan, or the model that it is made of.
    #[command(flatten)]
    pub session: SessionArgs,

    /// npz file, or folder of npz or npy files, with arrays named like the inputs.
    #[arg(long, short, value_name = "PATH", required_unless_present_any = ["synthetic", "list_trainable"])]
    data: Option<PathBuf>,

    /// Make up data instead.
    #[arg(long, conflicts_with = "data")]
    synthetic: bool,

    /// Write the outputs: of one batch as they are, of several with an extra first axis.
    #[arg(long, short, value_name = "OUT.npz")]
    output: Option<PathBuf>,

    /// The program. Default: infer where there is one, otherwise the training step.
    #[arg(long, value_enum)]
    program: Option<ProgramName>,

    /// The first batch of the data.
    #[arg(long, default_value_t = 0, value_name = "I")]
    batch: u64,

    /// How many batches; 0: all from the first on.
    #[arg(long, default_value_t = 1, value_name = "N")]
    batches: u64,

    /// Also write all state after the last batch (a training step changes it).
    #[arg(long, requires = "output")]
    state: bool,

    /// Learning rate of a training step.
    #[arg(long, default_value_t = 0.01)]
    lr: f32,

    /// Seed of dropout and of made-up data.
    #[arg(long, default_value_t = 0)]
    seed: i64,

    /// Compare a hash of every recomputed value with the first one's.
    #[arg(long)]
    check_recompute: bool,
}

/// `--program`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[allow(missing_docs)]
pub enum ProgramName {
    Train,
    Micro,
    Last,
    Infer,
}

/// An output over the batches.
struct Gathered {
    name: String,
    dtype: DType,
    shape: Vec<u64>,
    bytes: Vec<u8>,
}

/// Runs and prints the outputs.
pub fn run(args: &Args, global: Global) -> Result<u8, CliError> {
    if args.session.model.list_trainable {
        return crate::model::print_trainable(&args.session.model, global);
    }
    if let Some(path) = &args.output {
        compile::check_writable(path)?;
    }
    let mut session_args = args.session.clone();
    if session_args.budget.is_empty() && !is_plan(&session_args.model.model)? {
        session_args.budget.push(Budget::OfKeepAll(1.0));
    }
    let outputs = args.program == Some(ProgramName::Infer) && args.session.model.metric.is_empty();
    let needed = if outputs { Inference::Outputs } else { Inference::AsAsked };
    let ready = ready(&session_args, global, needed)?;
    let mut session = session_args.load(&ready, false, global)?;
    let program = match args.program {
        Some(ProgramName::Train) => session.program(ProgramKind::Train)?,
        Some(ProgramName::Micro) => session.program(ProgramKind::Micro)?,
        Some(ProgramName::Last) => session.program(ProgramKind::Last)?,
        Some(ProgramName::Infer) => session.program(ProgramKind::Infer)?,
        None => session.program(ProgramKind::Infer).unwrap_or(0),
    };
    let kind = ready.plan.programs[program].kind;
    let start = Instant::now();
    let (outputs, batches) = execute(args, &mut session, program, global)?;
    let seconds = start.elapsed().as_secs_f64();
    if let Some(path) = &args.output {
        let states = if args.state { states(&session)? } else { Vec::new() };
        let mut file = std::io::Cursor::new(Vec::new());
        let all = outputs.iter().chain(&states);
        npz::write(
            &mut file,
            all.map(|g| (g.name.as_str(), g.dtype, g.shape.as_slice(), g.bytes.as_slice())),
        )
        .map_err(|e| CliError::unwritable(path, &e))?;
        compile::write_file(path, file.get_ref())?;
    }
    if global.json {
        let outputs: Vec<Value> = outputs.iter().map(described).collect();
        let object = json!({"schema": 1, "program": kind.to_string(), "batches": batches, "outputs": outputs, "file": args.output,
            "seconds": seconds});
        println!("{object}");
    } else {
        let plural = if batches == 1 { "batch" } else { "batches" };
        println!("{kind}   {batches} {plural} in {seconds:.3} s");
        outputs.iter().for_each(print_output);
        if let Some(path) = &args.output {
            println!("wrote {}", path.display());
        }
    }
    if args.output.is_none() && !global.json {
        note(global.quiet, "the outputs are not kept: give -o OUT.npz");
    }
    Ok(0)
}

/// Runs the batches and gathers their outputs.
fn execute(
    args: &Args,
    session: &mut Session,
    program: usize,
    global: Global,
) -> Result<(Vec<Gathered>, u64), CliError> {
    let mut data = match &args.data {
        Some(path) => Some(open_data(path, session.plan(), session.plan().programs[program].kind, global)?),
        None => None,
    };
    if data.is_none() {
        synthetic::check_sizes(&session.plan().programs[program])?;
    }
    let there = data.as_ref().map_or(u64::MAX, |d| d.batches());
    let wanted = if args.batches == 0 { there.saturating_sub(args.batch) } else { args.batches };
    let end = args.batch.saturating_add(wanted);
    if wanted == 0 || end > there {
        return Err(CliError::bad_input(format!(
            "batches {} to {end} are asked for, the data has {there}, counted from 0",
            args.batch
        )));
    }
    if end == u64::MAX {
        return Err(CliError::usage("--synthetic data has no end: give --batches"));
    }
    let order = data.as_ref().map(|d| d.order(0, None));
    let mut gathered: Vec<Gathered> = Vec::new();
    for (step, index) in (args.batch..end).enumerate() {
        let batch = match (&mut data, &order) {
            (Some(d), Some(order)) => {
                d.batch(order, index).map_err(|e| CliError::bad_input(e.to_string()))?
            }
            _ => {
                let seed = (args.seed as u64).wrapping_add(index);
                synthetic::batch(&session.plan().programs[program], seed)
            }
        };
        let (inputs, shapes) = by_name(&batch);
        let inputs = StepInputs {
            data: &inputs,
            shapes: &shapes,
            learning_rate: args.lr,
            step: step as i64 + 1,
            seed: args.seed,
        };
        let options = RunOptions { check_recompute: args.check_recompute, measure: false };
        let result = session.run(program, &inputs, options).map_err(|e| {
            let e = CliError::from(e);
            CliError { message: format!("batch {index}: {}", e.message), ..e }
        })?;
        if let Some(why) = &result.report.why_dynamic {
            note(global.quiet, format!("batch {index}: dynamic: {why}"));
        }
        for (i, (name, ty, bytes)) in result.outputs.into_iter().enumerate() {
            match gathered.get_mut(i) {
                Some(g) if g.bytes.len() as u64 != bytes.len() as u64 * (step as u64) => {
                    return Err(CliError::bad_input(format!(
                        "batch {index}: output {name:?} is {ty}, another shape than before: run batches of one size at a time (--batch, --batches)"
                    )));
                }
                Some(g) => g.bytes.extend_from_slice(&bytes),
                None => {
                    let shape = ty.shape.fixed().unwrap_or_default();
                    let extra = (wanted > 1).then_some(wanted);
                    let shape = extra.into_iter().chain(shape.iter().map(|d| *d as u64)).collect();
                    gathered.push(Gathered { name, dtype: ty.dtype, shape, bytes });
                }
            }
        }
    }
    Ok((gathered, wanted))
}

/// Every state tensor, under its name.
fn states(session: &Session) -> Result<Vec<Gathered>, CliError> {
    let mut out = Vec::new();
    for s in &session.plan().state {
        out.push(Gathered {
            name: s.name.to_string(),
            dtype: s.ty.dtype,
            shape: s.ty.shape.fixed().unwrap_or_default().iter().map(|d| *d as u64).collect(),
            bytes: session.state(&s.name)?,
        });
    }
    Ok(out)
}

/// The elements as numbers.
fn numbers(g: &Gathered) -> Vec<f64> {
    let literal = Literal::new(g.dtype, g.shape.clone(), g.bytes.as_slice());
    literal.map_or_else(|_| Vec::new(), |l| l.to_floats())
}

/// Name, type and, of few elements, their values.
fn described(g: &Gathered) -> Value {
    let mut object = json!({"name": g.name, "dtype": g.dtype.to_string(), "shape": g.shape});
    if g.shape.iter().product::<u64>() <= 16 {
        object["values"] = numbers(g).into_iter().map(crate::planning::number).collect();
    }
    object
}

fn print_output(g: &Gathered) {
    let x = numbers(g);
    let name = graph::quote_name(&g.name);
    if x.len() <= 4 {
        println!("  {name} = {x:?}");
        return;
    }
    let (low, high) = x.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    println!("  {name}: {}{:?}   {low:.6} to {high:.6}, mean {mean:.6}", g.dtype, g.shape);
}
