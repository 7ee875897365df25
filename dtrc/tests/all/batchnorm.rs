//! BatchNormalization that was exported for inference: said, unless it is meant, and with `--batchnorm train` the training of the same
//! model that was exported for it.

use crate::support::{self, Outcome, dtrc, model, resnet_data};
use compiler::import::{Weights, read_weights};
use onnx_protobuf::{AttributeProto, NodeProto, attribute_proto::AttributeType};
use std::path::Path;

const WARNING: &str = "BatchNormalization was exported for inference";

/// The small residual network as exporters write it for inference: no mode of training, no statistics as results.
fn for_inference(path: &Path) -> String {
    let (_, mut model) =
        onnx_models::tiny().into_iter().find(|(name, _)| *name == "resnet_tiny.onnx").unwrap();
    let mut changed = 0;
    for n in &mut model.graph.mut_or_insert_default().node {
        if n.op_type == "BatchNormalization" {
            n.attribute.retain(|a| a.name != "training_mode");
            n.output.truncate(1);
            changed += 1;
        }
    }
    assert!(changed > 5);
    std::fs::write(path, onnx_models::to_bytes(&model).unwrap()).unwrap();
    path.display().to_string()
}

#[test]
fn an_inference_graph_is_said_and_trains_as_the_training_graph_does() {
    let dir = tempfile::tempdir().unwrap();
    let inference = for_inference(&dir.path().join("inference.onnx"));
    let data = resnet_data(dir.path(), 3);
    let train = |name: &str, model: &str, more: &[&str]| -> (Outcome, Weights) {
        let saved = dir.path().join(format!("{name}.saved.onnx")).display().to_string();
        let fixed = ["--json", "train", model, "--budget", "100%", "--data", &data, "--save", &saved];
        let out = dtrc(&[&fixed[..], more].concat()).ok();
        (out, read_weights(saved.as_ref()).unwrap())
    };
    let training = train("training", &model("resnet_tiny"), &[]);
    let batch = train("batch", &inference, &["--batchnorm", "train"]);
    let auto = train("auto", &inference, &[]);
    let frozen = train("frozen", &inference, &["--batchnorm", "frozen"]);

    // Who says what is meant is not told.
    assert!(
        auto.0.stderr.contains(WARNING) && auto.0.stderr.contains("--batchnorm train"),
        "{}",
        auto.0.stderr
    );
    for (name, (out, _)) in [("training graph", &training), ("train", &batch), ("frozen", &frozen)] {
        assert!(!out.stderr.contains(WARNING), "{name}: {}", out.stderr);
    }
    let losses = [&training, &batch, &auto, &frozen].map(|(out, _)| out.losses());
    assert_eq!(losses[0].len(), 3);
    assert_eq!(losses[0], losses[1]);
    assert_eq!(losses[2], losses[3]);
    assert_ne!(losses[0], losses[2]);
    let start = read_weights(inference.as_ref()).unwrap();
    let mut statistics = 0;
    for (name, _) in start.iter() {
        let [start, training, batch, auto] =
            [&start, &training.1, &batch.1, &auto.1].map(|w| w.literal(name).unwrap());
        assert!(training == batch, "{name}");
        if name.contains("running_") {
            // Statistics of batches move; the others stay as they are.
            assert!(start != batch && start == auto, "{name}");
            statistics += 1;
        }
    }
    assert!(statistics > 10, "{statistics}");
}

/// A perceptron before which the input is normalised `times` times by one layer, the results added up.
fn repeated(dir: &Path, times: usize, momentum: f32) -> String {
    let mlp = onnx_models::Mlp { inputs: 32, hidden: vec![64], classes: 10 };
    support::generated(dir, &format!("repeated{times}.onnx"), |common| {
        let mut model = mlp.build(common);
        let g = model.graph.mut_or_insert_default();
        let like = g.initializer.iter().find(|t| t.data_type == 1).unwrap().clone();
        for (name, value) in [("scale", 1.0f32), ("bias", 0.5), ("mean", 0.25), ("var", 2.0)] {
            let mut t = like.clone();
            (t.name, t.dims) = (name.to_owned(), vec![32]);
            t.raw_data = value.to_le_bytes().repeat(32);
            g.initializer.push(t);
        }
        let attribute = |name: &str, i: i64, f: f32| AttributeProto {
            name: name.to_owned(),
            type_: if f == 0.0 { AttributeType::INT } else { AttributeType::FLOAT }.into(),
            i,
            f,
            ..Default::default()
        };
        let strings = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let mut nodes: Vec<NodeProto> = (0..times)
            .map(|i| NodeProto {
                op_type: "BatchNormalization".to_owned(),
                input: strings(&["x", "scale", "bias", "mean", "var"]),
                output: strings(&[&format!("y{i}"), &format!("mean{i}"), &format!("var{i}")]),
                attribute: vec![attribute("training_mode", 1, 0.0), attribute("momentum", 0, momentum)],
                ..Default::default()
            })
            .collect();
        let all: Vec<String> = (0..times).map(|i| format!("y{i}")).collect();
        nodes.push(NodeProto {
            op_type: "Mean".to_owned(),
            input: all,
            output: strings(&["normal"]),
            ..Default::default()
        });
        let first = g.node.iter_mut().find(|n| n.input.iter().any(|i| i == "x")).unwrap();
        first.input.iter_mut().filter(|i| *i == "x").for_each(|i| *i = "normal".to_owned());
        nodes.append(&mut g.node);
        g.node = nodes;
        model
    })
}

#[test]
fn a_layer_that_runs_several_times_in_a_step_updates_its_statistics_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let data = support::mlp_data(dir.path(), 4);
    let statistics = |model: &str, more: &[&str]| {
        let saved = dir.path().join("saved.onnx").display().to_string();
        let fixed = [
            "train",
            model,
            "--loss",
            "cross-entropy",
            "--budget",
            "100%",
            "--data",
            &data,
            "--save",
            &saved,
        ];
        dtrc(&[&fixed[..], more].concat()).ok();
        ["mean", "var"].map(|n| support::initializer(saved.as_ref(), n)).concat()
    };
    // Three updates by one batch are one update of a third of the memory.
    let (thrice, once) = (repeated(dir.path(), 3, 0.75), repeated(dir.path(), 1, 0.75f32.powi(3)));
    for more in [&[][..], &["--accumulate", "2"]] {
        let (a, b) = (statistics(&thrice, more), statistics(&once, more));
        let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 2e-6, "{more:?}: {worst}");
        assert!(a.iter().any(|v| (v - 0.25).abs() > 0.1), "{more:?}: nothing moved");
    }
}
