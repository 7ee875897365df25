//! Models with bodies (`If`, `Loop`, `Scan`) as text: [`crate::program`] has no subgraphs.
//!
//! ```text
//! h, y = Scan(i, x) num_scan_inputs=1 body=@step
//! ```
//! A body is written before it is used and given by name. Numbers are integer attributes, `[1,0]` lists of them, `0.5` floats.

use onnx_protobuf as pb;
use pb::{
    AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto,
    attribute_proto::AttributeType,
    tensor_shape_proto::{Dimension, dimension},
    type_proto,
};

/// A graph: `s f64[1, 4], t f64[n]`, nodes line by line, `o f64[]`.
///
/// # Panics
///
/// If the text has another form.
pub fn graph(inputs: &str, nodes: &str, bodies: &[(&str, &GraphProto)], outputs: &str) -> GraphProto {
    let lines = nodes.lines().map(str::trim).filter(|l| !l.is_empty());
    GraphProto {
        name: "g".to_owned(),
        input: values(inputs),
        output: values(outputs),
        node: lines.map(|l| node(l, bodies)).collect(),
        ..GraphProto::default()
    }
}

/// A model of a graph with initializers.
pub fn model(mut graph: GraphProto, initializers: Vec<TensorProto>) -> ModelProto {
    graph.initializer = initializers;
    let opset = pb::OperatorSetIdProto { version: 18, ..Default::default() };
    ModelProto {
        ir_version: 9,
        opset_import: vec![opset],
        graph: Some(graph).into(),
        ..ModelProto::default()
    }
}

/// Doubles between -1 and 1.
pub fn weight(name: &str, shape: &[i64], seed: u64) -> TensorProto {
    let n = shape.iter().product::<i64>() as u64;
    let bytes = crate::written::floats(n, seed);
    let doubles = bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
    tensor(name, 11, shape, doubles.flat_map(f64::to_le_bytes).collect())
}

/// 64-bit integers.
pub fn ints(name: &str, shape: &[i64], values: &[i64]) -> TensorProto {
    tensor(name, 7, shape, crate::written::ints(values))
}

/// A tensor of ONNX's element type `ty`.
pub fn tensor(name: &str, ty: i32, shape: &[i64], bytes: Vec<u8>) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        data_type: ty,
        dims: shape.to_vec(),
        raw_data: bytes,
        ..TensorProto::default()
    }
}

fn values(text: &str) -> Vec<ValueInfoProto> {
    let whole = text.split(']').map(|v| v.trim_start_matches([',', ' '])).filter(|v| !v.is_empty());
    whole
        .map(|v| {
            let (name, ty) = v.split_once(' ').expect("a type");
            let (ty, shape) = ty.split_once('[').expect("a shape");
            let elem_type = match ty {
                "f32" => 1,
                "f64" => 11,
                "i64" => 7,
                "bool" => 9,
                other => panic!("element type {other}"),
            };
            let mut tensor = type_proto::Tensor { elem_type, ..Default::default() };
            let shape = shape.split(',').map(str::trim).filter(|d| !d.is_empty());
            tensor.shape.mut_or_insert_default().dim = shape
                .map(|d| {
                    let value = match d.parse() {
                        Ok(n) => dimension::Value::DimValue(n),
                        Err(_) => dimension::Value::DimParam(d.to_owned()),
                    };
                    Dimension { value: Some(value), ..Default::default() }
                })
                .collect();
            let mut info = ValueInfoProto { name: name.to_owned(), ..Default::default() };
            info.type_.mut_or_insert_default().value = Some(type_proto::Value::TensorType(tensor));
            info
        })
        .collect()
}

fn node(line: &str, bodies: &[(&str, &GraphProto)]) -> NodeProto {
    let (outputs, call) = line.split_once(" = ").expect("outputs");
    let (op, rest) = call.split_once('(').expect("arguments");
    let (inputs, attributes) = rest.split_once(')').expect("arguments");
    let names = |text: &str| text.split(',').map(|n| n.trim().to_owned()).filter(|n| !n.is_empty()).collect();
    let output: Vec<String> = names(outputs);
    NodeProto {
        op_type: op.to_owned(),
        name: output[0].clone(),
        input: names(inputs),
        output,
        attribute: attributes.split_whitespace().map(|a| attribute(a, bodies)).collect(),
        ..NodeProto::default()
    }
}

fn attribute(text: &str, bodies: &[(&str, &GraphProto)]) -> AttributeProto {
    let (name, value) = text.split_once('=').expect("a value");
    let mut a = AttributeProto { name: name.to_owned(), ..Default::default() };
    let kind = if let Some(body) = value.strip_prefix('@') {
        let found = bodies.iter().find(|(n, _)| *n == body).unwrap_or_else(|| panic!("no body {body}"));
        a.g = Some(found.1.clone()).into();
        AttributeType::GRAPH
    } else if let Some(list) = value.strip_prefix('[') {
        a.ints = list.trim_end_matches(']').split(',').map(|n| n.parse().expect("an integer")).collect();
        AttributeType::INTS
    } else if value.contains('.') {
        a.f = value.parse().expect("a number");
        AttributeType::FLOAT
    } else {
        a.i = value.parse().expect("an integer");
        AttributeType::INT
    };
    a.type_ = kind.into();
    a
}
