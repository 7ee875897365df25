//! Imports every shared model, with sizes bound and unbound: it works, or one line says which node, which operator and why.

use crate::import_support;
use compiler::import::{Imported, Options, import};
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    time::Instant,
};

/// Models that must import in all their files once sizes are bound.
const MUST: &[&str] = &[
    "mlp",
    "smallcnn",
    "vgg16",
    "resnet18",
    "resnet50",
    "densenet121",
    "unet",
    "autoencoder",
    "wav2vec",
    "convnext_tiny",
    "vit_b_16",
    "bert",
    "gpt2",
];

/// Generated models and how many tensors are trainable.
const GENERATED: &[(&str, usize)] =
    &[("mlp_tiny.onnx", 6), ("resnet_tiny.onnx", 29), ("unet_tiny.onnx", 36), ("transformer_tiny.onnx", 28)];

/// `Err` is the message; a panic fails the test.
fn attempt(path: &Path, dims: Vec<(String, i64)>) -> Result<Imported, String> {
    let options = Options { dims, ..Options::default() };
    match catch_unwind(AssertUnwindSafe(|| import(path, &options))) {
        Ok(r) => r.map_err(|e| e.to_string()),
        Err(_) => panic!("importing {} panicked", path.display()),
    }
}

#[test]
fn every_model_imports_or_says_why_in_one_line() {
    let Some(models) = import_support::models() else { return };
    let mut table: BTreeMap<&str, [[u32; 2]; 2]> = BTreeMap::new();
    let mut missing = Vec::new();
    for file in import_support::files(&models, &["small", "topology", "thirdparty"]) {
        let path = models.join(&file);
        let folder = ["small", "topology", "thirdparty"].into_iter().find(|f| file.starts_with(f)).unwrap();
        for (k, dims) in [import_support::dims(&file), Vec::new()].into_iter().enumerate() {
            let start = Instant::now();
            let result = attempt(&path, dims);
            let seconds = start.elapsed().as_secs_f64();
            assert!(seconds < 30.0, "{file} took {seconds} s");
            table.entry(folder).or_default()[k][usize::from(result.is_err())] += 1;
            let how = ["bound", "unbound"][k];
            match result {
                Ok(m) => {
                    assert_eq!(graph::verify(&m.graph), Ok(()), "{file}");
                    assert_eq!(m.graph.outputs.len(), m.output_names.len());
                    println!(
                        "{how:8} {file}: {} nodes, {} weights of {} bytes, {} trainable",
                        m.graph.nodes.len(),
                        m.weights.len(),
                        m.weights.bytes(),
                        m.candidates.len()
                    );
                }
                Err(e) => {
                    assert!(!e.contains('\n'), "{file}: {e:?}");
                    println!("{how:8} {}", e.replace(models.to_str().unwrap(), ""));
                    let model = file.rsplit('/').next().unwrap().split('.').next().unwrap();
                    if k == 0 && folder != "thirdparty" && MUST.contains(&model) {
                        missing.push(file.clone());
                    }
                }
            }
        }
    }
    for (folder, [bound, unbound]) in table {
        println!(
            "{folder}: bound {} of {}, unbound {} of {}",
            bound[0],
            bound[0] + bound[1],
            unbound[0],
            unbound[0] + unbound[1]
        );
    }
    assert!(missing.is_empty(), "these must import: {missing:?}");
}

/// The models in `onnx-models/`, which need no data.
#[test]
fn generated_models_import() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx-models");
    for (name, trainable) in GENERATED {
        match attempt(&folder.join(name), Vec::new()) {
            Ok(m) => assert_eq!(m.candidates.len(), *trainable, "{name}: {:?}", m.candidates),
            Err(e) => panic!("{e}"),
        }
    }
}
