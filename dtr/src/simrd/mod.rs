//! The log simulator: recorded training steps of the reference simulator (simrd), replayed under a budget.
//!
//! [`Log::parse`] reads a log, [`Log::replay`] runs it, [`simulate`] does both and is what the command line calls. Budgets are shares of the
//! peak of a run without a budget, with banishing, as the reference has it; a run can be compared with the reference's by the hash of its
//! events ([`Report::trace_sha256`]).

mod parse;
mod replay;
mod trace;

pub use parse::{Log, ParseError};
pub use replay::{Baseline, Budget, Report, SimOptions, SimulateError, Status, simulate};
pub use trace::{trace_line, trace_sha256, write_trace};
