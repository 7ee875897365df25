//! What the system counts: a real ResNet-18 step of 32 images in half of keep-all's memory stays within the budget, 64 MiB and a batch.

use std::{path::Path, process::Command};

fn dtrc(dir: &Path, args: &[&str]) -> serde_json::Value {
    let out = Command::new(env!("CARGO_BIN_EXE_dtrc")).current_dir(dir).args(args).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8_lossy(&out.stdout);
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn resident_memory_stays_within_budget_and_batch() {
    let Some(source) = tests::data("models/topology") else { return };
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(source.join("resnet18.ts_loss.onnx"), dir.path().join("resnet18.ts_loss.onnx")).unwrap();
    // Weights of zeros are as large as any others.
    let index = std::fs::read_to_string(source.join("weights_index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    let entry = &index["resnet18"];
    let file = std::fs::File::create(dir.path().join(entry["file"].as_str().unwrap())).unwrap();
    file.set_len(entry["size"].as_u64().unwrap()).unwrap();
    let compiled = dtrc(
        dir.path(),
        &["--json", "--quiet", "compile", "resnet18.ts_loss.onnx", "--budget", "50%", "-o", "r.dtrc"],
    );
    let budget = compiled["budget_bytes"].as_u64().unwrap();
    assert!(compiled["arena_bytes"].as_u64().unwrap() <= budget);
    let trained = dtrc(
        dir.path(),
        &[
            "--json",
            "--quiet",
            "train",
            "r.dtrc",
            "--weights",
            "resnet18.ts_loss.onnx",
            "--synthetic",
            "--steps",
            "1",
        ],
    );
    let resident = trained["peak_anonymous_rss_bytes"].as_u64().unwrap();
    let batch = 32 * 3 * 224 * 224 * 4 + 32 * 8;
    println!("budget {budget}, resident {resident}");
    assert!(resident <= budget + (64 << 20) + batch, "{resident} resident bytes with a budget of {budget}");
}
