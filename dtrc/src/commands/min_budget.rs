//! `dtrc min-budget`: how small can the budget be?

use crate::{
    cli::Global,
    commands::compile::{self, PlannerArgs},
    error::CliError,
    model::{Model, ModelArgs, load},
    planning::{extra_fraction, number, plan_at, problems},
    progress::Progress,
    units,
};
use compiler::{
    pipeline::{Budget, CompileError, Compiled},
    planner::{Options, PlanError, bounds},
};
use serde_json::json;
use std::{path::PathBuf, sync::Arc, time::Instant};

/// Arguments of `dtrc min-budget`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Two figures: the least budget for which a plan was found, and a bound that no plan in any order can go below. Between the two nobody
knows. A plan at the least budget may recompute a lot: dtrc sweep shows what a little more memory buys.

Example:
  dtrc min-budget model.onnx --optimizer adamw -o smallest.dtrc")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Write the plan at the least budget.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Budgets that are tried between the bound and the best plan so far.
    #[arg(long, default_value_t = 6, value_name = "N")]
    rounds: u32,

    #[command(flatten)]
    planner: PlannerArgs,
}

/// Searches and prints.
pub fn run(args: &Args, global: Global) -> Result<u8, CliError> {
    let start = Instant::now();
    if let Some(path) = &args.output {
        compile::check_writable(path)?;
    }
    let model = load(&args.model, global)?;
    let progress = Arc::new(Progress::new(global.quiet));
    let options = args.planner.options(progress.clone());
    let bound = problems(&model)?.iter().map(bounds::least_peak).max().unwrap_or(0);
    let best = search(&model, &options, bound, args.rounds)?;
    progress.finish();
    let plan = &best.plan;
    if let Some(path) = &args.output {
        compile::write_file(path, &plan::to_bytes(plan).map_err(|e| CliError::failed(e.to_string()))?)?;
    }
    let extra = extra_fraction(plan);
    if global.json {
        let object = json!({"schema": 1, "model": model.name, "least_budget_bytes": best.budget, "arena_bytes": plan.arena, "lower_bound_bytes": bound,
            "state_bytes": plan.state_bytes, "keep_all_peak_bytes": best.keep_all, "extra_time_fraction": number(extra),
            "plan_file": args.output, "seconds": start.elapsed().as_secs_f64()});
        println!("{object}");
        return Ok(0);
    }
    let share = |n: u64| n as f64 / best.keep_all.max(1) as f64 * 100.0;
    println!("{}", model.name);
    let row = |what: &str, n: u64, more: String| {
        println!("  {what:<24} {:>12}   {n} bytes{more}", units::bytes(n));
    };
    row(
        "least budget found",
        best.budget,
        format!(", {:.1} % of keep-all, +{:.1} % time", share(best.budget), extra * 100.0),
    );
    row("proven lower bound", bound, format!(", {:.1} % of keep-all", share(bound)));
    row("state alone", plan.state_bytes, String::new());
    row("keep-all", best.keep_all, String::new());
    if let Some(path) = &args.output {
        println!("wrote {}", path.display());
    }
    Ok(0)
}

/// The answer at one budget: a plan, or the least arena that was found on the way.
fn at(model: &Model, options: &Options, bytes: u64) -> Result<Result<Compiled, u64>, CliError> {
    match plan_at(model, &[Budget::Bytes(bytes)], options)?.into_iter().next() {
        Some(Ok(c)) => Ok(Ok(c)),
        Some(Err(CompileError::Plan(PlanError::Infeasible(i)))) => Ok(Err(i.least_arena)),
        Some(Err(e)) => Err(e.into()),
        None => Err(CliError::failed("no plan")),
    }
}

/// The plan at the least budget for which compiling finds one: first what a search for any plan at all gives, then bisection towards the
/// bound. A plan may need less than its budget, but a search within just that may not find it again: the budget is what is told.
fn search(model: &Model, options: &Options, bound: u64, rounds: u32) -> Result<Compiled, CliError> {
    let mut high = bound;
    let mut best = None;
    // Several programs name their least arenas one after the other.
    for _ in 0..2 * model.parts.len() + 1 {
        match at(model, options, high)? {
            Ok(c) => {
                best = Some(c);
                break;
            }
            // A search for less may find less than it finds when asked for just that.
            Err(least) => high = if least > high { least } else { high + high / 50 + plan::ALIGNMENT },
        }
    }
    let mut best = match best {
        Some(c) => c,
        None => plan_at(model, &[Budget::OfKeepAll(1.0)], options)?
            .into_iter()
            .next()
            .ok_or_else(|| CliError::failed("no plan"))??,
    };
    let mut low = bound;
    for _ in 0..rounds {
        let high = best.budget;
        if high <= low || high - low <= high / 256 {
            break;
        }
        // What the best plan leaves free is tried first.
        let middle = plan::align(low + (high - low) / 2);
        let tried = if best.plan.arena > middle && best.plan.arena < high { best.plan.arena } else { middle };
        match at(model, options, tried)? {
            Ok(c) => best = c,
            Err(_) => low = tried,
        }
    }
    Ok(best)
}
