//! Training from a plan file: the weights come from the model, however the model makes them.

use crate::support::{self, dtrc, generated, mlp_data};
use onnx_protobuf::NodeProto;

/// The small multilayer perceptron with a bias and a matrix that nodes fill, the matrix with an extent that is computed.
fn filled(dir: &std::path::Path) -> String {
    let mlp = onnx_models::Mlp { inputs: 32, hidden: vec![64, 64], classes: 10 };
    generated(dir, "filled.onnx", |common| {
        let mut model = mlp.build(&onnx_models::Common { loss: true, ..*common });
        let g = model.graph.mut_or_insert_default();
        let node = |op: &str, input: &str, output: &str| NodeProto {
            op_type: op.to_owned(),
            name: format!("make {output}"),
            input: vec![input.to_owned()],
            output: vec![output.to_owned()],
            ..NodeProto::default()
        };
        // Zeros, as wide as the first layer; and as large as the second layer's matrix was.
        let mut length = g.initializer.iter().find(|t| t.name == "fc1.bias").unwrap().clone();
        (length.name, length.data_type, length.dims) = ("length".to_owned(), 7, vec![1]);
        length.raw_data = 64i64.to_le_bytes().to_vec();
        g.initializer.retain(|t| t.name != "fc1.bias");
        let matrix = g.initializer.iter_mut().find(|t| t.name == "fc2.weight").unwrap();
        matrix.name = "like".to_owned();
        g.initializer.push(length);
        let made = [
            node("ConstantOfShape", "length", "fc1.bias"),
            node("Shape", "like", "extents"),
            node("ConstantOfShape", "extents", "fc2.weight"),
        ];
        g.node.splice(0..0, made);
        model
    })
}

#[test]
fn weights_that_nodes_fill_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let (model, data) = (filled(d), mlp_data(d, 3));
    let file = |name: &str| d.join(name).display().to_string();
    let plan = file("filled.dtrc");
    dtrc(&["compile", &model, "--budget", "100%", "-o", &plan]).ok();
    let train = |what: &[&str], save: &str| {
        let fixed = ["--json", "train", "--data", &data, "--epochs", "2", "--lr", "0.1", "--save", save];
        dtrc(&[&fixed, what].concat()).ok().losses()
    };
    let (a, b) = (file("a.onnx"), file("b.onnx"));
    assert_eq!(train(&[&model, "--budget", "100%"], &a), train(&[&plan], &b));
    assert!(std::fs::read(a).unwrap() == std::fs::read(b).unwrap());
}

#[test]
fn a_plan_takes_no_flags_about_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let (mlp, data) = (support::model("mlp_tiny"), mlp_data(dir.path(), 2));
    let plan = dir.path().join("p.dtrc").display().to_string();
    dtrc(&["compile", &mlp, "--budget", "100%", "-o", &plan]).ok();
    let train = |more: &[&str]| {
        dtrc(&[&["train", &plan, "--weights", &mlp, "--data", &data, "--threads", "2"], more].concat())
    };
    train(&[]).ok();
    train(&["--optimizer", "adam", "--loss", "mse"]).fails(64, &["inside already", "--loss, --optimizer"]);
    // A value that is the default was asked for all the same.
    train(&["--accumulate", "1"]).fails(64, &["--accumulate"]);
    dtrc(&["run", &plan, "--weights", &mlp, "--synthetic", "--metric", "loss"]).fails(64, &["--metric"]);
    dtrc(&["train", &mlp, "--budget", "100%", "--data", &data, "--threads", "99999"])
        .fails(64, &["--threads", "from 1 to 1024"]);
}

#[test]
fn a_plan_is_checked_against_its_model() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (model, plan) = (support::model("transformer_tiny"), file("t.dtrc"));
    let about = ["--optimizer", "adamw", "--rewrites", "fast", "--with-inference"];
    dtrc(&[&["compile", &model, "--budget", "100%,90%", "-o", &plan][..], &about].concat()).ok();
    let check =
        |model: &str, flags: &[&str]| dtrc(&[&["check", &plan, "--model", model][..], flags].concat());
    check(&model, &about).ok();
    check(&model, &about[..4]).fails(65, &["program infer", "none like it", "flags that compile had"]);
    check(&model, &[]).fails(65, &["not a plan of this model", "program train", "the model's is"]);
    check(&support::model("mlp_tiny"), &about).fails(65, &["not a plan of this model"]);
    // One number of one weight is another.
    let mut bytes = std::fs::read(&model).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(file("other.onnx"), bytes).unwrap();
    check(&file("other.onnx"), &about).fails(65, &["weight", "other elements"]);
    dtrc(&["check", &plan, "--optimizer", "adamw"]).fails(64, &["--model"]);
}

#[test]
fn plans_with_open_sizes_are_checked_too() {
    let dir = tempfile::tempdir().unwrap();
    let model = support::generated(dir.path(), "open.onnx", |common| {
        let mlp = onnx_models::Mlp { inputs: 32, hidden: vec![64], classes: 10 };
        let mut model = mlp.build(&onnx_models::Common { loss: true, ..*common });
        let g = model.graph.mut_or_insert_default();
        for i in &mut g.input {
            let dims =
                &mut i.type_.mut_or_insert_default().mut_tensor_type().shape.mut_or_insert_default().dim;
            dims[0].set_dim_param("n".to_owned());
        }
        model
    });
    for (k, dims) in [&[][..], &["--dim", "n=4,8"]].into_iter().enumerate() {
        let plan = dir.path().join(format!("{k}.dtrc")).display().to_string();
        dtrc(&[&["compile", &model, "--budget", "1M", "-o", &plan][..], dims].concat()).ok();
        dtrc(&[&["check", &plan, "--model", &model][..], dims].concat()).ok();
        dtrc(&[&["check", &plan, "--model", &model, "--optimizer", "adam"][..], dims].concat())
            .fails(65, &["not a plan of this model"]);
    }
}
