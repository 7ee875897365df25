//! What views and overwrites are worth to the planner: training steps of generated models planned with both, and with either one off.
//!
//! `facts [MODEL-SUBSTRING] [--out FILE.csv]`. Budgets are shares of the arena that keep-all needs with both: without one of them a view
//! is a copy of its own bytes, or an output never takes over an input's storage, and the same budget costs more time. Bytes are
//! transient: parameters and optimizer state are left out.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use bench::cpu_seconds;
use compiler::cost::{CostModel, DeviceProfile};
use compiler::import::{Options as ImportOptions, import_bytes};
use compiler::lower::lower;
use compiler::pipeline::programs;
use compiler::planner::{Options, PlanError, Problem, plan};
use compiler::train::{Optimizer, TrainOptions};
use graph::Graph;
use onnx_models::{Common, Mlp, ModelProto, ResNet, Transformer, UNet};

/// Shares of keep-all's arena.
const BUDGETS: [u64; 3] = [80, 60, 45];

/// What the planner may use.
#[derive(Clone, Copy)]
struct Facts {
    name: &'static str,
    views: bool,
    overwrites: bool,
}

const ALL: Facts = Facts { name: "views and overwrites", views: true, overwrites: true };
const FACTS: [Facts; 4] = [
    ALL,
    Facts { name: "no views", views: false, overwrites: true },
    Facts { name: "no overwrites", views: true, overwrites: false },
    Facts { name: "neither", views: false, overwrites: false },
];

fn models() -> Vec<(&'static str, ModelProto)> {
    let common = Common { batch: 16, dynamic: false, loss: true, seed: 0 };
    vec![
        (
            "mlp",
            Mlp { inputs: 256, hidden: vec![512; 8], classes: 10 }.build(&Common { batch: 512, ..common }),
        ),
        ("resnet20", ResNet { depth: 20, width: 16, classes: 10, size: 32, channels: 3 }.build(&common)),
        ("unet", UNet { levels: 3, width: 16, classes: 2, size: 64, channels: 3 }.build(&common)),
        (
            "transformer",
            Transformer { layers: 4, width: 128, heads: 4, vocabulary: 512, sequence: 128 }.build(&common),
        ),
    ]
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let filter = arguments.first().filter(|a| !a.starts_with("--")).cloned().unwrap_or_default();
    let out = arguments.iter().position(|a| a == "--out").and_then(|i| arguments.get(i + 1)).cloned();
    let mut table =
        String::from("model,nodes,facts,keep_all_bytes,budget_percent,budget_bytes,extra,seconds\n");
    for (name, model) in models().into_iter().filter(|m| m.0.contains(&filter)) {
        let graph = training_graph(name, &model)?;
        let problem = transient(&graph)?;
        let whole = plan(&problem, u64::MAX, &Options::default())?.keep_all.arena;
        for facts in FACTS {
            let problem = restricted(&graph, &problem, facts)?;
            let keep_all = plan(&problem, u64::MAX, &Options::default())?.keep_all.arena;
            for percent in BUDGETS {
                let budget = whole / 100 * percent;
                let begin = cpu_seconds();
                let extra = match plan(&problem, budget, &Options::default()) {
                    Ok(planned) => format!("{:.6}", planned.extra_fraction()),
                    Err(PlanError::Infeasible(refusal)) if refusal.proved => "impossible".into(),
                    Err(PlanError::Infeasible(_)) => "not found".into(),
                    Err(error) => return Err(error.into()),
                };
                let seconds = cpu_seconds() - begin;
                let mut row = String::new();
                let nodes = problem.nodes.len();
                writeln!(
                    row,
                    "{name},{nodes},{},{keep_all},{percent},{budget},{extra},{seconds:.2}",
                    facts.name
                )?;
                print!("{row}");
                table.push_str(&row);
            }
        }
    }
    if let Some(out) = out {
        std::fs::write(&out, table).with_context(|| format!("write {out}"))?;
    }
    Ok(())
}

/// The training step of a model with its loss inside.
fn training_graph(name: &str, model: &ModelProto) -> Result<Graph> {
    let bytes = onnx_models::to_bytes(model)?;
    let imported = import_bytes(name, bytes.into(), &ImportOptions::default())?;
    let options = TrainOptions {
        loss: None,
        output: None,
        label: "target".into(),
        class_axis: None,
        ignore_index: None,
        optimizer: Optimizer::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 },
        clip_norm: None,
        accumulate: 1,
        trainable: imported.candidates.iter().map(ToString::to_string).collect(),
        amp: None,
    };
    let (graphs, _) = programs(&imported.graph, Some(&options), None)?;
    Ok(graphs.into_iter().next().context("a training program")?.1)
}

/// The planning problem without the state section's bytes.
fn transient(graph: &Graph) -> Result<Problem> {
    Ok(lower(graph, &CostModel::estimated(DeviceProfile::cpu()), 0)?)
}

/// The problem without what is not allowed.
fn restricted(graph: &Graph, problem: &Problem, facts: Facts) -> Result<Problem> {
    let mut problem = problem.clone();
    if !facts.views {
        // Values of the problem are those of the graph.
        for (value, known) in problem.values.iter_mut().zip(&graph.values).filter(|v| v.0.view_of.is_some()) {
            let bytes = known.ty.bytes().context("a fixed size")?;
            (value.view_of, value.bytes) = (None, bytes.next_multiple_of(problem.alignment));
        }
    }
    if !facts.overwrites {
        problem.nodes.iter_mut().for_each(|n| n.overwrites.clear());
    }
    Ok(problem)
}
