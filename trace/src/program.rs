//! From a recipe and sizes to the graph of one program.

use crate::{
    Limits, Oracle, Recipe, Traced,
    error::TraceError,
    evaluate::evaluation,
    precision,
    source::SourceTensor,
    train::{Names, TrainError, training_step_of, training_step_of_run},
    walk::{Options, walk},
};
use graph::{Bindings, Graph, Init, Input, InputRole, Literal, State, StateId, StateKind, ValueDef, ValueId};
use plan::ProgramKind;

/// A graph whose constants have places.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// The graph: its constants are states or inputs.
    pub graph: Graph,
    /// Elements of those that are inputs, by position among the graph's inputs.
    pub constants: Vec<(usize, Literal)>,
}

impl Recipe {
    /// The model's graph for these sizes. The states are settled: nodes make no new ones.
    pub fn forward(
        &self,
        bindings: &Bindings,
        limits: Limits,
        oracle: &mut dyn Oracle,
    ) -> Result<(Graph, Traced), TraceError> {
        let options = Options { modes: self.modes.into(), limits, new_weights: false };
        let mut forward = Graph::default();
        let traced = walk(&self.source, bindings, options, &mut forward, oracle)?;
        Ok((forward, traced))
    }

    /// As [`Recipe::program`], where the data decided what the model's graph is: parameters that stand where the run did not come have
    /// gradients of zeros.
    pub fn program_of_run(&self, kind: ProgramKind, forward: &Graph) -> Result<Graph, TrainError> {
        let Some(train) = &self.train else { return self.program(kind, forward) };
        let mut forward = forward.clone();
        for name in &train.trainable {
            let Some((name, SourceTensor::State { ty, .. })) =
                self.source.tensors.get_key_value(name.as_str())
            else {
                continue;
            };
            if forward.states.iter().all(|s| s.name != *name) {
                forward.add_state(name.clone(), ty.clone(), StateKind::Frozen, Init::Weight(name.clone()));
            }
        }
        Ok(training_step_of_run(&forward, train, kind, &Names::of_source(&self.source))?.graph)
    }

    /// The graph of a program from the model's: its training step, what evaluation tells, or its outputs.
    pub fn program(&self, kind: ProgramKind, forward: &Graph) -> Result<Graph, TrainError> {
        if let Some(train) = &self.train {
            return Ok(training_step_of(forward, train, kind, &Names::of_source(&self.source))?.graph);
        }
        let mut g = match &self.evaluate {
            Some((options, accuracy)) => {
                let mut g = evaluation(forward, options, *accuracy)?;
                if let Some(amp) = options.amp {
                    precision::apply(&mut g, amp).map_err(TrainError::Precision)?;
                    precision::merge_casts(&mut g);
                }
                g.pruned()
            }
            None => forward.pruned(),
        };
        g.states.iter_mut().for_each(|s| s.output = None);
        Ok(g.pruned())
    }
}

/// Gives every constant that a node reads a place: those that `is_state` names in the state section, all others as inputs, whose elements
/// may differ from one set of sizes to the next.
pub fn place_constants(mut graph: Graph, is_state: &dyn Fn(&str) -> bool) -> Placed {
    // First of all: inputs are counted below.
    graph.drop_unread();
    let mut read = vec![false; graph.values.len()];
    for v in graph.nodes.iter().flat_map(|n| n.inputs.iter().flatten()).chain(&graph.outputs) {
        read[v.index()] = true;
    }
    let mut constants = Vec::new();
    for i in (0..graph.values.len()).filter(|i| read[*i]) {
        let value = ValueId(i as u32);
        let v = &mut graph.values[i];
        let ValueDef::Constant(literal) = &v.def else { continue };
        let literal = literal.clone();
        if is_state(&v.name) {
            v.def = ValueDef::State(StateId(graph.states.len() as u32));
            let (name, init) = (v.name.clone(), Init::Literal(literal));
            graph.states.push(State { name, kind: StateKind::Frozen, input: value, output: None, init });
        } else {
            v.def = ValueDef::Input(graph.inputs.len() as u32);
            constants.push((graph.inputs.len(), literal));
            graph.inputs.push(Input { value, role: InputRole::Constant });
        }
    }
    Placed { graph, constants }
}
