//! Messages of the ONNX format from our types.

use graph::{Attr, Attrs, Literal, TensorType};
use onnx_protobuf as pb;
use ops::export::{Body, code};
use pb::{
    attribute_proto::AttributeType,
    tensor_proto::DataLocation,
    tensor_shape_proto::{Dimension, dimension},
    type_proto,
};

/// A version of a domain.
pub fn opset(domain: &str, version: i64) -> pb::OperatorSetIdProto {
    pb::OperatorSetIdProto { domain: domain.to_owned(), version, ..Default::default() }
}

/// An input or output of a graph; sizes without a number are named by their expressions.
pub fn value_info(name: &str, ty: &TensorType) -> pb::ValueInfoProto {
    let mut tensor = type_proto::Tensor { elem_type: code(ty.dtype) as i32, ..Default::default() };
    let shape = tensor.shape.mut_or_insert_default();
    for d in &ty.shape.0 {
        let value = match d.as_const() {
            Some(n) => dimension::Value::DimValue(n),
            None => dimension::Value::DimParam(d.to_string()),
        };
        shape.dim.push(Dimension { value: Some(value), ..Default::default() });
    }
    let mut info = pb::ValueInfoProto { name: name.to_owned(), ..Default::default() };
    info.type_.mut_or_insert_default().value = Some(type_proto::Value::TensorType(tensor));
    info
}

/// A tensor with its elements.
pub fn tensor(name: &str, l: &Literal) -> pb::TensorProto {
    pb::TensorProto {
        name: name.to_owned(),
        dims: l.shape().iter().map(|d| *d as i64).collect(),
        data_type: code(l.dtype()) as i32,
        raw_data: l.bytes().to_vec(),
        ..Default::default()
    }
}

/// A tensor whose elements lie in another file.
pub fn external_tensor(name: &str, ty: &TensorType, file: &str, offset: u64, length: u64) -> pb::TensorProto {
    let entry = |key: &str, value: String| pb::StringStringEntryProto {
        key: key.to_owned(),
        value,
        ..Default::default()
    };
    pb::TensorProto {
        name: name.to_owned(),
        dims: ty.shape.fixed().unwrap_or_default().iter().map(|d| *d as i64).collect(),
        data_type: code(ty.dtype) as i32,
        data_location: DataLocation::EXTERNAL.into(),
        external_data: vec![
            entry("location", file.to_owned()),
            entry("offset", offset.to_string()),
            entry("length", length.to_string()),
        ],
        ..Default::default()
    }
}

/// The attributes of a standard node.
pub fn attributes(attrs: &Attrs) -> Vec<pb::AttributeProto> {
    let one = |(name, value): (&String, &Attr)| {
        let mut a = pb::AttributeProto { name: name.clone(), ..Default::default() };
        let kind = match value {
            Attr::Int(i) => {
                a.i = *i;
                AttributeType::INT
            }
            Attr::DType(d) => {
                a.i = code(*d);
                AttributeType::INT
            }
            Attr::Float(x) => {
                a.f = *x as f32;
                AttributeType::FLOAT
            }
            Attr::Str(s) => {
                a.s = s.as_bytes().to_vec();
                AttributeType::STRING
            }
            Attr::Ints(v) => {
                a.ints = v.clone();
                AttributeType::INTS
            }
            Attr::Floats(v) => {
                a.floats = v.iter().map(|x| *x as f32).collect();
                AttributeType::FLOATS
            }
            Attr::Strs(v) => {
                a.strings = v.iter().map(|s| s.as_bytes().to_vec()).collect();
                AttributeType::STRINGS
            }
            Attr::Tensor(l) => {
                a.t = Some(tensor("", l)).into();
                AttributeType::TENSOR
            }
        };
        a.type_ = kind.into();
        a
    };
    attrs.0.iter().map(one).collect()
}

/// Leaves out empty names at the end.
pub fn trim(names: &mut Vec<String>) {
    while names.last().is_some_and(String::is_empty) {
        names.pop();
    }
}

/// A function without a name: inputs are those that are `present`, in order, outputs those that the body makes.
pub fn function(body: &Body, present: &dyn Fn(u32) -> bool) -> pb::FunctionProto {
    let name = |v: u32| if v < body.inputs { format!("in{v}") } else { format!("t{v}") };
    let mut f = pb::FunctionProto {
        input: (0..body.inputs).filter(|i| present(*i)).map(name).collect(),
        output: body.outputs.iter().flatten().map(|v| name(*v)).collect(),
        ..Default::default()
    };
    for (v, l) in &body.constants {
        f.node.push(pb::NodeProto {
            op_type: "Constant".to_owned(),
            output: vec![name(*v)],
            attribute: attributes(&Attrs::new().with("value", l.clone())),
            ..Default::default()
        });
    }
    for n in &body.nodes {
        let mut node = pb::NodeProto {
            op_type: n.op_type.to_owned(),
            input: n.inputs.iter().map(|i| i.map(name).unwrap_or_default()).collect(),
            output: n.outputs.iter().map(|v| name(*v)).collect(),
            attribute: attributes(&n.attrs),
            ..Default::default()
        };
        trim(&mut node.input);
        f.node.push(node);
    }
    f
}
