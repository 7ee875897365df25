//! `--save`: training goes on from a saved model as if it had not stopped, and what cannot be written is said with nothing left behind.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx-models").join(name)
}

fn dtrc(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dtrc")).current_dir(dir).args(args).output().unwrap()
}

/// A little-endian array file; `kind` as numpy names the type.
fn npy(path: &Path, kind: &str, shape: &[u64], elements: &[u8]) {
    let shape: String = shape.iter().map(|d| format!("{d},")).collect();
    let mut head = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}");
    while (10 + head.len() + 1) % 64 != 0 {
        head.push(' ');
    }
    head.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((head.len() as u16).to_le_bytes());
    bytes.extend(head.as_bytes());
    bytes.extend(elements);
    fs::write(path, bytes).unwrap();
}

/// One batch of made-up data with labels from 0 to 7.
fn data(dir: &Path, shape: &[u64]) {
    let folder = dir.join("data");
    fs::create_dir(&folder).unwrap();
    let n: u64 = shape.iter().product();
    let x: Vec<u8> = (0..n).flat_map(|i| (((i * 7919) % 2003) as f32 / 1000.0 - 1.0).to_le_bytes()).collect();
    npy(&folder.join("x.npy"), "<f4", shape, &x);
    let labels: Vec<u8> = (0..shape[0]).flat_map(|i| (i as i64 * 3 % 8).to_le_bytes()).collect();
    npy(&folder.join("target.npy"), "<i8", &shape[..1], &labels);
}

/// Losses of a run, as JSON prints them, and its last object.
fn losses(dir: &Path, args: &[&str]) -> (Vec<f64>, serde_json::Value) {
    let fixed = ["--json", "--quiet", "train", "--budget", "100%", "--data", "data", "--lr", "0.05"];
    let out = dtrc(dir, &[&fixed, args].concat());
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8_lossy(&out.stdout);
    let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let losses = lines.iter().filter(|l| l.get("step").is_some()).map(|l| l["loss"].as_f64().unwrap());
    (losses.collect(), lines.last().unwrap().clone())
}

fn names(dir: &Path) -> Vec<String> {
    let mut out: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    out.sort();
    out
}

#[test]
fn training_goes_on_from_a_saved_model() {
    for (name, shape) in [("mlp_tiny.onnx", &[16, 32][..]), ("resnet_tiny.onnx", &[16, 3, 32, 32][..])] {
        let dir = tempfile::tempdir().unwrap();
        data(dir.path(), shape);
        fs::copy(model(name), dir.path().join("m.onnx")).unwrap();
        let original = fs::read(dir.path().join("m.onnx")).unwrap();
        let (all, _) = losses(dir.path(), &["m.onnx", "--steps", "4", "--epochs", "9"]);
        let (half, end) = losses(
            dir.path(),
            &["m.onnx", "--steps", "2", "--epochs", "9", "--save", "s.onnx", "--save-inference", "i.onnx"],
        );
        assert_eq!(end["saved"], serde_json::json!(["s.onnx", "i.onnx"]));
        let (rest, _) = losses(dir.path(), &["s.onnx", "--steps", "2", "--epochs", "9"]);
        assert_eq!([half, rest].concat(), all, "{name}");
        assert_ne!(all[0], all[3]);
        assert_eq!(fs::read(dir.path().join("m.onnx")).unwrap(), original);
        assert_eq!(fs::metadata(dir.path().join("s.onnx")).unwrap().len(), original.len() as u64);
        assert_eq!(names(dir.path()), ["data", "i.onnx", "m.onnx", "s.onnx"]);
        // Both files hold the same weights; the statistics have moved, too.
        let read = |f: &str| compiler::import::read_weights(&dir.path().join(f)).unwrap();
        let (old, saved, inference) = (read("m.onnx"), read("s.onnx"), read("i.onnx"));
        let mut moved = 0;
        for (n, _) in saved.iter() {
            assert!(saved.literal(n).unwrap() == inference.literal(n).unwrap(), "{name} {n}");
            moved += usize::from(saved.literal(n).unwrap() != old.literal(n).unwrap());
        }
        assert!(moved >= 6, "{name}: {moved} of {} tensors moved", saved.len());
    }
}

#[test]
fn what_cannot_be_saved_is_said_before_training() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(model("mlp_tiny.onnx"), dir.path().join("m.onnx")).unwrap();
    let original = fs::read(dir.path().join("m.onnx")).unwrap();
    let train = |args: &[&str]| {
        let fixed = ["train", "m.onnx", "--budget", "100%", "--synthetic", "--steps", "1"];
        let out = dtrc(dir.path(), &[&fixed, args].concat());
        (out.status.code().unwrap(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    for (args, code, text) in [
        (&["--save", "m.onnx"][..], 64, "another name"),
        (&["--save-inference", "./m.onnx"], 64, "another name"),
        (&["--save", "s.onnx", "--save-inference", "s.onnx"], 64, "two names"),
        (&["--save", "absent/s.onnx"], 74, "make its folder first"),
    ] {
        let (found, stderr) = train(args);
        assert_eq!(found, code, "{args:?}: {stderr}");
        assert!(stderr.contains(text) && !stderr.contains("step 1/1"), "{args:?}: {stderr}");
        assert_eq!(names(dir.path()), ["m.onnx"]);
    }
    assert_eq!(fs::read(dir.path().join("m.onnx")).unwrap(), original);
}

/// A file size limit stands for a full disk.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(model("mlp_tiny.onnx"), dir.path().join("m.onnx")).unwrap();
    let script = format!(
        "trap '' XFSZ; ulimit -f 8; exec '{}' train m.onnx --budget 100% --synthetic --steps 1 --save s.onnx",
        env!("CARGO_BIN_EXE_dtrc")
    );
    let out = Command::new("bash").current_dir(dir.path()).args(["-c", &script]).output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(74), "{stderr}");
    assert!(stderr.contains("s.onnx"), "{stderr}");
    assert_eq!(names(dir.path()), ["m.onnx"]);
}
