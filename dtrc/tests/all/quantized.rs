//! Weights that a file stores in 8-bit floats and 4-bit integers, with one scale for a block of them.

use crate::support::{dtrc, floats, write};
use onnx_protobuf::{
    AttributeProto, GraphProto, Message, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, TensorShapeProto, TypeProto, ValueInfoProto,
    attribute_proto::AttributeType,
    tensor_proto::DataType,
    tensor_shape_proto::{Dimension, dimension},
    type_proto,
};
use runtime::data::npz::Npz;
use std::{fs, path::Path};

/// Rows of the weights, columns, rows that share a scale.
const SIZES: [usize; 3] = [32, 20, 5];

/// How the file has the elements.
#[derive(Clone, Copy, Debug)]
enum Place {
    Typed,
    Raw,
    External,
}

fn value(name: &str, dims: &[usize]) -> ValueInfoProto {
    let mut shape = TensorShapeProto::new();
    for d in dims {
        let value = Some(dimension::Value::DimValue(*d as i64));
        shape.dim.push(Dimension { value, ..Default::default() });
    }
    let mut tensor = type_proto::Tensor::new();
    tensor.elem_type = DataType::FLOAT as i32;
    tensor.shape = Some(shape).into();
    let ty = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..Default::default() };
    ValueInfoProto { name: name.to_owned(), type_: Some(ty).into(), ..Default::default() }
}

fn node(op: &str, inputs: &[&str], output: &str, ints: &[(&str, i64)]) -> NodeProto {
    let attribute = ints.iter().map(|(name, i)| AttributeProto {
        name: (*name).to_owned(),
        i: *i,
        type_: AttributeType::INT.into(),
        ..Default::default()
    });
    NodeProto {
        op_type: op.to_owned(),
        input: inputs.iter().map(|i| (*i).to_owned()).collect(),
        output: vec![output.to_owned()],
        attribute: attribute.collect(),
        ..Default::default()
    }
}

fn tensor(name: &str, dtype: DataType, dims: &[usize]) -> TensorProto {
    let dims = dims.iter().map(|d| *d as i64).collect();
    TensorProto { name: name.to_owned(), data_type: dtype as i32, dims, ..Default::default() }
}

/// `t` with these stored bytes.
fn stored(mut t: TensorProto, bytes: &[u8], place: Place, dir: &Path) -> TensorProto {
    match place {
        Place::Typed => t.int32_data = bytes.iter().map(|b| i32::from(*b)).collect(),
        Place::Raw => t.raw_data = bytes.to_vec(),
        Place::External => {
            let file = format!("{}.bin", t.name);
            fs::write(dir.join(&file), bytes).unwrap();
            let entry =
                StringStringEntryProto { key: "location".to_owned(), value: file, ..Default::default() };
            t.external_data.push(entry);
            t.data_location = onnx_protobuf::tensor_proto::DataLocation::EXTERNAL.into();
        }
    }
    t
}

/// Writes a model of this graph.
fn save(graph: GraphProto, path: &Path) -> String {
    let opset = OperatorSetIdProto { version: 21, ..Default::default() };
    let model = ModelProto {
        ir_version: 10,
        opset_import: vec![opset],
        graph: Some(graph).into(),
        ..Default::default()
    };
    fs::write(path, model.write_to_bytes().unwrap()).unwrap();
    path.display().to_string()
}

/// y = x w4 + x w8, where `w4` has 4-bit integers with scales by blocks and `w8` one scale.
fn write_model(dir: &Path, place: Place, bytes: &Bytes) -> String {
    let [rows, columns, block] = SIZES;
    let blocks = rows.div_ceil(block);
    let mut scales = tensor("scales", DataType::FLOAT, &[blocks, columns]);
    scales.float_data = bytes.scales.clone();
    let mut scale = tensor("scale", DataType::FLOAT, &[]);
    scale.float_data = vec![0.25];
    let mut graph = GraphProto { name: "g".to_owned(), ..Default::default() };
    let int4 = tensor("int4", DataType::INT4, &[rows, columns]);
    let zeros = tensor("zeros", DataType::INT4, &[blocks, columns]);
    let float8 = tensor("float8", DataType::FLOAT8E4M3FN, &[rows, columns]);
    graph.initializer = vec![
        stored(int4, &bytes.int4, place, dir),
        stored(zeros, &bytes.zeros, place, dir),
        stored(float8, &bytes.float8, place, dir),
        scales,
        scale,
    ];
    let by_block = [("axis", 0), ("block_size", block as i64)];
    graph.node = vec![
        node("DequantizeLinear", &["int4", "scales", "zeros"], "w4", &by_block),
        node("DequantizeLinear", &["float8", "scale"], "w8", &[]),
        node("MatMul", &["x", "w4"], "a", &[]),
        node("MatMul", &["x", "w8"], "b", &[]),
        node("Add", &["a", "b"], "y", &[]),
    ];
    graph.input = vec![value("x", &[2, rows])];
    graph.output = vec![value("y", &[2, columns])];
    save(graph, &dir.join(format!("{place:?}.onnx")))
}

struct Bytes {
    int4: Vec<u8>,
    zeros: Vec<u8>,
    float8: Vec<u8>,
    scales: Vec<f32>,
}

/// The value of a finite e4m3 number by its definition: sign, four bits of exponent, three of mantissa.
fn e4m3(b: u8) -> f32 {
    let (e, m) = (i32::from(b >> 3 & 15), f32::from(b & 7) / 8.0);
    let magnitude = if e == 0 { m / 64.0 } else { (1.0 + m) * 2f32.powi(e - 7) };
    if b >= 128 { -magnitude } else { magnitude }
}

#[test]
fn weights_in_8_and_4_bits_are_widened_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let [rows, columns, block] = SIZES;
    let blocks = rows.div_ceil(block);
    let random = |n: usize, seed: u64| -> Vec<u8> {
        floats(n, seed).into_iter().map(|x| ((x + 1.0) * 128.0) as u8).collect()
    };
    let bytes = Bytes {
        int4: random(rows * columns / 2, 1),
        zeros: random(blocks * columns / 2, 2),
        // Exponents that keep sums exact enough to compare.
        float8: random(rows * columns, 3).into_iter().map(|b| b & 0xbf).collect(),
        scales: floats(blocks * columns, 4),
    };
    let nibble = |bytes: &[u8], i: usize| {
        let n = i32::from(bytes[i / 2] >> (4 * (i % 2)) & 15);
        (if n > 7 { n - 16 } else { n }) as f32
    };
    let x = floats(2 * rows, 5);
    let mut expected = vec![0.0f64; 2 * columns];
    for (r, c, n) in (0..rows).flat_map(|r| (0..columns).flat_map(move |c| [(r, c, 0), (r, c, 1)])) {
        let b = r / block * columns + c;
        let w4 = (nibble(&bytes.int4, r * columns + c) - nibble(&bytes.zeros, b)) * bytes.scales[b];
        let w8 = e4m3(bytes.float8[r * columns + c]) * 0.25;
        expected[n * columns + c] += f64::from(x[n * rows + r]) * f64::from(w4 + w8);
    }
    let data = write(&dir.path().join("x.npz"), (&[2, rows as u64], &x), (&[2], &[0; 2]));
    let mut first: Option<Vec<u8>> = None;
    for place in [Place::Typed, Place::Raw, Place::External] {
        let model = write_model(dir.path(), place, &bytes);
        let out = dir.path().join("y.npz");
        dtrc(&["run", &model, "--inference", "--data", &data, "-o", &out.display().to_string()]).ok();
        let y = Npz::open(&out).unwrap().read("y").unwrap().bytes().to_vec();
        for (i, e) in expected.iter().enumerate() {
            let found = f64::from(f32::from_le_bytes(y[4 * i..4 * i + 4].try_into().unwrap()));
            assert!((found - e).abs() < 1e-4 * e.abs().max(1.0), "{place:?} {i}: {found} for {e}");
        }
        assert_eq!(first.get_or_insert_with(|| y.clone()), &y, "{place:?}");
    }
}

#[test]
fn what_would_be_quantized_to_4_bits_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut graph = GraphProto { name: "g".to_owned(), ..Default::default() };
    let mut scale = tensor("scale", DataType::FLOAT, &[]);
    scale.float_data = vec![0.25];
    let zero = stored(tensor("zero", DataType::INT4, &[]), &[3], Place::Typed, dir.path());
    graph.initializer = vec![scale, zero];
    graph.node = vec![
        node("QuantizeLinear", &["x", "scale", "zero"], "q", &[]),
        node("DequantizeLinear", &["q", "scale", "zero"], "y", &[]),
    ];
    graph.input = vec![value("x", &[2, 3])];
    graph.output = vec![value("y", &[2, 3])];
    let path = save(graph, &dir.path().join("q.onnx"));
    dtrc(&["compile", &path, "--budget", "100%"]).fails(65, &["zero", "QuantizeLinear"]);
}
