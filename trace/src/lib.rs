//! From a program whose shapes or branches may be open to a graph whose are not.
//!
//! A [`Source`] is a model before it is a graph: nodes by name, with the bodies of control flow. [`walk`] runs the import rule of each node
//! and unrolls control flow, so that what comes out is straight: a [`graph::Graph`]. The compiler walks once, with what it knows, and plans
//! the result; where that is not enough, the source goes into the plan as a [`Recipe`], and the runtime walks at every step, with an
//! [`Oracle`] that computes the values on which a shape, a branch or a trip count depends. There is one walk, so that both get the same bits.
//! [`train`] makes a training step of either's graph.

mod control;
mod error;
pub mod evaluate;
mod oracle;
pub mod precision;
mod program;
mod recipe;
mod scan;
mod sequence;
mod source;
pub mod train;
mod unrun;
mod walk;

pub use error::{TraceError, TraceErrorKind};
pub use oracle::{NoOracle, Oracle};
pub use program::{Placed, place_constants};
pub use recipe::{Modes, Recipe, RecipeError};
pub use source::{Body, Source, SourceNode, SourceTensor};
pub use walk::{Limits, Options, Remark, Traced, filled, repeated, walk};
