//! From an ONNX file to a graph.
//!
//! The stages, one a file: [`wire`] walks the bytes and leaves large tensors in the file; [`model`] parses what remains; [`flatten`]
//! expands functions, names nodes and sorts them; [`inputs`] reads types and binds sizes; [`trainable`] says which tensors are parameters;
//! [`source`] makes a program of them, and [`walk`] has [`trace`] run the import rule of each node, which stands beside its operator in the
//! `ops` crate. [`weights`] streams elements later.
//!
//! Nothing here trusts the file: whatever it holds, the result is a graph that [`graph::verify`] accepts or one line that says what is
//! wrong where, within three times the file's size and 64 MiB of memory.

mod attrs;
mod error;
pub(crate) mod external;
mod flatten;
mod inputs;
pub mod limits;
mod model;
mod narrow;
mod reached;
mod source;
mod tensor;
pub mod trainable;
mod walk;
pub mod weights;
mod wire;

pub use error::{ImportError, ImportErrorKind, dim_flags};
pub use inputs::parse_binding;
pub use model::{ModelSource, Opsets};
pub use reached::unreached;
pub use tensor::Tensor;
pub use trace::Remark;
pub use weights::{Source, Weight, WeightError, Weights};
pub use wire::{Cut, DataField, MAX_DEPTH, WireError};

use graph::{Graph, Symbol, TensorType};
use ops::onnx::{BatchNormMode, DropoutMode, ImportOptions};
use std::{path::Path, sync::Arc};

/// What the user says about a model.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sizes by name or `INPUT:AXIS`; see [`parse_binding`].
    pub dims: Vec<(String, i64)>,
    /// How modes of nodes are read.
    pub ops: ImportOptions,
    /// Tensors that are states, so that they can be trained, whatever their size and use: a factor of one element is a constant otherwise.
    pub named: Vec<String>,
}

impl Default for Options {
    /// Training, modes as the file says, no size bound.
    fn default() -> Options {
        let ops = ImportOptions {
            training: true,
            batchnorm: BatchNormMode::Auto,
            dropout: DropoutMode::Auto,
            unbiased_running_variance: false,
        };
        Options { dims: Vec::new(), ops, named: Vec::new() }
    }
}

/// An imported model.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The program. Weights are states of kind `Frozen` with [`graph::Init::Weight`], running statistics those of training nodes.
    pub graph: Graph,
    /// Names of the graph's outputs, in their order.
    pub output_names: Vec<String>,
    /// Where the elements of the states are.
    pub weights: Weights,
    /// Names of states in a parameter position, in the order of the graph's states; see [`trainable`].
    pub candidates: Vec<Arc<str>>,
    /// What the user should know.
    pub remarks: Vec<Remark>,
    /// Operator versions by domain.
    pub opsets: Opsets,
    /// Who wrote the file.
    pub producer: String,
    /// Sizes that have no number.
    pub symbols: Vec<Symbol>,
    /// Initializers that nothing reads; they are dropped.
    pub unused_initializers: usize,
}

/// Imports a model file. External data files are not opened, except for small integer tensors; they may be absent.
pub fn import(path: &Path, options: &Options) -> Result<Imported, ImportError> {
    walk::walk(model::load(ModelSource::File(path.to_owned()))?, options)
}

/// A model whose shapes or branches are known only at run time.
#[derive(Clone, Debug)]
pub struct Open {
    /// The program, with the sizes that were bound.
    pub source: trace::Source,
    /// Its inputs and states, without nodes.
    pub graph: Graph,
    /// Where the elements of the states are.
    pub weights: Weights,
    /// Names of states in a parameter position.
    pub candidates: Vec<Arc<str>>,
    /// What the user should know.
    pub remarks: Vec<Remark>,
}

/// Reads a model without walking its nodes.
pub fn import_open(path: &Path, options: &Options) -> Result<Open, ImportError> {
    walk::open(model::load(ModelSource::File(path.to_owned()))?, options)
}

/// Names and types of a model's inputs, unbound sizes as symbols, without importing its nodes.
pub fn input_types(path: &Path) -> Result<Vec<(String, TensorType)>, ImportError> {
    walk::input_types(&model::load(ModelSource::File(path.to_owned()))?)
}

/// Where the elements of a model's tensors are, without importing its nodes.
pub fn read_weights(path: &Path) -> Result<Weights, ImportError> {
    walk::weights_of(&model::load(ModelSource::File(path.to_owned()))?)
}

/// Imports a model from its bytes; `name` is for messages.
pub fn import_bytes(name: &str, bytes: Arc<[u8]>, options: &Options) -> Result<Imported, ImportError> {
    walk::walk(model::load(ModelSource::Bytes(name.to_owned(), bytes))?, options)
}
