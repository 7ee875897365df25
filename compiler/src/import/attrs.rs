//! From `AttributeProto` to attributes as import rules read them: floats widened, texts as UTF-8, tensors as literals.

use super::{flatten::FlatNode, model::Model, tensor, weights};
use graph::{Attr, Attrs};
use onnx_protobuf as pb;
use pb::attribute_proto::AttributeType;

/// Largest tensor that may be an attribute, in bytes. (Constants are not read through here.)
const MAX_TENSOR: u64 = 1 << 20;

/// The attributes of a node.
pub fn attributes(model: &Model, node: &FlatNode<'_>) -> Result<Attrs, String> {
    let mut out = Attrs::new();
    for (name, a) in &node.attrs {
        // What an absent value would be: types follow from values.
        if (node.domain, node.op_type, *name) == ("", "Optional", "type") {
            continue;
        }
        let value = attribute(model, a).map_err(|e| format!("attribute {name}: {e}"))?;
        if out.0.insert((*name).to_owned(), value).is_some() {
            return Err(format!("attribute {name} is given twice"));
        }
    }
    Ok(out)
}

fn attribute(model: &Model, a: &pb::AttributeProto) -> Result<Attr, String> {
    if !a.ref_attr_name.is_empty() {
        return Err(format!("it refers to attribute {:?} of a function, but is in none", a.ref_attr_name));
    }
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).map_err(|_| "the text is not UTF-8".to_owned());
    Ok(match kind(a)? {
        AttributeType::FLOAT => Attr::Float(f64::from(a.f)),
        AttributeType::INT => Attr::Int(a.i),
        AttributeType::STRING => Attr::Str(text(&a.s)?),
        AttributeType::FLOATS => Attr::Floats(a.floats.iter().map(|f| f64::from(*f)).collect()),
        AttributeType::INTS => Attr::Ints(a.ints.clone()),
        AttributeType::STRINGS => Attr::Strs(a.strings.iter().map(|s| text(s)).collect::<Result<_, _>>()?),
        AttributeType::TENSOR => {
            let t = a.t.as_ref().ok_or("it has no tensor")?;
            let t = tensor::tensor(t, &model.cuts, model.source.folder())?;
            if t.bytes() > MAX_TENSOR {
                return Err(format!("a tensor of {} bytes is too large here", t.bytes()));
            }
            Attr::Tensor(weights::literal(&model.source, &t)?)
        }
        other => return Err(format!("type {other:?} is not supported")),
    })
}

/// The type of an attribute; files of IR version 1 do not say it.
pub fn kind(a: &pb::AttributeProto) -> Result<AttributeType, String> {
    match a.type_.enum_value() {
        Ok(AttributeType::UNDEFINED) => {}
        Ok(k) => return Ok(k),
        Err(n) => return Err(format!("type {n} is unknown")),
    }
    Ok(if a.t.is_some() {
        AttributeType::TENSOR
    } else if a.g.is_some() {
        AttributeType::GRAPH
    } else if !a.ints.is_empty() {
        AttributeType::INTS
    } else if !a.floats.is_empty() {
        AttributeType::FLOATS
    } else if !a.strings.is_empty() {
        AttributeType::STRINGS
    } else if !a.s.is_empty() {
        AttributeType::STRING
    } else if a.f != 0.0 {
        AttributeType::FLOAT
    } else {
        AttributeType::INT
    })
}
