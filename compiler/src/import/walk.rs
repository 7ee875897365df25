//! The walk over a model's nodes that makes the graph.

use super::{
    Imported, Options, Remark, attrs,
    error::{ImportError, ImportErrorKind},
    flatten::{FlatNode, flatten},
    inputs::{self, Inputs},
    model::Model,
    tensor::{self, Tensor},
    trainable::{self, Uses},
    weights::{self, Source, Weights},
};
use graph::{
    Attr, Attrs, DType, Graph, Init, InputRole, Literal, StateKind, Symbol, TensorType, ValueDef, ValueId,
    quote_name,
};
use ops::{Builder, OpError, onnx::ImportCx};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

/// Largest tensor that becomes a constant of the program, in bytes.
const MAX_CONSTANT: u64 = 64 << 10;
/// Largest weight whose elements import rules may read, in bytes.
const MAX_KNOWN: u64 = 1 << 10;

/// Memory that a node or an initializer takes on its way into the graph, in bytes.
const NODE_BYTES: u64 = 2 << 10;

/// A tensor of the file that becomes a value when something reads it.
struct Given {
    tensor: Result<Tensor, String>,
    /// From an initializer, not from a Constant node.
    initializer: bool,
}

struct Walk<'m, 'g> {
    model: &'m Model,
    options: &'m Options,
    b: Builder<'g>,
    /// Values by ONNX name.
    values: HashMap<String, ValueId>,
    given: BTreeMap<String, Given>,
    uses: HashMap<&'m str, Uses>,
    weights: Weights,
    candidates: BTreeSet<Arc<str>>,
    remarks: Vec<Remark>,
}

/// Imports a parsed model.
pub fn walk(model: &Model, options: &Options) -> Result<Imported, ImportError> {
    let fail = |what: String| ImportError::file(&model.source, ImportErrorKind::Model(what));
    let proto = &model.proto.graph;
    if let Some(s) = proto.sparse_initializer.first() {
        let name = s.values.as_ref().map(|v| v.name.as_str()).unwrap_or_default();
        let what = format!("sparse initializer {}", quote_name(name));
        return Err(ImportError::file(&model.source, ImportErrorKind::Unsupported(what)));
    }
    let mut names: HashSet<&str> = HashSet::new();
    for t in &proto.initializer {
        if t.name.is_empty() || !names.insert(&t.name) {
            let what = if t.name.is_empty() { "has no name" } else { "is defined twice" };
            return Err(fail(format!("initializer {} {what}", quote_name(&t.name))));
        }
    }
    let inputs = inputs::read(&proto.input, &|n| !names.contains(n)).map_err(&fail)?;
    for (name, _) in &inputs.types {
        if name.is_empty() || !names.insert(name) {
            return Err(fail(format!("input {} is nameless or defined twice", quote_name(name))));
        }
    }
    let bindings = inputs::bind(&inputs, &options.dims)
        .map_err(|e| ImportError::file(&model.source, ImportErrorKind::Dim(e)))?;
    let nodes = flatten(model, &names)?;
    let needed = NODE_BYTES.saturating_mul((nodes.len() + proto.initializer.len()) as u64);
    if needed > model.spare {
        let (n, file) = (nodes.len(), model.file);
        return Err(fail(format!(
            "refused: its {n} nodes would take more memory than a file of {file} bytes may"
        )));
    }
    names.extend(nodes.iter().flat_map(|n| &n.outputs).map(String::as_str));
    let mut outputs: HashSet<&str> = HashSet::new();
    for o in &proto.output {
        if o.name.is_empty() || !names.contains(o.name.as_str()) {
            return Err(fail(format!("output {} is made by no node", quote_name(&o.name))));
        }
        if !outputs.insert(&o.name) {
            return Err(fail(format!("output {} is listed twice", quote_name(&o.name))));
        }
    }
    if outputs.is_empty() {
        return Err(fail("the model has no outputs".to_owned()));
    }
    let mut graph = Graph::default();
    let uses = trainable::uses(&nodes, proto.output.iter().map(|o| o.name.as_str()));
    let mut w = Walk {
        model,
        options,
        b: Builder::new(&mut graph),
        values: HashMap::new(),
        given: BTreeMap::new(),
        uses,
        weights: Weights::new(model.source.clone()),
        candidates: BTreeSet::new(),
        remarks: Vec::new(),
    };
    for text in &model.warnings {
        w.remark("model", "", text);
    }
    w.declare(&inputs, &bindings, &nodes)?;
    for node in &nodes {
        w.node(node)?;
    }
    let output_names: Vec<String> = proto.output.iter().map(|o| o.name.clone()).collect();
    w.outputs(&output_names)?;
    for path in w.weights.absent_files() {
        let text = format!(
            "external data {} is absent; it is needed to run the plan, not to make it",
            path.display()
        );
        w.remark("absent", "", &text);
    }
    let unused = proto.initializer.iter().filter(|t| !w.values.contains_key(&t.name)).count();
    let symbols = inputs.symbols.iter().filter(|s| !bindings.contains_key(*s)).cloned().collect();
    let (mut weights, candidates, remarks) = w.finish();
    drop(nodes);
    let graph = without_unused_states(graph);
    graph::verify(&graph).map_err(|e| ImportError::file(&model.source, ImportErrorKind::Invariant(e)))?;
    let states: HashSet<&str> = graph.states.iter().map(|s| &*s.name).collect();
    weights.retain(|name| states.contains(name));
    let candidates =
        graph.states.iter().map(|s| &s.name).filter(|n| candidates.contains(*n)).cloned().collect();
    Ok(Imported {
        output_names,
        weights,
        candidates,
        remarks,
        opsets: model.opsets.clone(),
        producer: format!("{} {}", model.proto.producer_name, model.proto.producer_version).trim().to_owned(),
        symbols,
        unused_initializers: unused,
        graph,
    })
}

/// Names and types of a model's inputs that are no initializers.
pub fn input_types(model: &Model) -> Result<Vec<(String, TensorType)>, ImportError> {
    let proto = &model.proto.graph;
    let names: HashSet<&str> = proto.initializer.iter().map(|t| t.name.as_str()).collect();
    let inputs = inputs::read(&proto.input, &|n| !names.contains(n));
    let fail = |what| ImportError::file(&model.source, ImportErrorKind::Model(what));
    inputs.map(|i| i.types).map_err(fail)
}

/// Where the elements of a model's tensors are, without importing its nodes: initializers and Constant nodes by name; for those
/// that ConstantOfShape makes see [`Weights::fill`].
pub fn weights_of(model: &Model) -> Result<Weights, ImportError> {
    let proto = &model.proto.graph;
    let mut out = Weights::new(model.source.clone());
    let names: HashSet<&str> = proto
        .initializer
        .iter()
        .map(|t| t.name.as_str())
        .chain(proto.input.iter().map(|i| i.name.as_str()))
        .collect();
    for node in flatten(model, &names)?.iter().filter(|n| n.domain.is_empty()) {
        match (node.op_type, node.outputs.first()) {
            ("Constant", Some(o)) => {
                if let Ok(tensor) = constant_node(model, node) {
                    out.insert(o.as_str().into(), tensor);
                }
            }
            ("ConstantOfShape", Some(o)) => {
                if let Some(element) = attrs::attributes(model, node).ok().and_then(|a| repeated(&a)) {
                    out.insert_repeated(o.as_str().into(), element);
                }
            }
            _ => {}
        }
    }
    for t in &proto.initializer {
        if let Ok(tensor) = tensor::tensor(t, &model.cuts, model.source.folder()) {
            out.insert(t.name.as_str().into(), tensor);
        }
    }
    Ok(out)
}

impl<'m> Walk<'m, '_> {
    /// What remains when all nodes are done; the rest is freed.
    fn finish(self) -> (Weights, BTreeSet<Arc<str>>, Vec<Remark>) {
        (self.weights, self.candidates, self.remarks)
    }

    /// Inputs, initializers and constants; reserves all names of the model.
    fn declare(
        &mut self,
        inputs: &Inputs,
        bindings: &graph::Bindings,
        nodes: &[FlatNode<'m>],
    ) -> Result<(), ImportError> {
        for (name, ty) in &inputs.types {
            let mut ty = ty.clone();
            ty.shape = ty.shape.substitute(bindings);
            let unique = self.b.unique(name);
            let v = self.b.graph_mut().add_input(unique, ty, InputRole::Data);
            self.values.insert(name.clone(), v);
        }
        for t in &self.model.proto.graph.initializer {
            let tensor = tensor::tensor(t, &self.model.cuts, self.model.source.folder());
            self.b.unique(&t.name);
            self.given.insert(t.name.clone(), Given { tensor, initializer: true });
        }
        for name in nodes.iter().flat_map(|n| &n.outputs).filter(|n| !n.is_empty()) {
            self.b.unique(name);
        }
        for n in nodes.iter().filter(|n| n.domain.is_empty() && n.op_type == "Constant") {
            let tensor = constant_node(self.model, n);
            if let Some(o) = n.outputs.first().filter(|o| !o.is_empty()) {
                self.given.insert(o.clone(), Given { tensor, initializer: false });
            }
        }
        // Elements that the file has too many or too few of, or where they must not be, are errors even if nothing reads them.
        for (name, g) in &self.given {
            if let Err(what) = &g.tensor
                && !what.contains("not supported")
            {
                return Err(self.tensor_error(name, what));
            }
        }
        Ok(())
    }

    fn tensor_error(&self, name: &str, what: &str) -> ImportError {
        let kind = ImportErrorKind::Tensor { tensor: name.to_owned(), what: what.to_owned() };
        ImportError::file(&self.model.source, kind)
    }

    /// The value of an ONNX name that inputs, tensors and earlier nodes define.
    fn value(&mut self, name: &str) -> Result<ValueId, ImportError> {
        if let Some(v) = self.values.get(name) {
            return Ok(*v);
        }
        let Some(Given { tensor, initializer }) = self.given.remove(name) else {
            // Sorting has found a maker for every name that is read.
            let what = format!("value {} is not made", quote_name(name));
            return Err(ImportError::file(&self.model.source, ImportErrorKind::Model(what)));
        };
        let tensor = tensor.map_err(|what| self.tensor_error(name, &what))?;
        let v = self.materialize(name, tensor, initializer)?;
        self.values.insert(name.to_owned(), v);
        Ok(v)
    }

    /// A tensor of the file as a state or as a constant.
    fn materialize(&mut self, name: &str, tensor: Tensor, initializer: bool) -> Result<ValueId, ImportError> {
        let uses = self.uses.get(name).copied().unwrap_or_default();
        let source = &self.model.source;
        let mask = || {
            let (mut all, mut any) = (true, false);
            let read = weights::stream(source, &tensor, &mut |c| {
                all &= tensor::is_mask(tensor.dtype, c);
                any |= c.iter().any(|b| *b != 0);
                Ok(())
            });
            read.is_ok() && all && any
        };
        let parameter = tensor.dtype.is_float() && uses.parameter(tensor.elements(), initializer, mask);
        let is_here = !matches!(tensor.source, Source::External { .. });
        if !parameter && !uses.statistic && tensor.bytes() <= MAX_CONSTANT {
            match weights::literal(source, &tensor) {
                Ok(l) => return Ok(self.b.graph_mut().add_constant(name, l)),
                Err(what) if is_here => return Err(self.tensor_error(name, &what)),
                // The file may come later: the tensor is state then, and rules that need its elements say so.
                Err(_) => {}
            }
        }
        let name: Arc<str> = name.into();
        let init = Init::Weight(name.clone());
        let v = self.b.graph_mut().add_state(name.clone(), tensor.ty(), StateKind::Frozen, init);
        if tensor.bytes() <= MAX_KNOWN {
            match weights::literal(source, &tensor) {
                Ok(l) => self.b.know(v, l),
                Err(what) if is_here => return Err(self.tensor_error(&name, &what)),
                // Rules that need the elements say so.
                Err(_) => {}
            }
        }
        if parameter {
            self.candidates.insert(name.clone());
        }
        self.weights.insert(name, tensor);
        Ok(v)
    }

    fn node(&mut self, node: &FlatNode<'m>) -> Result<(), ImportError> {
        if node.domain.is_empty() && node.op_type == "Constant" {
            return Ok(());
        }
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for name in &node.inputs {
            inputs.push(if name.is_empty() { None } else { Some(self.value(name)?) });
        }
        if node.domain.is_empty() && node.op_type == "Identity" {
            return match (inputs.first().copied().flatten(), node.outputs.first()) {
                (Some(v), Some(o)) if inputs.len() == 1 => {
                    self.values.insert(o.clone(), v);
                    Ok(())
                }
                _ => {
                    Err(self.error(node, ImportErrorKind::Model("it needs one input and one output".into())))
                }
            };
        }
        let rule = self.rule(node)?;
        let attrs =
            attrs::attributes(self.model, node).map_err(|e| self.error(node, ImportErrorKind::Model(e)))?;
        if self.filled_weight(node, &attrs, &inputs)? {
            return Ok(());
        }
        let used: Vec<bool> = node
            .outputs
            .iter()
            .map(|o| !o.is_empty() && self.uses.get(o.as_str()).is_some_and(|u| u.count > 0))
            .collect();
        let (values_before, nodes_before) = (self.b.graph().values.len(), self.b.graph().nodes.len());
        self.b.set_scope(node.name.as_str());
        let mut cx = ImportCx {
            b: &mut self.b,
            options: self.options.ops,
            op_type: node.op_type,
            opset: node.opset,
            attrs: &attrs,
            inputs: &inputs,
            used: &used,
            outputs: Vec::new(),
            remarks: Vec::new(),
        };
        let done = (rule.import)(&mut cx);
        let (outputs, remarks) = (cx.outputs, cx.remarks);
        if let Err(e) = done {
            return Err(self.op_error(node, e, &inputs));
        }
        for (key, text) in remarks {
            self.remark(key, &node.name, &text);
        }
        self.name_outputs(node, &used, &outputs, values_before, nodes_before)
    }

    /// Gives the results of a rule the model's names.
    fn name_outputs(
        &mut self,
        node: &FlatNode<'m>,
        used: &[bool],
        outputs: &[Option<ValueId>],
        values_before: usize,
        nodes_before: usize,
    ) -> Result<(), ImportError> {
        let mut named: BTreeSet<ValueId> = BTreeSet::new();
        for (i, name) in node.outputs.iter().enumerate().filter(|(_, n)| !n.is_empty()) {
            let Some(v) = outputs.get(i).copied().flatten() else {
                if used[i] {
                    let what = format!("its output {i}, {},", quote_name(name));
                    return Err(self.error(node, ImportErrorKind::Unsupported(what)));
                }
                continue;
            };
            // A value from before is only known under one more name.
            if v.index() >= values_before && named.insert(v) {
                self.b.graph_mut().values[v.index()].name = name.as_str().into();
            }
            self.values.insert(name.clone(), v);
        }
        let main = outputs.iter().flatten().find_map(|v| self.b.graph().producer(*v));
        if let Some(n) = main.filter(|n| n.index() >= nodes_before) {
            self.b.rename_node(n, &node.name);
        }
        Ok(())
    }

    /// ConstantOfShape in a parameter position is a weight. Returns whether the node was one.
    fn filled_weight(
        &mut self,
        node: &FlatNode<'m>,
        attrs: &Attrs,
        inputs: &[Option<ValueId>],
    ) -> Result<bool, ImportError> {
        if !node.domain.is_empty() || node.op_type != "ConstantOfShape" {
            return Ok(false);
        }
        let (Some(output), [Some(shape)]) = (node.outputs.first(), inputs) else { return Ok(false) };
        let uses = self.uses.get(output.as_str()).copied().unwrap_or_default();
        let extents = self.b.literal(*shape).and_then(Literal::to_ints);
        let extents: Option<Vec<u64>> =
            extents.and_then(|e| e.iter().map(|n| u64::try_from(*n).ok()).collect());
        let Some(shape) = extents else { return Ok(false) };
        let Some(fill) = repeated(attrs) else { return Ok(false) };
        if !fill.dtype().is_float() || !(uses.strong || uses.statistic) {
            return Ok(false);
        }
        let bytes = shape.iter().map(|d| (*d).max(1)).try_fold(fill.dtype().size(), u64::checked_mul);
        if bytes.is_none_or(|b| b > tensor::MAX_BYTES) {
            let what = format!("a tensor of shape {shape:?} is too large");
            return Err(self.error(node, ImportErrorKind::Model(what)));
        }
        let source = Source::Fill(fill.bytes().to_vec());
        let v = self.materialize(output, Tensor { dtype: fill.dtype(), shape, source }, false)?;
        self.values.insert(output.clone(), v);
        Ok(true)
    }

    fn rule(&self, node: &FlatNode<'m>) -> Result<ops::onnx::OnnxRule, ImportError> {
        if let Some(rule) = ops::onnx::find_rule(node.domain, node.op_type) {
            if node.opset == 0 && node.domain.is_empty() && self.model.proto.ir_version >= 3 {
                let what = "the model does not say which opset it uses".to_owned();
                return Err(self.error(node, ImportErrorKind::Model(what)));
            }
            return Ok(rule);
        }
        let what = match node.op_type {
            _ if !node.domain.is_empty() => {
                format!("operators of domain {} without a function in the model", quote_name(node.domain))
            }
            "If" | "Loop" | "Scan" => "control flow".to_owned(),
            op if op.starts_with("Sequence") || op.starts_with("Optional") || op == "SplitToSequence" => {
                "sequences and optional values".to_owned()
            }
            op if op.contains("Quantize") || op.starts_with("QLinear") || op.ends_with("Integer") => {
                "quantized operators".to_owned()
            }
            _ => format!("this operator (opset {})", node.opset),
        };
        Err(self.error(node, ImportErrorKind::Unsupported(what)))
    }

    fn error(&self, node: &FlatNode<'m>, kind: ImportErrorKind) -> ImportError {
        ImportError::node(&self.model.source, &node.name, &node.op(), kind)
    }

    fn op_error(&self, node: &FlatNode<'m>, e: OpError, inputs: &[Option<ValueId>]) -> ImportError {
        let kind = match e {
            OpError::Dynamic(what) => {
                let dims = self.symbols_behind(inputs).iter().map(|s| s.to_string()).collect();
                ImportErrorKind::Dynamic { what, dims }
            }
            OpError::Unsupported(what) => ImportErrorKind::Unsupported(what),
            e => ImportErrorKind::Op(e),
        };
        self.error(node, kind)
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
        let same = self.remarks.iter_mut().find(|r| r.key == key && (!node.is_empty() || r.text == text));
        match same {
            Some(r) => r.count += 1,
            None => self.remarks.push(Remark {
                key: key.to_owned(),
                text: text.to_owned(),
                node: node.to_owned(),
                count: 1,
            }),
        }
    }

    /// The graph's outputs. A result under another name gets the output's.
    fn outputs(&mut self, names: &[String]) -> Result<(), ImportError> {
        let all: HashSet<&str> = names.iter().map(String::as_str).collect();
        let mut taken: BTreeSet<ValueId> = BTreeSet::new();
        for name in names {
            let v = self.value(name)?;
            let graph = self.b.graph_mut();
            graph.outputs.push(v);
            let other = &graph.values[v.index()].name;
            let free = !all.contains(&**other) && taken.insert(v);
            if free && matches!(graph.values[v.index()].def, ValueDef::Node { .. }) {
                graph.values[v.index()].name = name.as_str().into();
            }
        }
        Ok(())
    }
}

/// The element that a ConstantOfShape repeats.
fn repeated(attrs: &Attrs) -> Option<Literal> {
    match attrs.get("value") {
        None => Some(Literal::scalar(DType::F32, 0.0)),
        Some(Attr::Tensor(l)) if l.len() == 1 => Some(l.clone()),
        Some(_) => None,
    }
}

/// The graph without what nothing needs, weights included.
fn without_unused_states(graph: Graph) -> Graph {
    let mut g = graph.pruned();
    drop(graph);
    let users = g.users();
    let mut kept = Vec::new();
    for s in std::mem::take(&mut g.states) {
        if s.output.is_some() || !users[s.input.index()].is_empty() || g.outputs.contains(&s.input) {
            g.values[s.input.index()].def = ValueDef::State(graph::StateId(kept.len() as u32));
            kept.push(s);
        }
    }
    g.states = kept;
    g.pruned()
}

/// The tensor of a Constant node.
fn constant_node(model: &Model, node: &FlatNode<'_>) -> Result<Tensor, String> {
    let literal =
        |l: Literal| Tensor { dtype: l.dtype(), shape: l.shape().to_vec(), source: Source::Literal(l) };
    let floats = |v: &[f32]| v.iter().flat_map(|f| f.to_le_bytes()).collect::<Vec<u8>>();
    for (name, a) in &node.attrs {
        return Ok(match *name {
            "value" => {
                let t = a.t.as_ref().ok_or("the constant has no tensor")?;
                tensor::tensor(t, &model.cuts, model.source.folder())?
            }
            "value_float" => literal(Literal::scalar(DType::F32, f64::from(a.f))),
            "value_int" => {
                let bytes = a.i.to_le_bytes().to_vec();
                literal(Literal::new(DType::I64, Vec::new(), bytes).map_err(|e| e.to_string())?)
            }
            "value_floats" => {
                let shape = vec![a.floats.len() as u64];
                literal(Literal::new(DType::F32, shape, floats(&a.floats)).map_err(|e| e.to_string())?)
            }
            "value_ints" => literal(Literal::ints(&a.ints)),
            "sparse_value" | "value_string" | "value_strings" => {
                return Err(format!("a constant with {name} is not supported"));
            }
            _ => continue,
        });
    }
    Err("the constant has no value".to_owned())
}
