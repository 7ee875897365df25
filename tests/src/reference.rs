//! Small models and their reference numbers: which there are, how they are imported and trained.

use crate::{initial_state, inputs, npz};
use compiler::{
    import::{self, Imported, trainable},
    train::{Loss, Optimizer, TrainOptions},
};
use graph::{Graph, Literal, ValueId};
use ops::onnx::{BatchNormMode, DropoutMode, ImportOptions};
use serde_json::Value as Json;
use std::{collections::BTreeMap, path::Path};

/// Models with control flow: which branch runs, and how often, depends on what they compute.
pub const OPEN: &[&str] = &["act_while", "ifnet_pos", "lstm_loop", "scannet"];

/// Models whose steps are static.
pub const STATIC: &[&str] = &[
    "autoencoder",
    "bert",
    "convnext_tiny",
    "densenet121",
    "gpt2",
    "lstm_cls",
    "lstm_lens",
    "mlp",
    "resnet18",
    "rnn_cls",
    "smallcnn",
    "unet",
    "vgg16",
    "vit_b_16",
    "wav2vec",
];

/// A model's reference numbers.
pub struct Reference {
    /// The `ref.json`.
    pub json: Json,
    /// Inputs and label.
    pub io: BTreeMap<String, Literal>,
    /// Gradients of step 0.
    pub grads: BTreeMap<String, Literal>,
}

impl Reference {
    /// Reads the reference of a model.
    ///
    /// # Panics
    ///
    /// If a file is missing.
    pub fn load(root: &Path, model: &str) -> Reference {
        let dir = root.join("reference");
        let text = std::fs::read_to_string(dir.join(format!("{model}.ref.json"))).unwrap();
        Reference {
            json: serde_json::from_str(&text).unwrap(),
            io: npz(&dir.join(format!("{model}.io.npz"))),
            grads: npz(&dir.join(format!("{model}.grads.npz"))),
        }
    }

    /// Losses of an optimizer: `losses` in float32, `losses_f64` in float64.
    pub fn losses(&self, optimizer: &str, key: &str) -> Vec<f64> {
        self.json[optimizer][key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    }

    /// Size of float32 noise in the gradients.
    pub fn noise(&self) -> f64 {
        self.json["grad_f32_vs_f64_max_rel"].as_f64().unwrap()
    }
}

/// Whether the model has BatchNormalization.
pub fn has_batchnorm(model: &str) -> bool {
    ["densenet121", "resnet18", "smallcnn", "unet"].contains(&model)
}

/// Imports a file with its sizes bound as in the reference inputs.
///
/// # Panics
///
/// If it cannot be imported.
pub fn import_model(path: &Path, file: &str, model: &str, io: &BTreeMap<String, Literal>) -> Imported {
    // The newer exporter writes inference graphs of BatchNorm models.
    let train = has_batchnorm(model) && file.contains(".dy_");
    let mut options = import::Options {
        dims: Vec::new(),
        ops: ImportOptions {
            training: true,
            batchnorm: if train { BatchNormMode::Train } else { BatchNormMode::Auto },
            dropout: DropoutMode::Auto,
            unbiased_running_variance: true,
        },
        ..import::Options::default()
    };
    options.dims = dims_of(path, io);
    match import::import(path, &options) {
        Err(e) if e.is_open() => walked(path, &options, io),
        other => other.unwrap_or_else(|e| panic!("{e}")),
    }
}

/// Computes values with the reference interpreter.
struct Interpreted<'a> {
    weights: &'a import::Weights,
    io: &'a BTreeMap<String, Literal>,
}

impl trace::Oracle for Interpreted<'_> {
    fn elements(&mut self, graph: &Graph, value: ValueId) -> Result<Option<Literal>, String> {
        // Only what the value needs: the rest may be half made.
        let mut part = graph.clone();
        part.outputs = vec![value];
        let name = graph.value(value).name.clone();
        let mut part = part.pruned();
        part.lift_constants();
        let mut given = initial_state(&part, self.weights);
        given.extend(inputs(&part, self.io, 0.0, 1));
        let all = ops::cpu::interpret(&part, &given).map_err(|e| e.to_string())?;
        let at = part.values.iter().position(|v| v.name == name);
        Ok(at.and_then(|i| all.get(&ValueId(i as u32)).cloned()))
    }
}

/// A model with control flow, made straight for these inputs.
fn walked(path: &Path, options: &import::Options, io: &BTreeMap<String, Literal>) -> Imported {
    let open = import::import_open(path, options).unwrap_or_else(|e| panic!("{e}"));
    let how = trace::Options { modes: options.ops, limits: trace::Limits::new(1 << 20), new_weights: false };
    let mut graph = Graph::default();
    let mut oracle = Interpreted { weights: &open.weights, io };
    trace::walk(&open.source, &graph::Bindings::new(), how, &mut graph, &mut oracle)
        .unwrap_or_else(|e| panic!("{e}"));
    Imported {
        output_names: open.source.body.outputs.iter().map(|o| o.to_string()).collect(),
        weights: open.weights,
        candidates: open.candidates,
        remarks: Vec::new(),
        opsets: import::Opsets::new(),
        producer: String::new(),
        symbols: Vec::new(),
        unused_initializers: 0,
        graph,
    }
}

/// Sizes that the reference inputs give to the model's unbound ones.
pub fn dims_of(path: &Path, io: &BTreeMap<String, Literal>) -> Vec<(String, i64)> {
    let mut dims = BTreeMap::new();
    for (name, ty) in import::input_types(path).unwrap_or_else(|e| panic!("{e}")) {
        let Some(l) = io.get(&format!("in:{name}")).or_else(|| io.get(&name)) else { continue };
        for (d, n) in ty.shape.0.iter().zip(l.shape()) {
            if let Some(s) = d.as_symbol() {
                dims.insert(s.to_string(), *n as i64);
            }
        }
    }
    dims.into_iter().collect()
}

/// The training step that PyTorch ran.
///
/// # Panics
///
/// If the reference names an unknown loss.
pub fn options(imported: &Imported, reference: &Reference, file: &str, optimizer: Optimizer) -> TrainOptions {
    let (loss, class_axis) = match (file.contains("_loss"), reference.json["loss"].as_str().unwrap()) {
        (true, _) => (None, None),
        (_, "ce" | "ce2d") => (Some(Loss::CrossEntropy), Some(1)),
        (_, "lm") => (Some(Loss::CrossEntropy), Some(-1)),
        (_, "mse") => (Some(Loss::Mse), None),
        (_, other) => panic!("unknown loss {other}"),
    };
    let chosen = trainable::select(&imported.graph, &imported.candidates, &[], &[]).unwrap();
    TrainOptions {
        loss,
        output: None,
        label: "target".to_owned(),
        class_axis,
        ignore_index: None,
        optimizer,
        clip_norm: None,
        accumulate: 1,
        trainable: chosen.iter().map(|n| n.to_string()).collect(),
        amp: None,
    }
}

/// Plain SGD.
pub fn sgd() -> Optimizer {
    Optimizer::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 }
}

/// PyTorch's AdamW with its defaults.
pub fn adamw() -> Optimizer {
    Optimizer::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, decoupled: true }
}

/// (model, file) of every variant of the static models.
///
/// # Panics
///
/// If the folder cannot be read.
pub fn files(root: &Path) -> Vec<(String, String)> {
    let mut names: Vec<String> = std::fs::read_dir(root.join("small"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n.ends_with(".onnx"))
        .collect();
    names.sort();
    let model = |n: &str| n.split('.').next().unwrap().to_owned();
    names
        .into_iter()
        .map(|n| (model(&n), n))
        .filter(|(m, _)| [STATIC, OPEN].concat().contains(&m.as_str()))
        .collect()
}
