//! Names of the states that a training step adds.
//!
//! A state is known by its name, in the plan, in a checkpoint, and in the graphs of all its programs, of which some are made at every step
//! from whatever part of the model the data led to. So a name must not follow from what else a graph happens to hold: it follows from the
//! owner, from what is remembered of it, and from the names that the model's file uses, wherever it uses them.

use graph::Graph;
use std::{collections::HashSet, sync::Arc};

use crate::{Body, Source};

/// The state in which the parts of a step add up their losses: a float32 scalar, whatever the loss is.
pub const LOSS_SUM: &str = "step/loss";

/// What an accumulated gradient is remembered as.
pub const GRADIENT: &str = "grad";
/// What the parts of a step gather for a running statistic.
pub const PENDING: &str = "pending";

/// Stands before the number that a name gets where the model has it already. Names that are made up for values end in a number after a
/// point or a colon, or in an operator, so that none of them can ever be such a name.
const NUMBERED: char = '~';

/// Names that the model uses for itself.
#[derive(Clone, Debug, Default)]
pub struct Names<'m>(HashSet<&'m str>);

impl<'m> Names<'m> {
    /// All names of a model's file, those inside of bodies included.
    pub fn of_source(source: &'m Source) -> Names<'m> {
        let mut names = Names::default();
        names.0.extend(source.inputs.iter().map(|(n, _)| &**n));
        names.0.extend(source.tensors.keys().map(|n| &**n));
        names.add_body(&source.body);
        names
    }

    /// All names of graphs that were made from a model as a whole.
    pub fn of_graphs(graphs: impl IntoIterator<Item = &'m Graph>) -> Names<'m> {
        let mut names = Names::default();
        for g in graphs {
            names.0.extend(g.values.iter().map(|v| &*v.name));
            names.0.extend(g.nodes.iter().map(|n| &*n.name));
            names.0.extend(g.states.iter().map(|s| &*s.name));
        }
        names
    }

    /// What a body calls its inputs is never a name of the graph.
    fn add_body(&mut self, body: &'m Body) {
        self.0.extend(body.outputs.iter().map(|n| &**n));
        for node in &body.nodes {
            self.0.insert(&node.name);
            self.0.extend(node.outputs.iter().map(|n| &**n));
            node.bodies.iter().for_each(|(_, b)| self.add_body(b));
        }
    }

    /// Whether the model uses a name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// The name of a state that belongs to the step as a whole, or of another tensor that is known by it.
    pub fn state(&self, wanted: &str) -> Arc<str> {
        if !self.has(wanted) {
            return wanted.into();
        }
        let numbered = (2u64..).map(|n| format!("{wanted}{NUMBERED}{n}"));
        numbered.into_iter().find(|n| !self.has(n)).unwrap_or_default().into()
    }

    /// The name of the state in which something is remembered of another state.
    pub fn memory(&self, owner: &str, what: &str) -> Arc<str> {
        self.state(&format!("{owner}/{what}"))
    }
}

/// Whether a state that a step added has this name, or the one it has where the model uses this one. What a parameter's optimizer remembers
/// is never mistaken for it, whatever the parameter is called.
pub fn is_named(state: &str, wanted: &str) -> bool {
    let Some(rest) = state.strip_prefix(wanted) else { return false };
    rest.is_empty()
        || rest.strip_prefix(NUMBERED).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::{DType, InputRole, TensorType};

    #[test]
    fn a_taken_name_is_numbered_alike_whoever_asks() {
        let mut g = Graph::default();
        let ty = || TensorType::new(DType::F32, &[1usize][..]);
        for name in ["w/m", "w/m~2", "amp/scale"] {
            g.add_input(name, ty(), InputRole::Data);
        }
        let names = Names::of_graphs([&g]);
        assert_eq!(&*names.memory("w", "m"), "w/m~3");
        assert_eq!(&*names.memory("w", "m"), "w/m~3");
        assert_eq!(&*names.memory("w", "v"), "w/v");
        let scale = names.state("amp/scale");
        assert_eq!(&*scale, "amp/scale~2");
        assert!(is_named(&scale, "amp/scale") && is_named("amp/scale", "amp/scale"));
        assert!(!is_named("amp/scale/m", "amp/scale") && !is_named("amp/scale~2/m", "amp/scale"));
        assert!(!is_named("amp/scales", "amp/scale"));
    }
}
