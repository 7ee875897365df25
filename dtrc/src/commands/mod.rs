//! One file a command.

use crate::{
    cli::{Cli, Command, Global},
    error::CliError,
};

pub mod check;
pub mod compile;
pub mod completions;
pub mod diff;
pub mod doctor;
pub mod estimate;
pub mod explain;
pub mod man;
pub mod min_budget;
pub mod offsets;
pub mod plan;
pub mod profile;
pub mod run;
pub mod show;
pub mod simulate;
pub mod sweep;
pub mod train;

/// Runs the command; the value is the exit code of success.
pub fn run(cli: Cli) -> Result<u8, CliError> {
    let global = Global { json: cli.json, quiet: cli.quiet };
    if let Some(bytes) = cli.import_memory {
        compiler::import::limits::set_memory(bytes);
    }
    match cli.command {
        Command::Compile(a) => compile::run(&a, global),
        Command::Train(a) => train::run(&a, global),
        Command::Show(a) => show::run(&a, global),
        Command::Check(a) => check::run(&a, global),
        Command::Diff(a) => diff::run(&a, global),
        Command::Estimate(a) => estimate::run(&a, global),
        Command::Doctor(a) => doctor::run(&a, global),
        Command::Run(a) => run::run(&a, global),
        Command::Sweep(a) => sweep::run(&a, global),
        Command::MinBudget(a) => min_budget::run(&a, global),
        Command::Explain(a) => explain::run(&a, global),
        Command::Profile(a) => profile::run(&a, global),
        Command::Simulate(a) => simulate::run(&a, global),
        Command::Plan(a) => plan::run(&a, global),
        Command::Offsets(a) => offsets::run(&a, global),
        Command::Completions(a) => completions::run(&a),
        Command::Man(a) => man::run(&a, global),
    }
}
