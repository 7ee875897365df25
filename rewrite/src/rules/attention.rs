//! Attention: product, scale, mask, softmax, product, as one operator that never writes the scores.

use super::{Effect, Equal, Found, Miss, Rule, Stage, arg, flags, none, perm, scaled, swapped_last};
use crate::space::{Site, Space};
use egg::Id;
use graph::Attrs;

/// softmax(q·kᵀ·scale + mask)·v, or with scores replaced where a mask says so: not the same for gradients, where all of a row are.
pub(super) const ATTENTION: Rule = Rule {
    name: "attention",
    effect: Effect::Reassociates,
    stage: Some(Stage::Before),
    roots: &["MatMul"],
    apply: attention,
};

/// Attention reads queries, keys and values whose rows stand before their heads.
pub(super) const TRANSPOSE_INTO_ATTENTION: Rule = Rule {
    name: "attention-of-transposed",
    effect: Effect::Reassociates,
    stage: Some(Stage::Before),
    roots: &["Attention"],
    apply: transpose_into,
};

/// Attention writes rows before heads.
pub(super) const TRANSPOSE_OUT_OF_ATTENTION: Rule = Rule {
    name: "attention-transposed",
    effect: Effect::Reassociates,
    stage: Some(Stage::Before),
    roots: &["Transpose"],
    apply: transpose_out,
};

/// What a Where puts in the place of scores is at most this if it stands for minus infinity.
const MASKED: f64 = -1e4;

/// Scores as scale·(q·kᵀ) + mask; with `fill`, as that where a boolean mask is false.
struct Scores {
    q: Id,
    k: Id,
    scale: f64,
    mask: Option<Id>,
    fill: Option<f64>,
}

fn attention(s: &mut Space<'_>, site: &Site) -> Found {
    let (Some(p), Some(values)) = (arg(site, 0), arg(site, 1)) else { return none() };
    let (ta, tb) = flags(s, site);
    let Some(softmax) = s.first(p, "Softmax") else {
        let dropped = s.terms(p).iter().any(|t| is_dropout_of_softmax(s, t));
        return if dropped {
            Err(Miss("dropout stands between softmax and product".to_owned()))
        } else {
            none()
        };
    };
    let Some(scores) = arg(&softmax, 0) else { return none() };
    let rank = s.shape(scores).rank();
    if ta || s.attrs(&softmax).int("axis") != Ok(rank as i64 - 1) {
        return Err(Miss("the softmax is not along the keys".to_owned()));
    }
    let Some(found) = split(s, scores)? else { return none() };
    let v = if tb { turned(s, values)? } else { values };
    let (dq, dk, dv) = (s.dims(found.q), s.dims(found.k), s.dims(v));
    let (Some(dq), Some(dk), Some(dv)) = (dq, dk, dv) else {
        return Err(Miss("a size is known only at run time".to_owned()));
    };
    let lead = |d: &[usize]| d[..d.len() - 2].to_vec();
    if lead(&dq) != lead(&dk) || lead(&dq) != lead(&dv) {
        return Err(Miss(format!("batch axes differ: queries {dq:?}, keys {dk:?}, values {dv:?}")));
    }
    if found.mask.is_some_and(|m| s.trained(m)) {
        return Err(Miss("the mask is trained, and its gradient is a score matrix".to_owned()));
    }
    let attrs = Attrs::new().with("scale", found.scale);
    let attrs = match found.fill {
        Some(fill) => attrs.with("fill", fill),
        None => attrs,
    };
    let args: Vec<Id> = [found.q, found.k, v].into_iter().chain(found.mask).collect();
    Ok(vec![Equal::Tensor(s.call("Attention", attrs, &args)?)])
}

/// Dropout has an identity, so that no site shows it.
fn is_dropout_of_softmax(s: &Space<'_>, term: &crate::term::Term) -> bool {
    use crate::term::Head;
    let Head::Proj(_) = term.head else { return false };
    s.terms(term.args[0]).iter().any(|t| {
        let Head::Op(k) = t.head else { return false };
        &*s.kinds[k as usize].op == "Dropout"
            && t.args.first().is_some_and(|x| s.first(*x, "Softmax").is_some())
    })
}

fn split(s: &mut Space<'_>, scores: Id) -> Result<Option<Scores>, Miss> {
    if let Some(found) = product(s, scores, 1.0, None)? {
        return Ok(Some(found));
    }
    for add in s.made(scores, "Add") {
        let (Some(a), Some(b)) = (arg(&add, 0), arg(&add, 1)) else { continue };
        for (v, mask) in [(a, b), (b, a)] {
            if s.ty(v) == s.ty(scores)
                && let Some(found) = product(s, v, 1.0, Some(mask))?
            {
                return Ok(Some(found));
            }
        }
    }
    for pick in s.made(scores, "Where") {
        let (Some(test), Some(a), Some(b)) = (arg(&pick, 0), arg(&pick, 1), arg(&pick, 2)) else {
            continue;
        };
        // Where keeps scores or, as `masked_fill` is exported, replaces them.
        for (v, other, keeps) in [(a, b, true), (b, a, false)] {
            let Some(number) = s.number(other) else { continue };
            if s.ty(v) != s.ty(scores) {
                continue;
            }
            let Some(mut found) = product(s, v, 1.0, None)? else { continue };
            if number > MASKED {
                return Err(Miss(format!("masked scores become {number}, which is no minus infinity")));
            }
            let keep = if keeps { test } else { s.call("Not", Attrs::new(), &[test])? };
            (found.mask, found.fill) = (Some(keep), Some(number));
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// `v` as a product of queries and keys, through scales before and after.
fn product(s: &mut Space<'_>, v: Id, scale: f64, mask: Option<Id>) -> Result<Option<Scores>, Miss> {
    if let Some(m) = s.first(v, "MatMul") {
        let (Some(a), Some(b)) = (arg(&m, 0), arg(&m, 1)) else { return Ok(None) };
        let (ta, tb) = flags(s, &m);
        let (q, by_q) = scaled(s, a).unwrap_or((a, 1.0));
        let (k, by_k) = scaled(s, b).unwrap_or((b, 1.0));
        let q = if ta { turned(s, q)? } else { q };
        let k = if tb { k } else { turned(s, k)? };
        return Ok(Some(Scores { q, k, scale: scale * by_q * by_k, mask, fill: None }));
    }
    match scaled(s, v) {
        Some((inner, by)) => product(s, inner, scale * by, mask),
        None => Ok(None),
    }
}

/// The transpose of the last two axes; of a transposed tensor one transpose less, where there is one.
fn turned(s: &mut Space<'_>, v: Id) -> Result<Id, Miss> {
    if let Some(t) = s.first(v, "Transpose")
        && let (Some(x), Some(p)) = (arg(&t, 0), perm(s, &t))
    {
        return s.transpose(x, &swapped_last(&p));
    }
    let all: Vec<i64> = (0..s.shape(v).rank() as i64).collect();
    s.transpose(v, &swapped_last(&all))
}

/// Whether a permutation swaps the axes before the last one.
fn swaps_heads(p: &[i64]) -> bool {
    let n = p.len();
    let mut want: Vec<i64> = (0..n as i64).collect();
    if n >= 3 {
        want.swap(n - 3, n - 2);
    }
    n >= 3 && p == want
}

fn transpose_into(s: &mut Space<'_>, site: &Site) -> Found {
    let mut out = Vec::new();
    for (i, name) in ["q_swapped", "k_swapped", "v_swapped"].into_iter().enumerate() {
        let Some(v) = arg(site, i) else { continue };
        if s.attrs(site).int_or(name, 0) != Ok(0) {
            continue;
        }
        for t in s.made(v, "Transpose") {
            let (Some(x), Some(p)) = (arg(&t, 0), perm(s, &t)) else { continue };
            if swaps_heads(&p) {
                let attrs = s.attrs(site).clone().with(name, 1);
                let mut args = site.args.clone();
                args[i] = Some(x);
                out.push(Equal::Tuple(s.tuple("Attention", attrs, &args)?));
            }
        }
    }
    Ok(out)
}

fn transpose_out(s: &mut Space<'_>, site: &Site) -> Found {
    let (Some(y), Some(p)) = (arg(site, 0), perm(s, site)) else { return none() };
    let mut out = Vec::new();
    if swaps_heads(&p) {
        for a in s.made(y, "Attention") {
            if s.attrs(&a).int_or("y_swapped", 0) == Ok(0) {
                let attrs = s.attrs(&a).clone().with("y_swapped", 1);
                let tuple = s.tuple("Attention", attrs, &a.args)?;
                out.push(Equal::Tensor(s.proj(tuple, 0)));
            }
        }
    }
    Ok(out)
}
