//! File tests by stage: `tests/filetests/STAGE/NAME.txt` holds an input, a line `----`, and what the stage makes of it.
//!
//! `DTRC_BLESS=1 cargo test -p tests --test all filetests` writes the expectations anew; `DTRC_ONLY=part-of-a-path` runs a part. A plan is
//! validated and an offset assignment checked before either can be written down. Inputs are programs as text ([`tests::program`]);
//! those of `offsets` are instances as CSV.

use compiler::{
    cost::{CostModel, DeviceProfile},
    import::{self, import_bytes, trainable},
    pipeline::{Budget, Request, plan_programs, programs, rewritten_forward},
    planner::{
        Options,
        offsets::{Limits, check::validate as check_offsets, csv::solve_csv},
    },
    train::{Loss, Optimizer, TrainOptions, training_step},
};
use graph::{Graph, StateKind};
use ops::{Registry, cpu::interpret};
use plan::{Device, ProgramKind};
use rewrite::{Costs, Level, rewrite};
use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};
use tests::{program::Program, tiny};

/// What a stage makes of an input.
type Stage = fn(&str) -> Result<String, String>;

const STAGES: &[(&str, Stage)] = &[
    ("import", import_stage),
    ("shapes", shapes),
    ("autodiff", autodiff),
    ("rewrite", rewrite_stage),
    ("plan", plan_stage),
    ("offsets", offsets),
    ("run", run),
    ("error", errors),
];
const RULE: &str = "----\n";

fn remark_lines(remarks: &[import::Remark]) -> String {
    remarks.iter().map(|r| format!("remark {}: {}\n", r.node, r.text)).collect()
}

/// The graph of a model.
fn import_stage(text: &str) -> Result<String, String> {
    let p = Program::parse(text)?;
    let mut options = import::Options::default();
    if let Some(dims) = p.directives.get("dims") {
        let all = dims.split_whitespace().map(import::parse_binding);
        options.dims = all.collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    }
    let imported = import_bytes("model", p.model()?.into(), &options).map_err(|e| e.to_string())?;
    let chosen =
        trainable::select(&imported.graph, &imported.candidates, &[], &[]).map_err(|e| e.to_string())?;
    let names: Vec<&str> = chosen.iter().map(|n| &**n).collect();
    Ok(format!("{}{}trainable {}\n", imported.graph, remark_lines(&imported.remarks), names.join(", ")))
}

/// A graph whose types are inferred.
fn shapes(text: &str) -> Result<String, String> {
    let g = Program::parse(text)?.graph()?;
    Ok(g.to_string())
}

fn parameters(g: &Graph) -> Vec<String> {
    g.states.iter().filter(|s| s.kind == StateKind::Parameter).map(|s| s.name.to_string()).collect()
}

fn train_options(p: &Program, g: &Graph) -> Result<TrainOptions, String> {
    let word = |name: &str| p.directives.get(name).map(String::as_str);
    let optimizer = match word("optimizer").unwrap_or("sgd") {
        "sgd" => Optimizer::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
        "momentum" => Optimizer::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 },
        "adam" => {
            Optimizer::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, decoupled: false }
        }
        other => return Err(format!("no optimizer {other}")),
    };
    let clip = word("clip-norm").map(|x| x.parse().map_err(|_| "clip-norm is no number".to_owned()));
    Ok(TrainOptions {
        loss: Some(Loss::Output("loss".to_owned())),
        output: None,
        label: "target".to_owned(),
        ignore_index: None,
        class_axis: None,
        optimizer,
        clip_norm: clip.transpose()?,
        accumulate: 1,
        trainable: parameters(g),
        amp: None,
    })
}

/// The gradients of the parameters.
fn autodiff(text: &str) -> Result<String, String> {
    let p = Program::parse(text)?;
    let g = p.graph()?;
    let step =
        training_step(&g, &train_options(&p, &g)?, ProgramKind::Train, true).map_err(|e| e.to_string())?;
    let mut out = step.graph.to_string();
    for (name, v) in &step.gradients {
        let _ = writeln!(out, "gradient of {name}: {}", step.graph.value(*v).name);
    }
    for name in &step.unreached {
        let _ = writeln!(out, "no gradient of {name}");
    }
    Ok(out)
}

/// A program after rewriting at a `level`, `stage` before (with a loss and gradients to come) or after, and what was done.
fn rewrite_stage(text: &str) -> Result<String, String> {
    let p = Program::parse(text)?;
    let g = p.graph()?;
    let word = |name: &str| p.directives.get(name).map(String::as_str);
    let level = match word("level") {
        Some("exact") => Level::Exact,
        Some("fast") => Level::Fast,
        Some("memory") => Level::Memory,
        other => return Err(format!("no level {other:?}")),
    };
    let costs = CostModel::estimated(DeviceProfile::cpu());
    let (graph, report) = match word("stage") {
        Some("before") => {
            let done = rewritten_forward(&g, &train_options(&p, &g)?, level, &costs);
            let (graph, _, report) = done.map_err(|e| e.to_string())?;
            (graph, report)
        }
        Some("after") => {
            let time = |g: &Graph, n: &graph::Node| costs.time(g, n);
            let done = rewrite(&g, level, rewrite::Stage::After, &[], Costs { time: &time })
                .map_err(|e| e.to_string())?;
            (done.graph, done.report)
        }
        other => return Err(format!("no stage {other:?}")),
    };
    graph::verify(&graph).map_err(|e| e.to_string())?;
    let mut out = graph.to_string();
    // Times are the cost model's, which may change.
    for f in &report.fired {
        let _ = writeln!(out, "fired {} at {}, {} bytes", f.rule, f.at, f.bytes);
    }
    for m in &report.missed {
        let _ = writeln!(out, "not fired {} at {}: {}", m.rule, m.at, m.why);
    }
    Ok(out)
}

/// The plan of a training step, of a program or of a generated model (`model NAME`).
fn plan_stage(text: &str) -> Result<String, String> {
    let p = Program::parse(text)?;
    let graphs = match p.directives.get("model") {
        Some(file) => {
            let imported = tiny::imported(file);
            let options = tiny::train_options(&imported, train_options(&p, &imported.graph)?.optimizer);
            programs(&imported.graph, Some(&options), None)
        }
        None => {
            let g = p.graph()?;
            programs(&g, Some(&train_options(&p, &g)?), None)
        }
    };
    let (graphs, _) = graphs.map_err(|e| e.to_string())?;
    let budget = p.directives.get("budget").ok_or("a budget is missing")?;
    let budget = match budget.strip_suffix('%') {
        Some(n) => Budget::OfKeepAll(n.parse::<f64>().map_err(|e| e.to_string())? / 100.0),
        None => Budget::Bytes(budget.parse().map_err(|_| "the budget is no number".to_owned())?),
    };
    let request = Request {
        model: "filetest",
        accumulate: 1,
        device: Device::Cpu,
        weight_hash: &|_| None,
        costs: &CostModel::estimated(DeviceProfile::cpu()),
        planner: &Options { work: Some(50_000), ..Options::default() },
    };
    let plan = plan_programs(graphs, budget, &request).map_err(|e| e.to_string())?.plan;
    // A wrong plan is a bug, never an expectation.
    let replays = plan::validate(&plan, &Registry).unwrap_or_else(|e| panic!("a wrong plan: {e}"));
    Ok(plan::show(&plan, &replays))
}

/// Addresses of an instance; `# capacity N` in its first line.
fn offsets(text: &str) -> Result<String, String> {
    let capacity = text.lines().next().and_then(|l| l.strip_prefix("# capacity "));
    let capacity = capacity.map(|c| c.parse::<u64>().map_err(|_| "the capacity is no number".to_owned()));
    let csv: String = text.lines().filter(|l| !l.starts_with('#')).map(|l| format!("{l}\n")).collect();
    let solved = solve_csv(&csv, capacity.transpose()?, Limits::default()).map_err(|e| e.to_string())?;
    let (p, buffers) = (&solved.placement, &solved.instance.buffers);
    check_offsets(buffers, &p.offsets, p.height).unwrap_or_else(|e| panic!("wrong addresses: {e:?}"));
    let mut out = format!("{} height {} lower bound {}\n", solved.status.as_str(), p.height, p.lower_bound);
    for (b, at) in buffers.iter().zip(&p.offsets) {
        let _ = writeln!(out, "{} to {}: {} bytes at {at}", b.start, b.end, b.size);
    }
    Ok(out)
}

/// The results of a program whose inputs have elements.
fn run(text: &str) -> Result<String, String> {
    let p = Program::parse(text)?;
    let g = p.graph()?;
    let mut given = BTreeMap::new();
    for d in p.declared.iter().filter(|d| d.kind != "constant") {
        let v = g.values.iter().position(|v| *v.name == *d.name).ok_or("an input is missing")?;
        given.insert(graph::ValueId(v as u32), d.literal()?);
    }
    let all = interpret(&g, &given).map_err(|e| e.to_string())?;
    let mut out = String::new();
    for v in &g.outputs {
        let elements: Vec<String> = all[v].to_floats().iter().map(|x| format!("{x:.6}")).collect();
        let _ = writeln!(out, "{} {} {}", g.value(*v).name, g.ty(*v), elements.join(" "));
    }
    Ok(out)
}

/// A model that is refused; `stage` says by which stage, import unless told otherwise.
fn errors(text: &str) -> Result<String, String> {
    let stage = text.lines().find_map(|l| l.strip_prefix("stage ")).unwrap_or("import");
    let (_, f) = STAGES.iter().find(|(name, _)| *name == stage).ok_or("no such stage")?;
    match f(text) {
        Err(e) => Ok(format!("{e}\n")),
        Ok(out) => Err(format!("it is not refused:\n{out}")),
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    out.sort();
    out
}

#[test]
fn files_give_what_they_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("filetests");
    let bless = std::env::var_os("DTRC_BLESS").is_some();
    let only = std::env::var("DTRC_ONLY").unwrap_or_default();
    let mut failures = Vec::new();
    for (stage, f) in STAGES {
        let all = files(&root.join(stage));
        assert!(all.len() >= 3, "{stage} has {} files", all.len());
        for path in all.iter().filter(|p| p.display().to_string().contains(&only)) {
            let text = fs::read_to_string(path).unwrap();
            let (input, want) = text.split_once(RULE).unwrap_or((&text, ""));
            let got = match f(input) {
                Ok(out) => out,
                Err(e) if *stage != "error" && !e.contains("no such stage") => format!("error: {e}\n"),
                Err(e) => {
                    failures.push(format!("{}: {e}", path.display()));
                    continue;
                }
            };
            // Trailing blanks are no part of an expectation.
            let got: String = got.lines().map(|l| format!("{}\n", l.trim_end())).collect();
            if bless {
                fs::write(path, format!("{input}{RULE}{got}")).unwrap();
            } else if got != want {
                failures.push(format!("{}:\n--- expected\n{want}--- found\n{got}", path.display()));
            }
        }
    }
    let how =
        "if the new results are right, bless them: DTRC_BLESS=1 cargo test -p tests --test all filetests";
    assert!(failures.is_empty(), "{}\n{how}", failures.join("\n"));
}
