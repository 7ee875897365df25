//! `dtrc estimate`: what a model needs, piece by piece.

mod largest;

use crate::{
    cli::Global,
    commands::compile::{self, PlannerArgs},
    error::{CliError, INFEASIBLE, UNKNOWN},
    model::{ModelArgs, load, load_any},
    planning::plan_at,
    progress::Progress,
    units,
};
use compiler::{
    pipeline::{Budget, CompileError},
    planner::PlanError,
};
use graph::StateKind;
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc};

/// Arguments of `dtrc estimate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dtrc estimate model.onnx --optimizer adamw
  dtrc estimate model.onnx --fits 24G
  dtrc estimate model.onnx --max batch --budget 8G")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Answer whether the step fits into this much memory: exit code 0 yes (a plan was found), 2 no (proved), 3 cannot tell.
    #[arg(long, value_parser = units::budget)]
    fits: Option<Budget>,

    /// The largest size of this dimension (a name, or INPUT:AXIS) for which a plan within --budget is found.
    #[arg(long, value_name = "DIM", requires = "budget", conflicts_with = "fits")]
    max: Option<String>,

    /// Memory for --max: 8G, 8GB, 512M, bytes.
    #[arg(long, value_name = "BYTES", requires = "max", value_parser = units::absolute)]
    budget: Option<u64>,

    #[command(flatten)]
    planner: PlannerArgs,
}

/// Prints the breakdown, and with `--fits` the answer.
pub fn run(args: &Args, global: Global) -> Result<u8, CliError> {
    if let (Some(dim), Some(budget)) = (&args.max, args.budget) {
        return largest::run(args, dim, budget, global);
    }
    let buckets = args.model.dims.iter().any(|d| d.bounds().is_some());
    let model = if buckets { load_any(&args.model, global)? } else { load(&args.model, global)? };
    if model.open.is_none() {
        args.planner.refuse_pool(&model.name)?;
    }
    if model.parts.is_empty() {
        let why = model.open.map_or_else(String::new, |o| o.reason);
        return Err(CliError::bad_input(format!(
            "{}: what it needs is known only at run time: {why}",
            model.name
        )));
    }
    let progress = Arc::new(Progress::new(global.quiet));
    let options = args.planner.options(progress.clone());
    let mut budgets = vec![Budget::Bytes(u64::MAX >> 1)];
    budgets.extend(args.fits);
    let results = plan_at(&model, &budgets, &options)?;
    progress.finish();
    let mut results = results.into_iter();
    let full = results.next().ok_or_else(|| CliError::failed("no plan"))??;
    let mut by_kind: BTreeMap<&str, u64> = BTreeMap::new();
    for s in &full.plan.state {
        let kind = match s.kind {
            StateKind::Parameter => "parameters",
            StateKind::Frozen => "frozen tensors",
            StateKind::Statistic => "statistics",
            StateKind::Optimizer => "optimizer",
            StateKind::Accumulator => "gradient accumulators",
        };
        *by_kind.entry(kind).or_default() += plan::align(s.ty.bytes().unwrap_or(0));
    }
    let naive = full.plan.programs.iter().map(|p| p.certificate.naive_peak).max().unwrap_or(0);
    let answer = results.next();
    let verdict = answer.as_ref().map(|a| match a {
        Ok(c) => ("yes", 0, c.plan.arena),
        Err(CompileError::Plan(PlanError::Infeasible(i))) if i.proved => ("no", INFEASIBLE, i.lower_bound),
        Err(CompileError::Plan(PlanError::Infeasible(i))) => ("unknown", UNKNOWN, i.least_arena),
        Err(_) => ("unknown", UNKNOWN, 0),
    });
    if global.json {
        let object = json!({"schema": 1, "model": model.name, "state_bytes": full.plan.state_bytes, "state": by_kind,
            "keep_all_peak_bytes": full.keep_all, "naive_peak_bytes": naive,
            "transient_bytes": full.keep_all - full.plan.state_bytes,
            "fits": verdict.map(|v| v.0), "fits_bytes": verdict.map(|v| v.2),
            "programs": compile::programs(&full.plan)});
        println!("{object}");
    } else {
        println!("{}", model.name);
        for (kind, n) in &by_kind {
            println!("  {kind:<24} {:>12}", units::bytes(*n));
        }
        println!("  {:<24} {:>12}", "state in all", units::bytes(full.plan.state_bytes));
        println!(
            "  {:<24} {:>12}",
            "activations and scratch",
            units::bytes(full.keep_all - full.plan.state_bytes)
        );
        println!("  {:<24} {:>12}   100 % of a budget in per cent", "keep-all", units::bytes(full.keep_all));
        println!("  {:<24} {:>12}   file order, nothing overwritten", "naive peak", units::bytes(naive));
        for p in full.plan.programs.iter().filter(|p| !p.guard.dims.is_empty()) {
            let label = format!("{} {}", p.kind, p.label());
            println!("  {label:<24} {:>12}   keep-all of this bucket", units::bytes(p.certificate.keep_all));
        }
        if let Some((word, _, n)) = verdict {
            match word {
                "yes" => println!("fits: yes, in an arena of {}", units::bytes(n)),
                "no" => println!("fits: no; no plan can need less than {}", units::bytes(n)),
                _ => println!("fits: unknown; the least plan found needs {}", units::bytes(n)),
            }
        }
    }
    Ok(verdict.map_or(0, |v| v.1))
}
