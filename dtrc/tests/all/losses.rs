//! Losses that dtrc adds to a model: labels that do not count, and labels that are wrong.

use crate::support::{self, Outcome, dtrc, floats, scores_model, write};
use graph::DType;
use runtime::data::npz;
use std::path::Path;

/// 16 rows with these labels.
fn labelled(dir: &Path, name: &str, labels: &[i64; 16]) -> String {
    write(&dir.join(name), (&[16, 32], &floats(16 * 32, 1)), (&[16], labels))
}

/// The loss of one step, from the command's objects.
fn loss(o: &Outcome) -> f64 {
    o.losses()[0].parse().unwrap()
}

#[test]
fn ignored_labels_count_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let model = scores_model(dir.path());
    let train = |data: &str, loss: &str, more: &[&str]| {
        let fixed =
            ["--json", "train", &model, "--budget", "100%", "--loss", loss, "--steps", "1", "--data", data];
        dtrc(&[&fixed, more].concat())
    };
    // The loss of a few rows alone, by ignoring all others in two ways.
    let few = |hole: i64| std::array::from_fn(|i| if i % 4 == 0 { i as i64 / 2 } else { hole });
    let usual = labelled(dir.path(), "usual.npz", &few(-100));
    let other = labelled(dir.path(), "other.npz", &few(255));
    let all =
        labelled(dir.path(), "all.npz", &std::array::from_fn(|i| if i % 4 == 0 { i as i64 / 2 } else { 0 }));
    for kind in ["cross-entropy", "nll"] {
        let by_default = loss(&train(&usual, kind, &[]).ok());
        let asked = loss(&train(&other, kind, &["--ignore-index", "255"]).ok());
        assert_eq!(by_default, asked, "{kind}");
        assert_ne!(by_default, loss(&train(&all, kind, &[]).ok()), "{kind}");
        // A class may be ignored as well.
        let zero = loss(&train(&all, kind, &["--ignore-index", "0"]).ok());
        let but_first = std::array::from_fn(|i| if i % 4 == 0 && i > 0 { i as i64 / 2 } else { -100 });
        assert_eq!(zero, loss(&train(&labelled(dir.path(), "but.npz", &but_first), kind, &[]).ok()));
        // What is ignored is one label, no range.
        train(&other, kind, &[]).fails(65, &["label 255 at row 1", "outside of 0..10", "ignore_index -100"]);
        train(&usual, kind, &["--ignore-index", "-1"])
            .fails(65, &["label -100 at row 1", "outside of 0..10", "ignore_index -1"]);
    }
    train(&usual, "mse", &["--ignore-index", "3"]).fails(64, &["--ignore-index", "cross-entropy", "nll"]);
    let help = dtrc(&["train", "--help"]).ok().stdout;
    assert!(help.contains("--ignore-index") && help.contains("-100"));
}

#[test]
fn probabilities_of_exactly_0_or_1_have_finite_gradients() {
    let dir = tempfile::tempdir().unwrap();
    let mlp = onnx_models::Mlp { inputs: 32, hidden: vec![64], classes: 10 };
    let certain = support::generated(dir.path(), "certain.onnx", |common| {
        let mut model = mlp.build(common);
        let g = model.graph.mut_or_insert_default();
        // Scores far beyond where a sigmoid of float32 is 0 or 1.
        let mut factor = g.initializer.iter().find(|t| t.data_type == 1).unwrap().clone();
        (factor.name, factor.dims) = ("factor".to_owned(), Vec::new());
        factor.raw_data = 1e4f32.to_le_bytes().to_vec();
        g.initializer.push(factor);
        let y = std::mem::replace(&mut g.node.last_mut().unwrap().output[0], "scores".to_owned());
        for (op, input, output) in
            [("Mul", vec!["scores", "factor"], "large"), ("Sigmoid", vec!["large"], y.as_str())]
        {
            let input = input.into_iter().map(ToOwned::to_owned).collect();
            let node = onnx_protobuf::NodeProto {
                op_type: op.to_owned(),
                input,
                output: vec![output.to_owned()],
                ..Default::default()
            };
            g.node.push(node);
        }
        model
    });
    let data = dir.path().join("certain.npz").display().to_string();
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let (x, target) = (bytes(&floats(16 * 32, 1)), bytes(&[0.0, 1.0].repeat(80)));
    let arrays = [
        ("x", DType::F32, &[16, 32][..], x.as_slice()),
        ("target", DType::F32, &[16, 10], target.as_slice()),
    ];
    npz::write(std::fs::File::create(&data).unwrap(), arrays).unwrap();
    let train = ["--json", "train", &certain, "--budget", "100%", "--loss", "bce", "--steps", "3"];
    let losses = dtrc(&[&train[..], &["--lr", "0.0001", "--data", &data]].concat()).ok().losses();
    assert_eq!(losses.len(), 3);
    assert!(losses.iter().all(|l| l.parse::<f64>().unwrap().is_finite()), "{losses:?}");
}
