//! A step that is skipped for its loss leaves no trace: Adam goes on as if the batch had not been there.

use crate::support::{
    dtrc, floats, initializer,
    onnx::{graph, int, node, weight, write},
};
use graph::DType;
use runtime::data::npz;
use std::path::Path;

/// The mean logarithm of positive numbers times weights; of negative ones no number.
fn model(dir: &Path) -> String {
    let nodes = vec![
        node("Mul", "x w", "y", vec![]),
        node("Log", "y", "l", vec![]),
        node("Mul", "l l", "square", vec![]),
        node("ReduceMean", "square", "loss", vec![int("keepdims", 0)]),
    ];
    write(
        dir,
        "log.onnx",
        17,
        graph("x[N,4]", nodes, "loss[]", vec![weight("w", &[4], &[1.0, 2.0, 0.5, 3.0])]),
    )
}

/// Batches of three rows; those of `bad` have no loss.
fn batches(dir: &Path, which: &[u64], bad: &[u64]) -> String {
    let batch = |b: &u64| {
        let sign = if bad.contains(b) { -1.0 } else { 1.0 };
        floats(12, *b).into_iter().map(move |v| sign * (1.5 + v))
    };
    let x: Vec<u8> = which.iter().flat_map(batch).flat_map(f32::to_le_bytes).collect();
    let path = dir.join("data.npz");
    let shape = [which.len() as u64, 3, 4];
    npz::write(std::fs::File::create(&path).unwrap(), [("x", DType::F32, &shape[..], &x[..])]).unwrap();
    path.display().to_string()
}

fn trained(dir: &Path, data: &str, more: &[&str]) -> Vec<f32> {
    let (model, out) = (model(dir), dir.join("out.onnx"));
    let saved = out.display().to_string();
    let fixed = [
        "train", &model, "--data", data, "--budget", "1M", "--lr", "0.1", "--on-nan", "skip", "--save",
        &saved,
    ];
    dtrc(&[&fixed, more].concat()).ok();
    initializer(&out, "w")
}

const SIZES: [&[&str]; 3] = [&[], &["--dim", "N=3"], &["--dim", "N=2,4"]];

#[test]
fn a_skipped_batch_is_no_update_of_adam() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    for how in [&["--optimizer", "adam"][..], &["--optimizer", "adamw", "--amp", "fp16"]] {
        for sizes in SIZES {
            let more = [how, sizes].concat();
            let good = trained(d, &batches(d, &[2, 4, 5], &[]), &more);
            for (which, bad) in
                [(&[1, 2, 4, 5][..], &[1][..]), (&[2, 3, 4, 5], &[3]), (&[1, 2, 3, 4, 5], &[1, 3])]
            {
                assert_eq!(trained(d, &batches(d, which, bad), &more), good, "{bad:?}, {more:?}");
            }
            assert_ne!(trained(d, &batches(d, &[2, 4, 5, 6], &[]), &more), good);
        }
    }
}

#[test]
fn a_step_with_a_bad_part_is_no_update() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    for sizes in SIZES {
        let more = [&["--optimizer", "adam", "--accumulate", "2"], sizes].concat();
        let good = trained(d, &batches(d, &[3, 4, 5, 6], &[]), &more);
        for bad in [1, 2] {
            let data = batches(d, &[1, 2, 3, 4, 5, 6], &[bad]);
            assert_eq!(trained(d, &data, &more), good, "part {bad}, {more:?}");
        }
    }
}

#[test]
fn the_count_of_updates_outlives_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let folder = d.join("checkpoints").display().to_string();
    for sizes in SIZES {
        let more = [&["--optimizer", "adam"], sizes].concat();
        let good = trained(d, &batches(d, &[2, 4, 5], &[]), &more);
        let data = batches(d, &[1, 2, 3, 4, 5], &[1, 3]);
        for steps in ["1", "2", "3"] {
            let _ = std::fs::remove_dir_all(&folder);
            let kept = [&more[..], &["--checkpoint", &folder]].concat();
            trained(d, &data, &[&kept[..], &["--steps", steps]].concat());
            assert_eq!(trained(d, &data, &[&kept[..], &["--resume"]].concat()), good, "{steps}, {more:?}");
        }
        // Buckets and what is walked at every step go on from each other's checkpoints.
        if !sizes.contains(&"N=3") {
            let _ = std::fs::remove_dir_all(&folder);
            let kept = ["--optimizer", "adam", "--checkpoint", &folder];
            trained(d, &data, &[&kept[..], sizes, &["--steps", "2"]].concat());
            let other: &[&str] = if sizes.is_empty() { &["--dim", "N=2,4"] } else { &[] };
            assert_eq!(trained(d, &data, &[&kept[..], other, &["--resume"]].concat()), good, "{sizes:?}");
        }
        // A step that ended a run is made again with other data, as the update that it is.
        let _ = std::fs::remove_dir_all(&folder);
        let kept = [&more[..], &["--checkpoint", &folder]].concat();
        let model = model(d);
        let fixed = ["train", &model, "--data", &data, "--budget", "1M", "--lr", "0.1"];
        dtrc(&[&fixed[..], &kept].concat()).fails(1, &["step 1", "the loss is NaN"]);
        let data = batches(d, &[2, 4, 5], &[]);
        let again = if Path::new(&folder).exists() { vec!["--resume"] } else { vec![] };
        assert_eq!(trained(d, &data, &[&kept[..], &again].concat()), good, "{more:?}");
    }
}
