//! The commands; each has its arguments and its code in one file.

use crate::{commands, units};
use clap::{Parser, Subcommand};

/// Trains ONNX models inside a memory budget.
///
/// `dtrc compile model.onnx --budget 4G` reads a model, builds its training step and plans that step so that it never needs more than the
/// budget: which tensors to keep, which to drop and recompute, in what order, and where each one lies. `dtrc train` runs it. A plan needs
/// no more memory than it says, and gives the same numbers at every budget.
#[derive(Debug, Parser)]
#[command(name = "dtrc", version, max_term_width = 110, after_help = EXIT_CODES)]
pub struct Cli {
    /// Print one JSON object a line to stdout (versioned by "schema").
    #[arg(long, global = true)]
    pub json: bool,

    /// No progress and no notes.
    #[arg(long, short, global = true)]
    pub quiet: bool,

    /// Memory that reading a model may take beyond 3 times its file: a guard against files made to exhaust it, 64M unless given here.
    #[arg(long, global = true, value_name = "BYTES", value_parser = units::absolute, hide_short_help = true)]
    pub import_memory: Option<u64>,

    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 2 infeasible or does not fit, 3 cannot tell, 64 usage, 65 bad model, plan or data,
69 device or library missing, 71 out of memory in a dynamic region, 74 disk, 130/143 interrupted.";

/// A command.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)]
pub enum Command {
    /// Plan a model's training step within a budget and write the plan.
    Compile(commands::compile::Args),
    /// Train a model or a plan on data.
    Train(commands::train::Args),
    /// Print a plan: verdict first, one step a line.
    Show(commands::show::Args),
    /// Check a plan against everything a right plan must be.
    Check(commands::check::Args),
    /// Compare two plans: what each needs and recomputes, whether both give the same bits.
    Diff(commands::diff::Args),
    /// What memory a model needs, piece by piece.
    Estimate(commands::estimate::Args),
    /// What of devices and libraries is found, and what is missing.
    Doctor(commands::doctor::Args),
    /// Run a plan or model on data: one training step, or its outputs.
    Run(commands::run::Args),
    /// Budget against extra time, with the proven bound: a table, CSV, SVG.
    Sweep(commands::sweep::Args),
    /// The least budget for which a plan is found, and the proven bound.
    MinBudget(commands::min_budget::Args),
    /// Why tensors of a plan are kept, dropped or recomputed, and what the other choice would cost.
    Explain(commands::explain::Args),
    /// Measure a model's operators on this machine, for compile --costs.
    Profile(commands::profile::Args),
    /// Replay a recorded operator log under a budget, with online DTR.
    Simulate(commands::simulate::Args),
    /// The planner alone, on a graph in JSON or on a recorded operator log.
    Plan(commands::plan::Args),
    /// The allocator alone: lifetimes and sizes to addresses.
    Offsets(commands::offsets::Args),
    /// Print a script that completes dtrc's commands and flags in a shell.
    Completions(commands::completions::Args),
    /// Print the manual page, or write one for each command into a folder.
    Man(commands::man::Args),
}

/// Choices that hold for every command.
#[derive(Clone, Copy, Debug)]
pub struct Global {
    /// Objects on stdout.
    pub json: bool,
    /// Nothing on stderr but errors.
    pub quiet: bool,
}
