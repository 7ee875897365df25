//! Saved models, read back: new elements where they belong, everything else as it was, the original untouched.

use crate::import_support;
use compiler::{
    export::{SaveError, SaveOptions, Saver},
    import::{Options, import, read_weights},
};
use graph::Init;
use onnx_protobuf as pb;
use protobuf::Message;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// New elements of a tensor of `len` bytes: small finite floats of any type.
fn fresh(name: &str, len: u64) -> Vec<u8> {
    let salt = name.bytes().fold(7u8, |a, b| a.wrapping_mul(31).wrapping_add(b));
    (0..len)
        .map(|i| if i % 2 == 1 { 0x30 + (i as u8).wrapping_add(salt) % 8 } else { salt ^ i as u8 })
        .collect()
}

fn state(name: &str, at: u64, out: &mut [u8]) -> Result<(), String> {
    out.copy_from_slice(&fresh(name, at + out.len() as u64)[at as usize..]);
    Ok(())
}

fn names(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(|n| (*n).to_owned()).collect()
}

/// Elements of all tensors by name.
fn elements(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let weights = read_weights(path).unwrap();
    let one = |n: &std::sync::Arc<str>| (n.to_string(), weights.literal(n).unwrap().bytes().to_vec());
    weights.iter().map(|(n, _)| one(n)).collect()
}

/// Saves some tensors and checks all of them against the original's.
fn round_trip(model: &Path, trained: &BTreeSet<String>, out: &Path, options: SaveOptions) {
    let before = elements(model);
    let weights = read_weights(model).unwrap();
    let saver = Saver::prepare(&weights, trained, out, options).unwrap();
    let saved = saver.write(&mut state).unwrap();
    assert_eq!((saved.tensors, saved.files[0].as_path()), (trained.len(), out));
    let after = elements(out);
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for (name, old) in &before {
        let expected = if trained.contains(name) { fresh(name, old.len() as u64) } else { old.clone() };
        assert!(after[name] == expected, "{name}");
    }
    assert_eq!(elements(model), before);
}

fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> pb::NodeProto {
    let mut n = pb::NodeProto::new();
    n.op_type = op.to_owned();
    n.name = format!("node of {}", outputs[0]);
    n.input = inputs.iter().map(|s| (*s).to_owned()).collect();
    n.output = outputs.iter().map(|s| (*s).to_owned()).collect();
    n
}

fn tensor(name: &str, data_type: i32, dims: &[i64]) -> pb::TensorProto {
    let mut t = pb::TensorProto::new();
    t.name = name.to_owned();
    t.data_type = data_type;
    t.dims = dims.to_vec();
    t.doc_string = "kept".to_owned();
    t
}

fn raw(name: &str, n: usize) -> pb::TensorProto {
    let mut t = tensor(name, 1, &[n as i64]);
    t.raw_data = (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect();
    t
}

fn external(name: &str, n: i64, entries: &[(&str, &str)]) -> pb::TensorProto {
    let mut t = tensor(name, 1, &[n]);
    t.data_location = pb::tensor_proto::DataLocation::EXTERNAL.into();
    for (k, v) in entries {
        let mut e = pb::StringStringEntryProto::new();
        e.key = (*k).to_owned();
        e.value = (*v).to_owned();
        t.external_data.push(e);
    }
    t
}

/// A model that adds up its tensors, so that each is read.
fn model(initializers: Vec<pb::TensorProto>, nodes: Vec<pb::NodeProto>) -> pb::ModelProto {
    let mut m = pb::ModelProto::new();
    m.ir_version = 8;
    m.producer_name = "test".to_owned();
    m.doc_string = "a text that must stay".to_owned();
    let mut o = pb::OperatorSetIdProto::new();
    o.version = 17;
    m.opset_import.push(o);
    let g = m.graph.mut_or_insert_default();
    g.name = "g".to_owned();
    g.initializer = initializers;
    g.node = nodes;
    let mut y = pb::ValueInfoProto::new();
    y.name = "y".to_owned();
    g.output.push(y);
    m
}

fn write(path: &Path, m: &pb::ModelProto) {
    fs::write(path, m.write_to_bytes().unwrap()).unwrap();
}

fn parse(path: &Path) -> pb::ModelProto {
    pb::ModelProto::parse_from_bytes(&fs::read(path).unwrap()).unwrap()
}

fn files(folder: &Path) -> Vec<String> {
    let name = |e: std::io::Result<fs::DirEntry>| e.unwrap().file_name().into_string().unwrap();
    let mut out: Vec<String> = fs::read_dir(folder).unwrap().map(name).collect();
    out.sort();
    out
}

#[test]
fn exported_models_change_only_in_trained_elements() {
    let Some(models) = import_support::models() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut seen = 0;
    for file in import_support::files(&models, &["small", "thirdparty"]) {
        if !file.contains("_loss") || file.contains("densenet") {
            continue;
        }
        let options = Options { dims: import_support::dims(&file), ..Options::default() };
        let Ok(imported) = import(&models.join(&file), &options) else { continue };
        let out = dir.path().join("out.onnx");
        let trained: BTreeSet<String> = imported
            .graph
            .states
            .iter()
            .filter_map(|s| if let Init::Weight(n) = &s.init { Some(n.to_string()) } else { None })
            .collect();
        let saver = Saver::prepare(&imported.weights, &trained, &out, SaveOptions::default()).unwrap();
        saver.write(&mut state).unwrap();
        let again = import(&out, &options).unwrap();
        let states = |g: &graph::Graph| {
            let one = |s: &graph::State| (s.name.clone(), s.kind, g.ty(s.input).clone());
            g.states.iter().map(one).collect::<Vec<_>>()
        };
        let sorted = |mut v: Vec<(std::sync::Arc<str>, graph::StateKind, graph::TensorType)>| {
            v.sort_by(|a, b| a.0.cmp(&b.0));
            v
        };
        assert_eq!(sorted(states(&again.graph)), sorted(states(&imported.graph)), "{file}");
        for name in &trained {
            let found = again.weights.literal(name).unwrap();
            assert!(found.bytes() == fresh(name, found.bytes().len() as u64), "{file} {name}");
        }
        // Without the elements of trained tensors both files say the same, but for nodes that have become constants.
        let [mut old, mut new] = [parse(&models.join(&file)), parse(&out)];
        let mut filled = 0;
        for m in [&mut old, &mut new] {
            let g = m.graph.as_mut().unwrap();
            for t in g.initializer.iter_mut().filter(|t| trained.contains(&t.name)) {
                (t.raw_data, t.float_data) = (Vec::new(), Vec::new());
            }
            for n in g.node.iter_mut().filter(|n| n.output.first().is_some_and(|o| trained.contains(o))) {
                filled += usize::from(n.op_type == "ConstantOfShape");
                (n.op_type, n.input, n.attribute) = ("Constant".to_owned(), Vec::new(), Vec::new());
            }
        }
        assert!(old == new, "{file}");
        if filled == 0 {
            assert_eq!(fs::metadata(models.join(&file)).unwrap().len(), fs::metadata(&out).unwrap().len());
        }
        seen += 1;
    }
    println!("{seen} models saved and read back");
    assert!(seen >= 20, "{seen}");
}

#[test]
fn every_way_to_hold_elements_is_written_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut packed = tensor("packed", 1, &[100]);
    packed.float_data = vec![1.5; 100];
    let mut small = tensor("small", 1, &[2]);
    small.float_data = vec![0.5, 2.0];
    let mut half = tensor("half", 10, &[300]);
    half.int32_data = vec![0x3c00; 300];
    let mut double = tensor("double", 11, &[64]);
    double.double_data = vec![0.25; 64];
    let mut attribute = pb::AttributeProto::new();
    attribute.name = "value_floats".to_owned();
    attribute.type_ = pb::attribute_proto::AttributeType::FLOATS.into();
    attribute.floats = vec![1.0, 2.0, 3.0];
    let mut listed = node("Constant", &[], &["listed"]);
    listed.attribute.push(attribute);
    let mut attribute = pb::AttributeProto::new();
    attribute.name = "value".to_owned();
    attribute.type_ = pb::attribute_proto::AttributeType::TENSOR.into();
    attribute.t = Some(raw("inner", 90)).into();
    let mut constant = node("Constant", &[], &["constant"]);
    constant.attribute.push(attribute);
    let all = ["packed", "small", "half", "double", "raw", "listed", "constant", "kept"];
    let nodes = vec![listed, constant, node("Identity", &["raw"], &["y"])];
    let m = model(vec![packed, small, half, double, raw("raw", 1000), raw("kept", 70)], nodes);
    let path = dir.path().join("m.onnx");
    write(&path, &m);
    let trained = names(&all[..7]);
    round_trip(&path, &trained, &dir.path().join("out.onnx"), SaveOptions::default());
    let new = parse(&dir.path().join("out.onnx"));
    assert_eq!((new.doc_string.as_str(), new.graph.initializer.len()), (m.doc_string.as_str(), 6));
    for (a, b) in m.graph.initializer.iter().zip(&new.graph.initializer) {
        assert_eq!(
            (&a.name, a.data_type, &a.dims, &a.doc_string),
            (&b.name, b.data_type, &b.dims, &b.doc_string)
        );
    }
    assert_eq!(
        (new.graph.node[0].op_type.as_str(), &new.graph.node[0].name),
        ("Constant", &m.graph.node[0].name)
    );
    // Beyond the limit the large ones move to a file beside the model.
    let options = SaveOptions { inline_limit: 1000, ..SaveOptions::default() };
    round_trip(&path, &trained, &dir.path().join("far.onnx"), options);
    assert_eq!(files(dir.path()), ["far.onnx", "far.weights", "m.onnx", "out.onnx"]);
    let new = parse(&dir.path().join("far.onnx"));
    let is_external = |i: usize| new.graph.initializer[i].data_location.value() == 1;
    assert!(is_external(4) && !is_external(5) && !is_external(1));
}

/// A model of external tensors: `a` has bytes of its own, `b` and `c` share theirs, `d` lies in a second file.
fn external_model(folder: &Path) -> std::path::PathBuf {
    fs::create_dir_all(folder.join("sub")).unwrap();
    let bytes: Vec<u8> = (0..4096u32).flat_map(|i| (i as f32).to_le_bytes()).collect();
    fs::write(folder.join("sub/w.bin"), &bytes).unwrap();
    fs::write(folder.join("v.bin"), &bytes[..800]).unwrap();
    let (w, v) = (("location", "sub/w.bin"), ("location", "v.bin"));
    let tensors = vec![
        external("a", 1000, &[w, ("offset", "4096"), ("length", "4000"), ("checksum", "00")]),
        external("b", 500, &[w, ("offset", "9000"), ("length", "2000")]),
        external("c", 600, &[w, ("offset", "8800"), ("length", "2400")]),
        external("d", 200, &[v]),
        external("e", 100, &[w, ("length", "400")]),
        raw("inline", 100),
    ];
    let path = folder.join("m.onnx");
    write(&path, &model(tensors, vec![node("Identity", &["a"], &["y"])]));
    path
}

#[test]
fn external_files_are_copied_and_patched() {
    let dir = tempfile::tempdir().unwrap();
    let path = external_model(dir.path());
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    let trained = names(&["a", "b", "d", "inline"]);
    for out in [dir.path().join("out.onnx"), other.join("out.onnx")] {
        round_trip(&path, &trained, &out, SaveOptions::default());
        let new = parse(&out);
        let entries = &new.graph.initializer[0].external_data;
        assert!(entries.iter().all(|e| e.key != "checksum"));
        assert_eq!(entries[0].value, "out.weights");
        let size = |name: &str| fs::metadata(out.with_file_name(name)).unwrap().len();
        assert_eq!((size("out.weights"), size("out.2.weights")), (16384 + 2000, 800));
    }
    assert_eq!(files(&other), ["out.2.weights", "out.onnx", "out.weights"]);
    assert_eq!(
        files(dir.path()),
        ["m.onnx", "other", "out.2.weights", "out.onnx", "out.weights", "sub", "v.bin"]
    );
}

#[test]
fn originals_are_never_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("f");
    let path = external_model(&folder);
    fs::rename(folder.join("v.bin"), folder.join("x.weights")).unwrap();
    let mut m = parse(&path);
    m.graph.as_mut().unwrap().initializer[3].external_data[0].value = "x.weights".to_owned();
    write(&path, &m);
    let before = files(&folder);
    let weights = read_weights(&path).unwrap();
    let prepare = |out: &Path, of: &[&str]| Saver::prepare(&weights, &names(of), out, SaveOptions::default());
    let refused = |out: &str| {
        let error = prepare(&folder.join(out), &["a"]).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains("save under another name"), "{out}: {error}");
    };
    refused("m.onnx");
    refused("../f/m.onnx");
    refused("x.onnx");
    refused("x.weights");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&path, dir.path().join("link.onnx")).unwrap();
        refused("../link.onnx");
    }
    assert!(matches!(prepare(&folder.join("absent/o.onnx"), &["a"]), Err(SaveError::Io { .. })));
    assert!(matches!(prepare(&folder.join("sub"), &["a"]), Err(SaveError::Name { .. })));
    assert!(matches!(prepare(&folder.join("o.onnx"), &["nothing"]), Err(SaveError::Tensor { .. })));
    // A failure half-way leaves nothing behind.
    let saver = prepare(&folder.join("o.onnx"), &["a", "inline"]).unwrap();
    let failed =
        saver.write(&mut |name, at, out| if name == "a" { state(name, at, out) } else { Err("lost".into()) });
    assert!(failed.unwrap_err().to_string().contains("lost"));
    assert_eq!(files(&folder), before);
    // So does a model that has changed since.
    fs::write(folder.join("m.onnx"), b"changed").unwrap();
    assert!(saver.write(&mut state).unwrap_err().to_string().contains("changed"));
    assert_eq!(files(&folder), before);
}

#[test]
fn training_is_switched_off_for_inference() {
    let dir = tempfile::tempdir().unwrap();
    let int = |name: &str, i: i64| {
        let mut a = pb::AttributeProto::new();
        a.name = name.to_owned();
        a.type_ = pb::attribute_proto::AttributeType::INT.into();
        a.i = i;
        a
    };
    let mut norm =
        node("BatchNormalization", &["x", "scale", "bias", "mean", "var"], &["n", "new_mean", "new_var"]);
    norm.attribute.push(int("training_mode", 1));
    let nodes = vec![
        norm,
        node("Dropout", &["n", "ratio", "yes"], &["d", "mask"]),
        node("Add", &["d", "new_mean"], &["y"]),
    ];
    let mut m = model(["scale", "bias", "mean", "var"].map(|n| raw(n, 80)).to_vec(), nodes);
    m.graph.as_mut().unwrap().input.push({
        let mut x = pb::ValueInfoProto::new();
        x.name = "x".to_owned();
        x
    });
    let path = dir.path().join("m.onnx");
    let out = dir.path().join("o.onnx");
    let options = SaveOptions { inference: true, ..SaveOptions::default() };
    m.graph.as_mut().unwrap().initializer.push(raw("ratio", 1));
    m.graph.as_mut().unwrap().initializer.push(raw("yes", 1));
    write(&path, &m);
    round_trip(&path, &names(&["scale", "bias", "mean", "var"]), &out, options);
    let new = parse(&out);
    let [norm, mean, dropout, add] = new.graph.node.as_slice() else { panic!("{}", new.graph.node.len()) };
    assert_eq!((norm.output.as_slice(), norm.attribute.len()), (&["n".to_owned()][..], 0));
    assert_eq!(
        (mean.op_type.as_str(), &mean.input[0], &mean.output[0]),
        ("Identity", &"mean".to_owned(), &"new_mean".to_owned())
    );
    assert_eq!(dropout.input, ["n", "ratio"]);
    assert_eq!(*add, m.graph.node[2]);
}

/// Bodies may hold tensors of one name, as initializers and as constants, at any depth.
#[test]
fn tensors_in_bodies_are_written_back_where_they_stand() {
    let folder = tempfile::tempdir().unwrap();
    let constant = |output: &str, t: pb::TensorProto| {
        let mut n = node("Constant", &[], &[output]);
        let mut a = pb::AttributeProto::new();
        (a.name, a.type_) = ("value".to_owned(), pb::attribute_proto::AttributeType::TENSOR.into());
        a.t = Some(t).into();
        n.attribute.push(a);
        n
    };
    let body = |name: &str, g: pb::GraphProto| {
        let mut a = pb::AttributeProto::new();
        (a.name, a.type_) = (name.to_owned(), pb::attribute_proto::AttributeType::GRAPH.into());
        a.g = Some(g).into();
        a
    };
    let graph = |nodes: Vec<pb::NodeProto>, initializers: Vec<pb::TensorProto>, outputs: &[&str]| {
        let mut g = pb::GraphProto::new();
        let info = |n: &&str| pb::ValueInfoProto { name: (*n).to_owned(), ..Default::default() };
        (g.node, g.initializer) = (nodes, initializers);
        g.output = outputs.iter().map(info).collect();
        g
    };
    // A branch in a loop, and a second branch beside the loop, each with a "w".
    let mut inner = node("If", &["yes"], &["chosen"]);
    let side = |n: usize| {
        let nodes = vec![constant("v", raw("", 96)), node("Mul", &["w", "v"], &["m"])];
        graph(nodes, vec![raw("w", n)], &["m"])
    };
    inner.attribute = vec![body("then_branch", side(96)), body("else_branch", side(96))];
    let mut all = node("Loop", &["m0", "yes", "x"], &["y"]);
    let nodes = vec![inner, node("Add", &["h", "chosen"], &["h1"]), node("Mul", &["h1", "w"], &["h2"])];
    let mut g = graph(nodes, vec![raw("w", 96), raw("long", 4096)], &["go", "h2"]);
    let info = |n: &str| pb::ValueInfoProto { name: n.to_owned(), ..Default::default() };
    g.input = ["i", "go", "h"].map(info).into();
    all.attribute.push(body("body", g));
    let mut last = node("If", &["yes"], &["z"]);
    last.attribute = vec![body("then_branch", side(96)), body("else_branch", side(96))];
    let m = model(vec![raw("yes", 1), raw("m0", 1), raw("x", 96), raw("w", 96)], vec![all, last]);
    let (path, out) = (folder.path().join("m.onnx"), folder.path().join("out.onnx"));
    write(&path, &m);
    let found: BTreeSet<String> = elements(&path).into_keys().collect();
    let in_bodies = |n: &&String| ["w", "v", "long"].iter().any(|p| n.split('.').next() == Some(*p));
    let trained: BTreeSet<String> = found.iter().filter(in_bodies).cloned().collect();
    // The main graph's w, those of the loop and of four branches, a v a branch, and the long one.
    assert_eq!(trained.len(), 1 + 5 + 4 + 1, "{found:?}");
    round_trip(&path, &trained, &out, SaveOptions::default());
    // One alone leaves its namesakes as they are; elements that move to a file beside the model do, too.
    for name in &trained {
        round_trip(&path, &names(&[name]), &out, SaveOptions::default());
    }
    round_trip(&path, &trained, &out, SaveOptions { inline_limit: 64, ..SaveOptions::default() });
    let again = parse(&out);
    assert_eq!(again.graph.node.len(), 2);
}
