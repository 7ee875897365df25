//! Losses over classes: from the scores in one step, and from a linear layer without its scores.

use super::{Effect, Equal, Found, Miss, Rule, Stage, arg, flags, none};
use crate::space::{Site, Space};
use egg::Id;

/// The negative log likelihood of a log-softmax is cross entropy, whose gradient keeps one number a row.
pub(super) const NLL_OF_LOG_SOFTMAX: Rule = Rule {
    name: "nll-of-log-softmax",
    effect: Effect::Reassociates,
    stage: Some(Stage::Before),
    roots: &["NegativeLogLikelihoodLoss"],
    apply: nll,
};

/// A linear layer before cross entropy, in blocks of classes.
pub(super) const LINEAR_CROSS_ENTROPY: Rule = Rule {
    name: "linear-cross-entropy",
    effect: Effect::Reassociates,
    stage: Some(Stage::Before),
    roots: &["SoftmaxCrossEntropyLoss"],
    apply: linear,
};

fn nll(s: &mut Space<'_>, site: &Site) -> Found {
    let Some(x) = arg(site, 0) else { return none() };
    let mut out = Vec::new();
    for l in s.made(x, "LogSoftmax") {
        let Some(scores) = arg(&l, 0) else { continue };
        if s.attrs(&l).int("axis") != Ok(1) {
            return Err(Miss("the log-softmax is not along the classes".to_owned()));
        }
        let mut args = site.args.clone();
        args[0] = Some(scores);
        let tuple = s.tuple("SoftmaxCrossEntropyLoss", s.attrs(site).clone(), &args)?;
        out.push(Equal::Tensor(s.proj(tuple, 0)));
    }
    Ok(out)
}

/// Scores as x·w + bias: x, w, whether w is transposed, bias.
type Layer = (Id, Id, bool, Option<Id>);

fn linear(s: &mut Space<'_>, site: &Site) -> Found {
    let (Some(scores), Some(labels)) = (arg(site, 0), arg(site, 1)) else { return none() };
    let Some(dims) = s.dims(scores) else { return none() };
    // Through what flattens the rows.
    let mut inner = vec![scores];
    for r in s.made(scores, "Reshape") {
        inner.extend(arg(&r, 0).filter(|x| s.dims(*x).is_some_and(|d| d.last() == dims.last())));
    }
    let layers: Vec<Layer> = inner.into_iter().flat_map(|v| layers(s, v)).collect();
    if layers.is_empty() {
        return none();
    }
    if arg(site, 2).is_some() {
        return Err(Miss("the classes have weights".to_owned()));
    }
    if dims.len() != 2 {
        return Err(Miss(format!("the scores {dims:?} are no matrix")));
    }
    let attrs = s.attrs(site).clone();
    if attrs.str_or("reduction", "mean") == Ok("none") {
        return Err(Miss("there is a loss for each row".to_owned()));
    }
    let mut out = Vec::new();
    for (x, w, turned, bias) in layers {
        let Some(depth) = s.dims(x).and_then(|d| d.last().copied()) else { continue };
        let flat = s.reshape(x, &[dims[0], depth])?;
        let attrs = attrs.clone().with("trans_b", turned);
        let args = [Some(flat), Some(w), Some(labels), bias];
        let given = if bias.is_some() { 4 } else { 3 };
        let tuple = s.tuple("LinearCrossEntropy", attrs, &args[..given])?;
        out.push(Equal::Tensor(s.proj(tuple, 0)));
    }
    Ok(out)
}

fn layers(s: &Space<'_>, v: Id) -> Vec<Layer> {
    let plain = |v: Id| -> Vec<Layer> {
        let products = s.made(v, "MatMul");
        let of = products.iter().filter_map(|m| {
            let (x, w, (ta, tb)) = (arg(m, 0)?, arg(m, 1)?, flags(s, m));
            (!ta && s.shape(w).rank() == 2 && s.ty(x).dtype.is_float()).then_some((x, w, tb, None))
        });
        of.collect()
    };
    let mut out = plain(v);
    for g in s.made(v, "Gemm") {
        let (a, (ta, tb)) = (s.attrs(&g), flags(s, &g));
        let unit = a.float_or("alpha", 1.0) == Ok(1.0) && a.float_or("beta", 1.0) == Ok(1.0);
        let bias = arg(&g, 2);
        if let (Some(x), Some(w), true) = (arg(&g, 0), arg(&g, 1), unit && !ta)
            && bias.is_none_or(|b| s.shape(b).rank() == 1)
        {
            out.push((x, w, tb, bias));
        }
    }
    for add in s.made(v, "Add") {
        let (Some(a), Some(b)) = (arg(&add, 0), arg(&add, 1)) else { continue };
        for (p, bias) in [(a, b), (b, a)] {
            let columns = s.dims(v).and_then(|d| d.last().copied());
            if s.dims(bias).is_some_and(|d| d.len() == 1 && d.last().copied() == columns) {
                out.extend(plain(p).into_iter().map(|(x, w, t, _)| (x, w, t, Some(bias))));
            }
        }
    }
    out
}
