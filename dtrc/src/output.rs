//! Printing that survives its reader: `dtrc show PLAN | head` ends quietly, a full disk is an error with its exit code.

use crate::error::DISK;
use std::{
    fmt::Arguments,
    io::{ErrorKind, Write},
};

/// What a shell reports of a program that SIGPIPE ended.
const PIPE: i32 = 141;

/// Writes to stdout.
pub fn stdout(text: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    if let Err(e) = out.write_fmt(text).and_then(|()| out.flush()) {
        if e.kind() == ErrorKind::BrokenPipe {
            std::process::exit(PIPE);
        }
        stderr(format_args!("error: stdout: {e}\n"));
        std::process::exit(i32::from(DISK));
    }
}

/// Writes to stderr; nobody can be told if that fails.
pub fn stderr(text: Arguments<'_>) {
    let _ = std::io::stderr().lock().write_fmt(text);
}

/// As the standard one, without a panic.
macro_rules! print {
    ($($t:tt)*) => { $crate::output::stdout(format_args!($($t)*)) };
}

/// As the standard one, without a panic.
macro_rules! println {
    () => { $crate::output::stdout(format_args!("\n")) };
    ($($t:tt)*) => { $crate::output::stdout(format_args!("{}\n", format_args!($($t)*))) };
}

/// As the standard one, without a panic.
macro_rules! eprint {
    ($($t:tt)*) => { $crate::output::stderr(format_args!($($t)*)) };
}

/// As the standard one, without a panic.
macro_rules! eprintln {
    ($($t:tt)*) => { $crate::output::stderr(format_args!("{}\n", format_args!($($t)*))) };
}
