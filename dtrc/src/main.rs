//! The command line of dtrc: thin over the compiler and the runtime.

// First: its macros shadow the standard ones in all other modules.
#[macro_use]
mod output;

mod cli;
mod commands;
mod device;
mod dims;
mod distinct;
mod error;
mod files;
mod memory;
mod model;
mod picture;
mod planning;
mod progress;
mod save;
mod schedule;
mod session;
mod synthetic;
mod units;

use clap::{CommandFactory, FromArgMatches};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut distinct = Ok(());
    let parsed = cli::Cli::command().try_get_matches().and_then(|m| {
        if let Some((command, m)) = m.subcommand() {
            distinct = distinct::check(command, m);
        }
        let mut args = cli::Cli::from_arg_matches(&m)?;
        match (&mut args.command, m.subcommand()) {
            (cli::Command::Train(a), Some((_, m))) => a.session.note_given(m),
            (cli::Command::Run(a), Some((_, m))) => a.session.note_given(m),
            _ => {}
        }
        Ok(args)
    });
    let args = match parsed {
        Ok(args) => args,
        Err(e) => {
            // Help and version are no errors; clap prints them to stdout.
            if !e.use_stderr() {
                let _ = e.print();
                return ExitCode::SUCCESS;
            }
            let json = std::env::args_os().any(|a| a == "--json");
            let e = error::CliError::usage(e.render().to_string().trim_start_matches("error: ").trim_end());
            e.report(json);
            return ExitCode::from(e.code);
        }
    };
    let json = args.json;
    match distinct.and_then(|()| commands::run(args)) {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            e.report(json);
            ExitCode::from(e.code)
        }
    }
}
