//! The same model and budget give the same plan bytes, in any process and on any number of threads.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx-models").join(name)
}

fn dtrc(args: &[&str], threads: &str) -> String {
    let run = Command::new(env!("CARGO_BIN_EXE_dtrc"))
        .args(args)
        .env("RAYON_NUM_THREADS", threads)
        .output()
        .unwrap_or_else(|e| panic!("{e}"));
    let stderr = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "dtrc {args:?}: {stderr}");
    String::from_utf8(run.stdout).unwrap()
}

#[test]
fn two_processes_write_the_same_plan() {
    let dir = tempfile::tempdir().unwrap();
    for (name, budget) in
        [("mlp_tiny.onnx", "70%"), ("unet_tiny.onnx", "60%"), ("transformer_tiny.onnx", "70%")]
    {
        let model = model(name);
        let compile = |threads: &str, folder: &str, optimizer: &str| {
            // Another folder each time: no path enters the plan.
            let at = dir.path().join(folder);
            std::fs::create_dir_all(&at).unwrap();
            let file = at.join("plan.dtrc");
            let (model, out) = (model.to_str().unwrap(), file.to_str().unwrap());
            dtrc(&["compile", model, "--budget", budget, "--optimizer", optimizer, "-o", out, "-q"], threads);
            file
        };
        let one = compile("1", "a", "adamw");
        let many = compile("5", "b", "adamw");
        let other = compile("2", "c", "sgd");
        let read = |p: &Path| std::fs::read(p).unwrap();
        assert!(read(&one) == read(&many), "{name}: the plan depends on the number of threads");
        assert!(read(&one) != read(&other), "{name}: two optimizers give one plan");

        let (a, c) = (one.to_str().unwrap(), other.to_str().unwrap());
        let text = dtrc(&["show", "--full", a], "1");
        let parsed = plan::text::parse(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(plan::to_bytes(&parsed).unwrap() == read(&one), "{name}: the exact text is another plan");
        assert!(dtrc(&["diff", a, many.to_str().unwrap()], "1").starts_with("numerics equal"));
        assert!(dtrc(&["diff", a, c], "1").starts_with("numerics differ"));
    }
}
