//! Broken and hostile files: always an error of one line or a graph, never a panic, never a hang.

use crate::import_support;
use compiler::import::{ImportErrorKind, Options, import_bytes};
use onnx_protobuf as pb;
use protobuf::Message;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::sync::Arc;

fn message(bytes: &[u8]) -> String {
    match import_bytes("m.onnx", Arc::from(bytes), &Options::default()) {
        Ok(_) => String::new(),
        Err(e) => {
            let text = e.to_string();
            assert!(!text.contains('\n'), "{text:?}");
            text
        }
    }
}

fn info(name: &str, dims: &[i64]) -> pb::ValueInfoProto {
    let mut tensor = pb::type_proto::Tensor::new();
    tensor.elem_type = 1;
    tensor.shape.mut_or_insert_default();
    for d in dims {
        let mut dim = pb::tensor_shape_proto::Dimension::new();
        dim.set_dim_value(*d);
        tensor.shape.mut_or_insert_default().dim.push(dim);
    }
    let mut v = pb::ValueInfoProto::new();
    v.name = name.to_owned();
    v.type_.mut_or_insert_default().value = Some(pb::type_proto::Value::TensorType(tensor));
    v
}

fn node(op: &str, name: &str, inputs: &[&str], outputs: &[&str]) -> pb::NodeProto {
    let mut n = pb::NodeProto::new();
    n.op_type = op.to_owned();
    n.name = name.to_owned();
    n.input = inputs.iter().map(|s| (*s).to_owned()).collect();
    n.output = outputs.iter().map(|s| (*s).to_owned()).collect();
    n
}

fn tensor(name: &str, dims: &[i64], values: &[f32]) -> pb::TensorProto {
    let mut t = pb::TensorProto::new();
    t.name = name.to_owned();
    t.data_type = 1;
    t.dims = dims.to_vec();
    t.float_data = values.to_vec();
    t
}

/// y = Relu(x + w) * w, opset 17.
fn model() -> pb::ModelProto {
    let mut m = pb::ModelProto::new();
    m.ir_version = 8;
    let mut opset = pb::OperatorSetIdProto::new();
    opset.version = 17;
    m.opset_import.push(opset);
    let g = m.graph.mut_or_insert_default();
    g.input.push(info("x", &[2, 3]));
    g.output.push(info("y", &[2, 3]));
    g.initializer.push(tensor("w", &[3], &[1.0, 2.0, 3.0]));
    g.node.push(node("Add", "", &["x", "w"], &["sum"]));
    g.node.push(node("Relu", "act", &["sum"], &["h"]));
    g.node.push(node("Mul", "last", &["h", "w"], &["y"]));
    m
}

fn changed(change: impl FnOnce(&mut pb::ModelProto)) -> String {
    let mut m = model();
    change(&mut m);
    message(&m.write_to_bytes().unwrap())
}

#[test]
fn the_model_that_the_others_are_made_from_imports() {
    let m = import_bytes("m", model().write_to_bytes().unwrap().into(), &Options::default()).unwrap();
    let text = m.graph.to_string();
    assert_eq!(
        text,
        "input x f32[2, 3] Data\nstate w f32[3] Frozen\n".to_owned()
            + "sum f32[2, 3] = Add(x, w)\nh f32[2, 3] = Relu(sum)\ny f32[2, 3] = Mul(h, w)\noutputs y\n"
    );
    let nodes: Vec<&str> = m.graph.nodes.iter().map(|n| &*n.name).collect();
    assert_eq!(nodes, ["sum/Add", "act", "last"]);
    assert_eq!(m.candidates.iter().map(|c| &**c).collect::<Vec<_>>(), ["w"]);
    assert_eq!(m.weights.literal("w").unwrap().to_floats(), [1.0, 2.0, 3.0]);
}

#[test]
fn truncated_at_every_byte() {
    let mut m = model();
    m.graph.mut_or_insert_default().initializer.push(tensor("big", &[100], &[0.5; 100]));
    let bytes = m.write_to_bytes().unwrap();
    for n in 0..bytes.len() {
        let text = message(&bytes[..n]);
        assert!(!text.is_empty() || n + 8 > bytes.len(), "{n} bytes imported");
    }
}

#[test]
fn two_thousand_bit_flips() {
    let models = import_support::models();
    let mut seeds = vec![model().write_to_bytes().unwrap()];
    if let Some(dir) = &models {
        for name in ["mlp.ts_loss", "mlp.ts_dropout", "mlp.dy_loss"] {
            seeds.push(std::fs::read(dir.join(format!("small/{name}.onnx"))).unwrap());
        }
    }
    let mut rng = SmallRng::seed_from_u64(7);
    let mut imported = 0;
    for i in 0..2000 {
        let mut bytes = seeds[i % seeds.len()].clone();
        for _ in 0..rng.random_range(1..4) {
            // Half of the flips where the structure is: at the start and at the end of the file.
            let edge = bytes.len().min(600);
            let at = match rng.random_range(0..4) {
                0 => rng.random_range(0..edge),
                1 => bytes.len() - 1 - rng.random_range(0..edge),
                _ => rng.random_range(0..bytes.len()),
            };
            bytes[at] ^= 1 << rng.random_range(0..8);
        }
        imported += u32::from(message(&bytes).is_empty());
    }
    println!("{imported} of 2000 still import");
}

#[test]
fn structure_is_checked() {
    type Change = fn(&mut pb::ModelProto);
    let cases: &[(Change, &str)] = &[
        (
            |m| m.graph.as_mut().unwrap().node[0].input[0] = "gone".into(),
            "Add sum/Add: input gone is made by no node",
        ),
        (|m| m.graph.as_mut().unwrap().node[0].input[0] = "h".into(), "cycle"),
        (|m| m.graph.as_mut().unwrap().node[1].output[0] = "sum".into(), "is also made by node"),
        (|m| m.graph.as_mut().unwrap().node[1].output[0] = "x".into(), "also an input or initializer"),
        (|m| m.graph.as_mut().unwrap().output[0].name = "gone".into(), "output gone is made by no node"),
        (|m| m.graph.as_mut().unwrap().output.clear(), "no outputs"),
        (|m| m.graph.as_mut().unwrap().input.push(info("x", &[1])), "input x is nameless or defined twice"),
        (|m| m.graph.as_mut().unwrap().initializer.push(tensor("w", &[1], &[1.0])), "w is defined twice"),
        (|m| m.graph.as_mut().unwrap().initializer.push(tensor("", &[1], &[1.0])), "has no name"),
        (|m| m.graph.as_mut().unwrap().initializer[0].dims = vec![1 << 60], "tensor w: shape"),
        (|m| m.graph.as_mut().unwrap().initializer[0].dims = vec![4], "asks for 4 elements, but 3"),
        (|m| m.graph.as_mut().unwrap().initializer[0].dims = vec![-3], "negative"),
        (|m| m.graph.as_mut().unwrap().initializer[0].data_type = 8, "STRING is not supported"),
        (|m| m.graph.as_mut().unwrap().initializer[0].data_type = 77, "unknown"),
        (|m| m.graph.as_mut().unwrap().input[0] = info("x", &[1 << 40, 1 << 40]), "too large"),
        (|m| m.graph.as_mut().unwrap().input[0] = pb::ValueInfoProto::new(), "input \"\": it has no type"),
        (
            |m| m.graph.as_mut().unwrap().input[0].type_.mut_or_insert_default().value = None,
            "input x: it has no type",
        ),
        (|m| m.opset_import.clear(), "does not say which opset"),
        (|m| m.opset_import[0].version = -1, "impossible"),
        (|m| m.graph = None.into(), "no graph"),
        (
            |m| m.graph.as_mut().unwrap().node[1].op_type = "If".into(),
            "If act: the condition is known only at run time",
        ),
        (|m| m.graph.as_mut().unwrap().node[1].op_type = "QLinearAdd".into(), "quantized"),
        (|m| m.graph.as_mut().unwrap().node[1].op_type = "SequenceAt".into(), "is no sequence"),
        (|m| m.graph.as_mut().unwrap().node[1].op_type = "Nonsense\n".into(), "this operator (opset 17)"),
        (
            |m| m.graph.as_mut().unwrap().node[1].domain = "com.example".into(),
            "com.example.Relu act: not supported: operators of domain com.example",
        ),
        (|m| m.graph.as_mut().unwrap().sparse_initializer.push(pb::SparseTensorProto::new()), "sparse"),
        (|m| m.graph.as_mut().unwrap().initializer[0].dims = vec![3, 1 << 33, 0], "asks for 0 elements"),
    ];
    for (i, (change, expected)) in cases.iter().enumerate() {
        let text = changed(change);
        assert!(text.contains(expected), "case {i}: {text:?} does not say {expected:?}");
    }
}

#[test]
fn odd_but_lawful_models_import() {
    type Change = fn(&mut pb::ModelProto);
    let cases: &[Change] = &[
        |m| m.graph.as_mut().unwrap().node.reverse(),
        |m| m.graph.as_mut().unwrap().input.push(info("w", &[3])),
        |m| m.graph.as_mut().unwrap().initializer.push(tensor("unused", &[1], &[1.0])),
        |m| m.graph.as_mut().unwrap().initializer.push(tensor("nothing", &[0], &[])),
        |m| {
            let again = m.opset_import[0].clone();
            m.opset_import.push(again);
            let mut unused = pb::OperatorSetIdProto::new();
            unused.domain = "com.example".to_owned();
            unused.version = 1;
            m.opset_import.push(unused);
        },
        |m| m.opset_import[0].version = 30,
        |m| m.graph.as_mut().unwrap().output.push(info("x", &[2, 3])),
        |m| m.graph.as_mut().unwrap().input[0] = info("x", &[-1, 3]),
        |m| m.graph.as_mut().unwrap().node[2].name = "act".into(),
        |m| {
            let mut strings = tensor("text", &[1], &[]);
            strings.data_type = 8;
            strings.string_data.push(b"a".to_vec());
            m.graph.as_mut().unwrap().initializer.push(strings);
        },
    ];
    for (i, change) in cases.iter().enumerate() {
        assert_eq!(changed(change), "", "case {i}");
    }
}

/// A function `f(a) -> b` of domain `local` with this body.
fn function(name: &str, nodes: &[pb::NodeProto]) -> pb::FunctionProto {
    let mut f = pb::FunctionProto::new();
    f.domain = "local".to_owned();
    f.name = name.to_owned();
    f.input.push("a".to_owned());
    f.output.push("b".to_owned());
    f.node = nodes.to_vec();
    f
}

fn local(op: &str, input: &str, output: &str) -> pb::NodeProto {
    let mut n = node(op, "", &[input], &[output]);
    n.domain = "local".to_owned();
    n
}

#[test]
fn functions_expand() {
    let mut m = model();
    let inner = function("inner", &[node("Relu", "r", &["a"], &["t"]), node("Add", "", &["t", "a"], &["b"])]);
    m.functions.push(function("outer", &[local("inner", "a", "sum"), local("inner", "sum", "b")]));
    m.functions.push(inner);
    m.graph.as_mut().unwrap().node[1] = local("outer", "sum", "h");
    let m = import_bytes("m", m.write_to_bytes().unwrap().into(), &Options::default()).unwrap();
    let text = m.graph.to_string();
    let nodes: Vec<&str> = text.lines().filter(|l| l.contains(" = ")).collect();
    assert_eq!(
        nodes,
        [
            "sum f32[2, 3] = Add(x, w)",
            "h/outer/sum/inner/t f32[2, 3] = Relu(sum)",
            "h/outer/sum f32[2, 3] = Add(h/outer/sum/inner/t, sum)",
            "h/outer/b/inner/t f32[2, 3] = Relu(h/outer/sum)",
            "h f32[2, 3] = Add(h/outer/b/inner/t, h/outer/sum)",
        ]
        .into_iter()
        .chain(["y f32[2, 3] = Mul(h, w)"])
        .collect::<Vec<_>>()
    );
}

#[test]
fn functions_that_never_end_are_refused() {
    let recursive = changed(|m| {
        m.functions.push(function("f", &[local("g", "a", "b")]));
        m.functions.push(function("g", &[local("f", "a", "b")]));
        m.graph.as_mut().unwrap().node[1] = local("f", "sum", "h");
    });
    assert!(recursive.contains("calls itself"), "{recursive}");
    let doubling = changed(|m| {
        for i in 0..40 {
            let next = if i == 39 {
                node("Relu", "", &["a"], &["t"])
            } else {
                local(&format!("f{}", i + 1), "a", "t")
            };
            let mut again = next.clone();
            again.input[0] = "t".to_owned();
            again.output[0] = "b".to_owned();
            m.functions.push(function(&format!("f{i}"), &[next, again]));
        }
        m.graph.as_mut().unwrap().node[1] = local("f0", "sum", "h");
    });
    assert!(doubling.contains("too many nodes"), "{doubling}");
    let deep = changed(|m| {
        for i in 0..100 {
            let next = if i == 99 {
                node("Relu", "", &["a"], &["b"])
            } else {
                local(&format!("f{}", i + 1), "a", "b")
            };
            m.functions.push(function(&format!("f{i}"), &[next]));
        }
        m.graph.as_mut().unwrap().node[1] = local("f0", "sum", "h");
    });
    assert!(deep.contains("64 deep"), "{deep}");
}

#[test]
fn external_data_cannot_leave_the_folder() {
    for location in ["../secret", "/etc/passwd", "a/../../b", ""] {
        let mut m = model();
        let t = &mut m.graph.as_mut().unwrap().initializer[0];
        t.float_data.clear();
        t.data_location = pb::tensor_proto::DataLocation::EXTERNAL.into();
        let mut e = pb::StringStringEntryProto::new();
        e.key = "location".to_owned();
        e.value = location.to_owned();
        t.external_data.push(e);
        let bytes = m.write_to_bytes().unwrap();
        let e = import_bytes("m", bytes.into(), &Options::default()).unwrap_err();
        assert!(matches!(*e.kind, ImportErrorKind::Tensor { .. }), "{location:?}: {e}");
    }
}
