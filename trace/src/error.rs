//! Why a program cannot be walked: node, operator, reason.

use graph::quote_name;
use ops::OpError;
use std::fmt;

/// A walk that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceError {
    /// The node at fault.
    pub node: Option<String>,
    /// Its operator, with the domain if it is not the default one.
    pub op: Option<String>,
    /// What is wrong.
    pub kind: TraceErrorKind,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TraceErrorKind {
    /// The program contradicts itself or the ONNX specification.
    #[error("{0}")]
    Model(String),
    /// The operator refuses its arguments.
    #[error("{0}")]
    Op(OpError),
    /// Something must be known and is not.
    #[error("{what} is known only at run time")]
    Dynamic {
        /// What must be known.
        what: String,
        /// Unbound sizes that it may depend on; none if it depends on data.
        dims: Vec<String>,
    },
    /// Lawful, but not implemented.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// Its loops make it too long.
    #[error("more than {nodes} nodes with its loops unrolled")]
    TooLong {
        /// The limit.
        nodes: usize,
    },
    /// Data let its loops go on for too long.
    #[error(
        "still going on after {nodes} nodes: a loop whose end data decide may have so many in this much memory{}",
        way_out(*trips)
    )]
    Endless {
        /// The limit.
        nodes: usize,
        /// Its trip count, if it has one.
        trips: Option<i64>,
    },
    /// The value that decides could not be computed.
    #[error("{0}")]
    Oracle(String),
}

fn way_out(trips: Option<i64>) -> String {
    match trips {
        None => "; give a larger budget, or a trip count".to_owned(),
        Some(n) => {
            format!(", and its trip count, {n}, allows more; give a larger budget, or a smaller trip count")
        }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.op, &self.node) {
            (Some(op), Some(node)) => write!(f, "{op} {}: ", quote_name(node))?,
            (None, Some(node)) => write!(f, "node {}: ", quote_name(node))?,
            _ => {}
        }
        self.kind.fmt(f)
    }
}

impl std::error::Error for TraceError {}
