//! Emits nodes into a graph: infers types, keeps names unique, folds what is constant.

use crate::{OpError, Signature, find};
use graph::{Attrs, DType, Dim, Graph, Literal, NodeId, Shape, TensorType, ValueId};
use std::{
    cell::RefCell,
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

/// Largest result that is folded, in bytes.
const FOLD_LIMIT: u64 = 1 << 16;

/// Elements of so few bytes are bookkeeping, like the node that they belong to.
const FREE_ROOM: u64 = 1 << 12;

/// A graph under construction.
pub struct Builder<'g> {
    graph: &'g mut Graph,
    names: HashSet<Arc<str>>,
    /// Numbers given to names that were taken.
    next: BTreeMap<String, u32>,
    /// Prefix of names that are made up.
    scope: String,
    /// Elements of values that are known while importing: small initializers, values fetched at run time.
    known: BTreeMap<ValueId, Literal>,
    /// Values whose elements were asked for in vain.
    missed: RefCell<Vec<ValueId>>,
    /// Bytes on the host that were asked for in vain, and those that were granted to who asks next.
    room: (u64, u64),
}

/// A state of a graph under construction; see [`Builder::mark`].
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    values: usize,
    nodes: usize,
}

impl<'g> Builder<'g> {
    /// Goes on building a graph.
    pub fn new(graph: &'g mut Graph) -> Builder<'g> {
        let names = graph
            .values
            .iter()
            .map(|v| v.name.clone())
            .chain(graph.nodes.iter().map(|n| n.name.clone()))
            .collect();
        Builder {
            graph,
            names,
            next: BTreeMap::new(),
            scope: "t".to_owned(),
            known: BTreeMap::new(),
            missed: RefCell::default(),
            room: (0, 0),
        }
    }

    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        self.graph
    }

    /// The graph so far, to change. The caller keeps its invariants.
    pub fn graph_mut(&mut self) -> &mut Graph {
        self.graph
    }

    /// The type of a value.
    pub fn ty(&self, v: ValueId) -> &TensorType {
        self.graph.ty(v)
    }

    /// The elements of a value: a constant's, or those declared with [`Builder::know`].
    pub fn literal(&self, v: ValueId) -> Option<&Literal> {
        let found = self.graph.constant(v).or_else(|| self.known.get(&v));
        if found.is_none() {
            self.missed.borrow_mut().push(v);
        }
        found
    }

    /// Declares the elements of a value that is no constant, for attributes that ONNX passes as inputs.
    pub fn know(&mut self, v: ValueId, elements: Literal) {
        self.known.insert(v, elements);
    }

    /// Forgets what [`Builder::know`] declared of a value if it is more than bookkeeping. Returns whether it is.
    pub fn forget(&mut self, v: ValueId) -> bool {
        let large = self.known.get(&v).is_some_and(|l| l.bytes().len() as u64 > FREE_ROOM);
        if large {
            self.known.remove(&v);
        }
        large
    }

    /// Values whose elements [`Builder::literal`] was asked for in vain since the last call.
    pub fn take_missed(&mut self) -> Vec<ValueId> {
        std::mem::take(self.missed.get_mut())
    }

    /// Asks for bytes on the host, for elements whose number only data decide: they count as memory of the step.
    ///
    /// # Errors
    ///
    /// [`OpError::Dynamic`] the first time: whoever runs the rule finds the room ([`Builder::take_wanted`]), grants it and runs it again.
    pub fn room(&mut self, bytes: u64) -> Result<(), OpError> {
        if bytes <= FREE_ROOM || std::mem::take(&mut self.room.1) >= bytes {
            return Ok(());
        }
        self.room.0 = bytes;
        Err(OpError::Dynamic(format!("whether there is room for {bytes} bytes")))
    }

    /// The bytes that [`Builder::room`] was asked for in vain since the last call; 0 if none.
    pub fn take_wanted(&mut self) -> u64 {
        std::mem::take(&mut self.room.0)
    }

    /// The next call of [`Builder::room`] may have so many bytes.
    pub fn grant(&mut self, bytes: u64) {
        self.room.1 = bytes;
    }

    /// Where the graph ends now, to come back to with [`Builder::rollback`].
    pub fn mark(&self) -> Mark {
        Mark { values: self.graph.values.len(), nodes: self.graph.nodes.len() }
    }

    /// Takes back the constants and nodes that were added since the mark. There must be no new inputs or states.
    pub fn rollback(&mut self, mark: Mark) {
        for v in self.graph.values.drain(mark.values..) {
            self.names.remove(&v.name);
        }
        for n in self.graph.nodes.drain(mark.nodes..) {
            self.names.remove(&n.name);
        }
    }

    /// Names of values and nodes made from now on start with this (a node of the model, or `grad/` and one).
    pub fn set_scope(&mut self, scope: impl Into<String>) {
        self.scope = scope.into();
    }

    /// The current scope.
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// A name like `hint` that nothing has yet; it is taken from now on.
    pub fn unique(&mut self, hint: &str) -> Arc<str> {
        let mut name: Arc<str> = hint.into();
        while !self.names.insert(name.clone()) {
            let n = self.next.entry(hint.to_owned()).or_insert(1);
            *n += 1;
            name = format!("{hint}.{n}").into();
        }
        name
    }

    /// Renames a value; if the name is taken, a number is added.
    pub fn rename(&mut self, v: ValueId, name: &str) {
        if &*self.graph.value(v).name != name {
            let name = self.unique(name);
            self.graph.values[v.index()].name = name;
        }
    }

    /// Gives a value another name, so that its own is free.
    pub fn displace(&mut self, v: ValueId) {
        let old = self.graph.value(v).name.clone();
        let name = self.unique(&old);
        self.graph.values[v.index()].name = name;
        self.names.remove(&old);
    }

    /// Renames a node; if the name is taken, a number is added.
    pub fn rename_node(&mut self, n: NodeId, name: &str) {
        if &*self.graph.node(n).name != name {
            let name = self.unique(name);
            self.graph.nodes[n.index()].name = name;
        }
    }

    /// Adds a constant.
    pub fn constant(&mut self, literal: Literal) -> ValueId {
        let name = self.unique(&format!("{}/const", self.scope));
        self.graph.add_constant(name, literal)
    }

    /// Adds a constant scalar.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> ValueId {
        self.constant(Literal::scalar(dtype, value))
    }

    /// Emits a node and returns its outputs, or constants where they can be computed now.
    pub fn emit(
        &mut self,
        op: &str,
        attrs: Attrs,
        inputs: &[Option<ValueId>],
    ) -> Result<Vec<ValueId>, OpError> {
        let def = find(op).ok_or_else(|| OpError::unsupported(format!("operator {op}")))?;
        let sig = Signature {
            attrs: &attrs,
            inputs: inputs.iter().map(|i| i.map(|v| self.graph.ty(v))).collect(),
            constants: inputs.iter().map(|i| i.and_then(|v| self.graph.constant(v))).collect(),
            outputs: Vec::new(),
        };
        let types = def.infer(&sig)?;
        if let Some(folded) = fold(def, &sig, &types)? {
            return Ok(folded.into_iter().map(|l| self.constant(l)).collect());
        }
        let base = format!("{}/{op}", self.scope);
        let node_name = self.unique(&base);
        let outputs = types
            .into_iter()
            .enumerate()
            .map(|(i, ty)| {
                let hint = if i == 0 { format!("{node_name}:0") } else { format!("{node_name}:{i}") };
                (self.unique(&hint), ty)
            })
            .collect();
        let node = self.graph.add_node(node_name, op, attrs, inputs.to_vec(), outputs);
        Ok(self.graph.node(node).outputs.clone())
    }

    /// Emits a node with all inputs given and returns its first output.
    pub fn op(&mut self, op: &str, attrs: Attrs, inputs: &[ValueId]) -> Result<ValueId, OpError> {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        let outputs = self.emit(op, attrs, &inputs)?;
        outputs.first().copied().ok_or_else(|| OpError::invalid(format!("{op} has no output")))
    }

    /// Elementwise operator without attributes.
    pub fn call(&mut self, op: &str, inputs: &[ValueId]) -> Result<ValueId, OpError> {
        self.op(op, Attrs::new(), inputs)
    }

    /// `v` under another shape of equal size; `v` itself if it has that shape.
    pub fn reshape(&mut self, v: ValueId, shape: &Shape) -> Result<ValueId, OpError> {
        if &self.ty(v).shape == shape {
            return Ok(v);
        }
        self.op("Reshape", Attrs::new().with("shape", shape_attr(shape)?), &[v])
    }

    /// Another value on the bytes of `v`, of the same type.
    pub fn view(&mut self, v: ValueId) -> Result<ValueId, OpError> {
        let shape = shape_attr(&self.ty(v).shape)?;
        self.op("Reshape", Attrs::new().with("shape", shape), &[v])
    }

    /// `v` with its axes permuted: output axis `i` is input axis `perm[i]`; `v` itself for the identity.
    pub fn transpose(&mut self, v: ValueId, perm: &[i64]) -> Result<ValueId, OpError> {
        if perm.iter().enumerate().all(|(i, p)| i as i64 == *p) {
            return Ok(v);
        }
        self.op("Transpose", Attrs::new().with("perm", perm), &[v])
    }

    /// `v` converted; `v` itself if it has that dtype.
    pub fn cast(&mut self, v: ValueId, to: DType) -> Result<ValueId, OpError> {
        if self.ty(v).dtype == to {
            return Ok(v);
        }
        self.op("Cast", Attrs::new().with("to", to), &[v])
    }

    /// Sums over `axes` (not negative, sorted); with `keep` they stay as extent 1.
    pub fn reduce_sum(&mut self, v: ValueId, axes: &[i64], keep: bool) -> Result<ValueId, OpError> {
        if axes.is_empty() {
            return Ok(v);
        }
        self.op("ReduceSum", Attrs::new().with("axes", axes).with("keepdims", keep), &[v])
    }

    /// Sums `v` down to `shape`, from which it was broadcast: the gradient of broadcasting.
    pub fn sum_to(&mut self, v: ValueId, shape: &Shape) -> Result<ValueId, OpError> {
        let from = self.ty(v).shape.clone();
        if &from == shape {
            return Ok(v);
        }
        let lead = from
            .rank()
            .checked_sub(shape.rank())
            .ok_or_else(|| OpError::invalid(format!("cannot sum {from} to {shape}")))?;
        let one = Dim::constant(1);
        let axes: Vec<i64> = (0..from.rank())
            .filter(|&i| i < lead || (shape.0[i - lead] == one && from.0[i] != one))
            .map(|i| i as i64)
            .collect();
        let summed = self.reduce_sum(v, &axes, true)?;
        self.reshape(summed, shape)
    }

    /// Broadcasts `v` to `shape`; `v` itself if it has that shape.
    pub fn expand(&mut self, v: ValueId, shape: &Shape) -> Result<ValueId, OpError> {
        if &self.ty(v).shape == shape {
            return Ok(v);
        }
        self.op("Expand", Attrs::new().with("shape", shape_attr(shape)?), &[v])
    }

    /// Matrix product over the last two axes, each side transposed first if asked.
    pub fn matmul(
        &mut self,
        a: ValueId,
        b: ValueId,
        trans_a: bool,
        trans_b: bool,
    ) -> Result<ValueId, OpError> {
        self.op("MatMul", Attrs::new().with("trans_a", trans_a).with("trans_b", trans_b), &[a, b])
    }
}

/// A fixed shape as an attribute.
pub(crate) fn shape_attr(shape: &Shape) -> Result<Vec<i64>, OpError> {
    Ok(crate::def::fixed(shape, "the shape")?.into_iter().map(|d| d as i64).collect())
}

fn fold(
    def: &dyn crate::OpDef,
    sig: &Signature<'_>,
    types: &[TensorType],
) -> Result<Option<Vec<Literal>>, OpError> {
    let constant = sig.inputs.iter().zip(&sig.constants).all(|(i, c)| i.is_none() || c.is_some());
    let small = types.iter().all(|t| t.bytes().is_some_and(|b| b <= FOLD_LIMIT));
    if !constant || !small || sig.inputs.is_empty() {
        return Ok(None);
    }
    let sig = Signature { outputs: types.iter().collect(), ..sig.clone() };
    if !def.facts(&sig).folds {
        return Ok(None);
    }
    // No kernel of its own for this element type (halves): the node stays.
    if let Err(OpError::Unsupported(_)) = def.cpu(&sig, 0) {
        return Ok(None);
    }
    crate::cpu::evaluate(def, &sig, &sig.constants).map(Some)
}
