//! Steps in parts: a part that fails leaves the whole state as it was before the step, running statistics included.

use crate::support::{dtrc, floats, model, write};
use compiler::import::read_weights;
use std::path::Path;

const BATCH: usize = 16 * 3072;

/// Batches for the small residual network; those in `bad` hold a NaN.
fn batches(dir: &Path, name: &str, which: &[u64], bad: &[u64]) -> String {
    let mut x = Vec::new();
    for b in which {
        let mut batch = floats(BATCH, *b);
        if bad.contains(b) {
            batch[77] = f32::NAN;
        }
        x.extend(batch);
    }
    let rows = 16 * which.len() as u64;
    let labels: Vec<i64> = which.iter().flat_map(|b| (0..16).map(move |i| (i * 7 + *b as i64) % 3)).collect();
    write(&dir.join(name), (&[rows, 3, 32, 32], &x), (&[rows], &labels))
}

/// Trains and returns the saved model.
fn trained(dir: &Path, data: &str, more: &[&str]) -> Vec<u8> {
    let out = dir.join("out.onnx").display().to_string();
    let resnet = model("resnet_tiny");
    let fixed =
        ["train", &resnet, "--budget", "100%", "--work-limit", "20000", "--data", data, "--save", &out];
    dtrc(&[&fixed, more].concat()).ok();
    std::fs::read(out).unwrap()
}

#[test]
fn a_part_that_fails_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let three = ["--accumulate", "3", "--momentum", "0.9", "--on-nan", "skip"];
    let good = trained(d, &batches(d, "good.npz", &[4, 5, 6], &[]), &three);
    // Whichever part of the first step is no number, the second one finds everything as the first did.
    for bad in [1, 2, 3] {
        let data = batches(d, "bad.npz", &[1, 2, 3, 4, 5, 6], &[bad]);
        assert!(trained(d, &data, &three) == good, "part {bad}");
    }
    // And a step that counts does leave one.
    assert!(trained(d, &batches(d, "more.npz", &[1, 2, 3, 4, 5, 6], &[]), &three) != good);
}

#[test]
fn statistics_of_parts_are_those_of_steps() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let data = batches(d, "data.npz", &[1, 2, 3, 4], &[]);
    let read = |name: &str, more: &[&str]| {
        let path = d.join(name);
        std::fs::write(&path, trained(d, &data, &[&["--lr", "0"], more].concat())).unwrap();
        read_weights(&path).unwrap()
    };
    let (steps, parts) = (read("steps.onnx", &[]), read("parts.onnx", &["--accumulate", "4"]));
    let start = read_weights(model("resnet_tiny").as_ref()).unwrap();
    let mut moved = 0;
    for (name, _) in start.iter().filter(|(n, _)| n.contains("running_")) {
        let [was, a, b] = [&start, &steps, &parts].map(|w| w.literal(name).unwrap().to_floats());
        for ((was, a), b) in was.iter().zip(a).zip(b) {
            assert!((a - b).abs() <= 1e-6 * (1.0 + a.abs()), "{name}: {a} {b}");
            moved += usize::from(*was != b);
        }
    }
    assert!(moved > 100, "{moved}");
}

#[test]
fn parts_are_the_same_at_every_budget() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let data = batches(d, "data.npz", &[1, 2, 3, 4], &[]);
    let all = trained(d, &data, &["--accumulate", "2", "--check-recompute"]);
    let (resnet, out) = (model("resnet_tiny"), d.join("small.onnx"));
    let save = out.display().to_string();
    let fixed =
        ["train", &resnet, "--budget", "70%", "--work-limit", "20000", "--data", &data, "--save", &save];
    dtrc(&[&fixed[..], &["--accumulate", "2", "--check-recompute"]].concat()).ok();
    assert!(std::fs::read(out).unwrap() == all);
}
