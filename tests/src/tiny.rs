//! The small models beside the generator's sources: their training steps, plans and first steps.

use compiler::{
    cost::{CostModel, DeviceProfile},
    import::{self, Imported, Weights, trainable},
    pipeline::{Budget, CompileError, Request, plan_budgets, programs},
    planner::{Options, PlanError},
    train::{Optimizer, TrainOptions},
};
use graph::{DType, InputRole};
use onnx_models::ModelProto;
use plan::{Device, Plan, ProgramKind};
use rand::{Rng, SeedableRng, rngs::StdRng};
use runtime::{CpuDevice, LoadOptions, RunOptions, RuntimeError, Session, StepInputs};
use std::path::PathBuf;

/// File names of the models.
pub const TINY: [&str; 4] = ["mlp_tiny.onnx", "unet_tiny.onnx", "transformer_tiny.onnx", "resnet_tiny.onnx"];

/// Where a model lies.
pub fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../onnx-models").join(file)
}

/// The model, imported for training.
///
/// # Panics
///
/// If it cannot be imported.
pub fn imported(file: &str) -> Imported {
    import::import(&path(file), &import::Options::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// A model that is written here, imported for training.
///
/// # Panics
///
/// If it cannot be imported.
pub fn written(model: &ModelProto) -> Imported {
    let bytes = onnx_models::to_bytes(model).expect("a small model");
    import::import_bytes("written", bytes.into(), &import::Options::default())
        .unwrap_or_else(|e| panic!("{e}"))
}

/// Training with this optimizer, by the loss in the model.
///
/// # Panics
///
/// If nothing can be trained.
pub fn train_options(imported: &Imported, optimizer: Optimizer) -> TrainOptions {
    let chosen = trainable::select(&imported.graph, &imported.candidates, &[], &[]).expect("candidates");
    TrainOptions {
        loss: None,
        output: None,
        label: "target".to_owned(),
        class_axis: None,
        ignore_index: None,
        optimizer,
        clip_norm: None,
        accumulate: 1,
        trainable: chosen.iter().map(|n| n.to_string()).collect(),
        amp: None,
    }
}

/// Plans of the model's training step at shares of keep-all; where one is infeasible, at the least arena that was found.
///
/// # Panics
///
/// If there is no plan.
pub fn plans(imported: &Imported, optimizer: Optimizer, shares: &[f64]) -> Vec<Plan> {
    let options = train_options(imported, optimizer);
    let (graphs, _) = programs(&imported.graph, Some(&options), None).unwrap_or_else(|e| panic!("{e}"));
    // Any plan will do: the search is short.
    let planner = Options { work: Some(100_000), ..Options::default() };
    let costs = CostModel::estimated(DeviceProfile::cpu());
    let request = Request {
        model: "tiny",
        accumulate: 1,
        device: Device::Cpu,
        weight_hash: &|_| None,
        costs: &costs,
        planner: &planner,
    };
    let plan = |budgets: &[Budget]| {
        plan_budgets(graphs.clone(), budgets, &request).unwrap_or_else(|e| panic!("{e}"))
    };
    let budgets: Vec<Budget> = shares.iter().map(|s| Budget::OfKeepAll(*s)).collect();
    let found = plan(&budgets).into_iter().map(|result| match result {
        Ok(c) => c.plan,
        Err(CompileError::Plan(PlanError::Infeasible(i))) => {
            let least = plan(&[Budget::Bytes(i.least_arena)]).remove(0);
            least.unwrap_or_else(|e| panic!("the least arena is infeasible: {e}")).plan
        }
        Err(e) => panic!("{e}"),
    });
    found.collect()
}

/// Seeded data for the inputs of a plan's first program: small floats, integers that are classes of every model.
pub fn data(plan: &Plan) -> Vec<(String, Vec<u8>)> {
    let g = &plan.programs[0].graph;
    let mut rng = StdRng::seed_from_u64(5);
    let mut out = Vec::new();
    for i in g.inputs.iter().filter(|i| matches!(i.role, InputRole::Data | InputRole::Label)) {
        let v = g.value(i.value);
        let n = v.ty.shape.elements().unwrap_or(0);
        let mut bytes = Vec::new();
        for _ in 0..n {
            match v.ty.dtype {
                DType::F32 => bytes.extend(rng.random_range(-1.0f32..1.0).to_le_bytes()),
                DType::I64 => bytes.extend(rng.random_range(0i64..2).to_le_bytes()),
                DType::I32 => bytes.extend(rng.random_range(0i32..2).to_le_bytes()),
                other => bytes.extend(vec![0; other.size() as usize]),
            }
        }
        out.push((v.name.to_string(), bytes));
    }
    out
}

/// Outputs and state after one step of the plan's first program, as bytes. The data are those of another plan of the same model, so that
/// a plan that reads other inputs is noticed.
///
/// # Errors
///
/// The runtime's refusal.
pub fn step(
    plan: &Plan,
    weights: &Weights,
    data: &[(String, Vec<u8>)],
) -> Result<Vec<Vec<u8>>, RuntimeError> {
    let device = CpuDevice::new(1)?;
    let mut session =
        Session::load(plan.clone(), Box::new(device), &mut crate::Weights(weights), LoadOptions::default())?;
    let data: Vec<(&str, &[u8])> = data.iter().map(|(n, b)| (n.as_str(), b.as_slice())).collect();
    let inputs = StepInputs { data: &data, learning_rate: 0.01, step: 1, seed: 3, ..StepInputs::default() };
    let program = session.program(ProgramKind::Train)?;
    let result = session.run(program, &inputs, RunOptions { check_recompute: true, measure: false })?;
    let mut out: Vec<Vec<u8>> = result.outputs.into_iter().map(|(_, _, bytes)| bytes).collect();
    let mut names: Vec<_> = plan.state.iter().map(|e| e.name.clone()).collect();
    names.sort();
    for name in names {
        out.push(session.state(&name)?);
    }
    Ok(out)
}
