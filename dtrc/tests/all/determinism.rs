//! The same model and budget give the same plan bytes, in any process and on any number of threads.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx-models").join(name)
}

fn run(args: &[&str], threads: &str) -> Output {
    let run = Command::new(env!("CARGO_BIN_EXE_dtrc")).args(args).env("RAYON_NUM_THREADS", threads).output();
    run.unwrap_or_else(|e| panic!("{e}"))
}

fn dtrc(args: &[&str]) -> String {
    let run = run(args, "1");
    assert!(run.status.success(), "dtrc {args:?}: {}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

/// Compiles after a short search, within `budget` or within the least one that a refusal names.
fn compile(model: &Path, budget: &str, optimizer: &str, file: &Path, threads: &str) -> Vec<u8> {
    let compile = |budget: &str| {
        let (model, out) = (model.to_str().unwrap(), file.to_str().unwrap());
        let args = ["compile", model, "--budget", budget, "--optimizer", optimizer, "-o", out];
        run(&[&args[..], &["--work-limit", "100000", "-q"]].concat(), threads)
    };
    let mut result = compile(budget);
    let message = String::from_utf8_lossy(&result.stderr).into_owned();
    if result.status.code() == Some(2) {
        let least = message.split("give --budget ").nth(1).and_then(|s| s.split(')').next());
        result = compile(least.unwrap_or_else(|| panic!("no budget is named: {message}")));
    }
    assert!(result.status.success(), "{}: {}", model.display(), String::from_utf8_lossy(&result.stderr));
    std::fs::read(file).unwrap()
}

#[test]
fn two_processes_write_the_same_plan() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["mlp_tiny.onnx", "resnet_tiny.onnx", "transformer_tiny.onnx"] {
        let compile = |threads: &str, folder: &str, optimizer: &str| {
            // Another folder each time: no path enters the plan.
            let at = dir.path().join(folder);
            std::fs::create_dir_all(&at).unwrap();
            let file = at.join("plan.dtrc");
            let bytes = compile(&model(name), "60%", optimizer, &file, threads);
            (file.to_str().unwrap().to_owned(), bytes)
        };
        let (one, bytes) = compile("1", "a", "adamw");
        let (many, same) = compile("5", "b", "adamw");
        let (other, different) = compile("2", "c", "sgd");
        assert!(bytes == same, "{name}: the plan depends on the number of threads");
        assert!(bytes != different, "{name}: two optimizers give one plan");

        let text = dtrc(&["show", "--full", &one]);
        let parsed = plan::text::parse(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(plan::to_bytes(&parsed).unwrap() == bytes, "{name}: the exact text is another plan");
        assert!(dtrc(&["diff", &one, &many]).starts_with("numerics equal"));
        assert!(dtrc(&["diff", &one, &other]).starts_with("numerics differ"));
    }
}
