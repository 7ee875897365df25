//! BatchNormalization that was exported for inference: said, unless it is meant, and with `--batchnorm train` the training of the same
//! model that was exported for it.

mod support;

use compiler::import::{Weights, read_weights};
use std::path::Path;
use support::{Outcome, dtrc, model, resnet_data};

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
