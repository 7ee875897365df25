//! `dtrc man`: manual pages, made from the flags themselves.

use crate::{
    cli::{Cli, Global},
    commands::compile::write_file,
    error::CliError,
    files::check_folder,
};
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use serde_json::json;
use std::path::PathBuf;

/// Arguments of `dtrc man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dtrc man | man -l -
  dtrc man ~/.local/share/man/man1        (a folder in manpath: then man dtrc-train works)")]
pub struct Args {
    /// Write dtrc.1 and a page for each command, such as dtrc-train.1, into this folder. Default: print dtrc.1.
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints or writes the pages.
pub fn run(args: &Args, global: Global) -> Result<u8, CliError> {
    // Subcommands get their whole names and the global flags.
    let mut top = Cli::command();
    top.build();
    let Some(dir) = &args.dir else {
        print!("{}", String::from_utf8_lossy(&page(&top)?));
        return Ok(0);
    };
    check_folder(dir)?;
    let mut files = Vec::new();
    let commands = top.get_subcommands().filter(|c| c.get_name() != "help" && !c.is_hide_set());
    for command in std::iter::once(&top).chain(commands) {
        let name = command.get_display_name().unwrap_or_else(|| command.get_name());
        let file = dir.join(format!("{name}.1"));
        write_file(&file, &page(command)?)?;
        files.push(file);
    }
    if global.json {
        println!("{}", json!({"schema": 1, "files": files}));
    } else {
        println!("wrote {} pages to {}", files.len(), dir.display());
    }
    Ok(0)
}

fn page(command: &Command) -> Result<Vec<u8>, CliError> {
    let mut out = Vec::new();
    Man::new(command.clone()).render(&mut out).map_err(|e| CliError::failed(e.to_string()))?;
    Ok(out)
}
