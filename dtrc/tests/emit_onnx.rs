//! `compile --emit-onnx`: the training step as a model that other programs run.

mod support;

use std::collections::BTreeSet;
use support::{dtrc, model};

#[test]
fn a_training_step_is_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (step, plan) = (at("step.onnx"), at("m.dtrc"));
    let compile = ["compile", &model("mlp_tiny"), "--budget", "100%", "-o", &plan, "--optimizer", "adamw"];
    let out = dtrc(&[&compile[..], &["--emit-onnx", &step]].concat()).ok();
    assert!(out.stderr.contains("step.onnx") && out.stderr.contains("functions"), "{}", out.stderr);
    let imported = compiler::import::import(step.as_ref(), &compiler::import::Options::default()).unwrap();
    let outputs: BTreeSet<&str> = imported.output_names.iter().map(String::as_str).collect();
    let states: Vec<String> = {
        let bytes = std::fs::read(&plan).unwrap();
        let moves = |s: &&plan::StateEntry| s.kind != graph::StateKind::Frozen;
        plan::from_bytes(&bytes).unwrap().state.iter().filter(moves).map(|s| s.name.to_string()).collect()
    };
    // The loss, and the next version of each weight and moment.
    assert_eq!(outputs.len(), states.len() + 1, "{outputs:?}");
    for s in &states {
        assert!(outputs.contains(format!("{s}.next").as_str()), "{s} has no next version");
    }
    let inputs = &imported.graph.inputs;
    let names: BTreeSet<&str> = inputs.iter().map(|i| &*imported.graph.value(i.value).name).collect();
    assert!(["x", "target", "lr", "step"].iter().all(|n| names.contains(n)), "{names:?}");
}

#[test]
fn what_cannot_be_written_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("m.dtrc").display().to_string();
    let compile = ["compile", &model("mlp_tiny"), "--budget", "100%", "-o", &plan, "--emit-onnx"];
    dtrc(&[&compile[..], &["/no/such/folder/s.onnx"]].concat()).fails(74, &["s.onnx", "cannot be written"]);
}

#[test]
fn an_accumulated_step_is_two_models() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let compile =
        ["compile", &model("mlp_tiny"), "--budget", "100%", "-o", &at("m.dtrc"), "--accumulate", "3"];
    dtrc(&[&compile[..], &["--emit-onnx", &at("step.onnx")]].concat()).ok();
    let outputs = |file: &str| -> Vec<String> {
        let path = dir.path().join(file);
        let imported = compiler::import::import(&path, &compiler::import::Options::default()).unwrap();
        imported.output_names.iter().map(|n| n.to_string()).collect()
    };
    let (micro, last) = (outputs("step.micro.onnx"), outputs("step.onnx"));
    // The first adds to the sums, the last updates what is trained.
    let weights = |names: &[String]| names.iter().filter(|n| *n == "fc1.weight.next").count();
    assert_eq!((weights(&micro), weights(&last)), (0, 1), "{micro:?} {last:?}");
    assert!(micro.len() > 1 && micro.iter().skip(1).all(|n| n.ends_with(".next")), "{micro:?}");
}
