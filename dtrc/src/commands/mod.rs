//! One file a command.

use crate::{
    cli::{Cli, Command, Global},
    error::CliError,
};

pub mod check;
pub mod compile;
pub mod doctor;
pub mod estimate;
pub mod show;
pub mod train;

/// Runs the command; the value is the exit code of success.
pub fn run(cli: Cli) -> Result<u8, CliError> {
    let global = Global { json: cli.json, quiet: cli.quiet };
    match cli.command {
        Command::Compile(a) => compile::run(&a, global),
        Command::Train(a) => train::run(&a, global),
        Command::Show(a) => show::run(&a, global),
        Command::Check(a) => check::run(&a, global),
        Command::Estimate(a) => estimate::run(&a, global),
        Command::Doctor(a) => doctor::run(&a, global),
    }
}
