//! `dtrc compile`: from a model to a plan file.

use crate::{
    cli::Global,
    device::DeviceArgs,
    error::CliError,
    model::{Model, ModelArgs, load_any, print_trainable},
    planning,
    progress::{Progress, note},
    units,
};
use compiler::{
    export::{self, Aside},
    pipeline::{Budget, CompileError, Compiled, Request, plan_programs},
    planner::Options as PlannerOptions,
    variants::{self, Part},
};
use graph::Graph;
use plan::{ProgramKind, hex};
use serde_json::json;
use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

/// Arguments of `dtrc compile`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Memory that the step may take: 4G (2^30), 4GB (10^9), 512M, bytes, or 50% of keep-all. Several (2G,1G,512M) give a program each,
    /// between which train --follow-memory switches.
    #[arg(long, short, required_unless_present = "list_trainable", value_name = "B,..", value_delimiter = ',', value_parser = units::budget)]
    budget: Vec<Budget>,

    /// Where the plan goes; default: the model's name with .dtrc.
    #[arg(long, short)]
    output: Option<PathBuf>,

    /// Also write what is planned as an ONNX model, before planning: inputs, state that it changes, and its next versions NAME.next
    /// (feed them back as NAME). With --accumulate N the last part of a step, and beside it, in F.micro.onnx, the part that is run before
    /// it N-1 times: both take the state that either changes. To draw the dropout masks of train --seed S, feed as `step` the update's
    /// number, from 1, and as `seed` 65536 S + P in part P of it, from 0.
    #[arg(long, value_name = "F.onnx")]
    emit_onnx: Option<PathBuf>,

    /// Print the plan's steps as well.
    #[arg(long)]
    show: bool,

    #[command(flatten)]
    device: DeviceArgs,

    #[command(flatten)]
    planner: PlannerArgs,
}

/// Limits of the planner.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct PlannerArgs {
    /// How many step executions the search may simulate; default: by the model's size. More may find a faster plan.
    #[arg(long)]
    work_limit: Option<u64>,

    /// Of a dynamic model: memory for what is made at run time. Default: what is needed at upper bounds of its sizes (--dim NAME<=N), where
    /// nothing but conditions decides beside them, and what the state leaves of the budget at most.
    #[arg(long, value_name = "BYTES", value_parser = units::pool)]
    dynamic_pool: Option<u64>,
}

impl PlannerArgs {
    /// Refuses a pool where nothing is made at run time.
    pub fn refuse_pool(&self, what: &str) -> Result<(), CliError> {
        match self.dynamic_pool {
            Some(_) => Err(CliError::usage(format!(
                "--dynamic-pool: {what} is static, and nothing is made at run time: leave the flag out"
            ))),
            None => Ok(()),
        }
    }

    /// Says so if a plan has a smaller pool than asked for.
    fn tell_smaller_pool(&self, plan: &plan::Plan, global: Global) {
        let Some(asked) = self.dynamic_pool else { return };
        let pools = plan.programs.iter().filter_map(|p| p.dynamic.as_ref()).map(|d| d.work);
        if let Some(work) = pools.min().filter(|w| *w < asked / plan::ALIGNMENT * plan::ALIGNMENT) {
            let [asked, work] = [asked, work].map(units::bytes);
            note(
                global.quiet,
                format!(
                    "--dynamic-pool {asked}: the state leaves {work} of the budget, which is the pool then"
                ),
            );
        }
    }

    /// The planner's options, reporting to `progress`.
    pub fn options(&self, progress: Arc<Progress>) -> PlannerOptions {
        PlannerOptions {
            work: self.work_limit,
            progress: Some(Arc::new(move |p| {
                let best = p
                    .extra_fraction
                    .map_or("nothing fits yet".to_owned(), |e| format!("+{:.2} % time", e * 100.0));
                progress.tell(&format!("planning: {} done, best so far: {best}", p.phase));
            })),
            ..PlannerOptions::default()
        }
    }
}

/// Writes a file aside, syncs it and renames it into place.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    let write = || -> std::io::Result<()> {
        let (aside, mut file) = Aside::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        aside.place()
    };
    write().map_err(|e| CliError::unwritable(path, &e))
}

/// Refuses a place where no file can be written, before hours of work are lost to it.
pub fn check_writable(path: &Path) -> Result<(), CliError> {
    if path.is_dir() {
        return Err(CliError::unwritable(path, &std::io::ErrorKind::IsADirectory.into()));
    }
    if path.exists() && !path.is_file() {
        return Err(CliError::usage(format!("{}: not a regular file; choose another name", path.display())));
    }
    if path.exists() {
        return match std::fs::File::options().append(true).open(path) {
            Ok(_) => Ok(()),
            Err(e) => Err(CliError::unwritable(path, &e)),
        };
    }
    let mut name = path.file_name().map(std::ffi::OsStr::to_os_string).unwrap_or_default();
    name.push(format!(".{}.try", std::process::id()));
    let aside = path.with_file_name(name);
    std::fs::File::create(&aside).map_err(|e| CliError::unwritable(path, &e))?;
    let _ = std::fs::remove_file(&aside);
    Ok(())
}

/// Compiles a model: loads it, builds its programs, plans them.
pub fn compile(
    model: &ModelArgs,
    budgets: &[Budget],
    planner: &PlannerArgs,
    device: &DeviceArgs,
    global: Global,
) -> Result<(Compiled, Model), CliError> {
    plan_model(load_for(model, device, global)?, budgets, planner, device, global)
}

/// Loads a model with the costs of a device.
fn load_for(args: &ModelArgs, device: &DeviceArgs, global: Global) -> Result<Model, CliError> {
    let mut model = load_any(args, global)?;
    model.costs = device.costs(args.costs.is_some(), model.costs, global.quiet)?;
    if model.open.is_some() && model.parts.is_empty() && device.kind() == plan::Device::Cuda {
        let what = "dynamic models do not run on CUDA yet: bind the model's sizes with --dim NAME=N for a static plan, or give buckets \
            (--dim NAME=N,N,.. or NAME<=N), one program each";
        return Err(CliError::usage(format!("{}: {what}", model.name)));
    }
    if device.tf32 && model.open.is_some() {
        let what =
            "--tf32 is for one size each: bind the model's sizes with --dim NAME=N, without upper bounds";
        return Err(CliError::usage(format!("{}: {what}", model.name)));
    }
    if device.tf32 {
        model.parts.iter_mut().for_each(|p| ops::cuda::use_tf32(&mut p.graph));
    }
    device.check(model.parts.iter().map(|p| &p.graph), &model.costs)?;
    Ok(model)
}

/// Plans a loaded model, once for each budget.
pub fn plan_model(
    model: Model,
    budgets: &[Budget],
    planner: &PlannerArgs,
    device: &DeviceArgs,
    global: Global,
) -> Result<(Compiled, Model), CliError> {
    let budgets = &device.arena_budgets(budgets, &model.costs, global.quiet)?[..];
    let weights = &model.weights;
    let hash = |name: &str| weights.get(name).and_then(|w| w.hash).map(|h| *h.as_bytes());
    let open = model.open.as_ref().map(|o| o.request(&model.name, &model.costs.profile, &hash));
    if let (Some(open), true) = (&open, model.parts.is_empty()) {
        let plan = dynamic(&model, open, budgets, planner, global)?;
        let budget = plan.budget;
        planner.tell_smaller_pool(&plan, global);
        tell_beyond_memory(budget, plan.arena, device, global);
        return Ok((Compiled { keep_all: plan.arena, plan, budget }, model));
    }
    if open.is_none() {
        planner.refuse_pool(&model.name)?;
    }
    let progress = Arc::new(Progress::new(global.quiet));
    let options = planner.options(progress.clone());
    let request = Request {
        model: &model.name,
        accumulate: model.accumulate,
        device: device.kind(),
        weight_hash: &hash,
        costs: &model.costs,
        planner: &options,
    };
    let compiled = match (&open, budgets) {
        (None, [budget]) => plan_programs(model.graphs(), *budget, &request),
        _ => variants::plan(model.parts.clone(), open.as_ref(), budgets, planner.dynamic_pool, &request),
    };
    progress.finish();
    let compiled = compiled?;
    if device.kind() == plan::Device::Cpu {
        planner.tell_smaller_pool(&compiled.plan, global);
    }
    tell_beyond_memory(compiled.budget, compiled.plan.arena, device, global);
    Ok((compiled, model))
}

/// A budget that this machine cannot give is a unit mistyped, or meant for another machine.
fn tell_beyond_memory(budget: u64, arena: u64, device: &DeviceArgs, global: Global) {
    let Some(available) = runtime::available_memory() else { return };
    if device.kind() == plan::Device::Cpu && budget > available.bytes {
        let what = format!(
            "the budget of {} is more than this machine has left ({}, {}); the plan takes {} of it",
            units::bytes(budget),
            units::bytes(available.bytes),
            available.source,
            units::bytes(arena)
        );
        note(global.quiet, what);
    }
}

/// The error where a share of keep-all is asked for and nobody knows what keep-all takes.
pub const NO_SHARE: &str = "no-share";

/// The plan of a model that is walked at every step; it runs in any smaller budget, too.
fn dynamic(
    model: &Model,
    request: &compiler::dynamic::Request<'_>,
    budgets: &[Budget],
    planner: &PlannerArgs,
    global: Global,
) -> Result<plan::Plan, CliError> {
    let bytes = |b: &Budget| if let Budget::Bytes(n) = b { Some(*n) } else { None };
    let Some(budget) =
        budgets.iter().map(bytes).collect::<Option<Vec<u64>>>().and_then(|b| b.into_iter().max())
    else {
        let what = format!(
            "{}: dynamic ({}): what it takes with everything kept is known only at run time, and no share of it; give --budget in bytes \
             (64M, 4G){}",
            model.name,
            request.reason,
            if model.parts.is_empty() && model.bounds.is_some() {
                ""
            } else {
                ", or bind its sizes (--dim NAME=N, NAME<=N) where they alone are open"
            }
        );
        return Err(CliError { kind: NO_SHARE, ..CliError::usage(what) });
    };
    if budgets.len() > 1 {
        let what = "its program is made at every step and runs in any of the budgets: the plan has one of it, for the largest";
        note(global.quiet, format!("{what}; train --follow-memory moves below it"));
    }
    let planned = |pool| {
        compiler::dynamic::plan(request, budget, pool).map_err(|e| CliError::from(CompileError::Dynamic(e)))
    };
    let plan = planned(planner.dynamic_pool)?;
    let (Some(bounds), None) = (&model.bounds, planner.dynamic_pool) else { return Ok(plan) };
    let left = units::bytes(plan.arena - plan.state_bytes);
    match runtime::roomy_pool(&plan, &bounds.greatest()) {
        Ok(r) if r.pool < plan.arena - plan.state_bytes => {
            let ways = if r.ways > 1 {
                format!(", whichever of {} ways data decide", r.ways)
            } else {
                String::new()
            };
            let what = format!(
                "the pool takes {} of {left}: nothing has to go at {bounds}{ways}",
                units::bytes(r.pool)
            );
            note(global.quiet, format!("{what}; --dynamic-pool gives another"));
            planned(Some(r.pool))
        }
        Ok(_) => Ok(plan),
        Err(why) => {
            let what = format!("no bound of the pool follows from {bounds}: {why}");
            note(
                global.quiet,
                format!("{what}; the pool takes the {left} that the state leaves of the budget"),
            );
            Ok(plan)
        }
    }
}

/// Writes the model's step as ONNX: its first program, or of an accumulated step the last part there and the others' program beside it.
fn emit_onnx(model: &Model, path: &Path, global: Global) -> Result<(), CliError> {
    let [first, rest @ ..] = &model.parts[..] else {
        let way_out = match &model.open {
            Some(open) if open.waits_for_sizes => "bind its sizes with --dim NAME=N".to_owned(),
            open => {
                let why = open.as_ref().map_or("", |o| &o.reason);
                format!("there is none of it beforehand, whatever is bound: {why}")
            }
        };
        let what = format!(
            "--emit-onnx writes a program before it is planned, and this model's is made anew at every step: {way_out}"
        );
        return Err(CliError::usage(what));
    };
    if model.bounds.is_some() {
        let what = "--emit-onnx writes a program of one size, and a bound or several sizes were given: bind them with --dim NAME=N";
        return Err(CliError::usage(what));
    }
    let last = rest.iter().find(|p| first.kind == ProgramKind::Micro && p.kind == ProgramKind::Last);
    let Some(last) = last else { return emit_part(model, first, &[], path, global) };
    check_writable(path)?;
    emit_part(model, first, &[&last.graph], &micro(path), global)?;
    emit_part(model, last, &[&first.graph], path, global)
}

/// Where the parts of an accumulated step go that are not the last.
pub fn micro(path: &Path) -> PathBuf {
    path.with_extension("micro.onnx")
}

fn emit_part(
    model: &Model,
    part: &Part,
    others: &[&Graph],
    path: &Path,
    global: Global,
) -> Result<(), CliError> {
    check_writable(path)?;
    let limit = export::onnx::INLINE_LIMIT;
    let done = export::emit_onnx(&part.graph, others, &model.weights, path, limit).map_err(|e| match e {
        export::EmitOnnxError::Io { path, error } => CliError::unwritable(&path, &error),
        e => CliError::bad_input(format!("--emit-onnx: {e}")),
    })?;
    let files: Vec<String> = done.files.iter().map(|f| f.display().to_string()).collect();
    note(
        global.quiet,
        format!(
            "wrote the {} program to {}: {} nodes of standard operators, {} functions",
            part.kind,
            files.join(", "),
            done.standard,
            done.functions
        ),
    );
    if done.without_elements > 0 {
        let n = done.without_elements;
        note(
            global.quiet,
            format!("{n} tensors have no elements, their file is absent: inputs that must be given"),
        );
    }
    Ok(())
}

/// The programs of a plan as objects.
pub fn programs(plan: &plan::Plan) -> Vec<serde_json::Value> {
    let one = |p: &plan::Program| {
        json!({"kind": p.kind.to_string(), "label": p.label(), "arena_bytes": p.certificate.arena,
            "peak_bytes": p.certificate.live_peak, "keep_all_bytes": p.certificate.keep_all, "dynamic": p.dynamic.is_some()})
    };
    plan.programs.iter().map(one).collect()
}

/// Where a plan goes unless told: into the current folder, by the name of its model.
pub fn default_output(model: &Path) -> PathBuf {
    PathBuf::from(model.file_stem().unwrap_or("model".as_ref())).with_extension("dtrc")
}

/// Compiles and writes the plan.
pub fn run(args: &Args, global: Global) -> Result<u8, CliError> {
    let start = Instant::now();
    if args.model.list_trainable {
        return print_trainable(&args.model, global);
    }
    let output = args.output.clone().unwrap_or_else(|| default_output(&args.model.model));
    check_writable(&output)?;
    let model = load_for(&args.model, &args.device, global)?;
    if let Some(path) = &args.emit_onnx {
        emit_onnx(&model, path, global)?;
    }
    let (compiled, model) = plan_model(model, &args.budget, &args.planner, &args.device, global)?;
    let plan = &compiled.plan;
    let bytes = plan::to_bytes(plan).map_err(|e| CliError::failed(e.to_string()))?;
    write_file(&output, &bytes)?;
    let main = &plan.programs[0].certificate;
    let extra = main.time_ns.saturating_sub(main.base_time_ns) as f64 / main.base_time_ns.max(1) as f64;
    let bound = main.lower_bound_ns.map(|b| b as f64 / main.base_time_ns.max(1) as f64);
    if global.json {
        let object = json!({
            "schema": 1, "model": model.name, "budget_bytes": compiled.budget, "keep_all_peak_bytes": compiled.keep_all,
            "state_bytes": plan.state_bytes, "peak_bytes": main.live_peak, "arena_bytes": plan.arena,
            "naive_peak_bytes": main.naive_peak, "extra_time_fraction": extra, "lower_bound_fraction": bound,
            "predicted_seconds_per_step": planning::predicted_step_seconds(plan), "programs": programs(plan),
            "stop_reason": main.stop_reason, "strategy": main.strategy, "numerics": hex(&plan.numerics),
            "plan_file": output, "seconds": start.elapsed().as_secs_f64(),
        });
        println!("{object}");
    } else {
        let replays = plan::validate(plan, ops::cuda::registry(plan.device == plan::Device::Cuda))
            .map_err(|e| CliError::failed(e.to_string()))?;
        let text = plan::show(plan, &replays);
        if args.show {
            print!("{text}");
        } else {
            println!("budget {} bytes ({})", compiled.budget, units::bytes(compiled.budget));
            for line in text
                .lines()
                .filter(|l| l.starts_with("plan ") || (l.starts_with("  ") && !l.starts_with("   ")))
            {
                if !line.contains("region {") && line.trim() != "}" {
                    println!("{line}");
                }
            }
        }
        println!(
            "wrote {} ({} bytes, numerics {})",
            output.display(),
            bytes.len(),
            &hex(&plan.numerics)[..16]
        );
    }
    if plan.programs[0].kind == ProgramKind::Infer {
        note(global.quiet, "this is an inference plan: the model has no loss; give --loss to train");
    }
    Ok(0)
}
