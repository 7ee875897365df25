//! From a parsed model to a [`Source`]: every name means one thing, every tensor is a constant or a state.

use super::{
    Options, attrs,
    error::{ImportError, ImportErrorKind},
    flatten::{FlatBody, FlatNode, flatten},
    inputs::{self, Inputs},
    limits::WAY_OUT,
    model::Model,
    tensor::{self, Tensor},
    trainable::{self, Look, Uses},
    weights::{self, Source as Elements, Weights},
};
use graph::{Bindings, DType, Literal, quote_name};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};
use trace::{Body, Source, SourceNode, SourceTensor};

/// Largest tensor that becomes a constant of the program, in bytes.
const MAX_CONSTANT: u64 = 64 << 10;
/// Largest weight whose elements import rules may read, in bytes.
const MAX_KNOWN: u64 = 1 << 10;
/// Memory that a node or an initializer takes on its way into the graph, in bytes.
const NODE_BYTES: u64 = 1200;

/// A model as a program.
pub struct Parts {
    /// The program.
    pub source: Source,
    /// What is said about the sizes of its inputs.
    pub bindings: Bindings,
    /// Sizes without a number.
    pub inputs: Inputs,
    /// Where the elements of its states are.
    pub weights: Weights,
    /// Initializers that nothing reads.
    pub unused_initializers: usize,
    /// Nodes that lead to no output, which are left out.
    pub idle_nodes: usize,
    /// Inputs that nothing reads, which are left out.
    pub unread_inputs: Vec<String>,
    /// Candidates for training that Constant nodes make, in a model that has initializers to train, too.
    pub trained_constants: Vec<String>,
    /// Outputs that are left out: sequences, beside others that are tensors.
    pub no_tensors: Vec<String>,
}

/// Reads a parsed model. Elements of large tensors stay where they are.
pub fn parts(model: &Model, options: &Options) -> Result<Parts, ImportError> {
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
    // Expansion takes memory itself, and makes more nodes.
    check_memory(model, proto.node.len())?;
    let nodes = flatten(model, &names)?;
    check_memory(model, nodes.len())?;
    let (outputs, no_tensors) = outputs(model, &names, &nodes)?;
    let all = nodes.len();
    let nodes = needed(nodes, &outputs);
    let idle_nodes = all - nodes.len();
    let uses = trainable::uses(&nodes, outputs.iter().copied());
    let mut c = Converter {
        model,
        uses: &uses,
        named: &options.named,
        typed_by: typed_by(&nodes),
        tensors: BTreeMap::new(),
        weights: Weights::new(model.source.clone()),
        trained_initializers: 0,
        trained_constants: Vec::new(),
    };
    for t in &proto.initializer {
        let read = tensor::tensor(t, &model.cuts, model.source.folder());
        c.tensor(&t.name, read, true)?;
    }
    let unused = |t: &&onnx_protobuf::TensorProto| uses.get(t.name.as_str()).is_none_or(|u| u.count == 0);
    let unused_initializers = proto.initializer.iter().filter(unused).count();
    let body = Body {
        inputs: Vec::new(),
        nodes: c.nodes(&nodes)?,
        outputs: outputs.into_iter().map(Into::into).collect(),
        output_types: Vec::new(),
    };
    let trained_constants = if c.trained_initializers > 0 { c.trained_constants } else { Vec::new() };
    let (tensors, weights) = (c.tensors, c.weights);
    let is_read = |(n, _): &&(String, graph::TensorType)| uses.get(n.as_str()).is_some_and(|u| u.count > 0);
    let (read, unread): (Vec<_>, Vec<_>) = inputs.types.iter().partition(is_read);
    let unread_inputs = unread.into_iter().map(|(n, _)| n.clone()).collect();
    let types = read.into_iter().map(|(n, t)| (n.as_str().into(), t.clone())).collect();
    Ok(Parts {
        source: Source { inputs: types, tensors, body },
        bindings,
        inputs,
        weights,
        unused_initializers,
        idle_nodes,
        unread_inputs,
        trained_constants,
        no_tensors,
    })
}

/// The nodes that lead to an output. What the others are, or decide, is of no consequence.
fn needed<'m>(nodes: Vec<FlatNode<'m>>, outputs: &[&str]) -> Vec<FlatNode<'m>> {
    let makers: HashMap<&str, usize> = nodes
        .iter()
        .enumerate()
        .flat_map(|(i, n)| n.outputs.iter().filter(|o| !o.is_empty()).map(move |o| (o.as_str(), i)))
        .collect();
    let mut kept = vec![false; nodes.len()];
    let mut open: Vec<usize> = outputs.iter().filter_map(|o| makers.get(o).copied()).collect();
    while let Some(i) = open.pop() {
        if !std::mem::replace(&mut kept[i], true) {
            open.extend(nodes[i].reads().into_iter().filter_map(|r| makers.get(r).copied()));
        }
    }
    let mut left: Vec<FlatNode<'m>> =
        nodes.into_iter().zip(kept).filter_map(|(n, k)| k.then_some(n)).collect();
    for (_, body) in left.iter_mut().flat_map(|n| &mut n.bodies) {
        let outputs: Vec<&str> = body.outputs.iter().map(|(o, _)| o.as_str()).collect();
        body.nodes = needed(std::mem::take(&mut body.nodes), &outputs);
    }
    left
}

/// Refuses so many nodes if they would take more memory than is left.
fn check_memory(model: &Model, nodes: usize) -> Result<(), ImportError> {
    let needed = NODE_BYTES.saturating_mul((nodes + model.proto.graph.initializer.len()) as u64);
    if needed <= model.spare {
        return Ok(());
    }
    let what = format!(
        "refused: its {nodes} nodes would take more memory than a file of {} bytes may; {WAY_OUT}",
        model.file
    );
    Err(ImportError::file(&model.source, ImportErrorKind::Model(what)))
}

/// The outputs' names, each of which is made, and those of outputs that are left out. One that the model lists again is the same array
/// again, and stands here once.
fn outputs<'a>(
    model: &'a Model,
    given: &HashSet<&str>,
    nodes: &[FlatNode<'_>],
) -> Result<(Vec<&'a str>, Vec<String>), ImportError> {
    let fail = |what: String| Err(ImportError::file(&model.source, ImportErrorKind::Model(what)));
    let made: HashSet<&str> = nodes.iter().flat_map(|n| &n.outputs).map(String::as_str).collect();
    let mut seen = HashSet::new();
    let mut names = Vec::new();
    let mut left_out = Vec::new();
    let infos = &model.proto.graph.output;
    let some_tensors = infos.iter().any(|o| !inputs::is_sequence(o));
    for info in infos {
        let name = info.name.as_str();
        if name.is_empty() || !(made.contains(name) || given.contains(name)) {
            return fail(format!("output {} is made by no node", quote_name(name)));
        }
        if !seen.insert(name) {
            continue;
        }
        if some_tensors && inputs::is_sequence(info) {
            left_out.push(name.to_owned());
        } else {
            names.push(name);
        }
    }
    if names.is_empty() { fail("the model has no outputs".to_owned()) } else { Ok((names, left_out)) }
}

/// Names that say the element type of what a node makes, with the operator.
fn typed_by<'a>(nodes: &'a [FlatNode<'_>]) -> HashMap<&'a str, &'a str> {
    let mut out = HashMap::new();
    for n in nodes {
        let input = match n.op_type {
            "CastLike" => 1,
            "QuantizeLinear" => 2,
            "QLinearMatMul" | "QLinearConv" => 7,
            _ => continue,
        };
        out.extend(n.inputs.get(input).map(|name| (name.as_str(), n.op_type)));
    }
    out
}

struct Converter<'m, 'u> {
    model: &'m Model,
    uses: &'u HashMap<&'u str, Uses>,
    /// Tensors whose element type is that of a node's output, though their elements are not what it computes with.
    typed_by: HashMap<&'u str, &'u str>,
    /// Tensors that are asked for as parameters.
    named: &'u [String],
    tensors: BTreeMap<Arc<str>, SourceTensor>,
    weights: Weights,
    trained_initializers: usize,
    trained_constants: Vec<String>,
}

impl<'m> Converter<'m, '_> {
    fn tensor_error(&self, name: &str, what: &str) -> ImportError {
        let kind = ImportErrorKind::Tensor { tensor: name.to_owned(), what: what.to_owned() };
        ImportError::file(&self.model.source, kind)
    }

    /// A tensor of the file: a constant or a state, if something reads it. Elements that the file has too many or too few of, or where
    /// they must not be, are errors even if nothing does.
    fn tensor(
        &mut self,
        name: &str,
        read: Result<Tensor, String>,
        initializer: bool,
    ) -> Result<(), ImportError> {
        let uses = self.uses.get(name).copied().unwrap_or_default();
        let tensor = match read {
            Ok(t) => t,
            Err(what) if uses.count == 0 && what.contains("not supported") => return Ok(()),
            Err(what) => return Err(self.tensor_error(name, &what)),
        };
        if uses.count == 0 {
            return Ok(());
        }
        if let (Some(_), Some(op)) = (tensor.narrow, self.typed_by.get(name)) {
            let what = format!("{op} to its element type is not supported");
            return Err(self.tensor_error(name, &what));
        }
        let source = &self.model.source;
        let look = || {
            let (mut all, mut any) = (true, false);
            let read = weights::stream(source, &tensor, &mut |c| {
                all &= tensor::is_mask(tensor.dtype, c);
                any |= c.iter().any(|b| *b != 0);
                Ok(())
            });
            // What cannot be read now is taken for ordinary numbers.
            Look { mask: read.is_ok() && all && any, nonzero: read.is_err() || any }
        };
        let named = !uses.statistic && self.named.iter().any(|n| n == name);
        let candidate =
            tensor.dtype.is_float() && (named || uses.parameter(tensor.elements(), initializer, look));
        match (candidate, initializer) {
            (true, true) => self.trained_initializers += 1,
            (true, false) if !named => self.trained_constants.push(name.to_owned()),
            _ => {}
        }
        let is_here = !matches!(tensor.source, Elements::External { .. });
        if !candidate && !uses.statistic && tensor.bytes() <= MAX_CONSTANT {
            match weights::literal(source, &tensor) {
                Ok(l) => {
                    self.tensors.insert(name.into(), SourceTensor::Constant(l));
                    return Ok(());
                }
                Err(what) if is_here => return Err(self.tensor_error(name, &what)),
                // The file may come later: the tensor is state then, and rules that need its elements say so.
                Err(_) => {}
            }
        }
        // What is trained because somebody names it stays what it is in no step.
        let known = if tensor.bytes() <= MAX_KNOWN && !named {
            match weights::literal(source, &tensor) {
                Ok(l) => Some(l),
                Err(what) if is_here => return Err(self.tensor_error(name, &what)),
                // Rules that need the elements say so.
                Err(_) => None,
            }
        } else {
            None
        };
        let name: Arc<str> = name.into();
        self.tensors.insert(
            name.clone(),
            SourceTensor::State { ty: tensor.ty(), known, candidate, statistic: uses.statistic },
        );
        self.weights.insert(name, tensor);
        Ok(())
    }

    fn nodes(&mut self, nodes: &[FlatNode<'m>]) -> Result<Vec<SourceNode>, ImportError> {
        let mut out = Vec::with_capacity(nodes.len());
        for n in nodes {
            let refuse = |kind| ImportError::node(&self.model.source, &n.name, &n.op(), kind);
            if n.domain.is_empty() && n.op_type == "Constant" {
                if let Some(o) = n.outputs.first().filter(|o| !o.is_empty()) {
                    self.tensor(o, constant_node(self.model, n), false)?;
                }
                continue;
            }
            if n.opset == 0 && n.domain.is_empty() && self.model.proto.ir_version >= 3 {
                let what = "the model does not say which opset it uses".to_owned();
                return Err(refuse(ImportErrorKind::Model(what)));
            }
            let attrs = attrs::attributes(self.model, n).map_err(|e| refuse(ImportErrorKind::Model(e)))?;
            let uses = |o: &str| self.uses.get(o).copied().unwrap_or_default();
            let main = n.outputs.first().map(|o| uses(o)).unwrap_or_default();
            let made = SourceNode {
                name: n.name.as_str().into(),
                domain: n.domain.into(),
                op_type: n.op_type.into(),
                opset: n.opset,
                attrs,
                bodies: Vec::new(),
                inputs: n.inputs.iter().map(|i| i.as_str().into()).collect(),
                outputs: n.outputs.iter().map(|o| o.as_str().into()).collect(),
                used: n.outputs.iter().map(|o| !o.is_empty() && uses(o).count > 0).collect(),
                makes_weight: main.strong || main.statistic,
            };
            if self.is_filled(&made) {
                continue;
            }
            let mut bodies = Vec::new();
            for (name, body) in &n.bodies {
                bodies.push(((*name).into(), self.body(body)?));
            }
            out.push(SourceNode { bodies, ..made });
        }
        Ok(out)
    }

    fn body(&mut self, body: &FlatBody<'m>) -> Result<Body, ImportError> {
        self.weights.note_places(body);
        for (name, t) in &body.initializers {
            let read = tensor::tensor(t, &self.model.cuts, self.model.source.folder());
            self.tensor(name, read, true)?;
        }
        Ok(Body {
            inputs: body.inputs.iter().map(|i| i.as_str().into()).collect(),
            nodes: self.nodes(&body.nodes)?,
            outputs: body.outputs.iter().map(|(o, _)| o.as_str().into()).collect(),
            output_types: body.outputs.iter().map(|(_, info)| inputs::value_type(info)).collect(),
        })
    }

    /// Makes a state of what a ConstantOfShape in a parameter position makes, where its extents are a constant of the file.
    fn is_filled(&mut self, node: &SourceNode) -> bool {
        let ([shape], Some(output), true) = (node.inputs.as_slice(), node.outputs.first(), node.is_fill())
        else {
            return false;
        };
        let Some(SourceTensor::Constant(extents)) = self.tensors.get(shape) else { return false };
        // What is too large is refused at the node's turn.
        let Ok(Some((ty, element))) = trace::filled(node, extents) else { return false };
        self.weights.insert(output.clone(), Tensor::filled(&ty, element));
        let statistic = self.uses.get(&**output).is_some_and(|u| u.statistic);
        self.tensors
            .insert(output.clone(), SourceTensor::State { ty, known: None, candidate: true, statistic });
        true
    }
}

/// The tensor of a Constant node.
pub fn constant_node(model: &Model, node: &FlatNode<'_>) -> Result<Tensor, String> {
    let literal = |l: Literal| Tensor {
        dtype: l.dtype(),
        shape: l.shape().to_vec(),
        source: Elements::Literal(l),
        narrow: None,
    };
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
