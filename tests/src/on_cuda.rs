//! Small models planned for CUDA and trained on the simulated driver.

use crate::{
    Weights,
    reference::{Reference, adamw, import_model, options},
    tiny,
};
use compiler::{
    cost::{CostModel, DeviceProfile},
    pipeline::{Budget, CompileError, Request, plan_budgets, rewritten_programs},
    planner::{Options, PlanError},
};
use cuda::sim::{HostCompiler, Sim};
use graph::{DType, Graph, InputRole, Literal};
use onnx_models::ModelProto;
use plan::{Device, Plan, ProgramKind};
use rewrite::Level;
use runtime::{CudaDevice, LoadOptions, RunOptions, RuntimeError, Session, StepInputs};
use std::{collections::BTreeMap, path::Path};

/// The C++ compiler, or `None` after saying loudly that the test is skipped.
///
/// # Panics
///
/// If `CI` is set and there is none.
pub fn compiler() -> Option<HostCompiler> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let compiler = HostCompiler::new(&root.join("target/cuda-host")).reading(&root.join("ops/src"));
    if !compiler.works() {
        test_support::skipped("there is no C++ compiler: install one, or set CXX");
        return None;
    }
    Some(compiler)
}

/// Plans for shares of keep-all, or the least where that is infeasible.
pub fn plans(graphs: &[(ProgramKind, Graph)], device: Device, shares: &[f64]) -> Result<Vec<Plan>, String> {
    let planner = Options { work: Some(200_000), ..Options::default() };
    let costs = CostModel::estimated(DeviceProfile::cpu());
    let request = Request {
        model: "test",
        accumulate: 1,
        device,
        weight_hash: &|_| None,
        costs: &costs,
        planner: &planner,
    };
    let budgets: Vec<Budget> = shares.iter().map(|s| Budget::OfKeepAll(*s)).collect();
    let mut out = Vec::new();
    for result in plan_budgets(graphs.to_vec(), &budgets, &request).map_err(|e| e.to_string())? {
        out.push(match result {
            Ok(c) => c.plan,
            Err(CompileError::Plan(PlanError::Infeasible(i))) => {
                let least = [Budget::Bytes(i.least_arena)];
                let mut again = plan_budgets(graphs.to_vec(), &least, &request).map_err(|e| e.to_string())?;
                again.remove(0).map_err(|e| format!("the least arena is infeasible: {e}"))?.plan
            }
            Err(e) => return Err(e.to_string()),
        });
    }
    Ok(out)
}

/// A model ready to be planned and trained.
pub struct Model {
    /// Its training step.
    pub graphs: Vec<(ProgramKind, Graph)>,
    /// Its weights.
    pub weights: compiler::import::Weights,
    /// Inputs and label.
    pub io: BTreeMap<String, Literal>,
}

impl Model {
    /// Reads a model and its reference.
    pub fn load(root: &Path, model: &str, variant: &str) -> Model {
        Model::rewritten(root, model, variant, Level::Exact)
    }

    /// As [`Model::load`], rewritten further.
    ///
    /// # Panics
    ///
    /// If a file is missing.
    pub fn rewritten(root: &Path, model: &str, variant: &str, level: Level) -> Model {
        let file = format!("{model}.{variant}.onnx");
        let reference = Reference::load(root, model);
        let imported = import_model(&root.join("small").join(&file), &file, model, &reference.io);
        let train = options(&imported, &reference, &file, adamw());
        let costs = CostModel::estimated(DeviceProfile::cpu());
        let made = rewritten_programs(&imported.graph, Some(&train), None, level, &costs).unwrap();
        Model { graphs: made.graphs, weights: imported.weights, io: reference.io }
    }

    /// A model that is written here, with its loss inside, rewritten. Its inputs are zeros and ones.
    ///
    /// # Panics
    ///
    /// If it cannot be trained.
    pub fn written(model: &ModelProto, level: Level) -> Model {
        let imported = tiny::written(model);
        let train = tiny::train_options(&imported, adamw());
        let costs = CostModel::estimated(DeviceProfile::cpu());
        let made = rewritten_programs(&imported.graph, Some(&train), None, level, &costs).unwrap();
        let g = &made.graphs[0].1;
        let given = g.inputs.iter().filter(|i| matches!(i.role, InputRole::Data | InputRole::Label));
        let one = |i: &graph::Input| {
            let (name, ty) = (g.value(i.value).name.to_string(), g.ty(i.value));
            let n: usize = ty.shape.fixed().unwrap().iter().product();
            let bytes: Vec<u8> = (0..n).flat_map(|k| ((k * k / 3 % 2) as i64).to_le_bytes()).collect();
            assert_eq!(ty.dtype, DType::I64, "{name}");
            let dims = ty.shape.fixed().unwrap().iter().map(|d| *d as u64).collect();
            (name, Literal::new(ty.dtype, dims, bytes).unwrap())
        };
        let io = given.map(one).collect();
        Model { graphs: made.graphs, weights: imported.weights, io }
    }

    /// A session on a device.
    pub fn session(&self, plan: &Plan, device: Box<dyn runtime::Device>) -> Result<Session, RuntimeError> {
        Session::load(plan.clone(), device, &mut Weights(&self.weights), LoadOptions::default())
    }

    /// Inputs of a step by name.
    pub fn data(&self) -> Vec<(&str, &[u8])> {
        self.io.iter().map(|(n, l)| (n.strip_prefix("in:").unwrap_or(n), l.bytes())).collect()
    }

    /// Runs a step; its loss.
    ///
    /// # Panics
    ///
    /// If it has none.
    pub fn step(&self, session: &mut Session, step: i64, options: RunOptions) -> Result<f64, RuntimeError> {
        let data = self.data();
        let inputs = StepInputs { data: &data, learning_rate: 1e-3, step, seed: 3, ..StepInputs::default() };
        Ok(session.run(0, &inputs, options)?.loss().unwrap())
    }
}

/// A device on the simulated driver.
///
/// # Panics
///
/// If the driver refuses its first calls.
pub fn simulated(sim: Sim, compiler: HostCompiler) -> Box<dyn runtime::Device> {
    Box::new(CudaDevice::new(Box::new(sim), Box::new(compiler)).unwrap())
}
