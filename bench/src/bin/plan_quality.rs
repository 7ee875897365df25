//! Quality of static plans against published planners' results: every graph and budget of `plans/bounds.csv`.
//!
//! `plan_quality [GRAPH-SUBSTRING] [--free] [--work N]`: with the order of first executions kept (as in the file) or free.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result};
use compiler::planner::problem::{Implementation, Node, Problem, Value};
use compiler::planner::{Options, plan};

fn load(path: &PathBuf) -> Result<Problem> {
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let nodes = json["nodes"].as_array().context("nodes")?;
    let id = |v: &serde_json::Value| v.as_u64().unwrap_or(0) as u32;
    let outputs: Vec<u32> =
        json["outputs"].as_array().map(|o| o.iter().map(id).collect()).unwrap_or_default();
    let mut problem = Problem { alignment: 1, ..Problem::default() };
    for node in nodes {
        let this = id(&node["id"]);
        let param = node["is_param"].as_bool().unwrap_or(false);
        let name = format!("{}:{}", this, node["name"].as_str().unwrap_or(""));
        let resident = param || outputs.contains(&this);
        problem.values.push(Value {
            name: name.clone(),
            producer: (!param).then_some(problem.nodes.len() as u32),
            bytes: if resident { 0 } else { node["bytes"].as_u64().unwrap_or(0) },
            view_of: None,
            resident,
            keep_to_end: false,
        });
        if !param {
            let mut inputs: Vec<u32> = node["inputs"].as_array().context("inputs")?.iter().map(id).collect();
            inputs.sort_unstable();
            inputs.dedup();
            problem.nodes.push(Node {
                name,
                inputs,
                outputs: vec![this],
                implementations: vec![Implementation {
                    workspace: 0,
                    time: node["cost"].as_f64().unwrap_or(0.0).round() as u64,
                }],
                overwrites: vec![],
                once: false,
                required: true,
            });
        }
    }
    Ok(problem)
}

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
        let problem = load(&folder.join("graphs").join(format!("{}.json", cells[0])))?;
        let fraction: f64 = cells[2].parse()?;
        let results = std::fs::read_to_string(folder.join("results.csv"))?;
        let budget = results
            .lines()
            .map(|l| l.split(',').collect::<Vec<_>>())
            .find(|r| r[0] == cells[0] && r[2] == cells[2])
            .and_then(|r| r[3].parse::<u64>().ok())
            .context("budget")?;
        let begin = Instant::now();
        let options = Options { keep_order: !free, work, ..Options::default() };
        let result = plan(&problem, budget, &options);
        let seconds = begin.elapsed().as_secs_f64();
        let best: f64 = cells[5].parse()?;
        match result {
            Ok(p) => println!(
                "{:18} {:4} {fraction:.2} extra {:.6} best {best:.6} bound {} diff {:+.6} {} {:.2}s keepall {} frag {:.4}",
                cells[0],
                cells[1],
                p.extra_fraction(),
                cells[4],
                p.extra_fraction() - best,
                p.strategy,
                seconds,
                p.keep_all.live_peak,
                p.arena as f64 / p.live_peak as f64,
            ),
            Err(e) => println!(
                "{:18} {:4} {fraction:.2} best {best:.6} NOT FOUND {seconds:.2}s {e}",
                cells[0], cells[1]
            ),
        }
    }
    Ok(())
}
