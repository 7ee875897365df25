//! `--log`: a line a step.

use super::evaluation::{Metrics, object};
use crate::error::CliError;
use serde_json::json;
use std::{
    fs::File,
    io::{BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

/// What is logged of a step.
pub struct Row {
    /// Number of the update, from 1.
    pub step: u64,
    /// Times the data was gone through before it.
    pub epoch: u64,
    /// Loss before the update.
    pub loss: f64,
    /// Learning rate.
    pub lr: f64,
    /// Duration.
    pub seconds: f64,
    /// Which of several programs ran, if there are several.
    pub program: Option<String>,
    /// Where the loss is scaled, by what, and how many steps were skipped so far.
    pub scaling: Option<Scaling>,
}

/// State of loss scaling after a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// The scale of the next step.
    pub scale: f64,
    /// Steps that were skipped so far because gradients were not finite.
    pub skipped: u64,
}

/// One line a step, as JSON or CSV.
pub struct Log {
    out: BufWriter<File>,
    csv: bool,
    /// Whether a line says which program ran.
    several: bool,
    /// Whether a line tells of loss scaling.
    scaled: bool,
    /// Names of what evaluation tells.
    metrics: Vec<String>,
    path: PathBuf,
}

impl Log {
    /// Opens the file, anew or to go on behind the line of step `after`. A line says which program ran if there are `several`, and by what
    /// the loss is scaled if it is; after evaluations it has these metrics, too.
    pub fn open(
        path: &Path,
        after: Option<u64>,
        (several, scaled): (bool, bool),
        metrics: &[String],
    ) -> Result<Log, CliError> {
        let fail = |e: std::io::Error| CliError::unwritable(path, &e);
        if let Some(step) = after {
            forget_later(path, step)?;
        }
        let mut options = File::options();
        options.create(true).append(after.is_some());
        let file = options.write(true).truncate(after.is_none()).open(path).map_err(fail)?;
        let fresh = file.metadata().map_err(fail)?.len() == 0;
        let csv = path.extension().is_some_and(|e| e == "csv");
        let mut out = BufWriter::new(file);
        if csv && fresh {
            let columns: String = metrics.iter().map(|m| format!(",eval_{m}")).collect();
            let program = if several { ",program" } else { "" };
            let scaling = if scaled { ",scale,skipped" } else { "" };
            writeln!(out, "step,epoch,loss,lr,seconds{program}{scaling}{columns}").map_err(fail)?;
        }
        Ok(Log { out, csv, several, scaled, metrics: metrics.to_vec(), path: path.to_owned() })
    }

    /// Writes a line.
    pub fn step(&mut self, row: &Row, evaluated: Option<&Metrics>) -> Result<(), CliError> {
        let Row { step, epoch, loss, lr, seconds, program, scaling } = row;
        let scaling = scaling.as_ref().filter(|_| self.scaled);
        let line = if self.csv {
            let cell = |name: &String| {
                let found = evaluated.and_then(|e| e.iter().find(|(n, _)| n == name));
                found.map_or_else(|| ",".to_owned(), |(_, x)| format!(",{x}"))
            };
            let cells: String = self.metrics.iter().map(cell).collect();
            let program = program.as_deref().filter(|_| self.several);
            let program = program.map_or_else(String::new, |p| format!(",{:?}", p));
            let scaling = scaling.map_or_else(String::new, |s| format!(",{},{}", s.scale, s.skipped));
            format!("{step},{epoch},{loss},{lr},{seconds:.6}{program}{scaling}{cells}")
        } else {
            let mut line = json!({"schema": 1, "step": step, "epoch": epoch, "loss": loss, "lr": lr, "seconds": seconds});
            if let Some(p) = program {
                line["program"] = p.as_str().into();
            }
            if let Some(s) = scaling {
                line["scale"] = s.scale.into();
                line["skipped"] = s.skipped.into();
            }
            if let Some(e) = evaluated {
                line["eval"] = object(e).into();
            }
            line.to_string()
        };
        writeln!(self.out, "{line}")
            .and_then(|()| self.out.flush())
            .map_err(|e| CliError::unwritable(&self.path, &e))
    }
}

/// Takes lines of steps after `step` out of a log, and a last line that was not finished: a run that was killed had come further than the
/// checkpoint from which it goes on.
fn forget_later(path: &Path, step: u64) -> Result<(), CliError> {
    let fail = |e: std::io::Error| CliError::unwritable(path, &e);
    // A pipe or a terminal has no past.
    if !path.metadata().is_ok_and(|m| m.is_file()) {
        return Ok(());
    }
    let file = File::options().read(true).write(true).open(path).map_err(fail)?;
    let (mut line, mut kept) = (Vec::new(), 0);
    let mut old = BufReader::new(&file);
    while old.read_until(b'\n', &mut line).map_err(fail)? > 0 {
        if !line.ends_with(b"\n") || step_of(&line).is_some_and(|s| s > step) {
            return file.set_len(kept).map_err(fail);
        }
        kept += line.len() as u64;
        line.clear();
    }
    Ok(())
}

/// The step of a line; `None` for the names of columns, and for what is no line of a log.
fn step_of(line: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(line).ok()?.trim_end();
    let cell = text.split(',').next()?;
    let number = || serde_json::from_str::<serde_json::Value>(text).ok()?.get("step")?.as_u64();
    cell.parse().ok().or_else(number)
}
