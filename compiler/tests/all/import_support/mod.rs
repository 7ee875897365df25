//! Finds the shared models and says how their sizes are bound in the reference inputs.

use std::path::{Path, PathBuf};

/// Sizes of the models with unbound ones, one file a line: path, tab, bindings.
const DIMS: &str = include_str!("dims.tsv");

/// The folder of the models, or `None` after saying that the test is skipped. With `CI=true` its absence is a failure.
pub fn models() -> Option<PathBuf> {
    test_support::data("models/MANIFEST.csv").map(|list| list.parent().expect("a folder").to_owned())
}

/// All model files of some folders, sorted, relative to [`models`].
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
pub fn dims(file: &str) -> Vec<(String, i64)> {
    let line = DIMS.lines().filter_map(|l| l.split_once('\t')).find(|(f, _)| *f == file);
    let texts = line.map_or("", |(_, d)| d).split_whitespace();
    texts.map(|t| compiler::import::parse_binding(t).unwrap()).collect()
}
