//! Replaying a log under a budget that is a share of its own unconstrained peak.

use std::io::BufRead;
use std::time::Instant;

use serde::Serialize;

use crate::drive::drive;
use crate::error::Error;
use crate::heuristic::Heuristic;
use crate::machine::{Machine, Stats};
use crate::options::{Dealloc, Options};
use crate::simrd::parse::{Log, ParseError};
use crate::simrd::trace::trace_sha256;
use crate::world::{Event, Recorder};

/// How much memory a replay gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// A share of the unconstrained peak, truncated to whole bytes.
    Ratio(f64),
    /// Bytes.
    Bytes(u64),
}

/// Options of a replay.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// What goes first.
    pub heuristic: Heuristic,
    /// How much memory there is.
    pub budget: Budget,
    /// What happens to the dead.
    pub dealloc: Dealloc,
    /// Stop as thrashing once total compute exceeds this many times the unconstrained compute; the reference has 2.
    pub overhead_limit: Option<f64>,
    /// [`Options::order_remats`].
    pub order_remats: bool,
    /// [`Options::sample`].
    pub sample: bool,
    /// [`Options::skip_small`].
    pub skip_small: Option<f64>,
    /// [`Options::seed`].
    pub seed: u64,
    /// Keep the events in the report.
    pub trace: bool,
}

impl SimOptions {
    /// The reference's defaults: eager eviction, overhead limit 2.
    pub fn new(heuristic: Heuristic, budget: Budget) -> Self {
        Self {
            heuristic,
            budget,
            dealloc: Dealloc::Eager,
            overhead_limit: Some(2.0),
            order_remats: false,
            sample: false,
            skip_small: None,
            seed: 0,
            trace: false,
        }
    }
}

/// How a replay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// To the end.
    Ok,
    /// Out of memory.
    Oom,
    /// Over the overhead limit.
    Thrash,
}

/// The run without a budget, with banishing, from which ratios are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Baseline {
    /// Its peak in bytes.
    pub peak_bytes: u64,
    /// The cost of every op once, in nanoseconds.
    pub compute: u64,
}

/// What a replay came to. Costs are in nanoseconds, as recorded.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How it ended.
    pub status: Status,
    /// The heuristic's name.
    pub heuristic: String,
    /// The budget in bytes.
    pub budget_bytes: u64,
    /// Peak of the run without a budget.
    pub baseline_peak_bytes: u64,
    /// Compute of the run without a budget.
    pub baseline_compute: u64,
    /// Cost of all executions.
    pub total_compute: u64,
    /// Of them, first ones.
    pub model_compute: u64,
    /// Of them, repeated ones.
    pub remat_compute: u64,
    /// The clock at the end (it starts at 1) over the baseline's compute.
    pub overhead: f64,
    /// The most bytes resident at once.
    pub peak_bytes: u64,
    /// Storages dropped, the dead included.
    pub evictions: u64,
    /// Of them, dropped because they were dead.
    pub evictions_eager: u64,
    /// Repeated executions.
    pub remats: u64,
    /// Ops executed a first time, constants included.
    pub op_calls: u64,
    /// Scores compared; a score of 0 ends a comparison early in the reference, not in this count.
    pub scores: u64,
    /// Hash of the events.
    pub trace_sha256: String,
    /// Wall time of the replay, parsing, baseline and hashing excluded.
    pub seconds: f64,
    /// The failure in words, if it failed.
    pub failure: Option<String>,
    /// The events, if asked for.
    #[serde(skip)]
    pub trace: Vec<Event>,
}

/// A replay that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// The log cannot be read.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// The log does what no program can.
    #[error("line {line}: {source}")]
    Machine {
        /// Counted from 1.
        line: usize,
        /// The cause.
        #[source]
        source: Error,
    },
    /// The options contradict each other.
    #[error(transparent)]
    Setup(Error),
    /// A ratio or limit that is no number of at least 0.
    #[error("{0} must be a number of at least 0")]
    Options(&'static str),
}

impl Log {
    /// Runs the log without a budget, with banishing.
    ///
    /// # Errors
    /// [`SimulateError::Machine`] if the log is not a program.
    pub fn baseline(&self) -> Result<Baseline, SimulateError> {
        let options = Options { dealloc: Dealloc::Banish, ..Options::new(u64::MAX, Heuristic::Lru) };
        let mut machine = Machine::new(self.program.clone(), options).map_err(SimulateError::Setup)?;
        let (command, result) = drive(&mut machine, &self.schedule, &mut ());
        result.map_err(|source| self.impossible(command, source))?;
        let Stats { peak, first_cost, .. } = machine.stats();
        Ok(Baseline { peak_bytes: peak, compute: first_cost })
    }

    /// The failure of a command that no budget would let pass.
    fn impossible(&self, command: usize, source: Error) -> SimulateError {
        SimulateError::Machine { line: self.lines[command], source }
    }

    /// Replays the log.
    ///
    /// # Errors
    /// [`SimulateError`] if the log is not a program or an option is no number; running out of memory and thrashing are [`Status`].
    pub fn replay(&self, baseline: Baseline, options: &SimOptions) -> Result<Report, SimulateError> {
        let budget = match options.budget {
            Budget::Bytes(bytes) => bytes,
            Budget::Ratio(ratio) if ratio >= 0.0 => (baseline.peak_bytes as f64 * ratio) as u64,
            Budget::Ratio(_) => return Err(SimulateError::Options("the budget ratio")),
        };
        let remat_limit = match options.overhead_limit {
            None => None,
            Some(limit) if limit >= 0.0 => Some((baseline.compute as f64 * (limit - 1.0)) as u64),
            Some(_) => return Err(SimulateError::Options("the overhead limit")),
        };
        let machine_options = Options {
            budget,
            heuristic: options.heuristic,
            dealloc: options.dealloc,
            remat_limit,
            order_remats: options.order_remats,
            sample: options.sample,
            skip_small: options.skip_small,
            seed: options.seed,
        };
        let started = Instant::now();
        let mut recorder = Recorder { events: Vec::with_capacity(4 * self.program.tensor_count()) };
        let mut machine =
            Machine::new(self.program.clone(), machine_options).map_err(SimulateError::Setup)?;
        let (command, result) = drive(&mut machine, &self.schedule, &mut recorder);
        let seconds = started.elapsed().as_secs_f64();
        let (status, failure) = match result {
            Ok(()) => (Status::Ok, None),
            Err(error @ Error::Oom { .. }) => (Status::Oom, Some(error.to_string())),
            Err(error @ Error::Thrash { .. }) => (Status::Thrash, Some(error.to_string())),
            Err(source) => return Err(self.impossible(command, source)),
        };
        let stats = machine.stats();
        Ok(Report {
            status,
            heuristic: options.heuristic.to_string(),
            budget_bytes: budget,
            baseline_peak_bytes: baseline.peak_bytes,
            baseline_compute: baseline.compute,
            total_compute: stats.first_cost.saturating_add(stats.repeat_cost),
            model_compute: stats.first_cost,
            remat_compute: stats.repeat_cost,
            overhead: stats.clock as f64 / baseline.compute as f64,
            peak_bytes: stats.peak,
            evictions: stats.evictions,
            evictions_eager: stats.eager,
            remats: stats.remats,
            op_calls: stats.firsts,
            scores: stats.scores,
            trace_sha256: trace_sha256(&recorder.events),
            seconds,
            failure,
            trace: if options.trace { recorder.events } else { Vec::new() },
        })
    }
}

/// Reads a log, runs it once without a budget and once as asked.
///
/// # Errors
/// As [`Log::parse`] and [`Log::replay`].
pub fn simulate(log: impl BufRead, options: &SimOptions) -> Result<Report, SimulateError> {
    let log = Log::parse(log)?;
    log.replay(log.baseline()?, options)
}
