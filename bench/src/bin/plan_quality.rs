//! Quality of static plans against published planners' results: every graph and budget of `plans/bounds.csv`.
//!
//! `plan_quality [GRAPH-SUBSTRING] [--free] [--work N]`: with the order of first executions kept (as in the file) or free.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result};
use compiler::planner::import_json::import;
use compiler::planner::{Options, plan};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let free = arguments.iter().any(|a| a == "--free");
    let work = arguments.iter().position(|a| a == "--work").and_then(|i| arguments[i + 1].parse().ok());
    let filter = arguments.first().filter(|a| !a.starts_with("--")).cloned().unwrap_or_default();
    let data = std::env::var("DTRC_DATA").unwrap_or_else(|_| "../shared/data".into());
    let folder = PathBuf::from(data).join("plans");
    let text = std::fs::read_to_string(folder.join("bounds.csv"))?;
    for line in text.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        if !cells[0].contains(&filter) {
            continue;
        }
        let graph = std::fs::read_to_string(folder.join("graphs").join(format!("{}.json", cells[0])))?;
        let problem = import(&graph)?.problem;
        let fraction: f64 = cells[2].parse()?;
        let results = std::fs::read_to_string(folder.join("results.csv"))?;
        let budget = results
            .lines()
            .map(|l| l.split(',').collect::<Vec<_>>())
            .find(|r| r[0] == cells[0] && r[2] == cells[2])
            .and_then(|r| r[3].parse::<u64>().ok())
            .context("budget")?;
        let begin = Instant::now();
        let options = Options { keep_order: !free, live_bytes_only: true, work, ..Options::default() };
        let result = plan(&problem, budget, &options);
        let seconds = begin.elapsed().as_secs_f64();
        let best: f64 = cells[5].parse()?;
        match result {
            Ok(p) => println!(
                "{:16} {fraction:.2}  extra {:.6}  best {best:.6}  difference {:+.6}  bound {:.6}  {} ({}), {} steps, {seconds:.1} s",
                cells[0],
                p.extra_fraction(),
                p.extra_fraction() - best,
                p.keep_order_bound.or(p.bound).unwrap_or(0) as f64 / p.base_time as f64,
                p.strategy,
                p.stop.as_str(),
                p.work,
            ),
            Err(e) => println!(
                "{:18} {:4} {fraction:.2} best {best:.6} NOT FOUND {seconds:.2}s {e}",
                cells[0], cells[1]
            ),
        }
    }
    Ok(())
}
