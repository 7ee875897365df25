//! Graph inputs: their types, named and nameless sizes, and what `--dim` binds.

use super::tensor;
use graph::{Bindings, Dim, Shape, Symbol, TensorType, quote_name};
use onnx_protobuf as pb;
use pb::{tensor_shape_proto::dimension, type_proto};
use std::collections::BTreeSet;

/// The inputs of a model.
#[derive(Debug, Default)]
pub struct Inputs {
    /// Name and type, in the model's order; sizes are still names.
    pub types: Vec<(String, TensorType)>,
    /// Every size without a number.
    pub symbols: BTreeSet<Symbol>,
}

/// `NAME=N` or `INPUT:AXIS=N`, as written after `--dim`.
pub fn parse_binding(text: &str) -> Result<(String, i64), String> {
    let bad = || format!("--dim {text}: write NAME=N or INPUT:AXIS=N, with a positive N");
    let (name, number) = text.rsplit_once('=').ok_or_else(bad)?;
    let number = number.trim().parse::<i64>().ok().filter(|n| *n > 0).ok_or_else(bad)?;
    if name.is_empty() { Err(bad()) } else { Ok((name.to_owned(), number)) }
}

/// Reads the types of the graph inputs among `infos` that `wanted` takes (initializers may be listed too).
pub fn read(infos: &[pb::ValueInfoProto], wanted: &dyn Fn(&str) -> bool) -> Result<Inputs, String> {
    let infos: Vec<_> = infos.iter().filter(|i| wanted(&i.name)).collect();
    // Names for nameless sizes must not be those of others.
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for d in infos.iter().filter_map(|i| shape(i)).flat_map(|s| &s.dim) {
        if let Some(dimension::Value::DimParam(p)) = &d.value {
            names.insert(p);
        }
    }
    let mut out = Inputs::default();
    for info in &infos {
        let name = &info.name;
        let ty = input_type(info, &names, &mut out.symbols)
            .map_err(|e| format!("input {}: {e}", quote_name(name)))?;
        out.types.push((name.clone(), ty));
    }
    Ok(out)
}

fn shape(info: &pb::ValueInfoProto) -> Option<&pb::TensorShapeProto> {
    match info.type_.as_ref()?.value.as_ref()? {
        type_proto::Value::TensorType(t) => t.shape.as_ref(),
        _ => None,
    }
}

/// Whether the file says that a value is a sequence, or one that may be absent.
pub fn is_sequence(info: &pb::ValueInfoProto) -> bool {
    let of = |t: &pb::TypeProto| matches!(t.value, Some(type_proto::Value::SequenceType(_)));
    info.type_.as_ref().is_some_and(|t| match &t.value {
        Some(type_proto::Value::OptionalType(o)) => o.elem_type.as_ref().is_some_and(of),
        _ => of(t),
    })
}

/// What the file says of a value's type: `None` if it says less than the number of axes.
pub fn value_type(info: &pb::ValueInfoProto) -> Option<TensorType> {
    input_type(info, &BTreeSet::new(), &mut BTreeSet::new()).ok()
}

fn input_type(
    info: &pb::ValueInfoProto,
    names: &BTreeSet<&str>,
    symbols: &mut BTreeSet<Symbol>,
) -> Result<TensorType, String> {
    let tensor = match info.type_.as_ref().and_then(|t| t.value.as_ref()) {
        Some(type_proto::Value::TensorType(t)) => t,
        Some(type_proto::Value::SequenceType(_)) => return Err("sequences are not supported".to_owned()),
        Some(type_proto::Value::MapType(_)) => return Err("maps are not supported".to_owned()),
        Some(type_proto::Value::OptionalType(_)) => {
            return Err("optional inputs are not supported".to_owned());
        }
        Some(type_proto::Value::SparseTensorType(_)) => {
            return Err("sparse tensors are not supported".to_owned());
        }
        Some(_) | None => return Err("it has no type".to_owned()),
    };
    let dtype = tensor::dtype(tensor.elem_type)?;
    let shape = tensor.shape.as_ref().ok_or("it has no shape; at least its number of axes must be known")?;
    let mut dims = Vec::with_capacity(shape.dim.len());
    for (axis, d) in shape.dim.iter().enumerate() {
        dims.push(match &d.value {
            Some(dimension::Value::DimValue(n)) if *n >= 0 => Dim::constant(*n),
            Some(dimension::Value::DimParam(p)) if !p.is_empty() && p != "?" => {
                symbols.insert(p.as_str().into());
                Dim::symbol(p)
            }
            _ => {
                let mut name = format!("{}:{axis}", info.name);
                while names.contains(name.as_str()) {
                    name.push('_');
                }
                symbols.insert(name.as_str().into());
                Dim::symbol(&name)
            }
        });
    }
    let mut known = dims.iter().filter_map(|d| d.as_const()).map(|n| n.max(1) as u64);
    known.try_fold(dtype.size(), u64::checked_mul).ok_or("it is too large")?;
    Ok(TensorType { dtype, shape: Shape(dims) })
}

/// What the user's bindings say about the symbols of `inputs`.
pub fn bind(inputs: &Inputs, dims: &[(String, i64)]) -> Result<Bindings, String> {
    let mut out = Bindings::new();
    for (key, n) in dims {
        if *n < 1 {
            return Err(format!("--dim {key}={n}: the size must be positive"));
        }
        let Some(symbol) = target(inputs, key, *n)? else { continue };
        if let Some(other) = out.insert(symbol.clone(), *n)
            && other != *n
        {
            return Err(format!("--dim {key}={n}: size {symbol} is already bound to {other}"));
        }
    }
    Ok(out)
}

/// The symbol that a binding means; `None` if it only states what is known.
fn target(inputs: &Inputs, key: &str, n: i64) -> Result<Option<Symbol>, String> {
    if let Some(s) = inputs.symbols.get(key) {
        return Ok(Some(s.clone()));
    }
    if let Some((name, axis)) = key.rsplit_once(':')
        && let Some((_, ty)) = inputs.types.iter().find(|(i, _)| i == name)
    {
        let dim = axis.parse::<usize>().ok().and_then(|a| ty.shape.0.get(a));
        let Some(dim) = dim else {
            return Err(format!("--dim {key}={n}: input {name} has {} axes, from 0", ty.shape.rank()));
        };
        return match (dim.as_symbol(), dim.as_const()) {
            (Some(s), _) => Ok(Some(s.clone())),
            (None, Some(c)) if c == n => Ok(None),
            _ => Err(format!("--dim {key}={n}: the model says {dim} there")),
        };
    }
    let known: Vec<&str> = inputs.symbols.iter().map(|s| &**s).take(16).collect();
    Err(if known.is_empty() {
        format!("--dim {key}={n}: every size of the model's inputs is a number already")
    } else {
        format!("--dim {key}={n}: the model has no such size; it has {}", known.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, dims: &[Result<i64, &str>]) -> pb::ValueInfoProto {
        let mut tensor = type_proto::Tensor::new();
        tensor.elem_type = 1;
        for d in dims {
            let mut dim = pb::tensor_shape_proto::Dimension::new();
            dim.value = Some(match d {
                Ok(n) => dimension::Value::DimValue(*n),
                Err(p) => dimension::Value::DimParam((*p).to_owned()),
            });
            tensor.shape.mut_or_insert_default().dim.push(dim);
        }
        let mut out = pb::ValueInfoProto::new();
        out.name = name.to_owned();
        out.type_.mut_or_insert_default().value = Some(type_proto::Value::TensorType(tensor));
        out
    }

    #[test]
    fn nameless_sizes_are_distinct() {
        let infos = [info("x", &[Err("?"), Err("?"), Ok(-1), Err(""), Ok(3), Err("n"), Err("x:0")])];
        let inputs = read(&infos, &|_| true).unwrap();
        assert_eq!(inputs.types[0].1.to_string(), r#"f32["x:0_", "x:1", "x:2", "x:3", 3, n, "x:0"]"#);
    }

    #[test]
    fn bindings_say_what_is_wrong() {
        let infos = [info("x", &[Err("batch"), Err("?"), Ok(3)]), info("y", &[Err("batch")])];
        let inputs = read(&infos, &|_| true).unwrap();
        let try_bind = |dims: &[(&str, i64)]| {
            bind(&inputs, &dims.iter().map(|(k, n)| ((*k).to_owned(), *n)).collect::<Vec<_>>())
        };
        let b = try_bind(&[("batch", 4), ("x:1", 5), ("x:2", 3), ("y:0", 4)]).unwrap();
        assert_eq!(b.into_iter().map(|(s, n)| format!("{s}={n}")).collect::<Vec<_>>(), ["batch=4", "x:1=5"]);
        for (dims, what) in [
            (&[("seq", 1)][..], "it has batch, x:1"),
            (&[("x:3", 1)], "has 3 axes"),
            (&[("x:2", 4)], "the model says 3"),
            (&[("batch", 4), ("y:0", 5)], "already bound to 4"),
            (&[("batch", 0)], "positive"),
        ] {
            let e = try_bind(dims).unwrap_err();
            assert!(e.contains(what), "{e}");
        }
        assert_eq!(parse_binding("a=b=3"), Ok(("a=b".to_owned(), 3)));
        assert!(parse_binding("a").is_err() && parse_binding("=3").is_err() && parse_binding("a=0").is_err());
    }

    #[test]
    fn absurd_sizes_are_refused() {
        let e = read(&[info("x", &[Ok(1 << 60), Ok(1 << 60)])], &|_| true).unwrap_err();
        assert_eq!(e, "input x: it is too large");
    }
}
