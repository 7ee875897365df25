//! Attention: product, scale, mask, softmax, product, as one operator that never writes the scores.

use super::{
    Effect, Equal, Found, Miss, Rule, Stage, arg, flags, none, normal, one, perm,
    scores::{probabilities, scores, turned},
};
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

fn attention(s: &mut Space<'_>, site: &Site) -> Found {
    let (Some(p), Some(values)) = (arg(site, 0), arg(site, 1)) else { return none() };
    let (ta, tb) = flags(s, site);
    let Some(found) = probabilities(s, p)? else { return none() };
    let Some(inner) = arg(&found.softmax, 0) else { return none() };
    // Where probabilities are turned, so are their scores, and the keys lie along the axis before the last.
    let is_turned = ta != found.turned;
    let keys = s.shape(inner).rank() as i64 - 1 - i64::from(is_turned);
    if s.attrs(&found.softmax).int("axis") != Ok(keys) {
        return Err(Miss("the softmax is not along the keys".to_owned()));
    }
    let (by, guarded) = (found.by, found.guarded);
    let Some(found) = scores(s, inner, is_turned)? else { return none() };
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
    let attrs = if guarded { attrs.with("guarded", 1) } else { attrs };
    let args: Vec<Id> = [found.q, found.k, v].into_iter().chain(found.mask).collect();
    let y = s.call("Attention", attrs, &args)?;
    if by == 1.0 {
        return one(y);
    }
    if !normal(s.ty(y).dtype, by) {
        return Err(Miss(format!("probabilities times {by}, which is no factor that a result can have")));
    }
    let by = s.scalar(y, by);
    one(s.call("Mul", Attrs::new(), &[y, by])?)
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
