//! The reference simulator's results, decision by decision: the hash of every event of every run that it confirmed.

use std::collections::BTreeMap;

use crate::common;
use dtr::simrd::{Baseline, Budget, Log, SimOptions, Status};

type Row = BTreeMap<String, String>;

fn heuristic(name: &str) -> dtr::Heuristic {
    let ours = match name {
        "DTR" => "dtr",
        "DTREqClass" => "dtr-eq",
        "DTRLocal" => "dtr-local",
        "LRU" => "lru",
        "LargestStorage" => "size",
        "MSPS" => "msps",
        other => panic!("unknown heuristic {other}"),
    };
    ours.parse().expect("a known name")
}

fn differences(row: &Row, log: &Log, baseline: Baseline) -> Vec<String> {
    let number = |key: &str| row[key].parse::<f64>().unwrap_or_else(|_| panic!("{key}: {}", row[key]));
    let options = SimOptions {
        overhead_limit: Some(number("overhead_limit")),
        ..SimOptions::new(heuristic(&row["heuristic"]), Budget::Ratio(number("ratio")))
    };
    let report = log.replay(baseline, &options).expect("a recorded log replays");
    let status = match report.status {
        Status::Ok => "ok",
        Status::Oom => "oom",
        Status::Thrash => "thrash",
    };
    let ours = [
        ("status", status.to_owned()),
        ("budget_bytes", report.budget_bytes.to_string()),
        ("clock", (report.total_compute + 1).to_string()),
        ("baseline_memory", report.baseline_peak_bytes.to_string()),
        ("baseline_compute", report.baseline_compute.to_string()),
        ("peak_mem", report.peak_bytes.to_string()),
        ("remat_compute", report.remat_compute.to_string()),
        ("evictions", report.evictions.to_string()),
        ("evictions_eager", report.evictions_eager.to_string()),
        ("remats", report.remats.to_string()),
        ("op_calls", report.op_calls.to_string()),
        ("trace_sha256", report.trace_sha256),
    ];
    let differs = |(key, value): &&(&str, String)| row[*key] != *value;
    let name = format!("{} {} {} x{}", row["model"], row["heuristic"], row["ratio"], row["overhead_limit"]);
    ours.iter()
        .filter(differs)
        .map(|(key, value)| format!("{name}: {key} is {value}, expected {}", row[*key]))
        .collect()
}

fn compare(file: &str, model: &str, only: impl Fn(&Row) -> bool) -> Option<(usize, Vec<String>)> {
    let (rows, log) = (common::csv(file)?, common::log(model)?);
    let baseline = log.baseline().expect("a recorded log replays");
    let rows: Vec<_> = rows.into_iter().filter(|row| row["model"] == model && only(row)).collect();
    Some((rows.len(), rows.iter().flat_map(|row| differences(row, &log, baseline)).collect()))
}

/// Every row that the reference confirmed, and of the reference's own runs also the one where walking the graph anew for each score
/// differs from its cached neighbourhoods.
fn conforms(model: &str, least: usize) {
    let Some((rows, differences)) =
        compare("spec_reimpl_results.csv", model, |row| row["simrd_match"] == "True")
    else {
        return;
    };
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(rows >= least, "only {rows} rows of {model}");
    let Some((rows, differences)) =
        compare("simrd_results.csv", model, |row| row["heuristic"] == "DTR" && row["status"] != "timeout")
    else {
        return;
    };
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(rows > 0);
}

#[test]
fn resnet32() {
    conforms("resnet32", 50);
}

#[test]
fn unet() {
    conforms("unet", 50);
}

#[test]
fn inceptionv4() {
    conforms("inceptionv4", 49);
}

#[test]
fn transformer() {
    conforms("transformer", 48);
}

#[test]
fn unroll_gan() {
    conforms("unroll_gan", 47);
}

#[test]
fn lstm() {
    conforms("lstm", 47);
}
