//! `kernels`: every operator's cases on the device against the CPU's kernels, with every lawful overwrite, twice.

use crate::{
    Bundle,
    part::{Clock, Outcome, Part},
};
use cuda::{
    Opened,
    compare::{case_of, run as compare},
};
use graph::DType;
use ops::{OPS, OpDef};
use serde_json::{Value, json};

/// Operators in one context: streams and modules are given back with it.
const TOGETHER: usize = 16;

/// All operators, an item each.
pub fn run(bundle: &Bundle, part: &mut Part) -> Result<(), String> {
    of(bundle, part, &mut OPS.iter().copied())
}

/// Some operators, an item each.
pub fn of(
    bundle: &Bundle,
    part: &mut Part,
    ops: &mut dyn Iterator<Item = &'static dyn OpDef>,
) -> Result<(), String> {
    let (mut opened, clock): (Option<Opened>, Clock) = (None, part.clock());
    for (i, op) in ops.enumerate() {
        if i % TOGETHER == 0 {
            opened = None;
        }
        part.item(op.name(), || match operator(bundle, &mut opened, op, clock) {
            Ok(outcome) => outcome,
            Err(e) => {
                // After an error that breaks the context the next operator gets another one.
                opened = None;
                Outcome::Broke(e, Value::Null)
            }
        })?;
    }
    Ok(())
}

fn operator(
    bundle: &Bundle,
    opened: &mut Option<Opened>,
    op: &dyn OpDef,
    clock: Clock,
) -> Result<Outcome, String> {
    if opened.is_none() {
        *opened = Some(bundle.on.open()?);
    }
    let Some((driver, compiler)) = opened else { return Err("no device".to_owned()) };
    let (mut compared, mut differ) = (0, Vec::new());
    let mut types = vec![DType::F32, DType::F64, DType::F16];
    if driver.device().architecture >= 80 {
        types.push(DType::BF16);
    }
    for (k, case) in op.cases().iter().enumerate() {
        for dtype in types.iter().copied() {
            if clock.left().is_zero() {
                return Ok(Outcome::OutOfTime);
            }
            let Ok(given) = case_of(op, case, dtype, 1000 + k as u64) else { continue };
            match compare(&mut **driver, &mut **compiler, op, &given) {
                Ok(true) => compared += 1,
                Ok(false) => {}
                Err(e) => differ.push(format!("{} ({dtype}): {e}", case.name)),
            }
        }
    }
    let figures = json!({"cases": compared, "differ": differ});
    Ok(match differ.first() {
        Some(first) => Outcome::Broke(first.clone(), figures),
        None if compared == 0 => {
            Outcome::Not("nothing of it is executed on the device in its cases".to_owned())
        }
        None => Outcome::Held(figures),
    })
}
