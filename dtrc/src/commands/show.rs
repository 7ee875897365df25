//! `dtrc show`: a plan as text.

use crate::{cli::Global, error::CliError};
use plan::{Plan, Replay, from_bytes, validate};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Arguments of `dtrc show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The plan file.
    plan: PathBuf,

    /// Print everything exactly, in a form that reads back to the same plan.
    #[arg(long)]
    full: bool,
}

/// Reads, decodes and validates a plan file.
pub fn read_plan(path: &Path) -> Result<(Plan, Vec<Replay>), CliError> {
    let bytes = std::fs::read(path).map_err(|e| CliError::disk(path.display(), &e))?;
    let plan = from_bytes(&bytes).map_err(|e| CliError::bad_input(format!("{}: {e}", path.display())))?;
    let replays = validate(&plan, ops::cuda::registry(plan.device == plan::Device::Cuda))
        .map_err(|e| CliError::bad_input(format!("{}: {e}", path.display())))?;
    Ok((plan, replays))
}

/// Prints the plan.
pub fn run(args: &Args, global: Global) -> Result<u8, CliError> {
    let (plan, replays) = read_plan(&args.plan)?;
    let text = if args.full {
        plan::text::full(&plan).map_err(|e| CliError::bad_input(format!("{}: {e}", args.plan.display())))?
    } else {
        plan::show(&plan, &replays)
    };
    if global.json {
        println!("{}", json!({"schema": 1, "plan": args.plan, "text": text}));
    } else {
        print!("{text}");
    }
    Ok(0)
}
