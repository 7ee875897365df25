//! `explain --html`: one page that needs nothing else, with the memory of every step to look into.
//!
//! The page holds its data as JSON and its script; both plans of a comparison are drawn on one scale.

use super::{
    life::Lives,
    repeated,
    storages::{storages, workspaces},
};
use graph::ValueId;
use plan::Plan;
use serde_json::{Value, json};

const PAGE: &str = include_str!("page.html");

/// What the page is told of one program. Times are in nanoseconds, memory in bytes; lists of numbers are in the order that `page.html` reads.
pub fn data(plan: &Plan, lives: &Lives<'_>, budget: u64, title: &str) -> Value {
    let (program, replay) = (lives.program, lives.replay);
    let g = &program.graph;
    let name = |v: ValueId| g.value(v).name.to_string();
    let scratch = workspaces(program);
    let steps: Vec<Value> = (0..program.steps.len())
        .map(|i| {
            let (name, op, ns) = lives.run(i).map_or((String::new(), String::new(), 0), |r| {
                let n = g.node(r.node);
                (n.name.to_string(), n.op.to_string(), lives.ns[i])
            });
            json!([name, op, ns, replay.live[i], u8::from(lives.again[i]), scratch[i].0, scratch[i].1])
        })
        .collect();
    let rectangles: Vec<Value> = storages(program)
        .iter()
        .map(|s| {
            let kind = s.made.map_or("input", |i| if lives.again[i] { "again" } else { "first" });
            json!([
                name(s.value),
                s.bytes,
                s.offset,
                s.made.unwrap_or(0),
                s.to,
                kind,
                g.ty(s.value).to_string()
            ])
        })
        .collect();
    let again: Vec<Value> =
        repeated(lives).iter().map(|r| json!([name(r.value), r.times, lives.bytes(r.value), r.ns])).collect();
    let c = &program.certificate;
    json!({
        "title": title, "model": plan.model, "program": program.kind.to_string(), "budget": budget, "arena": plan.arena,
        "state": plan.state_bytes, "keep_all": c.keep_all, "peak": replay.peak, "peak_step": replay.peak_step,
        "time_ns": lives.time_ns, "base_time_ns": lives.base_ns, "lower_bound_ns": c.lower_bound_ns, "strategy": c.strategy,
        "stop_reason": c.stop_reason, "steps": steps, "storages": rectangles, "recomputed": again,
    })
}

/// The page over one plan, or two side by side.
pub fn page(plans: &[Value]) -> String {
    // Nothing in a name may end the script element that holds the data.
    let data = Value::from(plans).to_string().replace('<', "\\u003c");
    PAGE.replacen("\"DATA\"", &data, 1)
}
