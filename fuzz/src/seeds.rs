//! Writes what the fuzzers start from: small generated models, and plans of their training steps.
//!
//! Usage: seeds FOLDER (`fuzz/corpus`, where cargo-fuzz looks)

use compiler::{
    cost::{CostModel, DeviceProfile},
    import::{Options, import_bytes},
    pipeline::{Budget, Request, plan_programs, programs},
    planner,
};
use dtrc_fuzz::{header, train_options};
use onnx_models::{Common, Mlp, ModelProto, ResNet, Transformer, UNet, to_bytes};
use plan::Device;
use std::{error::Error, fs, path::PathBuf};

/// The families of the generator, as small as they get.
fn models() -> [(&'static str, ModelProto); 4] {
    let common = Common { batch: 2, dynamic: false, loss: true, seed: 1 };
    [
        ("mlp", Mlp { inputs: 3, hidden: vec![4], classes: 2 }.build(&common)),
        ("resnet", ResNet { depth: 8, width: 2, classes: 2, size: 8, channels: 1 }.build(&common)),
        ("unet", UNet { levels: 1, width: 2, classes: 2, size: 8, channels: 1 }.build(&common)),
        (
            "transformer",
            Transformer { layers: 1, width: 4, heads: 2, vocabulary: 8, sequence: 3 }.build(&common),
        ),
    ]
}

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(std::env::args_os().nth(1).ok_or("usage: seeds FOLDER")?);
    for target in ["import", "plan"] {
        fs::create_dir_all(root.join(target))?;
    }
    for (name, model) in models() {
        let bytes = to_bytes(&model)?;
        fs::write(root.join("import").join(name), &bytes)?;
        let imported = import_bytes(name, bytes.into(), &Options::default())?;
        let (graphs, _) = programs(&imported.graph, Some(&train_options(&imported)), None)?;
        let request = Request {
            model: name,
            accumulate: 1,
            device: Device::Cpu,
            weight_hash: &|_| None,
            costs: &CostModel::estimated(DeviceProfile::cpu()),
            planner: &planner::Options { work: Some(10_000), ..planner::Options::default() },
        };
        let plan = plan_programs(graphs, Budget::OfKeepAll(1.0), &request)?.plan;
        fs::write(root.join("plan").join(name), &plan::to_bytes(&plan)?[header()..])?;
    }
    println!("seeds are in {}", root.display());
    Ok(())
}
