//! Evaluation while training: loss and accuracy, against what the model's own outputs say.

use crate::support::{Outcome, dtrc, floats, generated, mlp_data, model, scores_model, write};
use runtime::data::npz::Npz;
use serde_json::Value;
use std::path::Path;

/// Mean cross entropy and share of right rows over all rows of scores `[rows, classes]` whose label is not -100.
fn by_hand(scores: &[f64], labels: &[i64]) -> (f64, f64) {
    let classes = scores.len() / labels.len();
    let (mut loss, mut right, mut n) = (0.0, 0.0, 0.0);
    for (row, label) in scores.chunks_exact(classes).zip(labels).filter(|(_, l)| **l != -100) {
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|x| (x - top).exp()).sum();
        loss += sum.ln() + top - row[*label as usize];
        right += f64::from(row[*label as usize] == top);
        n += 1.0;
    }
    (loss / n, right / n)
}

/// Scores of a model for all batches of data.
fn scores(dir: &Path, model: &str, data: &str) -> Vec<f64> {
    let out = dir.join("y.npz");
    let path = out.display().to_string();
    dtrc(&["run", model, "--inference", "--data", data, "--batches", "0", "-o", &path]).ok();
    Npz::open(&out).unwrap().read("y").unwrap().to_floats()
}

/// What evaluations told: (step, object).
fn evals(o: &Outcome) -> Vec<(u64, Value)> {
    let eval = |o: &Value| Some((o.get("step")?.as_u64()?, o.get("eval")?.clone()));
    o.objects().iter().filter_map(eval).collect()
}

/// Labels that are right now and then.
fn labels(scores: &[f64], rows: usize, ignored: impl Fn(usize) -> bool) -> Vec<i64> {
    let classes = scores.len() / rows;
    let best = |row: &[f64]| (0..classes).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as i64;
    let label = |(i, row): (usize, &[f64])| match i {
        i if ignored(i) => -100,
        i if i % 3 == 0 => best(row),
        i => (i % classes) as i64,
    };
    scores.chunks_exact(classes).enumerate().map(label).collect()
}

#[test]
fn loss_and_accuracy_are_those_of_the_outputs() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let model = scores_model(d);
    let x = floats(48 * 32, 5);
    let plain = write(&d.join("plain.npz"), (&[48, 32], &x), (&[48], &vec![0; 48]));
    let y = scores(d, &model, &plain);
    // More are ignored in each batch than in the one before.
    let labels = labels(&y, 48, |i| i % 16 < i / 16 * 5);
    let (loss, accuracy) = by_hand(&y, &labels);
    assert!(accuracy > 0.3 && accuracy < 0.9, "{accuracy}");
    let data = write(&d.join("data.npz"), (&[48, 32], &x), (&[48], &labels));
    let log = |name: &str| d.join(name).display().to_string();
    let fixed = [
        "--json",
        "train",
        &model,
        "--budget",
        "100%",
        "--loss",
        "cross-entropy",
        "--lr",
        "0",
        "--steps",
        "5",
    ];
    let more = ["--data", &data, "--eval-data", &data, "--eval-every", "2", "--metric", "loss,accuracy"];
    let train = |log: &str| dtrc(&[&fixed[..], &more, &["--log", log]].concat()).ok();
    let out = train(&log("l.jsonl"));
    let all = evals(&out);
    assert_eq!(all.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [2, 4, 5]);
    let check = |e: &Value| {
        let (l, a) = (e["loss"].as_f64().unwrap(), e["accuracy"].as_f64().unwrap());
        assert!((l - loss).abs() < 1e-5 && (a - accuracy).abs() < 1e-12, "{l} {loss}, {a} {accuracy}");
    };
    all.iter().for_each(|(_, e)| check(e));
    check(&out.objects().last().unwrap()["eval"]);
    // The log has them where they were taken.
    let text = std::fs::read_to_string(log("l.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    for (i, line) in lines.iter().enumerate() {
        assert_eq!(line.get("eval").is_some(), [1, 3, 4].contains(&i), "{line}");
        line.get("eval").into_iter().for_each(check);
    }
    train(&log("l.csv"));
    let text = std::fs::read_to_string(log("l.csv")).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|l| l.split(',').collect()).collect();
    assert_eq!(rows[0][5..], ["eval_loss", "eval_accuracy"]);
    assert_eq!((rows[1][5..].concat().as_str(), rows[2][6]), ("", accuracy.to_string().as_str()));
    // For people, beside the progress.
    let out = dtrc(&[&fixed[1..], &more].concat()).ok();
    let shown = format!("accuracy {:.2} %", accuracy * 100.0);
    assert!(
        out.stderr
            .contains(&format!("evaluation after step 2: loss {:.6}", all[0].1["loss"].as_f64().unwrap())),
        "{}",
        out.stderr
    );
    assert!(out.stderr.contains("step 5/5") && out.stderr.matches(&shown).count() >= 4, "{}", out.stderr);
    assert!(out.stdout.contains(&shown), "{}", out.stdout);
    // Wrong labels are wrong there, too.
    let mut wrong = labels.clone();
    wrong[20] = 10;
    let wrong = write(&d.join("wrong.npz"), (&[48, 32], &x), (&[48], &wrong));
    let more = ["--data", &data, "--eval-data", &wrong, "--metric", "accuracy"];
    dtrc(&[&fixed[..], &more].concat())
        .fails(65, &["evaluation, batch 1", "label 10 at row 4", "outside of 0..10"]);
}

#[test]
fn classes_of_pixels_are_counted_along_their_axis() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let unet = onnx_models::UNet { levels: 1, width: 4, classes: 5, size: 8, channels: 3 };
    let model = generated(d, "unet.onnx", |c| unet.build(c));
    let (n, pixels) = (16 * 64, 64);
    let x = floats(16 * 3 * 64, 5);
    let file = |name: &str, labels: &[i64]| write(&d.join(name), (&[16, 3, 8, 8], &x), (&[16, 8, 8], labels));
    let y = scores(d, &model, &file("plain.npz", &vec![0; n]));
    let y: Vec<f64> = (0..n)
        .flat_map(|i| (0..5).map(move |c| (i / pixels * 5 + c) * pixels + i % pixels))
        .map(|at| y[at])
        .collect();
    let labels = labels(&y, n, |i| i % 7 == 0);
    let (loss, accuracy) = by_hand(&y, &labels);
    let data = file("data.npz", &labels);
    let fixed = [
        "--json",
        "train",
        &model,
        "--budget",
        "100%",
        "--loss",
        "cross-entropy",
        "--lr",
        "0",
        "--batchnorm",
        "frozen",
    ];
    let out =
        dtrc(&[&fixed[..], &["--data", &data, "--eval-data", &data, "--metric", "accuracy,loss"]].concat());
    let (_, e) = evals(&out.ok()).pop().unwrap();
    let (l, a) = (e["loss"].as_f64().unwrap(), e["accuracy"].as_f64().unwrap());
    assert!(accuracy > 0.1 && accuracy < 0.9, "{accuracy}");
    assert!((l - loss).abs() < 1e-4 && (a - accuracy).abs() < 1e-12, "{l} {loss}, {a} {accuracy}");
}

#[test]
fn plans_tell_what_they_were_compiled_for() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let (mlp, data) = (model("mlp_tiny"), mlp_data(d, 3));
    let plan = d.join("p.dtrc").display().to_string();
    let compile =
        |more: &[&str]| dtrc(&[&["compile", &mlp, "--budget", "100%", "-o", &plan], more].concat()).ok();
    let train = |more: &[&str]| {
        let fixed = ["--json", "train", &plan, "--weights", &mlp, "--lr", "0", "--data", &data];
        dtrc(&[&fixed, more].concat())
    };
    let eval = ["--eval-data", data.as_str()];
    let both = [&eval[..], &["--metric", "loss,accuracy"]].concat();
    compile(&[]);
    train(&eval).fails(65, &["no inference program", "--metric"]);
    // The model's own outputs: the loss is a scalar and is told under its name.
    compile(&["--with-inference"]);
    let (_, own) = evals(&train(&eval).ok()).pop().unwrap();
    train(&both).fails(65, &["gives no loss", "compile it with --metric"]);
    compile(&["--metric", "loss"]);
    let (_, loss) = evals(&train(&eval).ok()).pop().unwrap();
    assert!((own["loss"].as_f64().unwrap() - loss["loss"].as_f64().unwrap()).abs() < 1e-6, "{own} {loss}");
    train(&both).fails(65, &["gives no accuracy", "compile it with --metric loss,accuracy"]);
    compile(&["--metric", "loss,accuracy"]);
    let (_, e) = evals(&train(&eval).ok()).pop().unwrap();
    assert_eq!(e["loss"], loss["loss"]);
    assert!(e["accuracy"].as_f64().is_some_and(|a| (0.0..=1.0).contains(&a)), "{e}");
    let (_, e) = evals(&train(&[&eval[..], &["--metric", "accuracy"]].concat()).ok()).pop().unwrap();
    assert!(e.get("loss").is_none(), "{e}");
    train(&["--metric", "loss"]).fails(64, &["--metric", "--eval-data"]);
    // Accuracy is of classes.
    let scores = scores_model(d);
    dtrc(&["compile", &scores, "--budget", "100%", "--loss", "mse", "--metric", "accuracy", "-o", &plan])
        .fails(65, &["accuracy without class labels", "cross-entropy"]);
}
