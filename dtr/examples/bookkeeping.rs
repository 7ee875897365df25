//! What deciding costs beside the steps that are decided over: CPU seconds of one replay over the log's own time there.
//!
//! `cargo run --release -p dtr --example bookkeeping -- DATA [OUT.csv]`, `DATA` being the folder with `logs`. Parsing and hashing are
//! excluded; the mean of as many runs as take a second, because the system counts in ticks.

use std::error::Error;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;

use dtr::simrd::{Budget, Log, SimOptions};
use dtr::{Heuristic, Machine, Options};

/// Seconds of runs that are averaged.
const ENOUGH: f64 = 1.0;
const BATCH: u32 = 50;
const RATIO: f64 = 0.5;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let data = args.next().ok_or("usage: bookkeeping DATA [OUT.csv]")?;
    let mut table =
        "log,heuristic,ratio,executions,cpu_s,log_s,share_percent,microseconds_per_execution\n".to_owned();
    let mut logs: Vec<_> = fs::read_dir(Path::new(&data).join("logs"))?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    logs.sort();
    for path in logs {
        let log = Log::parse(BufReader::new(File::open(&path)?))?;
        let baseline = log.baseline()?;
        let report = log.replay(baseline, &SimOptions::new(Heuristic::DTR_EQ, Budget::Ratio(RATIO)))?;
        let options = Options {
            remat_limit: Some(baseline.compute),
            ..Options::new(report.budget_bytes, Heuristic::DTR_EQ)
        };
        let (mut runs, since) = (0u32, cpu_seconds());
        while cpu_seconds() - since < ENOUGH {
            for _ in 0..BATCH {
                let mut machine = Machine::new(log.program.clone(), options.clone())?;
                dtr::drive(&mut machine, &log.schedule, &mut ()).1?;
            }
            runs += BATCH;
        }
        let mean = (cpu_seconds() - since) / f64::from(runs);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let executions = report.op_calls + report.remats;
        let step = report.total_compute as f64 / 1e9;
        table.push_str(&format!(
            "{},{},{RATIO},{executions},{mean:.6},{step:.4},{:.3},{:.3}\n",
            name.split('-').next().unwrap_or_default(),
            Heuristic::DTR_EQ,
            100.0 * mean / step,
            1e6 * mean / executions as f64
        ));
    }
    print!("{table}");
    if let Some(out) = args.next() {
        fs::write(out, table)?;
    }
    Ok(())
}

/// Seconds that this thread has spent on a core.
fn cpu_seconds() -> f64 {
    let text = fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanoseconds = text.split_whitespace().next().and_then(|n| n.parse::<u64>().ok());
    nanoseconds.map_or(0.0, |n| n as f64 / 1e9)
}
