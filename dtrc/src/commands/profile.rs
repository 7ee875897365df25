//! `dtrc profile`: how long each operator of a model takes on this machine.

use crate::{
    cli::Global,
    commands::compile::{self, PlannerArgs},
    device::{Kind, opened},
    error::CliError,
    model::{ModelArgs, ModelWeights, load},
    planning::plan_on,
    progress::{Progress, note},
    session::by_name,
    synthetic::{self, OrMadeUp},
    units,
};
use compiler::{
    cost::{CostModel, key},
    pipeline::Budget,
};
use plan::{Program, Step};
use runtime::{CpuDevice, CudaDevice, Device, LoadOptions, RunOptions, Session, StepInputs};
use serde_json::json;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// Arguments of `dtrc profile`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The step runs without recomputation on made-up data. Equal operators (same attributes, same types) share a time: the median over all
their executions. Times hold for this machine and number of threads; run it on a quiet machine. With --device cuda the file also says
what context, modules and graphs take beside the arena, other processes on the device included.

Example:
  dtrc profile model.onnx -o costs.json
  dtrc compile model.onnx --budget 50% --costs costs.json
  dtrc profile model.onnx --device cuda -o gpu.json
  dtrc compile model.onnx --budget 8G --device cuda --costs gpu.json --budget-includes-context")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Where the times go.
    #[arg(long, short, value_name = "FILE", default_value = "costs.json")]
    output: PathBuf,

    /// Steps that are measured, after one that is not.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = units::count)]
    repeat: u64,

    /// Threads. Default: one a core.
    #[arg(long, value_name = "N", value_parser = units::threads)]
    threads: Option<usize>,

    /// The device whose times are measured.
    #[arg(long, value_enum, default_value_t)]
    device: Kind,
}

/// Measures and writes the times.
pub fn run(args: &Args, global: Global) -> Result<u8, CliError> {
    compile::check_writable(&args.output)?;
    // Before anything long is begun.
    let (device, kind): (Box<dyn Device>, _) = match args.device {
        Kind::Cpu => (Box::new(CpuDevice::new(args.threads.unwrap_or(0))?), plan::Device::Cpu),
        Kind::Cuda => {
            let device = CudaDevice::open().map_err(|e| CliError::unavailable(e.to_string()))?;
            (Box::new(device), plan::Device::Cuda)
        }
    };
    let mut model = load(&args.model, global)?;
    if let Some(name) = device.name() {
        model.costs = CostModel::estimated(opened(&name));
    }
    let progress = Arc::new(Progress::new(global.quiet));
    let options = PlannerArgs::default().options(progress.clone());
    let compiled = plan_on(kind, &model, &[Budget::OfKeepAll(1.0)], &options)?
        .into_iter()
        .next()
        .ok_or_else(|| CliError::failed("no plan"))??;
    progress.finish();
    let mut weights = OrMadeUp { own: ModelWeights(&model.weights), made_up: 0 };
    let mut session = Session::load(compiled.plan.clone(), device, &mut weights, LoadOptions::default())?;
    if weights.made_up > 0 {
        note(global.quiet, format!("{} weights are absent; numbers were made up", weights.made_up));
    }
    let mut times: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut measured_step = Duration::ZERO;
    for index in 0..compiled.plan.programs.len() {
        let steps = measure(args, &mut session, index, &compiled.plan.programs[index], &mut times)?;
        if index == 0 {
            measured_step = steps;
        }
    }
    let mut costs = CostModel::estimated(model.costs.profile.clone());
    costs.context_bytes =
        session.device_memory()?.map(|m| m.beside_arena() + m.total.saturating_sub(m.before));
    for (key, mut ns) in times {
        costs.measured.insert(key, median(&mut ns));
    }
    let text = serde_json::to_string_pretty(&costs).map_err(|e| CliError::failed(e.to_string()))?;
    compile::write_file(&args.output, text.as_bytes())?;
    report(args, global, &compiled.plan.programs[0], (&model.costs, &costs), measured_step);
    Ok(0)
}

/// Runs a program and adds the times of its calls. Returns the median time of a step that was not measured call by call.
fn measure(
    args: &Args,
    session: &mut Session,
    index: usize,
    program: &Program,
    times: &mut BTreeMap<String, Vec<u64>>,
) -> Result<Duration, CliError> {
    let batch = synthetic::batch(program, 0);
    let (data, _) = by_name(&batch);
    let mut steps: Vec<u64> = Vec::new();
    for i in 0..=args.repeat {
        // A tiny rate: the values must stay ordinary, not learn.
        let step = i as i64 + 1;
        let inputs = StepInputs { data: &data, learning_rate: 1e-6, step, ..StepInputs::default() };
        let start = Instant::now();
        session.run(index, &inputs, RunOptions::default())?;
        let whole = start.elapsed().as_nanos() as u64;
        let report =
            session.run(index, &inputs, RunOptions { measure: true, ..RunOptions::default() })?.report;
        if i == 0 {
            continue;
        }
        steps.push(whole);
        for (step, ns) in program.steps.iter().zip(&report.call_ns) {
            let Step::Run(run) = step else { continue };
            if *ns > 0 {
                times.entry(key(&program.graph, program.graph.node(run.node))).or_default().push(*ns);
            }
        }
    }
    Ok(Duration::from_nanos(median(&mut steps)))
}

fn median(ns: &mut [u64]) -> u64 {
    ns.sort_unstable();
    ns.get(ns.len() / 2).copied().unwrap_or(0)
}

/// Time of all executions of a program.
fn predicted(costs: &CostModel, program: &Program) -> f64 {
    let runs = program.steps.iter().filter_map(|s| if let Step::Run(r) = s { Some(r.node) } else { None });
    runs.map(|n| costs.time(&program.graph, program.graph.node(n)) as f64).sum::<f64>() / 1e9
}

fn report(
    args: &Args,
    global: Global,
    program: &Program,
    (before, after): (&CostModel, &CostModel),
    measured: Duration,
) {
    let (guess, now, seconds) =
        (predicted(before, program), predicted(after, program), measured.as_secs_f64());
    let off = |p: f64| (p / seconds.max(1e-12) - 1.0) * 100.0;
    if global.json {
        let object = json!({"schema": 1, "model": args.model.model, "program": program.kind.to_string(),
            "executions": program.steps.len(), "measured_kinds": after.measured.len(), "estimated_seconds": guess,
            "predicted_seconds": now, "measured_seconds": seconds, "device": after.profile.name, "context_bytes": after.context_bytes,
            "costs_file": args.output});
        println!("{object}");
        return;
    }
    println!("{} executions of {} kinds of operator", program.steps.len(), after.measured.len());
    if let Some(bytes) = after.context_bytes {
        println!("  {}: context, modules and graphs take {}", after.profile.name, units::bytes(bytes));
    }
    println!("  measured step            {seconds:>12.6} s");
    println!("  predicted from profile   {now:>12.6} s   {:+.1} %", off(now));
    println!("  predicted before         {guess:>12.6} s   {:+.1} %", off(guess));
    let mut by_op: BTreeMap<&str, f64> = BTreeMap::new();
    for step in &program.steps {
        if let Step::Run(run) = step {
            let node = program.graph.node(run.node);
            *by_op.entry(&node.op).or_default() += after.time(&program.graph, node) as f64 / 1e9;
        }
    }
    let mut by_op: Vec<(&str, f64)> = by_op.into_iter().collect();
    by_op.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (op, s) in by_op.iter().take(8) {
        println!("  {op:<24} {s:>12.6} s   {:.1} %", s / now.max(1e-12) * 100.0);
    }
    println!("wrote {}", args.output.display());
}
