//! The scores of attention and their softmax, in the ways in which models write them: queries times keys or the other way round, scaled,
//! masked and transposed in any order.

use super::{Miss, arg, flags, normal, perm, scaled, swapped_last};
use crate::{
    space::{Site, Space},
    term::{Head, Term},
};
use egg::Id;
use graph::{Attrs, DType};

/// What a Where puts in the place of scores is at most this if it stands for minus infinity.
const MASKED: f64 = -1e4;

/// Operators between a softmax and the product before or after it. A class may hold itself (x is x·1): something must end the search.
const DEPTH: u32 = 6;

/// Scores as scale·(q·kᵀ) + mask; with `fill`, as that where a boolean mask is false.
pub(super) struct Scores {
    pub(super) q: Id,
    pub(super) k: Id,
    pub(super) scale: f64,
    pub(super) mask: Option<Id>,
    pub(super) fill: Option<f64>,
}

/// A softmax times a number, its last two axes swapped or not.
pub(super) struct Probabilities {
    pub(super) softmax: Site,
    pub(super) turned: bool,
    pub(super) by: f64,
    /// Those that are NaN count as 0.
    pub(super) guarded: bool,
}

/// `p` as a softmax, through scales and transposes.
pub(super) fn probabilities(s: &Space<'_>, p: Id) -> Result<Option<Probabilities>, Miss> {
    behind(s, p, DEPTH)
}

fn behind(s: &Space<'_>, p: Id, depth: u32) -> Result<Option<Probabilities>, Miss> {
    if let Some(softmax) = s.first(p, "Softmax") {
        return Ok(Some(Probabilities { softmax, turned: false, by: 1.0, guarded: false }));
    }
    if depth == 0 {
        return Ok(None);
    }
    if let Some((inner, by)) = scaled(s, p)
        && let Some(mut found) = behind(s, inner, depth - 1)?
    {
        found.by *= by;
        return Ok(Some(found));
    }
    if let Some(inner) = turned_of(s, p)
        && let Some(mut found) = behind(s, inner, depth - 1)?
    {
        found.turned = !found.turned;
        return Ok(Some(found));
    }
    if s.terms(p).iter().any(|t| is_dropout_of_softmax(s, t)) {
        return Err(Miss("dropout stands between softmax and product".to_owned()));
    }
    for cast in s.made(p, "Cast") {
        if let Some(x) = arg(&cast, 0)
            && behind(s, x, depth - 1)?.is_some()
        {
            return Err(Miss(format!("probabilities are {} and cast to {}", s.ty(x).dtype, s.ty(p).dtype)));
        }
    }
    for pick in s.made(p, "Where") {
        for (i, other) in [(1, 2), (2, 1)] {
            let (Some(x), Some(number)) = (arg(&pick, i), arg(&pick, other).and_then(|n| s.number(n))) else {
                continue;
            };
            let Some(mut found) = behind(s, x, depth - 1)? else { continue };
            let nan = arg(&pick, 0).is_some_and(|t| {
                s.made(t, "IsNaN").iter().any(|n| arg(n, 0).is_some_and(|of| s.same(of, x)))
            });
            // So PyTorch is exported where a boolean mask may leave nothing of a row.
            if nan && number == 0.0 && i == 2 {
                found.guarded = true;
                return Ok(Some(found));
            }
            return Err(Miss(format!("probabilities are replaced by {number} behind the softmax")));
        }
    }
    Ok(None)
}

/// Dropout has an identity, so that no site shows it.
fn is_dropout_of_softmax(s: &Space<'_>, term: &Term) -> bool {
    let Head::Proj(_) = term.head else { return false };
    s.terms(term.args[0]).iter().any(|t| {
        let Head::Op(k) = t.head else { return false };
        &*s.kinds[k as usize].op == "Dropout"
            && t.args.first().is_some_and(|x| s.first(*x, "Softmax").is_some())
    })
}

/// What a tensor is the transpose of, if its last two axes alone are swapped.
fn turned_of(s: &Space<'_>, v: Id) -> Option<Id> {
    let all: Vec<i64> = (0..s.shape(v).rank() as i64).collect();
    if all.len() < 2 {
        return None;
    }
    s.made(v, "Transpose").iter().find(|t| perm(s, t) == Some(swapped_last(&all))).and_then(|t| arg(t, 0))
}

/// `v`, or its transpose, as scores.
pub(super) fn scores(s: &mut Space<'_>, v: Id, is_turned: bool) -> Result<Option<Scores>, Miss> {
    match split(s, v, DEPTH)? {
        Some(found) if is_turned => Ok(Some(through(s, found, Step::Turned(v))?)),
        found => Ok(found),
    }
}

fn split(s: &mut Space<'_>, v: Id, depth: u32) -> Result<Option<Scores>, Miss> {
    if let Some(m) = s.first(v, "MatMul") {
        return product(s, &m);
    }
    if depth == 0 {
        return Ok(None);
    }
    // One way to write a class may be met where another fails.
    let mut why = None;
    for step in steps(s, v) {
        let inner = match step {
            Step::Scaled(x, _) | Step::Turned(x) | Step::Added(x, _) | Step::Picked { x, .. } => x,
            Step::Cast(x, _) | Step::Spread(x) => x,
        };
        let found = match split(s, inner, depth - 1) {
            Ok(Some(found)) => through(s, found, step),
            Ok(None) => continue,
            Err(m) => Err(m),
        };
        match found {
            Ok(found) => return Ok(Some(found)),
            Err(m) => _ = why.get_or_insert(m),
        }
    }
    why.map_or(Ok(None), Err)
}

/// An operator on the way from a product to its softmax, and the scores that it reads.
enum Step {
    Scaled(Id, f64),
    Turned(Id),
    Added(Id, Id),
    /// To this type.
    Cast(Id, DType),
    /// A mask has more axes or longer ones than the scores.
    Spread(Id),
    /// Scores `x` are kept where `test` is what `keeps` says, and are a number elsewhere.
    Picked {
        x: Id,
        test: Id,
        keeps: bool,
        number: f64,
    },
}

fn steps(s: &Space<'_>, v: Id) -> Vec<Step> {
    let mut out: Vec<Step> = scaled(s, v).into_iter().map(|(x, by)| Step::Scaled(x, by)).collect();
    out.extend(turned_of(s, v).map(Step::Turned));
    for add in s.made(v, "Add") {
        let (Some(a), Some(b)) = (arg(&add, 0), arg(&add, 1)) else { continue };
        let same = |x| s.ty(x) == s.ty(v);
        out.extend([(a, b), (b, a)].map(|(x, m)| if same(x) { Step::Added(x, m) } else { Step::Spread(x) }));
    }
    for pick in s.made(v, "Where") {
        let (Some(test), Some(a), Some(b)) = (arg(&pick, 0), arg(&pick, 1), arg(&pick, 2)) else {
            continue;
        };
        // Where keeps scores or, as `masked_fill` is exported, replaces them.
        for (x, other, keeps) in [(a, b, true), (b, a, false)] {
            if let Some(number) = s.number(other) {
                let same = s.ty(x) == s.ty(v);
                out.push(if same { Step::Picked { x, test, keeps, number } } else { Step::Spread(x) });
            }
        }
    }
    let casts = s.made(v, "Cast");
    out.extend(casts.iter().filter_map(|c| arg(c, 0)).map(|x| Step::Cast(x, s.ty(v).dtype)));
    out
}

/// Scores behind one more operator.
fn through(s: &mut Space<'_>, mut found: Scores, step: Step) -> Result<Scores, Miss> {
    match step {
        Step::Scaled(x, by) => {
            if found.mask.is_some() {
                return Err(Miss("scores are scaled after they were masked".to_owned()));
            }
            let scale = found.scale * by;
            if !normal(s.ty(x).dtype, scale) {
                return Err(Miss(format!("{} times {by} is no factor that scores can have", found.scale)));
            }
            found.scale = scale;
        }
        Step::Turned(_) => {
            (found.q, found.k) = (found.k, found.q);
            found.mask = found.mask.map(|m| turned_mask(s, m)).transpose()?;
        }
        Step::Cast(x, to) => {
            return Err(Miss(format!("scores are {} and cast to {to}", s.ty(x).dtype)));
        }
        Step::Spread(_) => return Err(Miss("a mask is larger than the scores".to_owned())),
        Step::Added(..) if found.fill.is_some() => {
            let why =
                "a mask is added to scores of which some were replaced: the operator knows one or the other";
            return Err(Miss(why.to_owned()));
        }
        Step::Added(_, mask) => {
            found.mask = Some(match found.mask {
                Some(first) => s.call("Add", Attrs::new(), &[first, mask])?,
                None => mask,
            });
        }
        Step::Picked { test, keeps, number, .. } => {
            if number > MASKED {
                return Err(Miss(format!("masked scores become {number}, which is no minus infinity")));
            }
            if found.mask.is_some() && found.fill.map(f64::to_bits) != Some(number.to_bits()) {
                let why = "scores are replaced after another mask: the operator knows one of them";
                return Err(Miss(why.to_owned()));
            }
            let keep = if keeps { test } else { s.call("Not", Attrs::new(), &[test])? };
            found.mask = Some(match found.mask {
                Some(first) => s.call("And", Attrs::new(), &[first, keep])?,
                None => keep,
            });
            found.fill = Some(number);
        }
    }
    Ok(found)
}

/// A product of queries and keys, with the scales of both.
fn product(s: &mut Space<'_>, m: &Site) -> Result<Option<Scores>, Miss> {
    let (Some(a), Some(b)) = (arg(m, 0), arg(m, 1)) else { return Ok(None) };
    let (ta, tb) = flags(s, m);
    let (q, by_q) = scaled(s, a).unwrap_or((a, 1.0));
    let (k, by_k) = scaled(s, b).unwrap_or((b, 1.0));
    let scale = by_q * by_k;
    if !normal(s.ty(a).dtype, scale) {
        return Err(Miss(format!("{by_q} times {by_k} is no factor that scores can have")));
    }
    let q = if ta { turned(s, q)? } else { q };
    let k = if tb { k } else { turned(s, k)? };
    Ok(Some(Scores { q, k, scale, mask: None, fill: None }))
}

/// The transpose of the last two axes; of a transposed tensor one transpose less, where there is one.
pub(super) fn turned(s: &mut Space<'_>, v: Id) -> Result<Id, Miss> {
    if let Some(t) = s.first(v, "Transpose")
        && let (Some(x), Some(p)) = (arg(&t, 0), perm(s, &t))
    {
        return s.transpose(x, &swapped_last(&p));
    }
    let all: Vec<i64> = (0..s.shape(v).rank() as i64).collect();
    s.transpose(v, &swapped_last(&all))
}

/// A mask of scores as one of their transpose: what spreads stays as it is, a row becomes a column.
fn turned_mask(s: &mut Space<'_>, mask: Id) -> Result<Id, Miss> {
    match s.shape(mask).rank() {
        0 => Ok(mask),
        1 => {
            let dims = s.dims(mask).ok_or_else(|| Miss("a size is known only at run time".to_owned()))?;
            s.reshape(mask, &[dims[0], 1])
        }
        _ => turned(s, mask),
    }
}
