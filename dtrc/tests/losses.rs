//! Losses that dtrc adds to a model: labels that do not count, and labels that are wrong.

mod support;

use std::path::Path;
use support::{Outcome, dtrc, floats, scores_model, write};

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
