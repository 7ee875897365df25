//! `dtrc show`: a plan as text.

use crate::{cli::Global, error::CliError, units::bytes};
use compiler::import::parse_binding;
use graph::{Bindings, Symbol};
use plan::{Plan, Replay, from_bytes, validate};
use runtime::{Roomy, least_pool};
use serde_json::json;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Arguments of `dtrc show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The plan file.
    plan: PathBuf,

    /// Print everything exactly, in a form that reads back to the same plan.
    #[arg(long)]
    full: bool,

    /// Of a dynamic plan: also the least pool in which its step runs, and the pool in which nothing has to go, whichever way data decide.
    #[arg(long, conflicts_with = "full")]
    least: bool,

    /// With --least: a size of the inputs, NAME=N as compile takes it. Repeatable.
    #[arg(long = "dim", value_name = "NAME=N", requires = "least", value_parser = parse_binding)]
    dims: Vec<(String, i64)>,
}

/// Reads, decodes and validates a plan file.
pub fn read_plan(path: &Path) -> Result<(Plan, Vec<Replay>), CliError> {
    let file = std::fs::read(path).map_err(|e| CliError::disk(path.display(), &e))?;
    let plan = from_bytes(&file).map_err(|e| CliError::bad_input(format!("{}: {e}", path.display())))?;
    let replays = validate(&plan, ops::cuda::registry(plan.device == plan::Device::Cuda))
        .map_err(|e| CliError::bad_input(format!("{}: {e}", path.display())))?;
    Ok((plan, replays))
}

/// Prints the plan.
pub fn run(args: &Args, global: Global) -> Result<u8, CliError> {
    let (plan, replays) = read_plan(&args.plan)?;
    let least = args.least.then(|| least(&plan, args)).transpose()?;
    let mut text = if args.full {
        plan::text::full(&plan).map_err(|e| CliError::bad_input(format!("{}: {e}", args.plan.display())))?
    } else {
        plan::show(&plan, &replays)
    };
    if let Some(l) = &least {
        text.push_str(&format!(
            "least pool {} (--dynamic-pool {}), with the state a budget of {}; nothing has to go in {}; ways that data decide between: {}\n",
            bytes(l.least),
            l.least,
            bytes(plan.state_bytes + l.least),
            bytes(l.pool),
            l.ways
        ));
    }
    if global.json {
        let mut line = json!({"schema": 1, "plan": args.plan, "text": text});
        if let Some(l) = least {
            line["least_pool_bytes"] = l.least.into();
            line["roomy_pool_bytes"] = l.pool.into();
            line["ways"] = l.ways.into();
        }
        println!("{line}");
    } else {
        print!("{text}");
    }
    Ok(0)
}

/// What the plan's dynamic programs need at the sizes given.
fn least(plan: &Plan, args: &Args) -> Result<Roomy, CliError> {
    let fail = |what: String| CliError::usage(format!("{}: --least: {what}", args.plan.display()));
    let dynamic: Vec<_> = plan.programs.iter().filter(|p| p.dynamic.is_some()).collect();
    if dynamic.is_empty() {
        return Err(fail("nothing of this plan is made at run time".to_owned()));
    }
    let g = &dynamic[0].graph;
    let extents = g.inputs.iter().flat_map(|i| &g.ty(i.value).shape.0);
    // The label's follow from the output.
    let open: BTreeSet<Symbol> = extents.flat_map(graph::Dim::symbols).filter(|s| &**s != "?").collect();
    if let Some((name, _)) = args.dims.iter().find(|(n, _)| open.iter().all(|s| **s != **n)) {
        let names: Vec<&str> = open.iter().map(|s| &**s).collect();
        let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return Err(fail(format!("no size is called {name:?}; open sizes: {there}")));
    }
    let sizes: Bindings = args.dims.iter().map(|(n, k)| (n.as_str().into(), *k)).collect();
    least_pool(plan, &sizes).map_err(|why| {
        fail(format!("no figure follows from the sizes given: {why}; a run that does not fit names the least pool of its batch"))
    })
}
