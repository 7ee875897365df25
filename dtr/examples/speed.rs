//! How fast the machine is: recorded logs against the reference simulator, and growth with the pool.
//!
//! `cargo run --release -p dtr --example speed -- DATA [OUT.csv]`, `DATA` being the folder with `simrd_speed.csv` and `logs`. Times are of
//! one replay on one thread, parsing and hashing excluded: the fastest of many by the wall clock, which no CPU time exceeds.

#[path = "../tests/all/common/linear.rs"]
mod linear;

use std::error::Error;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use std::time::Instant;

use dtr::simrd::{Budget, Log, SimOptions};
use dtr::{Heuristic, Machine, Options};

const RUNS: usize = 15;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let data = args.next().ok_or("usage: speed DATA [OUT.csv]")?;
    let mut table = format!("# cpu: {}\n", cpu());
    reference(Path::new(&data), &mut table)?;
    growth(&mut table)?;
    print!("{table}");
    if let Some(out) = args.next() {
        fs::write(out, table)?;
    }
    Ok(())
}

fn cpu() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or("unknown".to_owned(), |(_, name)| name.trim().to_owned())
}

/// Seconds of the fastest run.
fn best(mut body: impl FnMut() -> Result<(), Box<dyn Error>>, runs: usize) -> Result<f64, Box<dyn Error>> {
    let mut best = f64::INFINITY;
    for _ in 0..runs {
        let since = Instant::now();
        body()?;
        best = best.min(since.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn reference(data: &Path, table: &mut String) -> Result<(), Box<dyn Error>> {
    table
        .push_str("model,heuristic,ratio,op_calls,scores,reference_cpu_s,cpu_s,ops_per_cpu_s,times_faster\n");
    let rows = fs::read_to_string(data.join("simrd_speed.csv"))?;
    let mut logs: Vec<_> = fs::read_dir(data.join("logs"))?
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .map(|entry| entry.path())
        .collect();
    logs.sort();
    for (theirs, heuristic) in [("DTREqClass", Heuristic::DTR_EQ), ("DTR", Heuristic::DTR)] {
        let mut factors = Vec::new();
        for row in rows.lines().map(|line| line.split(',').collect::<Vec<_>>()) {
            if row[1] != theirs || row[2] != "0.5" || row[3] != "list(original)" {
                continue;
            }
            let named = |path: &&std::path::PathBuf| {
                path.file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with(&format!("{}-", row[0])))
            };
            let path = logs.iter().find(named).ok_or_else(|| format!("no log of {}", row[0]))?;
            let log = Log::parse(BufReader::new(File::open(path)?))?;
            let baseline = log.baseline()?;
            let options = SimOptions::new(heuristic, Budget::Ratio(0.5));
            let report = log.replay(baseline, &options)?;
            let machine_options = Options {
                remat_limit: Some(baseline.compute),
                ..Options::new(report.budget_bytes, heuristic)
            };
            let seconds = best(
                || {
                    let mut recorder = dtr::Recorder::default();
                    let mut machine = Machine::new(log.program.clone(), machine_options.clone())?;
                    dtr::drive(&mut machine, &log.schedule, &mut recorder).1?;
                    Ok(())
                },
                RUNS,
            )?;
            let theirs: f64 = row[8].parse()?;
            factors.push(theirs / seconds);
            let ops = report.op_calls + report.remats;
            table.push_str(&format!(
                "{},{heuristic},0.5,{ops},{},{theirs},{seconds:.6},{:.0},{:.0}\n",
                row[0],
                report.scores,
                ops as f64 / seconds,
                theirs / seconds
            ));
        }
        let mean = (factors.iter().map(|factor| factor.ln()).sum::<f64>() / factors.len() as f64).exp();
        let least = factors.iter().copied().fold(f64::INFINITY, f64::min);
        table.push_str(&format!(
            "geometric mean,{heuristic},,,,,,,{mean:.0}\nleast,{heuristic},,,,,,,{least:.0}\n"
        ));
    }
    Ok(())
}

/// A linear network of 65,536 layers under growing budgets: the pool is about the budget, every execution beyond it chooses once.
fn growth(table: &mut String) -> Result<(), Box<dyn Error>> {
    table.push_str("layers,heuristic,pool,executions,cpu_s,executions_per_cpu_s\n");
    let layers = 65_536;
    let (program, schedule) = linear::linear(layers);
    let heuristic = Heuristic::DTR_EQ;
    for budget in [512, 1024, 2048, 4096, 8192, 16384, 32768] {
        let mut executions = 0;
        let seconds = best(
            || {
                let mut machine = Machine::new(program.clone(), Options::new(budget, heuristic))?;
                dtr::drive(&mut machine, &schedule, &mut ()).1?;
                executions = machine.stats().firsts + machine.stats().remats;
                Ok(())
            },
            1,
        )?;
        table.push_str(&format!(
            "{layers},{heuristic},{budget},{executions},{seconds:.4},{:.0}\n",
            executions as f64 / seconds
        ));
    }
    Ok(())
}
