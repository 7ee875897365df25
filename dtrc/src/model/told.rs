//! What is said about a model while it is loaded: remarks of the import, rewrites, inputs that nothing reads, times that do not fit.

use crate::{cli::Global, progress::note, units};
use compiler::{
    cost::{CostModel, key},
    import::{self, trainable},
};
use graph::Graph;
use plan::ProgramKind;
use rewrite::{Level, Report};
use serde_json::json;
use std::{path::Path, sync::Arc};

/// Says how many weights stay as they are since they are 16-bit floats.
pub(super) fn tell_halves(graph: &Graph, candidates: &[Arc<str>], quiet: bool) {
    let n = trainable::halves(graph, candidates);
    if n > 0 {
        let what = "16-bit float weights stay as they are: dtrc trains float32 and float64; convert them first to train them";
        note(quiet, format!("{n} {what}"));
    }
}

pub(super) fn tell(remarks: &[import::Remark], global: Global) {
    for r in remarks {
        let times = if r.count > 1 { format!(" ({} nodes like this)", r.count) } else { String::new() };
        let at = if r.node.is_empty() { String::new() } else { format!("{}: ", r.node) };
        note(global.quiet, format!("{at}{}{times}", r.text));
    }
}

/// Says so if measured times are of few of the model's nodes.
pub(super) fn tell_measured(
    path: &Path,
    costs: &CostModel,
    programs: &[(ProgramKind, Graph)],
    global: Global,
) {
    let nodes: Vec<_> = programs.iter().flat_map(|(_, g)| g.nodes.iter().map(move |n| (g, n))).collect();
    let measured = nodes.iter().filter(|(g, n)| costs.measured.contains_key(&key(g, n))).count();
    if !costs.measured.is_empty() && measured * 2 < nodes.len() {
        let what = format!(
            "measured times of {measured} of the {} nodes, the others are estimated: was another model or size profiled?",
            nodes.len()
        );
        note(global.quiet, format!("{}: {what}", path.display()));
    }
}

/// Names of a model's inputs that none of its programs takes.
pub(super) fn unread_inputs(model: &Graph, programs: &[(ProgramKind, Graph)]) -> Vec<String> {
    let taken =
        |name: &str| programs.iter().any(|(_, g)| g.inputs.iter().any(|i| &*g.value(i.value).name == name));
    let names = model.inputs.iter().map(|i| &*model.value(i.value).name);
    names.filter(|n| !taken(n)).map(graph::quote_name).map(|n| n.to_string()).collect()
}

/// Tells what rewriting did: the whole list on stdout, or one object with `--json`.
pub(super) fn explain(reports: &[(ProgramKind, Report)], level: Level, global: Global) {
    if global.json {
        let program = |(kind, r): &(ProgramKind, Report)| {
            let fired = r.fired.iter().map(|f| {
                json!({"rule": f.rule, "at": f.at, "nanoseconds_saved": f.nanoseconds, "bytes_saved": f.bytes})
            });
            let missed = r.missed.iter().map(|m| json!({"rule": m.rule, "at": m.at, "why": m.why}));
            let (fired, missed): (Vec<_>, Vec<_>) = (fired.collect(), missed.collect());
            json!({"program": kind.to_string(), "fired": fired, "not_fired": missed})
        };
        let programs: Vec<_> = reports.iter().map(program).collect();
        println!("{}", json!({"schema": 1, "rewrites": level.to_string(), "programs": programs}));
        return;
    }
    for (kind, report) in reports {
        println!("rewrites of {kind}, {level}: {} fired", report.fired.len());
        for (rule, (times, nanoseconds, bytes)) in report.totals() {
            println!(
                "  {rule:<28} {times:>5} times, saves {} of writing, {:.3} ms",
                signed(bytes),
                nanoseconds as f64 / 1e6
            );
        }
        print!("{report}");
    }
}

/// Bytes that may be fewer than none.
fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", units::bytes(bytes.unsigned_abs()))
}
