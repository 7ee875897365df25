//! `budgets`: the budget changes no bit: losses and state after some steps are the same bytes.

use super::{data, held};
use crate::{
    Bundle,
    models::{handed, handed_names},
    part::Part,
    trial::{costs, plans, train},
};
use plan::Device;
use serde_json::{Value, json};

/// Shares of keep-all; the last one is below what any model can do, and stands for the least.
const SHARES: [f64; 3] = [1.0, 0.6, 0.05];

/// All handed models, an item each.
pub fn run(bundle: &Bundle, part: &mut Part) -> Result<(), String> {
    for name in handed_names(&bundle.folder)? {
        one(bundle, part, &name, &SHARES)?;
    }
    Ok(())
}

/// One handed model at these shares.
pub fn one(bundle: &Bundle, part: &mut Part, name: &str, shares: &[f64]) -> Result<(), String> {
    let costs = costs(&part.results.device);
    part.item(name, || {
        held((|| -> Result<Value, String> {
            let h = handed(&bundle.folder, name, &costs)?;
            let mut all = Vec::new();
            for p in plans(&h.model, Device::Cuda, shares, &costs, None)? {
                let replays = plan::validate(&p.plan, ops::cuda::registry(true)).map_err(|e| e.to_string())?;
                let t = train(bundle, &h.model, &p.plan, &data(&h), 4)?;
                all.push((p.plan.arena, replays[0].recomputed.len(), t));
            }
            let row = |(arena, again, t): &(u64, usize, crate::trial::Trained)| {
                json!({"arena_bytes": arena, "recomputed": again, "state": t.state, "last_loss": t.losses.last()})
            };
            let figures = json!(all.iter().map(row).collect::<Vec<_>>());
            if all.windows(2).all(|w| w[0].2 == w[1].2) {
                return Ok(figures);
            }
            Err(format!("the budget changes bits: {figures}"))
        })())
    })
}
