//! The graph itself: arenas of values, nodes and state, addressed by ids.

use crate::{Attrs, Bindings, DType, Literal, Shape};
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u32);

        impl $name {
            /// As an index into the arena.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}
id!(
    /// Index of a value in [`Graph::values`].
    ValueId
);
id!(
    /// Index of a node in [`Graph::nodes`].
    NodeId
);
id!(
    /// Index of a state in [`Graph::states`].
    StateId
);

/// Element type and extents of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Shape,
}

impl TensorType {
    /// A tensor type from a dtype and anything that is a shape.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> TensorType {
        TensorType { dtype, shape: shape.into() }
    }

    /// Bytes of its elements, if the extents are known and within 64 bits.
    pub fn bytes(&self) -> Option<u64> {
        self.shape.elements()?.checked_mul(self.dtype.size())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ValueDef {
    /// A graph input, by its index in [`Graph::inputs`].
    Input(u32),
    /// Elements that are part of the program.
    Constant(Literal),
    /// The version of a state before the step.
    State(StateId),
    /// Output `index` of a node.
    Node {
        /// The node.
        node: NodeId,
        /// Which of its outputs.
        index: u32,
    },
}

/// A tensor of the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// Unique name, from the model where it has one.
    pub name: Arc<str>,
    /// Element type and extents.
    pub ty: TensorType,
    /// Where it comes from.
    pub def: ValueDef,
}

/// An operator applied to values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Unique name, from the model where it has one.
    pub name: Arc<str>,
    /// Operator name, as in the `ops` registry.
    pub op: Arc<str>,
    /// Attributes.
    pub attrs: Attrs,
    /// Arguments; `None` for an optional one left out.
    pub inputs: Vec<Option<ValueId>>,
    /// Results, all of them.
    pub outputs: Vec<ValueId>,
}

/// What a graph input is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InputRole {
    /// A model input, from the data.
    Data,
    /// The target of the loss, from the data.
    Label,
    /// Learning rate of this step, f32 scalar.
    LearningRate,
    /// Number of this step from 1, i64 scalar.
    Step,
    /// Seed of the counter-based generator, i64 scalar.
    Seed,
    /// Elements that follow from the sizes of the other inputs: whoever made the graph for these sizes knows them.
    Constant,
}

/// A graph input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Input {
    /// Its value.
    pub value: ValueId,
    /// What it is for.
    pub role: InputRole,
}

/// What a state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StateKind {
    /// A trainable parameter.
    Parameter,
    /// A model tensor that is not trained: frozen weight, large constant.
    Frozen,
    /// A running statistic.
    Statistic,
    /// Optimizer memory.
    Optimizer,
    /// A gradient accumulated over several steps.
    Accumulator,
}

/// What a state holds before the first step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Init {
    /// The initializer of this name in the model.
    Weight(Arc<str>),
    /// Zeros.
    Zeros,
    /// These elements.
    Literal(Literal),
}

/// A persistent tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Unique name.
    pub name: Arc<str>,
    /// What it is.
    pub kind: StateKind,
    /// The version before the step.
    pub input: ValueId,
    /// The version after the step; `None` if the step leaves it alone. Its node is the commit.
    pub output: Option<ValueId>,
    /// What it holds at first.
    pub init: Init,
}

/// A program: SSA values, nodes in a valid topological order, explicit state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    /// All values.
    pub values: Vec<Value>,
    /// All nodes; every node stands after the nodes it reads from.
    pub nodes: Vec<Node>,
    /// Inputs of one step.
    pub inputs: Vec<Input>,
    /// Results that are read back after a step.
    pub outputs: Vec<ValueId>,
    /// Persistent tensors.
    pub states: Vec<State>,
}

impl Graph {
    /// The value with this id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// The node with this id.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// The type of a value.
    pub fn ty(&self, id: ValueId) -> &TensorType {
        &self.values[id.index()].ty
    }

    /// The node that makes a value.
    pub fn producer(&self, id: ValueId) -> Option<NodeId> {
        match self.values[id.index()].def {
            ValueDef::Node { node, .. } => Some(node),
            _ => None,
        }
    }

    /// The elements of a value, if they are part of the program.
    pub fn constant(&self, id: ValueId) -> Option<&Literal> {
        match &self.values[id.index()].def {
            ValueDef::Constant(l) => Some(l),
            _ => None,
        }
    }

    /// Adds a value. The caller keeps names unique (checked by `verify`).
    pub fn add_value(&mut self, name: impl Into<Arc<str>>, ty: TensorType, def: ValueDef) -> ValueId {
        let id = ValueId(self.values.len() as u32);
        self.values.push(Value { name: name.into(), ty, def });
        id
    }

    /// Adds an input of the step.
    pub fn add_input(&mut self, name: impl Into<Arc<str>>, ty: TensorType, role: InputRole) -> ValueId {
        let value = self.add_value(name, ty, ValueDef::Input(self.inputs.len() as u32));
        self.inputs.push(Input { value, role });
        value
    }

    /// Adds a constant.
    pub fn add_constant(&mut self, name: impl Into<Arc<str>>, literal: Literal) -> ValueId {
        let ty = TensorType::new(literal.dtype(), literal.shape());
        self.add_value(name, ty, ValueDef::Constant(literal))
    }

    /// Adds a persistent tensor and returns its version before the step.
    pub fn add_state(
        &mut self,
        name: impl Into<Arc<str>>,
        ty: TensorType,
        kind: StateKind,
        init: Init,
    ) -> ValueId {
        let (name, id) = (name.into(), StateId(self.states.len() as u32));
        let input = self.add_value(name.clone(), ty, ValueDef::State(id));
        self.states.push(State { name, kind, input, output: None, init });
        input
    }

    /// Adds a node with its outputs (name and type each).
    pub fn add_node(
        &mut self,
        name: impl Into<Arc<str>>,
        op: impl Into<Arc<str>>,
        attrs: Attrs,
        inputs: Vec<Option<ValueId>>,
        outputs: Vec<(Arc<str>, TensorType)>,
    ) -> NodeId {
        let node = NodeId(self.nodes.len() as u32);
        let outputs = outputs
            .into_iter()
            .enumerate()
            .map(|(i, (name, ty))| self.add_value(name, ty, ValueDef::Node { node, index: i as u32 }))
            .collect();
        self.nodes.push(Node { name: name.into(), op: op.into(), attrs, inputs, outputs });
        node
    }

    /// The input with this role.
    pub fn input_with_role(&self, role: InputRole) -> Option<ValueId> {
        self.inputs.iter().find(|i| i.role == role).map(|i| i.value)
    }

    /// Nodes that read each value, in node order, each once.
    pub fn users(&self) -> Vec<Vec<NodeId>> {
        let mut users: Vec<Vec<NodeId>> = vec![Vec::new(); self.values.len()];
        for (n, node) in self.nodes.iter().enumerate() {
            for v in node.inputs.iter().flatten() {
                let list = &mut users[v.index()];
                if list.last() != Some(&NodeId(n as u32)) {
                    list.push(NodeId(n as u32));
                }
            }
        }
        users
    }

    /// Replaces named sizes by numbers everywhere.
    pub fn bind(&mut self, bindings: &Bindings) {
        for v in &mut self.values {
            v.ty.shape = v.ty.shape.substitute(bindings);
        }
    }

    /// The same program without nodes, values and constants that nothing needs. Inputs and states stay; needed are the graph's outputs
    /// and every state's output version.
    #[must_use]
    pub fn pruned(&self) -> Graph {
        let mut live_nodes = vec![false; self.nodes.len()];
        let mut live_values = vec![false; self.values.len()];
        let mut stack: Vec<ValueId> = self.outputs.clone();
        stack.extend(self.states.iter().filter_map(|s| s.output));
        stack.extend(self.states.iter().map(|s| s.input));
        stack.extend(self.inputs.iter().map(|i| i.value));
        while let Some(v) = stack.pop() {
            if std::mem::replace(&mut live_values[v.index()], true) {
                continue;
            }
            if let Some(n) = self.producer(v)
                && !std::mem::replace(&mut live_nodes[n.index()], true)
            {
                stack.extend(self.node(n).inputs.iter().flatten());
                stack.extend(&self.node(n).outputs);
            }
        }
        let new_node: Vec<u32> = renumber(&live_nodes);
        let new_value: Vec<u32> = renumber(&live_values);
        let value = |v: ValueId| ValueId(new_value[v.index()]);
        let keep = |v: &Value| -> Value {
            let mut v = v.clone();
            if let ValueDef::Node { node, .. } = &mut v.def {
                *node = NodeId(new_node[node.index()]);
            }
            v
        };
        let values =
            self.values.iter().zip(&live_values).filter(|(_, l)| **l).map(|(v, _)| keep(v)).collect();
        let nodes = self.nodes.iter().zip(&live_nodes).filter(|(_, l)| **l).map(|(n, _)| {
            let mut n = n.clone();
            n.inputs.iter_mut().flatten().for_each(|v| *v = value(*v));
            n.outputs.iter_mut().for_each(|v| *v = value(*v));
            n
        });
        let nodes = nodes.collect();
        let inputs = self.inputs.iter().map(|i| Input { value: value(i.value), role: i.role }).collect();
        let states = self.states.iter().map(|s| State {
            input: value(s.input),
            output: s.output.map(value),
            ..s.clone()
        });
        let states = states.collect();
        Graph { values, nodes, inputs, outputs: self.outputs.iter().map(|v| value(*v)).collect(), states }
    }
}

fn renumber(live: &[bool]) -> Vec<u32> {
    let mut next = 0;
    live.iter()
        .map(|l| {
            let n = next;
            next += u32::from(*l);
            n
        })
        .collect()
}
