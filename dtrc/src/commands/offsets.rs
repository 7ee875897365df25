//! `dtrc offsets`: the allocator alone.

use crate::{
    cli::Global,
    commands::compile,
    error::{CliError, INFEASIBLE},
    files::read_text,
    units,
};
use compiler::planner::offsets::{
    Limits,
    csv::{Solved, Status, solve_csv},
};
use serde_json::json;
use std::{fmt::Write, path::PathBuf, time::Instant};

/// Arguments of `dtrc offsets`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The file has the columns id,lower,upper,size: a buffer of size bytes that is live from lower up to, but not including, upper.
The answer is ok, infeasible-proved (no placement within the capacity exists) or not-found (the work limit came first); the last two have
exit code 2. Without --capacity the lowest placement found is given.

Examples:
  dtrc offsets A.1048576.csv --capacity 1048576
  dtrc offsets A.1048576.csv --capacity 1M --output placed.csv --json")]
pub struct Args {
    /// The instance.
    file: PathBuf,

    /// Bytes that the placement may take (1048576, 1M).
    #[arg(long, value_name = "N", value_parser = units::absolute)]
    capacity: Option<u64>,

    /// Write the instance with a column `offset`.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Steps that branch and bound may take.
    #[arg(long, value_name = "STEPS")]
    work_limit: Option<u64>,
}

/// Places the buffers and prints the verdict.
pub fn run(args: &Args, global: Global) -> Result<u8, CliError> {
    if let Some(path) = &args.output {
        compile::check_writable(path)?;
    }
    let text = read_text(&args.file)?;
    let mut limits = Limits::default();
    if let Some(search) = args.work_limit {
        limits.search = search;
    }
    let start = Instant::now();
    let solved = solve_csv(&text, args.capacity, limits)
        .map_err(|e| CliError::bad_input(format!("{}: {e}", args.file.display())))?;
    let seconds = start.elapsed().as_secs_f64();
    if let Some(path) = &args.output {
        compile::write_file(path, placed(&solved).as_bytes())?;
    }
    let p = &solved.placement;
    if global.json {
        let object = json!({"schema": 1, "file": args.file, "status": solved.status.as_str(), "buffers": solved.instance.buffers.len(),
            "capacity": args.capacity, "height": p.height, "lower_bound": p.lower_bound, "stop_reason": p.stop.as_str(),
            "seconds": seconds});
        println!("{object}");
    } else {
        println!(
            "{}: {} buffers   height {}   lower bound {} (most bytes live at once)   {}   {seconds:.3} s",
            solved.status.as_str(),
            solved.instance.buffers.len(),
            p.height,
            p.lower_bound,
            p.stop.as_str()
        );
    }
    Ok(if solved.status == Status::Ok { 0 } else { INFEASIBLE })
}

/// The instance with its offsets.
fn placed(solved: &Solved) -> String {
    let mut text = "id,lower,upper,size,offset\n".to_owned();
    let rows = solved.instance.ids.iter().zip(&solved.instance.buffers).zip(&solved.placement.offsets);
    for ((id, b), offset) in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{id},{},{},{},{offset}", b.start, b.end, b.size);
    }
    text
}
