//! From ONNX nodes to operators.
//!
//! A rule stands beside the operator it produces. It sees the node as the file has it (attributes, inputs, opset version) and emits
//! canonical operators: what newer opsets pass as inputs (axes, shapes, pads) becomes attributes, broadcast and defaults become explicit.

use crate::{Builder, OpError};
use graph::{Attrs, DType, Literal, StateKind, TensorType, ValueDef, ValueId};

/// How nodes of one ONNX operator become ours.
#[derive(Clone, Copy)]
pub struct OnnxRule {
    /// `""` for the default domain `ai.onnx`.
    pub domain: &'static str,
    /// ONNX operator name.
    pub op_type: &'static str,
    /// The rule.
    pub import: fn(&mut ImportCx<'_, '_>) -> Result<(), OpError>,
}

/// Rules for operators of the default domain: `rules!["Relu" => |cx| .., "Gelu" => function]`.
macro_rules! rules {
    ($($op_type:literal => $import:expr),* $(,)?) => {{
        const RULES: &[$crate::onnx::OnnxRule] =
            &[$($crate::onnx::OnnxRule { domain: "", op_type: $op_type, import: $import }),*];
        RULES
    }};
}
pub(crate) use rules;

/// The rule for an ONNX operator.
pub fn find_rule(domain: &str, op_type: &str) -> Option<OnnxRule> {
    let domain = if domain == "ai.onnx" { "" } else { domain };
    let all = crate::OPS.iter().flat_map(|op| op.onnx());
    all.copied().find(|r| r.op_type == op_type && r.domain == domain)
}

/// How BatchNormalization nodes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchNormMode {
    /// As the file says (`training_mode`).
    Auto,
    /// Batch statistics, running statistics updated.
    Train,
    /// Running statistics, left alone.
    Frozen,
}

/// How Dropout nodes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropoutMode {
    /// As the file says (`training_mode`; opsets before 12: on).
    Auto,
    /// With the file's ratio.
    On,
    /// The identity.
    Off,
}

/// Choices of the user that change what nodes mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportOptions {
    /// Whether a training step is built; without it every node is read in inference mode.
    pub training: bool,
    /// See [`BatchNormMode`].
    pub batchnorm: BatchNormMode,
    /// See [`DropoutMode`].
    pub dropout: DropoutMode,
    /// Update running variances with the unbiased batch variance, as PyTorch does (ONNX: biased).
    pub unbiased_running_variance: bool,
}

/// One ONNX node on its way into the graph.
pub struct ImportCx<'a, 'g> {
    /// The graph.
    pub b: &'a mut Builder<'g>,
    /// The user's choices.
    pub options: ImportOptions,
    /// ONNX operator name.
    pub op_type: &'a str,
    /// Version of the node's domain.
    pub opset: i64,
    /// Attributes as in the file (floats widened, tensors as literals).
    pub attrs: &'a Attrs,
    /// Inputs; `None` for the empty name.
    pub inputs: &'a [Option<ValueId>],
    /// For each output whether it has a name and something reads it.
    pub used: &'a [bool],
    /// Results by output position.
    pub outputs: Vec<Option<ValueId>>,
    /// Remarks for the user: (key that groups equal remarks, text).
    pub remarks: Vec<(&'static str, String)>,
}

impl ImportCx<'_, '_> {
    /// Input `i`, which must be given.
    pub fn input(&self, i: usize) -> Result<ValueId, OpError> {
        self.opt_input(i).ok_or_else(|| OpError::invalid(format!("input {i} is missing")))
    }

    /// Input `i`, if given.
    pub fn opt_input(&self, i: usize) -> Option<ValueId> {
        self.inputs.get(i).copied().flatten()
    }

    /// The type of input `i`.
    pub fn ty(&self, i: usize) -> Result<TensorType, OpError> {
        Ok(self.b.ty(self.input(i)?).clone())
    }

    /// The elements of input `i` if it is given; an error if they are known only at run time.
    pub fn opt_literal(&self, i: usize, what: &str) -> Result<Option<Literal>, OpError> {
        match self.opt_input(i) {
            None => Ok(None),
            Some(v) => match self.b.literal(v) {
                Some(l) => Ok(Some(l.clone())),
                None => Err(OpError::Dynamic(format!("{what} (input {i})"))),
            },
        }
    }

    /// Integers from input `i`, if given; see [`ImportCx::opt_literal`].
    pub fn opt_ints(&self, i: usize, what: &str) -> Result<Option<Vec<i64>>, OpError> {
        match self.opt_literal(i, what)? {
            None => Ok(None),
            Some(l) => match l.to_ints() {
                Some(v) => Ok(Some(v)),
                None => Err(OpError::invalid(format!("{what} must be integers"))),
            },
        }
    }

    /// Integers that older opsets give as attribute `name` and newer ones as input `i`.
    pub fn ints_attr_or_input(&self, name: &str, i: usize) -> Result<Option<Vec<i64>>, OpError> {
        match self.attrs.opt_ints(name)? {
            Some(v) => Ok(Some(v.to_vec())),
            None => self.opt_ints(i, name),
        }
    }

    /// A number that older opsets give as attribute `name` and newer ones as scalar input `i`.
    pub fn float_attr_or_input(&self, name: &str, i: usize) -> Result<Option<f64>, OpError> {
        if self.attrs.get(name).is_some() {
            return Ok(Some(self.attrs.float_or(name, 0.0)?));
        }
        match self.opt_literal(i, name)? {
            None => Ok(None),
            Some(l) if l.len() == 1 => Ok(Some(l.to_floats()[0])),
            Some(_) => Err(OpError::invalid(format!("{name} must be one number"))),
        }
    }

    /// Sets output `i`.
    pub fn set(&mut self, i: usize, v: ValueId) {
        if self.outputs.len() <= i {
            self.outputs.resize(i + 1, None);
        }
        self.outputs[i] = Some(v);
    }

    /// Sets the first output to an operator applied to all given inputs in order: the rule of operators that are ours as they are.
    pub fn same(&mut self, op: &str, attrs: Attrs) -> Result<(), OpError> {
        let out = self.b.emit(op, attrs, self.inputs)?;
        for (i, v) in out.into_iter().enumerate() {
            self.set(i, v);
        }
        Ok(())
    }

    /// Makes `new` the version after the step of the state at `old`, which is a statistic from now on. Nothing happens if `old` is no
    /// state.
    pub fn update_statistic(&mut self, old: ValueId, new: ValueId) {
        let graph = self.b.graph_mut();
        if let ValueDef::State(s) = graph.value(old).def {
            let state = &mut graph.states[s.index()];
            state.output = Some(new);
            state.kind = StateKind::Statistic;
        }
    }

    /// Notes something the user should know; remarks with one key are counted and shown once.
    pub fn remark(&mut self, key: &'static str, text: impl Into<String>) {
        self.remarks.push((key, text.into()));
    }
}

/// The dtype with this number in ONNX files.
pub(crate) fn onnx_dtype(code: i64) -> Result<DType, OpError> {
    let found = DType::ALL.into_iter().find(|d| crate::export::code(*d) == code);
    found.ok_or_else(|| OpError::unsupported(format!("the ONNX element type {code}")))
}

/// `axis` made non-negative for a tensor of `rank` axes.
pub fn normalize_axis(axis: i64, rank: usize) -> Result<usize, OpError> {
    let r = rank as i64;
    if axis < -r || axis >= r {
        return Err(OpError::invalid(format!("axis {axis} is outside of a tensor of {rank} axes")));
    }
    Ok(axis.rem_euclid(r.max(1)) as usize)
}

/// Every axis made non-negative, sorted, without repetition.
pub fn normalize_axes(axes: &[i64], rank: usize) -> Result<Vec<i64>, OpError> {
    let mut out =
        axes.iter().map(|a| Ok(normalize_axis(*a, rank)? as i64)).collect::<Result<Vec<_>, OpError>>()?;
    out.sort_unstable();
    let n = out.len();
    out.dedup();
    if out.len() != n {
        return Err(OpError::invalid(format!("an axis is repeated in {axes:?}")));
    }
    Ok(out)
}
