//! What a program is: values with dtype and shape, operator nodes, explicit state.
//!
//! The graph is SSA: no operator mutates. A parameter, a BatchNorm statistic or an optimizer moment is a [`State`] with an input version
//! and (when the step changes it) an output version. The crate knows no operator: an operator is a name with plain ordered attributes;
//! what it means stands in the `ops` crate.

mod attr;
mod dim;
mod dtype;
mod facts;
mod graph;
mod literal;
mod order;
mod parse;
mod text;
mod verify;

pub use attr::{Attr, AttrError, AttrMap, Attrs};
pub use dim::{Bindings, Dim, Interval, Symbol};
pub use dtype::DType;
pub use facts::{Facts, Implementation, OpFacts, Passed, View};
pub use graph::{
    Graph, Init, Input, InputRole, Node, NodeId, State, StateId, StateKind, TensorType, Value, ValueDef,
    ValueId,
};
pub use literal::{Literal, LiteralError};
pub use order::{ancestors, dependencies, topological_order};
pub use parse::TypeTextError;
pub use text::{quote_name, unquote_name};
pub use verify::{VerifyError, verify};

mod shape;
pub use shape::Shape;
