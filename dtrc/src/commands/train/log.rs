//! `--log`: a line a step.

use crate::error::CliError;
use serde_json::json;
use std::{
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

/// One line a step, as JSON or CSV.
pub struct Log {
    out: BufWriter<File>,
    csv: bool,
    path: PathBuf,
}

impl Log {
    /// Opens the file, anew or to go on at its end.
    pub fn open(path: &Path, append: bool) -> Result<Log, CliError> {
        let fail = |e: std::io::Error| CliError::disk(path.display(), &e);
        let file = File::options()
            .create(true)
            .write(true)
            .append(append)
            .truncate(!append)
            .open(path)
            .map_err(fail)?;
        let fresh = file.metadata().map_err(fail)?.len() == 0;
        let csv = path.extension().is_some_and(|e| e == "csv");
        let mut out = BufWriter::new(file);
        if csv && fresh {
            writeln!(out, "step,epoch,loss,lr,seconds").map_err(fail)?;
        }
        Ok(Log { out, csv, path: path.to_owned() })
    }

    /// Writes a line.
    pub fn step(&mut self, step: u64, epoch: u64, loss: f64, lr: f64, seconds: f64) -> Result<(), CliError> {
        let line = if self.csv {
            format!("{step},{epoch},{loss},{lr},{seconds:.6}")
        } else {
            json!({"schema": 1, "step": step, "epoch": epoch, "loss": loss, "lr": lr, "seconds": seconds})
                .to_string()
        };
        writeln!(self.out, "{line}")
            .and_then(|()| self.out.flush())
            .map_err(|e| CliError::disk(self.path.display(), &e))
    }
}
