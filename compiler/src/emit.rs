//! From planned schedules to a plan file: the state section, places and drops.

use crate::planner::{Planned, Problem, outcome::PlanError, replay::Holder};
use graph::{Graph, Init, NodeId, OpFacts, StateKind, ValueDef, ValueId};
use ops::Registry;
use plan::{Certificate, Guard, Place, Program, ProgramKind, Run, StateEntry, Step, align};
use std::{collections::BTreeMap, sync::Arc};

/// Why a schedule cannot be written as a plan.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    /// Two programs mean different tensors by one state name.
    #[error("two programs disagree about state {0:?}")]
    State(String),
    /// The schedule is not one of the graph: a bug in the planner.
    #[error("the planner's schedule is unlawful: {0}")]
    Schedule(String),
    /// The planner's own refusal.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// The state section of several programs over one state: parameters first, then optimizer memory, statistics and what is not trained,
/// each in the order of the first program that has it. Hashes come from `hash` by weight name.
pub fn state_section(
    graphs: &[&Graph],
    hash: &dyn Fn(&str) -> Option<[u8; 32]>,
) -> Result<(Vec<StateEntry>, u64), EmitError> {
    let mut found: Vec<StateEntry> = Vec::new();
    let mut at: BTreeMap<Arc<str>, usize> = BTreeMap::new();
    for g in graphs {
        for s in &g.states {
            let ty = g.ty(s.input).clone();
            match at.get(&s.name) {
                Some(i) if found[*i].ty == ty && found[*i].init == s.init => {
                    // One program trains what another only reads.
                    if found[*i].kind == StateKind::Frozen {
                        found[*i].kind = s.kind;
                    }
                }
                Some(_) => return Err(EmitError::State(s.name.to_string())),
                None => {
                    let hash = if let Init::Weight(w) = &s.init { hash(w) } else { None };
                    at.insert(s.name.clone(), found.len());
                    found.push(StateEntry {
                        name: s.name.clone(),
                        kind: s.kind,
                        ty,
                        offset: 0,
                        init: s.init.clone(),
                        hash,
                    });
                }
            }
        }
    }
    let rank = |k: StateKind| match k {
        StateKind::Parameter => 0,
        StateKind::Optimizer => 1,
        StateKind::Accumulator => 2,
        StateKind::Statistic => 3,
        StateKind::Frozen => 4,
    };
    found.sort_by_key(|e| rank(e.kind));
    let mut offset = 0u64;
    for e in &mut found {
        e.offset = offset;
        offset = offset.saturating_add(align(e.ty.bytes().unwrap_or(0)));
    }
    Ok((found, offset))
}

/// A program from a planned schedule of its problem.
pub fn program(
    kind: ProgramKind,
    graph: Graph,
    problem: &Problem,
    planned: &Planned,
) -> Result<Program, EmitError> {
    let mut outputs_at: BTreeMap<(usize, u32), u64> = BTreeMap::new();
    let mut inputs_at: BTreeMap<u32, u64> = BTreeMap::new();
    let mut workspace_at: BTreeMap<usize, u64> = BTreeMap::new();
    for (life, offset) in planned.layout.lifetimes.iter().zip(&planned.layout.offsets) {
        let offset = problem.resident + offset;
        match life.holder {
            Holder::Input(v) => {
                inputs_at.insert(v, offset);
            }
            Holder::Output(step, o) => {
                outputs_at.insert((step, o), offset);
            }
            Holder::Workspace(step) => {
                workspace_at.insert(step, offset);
            }
        }
    }
    let ends = ends(&graph, planned);
    let mut steps = Vec::with_capacity(planned.schedule.steps.len());
    for (i, s) in planned.schedule.steps.iter().enumerate() {
        let id = NodeId(s.node);
        let node = graph.node(id);
        let facts = Registry.facts(&graph, id).map_err(EmitError::Schedule)?;
        let mut outputs = Vec::new();
        for o in 0..node.outputs.len() {
            let view = facts.views.iter().find(|v| v.output == o);
            let commit = facts.commits.iter().find(|c| c.0 == o);
            let taken = s.overwrites.iter().find(|p| p.0 as usize == o);
            outputs.push(if let Some(v) = view {
                Place::View { input: v.input as u32 }
            } else if let Some((_, input)) = commit {
                Place::Commit { input: *input as u32 }
            } else if let Some((_, deduplicated)) = taken {
                // The problem's inputs have no repetitions; the node's may.
                let value = problem.nodes[s.node as usize].inputs[*deduplicated as usize];
                let lawful = |k: &usize| {
                    node.inputs[*k] == Some(ValueId(value)) && facts.overwrites.contains(&(o, *k))
                };
                let input = (0..node.inputs.len()).find(lawful);
                let input =
                    input.ok_or_else(|| EmitError::Schedule(format!("{}: no such overwrite", node.name)))?;
                Place::Overwrite { input: input as u32 }
            } else {
                // A storage without bytes has no lifetime; it may lie anywhere.
                let offset = outputs_at.get(&(i, o as u32)).copied().unwrap_or(problem.resident);
                Place::New { space: 0, offset }
            });
        }
        steps.push(Step::Run(Run {
            node: id,
            implementation: s.implementation as u8,
            queue: 0,
            time_ns: problem.nodes[s.node as usize].implementations[s.implementation as usize].time,
            outputs,
            workspace: workspace_at.get(&i).copied(),
            drops: ends[i].clone(),
        }));
    }
    let inputs =
        graph.inputs.iter().map(|i| inputs_at.get(&i.value.0).copied().unwrap_or(problem.resident)).collect();
    let certificate = Certificate {
        live_peak: planned.live_peak,
        arena: planned.arena,
        keep_all: planned.keep_all.arena,
        naive_peak: planned.naive_peak,
        time_ns: planned.time,
        base_time_ns: planned.base_time,
        lower_bound_ns: planned.bound,
        strategy: planned.strategy.clone(),
        stop_reason: planned.stop.as_str().to_owned(),
    };
    Ok(Program { kind, guard: Guard::default(), graph, inputs, steps, certificate, dynamic: None })
}

/// For each step the values whose instances end after it: at the last read before the value is made again, or where it is made if nothing
/// reads it. Outputs of the graph and state stay.
fn ends(graph: &Graph, planned: &Planned) -> Vec<Vec<ValueId>> {
    let steps = &planned.schedule.steps;
    let mut ends: Vec<Vec<ValueId>> = vec![Vec::new(); steps.len()];
    // Walking backwards: whether a later step reads the instance that is live here.
    let mut read_later = vec![false; graph.values.len()];
    for v in &graph.outputs {
        read_later[v.index()] = true;
    }
    let stays = |v: ValueId| matches!(graph.value(v).def, ValueDef::State(_) | ValueDef::Constant(_));
    for (i, s) in steps.iter().enumerate().rev() {
        let node = graph.node(NodeId(s.node));
        for o in &node.outputs {
            if !std::mem::replace(&mut read_later[o.index()], false) {
                ends[i].push(*o);
            }
        }
        for v in node.inputs.iter().flatten() {
            if !stays(*v) && !std::mem::replace(&mut read_later[v.index()], true) {
                ends[i].push(*v);
            }
        }
        ends[i].sort();
    }
    // Inputs that nothing reads end at once.
    if let Some(first) = ends.first_mut() {
        first.extend(graph.inputs.iter().map(|i| i.value).filter(|v| !read_later[v.index()]));
        first.sort();
    }
    ends
}
