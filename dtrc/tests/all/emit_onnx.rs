//! `compile --emit-onnx`: the training step as a model that other programs run, and train with as `train` does.

use crate::support::{dtrc, mlp_data, model, resnet_data};
use compiler::import::read_weights;
use onnx_models::{Common, Mlp, to_bytes};
use onnx_protobuf::{NodeProto, TensorProto, tensor_proto::DataType};
use serde_json::json;
use std::{collections::BTreeSet, path::Path};
use tests::{npz, onnxruntime};

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

/// A multilayer perceptron that drops half of its first layer, and its loss.
fn dropout_model(path: &Path) -> String {
    let common = Common { batch: 16, dynamic: false, loss: true, seed: 3 };
    let mut model = Mlp { inputs: 32, hidden: vec![64, 64], classes: 10 }.build(&common);
    let g = model.graph.mut_or_insert_default();
    let at = g.node.iter().position(|n| n.op_type == "Relu").unwrap();
    let dropped = std::mem::replace(&mut g.node[at].output[0], "kept".to_owned());
    let input = ["kept", "ratio", "training"].map(str::to_owned).into();
    let drop =
        NodeProto { op_type: "Dropout".to_owned(), input, output: vec![dropped], ..Default::default() };
    g.node.insert(at + 1, drop);
    let scalar = |name: &str, kind: DataType, raw: Vec<u8>| TensorProto {
        name: name.to_owned(),
        data_type: kind as i32,
        raw_data: raw,
        ..Default::default()
    };
    g.initializer.push(scalar("ratio", DataType::FLOAT, 0.5f32.to_le_bytes().to_vec()));
    g.initializer.push(scalar("training", DataType::BOOL, vec![1]));
    std::fs::write(path, to_bytes(&model).unwrap()).unwrap();
    path.display().to_string()
}

/// Trains two updates of `parts` parts with `train`, and with onnxruntime on what `--emit-onnx` writes, and compares losses and weights.
fn trains_alike(dir: &Path, python: &Path, model: &str, data: &str, parts: u32, optimizer: &[&str]) {
    const SEED: i64 = 70_001;
    let at = |name: &str| dir.join(name).display().to_string();
    let number = parts.to_string();
    let common = [&["--accumulate", &number][..], optimizer].concat();
    let compile =
        ["compile", model, "--budget", "100%", "-o", &at("m.dtrc"), "--emit-onnx", &at("step.onnx")];
    dtrc(&[&compile[..], &common].concat()).ok();
    let seed = SEED.to_string();
    let train = ["--json", "train", model, "--budget", "100%", "--data", data, "--seed", &seed];
    let more = ["--steps", "2", "--lr", "0.2", "--save", &at("trained.onnx")];
    let losses = dtrc(&[&train[..], &more, &common].concat()).ok().losses();

    let case = json!({"last": at("step.onnx"), "micro": (parts > 1).then(|| at("step.micro.onnx")), "parts": parts, "updates": 2,
        "batch": 16, "lr": 0.2, "seed": SEED, "data": data, "out": at("out.npz")});
    onnxruntime::train(python, &dir.join("case.json"), &case);
    let out = npz(&dir.join("out.npz"));
    let found = out["loss"].to_floats();
    assert_eq!((losses.len(), found.len()), (2, 2));
    for (want, found) in losses.iter().zip(found) {
        let want: f64 = want.parse().unwrap();
        assert!((want - found).abs() <= 1e-5 * want.abs(), "{parts} parts: losses {want} and {found}");
    }
    let (start, trained) =
        (read_weights(model.as_ref()).unwrap(), read_weights(at("trained.onnx").as_ref()).unwrap());
    let mut moved = 0;
    for (name, _) in trained.iter() {
        let (was, want) = (start.literal(name).unwrap(), trained.literal(name).unwrap());
        if was == want {
            continue;
        }
        moved += 1;
        let (was, want, found) = (was.to_floats(), want.to_floats(), out[&**name].to_floats());
        // What the updates change, not what was there before them.
        let most = was.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        for (x, y) in want.iter().zip(found) {
            assert!((x - y).abs() <= 1e-3 * most + 1e-6, "{parts} parts: {name}: {x} and {y}");
        }
    }
    assert!(moved >= 6, "{moved} tensors moved");
}

#[test]
fn onnxruntime_updates_as_train_does_with_the_masks_of_its_seed() {
    let Some(python) = onnxruntime::python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let dropout = dropout_model(&d.join("dropout.onnx"));
    trains_alike(d, &python, &dropout, &mlp_data(d, 2), 1, &["--momentum", "0.9"]);
    trains_alike(d, &python, &dropout, &mlp_data(d, 6), 3, &["--momentum", "0.9"]);
}

#[test]
fn onnxruntime_takes_running_statistics_from_part_to_part() {
    let Some(python) = onnxruntime::python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let adamw = ["--optimizer", "adamw", "--eps", "0.1"];
    trains_alike(d, &python, &model("resnet_tiny"), &resnet_data(d, 4), 2, &adamw);
}
