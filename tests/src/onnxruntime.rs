//! Programs written as ONNX and run by onnxruntime, as an independent check.

use graph::{Graph, Literal, ValueId};
use runtime::data::npz;
use serde_json::json;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// How far an output of another program may be off: absolute, and relative to the largest element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Absolute.
    pub atol: f64,
    /// Of the output's largest element.
    pub rtol: f64,
}

/// The interpreter of `DTRC_PYTHON`, or of the environment that continuous integration makes, if it has onnxruntime; otherwise `None`
/// after saying loudly that the test is skipped.
///
/// # Panics
///
/// If `CI` is set and there is none.
pub fn python() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let given = std::env::var_os("DTRC_PYTHON").map(PathBuf::from);
    let python = given.unwrap_or_else(|| root.join("../target/ci-venv/bin/python"));
    let has = Command::new(&python).args(["-c", "import onnxruntime, numpy"]).output();
    if has.is_ok_and(|o| o.status.success()) {
        return Some(python);
    }
    let how = "install tests/python/requirements.txt into target/ci-venv, or set DTRC_PYTHON";
    test_support::skipped(&format!("{} has no onnxruntime: {how}", python.display()));
    None
}

/// Writes a program's case: inputs that are no states, and outputs with their tolerances, by their names in the file.
///
/// # Panics
///
/// If a file cannot be written.
pub fn write_case(
    folder: &Path,
    graph: &Graph,
    given: &BTreeMap<ValueId, Literal>,
    outputs: &[(String, Literal, Tolerance)],
) {
    let inputs: Vec<(String, &Literal)> =
        graph.inputs.iter().map(|i| (graph.value(i.value).name.to_string(), &given[&i.value])).collect();
    let names: Vec<&str> = inputs.iter().map(|(n, _)| n.as_str()).collect();
    let arrays: Vec<&Literal> = inputs.iter().map(|(_, l)| *l).collect();
    let outputs: Vec<_> = outputs.iter().map(|(n, l, t)| (n.as_str(), l, *t)).collect();
    write_arrays(folder, &names, &arrays, &outputs);
}

/// Writes the arrays of a case: inputs by name, and outputs with their tolerances.
///
/// # Panics
///
/// If a file cannot be written.
pub fn write_arrays(
    folder: &Path,
    names: &[&str],
    inputs: &[&Literal],
    outputs: &[(&str, &Literal, Tolerance)],
) {
    let described: Vec<_> =
        outputs.iter().map(|(n, _, t)| json!({"name": n, "atol": t.atol, "rtol": t.rtol})).collect();
    let case = json!({"inputs": names, "outputs": described});
    fs::write(folder.join("case.json"), case.to_string()).unwrap();
    let write = |file: &str, arrays: Vec<&Literal>| {
        let numbers: Vec<String> = (0..arrays.len()).map(|i| i.to_string()).collect();
        let named = numbers.iter().zip(&arrays).map(|(n, l)| (n.as_str(), l.dtype(), l.shape(), l.bytes()));
        npz::write(fs::File::create(folder.join(file)).unwrap(), named).unwrap();
    };
    write("inputs.npz", inputs.to_vec());
    write("outputs.npz", outputs.iter().map(|(_, l, _)| *l).collect());
}

/// An empty folder for cases.
///
/// # Panics
///
/// If it cannot be made.
pub fn empty_folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/emitted-onnx").join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder).unwrap();
    }
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs all cases of a folder and returns what the script printed.
///
/// # Panics
///
/// If one disagrees.
pub fn run_all(python: &Path, folder: &Path) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/run_emitted.py");
    let out = Command::new(python).arg(script).arg(folder).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    println!("{text}");
    let failed: Vec<&str> = text.lines().filter(|l| l.starts_with("FAILED")).collect();
    assert!(out.status.success(), "{}\n{}", failed.join("\n"), String::from_utf8_lossy(&out.stderr));
    text
}

/// Trains with onnxruntime as `tests/python/train_emitted.py` describes; `case` is written to `path`.
///
/// # Panics
///
/// If the script fails.
pub fn train(python: &Path, path: &Path, case: &serde_json::Value) {
    fs::write(path, case.to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/train_emitted.py");
    let out = Command::new(python).arg(script).arg(path).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
