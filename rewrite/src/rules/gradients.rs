//! Forms whose gradient reads the output, for those whose gradient reads the input; the same gradient, ties included.
//!
//! Most operators have their gradient from the output already ([`ops::grad`]); these are the roundabout ways in which models write them.

use super::{Effect, Equal, Found, Miss, Rule, Stage, arg, none, one};
use crate::space::{Site, Space};
use graph::Attrs;

/// x^(1/2) is the square root.
pub(super) const ROOT_FROM_OUTPUT: Rule = Rule {
    name: "root-from-output",
    effect: Effect::Reassociates,
    stage: Some(Stage::Before),
    roots: &["Pow"],
    apply: |s, site| power(s, site, 0.5, "Sqrt"),
};

/// 1/x, or x^-1, is the reciprocal.
pub(super) const RECIPROCAL_FROM_OUTPUT: Rule = Rule {
    name: "reciprocal-from-output",
    effect: Effect::Reassociates,
    stage: Some(Stage::Before),
    roots: &["Pow", "Div"],
    apply: reciprocal,
};

/// x clipped at 0 is ReLU. Max(x, 0) is not: where x is 0, it passes half of the gradient.
pub(super) const RELU_FROM_OUTPUT: Rule = Rule {
    name: "relu-from-output",
    effect: Effect::Reassociates,
    stage: Some(Stage::Before),
    roots: &["Max", "Clip"],
    apply: relu,
};

/// ln softmax(x) keeps one tensor for the gradient instead of two, and does not overflow.
pub(super) const LOG_SOFTMAX_FROM_OUTPUT: Rule = Rule {
    name: "log-softmax-from-output",
    effect: Effect::Reassociates,
    stage: Some(Stage::Before),
    roots: &["Log"],
    apply: log_softmax,
};

fn unary(s: &mut Space<'_>, site: &Site, x: egg::Id, op: &str) -> Found {
    let same = s.egraph[site.class].data.types.first() == Some(s.ty(x));
    if !same || !s.ty(x).dtype.is_float() {
        return none();
    }
    one(s.call(op, Attrs::new(), &[x])?)
}

fn power(s: &mut Space<'_>, site: &Site, exponent: f64, op: &str) -> Found {
    let (Some(x), Some(n)) = (arg(site, 0), arg(site, 1).and_then(|n| s.number(n))) else { return none() };
    if n == exponent { unary(s, site, x, op) } else { none() }
}

fn reciprocal(s: &mut Space<'_>, site: &Site) -> Found {
    if s.op(site) == "Pow" {
        return power(s, site, -1.0, "Reciprocal");
    }
    let (Some(n), Some(x)) = (arg(site, 0).and_then(|n| s.number(n)), arg(site, 1)) else { return none() };
    if n == 1.0 { unary(s, site, x, "Reciprocal") } else { none() }
}

fn relu(s: &mut Space<'_>, site: &Site) -> Found {
    let Some(x) = arg(site, 0) else { return none() };
    if s.op(site) == "Clip" {
        let a = s.attrs(site);
        let bounds = (a.float_or("min", f64::NEG_INFINITY), a.float_or("max", f64::INFINITY));
        let whole = site.args.len() == 1 && bounds == (Ok(0.0), Ok(f64::INFINITY));
        return if whole { unary(s, site, x, "Relu") } else { none() };
    }
    match super::with_number(s, site) {
        Some((_, 0.0)) => Err(Miss("where x is 0, Max passes half of the gradient and Relu none".to_owned())),
        _ => none(),
    }
}

fn log_softmax(s: &mut Space<'_>, site: &Site) -> Found {
    let Some(p) = arg(site, 0) else { return none() };
    let mut out = Vec::new();
    for inner in s.made(p, "Softmax") {
        let attrs = s.attrs(&inner).clone();
        if let Some(x) = arg(&inner, 0) {
            out.push(Equal::Tensor(s.call("LogSoftmax", attrs, &[x])?));
        }
    }
    Ok(out)
}
