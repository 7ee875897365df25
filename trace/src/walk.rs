//! The walk over a program's nodes that makes the graph.

use crate::{
    Body, Oracle, Source, SourceNode, SourceTensor,
    error::{TraceError, TraceErrorKind},
};
use graph::{
    Attr, Attrs, Bindings, DType, Graph, Init, InputRole, Literal, StateKind, Symbol, TensorType, ValueDef,
    ValueId, quote_name,
};
use ops::{
    Builder, OpError,
    onnx::{ImportCx, ImportOptions, OnnxRule},
};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

/// Largest weight that a ConstantOfShape may make, in bytes (16 TiB).
const MAX_BYTES: u64 = 1 << 44;

/// How far a walk goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most nodes of a graph whose loops are unrolled; a program without loops may have more. As many nodes of bodies are walked, and as
    /// many iterations begun, at most: what makes no nodes may repeat itself for ever, too.
    pub nodes: usize,
    /// Most nodes of bodies that are walked before an iteration of which data decide whether it runs.
    pub open: usize,
}

impl Limits {
    /// So many nodes, whoever decides.
    pub fn new(nodes: usize) -> Limits {
        Limits { nodes, open: nodes }
    }
}

/// How a program is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How modes of nodes are read.
    pub modes: ImportOptions,
    /// How far to go.
    pub limits: Limits,
    /// Whether a ConstantOfShape in a parameter position makes a weight; not where the states are settled.
    pub new_weights: bool,
}

/// Something the user should know; equal remarks are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// Which remark it is.
    pub key: String,
    /// What to say, from the first node it is about.
    pub text: String,
    /// Node that it is about first; empty for the model as a whole.
    pub node: String,
    /// How many nodes it is about.
    pub count: u32,
}

/// What a walk found beside the graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traced {
    /// States in a parameter position.
    pub candidates: BTreeSet<Arc<str>>,
    /// Weights that nodes make: name, type and the bytes of one element.
    pub filled: Vec<(Arc<str>, TensorType, Vec<u8>)>,
    /// What the user should know.
    pub remarks: Vec<Remark>,
    /// Whether the graph depends on elements that the oracle computed.
    pub asked: bool,
}

/// What a name stands for.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// A tensor.
    Tensor(ValueId),
    /// A sequence of tensors.
    Sequence(Arc<Vec<ValueId>>),
    /// A value that may be absent.
    Optional(Option<Box<Item>>),
}

pub(crate) struct Walk<'s, 'g, 'o> {
    pub(crate) source: &'s Source,
    pub(crate) options: Options,
    pub(crate) b: Builder<'g>,
    pub(crate) oracle: &'o mut dyn Oracle,
    pub(crate) items: HashMap<Arc<str>, Item>,
    pub(crate) traced: Traced,
    /// Sizes of the inputs.
    pub(crate) sizes: &'s Bindings,
    /// How many bodies the walk is inside of.
    pub(crate) depth: u32,
    /// Whether the walk only finds types: nobody is asked, and what it makes is taken back.
    pub(crate) unrun: bool,
    /// What was walked inside of bodies so far, in nodes.
    walked: usize,
}

/// Walks a program into an empty graph, with the sizes that `bindings` give to its inputs.
pub fn walk<'s>(
    source: &'s Source,
    bindings: &'s Bindings,
    options: Options,
    graph: &mut Graph,
    oracle: &mut dyn Oracle,
) -> Result<Traced, TraceError> {
    let mut w = Walk {
        source,
        options,
        b: Builder::new(graph),
        oracle,
        items: HashMap::new(),
        traced: Traced::default(),
        sizes: bindings,
        depth: 0,
        unrun: false,
        walked: 0,
    };
    w.declare();
    for node in &source.body.nodes {
        w.node(node)?;
    }
    w.outputs(&source.body)?;
    Ok(w.traced)
}

/// An error at a node.
pub(crate) fn at(node: &SourceNode, kind: TraceErrorKind) -> TraceError {
    TraceError { node: Some(node.name.to_string()), op: Some(node.op()), kind }
}

/// An error in what the model says of a node.
pub(crate) fn wrong(node: &SourceNode, what: impl Into<String>) -> TraceError {
    at(node, TraceErrorKind::Model(what.into()))
}

impl<'s> Walk<'s, '_, '_> {
    /// Inputs; reserves all names of the main graph.
    fn declare(&mut self) {
        for (name, ty) in &self.source.inputs {
            let mut ty = ty.clone();
            ty.shape = ty.shape.substitute(self.sizes);
            let unique = self.b.unique(name);
            let v = self.b.graph_mut().add_input(unique, ty, InputRole::Data);
            self.items.insert(name.clone(), Item::Tensor(v));
        }
        for name in self.source.tensors.keys() {
            self.b.unique(name);
        }
        let outputs = self.source.body.nodes.iter().flat_map(|n| &n.outputs);
        for name in outputs.filter(|n| !n.is_empty() && !self.source.tensors.contains_key(*n)) {
            self.b.unique(name);
        }
    }

    /// What a name stands for.
    pub(crate) fn item(&mut self, name: &Arc<str>) -> Result<Item, TraceError> {
        if let Some(item) = self.items.get(name) {
            return Ok(item.clone());
        }
        let Some(tensor) = self.source.tensors.get(name) else {
            let what = format!("value {} is not made", quote_name(name));
            return Err(TraceError { node: None, op: None, kind: TraceErrorKind::Model(what) });
        };
        let v = match tensor {
            SourceTensor::Constant(l) => self.b.graph_mut().add_constant(name.clone(), l.clone()),
            // What is known stays known for good: not of a state that is taken back.
            SourceTensor::State { known: Some(l), .. } if self.unrun => {
                self.b.graph_mut().add_constant(name.clone(), l.clone())
            }
            SourceTensor::State { ty, known, candidate, .. } => {
                self.state(name, ty.clone(), known.clone(), *candidate)
            }
        };
        self.items.insert(name.clone(), Item::Tensor(v));
        Ok(Item::Tensor(v))
    }

    fn state(&mut self, name: &Arc<str>, ty: TensorType, known: Option<Literal>, candidate: bool) -> ValueId {
        let init = Init::Weight(name.clone());
        let v = self.b.graph_mut().add_state(name.clone(), ty, StateKind::Frozen, init);
        if let Some(l) = known {
            self.b.know(v, l);
        }
        if candidate {
            self.traced.candidates.insert(name.clone());
        }
        v
    }

    /// The tensor of a name, at a node.
    pub(crate) fn tensor(&mut self, node: &SourceNode, name: &Arc<str>) -> Result<ValueId, TraceError> {
        match self.item(name)? {
            Item::Tensor(v) => Ok(v),
            Item::Optional(Some(inner)) => match *inner {
                Item::Tensor(v) => Ok(v),
                _ => Err(wrong(node, format!("input {} is no tensor", quote_name(name)))),
            },
            Item::Optional(None) => Err(wrong(node, format!("input {} is absent", quote_name(name)))),
            Item::Sequence(_) => Err(wrong(node, format!("input {} is a sequence", quote_name(name)))),
        }
    }

    /// One node.
    pub(crate) fn node(&mut self, node: &'s SourceNode) -> Result<(), TraceError> {
        let made = self.b.graph().nodes.len();
        if self.depth > 0 {
            self.walk_on(node, 1)?;
            if made > self.options.limits.nodes {
                return Err(at(node, TraceErrorKind::TooLong { nodes: self.options.limits.nodes }));
            }
        }
        if node.domain.is_empty() {
            if &*node.op_type == "Constant" {
                return Ok(());
            }
            if &*node.op_type == "Identity" {
                let [from, to] = [&node.inputs, &node.outputs].map(|n| n.first().filter(|n| !n.is_empty()));
                return match (from, to) {
                    (Some(from), Some(to)) if node.inputs.len() == 1 => {
                        let item = self.item(from)?;
                        self.items.insert(to.clone(), item);
                        Ok(())
                    }
                    _ => Err(wrong(node, "it needs one input and one output")),
                };
            }
            if self.control(node)? || self.sequence(node)? {
                return Ok(());
            }
        }
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for name in &node.inputs {
            inputs.push(if name.is_empty() { None } else { Some(self.tensor(node, name)?) });
        }
        if self.filled_weight(node, &inputs)? {
            return Ok(());
        }
        let rule = rule(node)?;
        let (values_before, nodes_before) = (self.b.graph().values.len(), made);
        let outputs = self.apply(node, rule, &inputs)?;
        self.name_outputs(node, &outputs, values_before, nodes_before)
    }

    /// Counts work that is worth so many nodes of a body.
    pub(crate) fn walk_on(&mut self, node: &SourceNode, nodes: usize) -> Result<(), TraceError> {
        self.fits(node, nodes)?;
        self.walked += nodes;
        Ok(())
    }

    /// Whether so many nodes of bodies may follow.
    pub(crate) fn fits(&self, node: &SourceNode, nodes: usize) -> Result<(), TraceError> {
        let most = self.options.limits.nodes;
        if self.walked.saturating_add(nodes) > most {
            return Err(at(node, TraceErrorKind::TooLong { nodes: most }));
        }
        Ok(())
    }

    /// Refuses to go on where data decide and have decided too often.
    pub(crate) fn go_on(&self, node: &SourceNode, trips: Option<i64>) -> Result<(), TraceError> {
        let most = self.options.limits.open;
        if self.walked > most {
            Err(at(node, TraceErrorKind::Endless { nodes: most, trips }))
        } else {
            Ok(())
        }
    }

    /// Runs the rule of a node; where it misses the elements of a value that the oracle can compute, again with them.
    fn apply(
        &mut self,
        node: &SourceNode,
        rule: OnnxRule,
        inputs: &[Option<ValueId>],
    ) -> Result<Vec<Option<ValueId>>, TraceError> {
        let mark = self.b.mark();
        self.b.take_missed();
        self.b.take_wanted();
        let mut read = Vec::new();
        loop {
            self.b.set_scope(&*node.name);
            let mut cx = ImportCx {
                b: &mut self.b,
                options: self.options.modes,
                op_type: &node.op_type,
                opset: node.opset,
                attrs: &node.attrs,
                inputs,
                used: &node.used,
                outputs: Vec::new(),
                remarks: Vec::new(),
            };
            let done = (rule.import)(&mut cx);
            let (outputs, remarks) = (cx.outputs, cx.remarks);
            match done {
                Ok(()) => {
                    for (key, text) in remarks {
                        self.remark(key, &node.name, &text);
                    }
                    if read.into_iter().filter(|v| self.b.forget(*v)).count() > 0 {
                        self.oracle.forget();
                    }
                    return Ok(outputs);
                }
                Err(OpError::Dynamic(what)) => {
                    let missed = self.b.take_missed();
                    let room = self.b.take_wanted();
                    if room > 0 {
                        self.b.rollback(mark);
                        if !self.unrun {
                            let reserved = self.oracle.reserve(self.b.graph(), room);
                            reserved.map_err(|e| at(node, TraceErrorKind::Oracle(e)))?;
                        }
                        self.b.grant(room);
                        continue;
                    }
                    // The last one is what the rule could not do without.
                    let by_data = missed.last().is_some_and(|v| self.reads_data(*v));
                    let mut found = Vec::new();
                    for v in missed {
                        if let Some(l) = self.ask(node, v)? {
                            found.push((v, l));
                        }
                    }
                    self.b.rollback(mark);
                    if found.is_empty() && by_data {
                        return Err(at(node, TraceErrorKind::Dynamic { what, dims: Vec::new() }));
                    }
                    if found.is_empty() {
                        return Err(self.op_error(node, OpError::Dynamic(what), inputs));
                    }
                    for (v, l) in found {
                        self.b.know(v, l);
                        read.push(v);
                    }
                }
                Err(e) => return Err(self.op_error(node, e, inputs)),
            }
        }
    }

    /// What the oracle says of a value.
    fn ask(&mut self, node: &SourceNode, v: ValueId) -> Result<Option<Literal>, TraceError> {
        if self.unrun {
            return Ok(None);
        }
        let found = self.oracle.elements(self.b.graph(), v);
        let found = found.map_err(|e| at(node, TraceErrorKind::Oracle(e)))?;
        self.traced.asked |= found.is_some();
        Ok(found)
    }

    /// The elements of a value that decides; an error if nobody knows them.
    pub(crate) fn decide(
        &mut self,
        node: &SourceNode,
        v: ValueId,
        what: &str,
    ) -> Result<Literal, TraceError> {
        if let Some(l) = self.b.literal(v) {
            return Ok(l.clone());
        }
        match self.ask(node, v)? {
            Some(l) => {
                self.b.know(v, l.clone());
                Ok(l)
            }
            // Sizes are no remedy where data decides.
            None if self.reads_data(v) => {
                Err(at(node, TraceErrorKind::Dynamic { what: what.to_owned(), dims: Vec::new() }))
            }
            None => Err(self.op_error(node, OpError::Dynamic(what.to_owned()), &[Some(v)])),
        }
    }

    /// Whether a value follows from the elements of an input or a state, not from sizes alone.
    fn reads_data(&self, v: ValueId) -> bool {
        let g = self.b.graph();
        let mut seen: HashSet<ValueId> = HashSet::new();
        let mut stack = vec![v];
        while let Some(v) = stack.pop() {
            match (&g.value(v).def, g.producer(v)) {
                _ if !seen.insert(v) => {}
                (ValueDef::Input(_) | ValueDef::State(_), _) => return true,
                (_, Some(n)) if !matches!(&*g.node(n).op, "Shape" | "Size") => {
                    stack.extend(g.node(n).inputs.iter().flatten());
                }
                _ => {}
            }
        }
        false
    }

    /// An operator of ours with all inputs given, at a node.
    pub(crate) fn emit(
        &mut self,
        node: &SourceNode,
        op: &str,
        attrs: graph::Attrs,
        inputs: &[ValueId],
    ) -> Result<Vec<ValueId>, TraceError> {
        self.b.set_scope(&*node.name);
        let given: Vec<_> = inputs.iter().copied().map(Some).collect();
        self.b.emit(op, attrs, &given).map_err(|e| self.op_error(node, e, &given))
    }

    /// Gives the results of a rule the model's names.
    fn name_outputs(
        &mut self,
        node: &SourceNode,
        outputs: &[Option<ValueId>],
        values_before: usize,
        nodes_before: usize,
    ) -> Result<(), TraceError> {
        let mut named: BTreeSet<ValueId> = BTreeSet::new();
        for (i, name) in node.outputs.iter().enumerate().filter(|(_, n)| !n.is_empty()) {
            let Some(v) = outputs.get(i).copied().flatten() else {
                if node.used.get(i).copied().unwrap_or(true) {
                    let what = format!("its output {i}, {},", quote_name(name));
                    return Err(at(node, TraceErrorKind::Unsupported(what)));
                }
                continue;
            };
            // A value from before is only known under one more name.
            if v.index() >= values_before && named.insert(v) {
                if self.depth == 0 {
                    self.b.graph_mut().values[v.index()].name = name.clone();
                } else {
                    self.b.rename(v, name);
                }
            }
            self.items.insert(name.clone(), Item::Tensor(v));
        }
        let main = outputs.iter().flatten().find_map(|v| self.b.graph().producer(*v));
        if let Some(n) = main.filter(|n| n.index() >= nodes_before) {
            self.b.rename_node(n, &node.name);
        }
        Ok(())
    }

    /// ConstantOfShape in a parameter position is a weight. Returns whether the node was one.
    fn filled_weight(&mut self, node: &SourceNode, inputs: &[Option<ValueId>]) -> Result<bool, TraceError> {
        if !self.options.new_weights || !node.is_fill() {
            return Ok(false);
        }
        let (Some(output), [Some(shape)]) = (node.outputs.first(), inputs) else { return Ok(false) };
        let Some(extents) = self.b.literal(*shape) else { return Ok(false) };
        let Some((ty, element)) = filled(node, extents)? else { return Ok(false) };
        let v = self.state(output, ty.clone(), None, true);
        self.traced.filled.push((output.clone(), ty, element));
        self.items.insert(output.clone(), Item::Tensor(v));
        Ok(true)
    }

    pub(crate) fn op_error(&self, node: &SourceNode, e: OpError, inputs: &[Option<ValueId>]) -> TraceError {
        let kind = match e {
            OpError::Dynamic(what) => {
                let dims = self.symbols_behind(inputs).iter().map(|s| s.to_string()).collect();
                TraceErrorKind::Dynamic { what, dims }
            }
            OpError::Unsupported(what) => TraceErrorKind::Unsupported(what),
            e => TraceErrorKind::Op(e),
        };
        at(node, kind)
    }

    /// Sizes of graph inputs that values depend on.
    fn symbols_behind(&self, values: &[Option<ValueId>]) -> BTreeSet<Symbol> {
        let g = self.b.graph();
        let mut out = BTreeSet::new();
        let mut seen: BTreeSet<ValueId> = BTreeSet::new();
        let mut stack: Vec<ValueId> = values.iter().copied().flatten().collect();
        while let Some(v) = stack.pop() {
            if !seen.insert(v) {
                continue;
            }
            out.extend(g.ty(v).shape.0.iter().flat_map(|d| d.symbols()));
            if let Some(n) = g.producer(v) {
                stack.extend(g.node(n).inputs.iter().flatten());
            }
        }
        out
    }

    fn remark(&mut self, key: &str, node: &str, text: &str) {
        let same = |r: &&mut Remark| r.key == key && (!node.is_empty() || r.text == text);
        match self.traced.remarks.iter_mut().find(same) {
            Some(r) => r.count += 1,
            None => self.traced.remarks.push(Remark {
                key: key.to_owned(),
                text: text.to_owned(),
                node: node.to_owned(),
                count: 1,
            }),
        }
    }

    /// The graph's outputs. A result under another name gets the output's; an input, a state or another output, a view of that name.
    fn outputs(&mut self, body: &Body) -> Result<(), TraceError> {
        let all: HashSet<&str> = body.outputs.iter().map(|n| &**n).collect();
        let mut taken: BTreeSet<ValueId> = BTreeSet::new();
        for name in &body.outputs {
            let v = match self.item(name)? {
                Item::Tensor(v) => v,
                _ => {
                    let what = format!("output {} is no tensor", quote_name(name));
                    return Err(TraceError { node: None, op: None, kind: TraceErrorKind::Unsupported(what) });
                }
            };
            let value = self.b.graph().value(v);
            let free = !all.contains(&*value.name) && taken.insert(v);
            let v = if free && matches!(value.def, ValueDef::Node { .. }) {
                self.b.graph_mut().values[v.index()].name = name.clone();
                v
            } else if value.name == *name {
                v
            } else {
                // A size that is still open cannot be said as an attribute: the value keeps its name then.
                let view = self.b.view(v);
                if let Ok(view) = view {
                    self.b.graph_mut().values[view.index()].name = name.clone();
                }
                view.unwrap_or(v)
            };
            self.b.graph_mut().outputs.push(v);
        }
        Ok(())
    }
}

/// The element that a ConstantOfShape with these attributes repeats.
pub fn repeated(attrs: &Attrs) -> Option<Literal> {
    match attrs.get("value") {
        None => Some(Literal::scalar(DType::F32, 0.0)),
        Some(Attr::Tensor(l)) if l.len() == 1 => Some(l.clone()),
        Some(_) => None,
    }
}

/// The weight that a ConstantOfShape makes, as type and bytes of one element; `None` if it is no float tensor.
///
/// # Errors
///
/// It is too large.
pub fn filled(node: &SourceNode, extents: &Literal) -> Result<Option<(TensorType, Vec<u8>)>, TraceError> {
    let extents = extents.to_ints();
    let shape: Option<Vec<u64>> = extents.and_then(|e| e.iter().map(|n| u64::try_from(*n).ok()).collect());
    let element = repeated(&node.attrs).filter(|l| l.dtype().is_float());
    let (Some(shape), Some(element)) = (shape, element) else { return Ok(None) };
    let bytes = shape.iter().map(|d| (*d).max(1)).try_fold(element.dtype().size(), u64::checked_mul);
    if bytes.is_none_or(|b| b > MAX_BYTES) {
        return Err(wrong(node, format!("a tensor of shape {shape:?} is too large")));
    }
    Ok(Some((TensorType::new(element.dtype(), &shape), element.bytes().to_vec())))
}

/// The import rule of a node, or why there is none.
fn rule(node: &SourceNode) -> Result<OnnxRule, TraceError> {
    if let Some(rule) = ops::onnx::find_rule(&node.domain, &node.op_type) {
        return Ok(rule);
    }
    let what = match &*node.op_type {
        _ if !node.domain.is_empty() => {
            format!("operators of domain {} without a function in the model", quote_name(&node.domain))
        }
        op if op.contains("Quantize") || op.starts_with("QLinear") || op.ends_with("Integer") => {
            "quantized operators".to_owned()
        }
        _ => format!("this operator (opset {})", node.opset),
    };
    Err(at(node, TraceErrorKind::Unsupported(what)))
}
