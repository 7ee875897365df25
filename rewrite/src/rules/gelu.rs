//! GELU and Swish, in the forms in which exporters write them.
//!
//! x/2·(1 + erf(x/√2)), x/2·(1 + tanh(√(2/π)(x + 0.044715 x³))) and x·sigmoid(αx), with factors in any order, a division for a
//! multiplication, x³ as a power or as products.

use super::{Effect, Found, Rule, Stage, arg, close, none, one, scaled, with_number};
use crate::space::{Site, Space};
use egg::Id;
use graph::Attrs;
use std::f64::consts::FRAC_1_SQRT_2;

/// Both forms of GELU.
pub(super) const GELU: Rule = Rule {
    name: "gelu",
    effect: Effect::Reassociates,
    stage: Some(Stage::Before),
    roots: &["Mul", "Div"],
    apply: gelu,
};

/// x·sigmoid(αx).
pub(super) const SWISH: Rule = Rule {
    name: "swish",
    effect: Effect::Reassociates,
    stage: Some(Stage::Before),
    roots: &["Mul"],
    apply: swish,
};

const ROOT: f64 = 0.797_884_560_802_865_4;
const CUBE: f64 = 0.044_715;

/// Ways to write a product of two tensors as several: each side itself, or the factors of a product that it is.
fn factors(s: &Space<'_>, a: Id, b: Id) -> Vec<Vec<Id>> {
    let split = |x: Id| {
        let mut ways = vec![vec![x]];
        for m in s.made(x, "Mul") {
            ways.extend(arg(&m, 0).zip(arg(&m, 1)).map(|(a, b)| vec![a, b]));
        }
        ways
    };
    let (left, right) = (split(a), split(b));
    left.iter().flat_map(|l| right.iter().map(move |r| [l.clone(), r.clone()].concat())).collect()
}

fn gelu(s: &mut Space<'_>, site: &Site) -> Found {
    let (Some(a), Some(b)) = (arg(site, 0), arg(site, 1)) else { return none() };
    let (ways, before) = if s.op(site) == "Div" {
        let Some(n) = s.number(b) else { return none() };
        let of = |m: &Site| arg(m, 0).zip(arg(m, 1));
        let products: Vec<(Id, Id)> = s.made(a, "Mul").iter().filter_map(of).collect();
        (products.into_iter().flat_map(|(a, b)| factors(s, a, b)).collect::<Vec<_>>(), 1.0 / n)
    } else {
        (factors(s, a, b), 1.0)
    };
    for way in ways {
        let numbers: Vec<f64> = way.iter().filter_map(|f| s.number(*f)).collect();
        let tensors: Vec<Id> = way.into_iter().filter(|f| s.number(*f).is_none()).collect();
        let half = numbers.iter().product::<f64>() * before;
        let [p, q] = tensors[..] else { continue };
        if !close(half, 0.5) {
            continue;
        }
        for (x, gate) in [(p, q), (q, p)] {
            if let Some(op) = form(s, x, gate) {
                return one(s.call(op, Attrs::new(), &[x])?);
            }
        }
    }
    none()
}

/// Which GELU x·gate/2 is.
fn form(s: &Space<'_>, x: Id, gate: Id) -> Option<&'static str> {
    for add in s.made(gate, "Add") {
        let Some((inner, 1.0)) = with_number(s, &add) else { continue };
        for erf in s.made(inner, "Erf") {
            let (from, by) = scaled(s, arg(&erf, 0)?)?;
            if s.same(from, x) && close(by, FRAC_1_SQRT_2) {
                return Some("Gelu");
            }
        }
        for tanh in s.made(inner, "Tanh") {
            if is_tanh_argument(s, arg(&tanh, 0)?, x) {
                return Some("GeluTanh");
            }
        }
    }
    None
}

/// Whether `u` is √(2/π)·(x + 0.044715·x³).
fn is_tanh_argument(s: &Space<'_>, u: Id, x: Id) -> bool {
    let Some((sum, by)) = scaled(s, u) else { return false };
    if !close(by, ROOT) {
        return false;
    }
    let cubic = |t: Id| scaled(s, t).is_some_and(|(c, by)| close(by, CUBE) && is_cube(s, c, x));
    s.made(sum, "Add").iter().any(|add| {
        let (a, b) = (arg(add, 0), arg(add, 1));
        a.zip(b).is_some_and(|(a, b)| s.same(a, x) && cubic(b) || s.same(b, x) && cubic(a))
    })
}

fn is_cube(s: &Space<'_>, c: Id, x: Id) -> bool {
    let power = s.made(c, "Pow").iter().any(|p| {
        let n = arg(p, 1).and_then(|n| s.number(n));
        n == Some(3.0) && arg(p, 0).is_some_and(|b| s.same(b, x))
    });
    let square = |q: Id| {
        let product = |m: &Site| arg(m, 0).zip(arg(m, 1)).is_some_and(|(a, b)| s.same(a, x) && s.same(b, x));
        s.made(q, "Mul").iter().any(product)
    };
    let product = |m: &Site| {
        let pair = arg(m, 0).zip(arg(m, 1));
        pair.is_some_and(|(a, b)| s.same(a, x) && square(b) || s.same(b, x) && square(a))
    };
    power || s.made(c, "Mul").iter().any(product)
}

fn swish(s: &mut Space<'_>, site: &Site) -> Found {
    let (Some(a), Some(b)) = (arg(site, 0), arg(site, 1)) else { return none() };
    for (x, gate) in [(a, b), (b, a)] {
        for sigmoid in s.made(gate, "Sigmoid") {
            let Some(u) = arg(&sigmoid, 0) else { continue };
            let alpha = if s.same(u, x) {
                Some(1.0)
            } else {
                scaled(s, u).filter(|(from, _)| s.same(*from, x)).map(|(_, by)| by)
            };
            if let Some(alpha) = alpha.filter(|_| s.ty(x).dtype.is_float()) {
                return one(s.call("Swish", Attrs::new().with("alpha", alpha), &[x])?);
            }
        }
    }
    none()
}
