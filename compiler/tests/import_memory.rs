//! Importing takes at most three times the file and 64 MiB, whatever the file holds.

#![cfg(target_os = "linux")]

use compiler::import::{Options, import};
use onnx_protobuf as pb;
use protobuf::Message;
use std::{fs, path::Path, process::Command};

/// Names the file that [`child`] imports.
const FILE: &str = "DTRC_TEST_IMPORT";

/// Highest resident bytes of this process.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Runs in a process of its own, so that nothing else has grown its heap.
#[test]
fn child() {
    let Some(file) = std::env::var_os(FILE) else { return };
    let before = peak();
    let result = import(Path::new(&file), &Options::default());
    let used = peak() - before;
    let verdict = match &result {
        Ok(i) => format!("{} nodes", i.graph.nodes.len()),
        Err(e) => e.kind.to_string(),
    };
    println!("\nUSED {used} {verdict}");
}

fn info(name: &str, n: i64) -> pb::ValueInfoProto {
    let mut tensor = pb::type_proto::Tensor { elem_type: 1, ..Default::default() };
    let mut dim = pb::tensor_shape_proto::Dimension::new();
    dim.set_dim_value(n);
    tensor.shape.mut_or_insert_default().dim.push(dim);
    let mut v = pb::ValueInfoProto { name: name.to_owned(), ..Default::default() };
    v.type_.mut_or_insert_default().value = Some(pb::type_proto::Value::TensorType(tensor));
    v
}

fn node(op: &str, input: &str, output: &str) -> pb::NodeProto {
    pb::NodeProto {
        op_type: op.to_owned(),
        input: vec![input.to_owned()],
        output: vec![output.to_owned()],
        ..Default::default()
    }
}

fn model(fill: impl FnOnce(&mut pb::GraphProto)) -> Vec<u8> {
    let opset = pb::OperatorSetIdProto { version: 17, ..Default::default() };
    let mut m = pb::ModelProto { ir_version: 8, opset_import: vec![opset], ..Default::default() };
    let g = m.graph.mut_or_insert_default();
    g.input.push(info("x", 4));
    g.output.push(info("y", 4));
    fill(g);
    m.write_to_bytes().unwrap()
}

fn large_tensors() -> Vec<u8> {
    model(|g| {
        g.node.push(node("Relu", "x", "y"));
        for (i, name) in ["w", "v"].into_iter().enumerate() {
            let mut t = pb::TensorProto { name: name.to_owned(), data_type: 1, ..Default::default() };
            t.dims = vec![20 << 20];
            match i {
                0 => t.raw_data = vec![1; 80 << 20],
                _ => t.float_data = vec![1.0; 20 << 20],
            }
            g.initializer.push(t);
            let mut add = node("Add", "x", &format!("unused{i}"));
            add.input[0] = name.to_owned();
            add.input.push(name.to_owned());
            g.node.push(add);
        }
    })
}

/// A chain; `hint` begins the names of its values.
fn chain(nodes: usize, hint: &str) -> Vec<u8> {
    model(|g| {
        for i in 0..nodes {
            let from = if i == 0 { "x".to_owned() } else { format!("{hint}{i}") };
            let to = if i + 1 == nodes { "y".to_owned() } else { format!("{hint}{}", i + 1) };
            g.node.push(node("Relu", &from, &to));
        }
    })
}

fn empty_nodes(n: usize) -> Vec<u8> {
    model(|g| g.node = vec![pb::NodeProto::new(); n])
}

fn small_constants(n: usize) -> Vec<u8> {
    model(|g| {
        g.node.push(node("Relu", "x", "y"));
        for i in 0..n {
            let mut t = pb::TensorProto {
                name: format!("c{i}"),
                data_type: 7,
                dims: vec![250],
                ..Default::default()
            };
            t.int64_data = vec![1; 250];
            g.initializer.push(t);
            let mut add = node("Add", &format!("c{i}"), &format!("s{i}"));
            add.input.push(format!("c{i}"));
            g.node.push(add);
        }
    })
}

#[test]
fn memory_stays_within_three_times_the_file_and_64_mib() {
    let dir = tempfile::tempdir().unwrap();
    type Make = fn() -> Vec<u8>;
    let cases: &[(&str, Make)] = &[
        ("large tensors", large_tensors),
        ("a chain of 20000 nodes", || chain(20_000, "h")),
        ("a chain of 29000 nodes with long names", || {
            chain(29_000, "/model/layers.17/mlp/act_fn/Mul_output_")
        }),
        ("a chain of 60000 nodes", || chain(60_000, "h")),
        ("50000 empty nodes", || empty_nodes(50_000)),
        ("two million empty nodes", || empty_nodes(2_000_000)),
        ("small packed constants", || small_constants(5_000)),
    ];
    for (name, make) in cases {
        let file = dir.path().join("m.onnx");
        let bytes = make();
        let size = bytes.len() as u64;
        fs::write(&file, bytes).unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(FILE, &file)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().find_map(|l| l.strip_prefix("USED ")).expect("the child reports");
        let (used, verdict) = line.split_once(' ').unwrap();
        let used: u64 = used.parse().unwrap();
        println!("{name}: file {size}, used {used}: {verdict}");
        if name.contains("29000") {
            assert_eq!(verdict, "29000 nodes");
        }
        assert!(used <= 3 * size + (64 << 20), "{name}: {used} bytes for a file of {size}");
    }
}
