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

/// Where the model has refused all sizes so far, none is tried beyond this.
const FIRST: i64 = 1 << 16;

/// Why a size is not the answer.
enum Not {
    /// There is no plan; whether that is proved.
    Planned(bool),
    /// The model itself does not take it.
    Taken(CliError),
}

impl Not {
    fn word(&self) -> &'static str {
        match self {
            Not::Planned(true) => "proved impossible",
            Not::Planned(false) => "no plan was found",
            Not::Taken(_) => "the model does not take it",
        }
    }

    fn reason(&self) -> Option<&str> {
        match self {
            Not::Planned(_) => None,
            Not::Taken(e) => Some(&e.message),
        }
    }
}

/// What is known of the sizes so far.
struct Search<M> {
    /// The largest for which there is a plan.
    best: Option<(i64, M)>,
    /// The least above that and all that were too small for the model, with what is wrong with it.
    above: Option<(i64, Not)>,
    /// The largest that is too small for the model, and what it says of that: where all are, another size is wrong, not this one.
    below: Option<(i64, CliError)>,
}

/// Doubles the size until there is no plan, then bisects. What the model refuses counts as too large above a size that it takes, and as too
/// small below: an image may have to be larger than a window, and positions may end. An extent of 1 is no witness where larger ones are
/// refused, since it goes with any other extent.
fn search<M>(at: impl Fn(i64) -> Result<Result<M, Not>, CliError>) -> Result<Search<M>, CliError> {
    let mut found = Search { best: None, above: None, below: None };
    let mut next = 1;
    while next <= MOST {
        let witness = found.best.as_ref().is_some_and(|(n, _)| *n > 1);
        match at(next)? {
            Ok(model) => (found.best, found.above) = (Some((next, model)), None),
            Err(Not::Taken(e)) if !witness => {
                if found.best.is_some() {
                    found.above.get_or_insert((next, Not::Taken(e)));
                } else {
                    found.below = Some((next, e));
                }
                if next >= FIRST {
                    return Ok(found);
                }
            }
            Err(not) => {
                found.above.get_or_insert((next, not));
                break;
            }
        }
        next *= 2;
    }
    while let Some((high, _)) = &found.above {
        let low = found.best.as_ref().map(|b| b.0).max(found.below.as_ref().map(|b| b.0)).unwrap_or(0);
        if high - low <= 1 {
            break;
        }
        let middle = low + (high - low) / 2;
        match at(middle)? {
            Ok(model) => found.best = Some((middle, model)),
            Err(Not::Taken(e)) if found.best.is_none() => found.below = Some((middle, e)),
            Err(not) => found.above = Some((middle, not)),
        }
    }
    Ok(found)
}

/// Looks for the size; every one that counts as fitting has a plan.
pub fn run(args: &Args, dim: &str, budget: u64, global: Global) -> Result<u8, CliError> {
    if args.model.dims.iter().any(|d| d.name == dim) {
        return Err(CliError::usage(format!(
            "--max {dim} looks for the size that --dim {dim} binds: leave --dim {dim} out, or ask --fits for that size"
        )));
    }
    args.planner.refuse_pool("a model whose sizes are bound")?;
    let progress = Arc::new(Progress::new(global.quiet));
    let options = args.planner.options(progress.clone());
    let at = |n: i64| -> Result<Result<Model, Not>, CliError> {
        progress.tell(&format!("trying {dim} = {n}"));
        let mut model = args.model.clone();
        model.dims.push(DimArg::bound(dim, n));
        // Notes are the same for every size.
        let model = match load(&model, Global { quiet: global.quiet || n > 1, ..global }) {
            Ok(model) => model,
            Err(e) if e.is_of_model() => return Ok(Err(Not::Taken(e))),
            Err(e) => return Err(e),
        };
        match fits(&model, budget, &options) {
            Ok(()) => Ok(Ok(model)),
            Err(CompileError::Plan(PlanError::Infeasible(i))) => Ok(Err(Not::Planned(i.proved))),
            Err(e @ (CompileError::Lower(_) | CompileError::Plan(PlanError::Problem(_)))) => {
                Ok(Err(Not::Taken(e.into())))
            }
            Err(e) => Err(e.into()),
        }
    };
    let Search { best, above, below } = search(at)?;
    if let (None, None, Some((n, e))) = (&best, &above, below) {
        progress.finish();
        return Err(CliError { message: format!("no {dim} from 1 to {n} will do: {}", e.message), ..e });
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
            "next": above.map(|(n, why)| json!({"size": n, "verdict": why.word(), "reason": why.reason()}))});
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
            Some((n, why)) => {
                let reason = why.reason().map_or_else(String::new, |r| format!(": {r}"));
                println!("{dim} = {n}: {}{reason}", why.word());
            }
            None => println!("nothing larger was tried"),
        }
    } else {
        let least = above.map_or(1, |(n, _)| n);
        let taken = if least > 1 { ", the least that the model takes," } else { "" };
        println!("not even {dim} = {least}{taken} fits into {}", units::bytes(budget));
    }
    Ok(if best.is_some() { 0 } else { INFEASIBLE })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer where the model takes `taken` and plans are found up to `fit`, and what is said of the next size.
    fn largest(taken: impl Fn(i64) -> bool, fit: i64) -> (Option<i64>, Option<(i64, &'static str)>) {
        let at = |n| {
            Ok(match taken(n) {
                false => Err(Not::Taken(CliError::bad_input("no"))),
                true if n <= fit => Ok(()),
                true => Err(Not::Planned(true)),
            })
        };
        let found = search(at).unwrap();
        (found.best.map(|b| b.0), found.above.map(|(n, why)| (n, why.word())))
    }

    #[test]
    fn sizes_that_a_model_refuses_lie_above_and_below() {
        let (refused, impossible) = ("the model does not take it", "proved impossible");
        assert_eq!(largest(|_| true, 77), (Some(77), Some((78, impossible))));
        assert_eq!(largest(|_| true, i64::MAX), (Some(MOST), None));
        assert_eq!(largest(|_| true, 0), (None, Some((1, impossible))));
        assert_eq!(largest(|n| n <= 64, i64::MAX), (Some(64), Some((65, refused))));
        assert_eq!(largest(|n| n <= 100, 80), (Some(80), Some((81, impossible))));
        assert_eq!(largest(|n| n >= 7, 99), (Some(99), Some((100, impossible))));
        // The first power of two that the model takes is too large, smaller sizes are not, or none is.
        assert_eq!(largest(|n| n >= 33, 50), (Some(50), Some((51, impossible))));
        assert_eq!(largest(|n| n >= 33, 20), (None, Some((33, impossible))));
        // Multiples of 16, in steps of which the bisection goes.
        assert_eq!(largest(|n| n % 16 == 0, 100).0, Some(96));
        // Broadcast at 1, and else as large as a constant.
        assert_eq!(largest(|n| n == 1 || n == 64, 99), (Some(64), Some((65, refused))));
        assert_eq!(largest(|n| n == 1, 99), (Some(1), Some((2, refused))));
        assert_eq!(largest(|n| n > FIRST, 99), (None, None));
    }
}
