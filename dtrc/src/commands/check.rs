//! `dtrc check`: is this plan right?

mod against;

use crate::{cli::Global, commands::show::read_plan, error::CliError, files::check_readable, units::bytes};
use against::Against;
use plan::{Plan, Replay};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Arguments of `dtrc check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The plan files.
    #[arg(required = true)]
    plans: Vec<PathBuf>,

    #[command(flatten)]
    against: Against,
}

/// Reads and validates every plan; ends with the first error after all were looked at.
pub fn run(args: &Args, global: Global) -> Result<u8, CliError> {
    // A model takes long to plan again, and a wrong name is quickly said.
    args.plans.iter().try_for_each(|p| check_readable(p))?;
    let model = args.against.load(global)?;
    let mut failed: Option<CliError> = None;
    for path in &args.plans {
        let checked = read_plan(path).and_then(|(plan, replays)| {
            if let Some(model) = &model {
                against::check(&plan, model).map_err(|what| model_error(path, what))?;
            }
            Ok((plan, replays))
        });
        match checked {
            Ok((plan, replays)) => tell(path, &plan, &replays, global),
            Err(e) => {
                if let Some(before) = failed.replace(e) {
                    before.report(global.json);
                }
            }
        }
    }
    failed.map_or(Ok(0), Err)
}

fn model_error(path: &Path, what: String) -> CliError {
    let how = "check needs the flags that compile had about the model, and --costs and --rewrites where it had them";
    CliError::bad_input(format!("{}: not a plan of this model: {what} ({how})", path.display()))
}

fn tell(path: &Path, plan: &Plan, replays: &[Replay], global: Global) {
    let peak = replays.iter().map(|r| r.peak).max().unwrap_or(0);
    if global.json {
        let object = json!({"schema": 1, "plan": path, "valid": true, "arena_bytes": plan.arena, "peak_bytes": peak,
            "budget_bytes": plan.budget, "numerics": plan::hex(&plan.numerics)});
        println!("{object}");
        return;
    }
    let programs: Vec<_> = plan.programs.iter().map(|p| p.kind.to_string()).collect();
    println!(
        "{}: valid   programs {}   live peak {}   arena {} within the budget of {}",
        path.display(),
        programs.join(", "),
        bytes(peak),
        bytes(plan.arena),
        bytes(plan.budget)
    );
}
