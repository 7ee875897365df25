//! Training through the whole CUDA path without a GPU: plans for CUDA, one arena, captured graphs, kernels run on the CPU, and every access
//! proved to be ordered. Faults that are planted in it are found.

use cuda::sim::{Fault, HostCompiler, Sim};
use graph::{Attrs, DType, Graph, InputRole, TensorType};
use onnx_models::{Common, Transformer};
use ops::Builder;
use plan::{Device, Place, Plan, ProgramKind, Step};
use rewrite::Level;
use runtime::{CpuDevice, CudaDevice, Device as _, LoadOptions, RunOptions, Session, StepInputs, resolve};
use std::collections::BTreeSet;
use tests::{
    data,
    on_cuda::{Model, compiler, plans, simulated},
};

const STEPS: i64 = 4;
const MEMORY: u64 = 1 << 30;

/// Losses, and the state after the last step.
fn train(
    model: &Model,
    plan: &Plan,
    device: Box<dyn runtime::Device>,
    options: RunOptions,
) -> (Vec<f64>, Vec<Vec<u8>>) {
    let mut session = model.session(plan, device).unwrap_or_else(|e| panic!("{e}"));
    let losses = (1..=STEPS).map(|s| model.step(&mut session, s, options).unwrap_or_else(|e| panic!("{e}")));
    let losses = losses.collect();
    (losses, plan.state.iter().map(|e| session.state(&e.name).unwrap()).collect())
}

fn check(model: &str, variant: &str) {
    let (Some(root), Some(_)) = (data("models"), compiler()) else { return };
    check_model(&Model::load(&root, model, variant), &format!("{model}.{variant}"));
}

fn check_model(m: &Model, name: &str) {
    let on_cpu = plans(&m.graphs, Device::Cpu, &[1.0]).unwrap();
    let (expected, _) = train(m, &on_cpu[0], Box::new(CpuDevice::new(1).unwrap()), RunOptions::default());
    let on_cuda = plans(&m.graphs, Device::Cuda, &[1.0, 0.5]).unwrap();
    assert_eq!(on_cuda[0].numerics, on_cuda[1].numerics);
    let look = RunOptions { check_recompute: true, measure: false };
    let mut states = Vec::new();
    for (plan, options) in on_cuda.iter().zip([RunOptions::default(), look]) {
        let device = simulated(Sim::new(MEMORY), compiler().unwrap());
        let (losses, state) = train(m, plan, device, options);
        let again = plan::validate(plan, ops::cuda::registry(true)).unwrap()[0].recomputed.len();
        println!("{name} in {} bytes, {again} recomputed: {losses:?}, on the CPU {expected:?}", plan.arena);
        for (a, b) in losses.iter().zip(&expected) {
            assert!((a - b).abs() <= 2e-5 * b.abs().max(1.0), "{losses:?} is not {expected:?}");
        }
        states.push((losses, state));
    }
    assert!(on_cuda[1].arena <= on_cuda[0].arena);
    assert!(states[0] == states[1], "the budget changed bits");
}

#[test]
fn mlp_trains() {
    check("mlp", "ts_loss");
}

#[test]
fn mlp_with_dropout_trains() {
    check("mlp", "ts_dropout");
}

#[test]
fn smallcnn_trains() {
    check("smallcnn", "ts_loss");
}

#[test]
fn gpt2_trains() {
    check("gpt2", "ts_loss");
}

/// Attention and the linear layer's cross entropy as one operator each, forward and backward.
#[test]
fn a_transformer_with_fused_operators_trains() {
    let Some(_) = compiler() else { return };
    // More classes than a block of them: of fewer the scores are held at once, and fusing them away saves nothing.
    let model = Transformer { layers: 1, width: 16, heads: 2, vocabulary: 17_000, sequence: 32 };
    let model = model.build(&Common { batch: 2, dynamic: false, loss: true, seed: 1 });
    let m = Model::written(&model, Level::Memory);
    let ops: BTreeSet<&str> = m.graphs.iter().flat_map(|(_, g)| g.nodes.iter().map(|n| &*n.op)).collect();
    for op in ["Attention", "AttentionGrad", "LinearCrossEntropy", "LinearCrossEntropyGrad"] {
        assert!(ops.contains(op), "{op} is not among {ops:?}");
    }
    check_model(&m, "a transformer with fused operators");
}

#[test]
fn resnet18_trains() {
    check("resnet18", "ts_loss");
}

#[test]
fn bert_trains() {
    check("bert", "ts_loss");
}

fn mlp() -> Option<(Model, Plan, HostCompiler)> {
    let (root, compiler) = (data("models")?, compiler()?);
    let m = Model::load(&root, "mlp", "ts_loss");
    let plan = plans(&m.graphs, Device::Cuda, &[1.0]).unwrap().remove(0);
    Some((m, plan, compiler))
}

/// What a session says of a fault: while loading, or in its first step.
fn first_error(m: &Model, plan: &Plan, sim: Sim, compiler: HostCompiler) -> Option<String> {
    let device = CudaDevice::new(Box::new(sim), Box::new(compiler));
    let device = match device {
        Ok(d) => Box::new(d),
        Err(e) => return Some(e.to_string()),
    };
    let mut session = match m.session(plan, device) {
        Ok(s) => s,
        Err(e) => return Some(e.to_string()),
    };
    m.step(&mut session, 1, RunOptions::default()).err().map(|e| e.to_string())
}

#[test]
fn a_missing_event_is_found() {
    let Some((m, plan, compiler)) = mlp() else { return };
    let e = first_error(&m, &plan, Sim::new(MEMORY).with(Fault::SkipWait(0)), compiler).unwrap();
    assert!(e.contains("without waiting for an input"), "{e}");
}

#[test]
fn a_missing_copy_is_found() {
    let Some((m, plan, _)) = mlp() else { return };
    for n in 0..6 {
        let sim = Sim::new(MEMORY).with(Fault::SkipUpload(n));
        let e = first_error(&m, &plan, sim, compiler().unwrap()).unwrap();
        assert!(e.contains("that nothing has written"), "upload {n}: {e}");
    }
}

/// Two values that live together in one place: no validator stands before the device here.
#[test]
fn an_overlapping_buffer_is_found() {
    let Some((_, mut plan, compiler)) = mlp() else { return };
    let program = &mut plan.programs[0];
    let offsets: Vec<u64> = program
        .steps
        .iter()
        .filter_map(|s| match s {
            Step::Run(r) => r.outputs.first(),
            _ => None,
        })
        .filter_map(|p| if let Place::New { offset, .. } = p { Some(*offset) } else { None })
        .collect();
    // The second layer's output goes where the first one's lies, which the backward pass still reads.
    let (first, second) = (offsets[0], offsets.iter().copied().find(|o| *o != offsets[0]).unwrap());
    for s in &mut program.steps {
        let Step::Run(r) = s else { continue };
        for p in &mut r.outputs {
            if let Place::New { offset, .. } = p
                && *offset == second
            {
                *offset = first;
            }
        }
    }
    assert!(plan::validate(&plan, ops::cuda::registry(true)).is_err());
    let mut device = CudaDevice::new(Box::new(Sim::new(MEMORY)), Box::new(compiler)).unwrap();
    // What is moved may be longer than what lay there, at the end of the arena.
    let room = 2 * plan.arena;
    device.allocate(room).unwrap();
    let (calls, _) = resolve(&plan, &plan.programs[0], ops::cuda::registry(true)).unwrap();
    let loaded = device.load(&plan.programs[0].graph, calls).unwrap();
    device.write(0, &vec![0; room as usize]).unwrap();
    let e = device.run(loaded, RunOptions::default()).unwrap_err().to_string();
    assert!(e.contains("has overwritten meanwhile"), "{e}");
}

/// An error of each driver call in turn is a sentence that names the call; a new session runs.
#[test]
fn errors_of_every_driver_call_are_sentences() {
    let Some((m, plan, _)) = mlp() else { return };
    let mut failed = 0;
    for n in 0.. {
        let sim = Sim::new(MEMORY).with(Fault::FailCall(n));
        let Some(e) = first_error(&m, &plan, sim, compiler().unwrap()) else { break };
        assert!(
            e.contains(": an illegal memory access was encountered (planted)")
                && e.contains("checkpoints are intact"),
            "call {n}: {e}"
        );
        failed += 1;
    }
    assert!(failed > 50, "only {failed} calls");
    assert_eq!(first_error(&m, &plan, Sim::new(MEMORY), compiler().unwrap()), None);
}

/// Of a program without state.
struct NoWeights;

impl runtime::WeightSource for NoWeights {
    fn load(
        &mut self,
        name: &str,
        _: &TensorType,
        _: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        Err(format!("no {name}"))
    }
}

/// A program of 16-bit floats runs, and a device without bfloat16 refuses it by node and operator.
#[test]
fn bfloat16_runs_where_the_device_has_it() {
    let Some(_) = compiler() else { return };
    let mut g = Graph::default();
    let x = g.add_input("x".to_owned(), TensorType::new(DType::F32, &[3usize][..]), InputRole::Data);
    let mut b = Builder::new(&mut g);
    let half = b.emit("Cast", Attrs::new().with("to", DType::BF16), &[Some(x)]).unwrap()[0];
    let kept = b.emit("Relu", Attrs::new(), &[Some(half)]).unwrap()[0];
    let y = b.emit("Cast", Attrs::new().with("to", DType::F32), &[Some(kept)]).unwrap()[0];
    g.outputs.push(y);
    let plan = plans(&[(ProgramKind::Infer, g)], Device::Cuda, &[1.0]).unwrap().remove(0);
    let load = |sim: Sim| {
        let device = simulated(sim, compiler().unwrap());
        Session::load(plan.clone(), device, &mut NoWeights, LoadOptions::default())
    };
    let e = load(Sim::new(MEMORY).of_architecture(75)).err().unwrap().to_string();
    assert!(e.contains("Cast") && e.contains("bfloat16 before CUDA architecture 80 (this is 75)"), "{e}");
    let mut session = load(Sim::new(MEMORY)).unwrap();
    // 257 lies in the middle between two numbers, of which 256 is even.
    let data: Vec<u8> = [-1.5f32, 257.0, 3.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let inputs = StepInputs { data: &[("x", &data)], ..StepInputs::default() };
    let out = session.run(0, &inputs, RunOptions::default()).unwrap();
    let expected: Vec<u8> = [0.0f32, 256.0, 3.0].into_iter().flat_map(f32::to_le_bytes).collect();
    assert_eq!(out.outputs[0].2, expected);
}

#[test]
fn too_little_memory_is_refused_with_both_numbers() {
    let Some((m, plan, compiler)) = mlp() else { return };
    let e = first_error(&m, &plan, Sim::new(plan.arena), compiler).unwrap();
    let needed = plan.arena.next_multiple_of(256) + 256;
    assert!(e.contains(&needed.to_string()) && e.contains(&plan.arena.to_string()), "{e}");
}
