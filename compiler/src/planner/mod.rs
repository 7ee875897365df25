//! The planner: from a [`Problem`] and a budget to a schedule with addresses and a certificate.
//!
//! It knows neither ONNX nor kernels. A problem comes from a training graph, from a graph in JSON or from a recorded log; every
//! strategy reads the same problem and returns the same kind of schedule, and one exact replay judges them all.

pub mod bounds;
pub mod check;
mod coarse;
mod decode;
mod driver;
pub mod import_json;
pub mod import_log;
mod index;
mod integer_program;
pub mod offsets;
mod order;
pub mod outcome;
pub mod problem;
pub mod replay;
pub mod schedule;
mod strategies;
mod timeline;

#[cfg(test)]
mod quality;
#[cfg(test)]
mod tests;

pub use driver::{ROUNDS, fits, least_budget, online, plan, plan_least, plan_many};
pub use dtr::Heuristic;
pub use outcome::{Cut, Infeasible, Options, PlanError, Planned, Progress, StopReason};
pub use problem::{Bytes, Nanos, Problem};
pub use schedule::{Schedule, Step};
