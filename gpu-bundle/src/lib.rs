//! What has to be proved on a machine with a GPU: parts that run there alone, from a folder without anything of this workspace.
//!
//! `cargo xtask gpu-bundle` makes the folder; `./run PART --deadline S` runs a part there. Each part is a list of items with a result file
//! of its own, written after every item, so that a part goes on where a deadline cut it. What was not run stands in the results, with the
//! reason. The same parts run on the simulated driver (`--sim`), as far as that is of use: the part `smoke` does in the tests.

pub mod device;
pub mod models;
pub mod part;
pub mod parts;
pub mod seeded;
pub mod table;
pub mod trial;

use device::On;
use part::{Clock, Part};
use std::path::PathBuf;

/// The folder, and the device that parts run on.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// Where models, references and results are.
    pub folder: PathBuf,
    /// The device.
    pub on: On,
}

/// Parts by name, what they show, and whether they take a model.
pub const PARTS: [(&str, bool, &str); 7] = [
    ("smoke", false, "driver and compiler work, a few kernels, mlp trains"),
    ("kernels", false, "every operator's cases against the CPU's kernels"),
    ("losses", false, "losses of the handed models against PyTorch's"),
    ("budgets", false, "the same bytes of state in every budget"),
    ("memory", false, "the device's memory against the plan, nothing taken after loading"),
    (
        "speed",
        true,
        "step times at 100, 60 and 40 % of keep-all, predicted against measured, kernels below the floor",
    ),
    ("torch", true, "step times and peaks of PyTorch: eager, checkpoint, compile"),
];

/// Models that `speed` and `torch` take.
pub const MODELS: [&str; 4] = ["resnet50", "bert", "gpt2", "unet"];

/// Runs a part within a time, and writes its result file.
///
/// # Errors
///
/// There is no such part or device, or the file cannot be written. An item that fails is a result.
pub fn run(bundle: &Bundle, name: &str, model: Option<&str>, clock: Clock) -> Result<Part, String> {
    let known = PARTS.iter().find(|p| p.0 == name).ok_or_else(|| {
        let names: Vec<&str> = PARTS.iter().map(|p| p.0).collect();
        format!("no part {name:?}; there are {}", names.join(", "))
    })?;
    let model = match (known.1, model) {
        (false, None) => None,
        (false, Some(_)) => return Err(format!("part {name} takes no model")),
        (true, m) => Some(
            m.filter(|m| MODELS.contains(m))
                .ok_or_else(|| format!("part {name} takes a model: {}", MODELS.join(", ")))?,
        ),
    };
    let title = model.map_or(name.to_owned(), |m| format!("{name}-{m}"));
    let mut part = Part::open(&bundle.folder, &title, bundle.on.describe()?, clock)?;
    match (name, model) {
        ("smoke", _) => parts::smoke::run(bundle, &mut part)?,
        ("kernels", _) => parts::kernels::run(bundle, &mut part)?,
        ("losses", _) => parts::losses::run(bundle, &mut part)?,
        ("budgets", _) => parts::budgets::run(bundle, &mut part)?,
        ("memory", _) => parts::memory::run(bundle, &mut part)?,
        ("speed", Some(m)) => parts::speed::run(bundle, &mut part, m)?,
        ("torch", Some(m)) => parts::torch::run(bundle, &mut part, m)?,
        _ => return Err(format!("part {name} is not to be run so")),
    }
    part.close()?;
    Ok(part)
}
