//! What several parts do: plan a model for the device, load it, run steps.

use crate::{Bundle, device::Described, models::Model, seeded::Seeded};
use compiler::{
    cost::{CostModel, DeviceProfile},
    pipeline::{Budget, CompileError, Request, plan_budgets},
    planner::{Options, PlanError},
};
use cuda::profile::{DeviceFigures, Reached, of_device};
use plan::{Device, Plan, Rates};
use runtime::{CpuDevice, LoadOptions, RunOptions, Session, StepInputs};

/// Shipped figures of a device, by its name.
pub fn figures(device: &Described) -> Option<DeviceFigures> {
    of_device(&device.name)
}

/// Estimated costs: from shipped figures where there are some.
pub fn costs(device: &Described) -> CostModel {
    let r = figures(device).map_or_else(
        || {
            let Rates { product_flops_per_s, other_flops_per_s, bytes_per_s, launch_ns } =
                Rates::of(Device::Cuda);
            Reached { product_flops_per_s, other_flops_per_s, bytes_per_s, launch_ns }
        },
        |f| f.reached(false),
    );
    CostModel::estimated(DeviceProfile {
        name: device.name.clone(),
        product_flops_per_s: r.product_flops_per_s,
        other_flops_per_s: r.other_flops_per_s,
        bytes_per_s: r.bytes_per_s,
        launch_ns: r.launch_ns,
    })
}

/// A plan, and the share of keep-all that it was made for; if that is too little, the least there is.
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// Arena of keep-all.
    pub keep_all: u64,
    /// Not the share that was asked for, but the least that is feasible.
    pub least: bool,
}

/// Plans a model for shares of keep-all.
pub fn plans(
    model: &Model,
    device: Device,
    shares: &[f64],
    costs: &CostModel,
    work: Option<u64>,
) -> Result<Vec<Planned>, String> {
    let planner = Options { work, ..Options::default() };
    let request = Request {
        model: &model.name,
        accumulate: 1,
        device,
        weight_hash: &|_| None,
        costs,
        planner: &planner,
    };
    let one =
        |budgets: &[Budget]| plan_budgets(model.graphs.clone(), budgets, &request).map_err(|e| e.to_string());
    let budgets: Vec<Budget> = shares.iter().map(|s| Budget::OfKeepAll(*s)).collect();
    let mut out = Vec::new();
    for result in one(&budgets)? {
        out.push(match result {
            Ok(c) => Planned { plan: c.plan, keep_all: c.keep_all, least: false },
            Err(CompileError::Plan(PlanError::Infeasible(i))) => {
                let c = one(&[Budget::Bytes(i.least_arena)])?.remove(0).map_err(|e| e.to_string())?;
                Planned { plan: c.plan, keep_all: c.keep_all, least: true }
            }
            Err(e) => return Err(e.to_string()),
        });
    }
    Ok(out)
}

/// Loads a plan on the bundle's device, or on the CPU if that is its own.
pub fn load(bundle: &Bundle, model: &Model, plan: &Plan) -> Result<Session, String> {
    let device: Box<dyn runtime::Device> = match plan.device {
        Device::Cpu => Box::new(CpuDevice::new(0).map_err(|e| e.to_string())?),
        Device::Cuda => Box::new(bundle.on.device()?),
    };
    let mut weights = Seeded { own: &model.weights, index: model.index.as_ref() };
    Session::load(plan.clone(), device, &mut weights, LoadOptions::default()).map_err(|e| e.to_string())
}

/// Elements of inputs by name.
pub type Data = Vec<(String, Vec<u8>)>;

/// Runs one step; its loss, and the times of its calls if they are measured.
pub fn step(
    session: &mut Session,
    data: &Data,
    number: i64,
    rate: f32,
    options: RunOptions,
) -> Result<(f64, Vec<u64>), String> {
    let data: Vec<(&str, &[u8])> = data.iter().map(|(n, b)| (n.as_str(), b.as_slice())).collect();
    let inputs =
        StepInputs { data: &data, learning_rate: rate, step: number, seed: 1, ..StepInputs::default() };
    let r = session.run(0, &inputs, options).map_err(|e| e.to_string())?;
    Ok((r.loss().ok_or("the step has no loss")?, r.report.call_ns))
}

/// What training gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    /// Losses before each step.
    pub losses: Vec<f64>,
    /// Hash of the state after the last step.
    pub state: String,
}

/// Trains for some steps on one batch.
pub fn train(
    bundle: &Bundle,
    model: &Model,
    plan: &Plan,
    data: &Data,
    steps: i64,
) -> Result<Trained, String> {
    let mut session = load(bundle, model, plan)?;
    let mut losses = Vec::new();
    for n in 1..=steps {
        losses.push(step(&mut session, data, n, 1e-3, RunOptions::default())?.0);
    }
    let mut hash = blake3::Hasher::new();
    for e in &plan.state {
        hash.update(&session.state(&e.name).map_err(|e| e.to_string())?);
    }
    Ok(Trained { losses, state: hash.finalize().to_hex()[..16].to_owned() })
}

/// The middle one.
pub fn median(all: &mut [f64]) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}
