//! Losses and gradients against PyTorch, for every small model that PyTorch's exporters wrote and whose step is static.
//!
//! Exceptions are derived from each file's name mapping and printed; nothing is left out silently.

use compiler::{
    cost::{CostModel, DeviceProfile},
    import::{self, Imported, Options},
    pipeline::{rewritten_forward, rewritten_programs},
    train::training_step,
};
use graph::{Graph, Literal, ValueId};
use ops::cpu::interpret;
use plan::ProgramKind;
use rewrite::Level;
use serde_json::Value as Json;
use std::{collections::BTreeMap, path::Path};
use tests::{
    data, initial_state, inputs,
    onnxruntime::{Tolerance, empty_folder, python, run_all, write_case},
    reference::{OPEN, Reference, adamw, dims_of, files, has_batchnorm, import_model, options, sgd},
};

fn close(got: &[f64], want: &[f64], tolerance: &[f64]) -> Result<(), String> {
    for (i, ((g, w), t)) in got.iter().zip(want).zip(tolerance).enumerate() {
        if (g - w).is_nan() || (g - w).abs() > *t {
            return Err(format!("step {i}: loss {g}, PyTorch {w}, tolerance {t:.3e}"));
        }
    }
    Ok(())
}

/// Compares six losses of an optimizer.
fn check_losses(
    imported: &Imported,
    reference: &Reference,
    file: &str,
    key: &str,
    steps: usize,
    level: Level,
) -> Result<(), String> {
    let (optimizer, lr) = if key == "sgd" { (sgd(), 0.01) } else { (adamw(), 1e-3) };
    let train = options(imported, reference, file, optimizer);
    let costs = CostModel::estimated(DeviceProfile::cpu());
    let programs = rewritten_programs(&imported.graph, Some(&train), None, level, &costs);
    let g = &programs.map_err(|e| e.to_string())?.graphs[0].1;
    let mut state = initial_state(g, &imported.weights);
    let mut losses = Vec::new();
    for step in 1..=steps {
        let mut given = inputs(g, &reference.io, lr, step as i64);
        given.extend(state.clone());
        let all = interpret(g, &given).map_err(|e| e.to_string())?;
        losses.push(all[&g.outputs[0]].to_floats()[0]);
        for s in &g.states {
            if let Some(new) = s.output {
                state.insert(s.input, all[&new].clone());
            }
        }
    }
    let (f32s, f64s) = (reference.losses(key, "losses"), reference.losses(key, "losses_f64"));
    let noise = f32s.iter().zip(&f64s).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    let tolerance: Vec<f64> = f64s.iter().map(|l| (10.0 * noise).max(2e-6 * l.abs())).collect();
    close(&losses, &f64s, &tolerance).map_err(|e| format!("{key} {e}"))
}

/// Elements of a PyTorch gradient in the layout of the ONNX initializer.
fn arranged(l: &Literal, how: &str) -> Vec<f64> {
    let x = l.to_floats();
    if how != "transpose" {
        return x;
    }
    let (r, c) = (l.shape()[0] as usize, l.shape()[1] as usize);
    (0..r * c).map(|i| x[(i % r) * c + i / r]).collect()
}

/// How a state holds a parameter's elements.
#[derive(Clone, Copy)]
enum Copied {
    Same,
    Transposed,
    /// In each of its rows.
    Rows,
}

impl Copied {
    /// A gradient of the copy as one of `n` elements of the parameter.
    fn gradient(self, l: &Literal, n: usize) -> Vec<f64> {
        match self {
            Copied::Same => l.to_floats(),
            Copied::Transposed => arranged(l, "transpose"),
            Copied::Rows => {
                let mut sum = vec![0.0; n];
                for row in l.to_floats().chunks(n) {
                    sum.iter_mut().zip(row).for_each(|(s, x)| *s += x);
                }
                sum
            }
        }
    }
}

/// States that hold the same elements as the named one before the first step, itself included.
fn copies(g: &Graph, given: &BTreeMap<ValueId, Literal>, name: &str) -> Vec<(String, Copied)> {
    let Some(state) = g.states.iter().find(|s| &*s.name == name) else {
        return vec![(name.to_owned(), Copied::Same)];
    };
    let elements = &given[&state.input];
    let floats = elements.to_floats();
    let matrix = elements.len() >= 256 && elements.shape().len() == 2;
    // Elements that are all equal would be found everywhere.
    let vector = elements.shape().len() == 1 && floats.iter().any(|x| *x != floats[0]);
    let turned = if matrix { arranged(elements, "transpose") } else { Vec::new() };
    let is_copy = |l: &Literal| {
        let width = l.shape().last().copied();
        if matrix && l == elements {
            Some(Copied::Same)
        } else if matrix
            && l.shape().len() == 2
            && l.shape()[0] == elements.shape()[1]
            && l.to_floats() == turned
        {
            Some(Copied::Transposed)
        } else if vector && l.shape().len() > 1 && width == Some(elements.shape()[0]) {
            l.to_floats().chunks(floats.len()).all(|row| row == floats).then_some(Copied::Rows)
        } else {
            None
        }
    };
    let of = |s: &graph::State| {
        let how = if &*s.name == name { Some(Copied::Same) } else { is_copy(&given[&s.input]) };
        Some((s.name.to_string(), how?))
    };
    g.states.iter().filter_map(of).collect()
}

/// Compares the gradients of step 0. Returns the parameters that the file does not have as such.
fn check_gradients(
    imported: &Imported,
    reference: &Reference,
    file: &str,
    level: Level,
) -> Result<Vec<String>, String> {
    let train = options(imported, reference, file, sgd());
    let costs = CostModel::estimated(DeviceProfile::cpu());
    let forward = rewritten_forward(&imported.graph, &train, level, &costs);
    let (forward, train, _) = forward.map_err(|e| e.to_string())?;
    let mut step = training_step(&forward, &train, ProgramKind::Train, true).map_err(|e| e.to_string())?;
    step.graph.lift_constants();
    let g = &step.graph;
    let mut given = inputs(g, &reference.io, 0.01, 1);
    given.extend(initial_state(g, &imported.weights));
    let all = interpret(g, &given).map_err(|e| e.to_string())?;
    let ours: BTreeMap<&str, ValueId> = step.gradients.iter().map(|(n, v)| (n.as_str(), *v)).collect();
    let largest = reference
        .grads
        .iter()
        .filter(|(n, _)| n.starts_with("grad:"))
        .flat_map(|(_, l)| l.to_floats())
        .fold(0.0f64, |m, x| m.max(x.abs()));
    let tolerance = (10.0 * reference.noise()).max(1e-5);
    let mapping = reference.json["mapping"][file].as_object().unwrap();
    let mut absent = Vec::new();
    // Two parameters of the model may be two copies of one: their gradients add up.
    let mut wanted: BTreeMap<String, (Vec<f64>, Vec<String>)> = BTreeMap::new();
    for (parameter, target) in mapping {
        let Some(pair) = target.as_array() else {
            absent.push(parameter.clone());
            continue;
        };
        let (name, how) = (pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
        let Some(l) = reference.grads.get(&format!("grad:{parameter}")) else { continue };
        // A weight norm whose magnitude was folded away: what is left is the product, not the direction.
        let folded = parameter
            .strip_suffix("original1")
            .is_some_and(|p| mapping.get(&format!("{p}original0")) == Some(&Json::Null));
        if folded {
            absent.push(parameter.clone());
            continue;
        }
        wanted.insert(name.to_owned(), (arranged(l, how), vec![parameter.clone()]));
    }
    for (name, (want, parameters)) in &wanted {
        // A tied weight that the exporter split has its gradient in the copies' sum.
        let mut got = vec![0.0; want.len()];
        for (copy, how) in copies(g, &given, name) {
            if let Some(v) = ours.get(copy.as_str()) {
                let d = how.gradient(&all[v], want.len());
                if d.len() != want.len() {
                    return Err(format!("{parameters:?}: {} elements, PyTorch {}", d.len(), want.len()));
                }
                got.iter_mut().zip(d).for_each(|(s, x)| *s += x);
            }
        }
        let scale = want.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0f64, f64::max);
        let small = scale < 1e-5 * largest;
        let ok =
            if small { got.iter().all(|x| x.abs() < 1e-5 * largest) } else { worst <= tolerance * scale };
        if !ok {
            return Err(format!(
                "gradient of {parameters:?}: off by {:.3e} of its largest, tolerance {tolerance:.1e}",
                worst / scale
            ));
        }
    }
    Ok(absent)
}

/// What is compared for a file, and why not all.
fn exception(file: &str, model: &str, absent: &[String]) -> Option<String> {
    if split_ties(model, file) {
        return Some("tied weights were split: first loss, and the sum of the copies' gradients".to_owned());
    }
    if !absent.is_empty() {
        return Some(format!(
            "{} parameters are not in the file as such: first loss and the other gradients",
            absent.len()
        ));
    }
    if has_batchnorm(model) && file.contains(".dy_") {
        return Some("an inference graph: compared with BatchNormalization read as training".to_owned());
    }
    None
}

/// The newer exporter writes a tied weight twice, and folds what the first step of an unrolled layer adds into a constant of its own.
fn split_ties(model: &str, file: &str) -> bool {
    (model == "gpt2" && file.contains(".dy_")) || file == "rnn_cls.dy_loss.onnx"
}

fn absent_parameters(reference: &Reference, file: &str) -> Vec<String> {
    let mapping = reference.json["mapping"][file].as_object().unwrap();
    mapping.iter().filter(|(_, v)| v.is_null()).map(|(k, _)| k.clone()).collect()
}

/// All checks of one file.
fn check(root: &Path, file: &str, model: &str, reference: &Reference, level: Level) -> Result<(), String> {
    let imported = import_model(&root.join("small").join(file), file, model, &reference.io);
    let absent = absent_parameters(reference, file);
    // A program with control flow is straight for one step only: `dynamic` runs the others.
    let straight = !OPEN.contains(&model);
    let steps = if absent.is_empty() && !split_ties(model, file) && straight { 6 } else { 1 };
    check_gradients(&imported, reference, file, level)?;
    check_losses(&imported, reference, file, "sgd", steps, level)?;
    check_losses(&imported, reference, file, "adamw", steps, level)
}

/// BatchNormalization was folded into the convolutions: no mode of training is left, and nothing is mapped. What can be compared is
/// inference, with the same model in which BatchNormalization still stands, and with onnxruntime, whose distance from PyTorch's evaluation
/// mode the manifest gives.
#[test]
fn a_folded_model_infers_as_before() {
    let Some(root) = data("models") else { return };
    let reference = Reference::load(&root, "resnet18");
    let forward = |file: &str| {
        let path = root.join("small").join(file);
        let mut options = Options { dims: dims_of(&path, &reference.io), ..Options::default() };
        options.ops.training = false;
        let imported = import::import(&path, &options).unwrap_or_else(|e| panic!("{e}"));
        let g = imported.graph;
        let mut given = inputs(&g, &reference.io, 0.0, 1);
        let data = given.clone();
        given.extend(initial_state(&g, &imported.weights));
        let y = interpret(&g, &given).unwrap_or_else(|e| panic!("{e}"))[&g.outputs[0]].clone();
        (g, data, y)
    };
    let column = |row: &str, name: &str| {
        let manifest = std::fs::read_to_string(root.join("MANIFEST.csv")).unwrap();
        let header = manifest.lines().next().unwrap().split(',').position(|c| c == name).unwrap();
        let line = manifest.lines().find(|l| l.starts_with(row)).unwrap();
        // The first columns hold quoted texts: counted from the ones behind them.
        let (before, rest) = line.split_once("reference/").unwrap();
        let at = header - manifest.lines().next().unwrap().split(',').position(|c| c == "reference").unwrap();
        assert!(before.ends_with(','));
        rest.split(',').nth(at).unwrap().parse::<f64>().unwrap()
    };
    let file = "resnet18.dy_folded.onnx";
    let distance = column(&format!("small/{file}"), "ort_vs_torch_eval");
    assert!(distance > 0.0 && distance < 1e-5, "{distance}");
    let (g, data, folded) = forward(file);
    let (_, _, whole) = forward("resnet18.dy_dyn.onnx");
    let largest = whole.to_floats().iter().fold(0.0f64, |m, x| m.max(x.abs()));
    let tolerance = (10.0 * distance).max(2e-6 * largest);
    let off =
        folded.to_floats().iter().zip(whole.to_floats()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    println!("{file}: {off:.2e} from the model with BatchNormalization, {tolerance:.2e} allowed");
    assert!(off <= tolerance, "{off}");
    let Some(python) = python() else { return };
    let folder = empty_folder("folded");
    let dir = folder.join(file);
    std::fs::create_dir(&dir).unwrap();
    std::fs::copy(root.join("small").join(file), dir.join("model.onnx")).unwrap();
    let spec = Tolerance { atol: tolerance, rtol: 0.0 };
    let output = g.value(g.outputs[0]).name.to_string();
    write_case(&dir, &g, &data, &[(output, folded, spec)]);
    run_all(&python, &folder);
}

#[test]
fn losses_and_gradients_equal_pytorch() {
    check_files("pytorch", Level::Exact, |_, _| true);
}

/// Rewritten for memory (attention without scores, loss without logits, GELU and LayerNormalization recognised), within the same
/// tolerances.
#[test]
fn rewritten_for_memory_losses_and_gradients_equal_pytorch() {
    let models = ["bert", "gpt2", "vit_b_16", "wav2vec", "convnext_tiny", "mlp"];
    check_files("pytorch_rewritten", Level::Memory, |model, file| {
        models.contains(&model) && (file.contains("_loss") || file.contains("op14"))
    });
}

/// Checks files and reports which, and what of them is not compared.
fn check_files(name: &str, level: Level, which: impl Fn(&str, &str) -> bool) {
    let Some(root) = data("models") else { return };
    let only = std::env::var("DTRC_ONLY").unwrap_or_default();
    let mut failures = Vec::new();
    let (mut count, mut exceptions) = (0, 0);
    let mut table = String::from("| file | result | not compared as the others are |\n|---|---|---|\n");
    let mut references: BTreeMap<String, Reference> = BTreeMap::new();
    for (model, file) in files(&root) {
        // Random masks are not PyTorch's; a folded BatchNormalization is none any more. Both have tests of their own.
        if file.contains("dropout")
            || file.contains("dy_folded")
            || !file.contains(&only)
            || !which(&model, &file)
        {
            continue;
        }
        let reference = references.entry(model.clone()).or_insert_with(|| Reference::load(&root, &model));
        count += 1;
        let note = exception(&file, &model, &absent_parameters(reference, &file));
        exceptions += usize::from(note.is_some());
        let before = failures.len();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            check(&root, &file, &model, reference, level)
        }));
        match result {
            Ok(Ok(())) => {}
            Ok(Err(e)) => failures.push(format!("{file}: {e}")),
            Err(p) => {
                let text = p
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| p.downcast_ref::<&str>().map(|s| (*s).to_owned()));
                failures.push(format!("{file}: panic: {}", text.unwrap_or_default()));
            }
        }
        let verdict = if failures.len() == before { "agrees" } else { "differs" };
        table += &format!("| {file} | {verdict} | {} |\n", note.unwrap_or_default());
    }
    let agree = count - failures.len();
    let summary = format!(
        "{agree} of {count} files agree with PyTorch (rewrites: {level}), {exceptions} are compared in part"
    );
    test_support::report(name, &summary, &table);
    assert!(failures.is_empty(), "{} of {count} files differ:\n{}", failures.len(), failures.join("\n"));
}
