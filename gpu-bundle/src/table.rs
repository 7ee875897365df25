//! All parts' results as one file and as a table.

use crate::{
    PARTS,
    part::{Results, State, write_aside},
};
use serde_json::{Value, json};
use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

/// Results of all parts in a bundle, in the order of [`PARTS`].
pub fn all(folder: &Path) -> Result<Vec<Results>, String> {
    let folder = folder.join("results");
    let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut found = Vec::new();
    for path in entries.filter_map(|e| Some(e.ok()?.path())) {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let ours = name.ends_with(".json") && !name.ends_with(".before.json");
        let rank = PARTS
            .iter()
            .position(|p| name.strip_suffix(".json").is_some_and(|n| n.split('-').next() == Some(p.0)));
        let (Some(rank), true) = (rank, ours) else { continue };
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let results: Results = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        found.push((rank, results));
    }
    found.sort_by(|a, b| (a.0, &a.1.part).cmp(&(b.0, &b.1.part)));
    Ok(found.into_iter().map(|f| f.1).collect())
}

/// Merges results of one device into `gpu-<device>.json` in a folder.
pub fn merge(results: &[Results], to: &Path) -> Result<PathBuf, String> {
    let first = results.first().ok_or("there are no results: run a part first")?;
    if let Some(other) = results.iter().find(|r| r.device.name != first.device.name) {
        let (a, b) = (&first.device.name, &other.device.name);
        return Err(format!("results of two devices, {a} and {b}: remove those of one"));
    }
    let name: String = first.device.name.to_lowercase().split_whitespace().collect::<Vec<_>>().join("-");
    let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    let builds: Vec<&str> = results.iter().map(|r| r.build.as_str()).collect();
    let parts: Vec<Value> = results
        .iter()
        .map(|r| json!({"part": r.part, "build": r.build, "items": r.items, "left": r.left}))
        .collect();
    let whole = json!({"schema": 1, "device": first.device, "one_build": builds.windows(2).all(|w| w[0] == w[1]), "parts": parts,
        "parts_not_run": missing(results)});
    let text = serde_json::to_string_pretty(&whole).map_err(|e| e.to_string())?;
    let path = to.join(format!("gpu-{name}.json"));
    write_aside(&path, text.as_bytes())?;
    Ok(path)
}

/// Parts that have no result at all.
fn missing(results: &[Results]) -> Vec<String> {
    let mut all = Vec::new();
    for (name, takes_model, _) in PARTS {
        let titles = if takes_model {
            crate::MODELS.map(|m| format!("{name}-{m}")).to_vec()
        } else {
            vec![name.to_owned()]
        };
        all.extend(titles.into_iter().filter(|t| results.iter().all(|r| r.part != *t)));
    }
    all
}

/// A table for people: what held, what did not, what was not run; step times and peaks beside PyTorch's.
pub fn table(results: &[Results]) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    if let Some(r) = results.first() {
        let _ = writeln!(
            out,
            "{}, compute capability {}, driver for CUDA {}\n",
            r.device.name, r.device.architecture, r.device.driver_version
        );
    }
    let _ = writeln!(out, "| part | done | failed | cut | not run | left |\n|---|---|---|---|---|---|");
    for r in results {
        let count = |s: State| r.items.values().filter(|i| i.state == s).count();
        let (done, failed, cut, not) =
            (count(State::Done), count(State::Failed), count(State::Cut), count(State::NotRun));
        let _ = writeln!(out, "| {} | {done} | {failed} | {cut} | {not} | {} |", r.part, r.left.len());
    }
    for part in missing(results) {
        let _ = writeln!(out, "| {part} | | | | | not run |");
    }
    let steps: Vec<&Results> =
        results.iter().filter(|r| r.part.starts_with("speed-") || r.part.starts_with("torch-")).collect();
    if !steps.is_empty() {
        let _ = writeln!(
            out,
            "\n| step | seconds | predicted | peak GiB | reserved GiB |\n|---|---|---|---|---|"
        );
    }
    for r in steps {
        for (name, item) in r.items.iter().filter(|(_, i)| i.state == State::Done) {
            let number = |keys: &[&str]| keys.iter().find_map(|k| item.figures.get(k)?.as_f64());
            let seconds = number(&["median_seconds"]).map_or(String::new(), |s| format!("{s:.5}"));
            let predicted = number(&["predicted_seconds"]).map_or(String::new(), |s| format!("{s:.5}"));
            let gib = |b: Option<f64>| b.map_or(String::new(), |b| format!("{:.3}", b / f64::from(1 << 30)));
            let (peak, reserved) =
                (gib(number(&["arena_bytes", "allocated_bytes"])), gib(number(&["reserved_bytes"])));
            let _ = writeln!(out, "| {} {name} | {seconds} | {predicted} | {peak} | {reserved} |", r.part);
        }
    }
    let bad: Vec<(&Results, &String, &crate::part::Item)> = results
        .iter()
        .flat_map(|r| r.items.iter().map(move |(n, i)| (r, n, i)))
        .filter(|x| x.2.state != State::Done)
        .collect();
    for (r, name, item) in bad {
        let _ = writeln!(
            out,
            "\n{} {name}: {:?}: {}",
            r.part,
            item.state,
            item.note.chars().take(300).collect::<String>()
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        device::Described,
        part::{Clock, Outcome, Part},
    };

    #[test]
    fn results_are_merged_and_say_what_was_not_run() {
        let dir = tempfile::tempdir().unwrap();
        let device = Described { name: "NVIDIA X 9".to_owned(), ..Described::default() };
        let open = |name: &str| Part::open(dir.path(), name, device.clone(), Clock::seconds(600)).unwrap();
        open("smoke").item("a", || Outcome::Held(json!(1))).unwrap();
        let mut speed = open("speed-gpt2");
        speed
            .item("float32 at 100%", || {
                Outcome::Held(json!({"median_seconds": 0.25, "arena_bytes": 1u64 << 30}))
            })
            .unwrap();
        speed.item("bf16 at 100%", || Outcome::Not("there is none".to_owned())).unwrap();
        let results = all(dir.path()).unwrap();
        let text = table(&results);
        assert!(text.contains("| speed-gpt2 | 1 | 0 | 0 | 1 | 0 |"), "{text}");
        assert!(
            text.contains("0.25000") && text.contains("1.000") && text.contains("there is none"),
            "{text}"
        );
        assert!(text.contains("| kernels | | | | | not run |"), "{text}");
        let path = merge(&results, dir.path()).unwrap();
        assert!(path.ends_with("gpu-nvidia-x-9.json"), "{}", path.display());
        let whole: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(whole["parts"][1]["items"]["bf16 at 100%"]["state"], "not-run");
        let other =
            Part::open(dir.path(), "kernels", Described::default(), Clock::seconds(1)).unwrap().close();
        assert!(
            other.is_ok()
                && merge(&all(dir.path()).unwrap(), dir.path()).unwrap_err().contains("two devices")
        );
    }
}
