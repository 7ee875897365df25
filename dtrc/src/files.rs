//! Files and folders that commands are given, looked at before hours of work are lost to them.
//!
//! What is not there, or is a folder where a file is read, is a wrong name (exit code 65); what the system will not read or write is the
//! disk's (74), and so is any place that nothing can be written to.

use crate::error::CliError;
use std::{
    fs::{self, File},
    io::ErrorKind,
    path::Path,
};

/// Refuses a file that cannot be read.
pub fn check_readable(path: &Path) -> Result<(), CliError> {
    let fail = |e| CliError::disk(path.display(), &e);
    let found = fs::metadata(path).map_err(fail)?;
    if found.is_dir() {
        return Err(fail(ErrorKind::IsADirectory.into()));
    }
    if found.is_file() {
        // Opening a pipe would take what is in it from the reader to come.
        File::open(path).map_err(fail)?;
    }
    Ok(())
}

/// Reads a text file, without the mark of byte order that some editors put in front.
pub fn read_text(path: &Path) -> Result<String, CliError> {
    let mut text = fs::read_to_string(path).map_err(|e| match e.kind() {
        ErrorKind::InvalidData => CliError::bad_input(format!("{}: not a text file", path.display())),
        _ => CliError::disk(path.display(), &e),
    })?;
    if text.starts_with('\u{feff}') {
        text.remove(0);
    }
    Ok(text)
}

/// Refuses data that cannot be read: a file, or a folder of files.
pub fn check_data(path: &Path) -> Result<(), CliError> {
    if !path.is_dir() {
        return check_readable(path);
    }
    let fail = |e| CliError::disk(path.display(), &e);
    for e in fs::read_dir(path).map_err(fail)? {
        let file = e.map_err(fail)?.path();
        if file.extension().is_some_and(|e| e == "npz" || e == "npy") {
            check_readable(&file)?;
        }
    }
    Ok(())
}

/// Makes a folder, if need be, and refuses one that no file can be written into.
pub fn check_folder(path: &Path) -> Result<(), CliError> {
    if path.exists() && !path.is_dir() {
        let what = format!("{}: cannot be written: this is a file, a folder is needed", path.display());
        return Err(CliError { kind: "disk", message: what, code: crate::error::DISK });
    }
    fs::create_dir_all(path).map_err(|e| CliError::unwritable(path, &e))?;
    let trial = path.join(format!(".{}.try", std::process::id()));
    File::create(&trial).and_then(|_| fs::remove_file(&trial)).map_err(|e| CliError::unwritable(path, &e))
}
