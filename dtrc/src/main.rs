//! The command line of dtrc: thin over the compiler and the runtime.

mod cli;
mod commands;
mod error;
mod memory;
mod model;
mod picture;
mod progress;
mod schedule;
mod session;
mod units;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = match cli::Cli::try_parse() {
        Ok(args) => args,
        Err(e) => {
            // Help and version are no errors; clap prints them to stdout.
            let code = if e.use_stderr() { error::USAGE } else { 0 };
            let _ = e.print();
            return ExitCode::from(code);
        }
    };
    let json = args.json;
    match commands::run(args) {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            e.report(json);
            ExitCode::from(e.code)
        }
    }
}
