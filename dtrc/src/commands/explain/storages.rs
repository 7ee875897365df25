//! What lies where in the arena, and how long: the storages of a program's steps.
//!
//! A storage begins where an output is placed on bytes of its own or overwrites another, and ends when the last value on it, views included,
//! is dropped. The bytes of the storages live at a step, with the state and the step's workspace, are the validator's live bytes.

use graph::{OpFacts, ValueId};
use ops::Registry;
use plan::{Place, Program, Step, align};
use std::collections::BTreeSet;

/// A part of the arena that holds one instance of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// The value that it was made for.
    pub value: ValueId,
    /// First byte in the arena.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The step that makes it; none for an input.
    pub made: Option<usize>,
    /// Last step at which it is live.
    pub to: usize,
}

struct Walk {
    storages: Vec<Storage>,
    /// Values that lie on each of them.
    holders: Vec<BTreeSet<ValueId>>,
    /// Where the live instance of a value lies; states and constants lie in the state section.
    on: Vec<Option<usize>>,
}

impl Walk {
    fn begin(&mut self, s: Storage) {
        self.on[s.value.index()] = Some(self.storages.len());
        self.holders.push(BTreeSet::from([s.value]));
        self.storages.push(s);
    }

    /// A storage ends once: one that is overwritten does so before the step that drops its last holder.
    fn end(&mut self, s: usize, to: usize) {
        self.storages[s].to = self.storages[s].to.min(to);
    }
}

/// Follows the steps of a valid program.
pub fn storages(program: &Program) -> Vec<Storage> {
    let g = &program.graph;
    let bytes = |v: ValueId| align(g.ty(v).bytes().unwrap_or(0));
    let to = program.steps.len().saturating_sub(1);
    let mut w = Walk { storages: Vec::new(), holders: Vec::new(), on: vec![None; g.values.len()] };
    for (input, offset) in g.inputs.iter().zip(&program.inputs) {
        let value = input.value;
        w.begin(Storage { value, offset: *offset, bytes: bytes(value), made: None, to });
    }
    for (i, step) in program.steps.iter().enumerate() {
        let Step::Run(run) = step else { continue };
        let node = g.node(run.node);
        let mut made = Vec::new();
        for (value, place) in node.outputs.iter().zip(&run.outputs) {
            let source =
                |input: u32| node.inputs.get(input as usize).copied().flatten().and_then(|v| w.on[v.index()]);
            match *place {
                Place::New { offset, .. } => made.push((*value, offset, bytes(*value))),
                Place::Overwrite { input } => {
                    if let Some(s) = source(input) {
                        made.push((*value, w.storages[s].offset, w.storages[s].bytes));
                        w.end(s, i.saturating_sub(1));
                    }
                }
                Place::View { input } => {
                    if let Some(s) = source(input) {
                        w.holders[s].insert(*value);
                        w.on[value.index()] = Some(s);
                    }
                }
                Place::Commit { .. } => {}
            }
        }
        for (value, offset, bytes) in made {
            w.begin(Storage { value, offset, bytes, made: Some(i), to });
        }
        for v in &run.drops {
            if let Some(s) = w.on[v.index()].take() {
                w.holders[s].remove(v);
                if w.holders[s].is_empty() {
                    w.end(s, i);
                }
            }
        }
    }
    w.storages.retain(|s| s.bytes > 0);
    w.storages
}

/// Scratch of each step: first byte and bytes.
pub fn workspaces(program: &Program) -> Vec<(u64, u64)> {
    let scratch = |step: &Step| {
        let Step::Run(run) = step else { return (0, 0) };
        let facts = Registry.facts(&program.graph, run.node).unwrap_or_default();
        let implementation = facts.implementations.get(usize::from(run.implementation));
        (run.workspace.unwrap_or(0), implementation.map_or(0, |x| align(x.workspace)))
    };
    program.steps.iter().map(scratch).collect()
}
