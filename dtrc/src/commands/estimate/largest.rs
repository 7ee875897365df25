//! `dtrc estimate --max`: how large can a dimension be within a budget?

use super::Args;
use crate::{
    cli::Global,
    dims::DimArg,
    error::{CliError, INFEASIBLE},
    model::{Model, load},
    planning::{extra_fraction, fits, number, plan_at},
    progress::Progress,
    units,
};
use compiler::{
    pipeline::{Budget, CompileError},
    planner::PlanError,
};
use serde_json::json;
use std::sync::Arc;

/// No dimension is tried beyond this.
const MOST: i64 = 1 << 24;

/// The model at a size, or why there is no plan.
type Answer = Result<Model, &'static str>;

/// Doubles the dimension until no plan is found, then bisects. Every size that counts as fitting has a plan.
pub fn run(args: &Args, dim: &str, budget: u64, global: Global) -> Result<u8, CliError> {
    if args.model.dims.iter().any(|d| d.name == dim) {
        return Err(CliError::usage(format!(
            "--max {dim} looks for the size that --dim {dim} binds: leave --dim {dim} out, or ask --fits for that size"
        )));
    }
    args.planner.refuse_pool("a model whose sizes are bound")?;
    let progress = Arc::new(Progress::new(global.quiet));
    let options = args.planner.options(progress.clone());
    let at = |n: i64| -> Result<Answer, CliError> {
        progress.tell(&format!("trying {dim} = {n}"));
        let mut model = args.model.clone();
        model.dims.push(DimArg::bound(dim, n));
        // Notes are the same for every size.
        let model = load(&model, Global { quiet: global.quiet || n > 1, ..global })?;
        match fits(&model, budget, &options) {
            Ok(()) => Ok(Ok(model)),
            Err(CompileError::Plan(PlanError::Infeasible(i))) => {
                Ok(Err(if i.proved { "proved impossible" } else { "no plan was found" }))
            }
            Err(e) => Err(e.into()),
        }
    };
    let mut best: Option<(i64, Model)> = None;
    let mut next = 1;
    let mut above = loop {
        match at(next)? {
            Ok(model) => best = Some((next, model)),
            Err(why) => break Some((next, why)),
        }
        if next >= MOST {
            break None;
        }
        next *= 2;
    };
    while let (Some((low, _)), Some((high, _))) = (&best, above) {
        if high - low <= 1 {
            break;
        }
        let middle = low + (high - low) / 2;
        match at(middle)? {
            Ok(model) => best = Some((middle, model)),
            Err(why) => above = Some((middle, why)),
        }
    }
    // Only the answer is planned for time as well.
    let best = match best {
        Some((n, model)) => {
            let planned = plan_at(&model, &[Budget::Bytes(budget)], &options)?.into_iter().next();
            Some((n, planned.ok_or_else(|| CliError::failed("no plan"))??))
        }
        None => None,
    };
    progress.finish();
    let extra = best.as_ref().map(|(_, c)| extra_fraction(&c.plan));
    if global.json {
        let object = json!({"schema": 1, "model": args.model.model, "dim": dim, "budget_bytes": budget,
            "max": best.as_ref().map(|b| b.0), "arena_bytes": best.as_ref().map(|b| b.1.plan.arena),
            "keep_all_peak_bytes": best.as_ref().map(|b| b.1.keep_all), "extra_time_fraction": extra.map(number),
            "next": above.map(|(n, why)| json!({"size": n, "verdict": why}))});
        println!("{object}");
    } else if let Some((n, c)) = &best {
        println!(
            "{dim} = {n} fits: arena {} of {}, keep-all {}, +{:.1} % time",
            units::bytes(c.plan.arena),
            units::bytes(budget),
            units::bytes(c.keep_all),
            extra.unwrap_or(0.0) * 100.0
        );
        match above {
            Some((n, why)) => println!("{dim} = {n}: {why}"),
            None => println!("nothing larger was tried"),
        }
    } else {
        println!("not even {dim} = 1 fits into {}", units::bytes(budget));
    }
    Ok(if best.is_some() { 0 } else { INFEASIBLE })
}
