//! Buckets: static programs of a model whose sizes vary, one for each set of upper bounds.
//!
//! A bucket's graph is the model's at the bounds, and so are its steps and offsets. At run time the graph is made anew for the sizes at
//! hand, and differs in extents and what follows from them only. Constants that follow from sizes (a mask, positions, a scale by the
//! length) cannot be state, then: those that are the same in every graph that is made here are, all others become inputs.

use crate::{
    dynamic::{self, Request, Template},
    import::Open,
    pipeline::CompileError,
    variants::Part,
};
use graph::{Bindings, Graph, Literal, Symbol, ValueDef, verify};
use plan::Guard;
use std::{collections::BTreeMap, sync::Arc};
use trace::{Limits, NoOracle, place_constants};

/// Most buckets of a plan: each is planned on its own.
pub const MOST: usize = 16;

/// Most nodes of a graph with unrolled loops.
const MAX_NODES: usize = 10_000;

/// The buckets of several sizes: every combination of their bounds, smaller ones first.
///
/// # Errors
///
/// A text for people: no such size, two lists for one, or too many combinations.
pub fn product(open: &Open, sizes: &[(String, Vec<i64>)]) -> Result<Vec<Guard>, CompileError> {
    let mut lists: BTreeMap<Symbol, Vec<i64>> = BTreeMap::new();
    for (name, bounds) in sizes {
        let refuse = |what: String| CompileError::Buckets(format!("--dim {name}: {what}"));
        let symbol = symbol(open, name).map_err(refuse)?;
        let mut bounds = bounds.clone();
        bounds.sort_unstable();
        bounds.dedup();
        if lists.insert(symbol.clone(), bounds).is_some() {
            return Err(refuse(format!("size {symbol} has bounds already")));
        }
    }
    let open_sizes = open_sizes(open);
    if let Some(s) = open_sizes.iter().find(|s| !lists.contains_key(*s)) {
        let what = format!(
            "size {s} is neither bound nor bounded, so nothing can be planned ahead: give --dim {s}=N or {s}<=N"
        );
        return Err(CompileError::Buckets(what));
    }
    let count = lists.values().try_fold(1usize, |n, l| n.checked_mul(l.len()));
    if count.is_none_or(|n| n > MOST) {
        let parts: Vec<String> = lists.iter().map(|(s, l)| format!("{} of {s}", l.len())).collect();
        let what = format!("{} make more than {MOST} buckets: give fewer bounds", parts.join(" times "));
        return Err(CompileError::Buckets(what));
    }
    let mut out = vec![Guard::default()];
    for (symbol, bounds) in lists {
        let with = |g: &Guard, n: i64| {
            let mut dims = g.dims.clone();
            dims.push((symbol.clone(), 1, n as u64));
            Guard { dims }
        };
        out = out.iter().flat_map(|g| bounds.iter().map(|n| with(g, *n)).collect::<Vec<_>>()).collect();
    }
    let volume = |g: &Guard| g.dims.iter().map(|d| u128::from(d.2)).fold(1, u128::saturating_mul);
    out.sort_by_key(volume);
    Ok(out)
}

fn open_sizes(open: &Open) -> Vec<Symbol> {
    let types = open.graph.inputs.iter().map(|i| open.graph.ty(i.value));
    let mut found: Vec<Symbol> =
        types.flat_map(|t| t.shape.0.iter().filter_map(|d| d.as_symbol().cloned())).collect();
    found.sort();
    found.dedup();
    found
}

/// The open size that a name or `INPUT:AXIS` means.
fn symbol(open: &Open, name: &str) -> Result<Symbol, String> {
    let known = open_sizes(open);
    if let Some(s) = known.iter().find(|s| &***s == name) {
        return Ok(s.clone());
    }
    let g = &open.graph;
    let at = name.rsplit_once(':').and_then(|(input, axis)| {
        let i = g.inputs.iter().find(|i| &*g.value(i.value).name == input)?;
        g.ty(i.value).shape.0.get(axis.parse::<usize>().ok()?)?.as_symbol().cloned()
    });
    at.ok_or_else(|| match known.is_empty() {
        true => "every size of the model's inputs is a number already".to_owned(),
        false => format!("the model has no such open size; it has {}", known.join(", ")),
    })
}

/// The model's graph at a guard's upper bounds, as training sees it.
pub fn forward(request: &Request<'_>, guard: &Guard) -> Result<Graph, CompileError> {
    let templates = dynamic::templates(request);
    let first = templates.first().ok_or_else(|| CompileError::Buckets("no program".to_owned()))?;
    at(first, &guard.greatest()).map_err(|error| CompileError::Bucket { bucket: guard.to_string(), error })
}

/// Whether sizes just below a guard's bounds make another list of nodes: a loop that is unrolled by its length does. The planned steps fit the
/// bounds alone then, and what is below them runs dynamic.
pub fn is_for_bounds_alone(request: &Request<'_>, guard: &Guard) -> bool {
    let below: Bindings = guard.greatest().into_iter().map(|(s, n)| (s, (n - 1).max(1))).collect();
    let Some(template) = dynamic::templates(request).into_iter().next() else { return false };
    let nodes = |sizes: &Bindings| at(&template, sizes).map(|g| g.nodes.len());
    match (nodes(&guard.greatest()), nodes(&below)) {
        (Ok(at), Ok(below)) => at != below,
        _ => false,
    }
}

fn at(template: &Template, sizes: &Bindings) -> Result<Graph, trace::TraceError> {
    let limits = Limits::new(MAX_NODES);
    template.recipe.forward(sizes, limits, &mut NoOracle).map(|(forward, _)| forward)
}

/// The graphs of every bucket's programs, in the order of the buckets.
pub fn parts(request: &Request<'_>, buckets: &[Guard]) -> Result<Vec<Part>, CompileError> {
    let templates = dynamic::templates(request);
    let mut made: Vec<Part> = Vec::new();
    for guard in buckets {
        for t in &templates {
            let forward = at(t, &guard.greatest())
                .map_err(|error| CompileError::Bucket { bucket: guard.to_string(), error })?;
            made.push(Part {
                kind: t.kind,
                guard: guard.clone(),
                graph: t.recipe.program(t.kind, &forward)?,
            });
        }
    }
    let mut alike: BTreeMap<Arc<str>, Option<Literal>> = BTreeMap::new();
    made.iter().for_each(|p| compare(&p.graph, &mut alike));
    // One more set of sizes tells what a single bucket cannot.
    for t in &templates {
        let half: Bindings = buckets
            .first()
            .map(Guard::greatest)
            .unwrap_or_default()
            .into_iter()
            .map(|(s, n)| (s, (n / 2).max(1)))
            .collect();
        if let Ok(forward) = at(t, &half)
            && let Ok(graph) = t.recipe.program(t.kind, &forward)
        {
            compare(&graph, &mut alike);
        }
    }
    for p in &mut made {
        let graph = std::mem::take(&mut p.graph);
        p.graph = place_constants(graph, &|name| alike.get(name).is_some_and(Option::is_some)).graph;
        verify(&p.graph).map_err(|error| CompileError::Verify { pass: "making of buckets", error })?;
    }
    Ok(made)
}

/// Notes which constants have the same elements in every graph: those that do not are `None`.
fn compare(graph: &Graph, alike: &mut BTreeMap<Arc<str>, Option<Literal>>) {
    for v in &graph.values {
        let ValueDef::Constant(l) = &v.def else { continue };
        let known = alike.entry(v.name.clone()).or_insert_with(|| Some(l.clone()));
        if known.as_ref().is_some_and(|k| k != l) {
            *known = None;
        }
    }
}
