//! The trainable rule against what PyTorch calls parameters: the mapped sets of the reference files.

use crate::import_support;
use compiler::import::{Options, import, trainable::glob};
use std::collections::BTreeSet;

/// Where the rule and the mapping differ: model file, tensor, why.
const EXCEPTIONS: &str = include_str!("import_support/trainable_exceptions.tsv");

#[test]
fn candidates_are_the_mapped_tensors() {
    let Some(models) = import_support::models() else { return };
    let exceptions: Vec<[&str; 3]> = EXCEPTIONS
        .lines()
        .filter(|l| !l.starts_with('#'))
        .map(|l| {
            let mut parts = l.split('\t');
            std::array::from_fn(|_| parts.next().expect("three columns"))
        })
        .collect();
    let (mut compared, mut skipped, mut used) = (0, Vec::new(), BTreeSet::new());
    let mut differences = Vec::new();
    let mut references: Vec<_> =
        std::fs::read_dir(models.join("reference")).unwrap().map(|e| e.unwrap().path()).collect();
    references.sort();
    for path in references.iter().filter(|p| p.to_string_lossy().ends_with(".ref.json")) {
        let text = std::fs::read_to_string(path).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        for (file, mapping) in json["mapping"].as_object().unwrap() {
            let name = format!("small/{file}");
            if !models.join(&name).exists() {
                continue;
            }
            let options = Options { dims: import_support::dims(&name), ..Options::default() };
            let imported = match import(&models.join(&name), &options) {
                Ok(i) => i,
                Err(e) => {
                    skipped.push(e.to_string());
                    continue;
                }
            };
            compared += 1;
            let ours: BTreeSet<String> = imported.candidates.iter().map(|n| n.to_string()).collect();
            let theirs: BTreeSet<String> = mapping
                .as_object()
                .unwrap()
                .values()
                .filter_map(|v| Some(v[0].as_str()?.to_owned()))
                .collect();
            for (tensor, side) in theirs
                .difference(&ours)
                .map(|t| (t, "is mapped, but no candidate"))
                .chain(ours.difference(&theirs).map(|t| (t, "is a candidate, but not mapped")))
            {
                match exceptions.iter().find(|[f, t, _]| glob(f, file) && glob(t, tensor)) {
                    Some([f, t, why]) => {
                        println!("exception {file} {tensor}: {side}: {why}");
                        used.insert(format!("{f} {t}"));
                    }
                    None => differences.push(format!("{file}\t{tensor}\t{side}")),
                }
            }
        }
    }
    println!(
        "{compared} files compared, {} not imported, {} rows of exceptions used",
        skipped.len(),
        used.len()
    );
    for s in &skipped {
        println!("not imported: {s}");
    }
    // A row that explains nothing is out of date, unless its files could not be read.
    for [f, t, _] in &exceptions {
        let unread = skipped.iter().any(|s| s.split('/').any(|part| part.split(": ").any(|p| glob(f, p))));
        if !used.contains(&format!("{f} {t}")) && !unread {
            differences.push(format!("{f}\t{t}\tis an exception of nothing"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
