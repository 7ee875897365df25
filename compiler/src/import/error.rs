//! Why a model cannot be imported: file, node, operator, reason, in one line.

use super::{model::ModelSource, wire::WireError};
use graph::{VerifyError, quote_name};
use ops::OpError;
use std::{fmt, io};

/// An import that failed.
#[derive(Debug)]
pub struct ImportError {
    /// The model file.
    pub file: String,
    /// The node at fault.
    pub node: Option<String>,
    /// Its operator, with the domain if it is not the default one.
    pub op: Option<String>,
    /// What is wrong.
    pub kind: Box<ImportErrorKind>,
}

/// What is wrong with a model.
#[derive(Debug, thiserror::Error)]
pub enum ImportErrorKind {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Io(io::Error),
    /// It is something else.
    #[error("not an ONNX model: {0}")]
    NotOnnx(String),
    /// Its bytes are refused before they are parsed.
    #[error("{0}")]
    Wire(#[source] WireError),
    /// The model contradicts itself or the ONNX specification.
    #[error("{0}")]
    Model(String),
    /// A tensor is broken, or its elements cannot be read.
    #[error("tensor {}: {what}", quote_name(.tensor))]
    Tensor {
        /// Name of the tensor.
        tensor: String,
        /// What is wrong.
        what: String,
    },
    /// A `--dim` that does not fit the model.
    #[error("{0}")]
    Dim(String),
    /// The operator refuses its arguments.
    #[error("{0}")]
    Op(#[source] OpError),
    /// Something must be known at compile time and is not.
    #[error("{what} is known only at run time{}", hint(.dims))]
    Dynamic {
        /// What must be known.
        what: String,
        /// Unbound sizes that it may depend on.
        dims: Vec<String>,
    },
    /// Lawful, but not implemented.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// Its loops make it too long to plan ahead.
    #[error("more than {nodes} nodes with its loops unrolled")]
    TooLong {
        /// The limit.
        nodes: usize,
    },
    /// The graph that was made breaks an invariant: a defect of the compiler.
    #[error("{0} (please report this)")]
    Invariant(#[source] VerifyError),
}

fn hint(dims: &[String]) -> String {
    dim_flags(dims)
        .map_or_else(|| " (it depends on data)".to_owned(), |flags| format!("; bind it with {flags}"))
}

/// The flags that bind sizes, as one writes them; none without sizes.
pub fn dim_flags(dims: &[String]) -> Option<String> {
    let shown: Vec<String> = dims.iter().take(4).map(|d| format!("--dim {}=N", shell(d))).collect();
    let more = if dims.len() > 4 { format!(" and {} more", dims.len() - 4) } else { String::new() };
    (!dims.is_empty()).then(|| shown.join(" ") + &more)
}

/// A name as one writes it on a command line.
fn shell(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./:-".contains(c);
    if !name.is_empty() && name.chars().all(plain) { name.to_owned() } else { format!("'{name}'") }
}

impl ImportError {
    /// Whether the model is fine, but not static: something is known only at run time.
    pub fn is_open(&self) -> bool {
        matches!(*self.kind, ImportErrorKind::Dynamic { .. } | ImportErrorKind::TooLong { .. })
    }

    /// The flags that might make an open model static; none where data decide.
    pub fn hint_of_dims(&self) -> Option<String> {
        if let ImportErrorKind::Dynamic { dims, .. } = &*self.kind { dim_flags(dims) } else { None }
    }

    /// What is wrong where, without the file.
    pub fn reason(&self) -> String {
        let text = self.to_string();
        text.strip_prefix(&format!("{}: ", self.file)).unwrap_or(&text).to_owned()
    }

    /// An error of the file as a whole.
    pub fn file(source: &ModelSource, kind: ImportErrorKind) -> ImportError {
        ImportError { file: source.name(), node: None, op: None, kind: Box::new(kind) }
    }

    /// An error at a node.
    pub fn node(source: &ModelSource, node: &str, op: &str, kind: ImportErrorKind) -> ImportError {
        ImportError {
            file: source.name(),
            node: Some(node.to_owned()),
            op: Some(op.to_owned()),
            kind: Box::new(kind),
        }
    }
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = format!("{}: ", self.file);
        match (&self.op, &self.node) {
            (Some(op), Some(node)) => text += &format!("{op} {}: ", quote_name(node)),
            (None, Some(node)) => text += &format!("node {}: ", quote_name(node)),
            _ => {}
        }
        text += &self.kind.to_string();
        // Texts of the model must not break the line.
        f.write_str(&text.replace(|c: char| c.is_control(), " "))
    }
}

impl std::error::Error for ImportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.kind)
    }
}
