//! The models of the bundle: small ones with their weights and PyTorch's numbers, and full-size ones without weights.

use compiler::{
    cost::CostModel,
    import::{self, Weights, trainable},
    pipeline::rewritten_programs,
    train::{Loss, Optimizer, TrainOptions},
};
use graph::{Graph, Literal};
use ops::onnx::{BatchNormMode, DropoutMode, ImportOptions};
use plan::ProgramKind;
use rewrite::Level;
use runtime::data::npz::Npz;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// A model as programs, before it is planned.
pub struct Model {
    /// Its name.
    pub name: String,
    /// Its training step.
    pub graphs: Vec<(ProgramKind, Graph)>,
    /// Its weights.
    pub weights: Weights,
    /// What those without elements are filled with.
    pub index: Option<Value>,
}

/// A small model with what PyTorch made of it.
pub struct Handed {
    /// The model.
    pub model: Model,
    /// Inputs and label by name.
    pub io: Vec<(String, Literal)>,
    /// Losses before the first step and after each.
    pub losses: Vec<f64>,
    /// How far PyTorch's float32 is from its float64.
    pub noise: f64,
}

/// Small models in the bundle, by name.
pub fn handed_names(folder: &Path) -> Result<Vec<String>, String> {
    let folder = folder.join("models/small");
    let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let names = entries.filter_map(|e| e.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter_map(|n| Some(n.strip_suffix(".ts_loss.onnx")?.to_owned())).collect();
    names.sort();
    Ok(names)
}

/// PyTorch's AdamW with its defaults.
fn adamw() -> Optimizer {
    Optimizer::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, decoupled: true }
}

struct How<'a> {
    dims: Vec<(String, i64)>,
    loss: Option<(Loss, i64)>,
    optimizer: Optimizer,
    level: Level,
    costs: &'a CostModel,
}

/// Imports a model and makes its training step. The error of a model whose sizes are known only at run time says so.
fn step(path: &Path, name: &str, how: How<'_>) -> Result<Model, String> {
    let options = import::Options {
        dims: how.dims,
        ops: ImportOptions {
            training: true,
            batchnorm: BatchNormMode::Auto,
            dropout: DropoutMode::Auto,
            unbiased_running_variance: true,
        },
        ..import::Options::default()
    };
    let imported = import::import(path, &options).map_err(|e| {
        let open = if e.is_open() { "dynamic, and dynamic models do not run on CUDA yet: " } else { "" };
        format!("{open}{e}")
    })?;
    let chosen =
        trainable::select(&imported.graph, &imported.candidates, &[], &[]).map_err(|e| e.to_string())?;
    let train = TrainOptions {
        loss: how.loss.as_ref().map(|l| l.0.clone()),
        output: None,
        label: "target".to_owned(),
        class_axis: how.loss.as_ref().map(|l| l.1),
        ignore_index: None,
        optimizer: how.optimizer,
        clip_norm: None,
        accumulate: 1,
        trainable: chosen.iter().map(|n| n.to_string()).collect(),
        amp: None,
    };
    let made = rewritten_programs(&imported.graph, Some(&train), None, how.level, how.costs);
    let graphs = made.map_err(|e| e.to_string())?.graphs;
    Ok(Model { name: name.to_owned(), graphs, weights: imported.weights, index: None })
}

/// Reads a small model and its reference; its step is AdamW's.
pub fn handed(folder: &Path, name: &str, costs: &CostModel) -> Result<Handed, String> {
    let path = folder.join(format!("models/small/{name}.ts_loss.onnx"));
    let reference = |end: &str| folder.join(format!("models/reference/{name}.{end}"));
    let mut npz = Npz::open(&reference("io.npz")).map_err(|e| e.to_string())?;
    let mut io = Vec::new();
    for n in npz.names() {
        let l = npz.read(&n).map_err(|e| e.to_string())?;
        io.push((n.strip_prefix("in:").unwrap_or(&n).to_owned(), l));
    }
    let json = read_json(&reference("ref.json"))?;
    let losses = |key: &str| -> Vec<f64> {
        let all = json["adamw"][key].as_array();
        all.map(|a| a.iter().filter_map(Value::as_f64).collect()).unwrap_or_default()
    };
    let (f32s, f64s) = (losses("losses"), losses("losses_f64"));
    let mut dims = BTreeMap::new();
    for (input, ty) in import::input_types(&path).map_err(|e| e.to_string())? {
        let Some((_, l)) = io.iter().find(|(n, _)| *n == input) else { continue };
        for (d, n) in ty.shape.0.iter().zip(l.shape()) {
            if let Some(s) = d.as_symbol() {
                dims.insert(s.to_string(), *n as i64);
            }
        }
    }
    let how =
        How { dims: dims.into_iter().collect(), loss: None, optimizer: adamw(), level: Level::Exact, costs };
    let noise = f32s.iter().zip(&f64s).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    Ok(Handed { model: step(&path, name, how)?, io, losses: f64s, noise })
}

/// What a full-size model is trained with.
pub struct Full {
    /// Name of the file, without folder and `.onnx`.
    pub file: &'static str,
    /// Sizes.
    pub dims: &'static [(&'static str, i64)],
    /// Axis of the classes in its output.
    pub class_axis: i64,
    /// Inputs of integers, and what those stay below.
    pub classes: &'static [(&'static str, u64)],
    /// Inputs that are all ones.
    pub ones: &'static [&'static str],
}

/// The full-size models, in the sizes that they are compared at.
pub fn full(name: &str) -> Option<Full> {
    let found = match name {
        "resnet50" => Full {
            file: "resnet50.ts_dyn",
            dims: &[("batch", 64)],
            class_axis: 1,
            classes: &[("target", 1000)],
            ones: &[],
        },
        "bert" => Full {
            file: "bert.ts_dyn",
            dims: &[("batch", 16), ("seq", 512)],
            class_axis: 1,
            classes: &[("input_ids", 30522), ("target", 2)],
            ones: &["attention_mask"],
        },
        "gpt2" => Full {
            file: "gpt2.ts_dyn",
            dims: &[("batch", 8), ("seq", 1024)],
            class_axis: -1,
            classes: &[("input_ids", 50257), ("target", 50257)],
            ones: &[],
        },
        "unet" => Full {
            file: "unet.ts_dyn",
            dims: &[("batch", 8)],
            class_axis: 1,
            classes: &[("target", 2)],
            ones: &[],
        },
        _ => return None,
    };
    Some(found)
}

/// Reads a full-size model; its step is plain SGD's, as PyTorch's beside it.
pub fn topology(folder: &Path, name: &str, level: Level, costs: &CostModel) -> Result<(Model, Full), String> {
    let full = full(name).ok_or_else(|| format!("no full-size model {name:?}"))?;
    let folder: PathBuf = folder.join("models/topology");
    let how = How {
        dims: full.dims.iter().map(|(n, d)| ((*n).to_owned(), *d)).collect(),
        loss: Some((Loss::CrossEntropy, full.class_axis)),
        optimizer: Optimizer::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
        level,
        costs,
    };
    let mut model = step(&folder.join(format!("{}.onnx", full.file)), name, how)?;
    let index = read_json(&folder.join("weights_index.json"))?;
    model.index = Some(index[name]["tensors"].clone());
    Ok((model, full))
}

fn read_json(path: &Path) -> Result<Value, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}
