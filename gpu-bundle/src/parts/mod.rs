//! The parts, a file each.

pub mod budgets;
pub mod kernels;
pub mod losses;
pub mod memory;
pub mod smoke;
pub mod speed;
pub mod torch;

use crate::{models::Handed, part::Outcome, trial::Data};
use serde_json::Value;

/// An item from a result: an error is a failure.
fn held(r: Result<Value, String>) -> Outcome {
    match r {
        Ok(figures) => Outcome::Held(figures),
        Err(e) if e.starts_with("dynamic") => Outcome::Not(e),
        Err(e) => Outcome::Broke(e, Value::Null),
    }
}

/// A handed model's inputs as a step takes them.
fn data(handed: &Handed) -> Data {
    handed.io.iter().map(|(n, l)| (n.clone(), l.bytes().to_vec())).collect()
}
