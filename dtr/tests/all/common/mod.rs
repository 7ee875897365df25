//! Where the recorded logs and expected results are, shared by the tests that read them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use dtr::simrd::Log;

/// The folder `simrd` of the data. `None`, loudly, if there is none; in CI that fails.
pub fn simrd() -> Option<PathBuf> {
    test_support::data("simrd/spec_reimpl_results.csv")
        .map(|table| table.parent().expect("a folder").to_owned())
}

/// The recorded log of a model.
pub fn log(model: &str) -> Option<Log> {
    let folder = simrd()?.join("logs");
    let mut names: Vec<_> =
        std::fs::read_dir(folder).expect("logs").map(|entry| entry.expect("entry").path()).collect();
    names.sort();
    let starts = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("{model}-")))
    };
    let path = names.into_iter().find(starts).unwrap_or_else(|| panic!("no log of {model}"));
    Some(Log::parse(BufReader::new(File::open(path).expect("log"))).expect("a recorded log parses"))
}

/// The rows of a csv file, by column name.
pub fn csv(name: &str) -> Option<Vec<BTreeMap<String, String>>> {
    let text = std::fs::read_to_string(simrd()?.join(name)).expect("csv");
    let mut lines = text.lines();
    let columns: Vec<&str> = lines.next().expect("header").split(',').collect();
    let row = |line: &str| {
        columns
            .iter()
            .zip(line.split(','))
            .map(|(key, value)| ((*key).to_owned(), value.to_owned()))
            .collect()
    };
    Some(lines.map(row).collect())
}
