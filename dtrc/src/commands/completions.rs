//! `dtrc completions`: completion scripts for shells, made from the flags themselves.

use crate::{cli::Cli, error::CliError};
use clap::CommandFactory;
use clap_complete::Shell;

/// Arguments of `dtrc completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dtrc completions bash > ~/.local/share/bash-completion/completions/dtrc
  dtrc completions zsh  > ~/.zfunc/_dtrc        (a folder in $fpath)
  dtrc completions fish > ~/.config/fish/completions/dtrc.fish")]
pub struct Args {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script.
pub fn run(args: &Args) -> Result<u8, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "dtrc", &mut script);
    print!("{}", String::from_utf8_lossy(&script));
    Ok(0)
}
