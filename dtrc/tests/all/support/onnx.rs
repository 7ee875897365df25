//! Small models put together node by node, with bodies of control flow.

use onnx_protobuf as pb;
use pb::{
    AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto,
    attribute_proto::AttributeType,
    tensor_proto::DataType,
    tensor_shape_proto::{Dimension, dimension},
    type_proto,
};
use protobuf::Enum;
use std::path::Path;

/// An operator; names are separated by blanks, and `_` is one that is left out.
pub fn node(op: &str, inputs: &str, outputs: &str, attribute: Vec<AttributeProto>) -> NodeProto {
    let names = |s: &str| s.split_whitespace().map(|n| n.trim_matches('_').to_owned()).collect();
    NodeProto {
        op_type: op.to_owned(),
        input: names(inputs),
        output: names(outputs),
        attribute,
        ..Default::default()
    }
}

pub fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { name: name.to_owned(), i, type_: AttributeType::INT.into(), ..Default::default() }
}

pub fn ints(name: &str, v: &[i64]) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        ints: v.to_vec(),
        type_: AttributeType::INTS.into(),
        ..Default::default()
    }
}

pub fn body(name: &str, graph: GraphProto) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        g: Some(graph).into(),
        type_: AttributeType::GRAPH.into(),
        ..Default::default()
    }
}

/// A float initializer.
pub fn weight(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    let raw = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    tensor(name, DataType::FLOAT, dims, raw)
}

/// An initializer of integers.
pub fn numbers(name: &str, dims: &[i64], values: &[i64]) -> TensorProto {
    let raw = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    tensor(name, DataType::INT64, dims, raw)
}

fn tensor(name: &str, ty: DataType, dims: &[i64], raw_data: Vec<u8>) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        data_type: ty.value(),
        dims: dims.to_vec(),
        raw_data,
        ..Default::default()
    }
}

/// A value of a graph: `x`, a float of unknown shape; `x[2,N]`; `i:int64[]`, `c:bool[]`; `s:sequence`, one of floats.
pub fn value(text: &str) -> ValueInfoProto {
    let (text, dims) = match text.trim_end_matches(']').split_once('[') {
        Some((text, dims)) => (text, Some(dims)),
        None => (text, None),
    };
    let (name, ty) = text.split_once(':').unwrap_or((text, "float"));
    let elem = match ty {
        "int64" => DataType::INT64,
        "bool" => DataType::BOOL,
        _ => DataType::FLOAT,
    };
    let mut tensor = type_proto::Tensor { elem_type: elem.value(), ..Default::default() };
    if let Some(dims) = dims {
        let shape = tensor.shape.mut_or_insert_default();
        shape.dim.extend(dims.split(',').filter(|d| !d.is_empty()).map(|d| {
            let value = match d.parse() {
                Ok(n) => dimension::Value::DimValue(n),
                Err(_) => dimension::Value::DimParam(d.to_owned()),
            };
            Dimension { value: Some(value), ..Default::default() }
        }));
    }
    let mut ty_of = type_proto::Value::TensorType(tensor);
    if ty == "sequence" {
        let element = pb::TypeProto { value: Some(ty_of), ..Default::default() };
        ty_of = type_proto::Value::SequenceType(type_proto::Sequence {
            elem_type: Some(element).into(),
            ..Default::default()
        });
    }
    let mut info = ValueInfoProto { name: name.to_owned(), ..Default::default() };
    info.type_.mut_or_insert_default().value = Some(ty_of);
    info
}

/// A graph of values as [`value`] reads them, separated by blanks.
pub fn graph(inputs: &str, node: Vec<NodeProto>, outputs: &str, initializer: Vec<TensorProto>) -> GraphProto {
    let values = |s: &str| s.split_whitespace().map(value).collect();
    GraphProto {
        name: "g".to_owned(),
        input: values(inputs),
        output: values(outputs),
        node,
        initializer,
        ..Default::default()
    }
}

/// Writes a model of this opset.
pub fn write(dir: &Path, name: &str, opset: i64, graph: GraphProto) -> String {
    let model = pb::ModelProto {
        ir_version: 8,
        opset_import: vec![pb::OperatorSetIdProto { version: opset, ..Default::default() }],
        graph: Some(graph).into(),
        ..Default::default()
    };
    let path = dir.join(name);
    std::fs::write(&path, onnx_models::to_bytes(&model).expect("a small model")).expect("a file");
    path.display().to_string()
}
