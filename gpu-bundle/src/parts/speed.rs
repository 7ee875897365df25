//! `speed MODEL`: step times at shares of keep-all, predicted against measured, and the kernels that are far from the bandwidth floor.
//!
//! The first item runs keep-all by shipped figures and measures every call; plans of the others are made with what was measured.

use super::held;
use crate::{
    Bundle,
    models::{Model, topology},
    part::{Clock, Part, write_aside},
    seeded::batch,
    trial::{Data, Planned, costs, figures, load, median, plans, step},
};
use compiler::cost::{CostModel, key};
use plan::{Device, Plan, Step};
use rewrite::Level;
use runtime::{RunOptions, StepInputs};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, path::PathBuf, time::Instant};

/// Shares of keep-all.
const SHARES: [f64; 3] = [1.0, 0.6, 0.4];
/// Steps that are timed, after two that are not.
const STEPS: usize = 10;
/// A kernel below this share of the bandwidth floor is listed.
const FLOOR: f64 = 0.6;

/// One model at all shares.
pub fn run(bundle: &Bundle, part: &mut Part, model: &str) -> Result<(), String> {
    let file = bundle.folder.join(format!("results/costs-{model}.json"));
    for share in SHARES {
        let (estimated, clock) = (costs(&part.results.device), part.clock());
        let bandwidth = figures(&part.results.device).map(|f| f.bandwidth);
        let item = format!("float32 at {}%", share * 100.0);
        part.item(&item, || held(one(bundle, model, share, &estimated, bandwidth, &file, clock)))?;
    }
    for share in SHARES {
        let why = "mixed precision (--amp) is not implemented on CUDA yet";
        part.item(&format!("bf16 at {}%", share * 100.0), || crate::part::Outcome::Not(why.to_owned()))?;
    }
    Ok(())
}

fn one(
    bundle: &Bundle,
    name: &str,
    share: f64,
    estimated: &CostModel,
    bandwidth: Option<u64>,
    file: &PathBuf,
    clock: Clock,
) -> Result<Value, String> {
    let measured: Option<CostModel> =
        fs::read_to_string(file).ok().and_then(|t| serde_json::from_str(&t).ok());
    let costs = measured.as_ref().unwrap_or(estimated);
    // What is rewritten must not depend on what was measured: a budget would get another program.
    let (model, full) = topology(&bundle.folder, name, Level::Memory, estimated)?;
    let planned = plans(&model, Device::Cuda, &[share], costs, None)?.remove(0);
    let data = batch(&planned.plan.programs[0], full.classes, full.ones, 1);
    let (mut figures, medians) = measure(bundle, &model, &planned, &data, bandwidth, clock)?;
    if share >= 1.0 {
        let costs = CostModel { measured: medians, ..estimated.clone() };
        let text = serde_json::to_string_pretty(&costs).map_err(|e| e.to_string())?;
        write_aside(file, text.as_bytes())?;
    }
    figures["share"] = json!(share);
    figures["costs"] = json!(if measured.is_some() { "measured" } else { "estimated" });
    figures["rewrites"] = json!("memory");
    figures["sizes"] = json!(full.dims);
    figures["optimizer"] = json!("sgd");
    Ok(figures)
}

/// Times a plan's steps; its figures, and nanoseconds of one execution by kind of node.
pub fn measure(
    bundle: &Bundle,
    model: &Model,
    planned: &Planned,
    data: &Data,
    bandwidth: Option<u64>,
    clock: Clock,
) -> Result<(Value, BTreeMap<String, u64>), String> {
    let (plan, c) = (&planned.plan, &planned.plan.programs[0].certificate);
    let (mut times, calls, loss) = times(bundle, model, data, plan, clock)?;
    let program = &plan.programs[0];
    let mut of: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for ns in &calls {
        for (s, ns) in program.steps.iter().zip(ns) {
            let Step::Run(r) = s else { continue };
            if *ns > 0 {
                of.entry(key(&program.graph, program.graph.node(r.node))).or_default().push(*ns as f64);
            }
        }
    }
    let medians: BTreeMap<String, u64> =
        of.into_iter().map(|(k, mut ns)| (k, median(&mut ns) as u64)).collect();
    let (seconds, predicted) = (median(&mut times), c.time_ns as f64 / 1e9);
    let figures = json!({"median_seconds": seconds, "least_seconds": times.first(), "predicted_seconds": predicted,
        "predicted_over_measured": predicted / seconds.max(1e-12), "least_feasible_instead": planned.least,
        "arena_bytes": plan.arena, "keep_all_bytes": planned.keep_all, "loss": loss, "tf32": false,
        "predicted_extra": c.time_ns as f64 / c.base_time_ns.max(1) as f64 - 1.0,
        "inputs": "uploaded in every step, while the one before runs", "below_floor": below_floor(plan, &medians, bandwidth)});
    Ok((figures, medians))
}

/// Seconds of whole steps, nanoseconds of calls in two others, and the last loss.
#[allow(clippy::type_complexity)]
fn times(
    bundle: &Bundle,
    model: &Model,
    data: &Data,
    plan: &Plan,
    clock: Clock,
) -> Result<(Vec<f64>, Vec<Vec<u64>>, f64), String> {
    let mut session = load(bundle, model, plan)?;
    let named: Vec<(&str, &[u8])> = data.iter().map(|(n, b)| (n.as_str(), b.as_slice())).collect();
    let inputs = |step: usize| StepInputs {
        data: &named,
        learning_rate: 1e-3,
        step: step as i64,
        seed: 1,
        ..StepInputs::default()
    };
    let text = |e: runtime::RuntimeError| e.to_string();
    let (mut times, mut loss) = (Vec::new(), 0.0);
    let mut staged = session.stage(0, &inputs(1)).map_err(text)?;
    for n in 0..STEPS + 2 {
        let start = Instant::now();
        let mut running = session.start(staged, RunOptions::default()).map_err(text)?;
        staged = running.stage(0, &inputs(n + 2)).map_err(text)?;
        loss = running.finish().map_err(text)?.loss().ok_or("the step has no loss")?;
        if n >= 2 {
            times.push(start.elapsed().as_secs_f64());
        }
        // A few slow steps say as much as ten.
        if n >= 4 && clock.left().as_secs_f64() < 8.0 * start.elapsed().as_secs_f64() {
            break;
        }
    }
    let measure = RunOptions { measure: true, ..RunOptions::default() };
    let mut calls = Vec::new();
    for n in 0..2 {
        calls.push(step(&mut session, data, (STEPS + 3 + n) as i64, 1e-3, measure)?.1);
    }
    Ok((times, calls, loss))
}

/// Kinds of nodes whose time is far above that of their traffic, dearest first: (node, seconds in a step, share of the bandwidth).
fn below_floor(plan: &Plan, medians: &BTreeMap<String, u64>, bandwidth: Option<u64>) -> Value {
    let Some(bandwidth) = bandwidth else { return json!("there are no figures of this device") };
    let (g, mut rows): (_, BTreeMap<String, (f64, f64, &str)>) = (&plan.programs[0].graph, BTreeMap::new());
    for s in &plan.programs[0].steps {
        let Step::Run(r) = s else { continue };
        let node = g.node(r.node);
        let (Some(op), Some(ns)) = (ops::find(&node.op), medians.get(&key(g, node))) else { continue };
        let bytes = op.work(&ops::Signature::of(g, node)).bytes as f64;
        let share = bytes / bandwidth as f64 / (*ns as f64 / 1e9);
        let row = rows.entry(key(g, node)).or_insert((0.0, share, &node.op));
        row.0 += *ns as f64 / 1e9;
    }
    let mut rows: Vec<_> = rows.into_iter().filter(|r| r.1.1 < FLOOR).collect();
    rows.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    let row = |(k, (seconds, share, op)): (String, (f64, f64, &str))| json!({"op": op, "node": k, "seconds": seconds, "of_bandwidth": share});
    json!(rows.into_iter().take(40).map(row).collect::<Vec<_>>())
}
