//! `dtrc diff`: two plans side by side.

use crate::{cli::Global, commands::show::read_plan, error::CliError};
use serde_json::{Map, json};
use std::path::PathBuf;

/// Arguments of `dtrc diff`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A plan file.
    first: PathBuf,

    /// Another one.
    second: PathBuf,
}

/// Reads, validates and compares both plans.
pub fn run(args: &Args, global: Global) -> Result<u8, CliError> {
    let (a, replays_a) = read_plan(&args.first)?;
    let (b, replays_b) = read_plan(&args.second)?;
    let diff = plan::diff((&a, &replays_a), (&b, &replays_b));
    if !global.json {
        print!("{diff}");
        return Ok(0);
    }
    let programs = diff.programs.iter().map(|p| {
        let numbers: Map<_, _> = p.numbers.iter().map(|(what, x, y)| (what.replace([' ', '-'], "_").replace(',', ""), json!([x, y]))).collect();
        let names = |list: &[(String, u32)]| list.iter().map(|(n, k)| json!({"node": n, "times": k})).collect::<Vec<_>>();
        json!({"kind": p.kind.to_string(), "where": p.guard.to_string(), "dynamic": p.dynamic, "numbers": numbers, "recomputed_in_both": p.both,
            "recomputed_only_in_first": names(&p.only_first), "recomputed_only_in_second": names(&p.only_second)})
    });
    let unpaired = diff.unpaired.iter().map(
        |(first, kind, guard)| json!({"kind": kind.to_string(), "where": guard.to_string(), "only_in": if *first { "first" } else { "second" }}),
    );
    let object = json!({"schema": 1, "first": args.first, "second": args.second, "same_numerics": diff.same_numerics,
        "same_state": diff.same_state, "programs": programs.collect::<Vec<_>>(), "unpaired": unpaired.collect::<Vec<_>>()});
    println!("{object}");
    Ok(0)
}
