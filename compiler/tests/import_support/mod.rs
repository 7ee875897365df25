//! Finds the shared models and says how their sizes are bound in the reference inputs.

use std::path::{Path, PathBuf};

/// Sizes of the models with unbound ones, one file a line: path, tab, bindings.
const DIMS: &str = include_str!("dims.tsv");

/// The folder of the models, or `None` after saying that the test is skipped. With `CI=true` its absence is a failure.
pub fn models() -> Option<PathBuf> {
    let named = std::env::var_os("DTRC_DATA").map(PathBuf::from);
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let beside = here.ancestors().map(|a| a.join("shared/data"));
    let found =
        named.into_iter().chain(beside).map(|d| d.join("models")).find(|d| d.join("MANIFEST.csv").exists());
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "the shared models are absent");
        // Past the test harness, which shows nothing of what a passing test prints.
        let _ = std::io::Write::write_fmt(
            &mut std::io::stderr(),
            format_args!("SKIPPED: the shared models are absent; set DTRC_DATA to the data folder\n"),
        );
    }
    found
}

/// All model files of some folders, sorted, relative to [`models`].
#[allow(dead_code)]
pub fn files(models: &Path, folders: &[&str]) -> Vec<String> {
    let mut out = Vec::new();
    for folder in folders {
        for entry in std::fs::read_dir(models.join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".onnx") {
                out.push(format!("{folder}/{name}"));
            }
        }
    }
    out.sort();
    out
}

/// Bindings of a model's sizes.
#[allow(dead_code)]
pub fn dims(file: &str) -> Vec<(String, i64)> {
    let line = DIMS.lines().filter_map(|l| l.split_once('\t')).find(|(f, _)| *f == file);
    let texts = line.map_or("", |(_, d)| d).split_whitespace();
    texts.map(|t| compiler::import::parse_binding(t).unwrap()).collect()
}
