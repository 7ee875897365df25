//! No file that a command writes may be one that it reads, or another one that it writes: one rule for all of them, over the arguments as
//! they were given.

use crate::{
    commands::compile::{default_output, micro},
    error::CliError,
};
use clap::{ArgMatches, parser::ValueSource};
use compiler::import::Weights;
use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// Arguments that name a file to write, whatever the command.
const WRITTEN: [&str; 10] = [
    "output",
    "emit_onnx",
    "save",
    "save_inference",
    "picture",
    "csv",
    "svg",
    "html",
    "trace",
    "schedule_out",
];

/// Files that this command writes, or may write beside what its arguments name, with their flags, once these are read.
static WRITTEN_HERE: OnceLock<Vec<(String, PathBuf)>> = OnceLock::new();

/// Refuses arguments of a command that would have it write one file twice, or over what it reads.
///
/// # Errors
///
/// Two arguments name one file: exit code 64, before anything is read or written.
pub fn check(command: &str, m: &ArgMatches) -> Result<(), CliError> {
    let mut written: Vec<(String, &PathBuf)> = Vec::new();
    let mut read: Vec<(String, &PathBuf)> = Vec::new();
    for id in m.ids() {
        let id = id.as_str();
        // Measured times are brought up to date in place.
        if (command, id) == ("profile", "costs") {
            continue;
        }
        // What is no path is of another type.
        let Ok(Some(paths)) = m.try_get_many::<PathBuf>(id) else { continue };
        // What `simulate` calls a log is read.
        let writes = WRITTEN.contains(&id) || (id == "log" && command != "simulate");
        let all = if writes { &mut written } else { &mut read };
        all.extend(paths.map(|p| (format!("--{}", id.replace('_', "-")), p)));
    }
    let accumulates = matches!(m.try_get_one::<u32>("accumulate"), Ok(Some(n)) if *n > 1);
    let plan = default_plan(command, m);
    if let Some(plan) = &plan {
        written.push(("--output".to_owned(), plan));
    }
    let beside = |flag: &str, path: &Path| derived(flag, path, accumulates);
    for (i, (flag, path)) in written.iter().enumerate() {
        if let Some((other, _)) = written[..i].iter().find(|(_, p)| same(p, path)) {
            return Err(twice(path, other, flag));
        }
        for beside in beside(flag, path) {
            let other = written.iter().find(|(f, p)| f != flag && same(p, &beside));
            if let Some((other, _)) = other {
                return Err(twice(&beside, other, flag));
            }
            if read.iter().any(|(_, p)| same(p, &beside)) {
                return Err(replaces(&beside, flag));
            }
        }
        if read.iter().any(|(_, p)| same(p, path) || is_array_in(path, p)) {
            return Err(replaces(path, flag));
        }
    }
    let all = |(flag, path): (String, &PathBuf)| {
        let beside = beside(&flag, path).into_iter();
        std::iter::once(path.clone()).chain(beside).map(move |p| (flag.clone(), p)).collect::<Vec<_>>()
    };
    let written = written.into_iter().flat_map(all).collect();
    WRITTEN_HERE.get_or_init(|| written);
    Ok(())
}

/// Refuses to write over files that hold a model's external data, which are known once the model is read.
///
/// # Errors
///
/// This command would write one of them: exit code 64.
pub fn check_external(weights: &Weights) -> Result<(), CliError> {
    weights.external_files().iter().try_for_each(|file| check_read(file))
}

/// Refuses to write over a file that no argument names to be read.
///
/// # Errors
///
/// This command would write it: exit code 64.
pub fn check_read(file: &Path) -> Result<(), CliError> {
    let written = WRITTEN_HERE.get().map_or(&[][..], Vec::as_slice);
    match written.iter().find(|(_, path)| same(path, file)) {
        Some((flag, path)) => Err(replaces(path, flag)),
        None => Ok(()),
    }
}

/// Where `compile` puts a plan unless told.
fn default_plan(command: &str, m: &ArgMatches) -> Option<PathBuf> {
    let given = |id: &str| m.value_source(id) == Some(ValueSource::CommandLine);
    let writes = command == "compile" && !given("output") && !given("list_trainable");
    let model = m.try_get_one::<PathBuf>("model").ok().flatten();
    model.filter(|_| writes).map(|model| default_output(model))
}

/// Files that may go beside the one of a flag: external data, and the parts of an accumulated step.
fn derived(flag: &str, path: &Path, accumulates: bool) -> Vec<PathBuf> {
    let appended = |p: &Path| {
        let mut name = p.as_os_str().to_owned();
        name.push(".weights");
        PathBuf::from(name)
    };
    match flag {
        "--save" | "--save-inference" if path.extension().is_some_and(|e| e == "onnx") => {
            vec![path.with_extension("weights")]
        }
        "--save" | "--save-inference" => vec![appended(path)],
        "--emit-onnx" if accumulates => {
            let micro = micro(path);
            vec![appended(path), appended(&micro), micro]
        }
        "--emit-onnx" => vec![appended(path)],
        _ => Vec::new(),
    }
}

fn twice(path: &Path, first: &str, second: &str) -> CliError {
    CliError::usage(format!("{}: {first} and {second} would both write it: choose two names", path.display()))
}

fn replaces(path: &Path, flag: &str) -> CliError {
    CliError::usage(format!(
        "{}: {flag} would replace a file that this command reads: choose another name",
        path.display()
    ))
}

/// Whether two names are one regular file, there or to be made. Devices and pipes hold nothing that could be lost.
fn same(a: &Path, b: &Path) -> bool {
    let plain = |p: &Path| !p.exists() || p.is_file();
    plain(a) && plain(b) && (place(a).is_some_and(|a| place(b) == Some(a)) || is_linked(a, b))
}

/// Whether two names are hard links of one file.
fn is_linked(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |p: &Path| p.metadata().ok().map(|m| (m.dev(), m.ino()));
    place(a).is_some_and(|a| place(b) == Some(a))
}

/// An array among the data of a folder.
fn is_array_in(file: &Path, folder: &Path) -> bool {
    let is_array = file.extension().is_some_and(|e| e == "npz" || e == "npy");
    let inside = || Some(place(file)?.parent()? == folder.canonicalize().ok()?);
    is_array && folder.is_dir() && inside() == Some(true)
}

/// Where a file lies, or will.
fn place(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok().or_else(|| {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(folder.canonicalize().ok()?.join(path.file_name()?))
    })
}
