//! `dtrc plan`: the planner alone, on a graph in JSON or on a recorded operator log.

use crate::{
    cli::Global,
    commands::compile::{self, PlannerArgs},
    error::{CliError, INFEASIBLE},
    files::read_text,
    planning::number,
    progress::Progress,
    units,
};
use compiler::planner::{
    self, Infeasible, PlanError, Planned, Problem, bounds, import_json, import_log, replay,
};
use serde_json::{Value, json};
use std::{
    fmt::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

/// Arguments of `dtrc plan`.
#[derive(Debug, clap::Args)]
#[command(
    group = clap::ArgGroup::new("source").required(true).args(["from_graph", "from_log"]),
    group = clap::ArgGroup::new("limit").required(true).args(["budget_bytes", "budget_ratio"]),
    after_help = "\
A graph has nodes with id, inputs, bytes and cost (is_param: always there, at no cost) and outputs; parameters and outputs count 0.
Costs may have any unit: nanoseconds, operations.
A log is read as a static graph with its measured costs: constants and what is alive at the end are resident, MUTATE copies.

The answer is ok, infeasible-proved or not-found; the last two have exit code 2. lower_bound_fraction holds for schedules in any order,
keep_order_bound_fraction for those that keep the given order of first executions only.

Examples:
  dtrc plan --from-graph resnet50.json --budget-ratio 0.5 --keep-order --json
  dtrc plan --from-log unet.log --budget-ratio 0.3 --schedule-out unet.schedule"
)]
pub struct Args {
    /// A graph in JSON.
    #[arg(long, value_name = "FILE")]
    from_graph: Option<PathBuf>,

    /// A recorded log: one JSON object a line.
    #[arg(long, value_name = "FILE")]
    from_log: Option<PathBuf>,

    /// Live bytes that the schedule may need (4G, 512M, 1000000).
    #[arg(long, value_name = "N", value_parser = units::absolute)]
    budget_bytes: Option<u64>,

    /// The same as a share: of a log's peak without a budget, of a graph's peak in the order of the file.
    #[arg(long, value_name = "R", value_parser = units::ratio)]
    budget_ratio: Option<f64>,

    /// Keep the given order of first executions.
    #[arg(long)]
    keep_order: bool,

    /// Write the schedule: an id a line in order of execution. The node's id; for a log the number from 0 of its CALL or MUTATE line.
    #[arg(long, value_name = "FILE")]
    schedule_out: Option<PathBuf>,

    #[command(flatten)]
    planner: PlannerArgs,
}

/// A problem with what its file calls things.
struct Source {
    problem: Problem,
    ids: Vec<u64>,
    /// Ratio 1 of budgets.
    whole: u64,
}

fn source(args: &Args) -> Result<Source, CliError> {
    let wrong = |path: &Path, e: String| CliError::bad_input(format!("{}: {e}", path.display()));
    if let Some(path) = &args.from_log {
        let log = import_log::import(&read_text(path)?).map_err(|e| wrong(path, e.to_string()))?;
        let ids = (0..log.problem.nodes.len() as u64).collect();
        return Ok(Source { problem: log.problem, ids, whole: log.baseline_peak });
    }
    let Some(path) = &args.from_graph else { return Err(CliError::usage("give --from-graph or --from-log")) };
    let graph = import_json::import(&read_text(path)?).map_err(|e| wrong(path, e.to_string()))?;
    let order: Vec<u32> = (0..graph.problem.nodes.len() as u32).collect();
    let all = replay::assemble(&graph.problem, &order, u64::MAX);
    let whole = replay::replay(&graph.problem, &all).map_err(|e| wrong(path, e.to_string()))?.peak;
    Ok(Source { problem: graph.problem, ids: graph.node_ids, whole })
}

/// Plans and prints the result.
pub fn run(args: &Args, global: Global) -> Result<u8, CliError> {
    let start = Instant::now();
    if let Some(path) = &args.schedule_out {
        compile::check_writable(path)?;
    }
    args.planner.refuse_pool("a graph or a log")?;
    let source = source(args)?;
    let path = args.from_log.as_ref().or(args.from_graph.as_ref());
    let name = || path.map_or_else(String::new, |p| p.display().to_string());
    if source.problem.nodes.is_empty() {
        return Err(CliError::bad_input(format!("{}: it has no nodes, there is nothing to plan", name())));
    }
    let budget = match (args.budget_bytes, args.budget_ratio) {
        (Some(bytes), _) => bytes,
        (None, Some(r)) => (source.whole as f64 * r) as u64,
        (None, None) => return Err(CliError::usage("give --budget-bytes or --budget-ratio")),
    };
    let progress = Arc::new(Progress::new(global.quiet));
    let options = planner::Options {
        keep_order: args.keep_order,
        live_bytes_only: true,
        ..args.planner.options(progress.clone())
    };
    let planned = planner::plan(&source.problem, budget, &options);
    progress.finish();
    let effort = bounds::Effort::default();
    match planned {
        Ok(planned) => {
            if let Some(path) = &args.schedule_out {
                let mut text = String::new();
                for step in &planned.schedule.steps {
                    // Writing to a string cannot fail.
                    let _ = writeln!(text, "{}", source.ids[step.node as usize]);
                }
                compile::write_file(path, text.as_bytes())?;
            }
            let share = |ns: u64| ns as f64 / planned.base_time.max(1) as f64;
            let free = planned
                .bound
                .map_or_else(|| bounds::order_free(&source.problem, budget, effort).fraction(), share);
            let fixed = args.keep_order.then(|| {
                let given = || bounds::keep_order(&source.problem, budget, effort).fraction();
                planned.keep_order_bound.map_or_else(given, share).max(free)
            });
            report(budget, &planned, free, fixed, start, global);
            Ok(0)
        }
        Err(PlanError::Infeasible(refused)) => {
            let proved = refused.proved
                || args.keep_order && bounds::keep_order(&source.problem, budget, effort).is_infeasible();
            refuse(&refused, proved, start, global);
            Ok(INFEASIBLE)
        }
        Err(e) => Err(CliError::bad_input(format!("{}: {e}", name()))),
    }
}

fn report(budget: u64, p: &Planned, free: f64, fixed: Option<f64>, start: Instant, global: Global) {
    let extra = p.extra_fraction();
    let gap = extra - fixed.unwrap_or(free);
    let stop = if gap <= 0.0 { "bound reached" } else { p.stop.as_str() };
    let seconds = start.elapsed().as_secs_f64();
    if global.json {
        let object = json!({"schema": 1, "status": "ok", "budget_bytes": budget, "extra_compute_fraction": number(extra),
            "peak_bytes": p.live_peak, "arena_bytes": p.arena, "lower_bound_fraction": number(free),
            "keep_order_bound_fraction": fixed.map_or(Value::Null, number), "gap": number(gap), "stop_reason": stop,
            "strategy": p.strategy, "executions": p.schedule.steps.len(), "recomputations": p.schedule.recomputations(),
            "keep_all_peak_bytes": p.keep_all.live_peak, "seconds": seconds});
        println!("{object}");
        return;
    }
    println!(
        "ok   extra compute +{:.3} %   by {}   stop: {stop}   {seconds:.2} s",
        extra * 100.0,
        p.strategy
    );
    println!(
        "  peak {} of {}   arena {}   keep-all {}",
        units::bytes(p.live_peak),
        units::bytes(budget),
        units::bytes(p.arena),
        units::bytes(p.keep_all.live_peak)
    );
    println!("  {} executions, {} of them repeated", p.schedule.steps.len(), p.schedule.recomputations());
    print!("  lower bound +{:.3} % in any order", free * 100.0);
    if let Some(fixed) = fixed {
        print!(", +{:.3} % in the given order", fixed * 100.0);
    }
    println!("   gap {:.3} points", gap * 100.0);
}

fn refuse(e: &Infeasible, proved: bool, start: Instant, global: Global) {
    let status = if proved { "infeasible-proved" } else { "not-found" };
    if global.json {
        let object = json!({"schema": 1, "status": status, "budget_bytes": e.budget, "extra_compute_fraction": Value::Null,
            "least_peak_bytes": e.least_peak, "least_arena_bytes": e.least_arena, "lower_bound_bytes": e.lower_bound,
            "binding_node": e.binding_node, "seconds": start.elapsed().as_secs_f64()});
        println!("{object}");
        return;
    }
    println!("{status}   within {}", units::bytes(e.budget));
    println!("  least peak reached {} bytes, no schedule needs less than {}", e.least_peak, e.lower_bound);
    println!("  the node that binds: {}", e.binding_node);
    for (name, n) in &e.largest {
        println!("    {:>12}  {name}", units::bytes(*n));
    }
}
