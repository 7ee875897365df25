//! LayerNormalization and RMSNormalization, written out as means, squares and roots.

use super::{Effect, Found, Miss, Rule, Stage, arg, none, one};
use crate::space::{Site, Space};
use egg::Id;
use graph::Attrs;

/// (x - mean) / sqrt(mean of squares + eps) * scale [+ bias].
pub(super) const LAYER_NORMALIZATION: Rule = Rule {
    name: "layer-normalization",
    effect: Effect::Reassociates,
    stage: Some(Stage::Before),
    roots: &["Add", "Mul"],
    apply: |s, site| recognise(s, site, true),
};

/// x / sqrt(mean of squares + eps) * scale.
pub(super) const RMS_NORMALIZATION: Rule = Rule {
    name: "rms-normalization",
    effect: Effect::Reassociates,
    stage: Some(Stage::Before),
    roots: &["Mul"],
    apply: |s, site| recognise(s, site, false),
};

/// What is normalised: input, first axis, epsilon.
struct Normalised {
    x: Id,
    axis: usize,
    eps: f64,
}

fn recognise(s: &mut Space<'_>, site: &Site, centred: bool) -> Found {
    let (Some(a), Some(b)) = (arg(site, 0), arg(site, 1)) else { return none() };
    let mut found = None;
    for (v, w) in [(a, b), (b, a)] {
        if s.op(site) == "Mul" {
            found = found.or_else(|| Some((normalised(s, v, centred)?, w, None)));
            continue;
        }
        for m in s.made(v, "Mul") {
            let (Some(p), Some(q)) = (arg(&m, 0), arg(&m, 1)) else { continue };
            for (n, scale) in [(p, q), (q, p)] {
                found = found.or_else(|| Some((normalised(s, n, centred)?, scale, Some(w))));
            }
        }
    }
    let Some((n, scale, bias)) = found else { return none() };
    let Some(dims) = s.dims(n.x) else { return none() };
    let of = &dims[n.axis..];
    let mut args = vec![n.x];
    for (v, what) in [(Some(scale), "scale"), (bias, "bias")] {
        let Some(v) = v else { continue };
        let have = s.dims(v).unwrap_or_default();
        // Leading axes of extent 1 spread over the rows.
        let lead = have.len().saturating_sub(of.len());
        if have.len() < of.len() || have[lead..] != *of || have[..lead].iter().any(|d| *d != 1) {
            let what = format!("the {what} is {have:?}, and not one number for each of {of:?}");
            return Err(Miss(what));
        }
        args.push(s.reshape(v, of)?);
    }
    let attrs = Attrs::new().with("axis", n.axis as i64).with("eps", n.eps);
    let op = if centred { "LayerNormalization" } else { "RmsNormalization" };
    let y = s.call(op, attrs, &args)?;
    if s.ty(y) == &s.egraph[site.class].data.types[0] { one(y) } else { none() }
}

/// `n` as d / sqrt(mean of d² + eps), where d is x - mean of x if it is to be centred, otherwise x.
fn normalised(s: &Space<'_>, n: Id, centred: bool) -> Option<Normalised> {
    let mut pairs: Vec<(Id, Id)> = Vec::new();
    for div in s.made(n, "Div") {
        pairs.extend(arg(&div, 0).zip(arg(&div, 1)));
    }
    for mul in s.made(n, "Mul") {
        let (Some(a), Some(b)) = (arg(&mul, 0), arg(&mul, 1)) else { continue };
        for (d, inverse) in [(a, b), (b, a)] {
            let one_over = s.made(inverse, "Div");
            let one_over = one_over.iter().filter(|o| arg(o, 0).and_then(|n| s.number(n)) == Some(1.0));
            pairs.extend(one_over.filter_map(|o| Some((d, arg(o, 1)?))));
            pairs.extend(s.made(inverse, "Reciprocal").iter().filter_map(|r| Some((d, arg(r, 0)?))));
        }
    }
    pairs.into_iter().find_map(|(d, root)| {
        let (square, axes, eps) = deviation(s, root)?;
        let is_square = s.made(square, "Pow").iter().any(|p| {
            arg(p, 0).is_some_and(|b| s.same(b, d)) && arg(p, 1).and_then(|n| s.number(n)) == Some(2.0)
        });
        let is_square = is_square
            || s.made(square, "Mul")
                .iter()
                .any(|m| arg(m, 0).zip(arg(m, 1)).is_some_and(|(a, b)| s.same(a, d) && s.same(b, d)));
        if !is_square {
            return None;
        }
        let rank = s.shape(d).rank();
        let last = axes.iter().enumerate().all(|(i, a)| *a as usize == rank - axes.len() + i);
        if axes.is_empty() || !last {
            return None;
        }
        let of = |x| Normalised { x, axis: rank - axes.len(), eps };
        if !centred {
            return Some(of(d));
        }
        s.made(d, "Sub").iter().find_map(|sub| {
            let (x, mean) = arg(sub, 0).zip(arg(sub, 1))?;
            let (from, over) = mean_of(s, mean)?;
            (s.same(from, x) && over == axes).then(|| of(x))
        })
    })
}

/// `root` as sqrt(mean of `square` + eps).
fn deviation(s: &Space<'_>, root: Id) -> Option<(Id, Vec<i64>, f64)> {
    let halves = s.made(root, "Pow");
    let halves = halves.iter().filter(|p| arg(p, 1).and_then(|n| s.number(n)) == Some(0.5));
    let inner = s
        .first(root, "Sqrt")
        .and_then(|r| arg(&r, 0))
        .or_else(|| halves.into_iter().find_map(|p| arg(p, 0)))?;
    s.made(inner, "Add").iter().find_map(|add| {
        let (mean, eps) = super::with_number(s, add)?;
        let (square, axes) = mean_of(s, mean)?;
        (eps >= 0.0).then_some((square, axes, eps))
    })
}

/// `mean` as a mean over axes that stay as extent 1.
fn mean_of(s: &Space<'_>, mean: Id) -> Option<(Id, Vec<i64>)> {
    let m = s.first(mean, "ReduceMean")?;
    let attrs = s.attrs(&m);
    (attrs.int_or("keepdims", 1) == Ok(1)).then_some(())?;
    Some((arg(&m, 0)?, attrs.ints("axes").ok()?.to_vec()))
}
