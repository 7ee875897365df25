//! Models of open sizes at other sizes than those they were exported with: what onnxruntime makes of the same file and inputs.

use compiler::import;
use graph::{DType, Literal, TensorType};
use onnx_models::ModelProto;
use protobuf::Message;
use std::{collections::BTreeMap, fs, path::Path};
use tests::{
    data, npz,
    onnxruntime::{self, Tolerance},
    open::infer,
    written::{floats, ints},
};

type Arrays = BTreeMap<String, Literal>;

/// Their length is a constant of the export; only the batch is open in truth.
const LENGTH_BAKED_IN: [&str; 2] = ["wav2vec.ts_dyn.onnx", "wav2vec.ts_op14_dyn.onnx"];

/// Another size than the export's, by the name of the dimension.
fn extent(symbol: &str, file: &str, reference: u64) -> u64 {
    match symbol {
        "batch" => 3,
        "seq" => 7,
        "samples" if LENGTH_BAKED_IN.contains(&file) => reference,
        "samples" => 1040,
        other => panic!("{file}: what is {other}?"),
    }
}

/// Inputs of these extents: floats between -1 and 1, integers as the reference has them.
fn inputs(file: &str, types: &[(String, TensorType)], io: &Arrays) -> Arrays {
    let mut out = Arrays::new();
    let mut changed = false;
    for (name, ty) in types {
        let reference = &io[&format!("in:{name}")];
        let one = |(d, r): (&graph::Dim, &u64)| {
            let n = d.as_symbol().map_or(*r, |s| extent(s.as_ref(), file, *r));
            changed |= n != *r;
            n
        };
        let shape: Vec<u64> = ty.shape.0.iter().zip(reference.shape()).map(one).collect();
        let n: u64 = shape.iter().product();
        let l = if ty.dtype == DType::F32 {
            Literal::new(DType::F32, shape, floats(n, 7)).unwrap()
        } else {
            let known = reference.to_ints().unwrap();
            let values: Vec<i64> = match name.as_str() {
                // The last row is shorter.
                "attention_mask" => (0..n as i64).map(|i| i64::from(i < n as i64 - 3)).collect(),
                "lens" => (0..n as i64).map(|i| 7 - 2 * i).collect(),
                _ => (0..n as usize).map(|i| known[(i * 5 + 3) % known.len()]).collect(),
            };
            let bytes = ints(&values);
            Literal::new(DType::I64, shape, bytes).unwrap()
        };
        out.insert(format!("in:{name}"), l);
    }
    assert!(changed, "{file}: no size is another one");
    out
}

/// The file with running statistics in place of a batch's, as inference takes them.
fn for_inference(file: &Path) -> Vec<u8> {
    let mut model = ModelProto::parse_from_bytes(&fs::read(file).unwrap()).unwrap();
    let nodes = &mut model.graph.mut_or_insert_default().node;
    for node in nodes.iter_mut().filter(|n| n.op_type == "BatchNormalization") {
        node.attribute.retain(|a| a.name != "training_mode");
        node.output.truncate(1);
    }
    model.write_to_bytes().unwrap()
}

fn write_case(folder: &Path, model: &Path, given: &Arrays, got: &Arrays) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("model.onnx"), for_inference(model)).unwrap();
    let names: Vec<&str> = given.keys().map(|n| &n["in:".len()..]).collect();
    let loose = Tolerance { atol: 1e-6, rtol: 5e-6 };
    let outputs: Vec<(&str, &Literal, Tolerance)> = got.iter().map(|(n, l)| (n.as_str(), l, loose)).collect();
    onnxruntime::write_arrays(folder, &names, &given.values().collect::<Vec<_>>(), &outputs);
}

#[test]
fn other_sizes_give_what_onnxruntime_gives() {
    let (Some(root), Some(python)) = (data("models"), onnxruntime::python()) else { return };
    let folder = onnxruntime::empty_folder("second_sizes");
    let mut cases = 0;
    for (model, file) in tests::reference::files(&root) {
        if !file.contains("_dyn") {
            continue;
        }
        let path = root.join("small").join(&file);
        let io = npz(&root.join("reference").join(format!("{model}.io.npz")));
        let given = inputs(&file, &import::input_types(&path).unwrap(), &io);
        let (free, peak) = infer(&path, &given, 1 << 30).unwrap_or_else(|e| panic!("{file}: {e}"));
        write_case(&folder.join(&file), &path, &given, &free);
        println!("{file:<28} peak {peak:>9}");
        cases += 1;
    }
    let text = onnxruntime::run_all(&python, &folder);
    fs::remove_dir_all(&folder).unwrap();
    assert!(cases >= 38, "{cases} files");
    assert!(!text.contains("no kernel"), "{text}");
}
