//! One plan of several programs of a kind: for several buckets, and for several budgets.
//!
//! All programs share one state section and one arena. Of programs for the same sizes the one with the largest arena comes first, so that
//! the first that fits is the fastest; one that needs as much as the one before it is left out.

use crate::{
    dynamic::{self, DynamicError},
    emit,
    pipeline::{Budget, CompileError, Compiled, Request, Within, within},
};
use graph::Graph;
use ops::Registry;
use plan::{ALIGNMENT, Device, Guard, Plan, Program, ProgramKind, plan_numerics, slot_bytes, validate};
use std::cmp::Reverse;

/// A graph of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// What it is for.
    pub kind: ProgramKind,
    /// The sizes that its program is for; none if it has its own.
    pub guard: Guard,
    /// Its graph, at the guard's upper bounds.
    pub graph: Graph,
}

/// Plans every part at every budget. With `open` a dynamic program of each kind stands beside them, for what no guard covers; its pool has
/// `pool` bytes, or what the state leaves of the largest budget.
///
/// # Errors
///
/// No plan is found for a part at one of the budgets: the first of them.
pub fn plan(
    parts: Vec<Part>,
    open: Option<&dynamic::Request<'_>>,
    budgets: &[Budget],
    pool: Option<u64>,
    request: &Request<'_>,
) -> Result<Compiled, CompileError> {
    let templates = open.map(dynamic::templates).unwrap_or_default();
    let graphs: Vec<&Graph> =
        parts.iter().map(|p| &p.graph).chain(templates.iter().map(|t| &t.graph)).collect();
    let (state, own_bytes) = emit::state_section(&graphs, request.weight_hash)?;
    let slot_bytes = slot_bytes(request.device, graphs);
    let state_bytes = own_bytes.saturating_add(slot_bytes);
    let guards: Vec<Guard> = parts.iter().map(|p| p.guard.clone()).collect();
    let graphs: Vec<(ProgramKind, Graph)> = parts.into_iter().map(|p| (p.kind, p.graph)).collect();
    let mut found: Vec<Within> =
        within(&graphs, state_bytes, budgets, request)?.into_iter().collect::<Result<_, _>>()?;
    found.sort_by_key(|w| Reverse(w.budget));
    let budget = found.first().map_or(0, |w| w.budget);
    let keep_all = found.iter().map(|w| w.keep_all).max().unwrap_or(state_bytes);
    let mut columns: Vec<_> = found.into_iter().map(|w| w.programs.into_iter()).collect();
    let mut programs: Vec<Program> = Vec::new();
    for guard in guards {
        let mut least = u64::MAX;
        for mut p in columns.iter_mut().filter_map(Iterator::next) {
            if p.certificate.arena < least {
                least = p.certificate.arena;
                p.guard = guard.clone();
                programs.push(p);
            }
        }
    }
    let mut arena = programs.iter().map(|p| p.certificate.arena).fold(state_bytes, u64::max);
    if let Some(open) = open {
        // On CUDA only what is planned ahead runs; the dynamic program stands there for its recipe.
        let least = (request.device == Device::Cuda).then_some(ALIGNMENT);
        let work = match least.or(pool) {
            Some(n) => n.min(budget.saturating_sub(state_bytes)),
            None => budget.saturating_sub(state_bytes),
        } / ALIGNMENT
            * ALIGNMENT;
        if work == 0 {
            return Err(DynamicError::State { budget, state: state_bytes }.into());
        }
        programs.extend(dynamic::programs(open, templates, state_bytes, work)?);
        arena = arena.max(state_bytes + work);
    }
    let mut plan = Plan {
        model: request.model.to_owned(),
        device: request.device,
        budget,
        arena,
        numerics: [0; 32],
        provenance: format!("dtrc {}", env!("CARGO_PKG_VERSION")),
        state,
        state_bytes,
        slot_bytes,
        accumulate: request.accumulate,
        programs,
    };
    plan.numerics = plan_numerics(&plan, &Registry);
    validate(&plan, ops::cuda::registry(plan.device == Device::Cuda))?;
    Ok(Compiled { plan, budget, keep_all })
}
