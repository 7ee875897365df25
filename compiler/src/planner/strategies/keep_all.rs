//! Keep-all: the best peak without recomputation.
//!
//! Evaluates every candidate order, and searches on from the best of them.

use super::super::decode::Genome;
use super::super::problem::Bytes;
use super::{Candidate, Context, order_search};

/// Searches from the best order, the part of the work for each, and the temperature that they begin with.
const SEARCHES: u64 = 2;
const PART: u64 = 16;
const HEAT: f64 = 0.02;

/// The least peak over the candidate orders and searches from the best of them, every node in its fastest implementation.
pub(crate) fn run(context: &mut Context<'_, '_>) -> Candidate {
    let given = std::mem::replace(&mut context.budget, Bytes::MAX);
    let index = context.index;
    context.evaluator.fastest_only = true;
    let mut best: Option<Candidate> = None;
    for order in context.orders.clone() {
        take_lower(&mut best, context.decode("keep all", Genome::keep_all(index, order), u64::MAX));
    }
    // Without nodes, inputs and constants are the outputs, and there is nothing to move.
    if let (Some(start), false) = (best.clone(), context.keep_order || index.given.is_empty()) {
        for salt in 0..SEARCHES {
            let work = context.work / PART;
            take_lower(&mut best, order_search::improve(context, &start, HEAT, work, salt));
        }
    }
    context.evaluator.fastest_only = false;
    context.budget = given;
    // The given order always decodes: the index has checked it.
    best.unwrap_or_else(|| {
        let genome = Genome::keep_all(index, index.given.clone());
        let score = context.evaluator.evaluate(&index.given, given);
        Candidate { strategy: "keep all", genome, sequence: index.given.clone(), score }
    })
}

fn take_lower(best: &mut Option<Candidate>, new: Option<Candidate>) {
    if let Some(new) = new
        && best.as_ref().is_none_or(|b| new.score.peak < b.score.peak)
    {
        *best = Some(new);
    }
}
