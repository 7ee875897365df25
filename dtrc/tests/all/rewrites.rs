//! `--rewrites` and `--explain-rewrites`.

use crate::support::{dtrc, model};

/// What the rewrites of the tiny transformer say, and the numerics of its plan.
fn compiled(level: &str) -> (serde_json::Value, String) {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("m.dtrc").display().to_string();
    let args = ["--json", "-q", "compile", &model("transformer_tiny"), "--budget", "100%", "-o", &plan];
    let out = dtrc(&[&args[..], &["--rewrites", level, "--explain-rewrites"]].concat()).ok();
    let objects = out.objects();
    let numerics = objects[1]["numerics"].as_str().unwrap().to_owned();
    (objects[0].clone(), numerics)
}

#[test]
fn levels_decide_what_is_rewritten() {
    let fired = |o: &serde_json::Value| -> Vec<String> {
        let all = o["programs"][0]["fired"].as_array().unwrap();
        all.iter().map(|f| f["rule"].as_str().unwrap().to_owned()).collect()
    };
    let (exact, exact_numerics) = compiled("exact");
    let (memory, memory_numerics) = compiled("memory");
    assert!(fired(&exact).iter().all(|r| r != "attention"), "{exact}");
    assert!(fired(&memory).iter().any(|r| r.contains("attention")), "{memory}");
    assert_ne!(exact_numerics, memory_numerics);
    let all = memory["programs"][0]["fired"].as_array().unwrap();
    assert!(all.iter().all(|f| f["at"].as_str().is_some_and(|a| !a.is_empty())), "{memory}");
    let saved: i64 = all.iter().filter_map(|f| f["bytes_saved"].as_i64()).sum();
    assert!(saved > 0, "{memory}");
}

#[test]
fn people_read_it_too() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("m.dtrc").display().to_string();
    let args = ["-q", "compile", &model("transformer_tiny"), "--budget", "100%", "-o", &plan];
    let out = dtrc(&[&args[..], &["--rewrites", "memory", "--explain-rewrites"]].concat()).ok();
    assert!(out.stdout.contains("rewrites of train, memory"), "{}", out.stdout);
    assert!(out.stdout.lines().any(|l| l.starts_with("fired") && l.contains("bytes")), "{}", out.stdout);
}
