//! Programs written as ONNX give what our kernels give: operator by operator, read back by our own importer and run by onnxruntime; and
//! whole training steps of the small models, run by onnxruntime.

use compiler::{
    export::emit_onnx,
    import::{self, ModelSource, Weights, import_bytes},
    pipeline::programs,
    train::{Optimizer, TrainOptions, training_step},
};
use graph::{Attrs, DType, Graph, InputRole, Literal, StateKind, TensorType, ValueId};
use ops::{OPS, OpDef, Signature, case::Case, cpu::interpret};
use plan::ProgramKind;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};
use tests::{
    data, initial_state, inputs,
    onnxruntime::{Tolerance, empty_folder, python, run_all, write_case},
    reference::{Reference, STATIC, import_model, options, sgd},
};

const NOT_WRITTEN: &str = include_str!("not_written_as_onnx.txt");
const NOT_RUN: &str = include_str!("not_run_by_onnxruntime.txt");
/// For single operators, whose results are of the order of 1.
const CLOSE: Tolerance = Tolerance { atol: 2e-6, rtol: 1e-5 };

type Given = BTreeMap<ValueId, Literal>;

/// A graph of one node, and elements for its inputs.
fn build(op: &dyn OpDef, case: &Case, dtype: DType) -> Result<(Graph, Given), String> {
    let mut rng = StdRng::seed_from_u64(17);
    let (mut graph, mut given, mut ids) = (Graph::default(), Given::new(), Vec::new());
    for (i, input) in case.inputs.iter().enumerate() {
        ids.push(input.as_ref().map(|c| {
            let dtype = c.dtype.unwrap_or(dtype);
            let n = c.shape.iter().product();
            let elements = c.fill.draw(n, &mut || rng.random());
            let bytes: Vec<u8> =
                elements.iter().flat_map(|v| Literal::scalar(dtype, *v).bytes().to_vec()).collect();
            let l = Literal::new(dtype, c.shape.iter().map(|d| *d as u64).collect(), bytes).unwrap();
            if c.constant {
                return graph.add_constant(format!("x{i}"), l);
            }
            let v = graph.add_input(format!("x{i}"), TensorType::new(dtype, &c.shape), InputRole::Data);
            given.insert(v, l);
            v
        }));
    }
    let sig = Signature {
        attrs: &case.attrs,
        inputs: ids.iter().map(|i| i.map(|v| graph.ty(v))).collect(),
        constants: ids.iter().map(|i| i.and_then(|v| graph.constant(v))).collect(),
        outputs: Vec::new(),
    };
    let types = op.infer(&sig).map_err(|e| e.to_string())?;
    let outputs = types.into_iter().enumerate().map(|(i, t)| (format!("y{i}").into(), t)).collect();
    let attrs: Attrs = case.attrs.clone();
    let node = graph.add_node("node", op.name(), attrs, ids, outputs);
    graph.outputs = graph.node(node).outputs.clone();
    Ok((graph, given))
}

fn none() -> Weights {
    Weights::new(ModelSource::Bytes("none".to_owned(), Vec::new().into()))
}

/// What `path` gives when our importer reads it.
fn read_back(path: &Path, graph: &Graph, given: &Given) -> Result<Vec<Literal>, String> {
    let bytes = fs::read(path).unwrap();
    let imported =
        import_bytes("emitted", bytes.into(), &import::Options::default()).map_err(|e| e.to_string())?;
    let g = &imported.graph;
    let mut elements = initial_state(g, &imported.weights);
    for i in &g.inputs {
        let name = &g.value(i.value).name;
        let from = graph.inputs.iter().find(|j| graph.value(j.value).name == *name);
        elements.insert(i.value, given[&from.ok_or("an unknown input")?.value].clone());
    }
    let all = interpret(g, &elements).map_err(|e| e.to_string())?;
    Ok(g.outputs.iter().map(|o| all[o].clone()).collect())
}

fn agree(got: &Literal, want: &Literal) -> Result<(), String> {
    if got.dtype() != want.dtype() || got.shape() != want.shape() {
        return Err(format!("{got:?} instead of {want:?}"));
    }
    if !want.dtype().is_float() {
        return if got == want { Ok(()) } else { Err(format!("{got:?} instead of {want:?}")) };
    }
    let (x, y) = (got.to_floats(), want.to_floats());
    let largest = y.iter().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(v.abs()));
    let same = |a: f64, b: f64| {
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= CLOSE.atol + CLOSE.rtol * largest
    };
    match x.iter().zip(&y).position(|(a, b)| !same(*a, *b)) {
        None => Ok(()),
        Some(i) => Err(format!("element {i}: {} instead of {}", x[i], y[i])),
    }
}

/// Reviewed lists: "operator: reason" or "operator/case: reason" a line.
fn list(text: &'static str) -> BTreeMap<&'static str, &'static str> {
    let lines = text.lines().filter(|l| !l.starts_with('#') && !l.is_empty());
    lines.map(|l| l.split_once(": ").expect("operator: reason")).collect()
}

#[test]
fn every_operator_is_written_or_listed() {
    let (listed, not_run) = (list(NOT_WRITTEN), list(NOT_RUN));
    let python = python();
    let folder = empty_folder("operators");
    let mut seen = BTreeSet::new();
    let mut failures = Vec::new();
    let mut count = 0;
    for op in OPS {
        for (k, case) in op.cases().iter().enumerate() {
            for dtype in [DType::F32, DType::F64] {
                let at = format!("{}/{} ({dtype})", op.name(), case.name);
                let (graph, given) = match build(*op, case, dtype) {
                    Ok(built) => built,
                    Err(e) => {
                        failures.push(format!("{at}: {e}"));
                        continue;
                    }
                };
                let dir = folder.join(format!("{}.{k}.{dtype}", op.name()));
                fs::create_dir_all(&dir).unwrap();
                let path = dir.join("model.onnx");
                let names = [op.name().to_owned(), format!("{}/{}", op.name(), case.name)];
                let entry = names.iter().find(|n| listed.contains_key(n.as_str()));
                match (emit_onnx(&graph, &[], &none(), &path, u64::MAX), entry) {
                    (Err(_), Some(name)) => {
                        seen.insert(name.clone());
                        continue;
                    }
                    (Err(e), None) => {
                        failures.push(format!("{at}: {e}"));
                        continue;
                    }
                    (Ok(_), Some(_)) => {
                        failures.push(format!("{at} is written, and listed as if it were not"))
                    }
                    (Ok(_), None) => {}
                }
                let all = interpret(&graph, &given).unwrap_or_else(|e| panic!("{at}: {e}"));
                let want: Vec<Literal> = graph.outputs.iter().map(|o| all[o].clone()).collect();
                count += 1;
                match read_back(&path, &graph, &given) {
                    Ok(got) => {
                        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                            if let Err(e) = agree(g, w) {
                                failures.push(format!("{at}: output {i}: {e}"));
                            }
                        }
                    }
                    Err(e) => failures.push(format!("{at}: read back: {e}")),
                }
                let plain = |l: &Literal| !matches!(l.dtype(), DType::BF16);
                if not_run.contains_key(names[1].as_str()) {
                    seen.insert(names[1].clone());
                } else if dtype == DType::F32 && given.values().chain(&want).all(plain) {
                    let outputs: Vec<_> =
                        want.into_iter().enumerate().map(|(i, l)| (format!("y{i}"), l, CLOSE)).collect();
                    write_case(&dir, &graph, &given, &outputs);
                }
            }
        }
    }
    for name in listed.keys().chain(not_run.keys()).filter(|n| !seen.contains(**n)) {
        failures.push(format!("{name} is listed, and there is no such operator or case"));
    }
    println!("{count} cases of {} operators written and read back", OPS.len());
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    if let Some(python) = python {
        let text = run_all(&python, &folder);
        let without = text.lines().filter(|l| l.starts_with("no kernel")).count();
        assert!(without <= 5, "onnxruntime has no kernel for {without} cases");
    }
}

fn largest(l: &Literal) -> f64 {
    l.to_floats().iter().fold(0.0, |m, x| m.max(x.abs()))
}

/// Loss and gradients of a file.
fn write_gradients(root: &Path, folder: &Path, file: &str, model: &str, reference: &Reference) {
    let imported = import_model(&root.join("small").join(file), file, model, &reference.io);
    let train = options(&imported, reference, file, sgd());
    let mut step = training_step(&imported.graph, &train, ProgramKind::Train, true).unwrap();
    step.graph.lift_constants();
    let g = &step.graph;
    let mut given = inputs(g, &reference.io, 0.01, 1);
    given.extend(initial_state(g, &imported.weights));
    let all = interpret(g, &given).unwrap_or_else(|e| panic!("{file}: {e}"));
    let tolerance = (10.0 * reference.noise()).max(1e-5);
    let most = g.outputs[1..].iter().map(|v| largest(&all[v])).fold(0.0, f64::max);
    let named = |(i, v): (usize, &ValueId)| {
        let t = if i == 0 {
            Tolerance { atol: 0.0, rtol: 1e-5 }
        } else {
            Tolerance { atol: 1e-5 * most * tolerance, rtol: tolerance }
        };
        // A gradient that is nothing but noise has only to stay small.
        let small = i > 0 && largest(&all[v]) < 1e-5 * most;
        let t = if small { Tolerance { atol: 2e-5 * most, rtol: 0.0 } } else { t };
        (g.value(*v).name.to_string(), all[v].clone(), t)
    };
    let outputs: Vec<_> = g.outputs.iter().enumerate().map(named).collect();
    let dir = folder.join(format!("{file}.gradients"));
    fs::create_dir_all(&dir).unwrap();
    emit_onnx(g, &[], &imported.weights, &dir.join("model.onnx"), u64::MAX)
        .unwrap_or_else(|e| panic!("{file}: {e}"));
    write_case(&dir, g, &given, &outputs);
}

/// A whole step of a file: loss and all new state. Large elements lie in a file of their own.
fn write_step(
    root: &Path,
    folder: &Path,
    file: &str,
    model: &str,
    reference: &Reference,
    optimizer: Optimizer,
) {
    let imported = import_model(&root.join("small").join(file), file, model, &reference.io);
    let name = if matches!(optimizer, Optimizer::Sgd { .. }) { "sgd" } else { "adamw" };
    let train = TrainOptions { clip_norm: Some(0.5), ..options(&imported, reference, file, optimizer) };
    let (graphs, _) = programs(&imported.graph, Some(&train), None).unwrap();
    let g = &graphs[0].1;
    let mut given = inputs(g, &reference.io, 0.01, 1);
    given.extend(initial_state(g, &imported.weights));
    let all = interpret(g, &given).unwrap_or_else(|e| panic!("{file}: {e}"));
    let tolerance = (10.0 * reference.noise()).max(1e-5);
    let loss = g.outputs[0];
    let relative = Tolerance { atol: 0.0, rtol: 1e-5 };
    let mut outputs = vec![(g.value(loss).name.to_string(), all[&loss].clone(), relative)];
    for s in &g.states {
        let Some(new) = s.output else { continue };
        let t = match s.kind {
            StateKind::Parameter => Tolerance { atol: 1e-7, rtol: 1e-6 },
            StateKind::Optimizer => Tolerance { atol: 1e-7, rtol: 4.0 * tolerance },
            _ => relative,
        };
        outputs.push((format!("{}.next", s.name), all[&new].clone(), t));
    }
    let dir = folder.join(format!("{file}.{name}"));
    fs::create_dir_all(&dir).unwrap();
    let done = emit_onnx(g, &[], &imported.weights, &dir.join("model.onnx"), 0)
        .unwrap_or_else(|e| panic!("{file}: {e}"));
    assert_eq!((done.files.len(), done.without_elements), (2, 0));
    write_case(&dir, g, &given, &outputs);
}

#[test]
fn onnxruntime_trains_the_small_models_as_we_do() {
    let (Some(root), Some(python)) = (data("models"), python()) else { return };
    let folder = empty_folder("steps");
    let only = std::env::var("DTRC_ONLY").unwrap_or_default();
    let momentum = Optimizer::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.01 };
    // With a large eps the update is a smooth function of the gradient, whose noise would be amplified otherwise.
    let adamw = Optimizer::Adam { beta1: 0.9, beta2: 0.999, eps: 0.1, weight_decay: 0.01, decoupled: true };
    let mut count = 0;
    for model in STATIC.iter().filter(|m| m.contains(&only)) {
        let reference = Reference::load(&root, model);
        for exporter in ["ts", "dy"] {
            let file = format!("{model}.{exporter}_loss.onnx");
            if !root.join("small").join(&file).exists() {
                continue;
            }
            write_gradients(&root, &folder, &file, model, &reference);
            let optimizer = if exporter == "ts" { momentum.clone() } else { adamw.clone() };
            write_step(&root, &folder, &file, model, &reference, optimizer);
            count += 2;
        }
        // Masks are written too: onnxruntime drops the same elements.
        if ["mlp", "bert"].contains(model) {
            write_gradients(&root, &folder, &format!("{model}.ts_dropout.onnx"), model, &reference);
            count += 1;
        }
    }
    let text = run_all(&python, &folder);
    let ok = text.lines().filter(|l| l.starts_with("ok")).count();
    assert_eq!(ok, count, "not every program ran");
}
