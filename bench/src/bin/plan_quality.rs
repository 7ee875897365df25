//! Quality of static plans: every graph and budget of `plans/bounds.csv` with the order of first executions kept and free, the rows of
//! the minimum-cut partitioner, and every recorded log, each on one core with default limits.
//!
//! `plan_quality [CASE-SUBSTRING] [--part keep|free|torch|logs] [--work N] [--out FILE.csv]`. A row says what the plan costs, what is
//! proven, what it is held against (`reference`) and whether it passes. Logs are held against the best online run: at least half of its
//! distance to the bound stated for the log is to be gained, or to the bound proven here where that is higher (`proven` then).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use bench::cpu_seconds;
use compiler::planner::{Options, PlanError, Problem, import_json, import_log, plan, replay::replay};

/// Differences up to this count as none: the references are printed with six decimals.
const TOLERANCE: f64 = 1e-4;

/// What a plan is held against.
#[derive(Clone, Copy)]
enum Reference {
    /// At most this much extra time.
    AtMost(f64),
    /// Below the middle of the best online run and a bound, or within 0.3 points of the bound. No online run: any plan.
    Distance { online: Option<f64>, bound: f64 },
}

impl Reference {
    /// The same where a higher bound is known.
    fn raised(self, proven: f64) -> Self {
        match self {
            Self::Distance { online, bound } => Self::Distance { online, bound: bound.max(proven) },
            at_most => at_most,
        }
    }

    fn limit(self) -> Option<f64> {
        match self {
            Self::AtMost(limit) => Some(limit + TOLERANCE),
            Self::Distance { online: None, .. } => None,
            Self::Distance { online: Some(online), bound } => {
                Some(f64::midpoint(online, bound).max(bound + 0.003))
            }
        }
    }
}

struct Bench {
    filter: String,
    work: Option<u64>,
    table: String,
    missed: usize,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let option =
        |name: &str| arguments.iter().position(|a| a == name).and_then(|i| arguments.get(i + 1)).cloned();
    let part = option("--part");
    let data = PathBuf::from(std::env::var("DTRC_DATA").unwrap_or_else(|_| "../shared/data".into()));
    let header =
        "part,case,nodes,budget,extra,bound,reference,passes,recomputations,strategy,stop,cpu_seconds\n";
    let mut bench = Bench {
        filter: arguments.first().filter(|a| !a.starts_with("--")).cloned().unwrap_or_default(),
        work: option("--work").and_then(|w| w.parse().ok()),
        table: header.into(),
        missed: 0,
    };
    let wants = |p: &str| part.as_deref().is_none_or(|given| given == p);
    if wants("keep") {
        graphs(&mut bench, &data.join("plans"), true)?;
    }
    if wants("free") {
        graphs(&mut bench, &data.join("plans"), false)?;
    }
    if wants("torch") {
        torch(&mut bench, &data.join("plans"))?;
    }
    if wants("logs") {
        logs(&mut bench, &data.join("simrd"))?;
    }
    println!("{} rows miss their reference", bench.missed);
    if let Some(out) = option("--out") {
        std::fs::write(&out, bench.table).with_context(|| format!("write {out}"))?;
    }
    Ok(())
}

impl Bench {
    fn row(
        &mut self,
        part: &str,
        case: &str,
        problem: &Problem,
        (fraction, budget): (&str, u64),
        keep_order: bool,
        reference: Reference,
    ) -> Result<()> {
        let options = Options { keep_order, live_bytes_only: true, work: self.work, ..Options::default() };
        let begin = cpu_seconds();
        let planned = plan(problem, budget, &options);
        let seconds = cpu_seconds() - begin;
        let nodes = problem.nodes.len();
        let limit = reference.limit();
        let shown = limit.map_or_else(String::new, |l| format!("{l:.6}"));
        let mut row = String::new();
        let passes = match planned {
            Ok(p) => {
                anyhow::ensure!(replay(problem, &p.schedule)?.peak <= budget, "{case}: over the budget");
                let bound = if keep_order { p.keep_order_bound } else { p.bound };
                let bound = bound.unwrap_or(0) as f64 / p.base_time.max(1) as f64;
                let (extra, again) = (p.extra_fraction(), p.schedule.recomputations());
                let proven = reference.raised(bound).limit();
                let passes = match (limit, proven) {
                    (Some(stated), _) if extra <= stated => "yes",
                    (Some(_), Some(proven)) if extra <= proven => "proven",
                    (Some(_), _) => "no",
                    (None, _) => "yes",
                };
                writeln!(
                    row,
                    "{part},{case},{nodes},{fraction},{extra:.6},{bound:.6},{shown},{passes},{again},{},{},{seconds:.2}",
                    p.strategy,
                    p.stop.as_str()
                )?;
                passes != "no"
            }
            Err(PlanError::Infeasible(e)) => {
                // The partitioner's row may exceed the budget itself.
                let word = if e.proved { "infeasible" } else { "not found" };
                let passes = if e.proved { "proven" } else { "no" };
                writeln!(row, "{part},{case},{nodes},{fraction},,,{shown},{passes},,{word},,{seconds:.2}")?;
                e.proved
            }
            Err(e) => return Err(e.into()),
        };
        self.missed += usize::from(!passes);
        print!("{row}");
        self.table.push_str(&row);
        Ok(())
    }
}

/// Lines of a table as maps from the header's names.
fn read(path: &Path) -> Result<Vec<BTreeMap<String, String>>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut lines = text.lines();
    let names: Vec<String> = lines.next().unwrap_or_default().split(',').map(String::from).collect();
    Ok(lines.map(|l| names.iter().cloned().zip(l.split(',').map(String::from)).collect()).collect())
}

fn graph(folder: &Path, name: &str) -> Result<Problem> {
    let text = std::fs::read_to_string(folder.join("graphs").join(format!("{name}.json")))?;
    Ok(import_json::import(&text)?.problem)
}

fn graphs(bench: &mut Bench, folder: &Path, keep_order: bool) -> Result<()> {
    let results = read(&folder.join("results.csv"))?;
    for row in read(&folder.join("bounds.csv"))? {
        let (name, fraction) = (&row["graph"], &row["budget_fraction"]);
        if !name.contains(&bench.filter) {
            continue;
        }
        let same = |r: &&BTreeMap<String, String>| r["graph"] == *name && r["budget_fraction"] == *fraction;
        let budget = results.iter().find(same).context("a budget in bytes")?["budget_bytes"].parse()?;
        let reference = Reference::AtMost(row["best_found"].parse()?);
        let part = if keep_order { "keep" } else { "free" };
        bench.row(part, name, &graph(folder, name)?, (fraction, budget), keep_order, reference)?;
    }
    Ok(())
}

fn torch(bench: &mut Bench, folder: &Path) -> Result<()> {
    for row in read(&folder.join("results.csv"))? {
        let name = &row["graph"];
        if row["method"] != "torch_mincut" || !name.contains(&bench.filter) {
            continue;
        }
        let Ok(extra) = row["extra_compute_fraction"].parse() else { continue };
        let budget = row["budget_bytes"].parse()?;
        let fraction = &row["budget_fraction"];
        bench.row(
            "torch",
            name,
            &graph(folder, name)?,
            (fraction, budget),
            false,
            Reference::AtMost(extra),
        )?;
    }
    Ok(())
}

fn logs(bench: &mut Bench, folder: &Path) -> Result<()> {
    let mut online: BTreeMap<(String, String), f64> = BTreeMap::new();
    for row in read(&folder.join("spec_reimpl_results.csv"))? {
        if row["status"] == "ok" && row["overhead_limit"] == "2.0" {
            let overhead = row["overhead"].parse::<f64>()? - 1.0;
            let best = online.entry((row["model"].clone(), row["ratio"].clone())).or_insert(overhead);
            *best = best.min(overhead);
        }
    }
    let mut names: Vec<PathBuf> =
        std::fs::read_dir(folder.join("logs"))?.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
    names.sort();
    let bounds = read(&folder.join("bounds.csv"))?;
    for path in names {
        let file = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let model = file.split('-').next().unwrap_or_default().to_owned();
        if !model.contains(&bench.filter) {
            continue;
        }
        let log = import_log::import(&std::fs::read_to_string(&path)?)?;
        for ratio in ["0.9", "0.8", "0.7", "0.6", "0.5", "0.4", "0.3"] {
            let row = bounds.iter().find(|b| b["model"] == model && b["ratio"] == ratio);
            let bound: f64 = row.context("a bound")?["lower_bound_clock_over_base"].parse()?;
            let reference = Reference::Distance {
                online: online.get(&(model.clone(), ratio.into())).copied(),
                bound: bound - 1.0,
            };
            let budget = log.budget(ratio.parse()?)?;
            bench.row("logs", &model, &log.problem, (ratio, budget), false, reference)?;
        }
    }
    Ok(())
}
