//! Errors as the user sees them: one sentence, an exit code, and an object with `--json`.

use compiler::{
    dynamic::DynamicError,
    import::{ImportError, ImportErrorKind},
    pipeline::CompileError,
    planner::outcome::{Infeasible, PlanError},
    train::TrainError,
};
use runtime::RuntimeError;
use serde_json::json;

/// Failed for a reason without a code of its own.
pub const FAILED: u8 = 1;
/// The budget is infeasible, or nothing was found.
pub const INFEASIBLE: u8 = 2;
/// Cannot tell (`estimate --fits`).
pub const UNKNOWN: u8 = 3;
/// A flag or its value is wrong.
pub const USAGE: u8 = 64;
/// The model, plan or data is wrong.
pub const BAD_INPUT: u8 = 65;
/// A device or library is missing.
pub const UNAVAILABLE: u8 = 69;
/// A dynamic program needs more than its pool.
pub const OUT_OF_MEMORY: u8 = 71;
/// Reading or writing a file failed.
pub const DISK: u8 = 74;

/// An error with its exit code.
#[derive(Debug)]
pub struct CliError {
    /// A word for programs.
    pub kind: &'static str,
    /// A sentence for people.
    pub message: String,
    /// The exit code.
    pub code: u8,
}

impl CliError {
    /// A wrong flag or value.
    pub fn usage(message: impl Into<String>) -> CliError {
        CliError { kind: "usage", message: message.into(), code: USAGE }
    }

    /// A wrong model, plan or data file.
    pub fn bad_input(message: impl Into<String>) -> CliError {
        CliError { kind: "bad-input", message: message.into(), code: BAD_INPUT }
    }

    /// A file that cannot be read.
    pub fn disk(what: impl std::fmt::Display, error: &std::io::Error) -> CliError {
        // A name that does not exist, or is a folder's, is the user's, not the disk's.
        match error.kind() {
            std::io::ErrorKind::NotFound => CliError {
                kind: "not-found",
                message: format!("{what}: there is no such file"),
                code: BAD_INPUT,
            },
            std::io::ErrorKind::IsADirectory => CliError {
                kind: "not-a-file",
                message: format!("{what}: this is a folder, a file is needed"),
                code: BAD_INPUT,
            },
            _ => CliError { kind: "disk", message: format!("{what}: cannot be read: {error}"), code: DISK },
        }
    }

    /// A file that cannot be written.
    pub fn unwritable(path: &std::path::Path, error: &std::io::Error) -> CliError {
        let hint = match error.kind() {
            std::io::ErrorKind::StorageFull => "free some space or choose another place",
            std::io::ErrorKind::NotFound => "make its folder first",
            std::io::ErrorKind::IsADirectory => "give a name in this folder",
            _ => "choose another place",
        };
        CliError {
            kind: "disk",
            message: format!("{}: cannot be written: {error}; {hint}", path.display()),
            code: DISK,
        }
    }

    /// A device or library that is missing.
    pub fn unavailable(message: impl Into<String>) -> CliError {
        CliError { kind: "device", message: message.into(), code: UNAVAILABLE }
    }

    /// Anything else.
    pub fn failed(message: impl Into<String>) -> CliError {
        CliError { kind: "failed", message: message.into(), code: FAILED }
    }

    /// Whether it is what a model says of itself, and might not with other sizes.
    pub fn is_of_model(&self) -> bool {
        matches!(self.kind, "bad-input" | "training-step" | "dynamic")
    }

    /// Prints it: to stderr, and as an object to stdout with `--json`.
    pub fn report(&self, json: bool) {
        if json {
            let object =
                json!({"schema": 1, "kind": self.kind, "message": self.message, "exit_code": self.code});
            println!("{object}");
        }
        eprintln!("error: {}", self.message);
    }
}

fn infeasible(e: &Infeasible) -> CliError {
    use crate::units::bytes;
    // What is compared is exact: a plan may be known for a few bytes more.
    let exact = |n| format!("{} ({n} bytes)", bytes(n));
    let verdict = if e.proved { "proved impossible" } else { "no plan was found" };
    let mut m = format!("the budget of {} is too small: {verdict}\n", exact(e.budget));
    m.push_str(&format!("  state alone needs {} of it\n", bytes(e.state_floor)));
    m.push_str(&format!(
        "  the least budget known is {} (give --budget {})\n",
        bytes(e.least_arena),
        e.least_arena
    ));
    m.push_str(&format!("  proven lower bound: {}\n", exact(e.lower_bound)));
    m.push_str(&format!("  the step that binds: {}\n", e.binding_node));
    for (name, n) in e.largest.iter().take(5) {
        m.push_str(&format!("    {:>12}  {name}\n", bytes(*n)));
    }
    m.push_str("  what would help: a smaller batch (--dim), SGD without momentum, --freeze, more parts (--accumulate)");
    CliError { kind: "infeasible", message: m, code: INFEASIBLE }
}

impl From<ImportError> for CliError {
    fn from(e: ImportError) -> Self {
        // What the system says has a number; all else is the file's own fault.
        match &*e.kind {
            ImportErrorKind::Io(io) if io.raw_os_error().is_some() => CliError::disk(&e.file, io),
            ImportErrorKind::Dim(_) => CliError::usage(e.to_string()),
            _ => CliError::bad_input(e.to_string()),
        }
    }
}

impl From<CompileError> for CliError {
    fn from(e: CompileError) -> Self {
        match &e {
            CompileError::Plan(PlanError::Infeasible(i)) => infeasible(i),
            CompileError::Train(t @ (TrainError::NoOutput { .. } | TrainError::ClassAxis { .. })) => {
                CliError::usage(t.to_string())
            }
            CompileError::Train(t) => {
                CliError { kind: "training-step", message: t.to_string(), code: BAD_INPUT }
            }
            CompileError::Dynamic(DynamicError::State { .. }) => {
                CliError { kind: "infeasible", message: e.to_string(), code: INFEASIBLE }
            }
            CompileError::Lower(l) => CliError { kind: "dynamic", message: l.to_string(), code: BAD_INPUT },
            _ => CliError::failed(e.to_string()),
        }
    }
}

impl From<RuntimeError> for CliError {
    fn from(e: RuntimeError) -> Self {
        let (kind, code) = match &e {
            RuntimeError::Wire(_) | RuntimeError::Invalid(_) => ("plan", BAD_INPUT),
            RuntimeError::Weight { .. } => ("weights", BAD_INPUT),
            RuntimeError::Input { .. } | RuntimeError::Kernel { .. } | RuntimeError::NotPlanned { .. } => {
                ("data", BAD_INPUT)
            }
            RuntimeError::Trace(_) => ("model", BAD_INPUT),
            RuntimeError::PoolFull(_) => ("out-of-memory", OUT_OF_MEMORY),
            RuntimeError::NotEnoughMemory { .. }
            | RuntimeError::Allocate { .. }
            | RuntimeError::Budget { .. } => ("memory", INFEASIBLE),
            RuntimeError::Device { .. } => ("device", UNAVAILABLE),
            _ => ("failed", FAILED),
        };
        CliError { kind, message: e.to_string(), code }
    }
}
