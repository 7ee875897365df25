//! A model may call its tensors what the step's own states and inputs are called: it trains to the same bits as under other names.

use crate::support::{
    dtrc, floats,
    onnx::{body, graph, int, node, numbers, weight, write},
};
use graph::DType;
use onnx_protobuf::GraphProto;
use runtime::data::npz;
use std::path::Path;

/// Names that a training step of `w` and of the running mean `rm` has for itself, whatever the optimizer, and what follows where one is
/// taken.
const NAMES: [&str; 16] = [
    "lr",
    "step",
    "seed",
    "w/m",
    "w/v",
    "w/momentum",
    "w/grad",
    "w/m~2",
    "rm/pending",
    "step/loss",
    "step/update",
    "amp/scale",
    "amp/good",
    "amp/skipped",
    "(seed)",
    "ok",
];

/// What is renamed: input, weight, results of nodes of the main graph, of a body's and a body's input.
const SITES: [&str; 7] = ["x", "v", "x0", "z", "a", "n", "h"];

/// Dropout, batch normalisation and a loop, whose length is data if `open`; `site` is called `name`.
fn model(dir: &Path, open: bool, (site, name): (&str, &str)) -> String {
    let steps = graph(
        "j:int64[] on:bool[] h",
        vec![
            node("Identity", "on", "go", vec![]),
            node("MatMul", "h v", "a", vec![]),
            node("Tanh", "a", "n", vec![]),
        ],
        "go:bool[] n",
        vec![],
    );
    let mut g = graph(
        if open { "x[N,4] trips:int64[]" } else { "x[N,4]" },
        vec![
            node("Sin", "x", "x0", vec![]),
            node("Loop", if open { "trips _ x0" } else { "two _ x0" }, "y", vec![body("body", steps)]),
            node("MatMul", "y w", "z", vec![]),
            node("Dropout", "z half yes", "d", vec![]),
            node(
                "BatchNormalization",
                "d scale bias rm rv",
                "b rm.new rv.new",
                vec![int("training_mode", 1)],
            ),
            node("Mul", "b z", "square", vec![]),
            node("ReduceMean", "square", "loss", vec![int("keepdims", 0)]),
        ],
        "loss[]",
        vec![
            weight("v", &[4, 4], &floats(16, 1)),
            weight("w", &[4, 4], &floats(16, 2)),
            weight("half", &[], &[0.5]),
            weight("scale", &[4], &floats(4, 3)),
            weight("bias", &[4], &floats(4, 4)),
            weight("rm", &[4], &[0.0; 4]),
            weight("rv", &[4], &[1.0; 4]),
            numbers("two", &[], &[2]),
            flag("yes"),
        ],
    );
    rename(&mut g, site, name);
    write(dir, "model.onnx", 17, g)
}

fn flag(name: &str) -> onnx_protobuf::TensorProto {
    onnx_protobuf::TensorProto { data_type: 9, raw_data: vec![1], ..numbers(name, &[], &[]) }
}

fn rename(g: &mut GraphProto, from: &str, to: &str) {
    let change = |n: &mut String| {
        if n == from {
            to.clone_into(n);
        }
    };
    g.initializer.iter_mut().for_each(|t| change(&mut t.name));
    g.input.iter_mut().chain(&mut g.output).for_each(|t| change(&mut t.name));
    for n in &mut g.node {
        // A random number follows from its node's name.
        n.name.clone_from(&n.op_type);
        n.input.iter_mut().chain(&mut n.output).for_each(change);
        n.attribute.iter_mut().filter_map(|a| a.g.as_mut()).for_each(|g| rename(g, from, to));
    }
}

/// Batches of these numbers of rows, a file each.
fn batches(dir: &Path, x: &str, rows: &[u64], open: bool) -> String {
    let folder = dir.join("data");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).unwrap();
    for (i, n) in rows.iter().enumerate() {
        let elements: Vec<u8> =
            floats(*n as usize * 4, i as u64).iter().flat_map(|v| v.to_le_bytes()).collect();
        let trips = (1 + i as i64 % 3).to_le_bytes();
        let shape = [*n, 4];
        let mut all = vec![(x, DType::F32, &shape[..], &elements[..])];
        if open {
            all.push(("trips", DType::I64, &[], &trips));
        }
        let file = std::fs::File::create(folder.join(format!("{i}.npz"))).unwrap();
        npz::write(file, all).unwrap();
    }
    folder.display().to_string()
}

/// What training makes of every initializer, in the order of the file.
fn trained(dir: &Path, open: bool, renamed: (&str, &str), more: &[&str]) -> Vec<Vec<u8>> {
    let rows: &[u64] = if more.contains(&"N=3") { &[3, 3, 3, 3] } else { &[3, 2, 5, 4] };
    let data = batches(dir, if renamed.0 == "x" { renamed.1 } else { "x" }, rows, open);
    let (model, out) = (model(dir, open, renamed), dir.join("out.onnx").display().to_string());
    let fixed = ["train", &model, "--data", &data, "--budget", "1M", "--threads", "1", "--save", &out];
    let done = dtrc(&[&fixed, more].concat());
    assert_eq!(done.code, 0, "{renamed:?}, {more:?}: {}", done.stderr);
    let saved = std::fs::read(out).unwrap();
    let model: onnx_protobuf::ModelProto = protobuf::Message::parse_from_bytes(&saved).unwrap();
    model.graph.initializer.iter().map(|t| t.raw_data.clone()).collect()
}

fn any_name_trains(open: bool, sizes: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let optimizers: [&[&str]; 3] = [
        &["--optimizer", "adam"],
        &["--momentum", "0.9", "--accumulate", "2"],
        &["--optimizer", "adam", "--amp", "fp16"],
    ];
    for how in optimizers {
        let more = [how, sizes].concat();
        let plain = trained(dir.path(), open, ("", ""), &more);
        assert!(plain != trained(dir.path(), open, ("", ""), &[&more[..], &["--steps", "1"]].concat()));
        for site in SITES {
            for name in NAMES {
                assert!(
                    trained(dir.path(), open, (site, name), &more) == plain,
                    "{site} as {name}: {more:?}"
                );
            }
        }
    }
}

#[test]
fn any_name_trains_where_data_decide() {
    any_name_trains(true, &[]);
}

#[test]
fn any_name_trains_in_a_static_plan() {
    any_name_trains(false, &["--dim", "N=3"]);
}

#[test]
fn any_name_trains_in_buckets_and_beyond_the_last() {
    any_name_trains(false, &["--dim", "N=3,4"]);
}

#[test]
fn a_plan_keeps_the_usual_names() {
    let dir = tempfile::tempdir().unwrap();
    for (open, sizes) in [(true, "N=3"), (false, "N=3"), (false, "N=3,4")] {
        let model = model(dir.path(), open, ("x", "w/m"));
        let out = dir.path().join("plan.dtrc").display().to_string();
        let fixed =
            ["compile", &model, "--budget", "1M", "--optimizer", "adam", "--accumulate", "2", "-o", &out];
        dtrc(&[&fixed[..], &["--amp", "fp16", "--dim", sizes]].concat()).ok();
        let plan = plan::from_bytes(&std::fs::read(&out).unwrap()).unwrap();
        let names: Vec<&str> = plan.state.iter().map(|s| &*s.name).collect();
        let usual =
            ["w/v", "v/m", "w/grad", "rm/pending", "step/loss", "amp/scale", "amp/good", "amp/skipped"];
        for name in usual.iter().chain(&["w/m~2"]) {
            assert!(names.contains(name), "{name} is not in {names:?}");
        }
        assert!(!names.contains(&"w/m"));
    }
}

#[test]
fn what_evaluation_tells_is_found_under_any_name() {
    let dir = tempfile::tempdir().unwrap();
    let data = batches(dir.path(), "x", &[3, 3], false);
    let tell = |site: &str, name: &str, sizes: &[&str]| {
        let mut g = graph(
            "x[N,4]",
            vec![
                node("MatMul", "x w", "y", vec![]),
                node("Tanh", "y", "z", vec![]),
                node("Mul", "z z", "square", vec![]),
                node("ReduceMean", "square", "loss", vec![int("keepdims", 0)]),
            ],
            "loss[]",
            vec![weight("w", &[4, 4], &floats(16, 2))],
        );
        rename(&mut g, site, name);
        let model = write(dir.path(), "told.onnx", 17, g);
        let fixed = ["train", &model, "--data", &data, "--budget", "1M", "--eval-data", &data, "--json"];
        let told = dtrc(&[&fixed[..], sizes].concat()).ok().objects();
        let eval = told.iter().find_map(|o| o.get("eval")).unwrap_or_else(|| panic!("{told:?}")).clone();
        assert!(eval["loss"].as_f64().is_some(), "{site} as {name}: {eval}");
        eval
    };
    for sizes in [&[][..], &["--dim", "N=3"]] {
        let plain = tell("", "", sizes);
        for site in ["w", "y", "z"] {
            assert_eq!(tell(site, "eval/loss", sizes), plain);
        }
    }
}

#[test]
fn a_label_may_be_called_as_what_dropout_reads() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = || vec![node("Dropout", "x half yes", "d", vec![]), node("MatMul", "d w", "y", vec![])];
    let weights = || vec![weight("w", &[4, 4], &floats(16, 2)), weight("half", &[], &[0.5]), flag("yes")];
    let model = write(dir.path(), "labelled.onnx", 17, graph("x[N,4]", nodes(), "y[N,4]", weights()));
    let elements: Vec<u8> = floats(12, 5).iter().flat_map(|v| v.to_le_bytes()).collect();
    let losses = |label: &str, sizes: &[&str]| {
        let data = dir.path().join("labelled.npz");
        let file = std::fs::File::create(&data).unwrap();
        let all = ["x", label].map(|n| (n, DType::F32, &[3u64, 4][..], &elements[..]));
        npz::write(file, all).unwrap();
        let data = data.display().to_string();
        let fixed =
            ["train", &model, "--data", &data, "--budget", "1M", "--loss", "mse", "--steps", "2", "--json"];
        dtrc(&[&fixed[..], &["--label", label], sizes].concat()).ok().losses()
    };
    for sizes in [&[][..], &["--dim", "N=3"], &["--dim", "N=2,4"]] {
        let plain = losses("target", sizes);
        for label in ["seed", "step", "lr", "w/m", "(seed)"] {
            assert_eq!(losses(label, sizes), plain, "{label}");
        }
    }
}
