//! A program before it is planned, as an ONNX model.
//!
//! Each node becomes the standard operator that it is, or a function of [`DOMAIN`] with the body that stands beside the operator
//! ([`ops::export`]). State that the step changes is an input whose initializer holds what it starts with; its next version is the output
//! `NAME.next`. So any ONNX runtime can run a training step, again and again, and says whether ours is right.

use super::{edit::Aside, proto};
use crate::import::{WeightError, Weights};
use graph::{Graph, Init, Literal, State, TensorType, ValueDef, ValueId, quote_name};
use onnx_protobuf as pb;
use ops::{
    Signature,
    export::{Body, OPSET, body},
};
use protobuf::Message;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

/// The domain of our own operators.
pub const DOMAIN: &str = "dtrc";
/// Bytes of state from which on elements lie in a file of their own.
pub const INLINE_LIMIT: u64 = 1 << 30;
/// Tensors of fewer bytes stay in the model in any case.
const MOVE_BYTES: u64 = 1 << 10;
/// The first format version with functions and 16-bit floats in all operators of [`OPSET`].
const IR_VERSION: i64 = 10;

/// Why a program is not written as ONNX.
#[derive(Debug, thiserror::Error)]
pub enum EmitOnnxError {
    /// An operator has no definition in standard operators, or none for these types.
    #[error("node {} ({op}): {error}", quote_name(node))]
    Node {
        /// The node.
        node: String,
        /// Its operator.
        op: String,
        /// Why.
        error: ops::OpError,
    },
    /// A weight cannot be read.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// A file cannot be written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmittedOnnx {
    /// Files, the model first.
    pub files: Vec<PathBuf>,
    /// Nodes of standard operators.
    pub standard: usize,
    /// Functions that the other nodes call.
    pub functions: usize,
    /// States without elements, because the file that holds them is absent: inputs that must be given.
    pub without_elements: usize,
}

/// Writes a program to `path`; states of more than `inline_limit` bytes together go to `PATH.weights`. `others` are the other programs of
/// the same step: what one of them changes is an input here, too, although this one may only read it.
pub fn emit_onnx(
    graph: &Graph,
    others: &[&Graph],
    weights: &Weights,
    path: &Path,
    inline_limit: u64,
) -> Result<EmittedOnnx, EmitOnnxError> {
    let fail = |path: &Path| {
        let path = path.to_owned();
        move |error| EmitOnnxError::Io { path, error }
    };
    let mut w = Writer::new(graph, others);
    w.interface();
    let bytes: u64 = graph.states.iter().filter_map(|s| graph.ty(s.input).bytes()).sum();
    let mut external = None;
    let mut files = vec![path.to_owned()];
    if bytes > inline_limit {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".weights");
        let beside = path.with_file_name(&name);
        let (aside, file) = Aside::create(&beside).map_err(fail(&beside))?;
        external = Some(External {
            name: name.to_string_lossy().into_owned(),
            path: beside.clone(),
            aside,
            file: BufWriter::new(file),
            at: 0,
        });
        files.push(beside);
    }
    let without_elements = w.states(weights, &mut external)?;
    for n in 0..graph.nodes.len() {
        w.node(n)?;
    }
    w.results();
    let functions = w.functions.len();
    let standard = w.model.graph.node.iter().filter(|n| n.domain.is_empty()).count();
    let model = w.finish();
    if let Some(e) = external {
        let place = || e.file.into_inner()?.sync_all().and_then(|()| e.aside.place());
        place().map_err(fail(&e.path))?;
    }
    let write = || -> io::Result<()> {
        let (aside, file) = Aside::create(path)?;
        let mut out = Holding { out: BufWriter::new(file), error: None };
        model.write_to_writer(&mut out).map_err(io::Error::other)?;
        let Holding { out, error } = out;
        error.map_or(Ok(()), Err)?;
        out.into_inner()?.sync_all()?;
        aside.place()
    };
    write().map_err(fail(path))?;
    Ok(EmittedOnnx { files, standard, functions, without_elements })
}

/// A writer that never fails, and holds the first error: protobuf's stream panics if it cannot write what is left when it is dropped.
struct Holding<W> {
    out: W,
    error: Option<io::Error>,
}

impl<W: Write> Holding<W> {
    fn hold(&mut self, result: io::Result<()>) {
        if let Err(e) = result {
            self.error.get_or_insert(e);
        }
    }
}

impl<W: Write> Write for Holding<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.error.is_none() {
            let result = self.out.write_all(bytes);
            self.hold(result);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.error.is_none() {
            let result = self.out.flush();
            self.hold(result);
        }
        Ok(())
    }
}

/// The file of large tensors.
struct External {
    name: String,
    path: PathBuf,
    aside: Aside,
    file: BufWriter<File>,
    at: u64,
}

struct Writer<'a> {
    graph: &'a Graph,
    model: pb::ModelProto,
    /// Name of each value in the file.
    names: Vec<String>,
    taken: BTreeSet<String>,
    /// Whether a node, an output or a state reads a value.
    used: Vec<bool>,
    /// Names of the states that the step changes.
    moving: BTreeSet<&'a str>,
    /// Initializers by their elements.
    constants: BTreeMap<Vec<u8>, String>,
    /// Names of functions by operator and body.
    functions: BTreeMap<(String, Vec<u8>), String>,
    /// Values that get a second name.
    copies: Vec<(ValueId, String)>,
}

impl<'a> Writer<'a> {
    fn new(graph: &'a Graph, others: &[&'a Graph]) -> Writer<'a> {
        let names: Vec<String> = graph.values.iter().map(|v| v.name.to_string()).collect();
        let taken = names.iter().cloned().collect();
        let mut used = vec![false; graph.values.len()];
        let read = graph.nodes.iter().flat_map(|n| n.inputs.iter().flatten());
        let ends = graph.outputs.iter().chain(graph.states.iter().filter_map(|s| s.output.as_ref()));
        read.chain(ends).for_each(|v| used[v.index()] = true);
        let programs = [graph].into_iter().chain(others.iter().copied());
        let moving =
            programs.flat_map(|g| &g.states).filter(|s| s.output.is_some()).map(|s| &*s.name).collect();
        let mut model = pb::ModelProto { ir_version: IR_VERSION, ..Default::default() };
        model.producer_name = "dtrc".to_owned();
        model.producer_version = env!("CARGO_PKG_VERSION").to_owned();
        model.graph.mut_or_insert_default().name = "step".to_owned();
        Writer {
            graph,
            model,
            names,
            taken,
            used,
            moving,
            constants: BTreeMap::new(),
            functions: BTreeMap::new(),
            copies: Vec::new(),
        }
    }

    fn unique(&mut self, hint: &str) -> String {
        let mut name = hint.to_owned();
        let mut n = 1;
        while !self.taken.insert(name.clone()) {
            n += 1;
            name = format!("{hint}.{n}");
        }
        name
    }

    /// Names of outputs: results under their own names, next versions of states under the states'.
    fn interface(&mut self) {
        let g = self.graph;
        let mut renamed = BTreeSet::new();
        let mut outputs = Vec::new();
        let next = |s: &State| s.output.map(|v| (v, Some(format!("{}.next", s.name))));
        let all: Vec<(ValueId, Option<String>)> =
            g.outputs.iter().map(|v| (*v, None)).chain(g.states.iter().filter_map(next)).collect();
        for (v, hint) in all {
            let made = matches!(g.value(v).def, ValueDef::Node { .. });
            if !made || !renamed.insert(v) {
                let name = self.unique(&hint.unwrap_or_else(|| format!("{}.out", g.value(v).name)));
                self.copies.push((v, name.clone()));
                outputs.push((name, v));
                continue;
            }
            if let Some(hint) = hint {
                self.names[v.index()] = self.unique(&hint);
            }
            outputs.push((self.names[v.index()].clone(), v));
        }
        for i in &g.inputs {
            let info = proto::value_info(&self.names[i.value.index()], g.ty(i.value));
            self.model.graph.mut_or_insert_default().input.push(info);
        }
        for (name, v) in outputs {
            let info = proto::value_info(&name, g.ty(v));
            self.model.graph.mut_or_insert_default().output.push(info);
        }
    }

    /// States as initializers, those that the step changes as inputs, too. Returns how many have no elements.
    fn states(&mut self, weights: &Weights, external: &mut Option<External>) -> Result<usize, EmitOnnxError> {
        let mut absent = 0;
        for s in &self.graph.states {
            let ty = self.graph.ty(s.input);
            let name = self.names[s.input.index()].clone();
            let tensor = initializer(s, ty, &name, weights, external)?;
            let graph = self.model.graph.mut_or_insert_default();
            if self.moving.contains(&*s.name) || tensor.is_none() {
                graph.input.push(proto::value_info(&name, ty));
            }
            match tensor {
                Some(t) => graph.initializer.push(t),
                None => absent += 1,
            }
        }
        for v in &self.graph.values {
            if let ValueDef::Constant(l) = &v.def {
                self.model.graph.mut_or_insert_default().initializer.push(proto::tensor(&v.name, l));
            }
        }
        Ok(absent)
    }

    fn constant(&mut self, l: &Literal) -> String {
        let key = proto::tensor("", l).write_to_bytes().unwrap_or_default();
        if let Some(name) = self.constants.get(&key) {
            return name.clone();
        }
        let name = self.unique(&format!("constant.{}", self.constants.len()));
        self.model.graph.mut_or_insert_default().initializer.push(proto::tensor(&name, l));
        self.constants.insert(key, name.clone());
        name
    }

    fn node(&mut self, n: usize) -> Result<(), EmitOnnxError> {
        let node = &self.graph.nodes[n];
        let fail =
            |error| EmitOnnxError::Node { node: node.name.to_string(), op: node.op.to_string(), error };
        let def = ops::find(&node.op).ok_or_else(|| fail(ops::OpError::unsupported("unknown operator")))?;
        let used: Vec<bool> = node.outputs.iter().map(|v| self.used[v.index()]).collect();
        let body = body(def, &Signature::of(self.graph, node), &used).map_err(fail)?;
        let input =
            |i: u32| node.inputs[i as usize].map(|v| self.names[v.index()].clone()).unwrap_or_default();
        let output =
            |o: Option<usize>| o.map(|o| self.names[node.outputs[o].index()].clone()).unwrap_or_default();
        let mut out = pb::NodeProto { name: node.name.to_string(), ..Default::default() };
        if let [only] = &body.nodes[..] {
            out.op_type = only.op_type.to_owned();
            out.attribute = proto::attributes(&only.attrs);
            out.output = only
                .outputs
                .iter()
                .map(|v| output(body.outputs.iter().position(|o| *o == Some(*v))))
                .collect();
            let own: Vec<Option<String>> =
                only.inputs.iter().map(|v| v.filter(|v| *v < body.inputs).map(input)).collect();
            for (v, own) in only.inputs.iter().zip(own) {
                let constant = v.and_then(|v| body.constants.iter().find(|(id, _)| *id == v));
                let name = match (own, constant) {
                    (Some(name), _) => name,
                    (None, Some((_, l))) => self.constant(l),
                    (None, None) => String::new(),
                };
                out.input.push(name);
            }
        } else {
            let given = (0..body.inputs).filter(|i| node.inputs[*i as usize].is_some());
            out.input = given.map(input).collect();
            out.output = (0..body.outputs.len())
                .filter(|o| body.outputs[*o].is_some())
                .map(|o| output(Some(o)))
                .collect();
            out.domain = DOMAIN.to_owned();
            let present = |i: u32| node.inputs[i as usize].is_some();
            out.op_type = self.function(&node.op, &body, &present);
        }
        proto::trim(&mut out.input);
        proto::trim(&mut out.output);
        self.model.graph.mut_or_insert_default().node.push(out);
        Ok(())
    }

    /// The function with this body, made if there is none yet. Bodies of one operator differ by types and attributes.
    fn function(&mut self, op: &str, body: &Body, present: &dyn Fn(u32) -> bool) -> String {
        let mut f = proto::function(body, present);
        let key = (op.to_owned(), f.write_to_bytes().unwrap_or_default());
        if let Some(name) = self.functions.get(&key) {
            return name.clone();
        }
        let number = self.functions.keys().filter(|(o, _)| o == op).count() + 1;
        let name = if number == 1 { op.to_owned() } else { format!("{op}_{number}") };
        f.name = name.clone();
        f.domain = DOMAIN.to_owned();
        f.opset_import.push(proto::opset("", OPSET));
        self.model.functions.push(f);
        self.functions.insert(key, name.clone());
        name
    }

    /// Outputs that are inputs, or one value under two names.
    fn results(&mut self) {
        for (v, name) in std::mem::take(&mut self.copies) {
            let node = pb::NodeProto {
                op_type: "Identity".to_owned(),
                name: name.clone(),
                input: vec![self.names[v.index()].clone()],
                output: vec![name],
                ..Default::default()
            };
            self.model.graph.mut_or_insert_default().node.push(node);
        }
    }

    fn finish(mut self) -> pb::ModelProto {
        self.model.opset_import = vec![proto::opset("", OPSET), proto::opset(DOMAIN, 1)];
        self.model
    }
}

/// What a state starts with; `None` if the file that holds it is absent.
fn initializer(
    s: &State,
    ty: &TensorType,
    name: &str,
    weights: &Weights,
    external: &mut Option<External>,
) -> Result<Option<pb::TensorProto>, EmitOnnxError> {
    let large = ty.bytes().is_some_and(|b| b >= MOVE_BYTES);
    if let (Some(e), true) = (external.as_mut(), large) {
        let (path, begin) = (e.path.clone(), e.at);
        let fail = |error| EmitOnnxError::Io { path: path.clone(), error };
        let mut put = |chunk: &[u8]| {
            e.at += chunk.len() as u64;
            e.file.write_all(chunk)
        };
        match &s.init {
            Init::Literal(l) => put(l.bytes()).map_err(fail)?,
            Init::Zeros => {
                let block = vec![0; 1 << 16];
                let mut left = ty.bytes().unwrap_or(0);
                while left > 0 {
                    let n = left.min(block.len() as u64);
                    put(&block[..n as usize]).map_err(fail)?;
                    left -= n;
                }
            }
            Init::Weight(w) => match weights.read(w, &mut put) {
                Err(e) if e.absent => return Ok(None),
                result => result?,
            },
        }
        return Ok(Some(proto::external_tensor(name, ty, &e.name, begin, e.at - begin)));
    }
    let literal = match &s.init {
        Init::Literal(l) => l.clone(),
        Init::Zeros => {
            let dims = ty.shape.fixed().unwrap_or_default().iter().map(|d| *d as u64).collect();
            Literal::filled(ty.dtype, dims, 0.0).map_err(|e| EmitOnnxError::Node {
                node: s.name.to_string(),
                op: "state".to_owned(),
                error: ops::OpError::invalid(e.to_string()),
            })?
        }
        Init::Weight(w) => match weights.literal(w) {
            Err(e) if e.absent => return Ok(None),
            result => result?,
        },
    };
    Ok(Some(proto::tensor(name, &literal)))
}
