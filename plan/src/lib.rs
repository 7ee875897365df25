//! What a schedule is: the plan file, its wire form, its text forms and its validator.
//!
//! A plan is a contract between the compiler and a runtime. It holds ids and numbers, never source, binaries or paths; weights are
//! named, not contained. The runtime obeys it or refuses it. [`validate`] says what a right plan is, and knows neither the planner nor
//! a runtime.

mod choice;
mod diff;
mod numerics;
mod show;
mod slot;
pub mod text;
mod types;
mod validate;
mod wire;

pub use diff::{Diff, ProgramDiff, diff};
pub use numerics::{hex, numerics, plan_numerics, training_numerics};
pub use show::{show, size};
pub use slot::{slot_bytes, slot_need};
pub use types::{
    ALIGNMENT, Certificate, Device, Dynamic, Guard, Place, Plan, Program, ProgramKind, Rates, Run,
    StateEntry, Step, align,
};
pub use validate::{Replay, ValidateError, validate, validate_at};
pub use wire::{MAGIC, VERSION, WireError, from_bytes, to_bytes};
