//! What the commands that plan a model at several budgets share.

use crate::model::Model;
use compiler::{
    emit,
    lower::lower,
    pipeline::{self, Budget, CompileError, Compiled, Request, plan_budgets},
    planner::{Options, Problem},
    variants,
};
use graph::Graph;
use plan::{Device, Plan, Program, ProgramKind};

/// Plans a model for the CPU at each of the budgets, a plan each; without buckets in one search: a larger budget never gives a slower plan.
pub fn plan_at(
    model: &Model,
    budgets: &[Budget],
    planner: &Options,
) -> Result<Vec<Result<Compiled, CompileError>>, CompileError> {
    plan_on(Device::Cpu, model, budgets, planner)
}

/// As [`plan_at`], for any device.
pub fn plan_on(
    device: Device,
    model: &Model,
    budgets: &[Budget],
    planner: &Options,
) -> Result<Vec<Result<Compiled, CompileError>>, CompileError> {
    let hash = weight_hash(model);
    let request = Request { device, ..request(model, planner, &hash) };
    let Some(open) = &model.open else { return plan_budgets(model.graphs(), budgets, &request) };
    let open = open.request(&model.name, &model.costs.profile, request.weight_hash);
    let one = |b: &Budget| variants::plan(model.parts.clone(), Some(&open), &[*b], None, &request);
    Ok(budgets.iter().map(one).collect())
}

/// The plan at the least budget that is found.
pub fn plan_least(model: &Model, planner: &Options) -> Result<Compiled, CompileError> {
    pipeline::plan_least(model.graphs(), &request(model, planner, &weight_hash(model)))
}

/// Whether a plan is found within a number of bytes; an error says why not.
pub fn fits(model: &Model, bytes: u64, planner: &Options) -> Result<(), CompileError> {
    pipeline::fits(&model.graphs(), bytes, &request(model, planner, &weight_hash(model)))
}

fn weight_hash(model: &Model) -> impl Fn(&str) -> Option<[u8; 32]> + '_ {
    |name| model.weights.get(name).and_then(|w| w.hash).map(|h| *h.as_bytes())
}

fn request<'a>(
    model: &'a Model,
    planner: &'a Options,
    weight_hash: &'a dyn Fn(&str) -> Option<[u8; 32]>,
) -> Request<'a> {
    Request {
        model: &model.name,
        accumulate: model.accumulate,
        device: plan::Device::Cpu,
        weight_hash,
        costs: &model.costs,
        planner,
    }
}

/// The planning problem of each of the model's programs.
pub fn problems(model: &Model) -> Result<Vec<Problem>, CompileError> {
    let graphs: Vec<&Graph> = model.parts.iter().map(|p| &p.graph).collect();
    let (_, state_bytes) = emit::state_section(&graphs, &|_| None)?;
    graphs.iter().map(|g| Ok(lower(g, &model.costs, state_bytes)?)).collect()
}

/// Predicted extra time of a plan's first program, as a fraction of its time without recomputation.
pub fn extra_fraction(plan: &plan::Plan) -> f64 {
    let c = &plan.programs[0].certificate;
    c.time_ns.saturating_sub(c.base_time_ns) as f64 / c.base_time_ns.max(1) as f64
}

/// A fraction as JSON: infinity and the like are null.
pub fn number(x: f64) -> serde_json::Value {
    serde_json::Number::from_f64(x).map_or(serde_json::Value::Null, serde_json::Value::Number)
}

/// Predicted seconds of a training step, or of the one program of a plan without training; `None` where it is known only at run time.
pub fn predicted_step_seconds(plan: &Plan) -> Option<f64> {
    let parts = u64::from(plan.accumulate.max(1));
    let times = |p: &&Program| match p.kind {
        ProgramKind::Train | ProgramKind::Last => 1,
        ProgramKind::Micro => parts - 1,
        ProgramKind::Infer => u64::from(plan.programs[0].kind == ProgramKind::Infer),
    };
    // Of several programs of a kind the first is the one of the whole budget.
    let first = |(i, p): &(usize, &Program)| plan.programs[..*i].iter().all(|q| q.kind != p.kind);
    let first = plan.programs.iter().enumerate().filter(first).map(|(_, p)| p);
    let programs: Vec<&Program> = first.filter(|p| times(p) > 0 && p.guard.dims.is_empty()).collect();
    let is_static = !programs.is_empty() && programs.iter().all(|p| p.dynamic.is_none());
    let ns: u64 = programs.iter().map(|p| p.certificate.time_ns.saturating_mul(times(p))).sum();
    is_static.then_some(ns as f64 * 1e-9)
}
