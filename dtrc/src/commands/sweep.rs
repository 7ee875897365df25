//! `dtrc sweep`: budget against extra time.

mod chart;

use crate::{
    cli::Global,
    commands::compile::{self, PlannerArgs},
    error::CliError,
    model::{ModelArgs, load},
    planning::{extra_fraction, number, plan_at, problems},
    progress::Progress,
    units,
};
use compiler::{
    pipeline::{Budget, CompileError},
    planner::{self, Heuristic, PlanError, bounds},
};
use serde_json::{Value, json};
use std::{fmt::Write, path::PathBuf, sync::Arc};

/// Arguments of `dtrc sweep`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Every budget is planned in one search, so a larger budget never takes more time. The bound is proven for any order of the step: the truth
lies between the two lines. Beside them stand the online runs of the plain DTR algorithm, with its heuristics, in the model's order.

Examples:
  dtrc sweep model.onnx
  dtrc sweep model.onnx --budgets 100%,75%,50%,4G --csv sweep.csv --svg sweep.svg")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// The budgets. Default: 100 % of keep-all down to 10 % in steps of 10.
    #[arg(long, value_delimiter = ',', value_name = "B,B,..", value_parser = units::budget)]
    budgets: Vec<Budget>,

    /// Write the table as CSV.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Draw the curves.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    #[command(flatten)]
    planner: PlannerArgs,
}

/// The heuristics of the online runs.
const ONLINE: [Heuristic; 4] = [Heuristic::DTR, Heuristic::DTR_EQ, Heuristic::DTR_LOCAL, Heuristic::Lru];

/// One budget.
struct Row {
    budget: u64,
    /// Arena and extra time of the plan; none where none was found.
    plan: Option<(u64, f64)>,
    /// Proven least extra time; infinite where no plan can be.
    bound: f64,
    strategy: String,
    /// Extra time of the online runs; none where one fails.
    online: Vec<Option<f64>>,
}

impl Row {
    fn status(&self) -> &'static str {
        match self.plan {
            Some(_) => "ok",
            None if self.bound.is_infinite() => "infeasible-proved",
            None => "not-found",
        }
    }
}

/// Plans, prints and draws.
pub fn run(args: &Args, global: Global) -> Result<u8, CliError> {
    for path in [&args.csv, &args.svg].into_iter().flatten() {
        compile::check_writable(path)?;
    }
    let model = load(&args.model, global)?;
    args.planner.refuse_pool(&model.name)?;
    let progress = Arc::new(Progress::new(global.quiet));
    let options = args.planner.options(progress.clone());
    let mut budgets = args.budgets.clone();
    if budgets.is_empty() {
        budgets = (1..=10).rev().map(|tenth| Budget::OfKeepAll(f64::from(tenth) / 10.0)).collect();
    }
    // Keep-all first: it says what the shares mean.
    let mut asked = vec![Budget::OfKeepAll(1.0)];
    asked.extend(&budgets);
    let mut results = plan_at(&model, &asked, &options)?.into_iter();
    let keep_all = results.next().ok_or_else(|| CliError::failed("no plan"))??.keep_all;
    let problems = problems(&model)?;
    let mut rows = Vec::new();
    for (result, budget) in results.zip(&budgets) {
        let budget = match budget {
            Budget::Bytes(n) => *n,
            Budget::OfKeepAll(share) => (keep_all as f64 * share) as u64,
        };
        let impossible = problems.iter().any(|p| bounds::least_peak(p) > budget);
        let bound = if impossible {
            f64::INFINITY
        } else {
            bounds::order_free(&problems[0], budget, bounds::Effort::default()).fraction()
        };
        let (plan, strategy) = match result {
            Ok(c) => {
                let strategy = c.plan.programs[0].certificate.strategy.clone();
                (Some((c.plan.arena, extra_fraction(&c.plan))), strategy)
            }
            Err(CompileError::Plan(PlanError::Infeasible(_))) => (None, String::new()),
            Err(e) => return Err(e.into()),
        };
        let online = planner::online(&problems[0], budget, &ONLINE).map_err(CompileError::Plan)?;
        rows.push(Row { budget, plan, bound, strategy, online });
    }
    progress.finish();
    rows.sort_by_key(|r| std::cmp::Reverse(r.budget));
    if let Some(path) = &args.csv {
        compile::write_file(path, csv(&rows, keep_all).as_bytes())?;
    }
    if let Some(path) = &args.svg {
        let points: Vec<chart::Point> = rows
            .iter()
            .map(|r| chart::Point {
                share: r.budget as f64 / keep_all.max(1) as f64,
                extra: r.plan.map(|p| p.1),
                bound: r.bound,
                online: r.online.clone(),
            })
            .collect();
        let names: Vec<String> = ONLINE.iter().map(ToString::to_string).collect();
        let picture = chart::svg(&model.name, &units::bytes(keep_all), &names, &points);
        compile::write_file(path, picture.as_bytes())?;
    }
    if global.json {
        for r in &rows {
            println!("{}", object(&model.name, r, keep_all));
        }
    } else {
        print_table(&model.name, &rows, keep_all);
    }
    Ok(0)
}

fn object(model: &str, r: &Row, keep_all: u64) -> Value {
    let online: serde_json::Map<String, Value> =
        ONLINE.iter().zip(&r.online).map(|(h, extra)| (h.to_string(), json!(extra))).collect();
    json!({"schema": 1, "model": model, "status": r.status(), "budget_bytes": r.budget, "keep_all_peak_bytes": keep_all,
        "budget_fraction": r.budget as f64 / keep_all.max(1) as f64, "arena_bytes": r.plan.map(|p| p.0),
        "extra_time_fraction": r.plan.map(|p| p.1), "lower_bound_fraction": number(r.bound), "strategy": r.strategy,
        "online_extra_fraction": online})
}

fn csv(rows: &[Row], keep_all: u64) -> String {
    let mut text =
        "budget_bytes,budget_fraction,status,arena_bytes,extra_time_fraction,lower_bound_fraction,strategy"
            .to_owned();
    for heuristic in ONLINE {
        let _ = write!(text, ",{heuristic}");
    }
    text.push('\n');
    for r in rows {
        let share = r.budget as f64 / keep_all.max(1) as f64;
        let (arena, extra) =
            r.plan.map_or_else(Default::default, |(a, e)| (a.to_string(), format!("{e:.6}")));
        let bound = if r.bound.is_finite() { format!("{:.6}", r.bound) } else { String::new() };
        // Writing to a string cannot fail.
        let _ = write!(text, "{},{share:.4},{},{arena},{extra},{bound},{}", r.budget, r.status(), r.strategy);
        for extra in &r.online {
            let _ = write!(text, ",{}", extra.map_or_else(String::new, |e| format!("{e:.6}")));
        }
        text.push('\n');
    }
    text
}

fn print_table(model: &str, rows: &[Row], keep_all: u64) {
    println!("{model}   keep-all {}", units::bytes(keep_all));
    println!("{:>8} {:>12} {:>12} {:>10} {:>10} {:>10}", "budget", "", "arena", "extra", "bound", "online");
    let longest = rows.iter().filter_map(|r| r.plan).map(|p| p.1).fold(0.0, f64::max);
    for r in rows {
        let share = format!("{:.1} %", r.budget as f64 / keep_all.max(1) as f64 * 100.0);
        let bound =
            if r.bound.is_finite() { format!("+{:.2} %", r.bound * 100.0) } else { "none fits".to_owned() };
        let online = r.online.iter().flatten().copied().reduce(f64::min);
        let online = online.map_or_else(|| "fails".to_owned(), |o| format!("+{:.2} %", o * 100.0));
        match r.plan {
            Some((arena, extra)) => {
                let bar = "#".repeat((extra / longest.max(1e-9) * 30.0).round() as usize);
                let (budget, arena) = (units::bytes(r.budget), units::bytes(arena));
                let extra = format!("+{:.2} %", extra * 100.0);
                println!("{share:>8} {budget:>12} {arena:>12} {extra:>10} {bound:>10} {online:>10}  {bar}");
            }
            None => {
                let budget = units::bytes(r.budget);
                println!("{share:>8} {budget:>12} {:>12} {:>10} {bound:>10} {online:>10}", "-", r.status());
            }
        }
    }
}
