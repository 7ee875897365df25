//! What the tests across crates share: where the handed data is, reference numbers, evaluation of training steps.

pub mod bodies;
pub mod on_cuda;
pub mod onnxruntime;
pub mod open;
pub mod program;
pub mod reference;
pub mod tiny;
pub mod variants;
pub mod written;

use graph::{DType, Graph, Init, InputRole, Literal, ValueId};
use runtime::data::npz::Npz;
use std::collections::BTreeMap;

pub use test_support::data;

/// All arrays of an npz file.
///
/// # Panics
///
/// If the file cannot be read: the test has nothing to compare with then.
pub fn npz(path: &std::path::Path) -> BTreeMap<String, Literal> {
    let mut f = Npz::open(path).unwrap_or_else(|e| panic!("{e}"));
    f.names().into_iter().map(|n| (n.clone(), f.read(&n).unwrap_or_else(|e| panic!("{e}")))).collect()
}

/// The elements of every state before the first step.
///
/// # Panics
///
/// If a weight cannot be read.
pub fn initial_state(graph: &Graph, weights: &compiler::import::Weights) -> BTreeMap<ValueId, Literal> {
    let load = |init: &Init, v: ValueId| match init {
        Init::Literal(l) => l.clone(),
        Init::Zeros => {
            let ty = graph.ty(v);
            let shape = ty.shape.fixed().expect("fixed shape").iter().map(|d| *d as u64).collect();
            Literal::filled(ty.dtype, shape, 0.0).expect("small")
        }
        Init::Weight(name) => weights.literal(name).unwrap_or_else(|e| panic!("{e}")),
    };
    graph.states.iter().map(|s| (s.input, load(&s.init, s.input))).collect()
}

/// The elements of a step's inputs: data by name, the label under `target`, scalars by role.
///
/// # Panics
///
/// If an input has no data.
pub fn inputs(
    graph: &Graph,
    io: &BTreeMap<String, Literal>,
    learning_rate: f64,
    step: i64,
) -> BTreeMap<ValueId, Literal> {
    let mut out = BTreeMap::new();
    for i in &graph.inputs {
        let v = graph.value(i.value);
        let literal = match i.role {
            InputRole::LearningRate => Literal::scalar(DType::F32, learning_rate),
            InputRole::Step => Literal::scalar(DType::I64, step as f64),
            InputRole::Seed => Literal::scalar(DType::I64, 1.0),
            InputRole::Constant => panic!("a graph of one size has its constants inside"),
            InputRole::Label => io["target"].clone(),
            InputRole::Data => {
                let found = io.get(&format!("in:{}", v.name)).or_else(|| io.get(&*v.name));
                found.unwrap_or_else(|| panic!("no data for input {}", v.name)).clone()
            }
        };
        out.insert(i.value, literal);
    }
    out
}

/// A model's weights for a session.
pub struct Weights<'a>(pub &'a compiler::import::Weights);

impl runtime::WeightSource for Weights<'_> {
    fn load(
        &mut self,
        name: &str,
        _: &graph::TensorType,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        self.0.read(name, &mut |chunk| sink(chunk).map_err(std::io::Error::other)).map_err(|e| e.to_string())
    }
}

/// Bits of the losses of some steps by the reference interpreter.
///
/// # Panics
///
/// If a node cannot be evaluated.
pub fn train_interpreted(
    g: &Graph,
    weights: &compiler::import::Weights,
    io: &BTreeMap<String, Literal>,
    learning_rate: f64,
    steps: i64,
) -> Vec<u64> {
    let mut state = initial_state(g, weights);
    let mut losses = Vec::new();
    for step in 1..=steps {
        let mut given = inputs(g, io, learning_rate, step);
        given.extend(state.clone());
        let all = ops::cpu::interpret(g, &given).unwrap_or_else(|e| panic!("{e}"));
        losses.push(all[&g.outputs[0]].to_floats()[0].to_bits());
        for s in &g.states {
            if let Some(new) = s.output {
                state.insert(s.input, all[&new].clone());
            }
        }
    }
    losses
}
