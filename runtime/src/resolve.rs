//! From a validated program to calls with addresses.

use graph::{NodeId, ValueId};
use plan::{Place, Plan, Program, Step};

/// A part of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub offset: u64,
    /// Bytes, not rounded.
    pub len: u64,
}

/// One execution of a node, with the places of its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The node.
    pub node: NodeId,
    /// Which of its implementations.
    pub implementation: usize,
    /// Places of the inputs; `None` for one left out.
    pub inputs: Vec<Option<Region>>,
    /// Places of the outputs.
    pub outputs: Vec<Region>,
    /// Place of the scratch memory.
    pub workspace: Option<Region>,
    /// Every output is a view: nothing to execute.
    pub is_view: bool,
    /// The node ran before in this program.
    pub recompute: bool,
}

/// The operators as the plan's device sees them.
pub(crate) fn facts_of(plan: &Plan) -> &'static dyn graph::OpFacts {
    ops::cuda::registry(plan.device == plan::Device::Cuda)
}

/// The calls of a program and where its outputs lie at the end. The program must be valid.
pub fn resolve(
    plan: &Plan,
    program: &Program,
    facts: &dyn graph::OpFacts,
) -> Result<(Vec<Call>, Vec<Region>), String> {
    let g = &program.graph;
    let len =
        |v: ValueId| g.ty(v).bytes().ok_or_else(|| format!("the size of {:?} is unknown", g.value(v).name));
    let mut at: Vec<Option<u64>> = vec![None; g.values.len()];
    for s in &g.states {
        let entry = plan.state.iter().find(|e| e.name == s.name);
        at[s.input.index()] =
            Some(entry.ok_or_else(|| format!("state {:?} is not in the plan", s.name))?.offset);
    }
    for (i, offset) in g.inputs.iter().zip(&program.inputs) {
        at[i.value.index()] = Some(*offset);
    }
    let mut ran = vec![false; g.nodes.len()];
    let mut calls = Vec::with_capacity(program.steps.len());
    for step in &program.steps {
        let Step::Run(run) = step else {
            return Err("copy and wait steps are not used by this version".to_owned());
        };
        let node = g.node(run.node);
        let region = |v: ValueId, at: &[Option<u64>]| -> Result<Region, String> {
            let offset = at[v.index()].ok_or_else(|| format!("{:?} has no place", g.value(v).name))?;
            Ok(Region { offset, len: len(v)? })
        };
        let inputs: Vec<Option<Region>> =
            node.inputs.iter().map(|v| v.map(|v| region(v, &at)).transpose()).collect::<Result<_, _>>()?;
        let node_facts = facts.facts(g, run.node)?;
        let source = |input: u32| inputs.get(input as usize).copied().flatten().ok_or("an input is missing");
        for (o, place) in run.outputs.iter().enumerate() {
            let offset = match place {
                Place::New { offset, .. } => *offset,
                Place::Overwrite { input } | Place::Commit { input } => source(*input)?.offset,
                Place::View { input } => {
                    let view = node_facts.views.iter().find(|v| v.output == o).ok_or("no such view")?;
                    source(*input)?.offset + view.offset
                }
            };
            at[node.outputs[o].index()] = Some(offset);
        }
        let outputs = node.outputs.iter().map(|v| region(*v, &at)).collect::<Result<Vec<_>, _>>()?;
        let bytes =
            node_facts.implementations.get(usize::from(run.implementation)).map_or(0, |i| i.workspace);
        calls.push(Call {
            node: run.node,
            implementation: usize::from(run.implementation),
            inputs,
            outputs,
            workspace: run.workspace.map(|offset| Region { offset, len: bytes }),
            is_view: run.outputs.iter().all(|p| matches!(p, Place::View { .. })) && !run.outputs.is_empty(),
            recompute: std::mem::replace(&mut ran[run.node.index()], true),
        });
    }
    let outputs = g.outputs.iter().map(|v| {
        let offset = at[v.index()].ok_or_else(|| format!("output {:?} has no place", g.value(*v).name))?;
        Ok(Region { offset, len: len(*v)? })
    });
    let outputs = outputs.collect::<Result<Vec<_>, String>>()?;
    Ok((calls, outputs))
}
