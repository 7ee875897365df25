//! `dtrc min-budget`: how small can the budget be?

use crate::{
    cli::Global,
    commands::compile::{self, PlannerArgs},
    error::CliError,
    model::{ModelArgs, load},
    planning::{extra_fraction, number, plan_least, problems},
    progress::Progress,
    units,
};
use compiler::planner::{Options, ROUNDS, bounds};
use serde_json::json;
use std::{path::PathBuf, sync::Arc, time::Instant};

/// Arguments of `dtrc min-budget`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Two figures: the least budget for which a plan was found, and a bound that no plan in any order can go below. Between the two nobody
knows. dtrc compile finds a plan at every budget from the first figure on, and names it where it refuses one. A plan at the least budget may recompute a lot: dtrc sweep shows what a little more memory buys.

Example:
  dtrc min-budget model.onnx --optimizer adamw -o smallest.dtrc")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Write the plan at the least budget.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Budgets that are tried between the bound and the best plan so far. With more than the default the figure may be one at which
    /// dtrc compile finds no plan by itself: write it with -o.
    #[arg(long, default_value_t = ROUNDS, value_name = "N")]
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
    args.planner.refuse_pool(&model.name)?;
    let progress = Arc::new(Progress::new(global.quiet));
    let options = Options { rounds: Some(args.rounds), ..args.planner.options(progress.clone()) };
    let bound = problems(&model)?.iter().map(bounds::least_peak).max().unwrap_or(0);
    let best = plan_least(&model, &options)?;
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
