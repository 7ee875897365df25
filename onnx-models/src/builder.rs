//! Puts nodes and seeded weights together into a model.

use onnx_protobuf as pb;
use pb::{
    ModelProto,
    attribute_proto::AttributeType,
    tensor_proto::DataType,
    tensor_shape_proto::{Dimension, dimension},
    type_proto,
};
use protobuf::Enum;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What all models have in common.
#[derive(Clone, Copy, Debug)]
pub struct Common {
    /// Extent of the first axis of every input.
    pub batch: u32,
    /// Leave the batch open under the name `batch`.
    pub dynamic: bool,
    /// Put the loss inside: an input `target`, and `loss` as the only output.
    pub loss: bool,
    /// Seed of the weights.
    pub seed: u64,
}

/// An attribute's value.
pub(crate) enum Value<'a> {
    Int(i64),
    Ints(&'a [i64]),
    Float(f32),
    Text(&'a str),
    Graph(Box<pb::GraphProto>),
}

/// A model under construction.
pub(crate) struct Builder {
    common: Common,
    graph: pb::GraphProto,
    producer: String,
}

impl Builder {
    pub(crate) fn new(name: &str, common: &Common) -> Builder {
        let graph = pb::GraphProto { name: name.to_owned(), ..Default::default() };
        Builder { common: *common, graph, producer: "onnx-models".to_owned() }
    }

    /// An input whose first axis is the batch.
    pub(crate) fn input(&mut self, name: &str, ty: DataType, rest: &[u32]) -> String {
        let info = self.info(name, ty, Some(rest));
        self.graph.input.push(info);
        name.to_owned()
    }

    fn info(&self, name: &str, ty: DataType, rest: Option<&[u32]>) -> pb::ValueInfoProto {
        let mut tensor = type_proto::Tensor { elem_type: ty.value(), ..Default::default() };
        let shape = tensor.shape.mut_or_insert_default();
        if let Some(rest) = rest {
            let batch = match self.common.dynamic {
                true => dimension::Value::DimParam("batch".to_owned()),
                false => dimension::Value::DimValue(i64::from(self.common.batch)),
            };
            let rest = rest.iter().map(|d| dimension::Value::DimValue(i64::from(*d)));
            let dim = |v| Dimension { value: Some(v), ..Default::default() };
            shape.dim.extend(std::iter::once(batch).chain(rest).map(dim));
        }
        let mut info = pb::ValueInfoProto { name: name.to_owned(), ..Default::default() };
        info.type_.mut_or_insert_default().value = Some(type_proto::Value::TensorType(tensor));
        info
    }

    /// A node called `name` whose outputs are `name` and, for further ones, `name_1` and so on.
    pub(crate) fn node(
        &mut self,
        op: &str,
        name: &str,
        inputs: &[&str],
        outputs: usize,
        attrs: &[(&str, Value<'_>)],
    ) -> Vec<String> {
        let names: Vec<String> =
            (0..outputs).map(|i| if i == 0 { name.to_owned() } else { format!("{name}_{i}") }).collect();
        let attribute = |(name, value): &(&str, Value<'_>)| {
            let mut a = pb::AttributeProto { name: (*name).to_owned(), ..Default::default() };
            let kind = match value {
                Value::Int(i) => {
                    a.i = *i;
                    AttributeType::INT
                }
                Value::Ints(v) => {
                    a.ints = v.to_vec();
                    AttributeType::INTS
                }
                Value::Float(f) => {
                    a.f = *f;
                    AttributeType::FLOAT
                }
                Value::Text(s) => {
                    a.s = s.as_bytes().to_vec();
                    AttributeType::STRING
                }
                Value::Graph(g) => {
                    a.g = Some((**g).clone()).into();
                    AttributeType::GRAPH
                }
            };
            a.type_ = kind.into();
            a
        };
        self.graph.node.push(pb::NodeProto {
            op_type: op.to_owned(),
            name: format!("/{name}"),
            input: inputs.iter().map(|s| (*s).to_owned()).collect(),
            output: names.clone(),
            attribute: attrs.iter().map(attribute).collect(),
            ..Default::default()
        });
        names
    }

    /// A node with one output and no attributes.
    pub(crate) fn call(&mut self, op: &str, name: &str, inputs: &[&str]) -> String {
        self.with(op, name, inputs, &[])
    }

    /// A node with one output.
    pub(crate) fn with(
        &mut self,
        op: &str,
        name: &str,
        inputs: &[&str],
        attrs: &[(&str, Value<'_>)],
    ) -> String {
        self.node(op, name, inputs, 1, attrs).swap_remove(0)
    }

    /// A float initializer, uniform in `[-bound, bound]`. Its elements depend on its name and the seed only.
    pub(crate) fn weight(&mut self, name: &str, dims: &[u32], bound: f32) -> String {
        // FNV-1a of the name, so that adding a tensor changes no other.
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3));
        let mut rng = ChaCha8Rng::seed_from_u64(hash ^ self.common.seed);
        let n: usize = dims.iter().map(|d| *d as usize).product();
        let raw = (0..n).flat_map(|_| ((rng.random::<f32>() * 2.0 - 1.0) * bound).to_le_bytes()).collect();
        self.tensor(name, DataType::FLOAT, dims, raw)
    }

    /// A float initializer with equal elements.
    pub(crate) fn filled(&mut self, name: &str, dims: &[u32], value: f32) -> String {
        let n: usize = dims.iter().map(|d| *d as usize).product();
        self.tensor(name, DataType::FLOAT, dims, value.to_le_bytes().repeat(n))
    }

    /// An initializer with 64-bit integers along one axis.
    pub(crate) fn ints(&mut self, name: &str, values: &[i64]) -> String {
        let raw = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.tensor(name, DataType::INT64, &[values.len() as u32], raw)
    }

    /// An initializer from its bytes.
    pub(crate) fn tensor(&mut self, name: &str, ty: DataType, dims: &[u32], raw: Vec<u8>) -> String {
        self.graph.initializer.push(pb::TensorProto {
            name: name.to_owned(),
            data_type: ty.value(),
            dims: dims.iter().map(|d| i64::from(*d)).collect(),
            raw_data: raw,
            ..Default::default()
        });
        name.to_owned()
    }

    /// A square convolution with padding that keeps the extents but for the stride.
    pub(crate) fn conv(
        &mut self,
        name: &str,
        x: &str,
        c: [u32; 2],
        kernel: u32,
        stride: u32,
        bias: bool,
    ) -> String {
        let bound = (1.0 / (c[0] * kernel * kernel) as f32).sqrt();
        let w = self.weight(&format!("{name}.weight"), &[c[1], c[0], kernel, kernel], bound * 3f32.sqrt());
        let b = bias.then(|| self.weight(&format!("{name}.bias"), &[c[1]], bound));
        let inputs: Vec<&str> = [x, &w].into_iter().chain(b.as_deref()).collect();
        let (k, s, p) = (i64::from(kernel), i64::from(stride), i64::from(kernel / 2));
        let attrs = [
            ("dilations", Value::Ints(&[1, 1])),
            ("group", Value::Int(1)),
            ("kernel_shape", Value::Ints(&[k, k])),
            ("pads", Value::Ints(&[p, p, p, p])),
            ("strides", Value::Ints(&[s, s])),
        ];
        self.with("Conv", name, &inputs, &attrs)
    }

    /// BatchNormalization in training mode.
    pub(crate) fn batch_norm(&mut self, name: &str, x: &str, channels: u32) -> String {
        let scale = self.filled(&format!("{name}.weight"), &[channels], 1.0);
        let bias = self.filled(&format!("{name}.bias"), &[channels], 0.0);
        let mean = self.filled(&format!("{name}.running_mean"), &[channels], 0.0);
        let var = self.filled(&format!("{name}.running_var"), &[channels], 1.0);
        let attrs = [
            ("epsilon", Value::Float(1e-5)),
            ("momentum", Value::Float(0.9)),
            ("training_mode", Value::Int(1)),
        ];
        self.node("BatchNormalization", name, &[x, &scale, &bias, &mean, &var], 3, &attrs).swap_remove(0)
    }

    /// A dense layer on a matrix.
    pub(crate) fn gemm(&mut self, name: &str, x: &str, from: u32, to: u32) -> String {
        let bound = (1.0 / from as f32).sqrt();
        let w = self.weight(&format!("{name}.weight"), &[to, from], bound);
        let b = self.weight(&format!("{name}.bias"), &[to], bound);
        self.with("Gemm", name, &[x, &w, &b], &[("transB", Value::Int(1))])
    }

    /// Begins a body of control flow; its nodes may read what is made outside.
    pub(crate) fn body(&self, name: &str) -> Builder {
        Builder::new(name, &self.common)
    }

    /// A tensor that a loop carries, of any shape.
    pub(crate) fn carried(&mut self, name: &str, ty: DataType) -> String {
        self.graph.input.push(any_shape(name, ty));
        name.to_owned()
    }

    /// The first inputs of a Loop's body: the number of the iteration and whether to go on, two scalars.
    pub(crate) fn iteration(&mut self) -> [String; 2] {
        [self.fixed_input("i", DataType::INT64, &[]), self.fixed_input("go", DataType::BOOL, &[])]
    }

    /// An input of a body that is a sequence of float tensors.
    pub(crate) fn carried_sequence(&mut self, name: &str) -> String {
        self.graph.input.push(sequence(name));
        name.to_owned()
    }

    /// Ends a body with these outputs: (name, whether it is a sequence).
    pub(crate) fn end(mut self, outputs: &[(&str, DataType, bool)]) -> Box<pb::GraphProto> {
        for (name, ty, is_sequence) in outputs {
            self.graph.output.push(if *is_sequence { sequence(name) } else { any_shape(name, *ty) });
        }
        Box::new(self.graph)
    }

    /// An input of a fixed shape, without the batch.
    pub(crate) fn fixed_input(&mut self, name: &str, ty: DataType, dims: &[u32]) -> String {
        let mut info = any_shape(name, ty);
        if let Some(type_proto::Value::TensorType(t)) = &mut info.type_.mut_or_insert_default().value {
            let dim = |d: &u32| Dimension {
                value: Some(dimension::Value::DimValue(i64::from(*d))),
                ..Default::default()
            };
            t.shape.mut_or_insert_default().dim.extend(dims.iter().map(dim));
        }
        self.graph.input.push(info);
        name.to_owned()
    }

    /// Ends the model: scores `y`, or their mean cross entropy with integer classes of shape `[batch, target..]`.
    pub(crate) fn finish(mut self, scores: &str, target: &[u32]) -> ModelProto {
        if self.common.loss {
            let classes = self.input("target", DataType::INT64, target);
            self.finish_loss(scores, &classes)
        } else {
            let y = self.call("Identity", "y", &[scores]);
            self.output(&y)
        }
    }

    /// Ends the model with the mean cross entropy of scores and classes.
    pub(crate) fn finish_loss(mut self, scores: &str, classes: &str) -> ModelProto {
        let attrs = [("reduction", Value::Text("mean"))];
        let loss = self.with("SoftmaxCrossEntropyLoss", "loss", &[scores, classes], &attrs);
        self.output(&loss)
    }

    /// Ends the model with this output.
    pub(crate) fn output(mut self, name: &str) -> ModelProto {
        let mut info = self.info(name, DataType::FLOAT, None);
        if !self.common.loss
            && let Some(type_proto::Value::TensorType(t)) = &mut info.type_.mut_or_insert_default().value
        {
            // The loss is a scalar; of other outputs the shape is left to inference.
            t.shape = None.into();
        }
        self.graph.output.push(info);
        let opset = pb::OperatorSetIdProto { version: 17, ..Default::default() };
        ModelProto {
            ir_version: 8,
            producer_name: self.producer,
            opset_import: vec![opset],
            graph: Some(self.graph).into(),
            ..Default::default()
        }
    }
}

fn any_shape(name: &str, ty: DataType) -> pb::ValueInfoProto {
    let tensor = type_proto::Tensor { elem_type: ty.value(), ..Default::default() };
    let mut info = pb::ValueInfoProto { name: name.to_owned(), ..Default::default() };
    info.type_.mut_or_insert_default().value = Some(type_proto::Value::TensorType(tensor));
    info
}

fn sequence(name: &str) -> pb::ValueInfoProto {
    let tensor = type_proto::Tensor { elem_type: DataType::FLOAT.value(), ..Default::default() };
    let element = pb::TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..Default::default() };
    let all = type_proto::Sequence { elem_type: Some(element).into(), ..Default::default() };
    let mut info = pb::ValueInfoProto { name: name.to_owned(), ..Default::default() };
    info.type_.mut_or_insert_default().value = Some(type_proto::Value::SequenceType(all));
    info
}
