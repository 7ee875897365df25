//! What running costs beside the kernels: a chain of 10,000 additions of one element, on one thread, as CSV.
//!
//! `static`: a plan. `dynamic, first`: the same chain as a dynamic program whose sizes are seen for the first time (walk, preparation of
//! every kernel, run); `dynamic, again`: the sizes are known from before.

use compiler::{
    cost::{CostModel, DeviceProfile},
    dynamic,
    import::{ModelSource, Open, Weights},
    pipeline::{Budget, Request, plan_programs},
    planner,
};
use graph::{Attrs, DType, Dim, Graph, InputRole, Shape, TensorType};
use ops::onnx::{BatchNormMode, DropoutMode, ImportOptions};
use plan::{Device, Plan, ProgramKind};
use runtime::{CpuDevice, LoadOptions, RunOptions, Session, StepInputs, WeightSource};
use std::{sync::Arc, time::Instant};
use trace::{Body, Source, SourceNode};

const OPS: usize = 10_000;
const RUNS: usize = 30;

struct NoWeights;

impl WeightSource for NoWeights {
    fn load(
        &mut self,
        name: &str,
        _: &TensorType,
        _: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        Err(format!("{name}: the chain has no weights"))
    }
}

fn static_chain() -> anyhow::Result<Plan> {
    let mut g = Graph::default();
    let ty = TensorType::new(DType::F32, &[1u64][..]);
    let x = g.add_input("x", ty.clone(), InputRole::Data);
    let mut v = x;
    for i in 0..OPS {
        let out = vec![(format!("y{i}").into(), ty.clone())];
        let n = g.add_node(format!("add{i}"), "Add", Attrs::new(), vec![Some(v), Some(x)], out);
        v = g.node(n).outputs[0];
    }
    g.outputs = vec![v];
    let options = planner::Options::default();
    let request = Request {
        model: "chain",
        accumulate: 1,
        device: Device::Cpu,
        weight_hash: &|_| None,
        costs: &CostModel::estimated(DeviceProfile::cpu()),
        planner: &options,
    };
    Ok(plan_programs(vec![(ProgramKind::Infer, g)], Budget::OfKeepAll(1.0), &request)?.plan)
}

fn dynamic_chain() -> anyhow::Result<Plan> {
    let name = |s: &str, i: usize| -> Arc<str> {
        if i == 0 && s == "y" { "x".into() } else { format!("{s}{i}").into() }
    };
    let node = |i: usize| SourceNode {
        name: name("add", i),
        domain: "".into(),
        op_type: "Add".into(),
        opset: 17,
        attrs: Attrs::new(),
        bodies: Vec::new(),
        inputs: vec![name("y", i), "x".into()],
        outputs: vec![name("y", i + 1)],
        used: vec![true],
        makes_weight: false,
    };
    let ty = TensorType { dtype: DType::F32, shape: Shape(vec![Dim::symbol("n")]) };
    let mut graph = Graph::default();
    graph.add_input("x", ty.clone(), InputRole::Data);
    let body = Body { nodes: (0..OPS).map(node).collect(), outputs: vec![name("y", OPS)], ..Body::default() };
    let open = Open {
        source: Source { inputs: vec![("x".into(), ty)], body, ..Source::default() },
        graph,
        weights: Weights::new(ModelSource::Bytes("chain".to_owned(), Arc::from([]))),
        candidates: Vec::new(),
        remarks: Vec::new(),
    };
    let request = dynamic::Request {
        model: "chain",
        open: &open,
        modes: ImportOptions {
            training: false,
            batchnorm: BatchNormMode::Auto,
            dropout: DropoutMode::Auto,
            unbiased_running_variance: false,
        },
        train: None,
        with_inference: false,
        evaluate: None,
        reason: "a benchmark",
        device: Device::Cpu,
        rates: &DeviceProfile::cpu(),
        weight_hash: &|_| None,
    };
    Ok(dynamic::plan(&request, 1 << 20, None)?)
}

/// Microseconds an op: of the first run, and the median of the others.
fn time(plan: Plan) -> anyhow::Result<(f64, f64)> {
    let device = Box::new(CpuDevice::new(1)?);
    let mut s = Session::load(plan, device, &mut NoWeights, LoadOptions::default())?;
    let one = 1.0f32.to_le_bytes();
    let inputs = StepInputs { data: &[("x", &one)], shapes: &[("x", &[1])], ..StepInputs::default() };
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let start = Instant::now();
        let r = s.run(0, &inputs, RunOptions::default())?;
        times.push(start.elapsed().as_secs_f64() * 1e6 / OPS as f64);
        anyhow::ensure!(r.loss() == Some(OPS as f64 + 1.0), "the chain adds up to {:?}", r.loss());
    }
    let first = times.remove(0);
    times.sort_by(f64::total_cmp);
    Ok((first, times[times.len() / 2]))
}

fn main() -> anyhow::Result<()> {
    println!("program,microseconds_per_op");
    println!("static,{:.3}", time(static_chain()?)?.1);
    let (first, again) = time(dynamic_chain()?)?;
    println!("\"dynamic, first\",{first:.3}");
    println!("\"dynamic, again\",{again:.3}");
    Ok(())
}
