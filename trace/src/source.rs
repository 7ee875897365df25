//! The program as the model's file has it: nodes that read and make values by name.
//!
//! Every name means one thing in the whole program: whoever makes a source renames what bodies of control flow define for themselves.

use graph::{Attrs, Literal, TensorType};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use std::{cell::Cell, collections::BTreeMap, sync::Arc};

/// A whole program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// Inputs with their types; sizes may be names.
    pub inputs: Vec<(Arc<str>, TensorType)>,
    /// Initializers and constants, by name.
    pub tensors: BTreeMap<Arc<str>, SourceTensor>,
    /// The main graph. Its inputs are empty.
    pub body: Body,
}

/// A tensor of the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SourceTensor {
    /// Elements that are part of the program.
    Constant(Literal),
    /// A weight or statistic.
    State {
        /// Element type and extents.
        ty: TensorType,
        /// Its elements before the first step, if they are few and import rules may read them.
        known: Option<Literal>,
        /// Stands where a parameter stands.
        candidate: bool,
        /// Stands where a running statistic stands.
        statistic: bool,
    },
}

/// A graph: the main one, a branch, or what a loop repeats.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Body {
    /// Names of its inputs.
    pub inputs: Vec<Arc<str>>,
    /// Nodes, each after those it reads from.
    pub nodes: Vec<SourceNode>,
    /// Names of its outputs.
    pub outputs: Vec<Arc<str>>,
    /// Types of its outputs where the file says them.
    pub output_types: Vec<Option<TensorType>>,
}

/// An operator applied to names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceNode {
    /// Unique name.
    pub name: Arc<str>,
    /// Operator domain; `""` for the default one.
    pub domain: Arc<str>,
    /// Operator.
    pub op_type: Arc<str>,
    /// Version of the domain; 0 if the model does not say.
    pub opset: i64,
    /// Attributes, without bodies.
    pub attrs: Attrs,
    /// Bodies by attribute name.
    pub bodies: Vec<(Arc<str>, Body)>,
    /// Names of the inputs; empty where left out.
    pub inputs: Vec<Arc<str>>,
    /// Names of the outputs; empty where not wanted.
    pub outputs: Vec<Arc<str>>,
    /// Whether something reads each output.
    pub used: Vec<bool>,
    /// What it makes stands where a parameter or a statistic stands.
    pub makes_weight: bool,
}

impl SourceNode {
    /// The operator for messages.
    pub fn op(&self) -> String {
        if self.domain.is_empty() {
            self.op_type.to_string()
        } else {
            format!("{}.{}", self.domain, self.op_type)
        }
    }

    /// Whether it makes a weight by repeating one element.
    pub fn is_fill(&self) -> bool {
        self.makes_weight && self.domain.is_empty() && &*self.op_type == "ConstantOfShape"
    }

    /// The body under an attribute.
    pub fn body(&self, name: &str) -> Option<&Body> {
        self.bodies.iter().find(|(n, _)| &**n == name).map(|(_, b)| b)
    }
}

/// Deepest nesting of bodies that is read from a file, which may nest them deeper than the stack is.
const MAX_DEPTH: u32 = 64;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

impl<'de> Deserialize<'de> for Body {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Body, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename = "Body")]
        struct Raw {
            inputs: Vec<Arc<str>>,
            nodes: Vec<SourceNode>,
            outputs: Vec<Arc<str>>,
            output_types: Vec<Option<TensorType>>,
        }
        struct Level;
        impl Drop for Level {
            fn drop(&mut self) {
                DEPTH.set(DEPTH.get() - 1);
            }
        }
        if DEPTH.get() >= MAX_DEPTH {
            return Err(D::Error::custom("bodies are nested too deeply"));
        }
        DEPTH.set(DEPTH.get() + 1);
        let _level = Level;
        let Raw { inputs, nodes, outputs, output_types } = Raw::deserialize(deserializer)?;
        Ok(Body { inputs, nodes, outputs, output_types })
    }
}
