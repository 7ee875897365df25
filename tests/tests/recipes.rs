//! Broken recipes: a plan whose dynamic program was changed and sealed again loads and runs, or is refused in words. Whatever it does, it
//! does not panic, it ends soon, it takes no memory to speak of, and a step that fails changes no state.
//!
//! Seeded; `DTRC_FUZZ_CASE=N` repeats a case, `DTRC_FUZZ_CASE=N..M` runs others. One test, alone in its process, whose memory it measures.

use graph::{Attr, DType, Dim, Literal, TensorType};
use onnx_models::{BranchFirst, Common, LoopLstm, ModelProto, RandomProgram, Springs, TreeLstm};
use ops::Registry;
use plan::Plan;
use rand::{
    Rng, SeedableRng,
    rngs::StdRng,
    seq::{IndexedMutRandom, IndexedRandom},
};
use runtime::{CpuDevice, LoadOptions, Session};
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};
use tests::written::{Array, floats, ints, session, state, step};
use trace::{Body, Recipe, SourceTensor};

const CASES: u64 = 3000;
/// Longest time for one case, on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(120);
/// What all cases together may add to the process.
const MEMORY: u64 = 2 << 30;

/// Operators that a node becomes: of every kind that the walk knows, and one that it does not.
const OPS: [&str; 31] = [
    "Add",
    "MatMul",
    "Gemm",
    "Tanh",
    "Reshape",
    "Expand",
    "Slice",
    "Concat",
    "Split",
    "Gather",
    "ScatterND",
    "NonZero",
    "Range",
    "Resize",
    "Tile",
    "Pad",
    "TopK",
    "ConstantOfShape",
    "LSTM",
    "BatchNormalization",
    "Conv",
    "Identity",
    "If",
    "Loop",
    "Scan",
    "SequenceConstruct",
    "SequenceAt",
    "ConcatFromSequence",
    "SequenceMap",
    "Optional",
    "Nothing",
];

const NUMBERS: [i64; 12] = [0, 1, -1, 2, 3, 7, 100, 1 << 20, 1 << 40, i64::MAX, i64::MIN, -7];

/// Weights between -1 and 1, whatever the model had.
struct Any;

impl runtime::WeightSource for Any {
    fn load(
        &mut self,
        _: &str,
        ty: &TensorType,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let bytes = ty.bytes().filter(|b| *b <= 1 << 20).ok_or("too large")?;
        sink(&floats(bytes.div_ceil(4), bytes)[..bytes as usize])
    }
}

/// A body of the program, nested ones included.
fn any_body<'a>(rng: &mut StdRng, body: &'a mut Body) -> &'a mut Body {
    let inner =
        |b: &Body| b.nodes.iter().enumerate().filter(|(_, n)| !n.bodies.is_empty()).map(|(i, _)| i).collect();
    let with: Vec<usize> = inner(body);
    match with.choose(rng) {
        Some(i) if rng.random_bool(0.7) => {
            let bodies = &mut body.nodes[*i].bodies;
            let at = rng.random_range(0..bodies.len());
            any_body(rng, &mut bodies[at].1)
        }
        _ => body,
    }
}

/// Names of the program, one that nothing has, and none.
fn any_name(rng: &mut StdRng, names: &[Arc<str>]) -> Arc<str> {
    match rng.random_range(0..12) {
        0 => "".into(),
        1 => "nobody".into(),
        _ => names.choose(rng).cloned().unwrap_or_default(),
    }
}

fn names(recipe: &Recipe) -> Vec<Arc<str>> {
    fn visit(body: &Body, all: &mut Vec<Arc<str>>) {
        all.extend(body.inputs.iter().chain(&body.outputs).cloned());
        for n in &body.nodes {
            all.extend(n.inputs.iter().chain(&n.outputs).cloned());
            n.bodies.iter().for_each(|(_, b)| visit(b, all));
        }
    }
    let mut all: Vec<Arc<str>> = recipe.source.tensors.keys().cloned().collect();
    visit(&recipe.source.body, &mut all);
    all
}

fn any_type(rng: &mut StdRng, ty: &mut TensorType) {
    let extents = &mut ty.shape.0;
    match rng.random_range(0..5) {
        0 => ty.dtype = *DType::ALL.choose(rng).unwrap(),
        1 => drop(extents.pop()),
        2 => extents.push(Dim::constant(*NUMBERS.choose(rng).unwrap())),
        3 => extents.push(Dim::symbol("n")),
        _ if extents.is_empty() => {}
        _ => {
            let at = rng.random_range(0..extents.len());
            extents[at] = Dim::constant(*NUMBERS.choose(rng).unwrap());
        }
    }
}

fn any_literal(rng: &mut StdRng) -> Literal {
    let dtype = *[DType::I64, DType::F32, DType::Bool, DType::I32].choose(rng).unwrap();
    let n = rng.random_range(0..5u64);
    let shape = if n == 1 && rng.random_bool(0.5) { Vec::new() } else { vec![n] };
    let bytes = |_| match dtype {
        DType::I64 => NUMBERS.choose(rng).unwrap().to_le_bytes().to_vec(),
        _ => rng.random::<u32>().to_le_bytes()[..dtype.size() as usize].to_vec(),
    };
    Literal::new(dtype, shape, (0..n).flat_map(bytes).collect::<Vec<u8>>()).unwrap()
}

fn edit_node(rng: &mut StdRng, body: &mut Body, names: &[Arc<str>]) {
    if body.nodes.is_empty() {
        return;
    }
    let at = rng.random_range(0..body.nodes.len());
    let copy = body.nodes[rng.random_range(0..body.nodes.len())].clone();
    let node = &mut body.nodes[at];
    match rng.random_range(0..11) {
        0 => node.op_type = (*OPS.choose(rng).unwrap()).into(),
        1 => node.opset = *NUMBERS.choose(rng).unwrap(),
        2 => {
            let keys: Vec<String> = node.attrs.0.keys().cloned().collect();
            let key = keys.choose(rng).cloned().unwrap_or_else(|| "axis".to_owned());
            let value = match rng.random_range(0..6) {
                0 => Attr::Int(*NUMBERS.choose(rng).unwrap()),
                1 => Attr::Ints((0..rng.random_range(0..4)).map(|_| *NUMBERS.choose(rng).unwrap()).collect()),
                2 => Attr::Float(f64::NAN),
                3 => Attr::Str("?".to_owned()),
                4 => Attr::DType(*DType::ALL.choose(rng).unwrap()),
                _ => Attr::Tensor(any_literal(rng)),
            };
            node.attrs.0.insert(key, value);
        }
        3 if !node.inputs.is_empty() => {
            let i = rng.random_range(0..node.inputs.len());
            node.inputs[i] = any_name(rng, names);
        }
        4 if !node.outputs.is_empty() => {
            let i = rng.random_range(0..node.outputs.len());
            node.outputs[i] = any_name(rng, names);
        }
        5 => drop(node.inputs.pop()),
        6 => node.inputs.push(any_name(rng, names)),
        7 => drop(body.nodes.remove(at)),
        8 => body.nodes.insert(at, copy),
        9 => node.outputs.push(any_name(rng, names)),
        _ => {
            let to = rng.random_range(0..body.nodes.len());
            body.nodes.swap(at, to);
        }
    }
}

fn edit_body(rng: &mut StdRng, body: &mut Body, names: &[Arc<str>]) {
    match rng.random_range(0..5) {
        0 => drop(body.outputs.pop()),
        1 => body.outputs.push(any_name(rng, names)),
        2 => drop(body.inputs.pop()),
        3 => body.inputs.push(any_name(rng, names)),
        // A body that holds itself, one level down.
        _ => {
            let whole = body.clone();
            if let Some(n) = body.nodes.iter_mut().find(|n| !n.bodies.is_empty()) {
                n.bodies[0].1 = whole;
            }
        }
    }
}

fn edit(rng: &mut StdRng, recipe: &mut Recipe) {
    let names = names(recipe);
    match rng.random_range(0..12) {
        0..=4 => {
            let body = any_body(rng, &mut recipe.source.body);
            edit_node(rng, body, &names);
        }
        5 => {
            let body = any_body(rng, &mut recipe.source.body);
            edit_body(rng, body, &names);
        }
        6 | 7 => {
            let keys: Vec<Arc<str>> = recipe.source.tensors.keys().cloned().collect();
            let Some(tensor) = keys.choose(rng).and_then(|k| recipe.source.tensors.get_mut(k)) else {
                return;
            };
            match tensor {
                SourceTensor::Constant(l) => *l = any_literal(rng),
                SourceTensor::State { ty, known, .. } => match rng.random_range(0..4) {
                    0 => *known = Some(any_literal(rng)),
                    1 => *tensor = SourceTensor::Constant(any_literal(rng)),
                    _ => any_type(rng, ty),
                },
            }
        }
        8 => {
            let keys: Vec<Arc<str>> = recipe.source.tensors.keys().cloned().collect();
            let Some(key) = keys.choose(rng) else { return };
            let Some(tensor) = recipe.source.tensors.remove(key) else { return };
            if rng.random_bool(0.5) {
                recipe.source.tensors.insert(any_name(rng, &names), tensor);
            }
        }
        9 => {
            if let Some((name, ty)) = recipe.source.inputs.choose_mut(rng) {
                if rng.random_bool(0.3) {
                    *name = any_name(rng, &names);
                }
                any_type(rng, ty);
            }
        }
        10 => {
            recipe.modes.training ^= rng.random_bool(0.5);
            recipe.modes.batchnorm = rng.random();
            recipe.modes.dropout = rng.random();
        }
        _ => {
            let Some(train) = &mut recipe.train else { return };
            match rng.random_range(0..7) {
                0 => drop(train.trainable.pop()),
                1 => train.trainable.push(any_name(rng, &names).to_string()),
                2 => train.label = any_name(rng, &names).to_string(),
                3 => train.output = Some(any_name(rng, &names).to_string()),
                4 => train.class_axis = Some(*NUMBERS.choose(rng).unwrap()),
                5 => train.accumulate = rng.random_range(0..4),
                _ => train.clip_norm = Some(*[f64::NAN, 0.0, -1.0, 1e300].choose(rng).unwrap()),
            }
        }
    }
}

/// Edits of bytes.
fn garble(rng: &mut StdRng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.random_range(1..4) {
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..4) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = *[0, 1, 0x7f, 0x80, 0xff].choose(rng).unwrap(),
            2 => drop(bytes.drain(at..(at + 3).min(bytes.len()))),
            _ => {
                let part = bytes[at..(at + 9).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
        }
        if bytes.is_empty() {
            return;
        }
    }
}

fn subjects() -> Vec<(Plan, Vec<Array>)> {
    let common = |dynamic| Common { batch: 2, dynamic, loss: true, seed: 3 };
    let plan = |model: &ModelProto| session(model, 1 << 18).plan().clone();
    let mut all = Vec::new();
    let lstm = LoopLstm { layers: 1, inputs: 4, width: 8, steps: 4, classes: 3 };
    all.push((
        plan(&lstm.build(&common(true))),
        vec![("x", vec![2, 4, 4], floats(32, 1)), ("target", vec![2], ints(&[0, 2]))],
    ));
    all.push((
        plan(&Springs { masses: 4, steps: 3 }.build(&common(false))),
        vec![("target", vec![2, 4], floats(8, 1))],
    ));
    all.push((
        plan(&TreeLstm { nodes: 3, inputs: 4, width: 8, classes: 3 }.build(&common(false))),
        vec![
            ("x", vec![3, 1, 4], floats(12, 1)),
            ("left", vec![3], ints(&[-1, -1, 0])),
            ("right", vec![3], ints(&[-1, -1, 1])),
            ("target", vec![1], ints(&[1])),
        ],
    ));
    all.push((
        plan(&BranchFirst { depth: 3, wide: 8 }.build(&common(true))),
        vec![("x", vec![2, 16], floats(32, 1)), ("target", vec![2], ints(&[0, 3]))],
    ));
    for seed in 0..8 {
        all.push((
            plan(&RandomProgram { seed }.build(&common(true))),
            vec![("x", vec![2, 8], floats(16, seed))],
        ));
    }
    all
}

/// What becomes of one broken plan.
fn case(rng: &mut StdRng, subjects: &[(Plan, Vec<Array>)]) -> &'static str {
    let (plan, data) = subjects.choose(rng).unwrap();
    let mut plan = plan.clone();
    let dynamic = plan.programs[0].dynamic.as_mut().unwrap();
    if rng.random_bool(0.3) {
        garble(rng, &mut dynamic.recipe);
    } else {
        let mut recipe = Recipe::from_bytes(&dynamic.recipe).unwrap();
        for _ in 0..rng.random_range(1..3) {
            edit(rng, &mut recipe);
        }
        dynamic.recipe = recipe.to_bytes().unwrap();
    }
    let programs = plan.programs.iter().map(|p| (p.kind, &p.graph, p.dynamic.as_ref()));
    plan.numerics = plan::numerics(plan.device, plan.accumulate, programs, &Registry);
    let plan = plan::from_bytes(&plan::to_bytes(&plan).unwrap()).unwrap();
    let device = Box::new(CpuDevice::new(1).unwrap());
    let Ok(mut s) = Session::load(plan, device, &mut Any, LoadOptions::default()) else {
        return "not loaded";
    };
    for number in 1..=2 {
        let before = state(&s);
        if let Err(e) = step(&mut s, data, number) {
            assert!(state(&s) == before, "a refused step has changed the state: {e}");
            assert!(!e.contains("please report"), "{e}");
            return if number == 1 { "refused" } else { "refused later" };
        }
    }
    "ran"
}

/// The most that this process had in memory, where the system tells.
fn most_resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[test]
fn broken_recipes_are_refused_or_run() {
    let subjects = subjects();
    let given = std::env::var("DTRC_FUZZ_CASE").ok();
    let number = |s: &str| s.parse::<u64>().expect("a case is a number");
    let cases = given.as_deref().map_or(0..CASES, |s| match s.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None => number(s)..number(s) + 1,
    });
    let before = most_resident();
    let mut failures: BTreeMap<String, u64> = BTreeMap::new();
    let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
    let mut slowest = (Duration::ZERO, 0);
    for n in cases {
        let start = Instant::now();
        match catch_unwind(AssertUnwindSafe(|| case(&mut StdRng::seed_from_u64(n), &subjects))) {
            Ok(end) => *ends.entry(end).or_default() += 1,
            Err(e) => {
                let text = e.downcast_ref::<String>().cloned();
                let text = text.or_else(|| e.downcast_ref::<&str>().map(|s| s.to_string()));
                failures.entry(text.unwrap_or_default()).or_insert(n);
            }
        }
        let took = start.elapsed();
        if given.is_some() && took > Duration::from_secs(2) {
            println!("case {n} took {took:?}");
        }
        slowest = slowest.max((took, n));
    }
    println!("{ends:?}, the slowest {slowest:?}, {before:?} to {:?} bytes", most_resident());
    assert!(failures.is_empty(), "the first case of each: {failures:#?}");
    assert!(slowest.0 < PATIENCE, "{slowest:?}");
    if let (Some(before), Some(after)) = (before, most_resident()) {
        assert!(after <= before + MEMORY, "{before} bytes before, {after} after");
    }
    assert!(given.is_some() || ends.len() >= 3, "{ends:?}");
}
