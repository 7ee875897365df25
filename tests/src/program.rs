//! Small programs and models as text, for the file tests.
//!
//! ```text
//! # a remark
//! budget 50%                       a directive: a word and its value
//! input x f32[4, 3]                inputs, labels, params (trained), frozen weights, constants; elements may follow
//! param w f32[3, 2] 1 2 3 4 5 6
//! h, positions = Op(x, w, ~) axis=1 mode="mean" pads=[0, 1]
//! outputs h
//! ```
//! The same text is read as a graph of our operators, whose types are inferred, and as a model of ONNX's ([`Program::model`]).

use graph::{Attr, Attrs, DType, Graph, Init, InputRole, Literal, StateKind, TensorType};
use onnx_protobuf as pb;
use ops::Builder;
use protobuf::Message;
use std::collections::BTreeMap;

/// A named tensor that nothing computes.
pub struct Declared {
    /// `input`, `label`, `param`, `frozen` or `constant`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// Its elements; empty if none are given.
    pub elements: Vec<f64>,
}

/// A node.
pub struct Call {
    /// Operator.
    pub op: String,
    /// Arguments; `None` for `~`.
    pub inputs: Vec<Option<String>>,
    /// Results.
    pub outputs: Vec<String>,
    /// Attributes.
    pub attrs: Attrs,
}

/// A program as text.
#[derive(Default)]
pub struct Program {
    /// Words with a value.
    pub directives: BTreeMap<String, String>,
    /// Inputs, weights and constants in order.
    pub declared: Vec<Declared>,
    /// Nodes in order.
    pub calls: Vec<Call>,
    /// Results.
    pub outputs: Vec<String>,
}

impl Program {
    /// Reads the text.
    ///
    /// # Errors
    ///
    /// The line that is no line of a program.
    pub fn parse(text: &str) -> Result<Program, String> {
        let mut p = Program::default();
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            p.line(line).ok_or_else(|| format!("not a line of a program: {line}"))?;
        }
        Ok(p)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        if let Some((left, right)) = line.split_once(" = ") {
            let (op, rest) = right.split_once('(')?;
            let (args, attrs) = rest.split_once(')')?;
            self.calls.push(Call {
                op: op.to_owned(),
                inputs: names(args).into_iter().map(|a| (a != "~").then_some(a)).collect(),
                outputs: names(left),
                attrs: attributes(attrs)?,
            });
            return Some(());
        }
        let (word, rest) = line.split_once(' ')?;
        match word {
            "outputs" => self.outputs = names(rest),
            "input" | "label" | "param" | "frozen" | "constant" => {
                let (name, rest) = rest.split_once(' ')?;
                let end = rest.find(']')? + 1;
                let elements =
                    rest[end..].split_whitespace().map(|x| x.parse().ok()).collect::<Option<_>>()?;
                let ty = rest[..end].parse().ok()?;
                self.declared.push(Declared { kind: word.to_owned(), name: name.to_owned(), ty, elements });
            }
            _ => drop(self.directives.insert(word.to_owned(), rest.to_owned())),
        }
        Some(())
    }

    /// The graph; trained and frozen weights are states.
    ///
    /// # Errors
    ///
    /// The node whose arguments do not fit, or a name that nothing has.
    pub fn graph(&self) -> Result<Graph, String> {
        let mut graph = Graph::default();
        let mut known = BTreeMap::new();
        for d in &self.declared {
            let (name, ty) = (d.name.clone(), d.ty.clone());
            let state = |kind| {
                let init = if d.elements.is_empty() { Init::Zeros } else { Init::Literal(d.literal()?) };
                Ok::<_, String>((kind, init))
            };
            let v = match d.kind.as_str() {
                "input" => graph.add_input(name, ty, InputRole::Data),
                "label" => graph.add_input(name, ty, InputRole::Label),
                "constant" => graph.add_constant(name, d.literal()?),
                kind => {
                    let kind = if kind == "param" { StateKind::Parameter } else { StateKind::Frozen };
                    let (kind, init) = state(kind)?;
                    graph.add_state(name, ty, kind, init)
                }
            };
            known.insert(d.name.clone(), v);
        }
        let find = |known: &BTreeMap<String, _>, name: &str| {
            known.get(name).copied().ok_or_else(|| format!("nothing is called {name}"))
        };
        let mut b = Builder::new(&mut graph);
        for call in &self.calls {
            b.set_scope(call.outputs[0].clone());
            let inputs = call.inputs.iter().map(|i| i.as_ref().map(|n| find(&known, n)).transpose());
            let inputs = inputs.collect::<Result<Vec<_>, String>>()?;
            let made = b.emit(&call.op, call.attrs.clone(), &inputs);
            let made = made.map_err(|e| format!("{} = {}: {e}", call.outputs.join(", "), call.op))?;
            for (name, v) in call.outputs.iter().zip(made) {
                b.rename(v, name);
                known.insert(name.clone(), v);
            }
        }
        let outputs = self.outputs.iter().map(|n| find(&known, n)).collect::<Result<Vec<_>, String>>()?;
        graph.outputs = outputs;
        graph::verify(&graph).map_err(|e| e.to_string())?;
        Ok(graph)
    }

    /// The bytes of an ONNX model with these nodes. Directives: `opset` (17), `domain` of all nodes.
    ///
    /// # Errors
    ///
    /// Elements that do not fit their type.
    pub fn model(&self) -> Result<Vec<u8>, String> {
        let mut model = pb::ModelProto { ir_version: 8, ..Default::default() };
        let version = self.directives.get("opset").map_or(Ok(17), |v| v.parse());
        model.opset_import.push(pb::OperatorSetIdProto {
            version: version.map_err(|_| "opset is no number".to_owned())?,
            ..Default::default()
        });
        let g = model.graph.mut_or_insert_default();
        g.name = "g".to_owned();
        for d in &self.declared {
            if matches!(d.kind.as_str(), "input" | "label") {
                g.input.push(info(&d.name, &d.ty));
                continue;
            }
            let l = d.literal()?;
            g.initializer.push(pb::TensorProto {
                name: d.name.clone(),
                dims: l.shape().iter().map(|n| *n as i64).collect(),
                data_type: ops::export::code(l.dtype()) as i32,
                raw_data: l.bytes().to_vec(),
                ..Default::default()
            });
        }
        for c in &self.calls {
            g.node.push(pb::NodeProto {
                op_type: c.op.clone(),
                domain: self.directives.get("domain").cloned().unwrap_or_default(),
                input: c.inputs.iter().map(|i| i.clone().unwrap_or_default()).collect(),
                output: c.outputs.clone(),
                attribute: compiler::export::attributes(&c.attrs),
                ..Default::default()
            });
        }
        g.output = self
            .outputs
            .iter()
            .map(|o| pb::ValueInfoProto { name: o.clone(), ..Default::default() })
            .collect();
        model.write_to_bytes().map_err(|e| e.to_string())
    }
}

impl Declared {
    /// Its elements; zeros if none are given.
    ///
    /// # Errors
    ///
    /// Another number of elements than the type has.
    pub fn literal(&self) -> Result<Literal, String> {
        let dims = self.ty.shape.fixed().ok_or_else(|| format!("{}: sizes must be known", self.name))?;
        let dims: Vec<u64> = dims.into_iter().map(|d| d as u64).collect();
        let n = dims.iter().product::<u64>() as usize;
        let elements = if self.elements.is_empty() { vec![0.0; n] } else { self.elements.clone() };
        let bytes: Vec<u8> =
            elements.iter().flat_map(|x| Literal::scalar(self.ty.dtype, *x).bytes().to_vec()).collect();
        Literal::new(self.ty.dtype, dims, bytes).map_err(|e| format!("{}: {e}", self.name))
    }
}

fn names(list: &str) -> Vec<String> {
    list.split(',').map(|n| n.trim().to_owned()).filter(|n| !n.is_empty()).collect()
}

/// `name=value` parts; lists stand in brackets, texts in quotes, floats have a point or an exponent.
fn attributes(text: &str) -> Option<Attrs> {
    let mut attrs = Attrs::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (name, value) = rest.split_once('=')?;
        let end = match value.chars().next()? {
            '[' => value.find(']')? + 1,
            '"' => value[1..].find('"')? + 2,
            _ => value.find(' ').unwrap_or(value.len()),
        };
        attrs.0.insert(name.to_owned(), value_of(&value[..end])?);
        rest = value[end..].trim_start();
    }
    Some(attrs)
}

fn value_of(text: &str) -> Option<Attr> {
    if let Some(list) = text.strip_prefix('[') {
        let items = names(list.strip_suffix(']')?);
        let ints: Option<Vec<i64>> = items.iter().map(|i| i.parse().ok()).collect();
        return match ints {
            Some(ints) => Some(Attr::Ints(ints)),
            None => Some(Attr::Floats(items.iter().map(|i| i.parse().ok()).collect::<Option<_>>()?)),
        };
    }
    if let Some(quoted) = text.strip_prefix('"') {
        return Some(Attr::Str(quoted.strip_suffix('"')?.to_owned()));
    }
    if let Some(d) = DType::from_name(text) {
        return Some(Attr::DType(d));
    }
    text.parse().map(Attr::Int).or_else(|_| text.parse().map(Attr::Float)).ok()
}

fn info(name: &str, ty: &TensorType) -> pb::ValueInfoProto {
    use pb::tensor_shape_proto::{Dimension, dimension};
    let elem_type = ops::export::code(ty.dtype) as i32;
    let mut tensor = pb::type_proto::Tensor { elem_type, ..Default::default() };
    let shape = tensor.shape.mut_or_insert_default();
    for d in &ty.shape.0 {
        let value = match d.as_const() {
            Some(n) => dimension::Value::DimValue(n),
            None => dimension::Value::DimParam(d.to_string()),
        };
        shape.dim.push(Dimension { value: Some(value), ..Default::default() });
    }
    let mut info = pb::ValueInfoProto { name: name.to_owned(), ..Default::default() };
    info.type_.mut_or_insert_default().value = Some(pb::type_proto::Value::TensorType(tensor));
    info
}
