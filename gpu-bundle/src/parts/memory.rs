//! `memory`: what the device's memory loses is the plan's arena and what modules and graphs take, and after loading nothing more.

use super::{data, held};
use crate::{
    Bundle,
    models::{Model, full, handed, topology},
    part::Part,
    seeded::batch,
    trial::{Data, costs, load, plans, step},
};
use compiler::cost::CostModel;
use plan::{Device, Plan};
use rewrite::Level;
use runtime::RunOptions;
use serde_json::{Value, json};

/// A small and a large model at two budgets, an item each.
pub fn run(bundle: &Bundle, part: &mut Part) -> Result<(), String> {
    for name in ["mlp", "resnet18", "gpt2"] {
        small(bundle, part, name, 100)?;
    }
    for name in ["resnet50", "gpt2"] {
        for share in [1.0, 0.6] {
            let costs = costs(&part.results.device);
            part.item(&format!("full-size {name} at {share}"), || held(large(bundle, name, share, &costs)))?;
        }
    }
    Ok(())
}

/// One small model over some steps.
pub fn small(bundle: &Bundle, part: &mut Part, name: &str, steps: i64) -> Result<(), String> {
    let costs = costs(&part.results.device);
    part.item(name, || {
        held((|| {
            let h = handed(&bundle.folder, name, &costs)?;
            let plan = plans(&h.model, Device::Cuda, &[0.6], &costs, None)?.remove(0).plan;
            watch(bundle, &h.model, &plan, &data(&h), steps)
        })())
    })
}

fn large(bundle: &Bundle, name: &str, share: f64, costs: &CostModel) -> Result<Value, String> {
    let (model, _) = topology(&bundle.folder, name, Level::Memory, costs)?;
    let plan = plans(&model, Device::Cuda, &[share], costs, None)?.remove(0).plan;
    let full = full(name).ok_or("no such model")?;
    let data = batch(&plan.programs[0], full.classes, full.ones, 1);
    watch(bundle, &model, &plan, &data, 100)
}

/// Loads, runs, and reads the device's free memory.
fn watch(bundle: &Bundle, model: &Model, plan: &Plan, data: &Data, steps: i64) -> Result<Value, String> {
    let mut session = load(bundle, model, plan)?;
    let asked = |s: &mut runtime::Session| {
        s.device_memory()
            .map_err(|e| e.to_string())?
            .ok_or("the device says nothing of its memory".to_owned())
    };
    let loaded = asked(&mut session)?;
    let mut most = 0;
    for n in 1..=steps {
        step(&mut session, data, n, 1e-6, RunOptions::default())?;
        most = most.max(asked(&mut session)?.since_loaded());
    }
    let figures = json!({"plan_arena_bytes": plan.arena, "taken_for_arena_bytes": loaded.arena, "free_before_bytes": loaded.before,
        "modules_and_graphs_bytes": loaded.beside_arena(), "taken_in_steps_bytes": most, "steps": steps});
    if most == 0 { Ok(figures) } else { Err(format!("steps take memory: {figures}")) }
}
