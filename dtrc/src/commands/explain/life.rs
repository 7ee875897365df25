//! The lives of a program's values: when each instance is made, read and dropped.

use compiler::cost::CostModel;
use graph::{InputRole, NodeId, OpFacts, ValueDef, ValueId};
use ops::Registry;
use plan::{Program, Replay, Run, Step, align};

/// One instance of a value: from its making to its end, in steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The step that makes it; none for an input or state, there from the start.
    pub made: Option<usize>,
    /// Steps that read it.
    pub reads: Vec<usize>,
    /// The step after which it ends; none if it is there at the end.
    pub end: Option<usize>,
}

/// All lives of a program.
pub struct Lives<'a> {
    /// The program.
    pub program: &'a Program,
    /// What the validator replayed.
    pub replay: &'a Replay,
    /// Instances by value.
    pub of: Vec<Vec<Instance>>,
    /// Predicted nanoseconds by step: the plan's own, so that they add up to its certificate, or those of given costs.
    pub ns: Vec<u64>,
    /// Predicted nanoseconds of all steps.
    pub time_ns: u64,
    /// Predicted nanoseconds without recomputation, by the same costs.
    pub base_ns: u64,
    /// By step: the node ran before.
    pub again: Vec<bool>,
}

impl<'a> Lives<'a> {
    /// Follows every step.
    pub fn new(program: &'a Program, replay: &'a Replay, costs: Option<&CostModel>) -> Lives<'a> {
        let g = &program.graph;
        let mut of: Vec<Vec<Instance>> = vec![Vec::new(); g.values.len()];
        let there = Instance { made: None, reads: Vec::new(), end: None };
        for (v, value) in g.values.iter().enumerate() {
            if !matches!(value.def, ValueDef::Node { .. }) {
                of[v].push(there.clone());
            }
        }
        let mut ran = vec![false; g.nodes.len()];
        let mut again = vec![false; program.steps.len()];
        for (i, step) in program.steps.iter().enumerate() {
            let Step::Run(run) = step else { continue };
            again[i] = std::mem::replace(&mut ran[run.node.index()], true);
            for v in g.node(run.node).inputs.iter().flatten() {
                if let Some(x) = of[v.index()].last_mut()
                    && x.reads.last() != Some(&i)
                {
                    x.reads.push(i);
                }
            }
            for v in &g.node(run.node).outputs {
                of[v.index()].push(Instance { made: Some(i), reads: Vec::new(), end: None });
            }
            for v in &run.drops {
                if let Some(x) = of[v.index()].last_mut() {
                    x.end = Some(i);
                }
            }
        }
        let ns: Vec<u64> = program
            .steps
            .iter()
            .map(|step| match step {
                Step::Run(r) => costs.map_or(r.time_ns, |c| c.time(g, g.node(r.node))),
                _ => 0,
            })
            .collect();
        let sum = |ns: &mut dyn Iterator<Item = &u64>| ns.fold(0u64, |a, b| a.saturating_add(*b));
        let time_ns = sum(&mut ns.iter());
        let base_ns = match costs {
            // What runs at all runs once.
            Some(_) => sum(&mut ns.iter().zip(&again).filter(|(_, again)| !**again).map(|(ns, _)| ns)),
            None => program.certificate.base_time_ns,
        };
        Lives { program, replay, of, ns, time_ns, base_ns, again }
    }

    /// The run of a step.
    pub fn run(&self, step: usize) -> Option<&'a Run> {
        match self.program.steps.get(step)? {
            Step::Run(run) => Some(run),
            _ => None,
        }
    }

    /// The operator and name of a step, `Conv "conv1"`.
    pub fn step_name(&self, step: usize) -> String {
        let Some(run) = self.run(step) else { return format!("step {step}") };
        let node = self.program.graph.node(run.node);
        format!("{} {}", node.op, graph::quote_name(&node.name))
    }

    /// Bytes of a value's own storage; 0 for views, committed state and what is state.
    pub fn bytes(&self, v: ValueId) -> u64 {
        let g = &self.program.graph;
        match g.value(v).def {
            ValueDef::Node { node, index } => {
                let facts = Registry.facts(g, node).unwrap_or_default();
                let output = index as usize;
                let elsewhere = facts.views.iter().any(|w| w.output == output)
                    || facts.commits.iter().any(|c| c.0 == output);
                if elsewhere { 0 } else { align(g.ty(v).bytes().unwrap_or(0)) }
            }
            ValueDef::Input(_) => align(g.ty(v).bytes().unwrap_or(0)),
            _ => 0,
        }
    }

    /// The executions that are repeated for the one at `step`, itself included: those of its inputs that were made again for it.
    pub fn chain(&self, step: usize) -> Vec<usize> {
        let mut found = vec![step];
        let mut at = 0;
        while let Some(step) = found.get(at).copied() {
            at += 1;
            let Some(run) = self.run(step) else { continue };
            for v in self.program.graph.node(run.node).inputs.iter().flatten() {
                let made = self.of[v.index()].iter().filter_map(|x| x.made).rfind(|m| *m < step);
                if let Some(made) = made
                    && self.again[made]
                    && !found.contains(&made)
                {
                    found.push(made);
                }
            }
        }
        found.sort_unstable();
        found
    }

    /// Time of these executions.
    pub fn time(&self, steps: &[usize]) -> u64 {
        steps.iter().filter_map(|s| self.ns.get(*s)).sum()
    }

    /// Most bytes live at the steps between `from` and `to`, both left out, with the step.
    pub fn most_live(&self, from: usize, to: usize) -> Option<(u64, usize)> {
        let between = self.replay.live.get(from + 1..to)?;
        between
            .iter()
            .enumerate()
            .map(|(i, b)| (*b, from + 1 + i))
            .max_by_key(|(b, i)| (*b, std::cmp::Reverse(*i)))
    }

    /// Values with bytes of their own that are live at a step, largest first.
    pub fn live_at(&self, step: usize) -> Vec<(ValueId, u64)> {
        let mut out: Vec<(ValueId, u64)> = Vec::new();
        for (v, instances) in self.of.iter().enumerate() {
            let v = ValueId(v as u32);
            let live =
                instances.iter().any(|x| x.made.is_none_or(|m| m <= step) && x.end.is_none_or(|e| e >= step));
            let bytes = self.bytes(v);
            if live && bytes > 0 {
                out.push((v, bytes));
            }
        }
        out.sort_by_key(|(v, b)| (std::cmp::Reverse(*b), v.0));
        out
    }

    /// Why a value could not be made again at step `at`, where a rule forbids it.
    pub fn forbidden(&self, v: ValueId, at: usize) -> Option<String> {
        let g = &self.program.graph;
        let Some(node) = g.producer(v) else {
            let staged = g.inputs.iter().any(|i| i.value == v && i.role != InputRole::Seed);
            return Some(if staged { "an input is given once".to_owned() } else { "it is state".to_owned() });
        };
        if Registry.facts(g, node).is_ok_and(|f| f.once) {
            return Some("its operator runs once (a discrete decision or an update)".to_owned());
        }
        let n = g.node(node);
        for state in &g.states {
            let Some(commit) = state.output.and_then(|o| g.producer(o)) else { continue };
            if n.inputs.contains(&Some(state.input))
                && let Some(step) = self.first_run(commit).filter(|s| *s < at)
            {
                return Some(format!(
                    "it reads {}, which is updated before, at step {step}",
                    graph::quote_name(&state.name)
                ));
            }
        }
        None
    }

    /// The first step that runs a node.
    pub fn first_run(&self, node: NodeId) -> Option<usize> {
        (0..self.program.steps.len()).find(|s| self.run(*s).is_some_and(|r| r.node == node))
    }
}
