//! `dtrc simulate`: online DTR on a recorded operator log.

use crate::{cli::Global, commands::compile, error::CliError, files::check_readable, units};
use dtr::{
    Dealloc, Heuristic,
    simrd::{Budget, ParseError, Report, SimOptions, SimulateError, Status, simulate, write_trace},
};
use serde_json::{Map, Value, json};
use std::{
    fs::File,
    io::{BufReader, ErrorKind},
    path::PathBuf,
    str::FromStr,
};

/// Arguments of `dtrc simulate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The replay starts with the log's START, drops what the heuristic says whenever the budget is full, and recomputes what is read again.
It ends ok, oom (what one operator needs at once does not fit) or thrash (over the overhead limit); each is a result, with exit code 0.
Costs are the log's nanoseconds.

Heuristics: dtr, dtr-eq, dtr-local, dtr-union, lru, size, msps, random, e-star, and the ablation grid ab-{e,eq,local,none}[-size][-stale].

Examples:
  dtrc simulate resnet32.log --heuristic dtr-eq --budget-ratio 0.5
  dtrc simulate unet.log --heuristic dtr --budget-ratio 0.3 --overhead-limit none --order-remats --json")]
pub struct Args {
    /// The log: one JSON object a line.
    log: PathBuf,

    /// What is evicted first.
    #[arg(long, default_value = "dtr-eq", value_parser = |s: &str| Heuristic::from_str(s))]
    heuristic: Heuristic,

    /// Memory as a share of the peak of the run without a budget: 0.5 for half of it.
    #[arg(long, value_name = "R", required_unless_present = "budget_bytes", conflicts_with = "budget_bytes", value_parser = units::ratio)]
    budget_ratio: Option<f64>,

    /// Memory in bytes (4G, 512M, 1000000).
    #[arg(long, value_name = "N", value_parser = units::absolute)]
    budget_bytes: Option<u64>,

    /// What happens to a tensor with its last reference.
    #[arg(long, value_enum, default_value_t = DeallocName::Eager)]
    dealloc: DeallocName,

    /// Give up as thrashing beyond this many times the compute of the run without a budget; none: never.
    #[arg(long, value_name = "X", default_value = "2.0")]
    overhead_limit: Limit,

    /// Recompute what an operator needs in the order of its need, so that locks cannot starve nested recomputation. With dtr-eq and no
    /// overhead limit, unet then passes at 0.3, resnet32 at 0.1, inceptionv4 at 0.19 and transformer at 0.128 (its floor is 0.095).
    #[arg(long)]
    order_remats: bool,

    /// Look at about the square root of the pool only, drawn at random, as the paper's prototype does.
    #[arg(long)]
    sample: bool,

    /// Ignore tensors smaller than this share of the mean size (the prototype: 0.01).
    #[arg(long, value_name = "SHARE", value_parser = units::share)]
    skip_small: Option<f64>,

    /// Seed of the random heuristic and of --sample.
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Write the events, one a line: C first execution, R repeated one, E eviction, X release of the dead, P pin.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// `--dealloc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DeallocName {
    /// It is evicted at once and may be recomputed.
    Eager,
    /// It is given up for good.
    Banish,
    /// Nothing.
    Ignore,
    /// As eager, and what no recomputation can read any more is freed.
    Retire,
}

/// `--overhead-limit`: a factor or `none`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Limit(Option<f64>);

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Limit, String> {
        if text == "none" {
            return Ok(Limit(None));
        }
        let limit: f64 = text.parse().map_err(|_| "give a factor such as 2.0, or none".to_owned())?;
        if limit.is_finite() && limit >= 1.0 {
            Ok(Limit(Some(limit)))
        } else {
            Err("the limit is a factor of at least 1, or none".to_owned())
        }
    }
}

impl From<SimulateError> for CliError {
    fn from(e: SimulateError) -> Self {
        match e {
            SimulateError::Options(_) | SimulateError::Setup(_) => CliError::usage(e.to_string()),
            SimulateError::Parse(ParseError::Io { line, source })
                if source.kind() == ErrorKind::InvalidData =>
            {
                CliError::bad_input(format!("line {line}: not text; a log has one JSON object a line"))
            }
            SimulateError::Parse(_) | SimulateError::Machine { .. } => CliError::bad_input(e.to_string()),
        }
    }
}

/// Replays the log and prints what it came to.
pub fn run(args: &Args, global: Global) -> Result<u8, CliError> {
    let budget = match (args.budget_ratio, args.budget_bytes) {
        (_, Some(bytes)) => Budget::Bytes(bytes),
        (ratio, None) => Budget::Ratio(ratio.unwrap_or(1.0)),
    };
    if let Some(path) = &args.trace {
        compile::check_writable(path)?;
    }
    let options = SimOptions {
        dealloc: match args.dealloc {
            DeallocName::Eager => Dealloc::Eager,
            DeallocName::Banish => Dealloc::Banish,
            DeallocName::Ignore => Dealloc::Ignore,
            DeallocName::Retire => Dealloc::Retire,
        },
        overhead_limit: args.overhead_limit.0,
        order_remats: args.order_remats,
        sample: args.sample,
        skip_small: args.skip_small,
        seed: args.seed,
        trace: args.trace.is_some(),
        ..SimOptions::new(args.heuristic, budget)
    };
    check_readable(&args.log)?;
    let file = File::open(&args.log).map_err(|e| CliError::disk(args.log.display(), &e))?;
    let report = simulate(BufReader::with_capacity(1 << 16, file), &options).map_err(|e| {
        let e = CliError::from(e);
        CliError { message: format!("{}: {}", args.log.display(), e.message), ..e }
    })?;
    if let Some(path) = &args.trace {
        let mut text = Vec::new();
        write_trace(&report.trace, &mut text).map_err(|e| CliError::failed(e.to_string()))?;
        compile::write_file(path, &text)?;
    }
    if global.json {
        println!("{}", object(args, &report)?);
    } else {
        print_report(&report);
    }
    Ok(0)
}

fn object(args: &Args, report: &Report) -> Result<Value, CliError> {
    let mut object = Map::new();
    object.insert("schema".to_owned(), json!(1));
    object.insert("log".to_owned(), json!(args.log));
    match serde_json::to_value(report) {
        Ok(Value::Object(fields)) => object.extend(fields),
        Ok(_) => {}
        Err(e) => return Err(CliError::failed(e.to_string())),
    }
    Ok(Value::Object(object))
}

fn print_report(r: &Report) {
    let status = match r.status {
        Status::Ok => "ok",
        Status::Oom => "oom",
        Status::Thrash => "thrash",
    };
    println!("{status}   {}   overhead {:.4}", r.heuristic, r.overhead);
    if let Some(why) = &r.failure {
        println!("  {why}");
    }
    let share = |n: u64, of: u64| n as f64 / of.max(1) as f64 * 100.0;
    println!(
        "  budget {} ({:.1} % of {})   peak {}",
        units::bytes(r.budget_bytes),
        share(r.budget_bytes, r.baseline_peak_bytes),
        units::bytes(r.baseline_peak_bytes),
        units::bytes(r.peak_bytes)
    );
    println!(
        "  compute {:.3} ms, of it repeated {:.3} ms in {} executions",
        r.total_compute as f64 / 1e6,
        r.remat_compute as f64 / 1e6,
        r.remats
    );
    println!("  evictions {}, of them dead {}", r.evictions, r.evictions_eager);
    println!("  trace {}", r.trace_sha256);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_factors_or_none() {
        assert_eq!("none".parse(), Ok(Limit(None)));
        assert_eq!("2.0".parse(), Ok(Limit(Some(2.0))));
        for bad in ["", "two", "0.5", "inf", "NaN"] {
            assert!(bad.parse::<Limit>().is_err(), "{bad}");
        }
    }
}
