//! `losses`: the handed models train on the device to PyTorch's losses.

use super::{data, held};
use crate::{
    Bundle,
    models::{handed, handed_names},
    part::Part,
    trial::{costs, plans, train},
};
use plan::Device;
use serde_json::{Value, json};

/// A step counts as PyTorch's within ten times what float32 costs PyTorch itself, and this share of the loss.
const SHARE: f64 = 2e-5;

/// All handed models, an item each.
pub fn run(bundle: &Bundle, part: &mut Part) -> Result<(), String> {
    for name in handed_names(&bundle.folder)? {
        one(bundle, part, &name)?;
    }
    Ok(())
}

/// One handed model.
pub fn one(bundle: &Bundle, part: &mut Part, name: &str) -> Result<(), String> {
    let costs = costs(&part.results.device);
    part.item(name, || {
        held((|| -> Result<Value, String> {
            let h = handed(&bundle.folder, name, &costs)?;
            let plan = plans(&h.model, Device::Cuda, &[1.0], &costs, None)?.remove(0).plan;
            let t = train(bundle, &h.model, &plan, &data(&h), h.losses.len() as i64)?;
            let off = |(a, b): (&f64, &f64)| ((a - b).abs() - 10.0 * h.noise).max(0.0) / b.abs().max(1.0);
            let worst = t.losses.iter().zip(&h.losses).map(off).fold(0.0, f64::max);
            let figures = json!({"losses": t.losses, "pytorch": h.losses, "arena_bytes": plan.arena});
            // Not `>`: a loss that is no number is off.
            if worst <= SHARE && t.losses.iter().all(|l| l.is_finite()) {
                return Ok(figures);
            }
            Err(format!("off by {worst:.2e} of the loss: {figures}"))
        })())
    })
}
