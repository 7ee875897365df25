//! The contract of an operator.

use crate::{case::Case, export::Export, grad::GradCx, onnx::OnnxRule};
use graph::{AttrError, Attrs, Graph, Literal, Node, Shape, TensorType};
pub use graph::{Facts, Implementation, View};

/// Why an operator refuses its arguments, or a gradient or an import cannot be written. The caller adds the node's name.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OpError {
    /// An attribute is missing or of another type.
    #[error(transparent)]
    Attr(#[from] AttrError),
    /// The arguments do not fit the operator: what, and what to do.
    #[error("{0}")]
    Invalid(String),
    /// Lawful, but not implemented (yet): which part.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// Something must be known before run time and is not.
    #[error("{0} is known only at run time")]
    Dynamic(String),
}

impl OpError {
    /// An [`OpError::Invalid`] from any text.
    pub fn invalid(what: impl Into<String>) -> OpError {
        OpError::Invalid(what.into())
    }

    /// An [`OpError::Unsupported`] from any text.
    pub fn unsupported(what: impl Into<String>) -> OpError {
        OpError::Unsupported(what.into())
    }
}

/// A node's arguments as an operator sees them.
#[derive(Clone, Debug)]
pub struct Signature<'a> {
    /// Attributes.
    pub attrs: &'a Attrs,
    /// Types of the inputs; `None` for an optional one left out.
    pub inputs: Vec<Option<&'a TensorType>>,
    /// Elements of the inputs that are part of the program.
    pub constants: Vec<Option<&'a Literal>>,
    /// Types of the outputs; empty during inference.
    pub outputs: Vec<&'a TensorType>,
}

impl<'a> Signature<'a> {
    /// The signature of a node in a graph.
    pub fn of(graph: &'a Graph, node: &'a Node) -> Signature<'a> {
        Signature {
            attrs: &node.attrs,
            inputs: node.inputs.iter().map(|i| i.map(|v| graph.ty(v))).collect(),
            constants: node.inputs.iter().map(|i| i.and_then(|v| graph.constant(v))).collect(),
            outputs: node.outputs.iter().map(|v| graph.ty(*v)).collect(),
        }
    }

    /// The type of input `i`, which must be given.
    pub fn input(&self, i: usize) -> Result<&'a TensorType, OpError> {
        self.opt_input(i).ok_or_else(|| OpError::invalid(format!("input {i} is missing")))
    }

    /// The type of input `i`, if given.
    pub fn opt_input(&self, i: usize) -> Option<&'a TensorType> {
        self.inputs.get(i).copied().flatten()
    }

    /// The type of output `i`.
    pub fn output(&self, i: usize) -> Result<&'a TensorType, OpError> {
        self.outputs.get(i).copied().ok_or_else(|| OpError::invalid(format!("output {i} is missing")))
    }

    /// The extents of input `i`, which must all be known.
    pub fn dims(&self, i: usize) -> Result<Vec<usize>, OpError> {
        fixed(&self.input(i)?.shape, &format!("the shape of input {i}"))
    }

    /// The extents of output `i`, which must all be known.
    pub fn out_dims(&self, i: usize) -> Result<Vec<usize>, OpError> {
        fixed(&self.output(i)?.shape, &format!("the shape of output {i}"))
    }

    /// Bytes of all inputs and outputs (0 for those of unknown size).
    pub fn io_bytes(&self) -> u64 {
        let all = self.inputs.iter().copied().flatten().chain(self.outputs.iter().copied());
        all.map(|t| t.bytes().unwrap_or(0)).fold(0, u64::saturating_add)
    }
}

/// The extents of `shape`, or an error that says `what` is unknown.
pub fn fixed(shape: &Shape, what: &str) -> Result<Vec<usize>, OpError> {
    shape.fixed().ok_or_else(|| OpError::Dynamic(format!("{what}, {shape},")))
}

/// Arithmetic and traffic of one execution, for the cost model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Floating-point operations, 2 per multiply-add.
    pub flops: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Whether the flops are those of a matrix product (and run at its rate).
    pub product: bool,
}

/// An operator: a unit struct, stateless, `Sync`.
pub trait OpDef: Sync {
    /// Its name in graphs and plans.
    fn name(&self) -> &'static str;

    /// The ONNX operators that become this one.
    fn onnx(&self) -> &'static [OnnxRule] {
        &[]
    }

    /// Types of the outputs. Must refuse everything that the kernels cannot take.
    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError>;

    /// Whether it has a gradient. `false` only for integer, boolean or piecewise-constant outputs, and for operators that appear in
    /// gradients and optimizers only.
    fn differentiable(&self) -> bool {
        true
    }

    /// Writes the cotangents of the inputs that need one. Called only when some output has a cotangent.
    fn gradient(&self, _g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        Err(OpError::unsupported(format!("the gradient of {}", self.name())))
    }

    /// Work of one execution; default: one operation an output element, every byte once.
    fn work(&self, s: &Signature<'_>) -> Work {
        let flops = s.outputs.iter().filter_map(|t| t.shape.elements()).fold(0, u64::saturating_add);
        Work { flops, bytes: s.io_bytes(), product: false }
    }

    /// What may be assumed; default: nothing.
    fn facts(&self, _s: &Signature<'_>) -> Facts {
        Facts::default()
    }

    /// Whether each element of the output depends on the elements of the inputs at its place alone, inputs broadcast: its kernel may then
    /// be run block by block (see [`crate::cpu::widen`]).
    fn elementwise(&self) -> bool {
        false
    }

    /// Whether axis 0 of every input and output is one batch whose entries have nothing to do with each other: its kernel may then be run
    /// on some of them at a time.
    fn by_sample(&self, _s: &Signature<'_>) -> bool {
        false
    }

    /// Changes whenever the bits of a result may change; part of a plan's numerics hash.
    fn numeric_class(&self) -> u32 {
        1
    }

    /// The CPU kernel for these types, prepared: attributes read, shapes checked. One that does not take 16-bit floats is run on float32
    /// copies ([`crate::cpu::widen::prepare`]).
    fn cpu(&self, s: &Signature<'_>, implementation: usize) -> Result<crate::cpu::CpuKernel, OpError>;

    /// What CUDA launches for these types; the family's table by default. See [`crate::cuda`].
    fn cuda(&self, s: &Signature<'_>) -> Result<crate::cuda::Kernels, OpError> {
        crate::cuda::kernels(self.name(), s)
    }

    /// Writes it in ONNX's standard operators; see [`crate::export`].
    fn export(&self, _x: &Export<'_>) -> Result<(), OpError> {
        Err(OpError::unsupported(format!("writing {} as ONNX", self.name())))
    }

    /// Cases for the tests that walk all operators (gradient against finite differences, overwriting, recomputation).
    fn cases(&self) -> Vec<Case>;
}
