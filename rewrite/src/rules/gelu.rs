//! GELU and Swish, in the forms in which exporters write them.
//!
//! x/2·(1 + erf(x/√2)), x/2·(1 + tanh(√(2/π)(x + 0.044715 x³))) and x·sigmoid(αx), with factors in any order, a division for a
//! multiplication, the half inside of the sum. What stands in erf and tanh is a polynomial in x and compared as one: exporters write it with
//! powers or products, multiplied out or not.

use super::{Effect, Found, Miss, Rule, Stage, arg, close, none, one, scaled, with_number};
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
    let mut why = None;
    for way in ways {
        let numbers: Vec<f64> = way.iter().filter_map(|f| s.number(*f)).collect();
        let tensors: Vec<Id> = way.into_iter().filter(|f| s.number(*f).is_none()).collect();
        let by = numbers.iter().product::<f64>() * before;
        let [p, q] = tensors[..] else { continue };
        for (x, gate) in [(p, q), (q, p)] {
            match form(s, x, gate, by) {
                Ok(Some(op)) => return one(s.call(op, Attrs::new(), &[x])?),
                Ok(None) => {}
                Err(m) => _ = why.get_or_insert(m),
            }
        }
    }
    why.map_or_else(none, Err)
}

/// Which GELU by·x·gate is: the gate is a·(1 + f(x)) with by·a = 1/2.
fn form(s: &Space<'_>, x: Id, gate: Id, by: f64) -> Result<Option<&'static str>, Miss> {
    let mut why = None;
    for add in s.made(gate, "Add") {
        let Some((inner, one)) = with_number(s, &add) else { continue };
        // f times a number, which may be 1.
        for (f, slope) in [Some((inner, 1.0)), scaled(s, inner)].into_iter().flatten() {
            // Without its half it is a part of one.
            let Some(found) = function(s, x, f).filter(|_| close(by * one, 0.5)) else { continue };
            let found = match found {
                Ok(op) if close(by * slope, 0.5) => return Ok(Some(op)),
                Ok(op) => {
                    Miss(format!("it is x·(0.5 + {}·f(x)), where {op} is x·(0.5 + 0.5·f(x))", by * slope))
                }
                Err(m) => m,
            };
            why.get_or_insert(found);
        }
    }
    why.map_or(Ok(None), Err)
}

/// Which GELU has this function of x in its gate: erf(x/√2), or tanh(√(2/π)·(x + 0.044715·x³)). With other numbers, which those are.
fn function(s: &Space<'_>, x: Id, f: Id) -> Option<Result<&'static str, Miss>> {
    for erf in s.made(f, "Erf") {
        if let Some(p) = arg(&erf, 0).and_then(|u| polynomial(s, u, x, DEPTH)) {
            let [c0, c1, c2, c3] = p;
            return Some(match c0 == 0.0 && close(c1, FRAC_1_SQRT_2) && c2 == 0.0 && c3 == 0.0 {
                true => Ok("Gelu"),
                false => Err(Miss(format!("erf({}), where GELU has erf(0.70711·x)", written(&p)))),
            });
        }
    }
    for tanh in s.made(f, "Tanh") {
        if let Some(p) = arg(&tanh, 0).and_then(|u| polynomial(s, u, x, DEPTH)) {
            let [c0, c1, c2, c3] = p;
            return Some(match c0 == 0.0 && close(c1, ROOT) && c2 == 0.0 && close(c3 / c1, CUBE) {
                true => Ok("GeluTanh"),
                false => {
                    Err(Miss(format!("tanh({}), where GELU has tanh(0.79788·x + 0.035677·x³)", written(&p))))
                }
            });
        }
    }
    None
}

/// A polynomial in x, for people.
fn written(p: &Polynomial) -> String {
    let term = |(c, name): (&f64, &str)| (*c != 0.0).then(|| format!("{c:.5}{name}"));
    p.iter().zip(["", "·x", "·x²", "·x³"]).filter_map(term).collect::<Vec<_>>().join(" + ")
}

/// Coefficients of 1, x, x² and x³.
type Polynomial = [f64; 4];

/// Operators from an argument down to x: x + 0.044715·x·x·x, scaled, has six. A class may hold itself: something must end the search.
const DEPTH: u32 = 7;

/// `t` as a polynomial in x, however it is written; constants are numbers.
fn polynomial(s: &Space<'_>, t: Id, x: Id, depth: u32) -> Option<Polynomial> {
    if s.same(t, x) {
        return Some([0.0, 1.0, 0.0, 0.0]);
    }
    if let Some(n) = s.number(t) {
        return Some([n, 0.0, 0.0, 0.0]);
    }
    // What has another type is no function of x alone.
    let depth = depth.checked_sub(1).filter(|_| s.ty(t) == s.ty(x))?;
    let of = |m: &Site, i| polynomial(s, arg(m, i)?, x, depth);
    let both = |m: &Site| Some((of(m, 0)?, of(m, 1)?));
    let mul = |(a, b)| product(&a, &b);
    let found = s.made(t, "Mul").iter().find_map(|m| both(m).and_then(mul));
    let found = found.or_else(|| {
        let sum = |(a, b): (Polynomial, Polynomial)| std::array::from_fn(|i| a[i] + b[i]);
        s.made(t, "Add").iter().find_map(both).map(sum)
    });
    let found = found.or_else(|| {
        s.made(t, "Div").iter().find_map(|m| {
            let by = s.number(arg(m, 1)?)?;
            of(m, 0).map(|a| a.map(|c| c / by))
        })
    });
    found.or_else(|| {
        s.made(t, "Pow").iter().find_map(|m| {
            let (base, n) = (of(m, 0)?, s.number(arg(m, 1)?)?);
            let square = product(&base, &base).filter(|_| n == 2.0 || n == 3.0)?;
            if n == 2.0 { Some(square) } else { product(&square, &base) }
        })
    })
}

/// The product of two polynomials, if its degree is at most 3.
fn product(a: &Polynomial, b: &Polynomial) -> Option<Polynomial> {
    let mut out = [0.0; 4];
    for (i, a) in a.iter().enumerate().filter(|(_, a)| **a != 0.0) {
        for (j, b) in b.iter().enumerate().filter(|(_, b)| **b != 0.0) {
            *out.get_mut(i + j)? += a * b;
        }
    }
    Some(out)
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
