//! What the commands that plan a model at several budgets share.

use crate::model::Model;
use compiler::{
    emit,
    lower::lower,
    pipeline::{Budget, CompileError, Compiled, Request, plan_budgets},
    planner::{Options, Problem},
};
use graph::Graph;

/// Plans a model at each of the budgets, in one search: a larger budget never gives a slower plan.
pub fn plan_at(
    model: &Model,
    budgets: &[Budget],
    planner: &Options,
) -> Result<Vec<Result<Compiled, CompileError>>, CompileError> {
    let weights = &model.weights;
    let request = Request {
        model: &model.name,
        accumulate: model.accumulate,
        device: plan::Device::Cpu,
        weight_hash: &|name| weights.get(name).and_then(|w| w.hash).map(|h| *h.as_bytes()),
        costs: &model.costs,
        planner,
    };
    plan_budgets(model.graphs.clone(), budgets, &request)
}

/// The planning problem of each of the model's programs.
pub fn problems(model: &Model) -> Result<Vec<Problem>, CompileError> {
    let graphs: Vec<&Graph> = model.graphs.iter().map(|(_, g)| g).collect();
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
