//! `torch MODEL`: PyTorch's step of the same model and sizes, by the script in the bundle, an item for each way to run it.

use super::held;
use crate::{
    Bundle,
    models::full,
    part::{Clock, Outcome, Part},
};
use serde_json::Value;
use std::{
    fs,
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

/// Ways to run a step: name, and what the script is told.
const WAYS: [(&str, &[&str]); 5] = [
    ("eager", &["--mode", "eager"]),
    ("checkpoint", &["--mode", "checkpoint"]),
    ("compile", &["--mode", "compile"]),
    ("compile at 0.6", &["--mode", "compile", "--memory-budget", "0.6"]),
    ("compile at 0.4", &["--mode", "compile", "--memory-budget", "0.4"]),
];

/// What is left for giving up a process and writing the file.
const SPARE: Duration = Duration::from_secs(5);

/// One model in all ways, in float32 without and with TF32, and in bfloat16.
pub fn run(bundle: &Bundle, part: &mut Part, model: &str) -> Result<(), String> {
    let (python, clock) =
        (std::env::var("DTRC_PYTHON").unwrap_or_else(|_| "python3".to_owned()), part.clock());
    for (precision, flags) in [("float32", &[][..]), ("tf32", &["--tf32"]), ("bf16", &["--amp", "bf16"])] {
        for (way, told) in WAYS {
            let item = format!("{precision} {way}");
            part.item(&item, || one(bundle, model, &python, &[told, flags].concat(), clock))?;
        }
    }
    Ok(())
}

fn one(bundle: &Bundle, model: &str, python: &str, told: &[&str], clock: Clock) -> Outcome {
    let Some(full) = full(model) else { return Outcome::Not(format!("no model {model}")) };
    let size = |name: &str| full.dims.iter().find(|d| d.0 == name).map_or(0, |d| d.1).to_string();
    if bundle.on.simulated() {
        return Outcome::Not("PyTorch is compared with on a GPU alone".to_owned());
    }
    let mut command = Command::new(python);
    command.arg(bundle.folder.join("torch_step.py")).arg(model).args([
        "--batch",
        &size("batch"),
        "--seq",
        &size("seq"),
    ]);
    command.args(["--device", "cuda"]).args(told);
    // Files, because nobody reads while the process runs.
    let files = || Some((tempfile::NamedTempFile::new().ok()?, tempfile::NamedTempFile::new().ok()?));
    let Some((out, said)) = files() else { return held(Err("no temporary files".to_owned())) };
    let streams = || Some((out.reopen().ok()?, said.reopen().ok()?));
    let Some((stdout, stderr)) = streams() else { return held(Err("no temporary files".to_owned())) };
    let child = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn();
    let mut child = match child {
        Ok(c) => c,
        Err(e) => {
            return Outcome::Not(format!(
                "{python} does not start: {e}; set DTRC_PYTHON to a Python with PyTorch"
            ));
        }
    };
    let success = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status.success(),
            Ok(None) if clock.left() < SPARE => {
                let _ = child.kill();
                let _ = child.wait();
                return Outcome::OutOfTime;
            }
            Ok(None) => sleep(Duration::from_millis(100)),
            Err(e) => return held(Err(e.to_string())),
        }
    };
    let read = |f: &tempfile::NamedTempFile| {
        String::from_utf8_lossy(&fs::read(f.path()).unwrap_or_default()).into_owned()
    };
    let (text, said) = (read(&out), read(&said));
    let figures = text.lines().last().and_then(|l| serde_json::from_str::<Value>(l).ok());
    match figures {
        Some(f) if success => match f.get("missing").and_then(Value::as_str) {
            Some(missing) => Outcome::Not(missing.to_owned()),
            None => Outcome::Held(f),
        },
        _ => {
            let last: Vec<&str> = said.lines().rev().take(3).collect();
            Outcome::Broke(last.into_iter().rev().collect::<Vec<_>>().join(" / "), Value::Null)
        }
    }
}
