//! Programs with loops under online rematerialization: peak against pool and extra time, from everything kept down to the least pool, as
//! CSV.
//!
//! Times are seconds of all cores for one step, the median of three: the first plans, the others take its plan. `root_percent` and
//! `root_extra` are what checkpoints at every square root of the length would come to: their share of the memory and one more forward pass.
//! `unrolled_extra` is what the planner of static programs reaches with the same bytes on the same run, unrolled before, and
//! `unrolled_seconds` what that took of one core. Where it has no plan, the column says `infeasible` if that is proved, else
//! `not found in N s`. A static plan has less to spend: constants and the batch's inputs lie in its arena until they are read last, where
//! a dynamic program copies them anew from the host, and what does not fit a hole cannot slide.
//!
//! `dynamic [MODEL-SUBSTRING] [FACTOR ..] [--percent N]`: lengths are multiplied by each FACTOR (default: 0.05; 1 is 5,000 time steps of
//! springs, 500 of the LSTM, a tree of 200 nodes); one pool only with `--percent`. `bench/results/dynamic.csv` has the rows of 0.05 and 1,
//! of release builds, measured together each; those of 1 while other processes ran, so that their seconds say little.

use compiler::{
    cost::{CostModel, DeviceProfile},
    dynamic,
    import::{self, Weights, trainable},
    pipeline::{Budget, CompileError, Request, plan_programs, programs},
    planner::{self, PlanError},
    train::{Optimizer, TrainOptions},
};
use graph::{Bindings, Graph, Literal, TensorType, ValueDef, ValueId};
use onnx_models::{Common, LoopLstm, ModelProto, Springs, TreeLstm};
use plan::{Device, ProgramKind};
use runtime::{CpuDevice, DynamicReport, LoadOptions, RunOptions, Session, StepInputs, WeightSource};
use std::{collections::BTreeMap, path::Path};
use trace::{Limits, Oracle, Recipe};

/// Pools as shares of what the run takes without a limit, in percent.
const SHARES: [u64; 12] = [100, 90, 75, 60, 50, 40, 30, 20, 10, 5, 2, 1];

struct FromModel<'a>(&'a Weights);

impl WeightSource for FromModel<'_> {
    fn load(
        &mut self,
        name: &str,
        _: &TensorType,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        self.0.read(name, &mut |c| sink(c).map_err(std::io::Error::other)).map_err(|e| e.to_string())
    }
}

/// One input: name, extents, elements.
type Array = (&'static str, Vec<u64>, Vec<u8>);

struct Case {
    name: String,
    /// Iterations of its loop.
    length: u32,
    model: ModelProto,
    data: Vec<Array>,
}

fn floats(n: u64) -> Vec<u8> {
    let mut x = 1u64;
    let mut next = || {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (x >> 41) as f32 / (1u32 << 22) as f32 - 1.0
    };
    (0..n).flat_map(|_| next().to_le_bytes()).collect()
}

fn ints(v: &[i64]) -> Vec<u8> {
    v.iter().flat_map(|i| i.to_le_bytes()).collect()
}

/// Children of a binary tree whose leaves come first and are joined two by two.
fn tree(nodes: u64) -> (Vec<i64>, Vec<i64>) {
    let leaves = nodes.div_ceil(2);
    let (mut left, mut right) = (vec![-1; nodes as usize], vec![-1; nodes as usize]);
    let mut open: std::collections::VecDeque<u64> = (0..leaves).collect();
    for n in leaves..nodes {
        if let (Some(a), Some(b)) = (open.pop_front(), open.pop_front()) {
            (left[n as usize], right[n as usize]) = (a as i64, b as i64);
            open.push_back(n);
        }
    }
    (left, right)
}

fn cases(factor: f64) -> Vec<Case> {
    let times = |n: u32| ((f64::from(n) * factor) as u32).max(3);
    let common = |batch| Common { batch, dynamic: false, loss: true, seed: 0 };
    let (steps, words, nodes) = (times(5000), times(500), times(200) | 1);
    let springs = Springs { masses: 64, steps };
    let lstm = LoopLstm { layers: 2, inputs: 16, width: 32, steps: words, classes: 5 };
    let tree_lstm = TreeLstm { nodes, inputs: 16, width: 32, classes: 5 };
    let (left, right) = tree(u64::from(nodes));
    let (w, n) = (u64::from(words), u64::from(nodes));
    vec![
        Case {
            name: format!("springs, {steps} steps"),
            length: steps,
            model: springs.build(&common(1)),
            data: vec![("target", vec![1, 64], floats(64))],
        },
        Case {
            name: format!("loop LSTM, {words} steps"),
            length: words,
            model: lstm.build(&common(8)),
            data: vec![
                ("x", vec![8, w, 16], floats(8 * w * 16)),
                ("target", vec![8], ints(&[0, 1, 2, 3, 4, 0, 1, 2])),
            ],
        },
        Case {
            name: format!("TreeLSTM, {nodes} nodes"),
            length: nodes,
            model: tree_lstm.build(&common(1)),
            data: vec![
                ("x", vec![n, 1, 16], floats(n * 16)),
                ("left", vec![n], ints(&left)),
                ("right", vec![n], ints(&right)),
                ("target", vec![1], ints(&[2])),
            ],
        },
    ]
}

fn options(chosen: Vec<String>) -> TrainOptions {
    TrainOptions {
        loss: None,
        output: None,
        label: "target".to_owned(),
        class_axis: None,
        ignore_index: None,
        optimizer: Optimizer::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
        clip_norm: None,
        accumulate: 1,
        trainable: chosen,
        amp: None,
    }
}

/// Loss bits, median seconds of a step and the report, or the refusal.
fn step(
    path: &Path,
    case: &Case,
    pool: u64,
    train: bool,
) -> anyhow::Result<Result<(u64, f64, DynamicReport), String>> {
    let how = import::Options::default();
    let open = import::import_open(path, &how)?;
    let chosen = options(trainable::select(&open.graph, &open.candidates, &[], &[])?);
    let rates = DeviceProfile::cpu();
    let request = dynamic::Request::new(&open, how.ops, train.then_some(&chosen), &rates);
    let plan = dynamic::plan(&request, 1 << 40, Some(pool))?;
    let device = Box::new(CpuDevice::new(1)?);
    let mut s = Session::load(plan, device, &mut FromModel(&open.weights), LoadOptions::default())?;
    let data: Vec<(&str, &[u8])> = case.data.iter().map(|(n, _, b)| (*n, b.as_slice())).collect();
    let shapes: Vec<(&str, &[u64])> = case.data.iter().map(|(n, s, _)| (*n, s.as_slice())).collect();
    let mut times = Vec::new();
    let mut last = (0, DynamicReport::default());
    for i in 0..3 {
        let inputs = StepInputs { data: &data, shapes: &shapes, learning_rate: 0.01, step: i + 1, seed: 0 };
        let start = bench::process_cpu_seconds();
        match s.run(0, &inputs, RunOptions::default()) {
            Ok(r) => {
                let report = r.report.dynamic.unwrap_or_default();
                last = (r.loss().unwrap_or(f64::NAN).to_bits(), report);
            }
            Err(e) => return Ok(Err(e.to_string())),
        }
        times.push(bench::process_cpu_seconds() - start);
    }
    times.sort_by(f64::total_cmp);
    Ok(Ok((last.0, times[1], last.1)))
}

/// Computes what the walk asks for from the inputs: conditions of a tree's nodes.
struct Interpreted<'a>(&'a [Array], &'a Weights);

impl Oracle for Interpreted<'_> {
    fn elements(&mut self, graph: &Graph, value: ValueId) -> Result<Option<Literal>, String> {
        let mut part = graph.clone();
        part.outputs = vec![value];
        let mut part = part.pruned();
        part.lift_constants();
        let mut given = BTreeMap::new();
        for (i, v) in part.values.iter().enumerate().filter(|(_, v)| matches!(v.def, ValueDef::Input(_))) {
            if let Some((_, shape, bytes)) = self.0.iter().find(|(n, _, _)| *n == &*v.name) {
                let l = Literal::new(v.ty.dtype, shape.clone(), bytes.clone()).map_err(|e| e.to_string())?;
                given.insert(ValueId(i as u32), l);
            }
        }
        for s in &part.states {
            let first = match &s.init {
                graph::Init::Literal(l) => l.clone(),
                graph::Init::Weight(name) => self.1.literal(name).map_err(|e| e.to_string())?,
                graph::Init::Zeros => continue,
            };
            given.insert(s.input, first);
        }
        let all = ops::cpu::interpret(&part, &given).map_err(|e| e.to_string())?;
        Ok(part.outputs.first().and_then(|v| all.get(v).cloned()))
    }
}

/// The run unrolled: its training step, and the bytes of its state as the dynamic plan has them.
fn unrolled(path: &Path, case: &Case) -> anyhow::Result<(Vec<(ProgramKind, Graph)>, u64)> {
    let how = import::Options::default();
    let open = import::import_open(path, &how)?;
    let chosen = options(trainable::select(&open.graph, &open.candidates, &[], &[])?);
    let rates = DeviceProfile::cpu();
    let request = dynamic::Request::new(&open, how.ops, Some(&chosen), &rates);
    let plan = dynamic::plan(&request, 1 << 40, None)?;
    let info = plan.programs[0].dynamic.as_ref().ok_or_else(|| anyhow::anyhow!("the plan is static"))?;
    let recipe = Recipe::from_bytes(&info.recipe)?;
    let limits = Limits::new(1 << 20);
    let (forward, _) =
        recipe.forward(&Bindings::new(), limits, &mut Interpreted(&case.data, &open.weights))?;
    Ok((programs(&forward, Some(&chosen), None)?.0, plan.state_bytes))
}

/// The extra time that the planner reaches within a budget, or why it has no plan, and the seconds of one core that it took.
fn planned_extra(graphs: &[(ProgramKind, Graph)], budget: u64) -> anyhow::Result<String> {
    let begin = bench::cpu_seconds();
    let planner = planner::Options::default();
    let costs = CostModel::estimated(DeviceProfile::cpu());
    let request = Request {
        model: "unrolled",
        accumulate: 1,
        device: Device::Cpu,
        weight_hash: &|_| None,
        costs: &costs,
        planner: &planner,
    };
    let planned = plan_programs(graphs.to_vec(), Budget::Bytes(budget), &request);
    let seconds = bench::cpu_seconds() - begin;
    let extra = match planned {
        Ok(c) => {
            let c = &c.plan.programs[0].certificate;
            format!("{:.3}", c.time_ns as f64 / c.base_time_ns as f64 - 1.0)
        }
        Err(CompileError::Plan(PlanError::Infeasible(e))) if e.proved => "infeasible".to_owned(),
        Err(CompileError::Plan(PlanError::Infeasible(_))) => format!("not found in {seconds:.0} s"),
        Err(e) => return Err(e.into()),
    };
    Ok(format!("{extra},{seconds:.1}"))
}

fn main() -> anyhow::Result<()> {
    let (mut factors, mut wanted): (Vec<f64>, String) = (Vec::new(), String::new());
    let mut shares = SHARES.to_vec();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--percent" {
            shares = vec![arguments.next().unwrap_or_default().parse()?];
            continue;
        }
        match argument.parse() {
            Ok(factor) => factors.push(factor),
            Err(_) => wanted = argument,
        }
    }
    if factors.is_empty() {
        factors = vec![0.05];
    }
    let dir = std::env::temp_dir().join(format!("dtrc-dynamic-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    println!(
        "model,nodes,pool_percent,pool_bytes,peak_bytes,evictions,repetitions,estimated_extra,cpu_seconds,seconds_extra,\
         root_percent,root_extra,unrolled_extra,\
         unrolled_seconds"
    );
    for case in factors.into_iter().flat_map(cases).filter(|c| c.name.contains(&wanted)) {
        let path = dir.join("model.onnx");
        std::fs::write(&path, onnx_models::to_bytes(&case.model)?)?;
        let (bits, base, free) = step(&path, &case, 1 << 33, true)?.map_err(anyhow::Error::msg)?;
        let forward = step(&path, &case, 1 << 33, false)?.map_err(anyhow::Error::msg)?.2;
        let root = (
            200.0 / f64::from(case.length).sqrt(),
            forward.estimated_ns as f64 / free.estimated_ns.max(1) as f64,
        );
        let (graphs, state) = unrolled(&path, &case)?;
        let row = |percent: f64, pool: u64| -> anyhow::Result<Option<u64>> {
            match step(&path, &case, pool, true)? {
                Ok((b, seconds, r)) => {
                    anyhow::ensure!(b == bits, "{}: other bits at {percent} %", case.name);
                    let beside = planned_extra(&graphs, state + pool)?;
                    println!(
                        "\"{}\",{},{percent:.0},{pool},{},{},{},{:.3},{seconds:.4},{:.3},{:.1},{:.3},{beside}",
                        case.name,
                        r.nodes,
                        r.pool.peak,
                        r.evictions,
                        r.remats,
                        r.extra_permille as f64 / 1000.0,
                        seconds / base - 1.0,
                        root.0,
                        root.1
                    );
                    Ok(None)
                }
                Err(e) => {
                    let least = e.rsplit_once("a pool of ").and_then(|(_, t)| t.split(' ').next());
                    Ok(Some(least.and_then(|n| n.parse().ok()).unwrap_or(0)))
                }
            }
        };
        for &share in &shares {
            if let Some(least) = row(share as f64, plan::align(free.pool.peak * share / 100))? {
                // The least feasible ends the table.
                if least > 0 {
                    row(100.0 * least as f64 / free.pool.peak as f64, least)?;
                }
                break;
            }
        }
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
