//! Multiplications by numbers: idle ones, several in a row, one beside a product. Only constants are folded: a trained scale stays.

use super::{Effect, Equal, Found, Miss, Rule, arg, flags, none, normal, one, scaled, with_number};
use crate::space::{Site, Space};
use graph::{Attrs, DType};

/// x·1, x/1 and x - 0 are x.
pub(super) const UNIT_SCALE: Rule = Rule {
    name: "unit-scale",
    effect: Effect::Exact,
    stage: None,
    roots: &["Mul", "Div", "Sub"],
    apply: unit_scale,
};

/// -(-x) is x.
pub(super) const DOUBLE_NEGATION: Rule = Rule {
    name: "double-negation",
    effect: Effect::Exact,
    stage: None,
    roots: &["Neg"],
    apply: double_negation,
};

/// (x·a)·b is x·(a·b).
pub(super) const MERGE_SCALES: Rule = Rule {
    name: "merge-scales",
    effect: Effect::Reassociates,
    stage: None,
    roots: &["Mul", "Div"],
    apply: merge_scales,
};

/// A product times a number is a product with that factor.
pub(super) const SCALE_INTO_PRODUCT: Rule = Rule {
    name: "scale-into-product",
    effect: Effect::Reassociates,
    stage: None,
    roots: &["Mul", "Div"],
    apply: scale_into_product,
};

fn unit_scale(s: &mut Space<'_>, site: &Site) -> Found {
    let (Some(a), Some(b)) = (arg(site, 0), arg(site, 1)) else { return none() };
    let (x, n) = match s.op(site) {
        "Mul" => match with_number(s, site) {
            Some((x, n)) => (x, n == 1.0),
            None => return none(),
        },
        "Div" => (a, s.number(b) == Some(1.0)),
        // x - (-0) would turn -0 into 0.
        _ => (a, s.number(b).is_some_and(|n| n.to_bits() == 0)),
    };
    // Where the number spreads x over a larger shape, something happens after all.
    if n && s.egraph[site.class].data.types.first() == Some(s.ty(x)) { one(x) } else { none() }
}

fn double_negation(s: &mut Space<'_>, site: &Site) -> Found {
    let Some(x) = arg(site, 0) else { return none() };
    let inner = s.made(x, "Neg");
    Ok(inner.iter().filter_map(|n| arg(n, 0)).map(Equal::Tensor).collect())
}

/// The whole factor of a site that multiplies by a number.
fn factor(s: &Space<'_>, site: &Site) -> Option<(egg::Id, f64)> {
    let found = match s.op(site) {
        "Mul" => with_number(s, site)?,
        _ => (arg(site, 0)?, 1.0 / s.number(arg(site, 1)?)?),
    };
    let float = s.ty(found.0).dtype.is_float();
    let same = s.egraph[site.class].data.types.first() == Some(s.ty(found.0));
    (float && same && found.1.is_finite()).then_some(found)
}

fn merge_scales(s: &mut Space<'_>, site: &Site) -> Found {
    let Some((y, b)) = factor(s, site) else { return none() };
    let Some((x, a)) = scaled(s, y) else { return none() };
    let dtype = s.ty(x).dtype;
    if !normal(dtype, a * b) {
        return Err(Miss(format!("{a:?} times {b:?} is no normal number of {dtype}")));
    }
    let both = s.scalar(x, a * b);
    one(s.call("Mul", Attrs::new(), &[x, both])?)
}

fn scale_into_product(s: &mut Space<'_>, site: &Site) -> Found {
    let Some((y, by)) = factor(s, site) else { return none() };
    let mut out = Vec::new();
    // Products compute 16-bit floats in float32.
    let arithmetic = if s.ty(y).dtype == DType::F64 { DType::F64 } else { DType::F32 };
    for p in s.made(y, "MatMul") {
        let (Some(a), Some(b)) = (arg(&p, 0), arg(&p, 1)) else { continue };
        if s.shape(a).rank() == 2 && s.shape(b).rank() == 2 {
            if !normal(arithmetic, by) {
                return Err(Miss(format!("{by:?} is no normal number of {arithmetic}")));
            }
            let (ta, tb) = flags(s, &p);
            let attrs = Attrs::new().with("trans_a", ta).with("trans_b", tb);
            let attrs = attrs.with("alpha", by).with("beta", 1.0);
            out.push(Equal::Tensor(s.call("Gemm", attrs, &[a, b])?));
        }
    }
    Ok(out)
}
