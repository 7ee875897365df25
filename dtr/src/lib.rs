//! Dynamic Tensor Rematerialization (arXiv 2006.09616) as a pure state machine: when to drop a tensor and what to recompute.
//!
//! It exists once and is driven by many: the log simulator ([`simrd`]), the planner with estimated costs ([`run`]), a runtime on real
//! memory (its own [`World`]). Sizes, costs and uses come in as a [`Program`] and [`Command`]s, executions and drops go out through the
//! [`World`], which may also inject measured costs (the clock) and decide what fits (the memory). The machine allocates nothing of its
//! users' and reads no clock.
//!
//! Three tensors in 2 units of memory: the first is dropped to make room for the third, and recomputed when it is read again.
//!
//! ```
//! use dtr::{Command, Heuristic, Options, Output, Program};
//!
//! let mut program = Program::new();
//! let a = program.op(&[], &[Output::New { bytes: 1 }], 10)?;
//! let b = program.op(&[program.output(a, 0)], &[Output::New { bytes: 1 }], 10)?;
//! let c = program.op(&[program.output(b, 0)], &[Output::New { bytes: 1 }], 10)?;
//! let d = program.op(&[program.output(a, 0)], &[Output::New { bytes: 1 }], 10)?;
//! let schedule = [a, b, c, d].map(Command::Compute);
//! let outcome = dtr::run(&program, &schedule, &Options::new(2, Heuristic::DTR_EQ));
//! outcome.result?;
//! assert_eq!(outcome.stats.remats, 1);
//! assert_eq!(outcome.stats.peak, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Files, one concept each. What a program is: `program`, `ids`. The machine: `machine` (its state and doors), `live` (storages and their
//! edges), `materialize` (nested recomputation on an explicit stack), `evict` (making room), `order` (need and waiting), `hold`, `banish`.
//! What to evict: `heuristic` (names), `score` (exact quotients), `pool` (the ordered pool and its search), `sets` (union-find), `class`
//! (its classes with values), `component`, `region` and `window` (evicted neighbourhoods), `random`. Where the whole program is known before it
//! runs, `foresight` plans it instead.

mod banish;
mod class;
mod component;
mod drive;
mod error;
mod evict;
pub mod foresight;
mod heuristic;
mod hold;
mod ids;
mod live;
mod machine;
mod materialize;
mod options;
mod order;
mod pool;
mod program;
mod random;
mod region;
mod score;
mod sets;
pub mod simrd;
mod window;
mod world;

pub use drive::{Command, Outcome, drive, run};
pub use error::Error;
pub use heuristic::{CostPart, Heuristic, UnknownHeuristic};
pub use ids::{OpId, StorageId, TensorId};
pub use machine::{Machine, Stats};
pub use options::{Dealloc, Options};
pub use program::{Output, Program, ProgramError};
pub use world::{Cause, Event, Recorder, World};
