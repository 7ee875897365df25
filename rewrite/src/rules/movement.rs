//! Transposes and reshapes that cancel. Elements only move, so every bit stays.

use super::{Effect, Equal, Found, Rule, arg, none, one, perm};
use crate::space::{Site, Space};

/// Two transposes are one, or none.
pub(super) const CANCEL_TRANSPOSES: Rule = Rule {
    name: "cancel-transposes",
    effect: Effect::Exact,
    stage: None,
    roots: &["Transpose"],
    apply: cancel_transposes,
};

/// Two reshapes are one.
pub(super) const MERGE_RESHAPES: Rule = Rule {
    name: "merge-reshapes",
    effect: Effect::Exact,
    stage: None,
    roots: &["Reshape"],
    apply: merge_reshapes,
};

/// Movement that leaves the shape as it is moves nothing.
pub(super) const IDLE_MOVEMENT: Rule = Rule {
    name: "idle-movement",
    effect: Effect::Exact,
    stage: None,
    roots: &["Reshape", "Expand", "Transpose"],
    apply: idle_movement,
};

fn cancel_transposes(s: &mut Space<'_>, site: &Site) -> Found {
    let (Some(x), Some(q)) = (arg(site, 0), perm(s, site)) else { return none() };
    let mut out = Vec::new();
    for inner in s.made(x, "Transpose") {
        let (Some(x), Some(p)) = (arg(&inner, 0), perm(s, &inner)) else { continue };
        let both: Vec<i64> = q.iter().filter_map(|i| p.get(*i as usize).copied()).collect();
        if both.len() == p.len() {
            out.push(Equal::Tensor(s.transpose(x, &both)?));
        }
    }
    Ok(out)
}

fn merge_reshapes(s: &mut Space<'_>, site: &Site) -> Found {
    let Some(x) = arg(site, 0) else { return none() };
    let mut out = Vec::new();
    let attrs = s.attrs(site).clone();
    let Ok(shape) = attrs.ints("shape") else { return none() };
    let dims: Vec<usize> = shape.iter().map(|d| *d as usize).collect();
    for inner in s.made(x, "Reshape") {
        if let Some(x) = arg(&inner, 0) {
            out.push(Equal::Tensor(s.reshape(x, &dims)?));
        }
    }
    Ok(out)
}

fn idle_movement(s: &mut Space<'_>, site: &Site) -> Found {
    let Some(x) = arg(site, 0) else { return none() };
    let still = match s.op(site) {
        "Transpose" => perm(s, site).is_some_and(|p| p.iter().enumerate().all(|(i, p)| i as i64 == *p)),
        _ => s.dims(x).is_some() && s.egraph[site.class].data.types.first() == Some(s.ty(x)),
    };
    if still { one(x) } else { none() }
}
