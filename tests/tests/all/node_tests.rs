//! The ONNX project's node tests: each operator's own examples through the importer, the rules and the kernels.
//!
//! `tests/python/export_node_tests.py` writes them to a folder (`DTRC_NODE_TESTS`, by default `target/node-tests`). A test passes,
//! fails, or is not supported: no rule, a deliberate refusal, or data of a kind that dtrc does not have. No operator with a rule may fail.

use compiler::import::{ImportErrorKind, Imported, Options, import_bytes};
use graph::{DType, InputRole, Literal, ValueId};
use onnx_protobuf as pb;
use ops::{
    OpError,
    cpu::interpret,
    onnx::{BatchNormMode, DropoutMode, ImportOptions},
};
use pb::{tensor_shape_proto::Dimension, type_proto};
use protobuf::Message;
use serde_json::Value as Json;
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};
use tests::{initial_state, npz};

/// Fewer passed tests than this mean that something is lost, even if nothing fails.
const AT_LEAST: usize = 1367;
/// Operators whose expected numbers are themselves rounded in float32 by more than the tests allow, and what is allowed here.
const ROUNDED: [(&str, f64); 1] = [("DFT", 1e-6)];
/// Largest input that is given to the importer as an initializer, in elements.
const SMALL: usize = 4096;

/// What a test came to.
enum Outcome {
    Passed {
        known: usize,
    },
    /// Random numbers: types and shapes are right, the values are the generator's own.
    Random,
    Failed(String),
    NotSupported(String),
}

/// Which inputs the importer sees the elements of.
#[derive(Clone, Copy, PartialEq)]
enum Known {
    Nothing,
    /// Integers and booleans: shapes, axes, repeats.
    Integers,
    /// Everything small.
    Small,
}

/// A test with its arrays.
struct Case {
    name: String,
    op: String,
    model: pb::ModelProto,
    rtol: f64,
    atol: f64,
    /// Inputs and outputs of each data set.
    data: Vec<(Vec<Literal>, Vec<Literal>)>,
}

fn folder() -> Option<PathBuf> {
    let given = std::env::var_os("DTRC_NODE_TESTS").map(PathBuf::from);
    let root = given.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/node-tests"));
    if root.join("complete").exists() {
        return Some(root);
    }
    let how = "run tests/python/export_node_tests.py target/node-tests";
    test_support::skipped(&format!("{} holds no node tests: {how}", root.display()));
    None
}

/// Arrays "0", "1", ... with their element types; bfloat16 is stored as its bits.
fn arrays(path: &Path, kinds: &Json) -> Vec<Literal> {
    let all = npz(path);
    let kinds = kinds.as_array().unwrap();
    let typed = |(i, kind): (usize, &Json)| {
        let l = &all[&i.to_string()];
        match kind.as_str() {
            Some("bfloat16") => Literal::new(DType::BF16, l.shape().to_vec(), l.bytes()).unwrap(),
            _ => l.clone(),
        }
    };
    kinds.iter().enumerate().map(typed).collect()
}

/// Reads a test; the reason if its data cannot be represented.
fn read(dir: &Path) -> (String, Result<Case, String>) {
    let info: Json = serde_json::from_slice(&std::fs::read(dir.join("case.json")).unwrap()).unwrap();
    let op = info["op"].as_str().unwrap().to_owned();
    if let Some(why) = info["skip"].as_str() {
        return (op, Err(why.to_owned()));
    }
    let model = pb::ModelProto::parse_from_bytes(&std::fs::read(dir.join("model.onnx")).unwrap()).unwrap();
    let data = (0..info["data_sets"].as_u64().unwrap())
        .map(|k| {
            let side = |s: &str| arrays(&dir.join(format!("{s}_{k}.npz")), &info[s]);
            (side("inputs"), side("outputs"))
        })
        .collect();
    let number = |key: &str| info[key].as_f64().unwrap();
    let rounded = ROUNDED.iter().find(|(name, _)| *name == op).map_or(0.0, |(_, atol)| *atol);
    let case = Case {
        name: dir.file_name().unwrap().to_string_lossy().into_owned(),
        op: op.clone(),
        model,
        rtol: number("rtol"),
        atol: number("atol").max(rounded),
        data,
    };
    (op, Ok(case))
}

/// Whether the example is about training: batch statistics, or a Dropout that is told so.
fn training(model: &pb::ModelProto) -> bool {
    model.graph.node.iter().any(|n| {
        n.attribute.iter().any(|a| a.name == "training_mode" && a.i != 0)
            || (n.op_type == "Dropout" && n.input.get(2).is_some_and(|i| !i.is_empty()))
    })
}

/// Whether the expected values are random numbers of the generator that wrote the test.
fn random(case: &Case) -> bool {
    case.op.starts_with("Random")
        || ["Bernoulli", "Multinomial"].contains(&case.op.as_str())
        || (case.op == "Dropout" && training(&case.model) && !case.name.contains("zero_ratio"))
}

/// The model with the sizes of the inputs, and the chosen ones as initializers; and how many those are.
fn bound(model: &pb::ModelProto, inputs: &[Literal], known: Known) -> (Vec<u8>, Vec<bool>) {
    let mut model = model.clone();
    let graph = model.graph.mut_or_insert_default();
    let mut chosen = Vec::new();
    for (info, l) in graph.input.iter_mut().zip(inputs) {
        let Some(type_proto::Value::TensorType(t)) = &mut info.type_.mut_or_insert_default().value else {
            chosen.push(false);
            continue;
        };
        let dims = t.shape.mut_or_insert_default();
        dims.dim.clear();
        for n in l.shape() {
            let mut d = Dimension::new();
            d.set_dim_value(*n as i64);
            dims.dim.push(d);
        }
        let take = match known {
            Known::Nothing => false,
            Known::Integers => !l.dtype().is_float() && l.len() <= SMALL,
            Known::Small => l.len() <= SMALL,
        };
        chosen.push(take);
        if take {
            let tensor = pb::TensorProto {
                name: info.name.clone(),
                data_type: t.elem_type,
                dims: l.shape().iter().map(|n| *n as i64).collect(),
                raw_data: l.bytes().to_vec(),
                ..Default::default()
            };
            graph.initializer.push(tensor);
        }
    }
    (model.write_to_bytes().unwrap(), chosen)
}

/// Imports with as few inputs known as the rules allow. Returns which inputs are known.
fn import(case: &Case, inputs: &[Literal]) -> Result<(Imported, Vec<bool>), Outcome> {
    let options = Options {
        dims: Vec::new(),
        ops: ImportOptions {
            training: training(&case.model),
            batchnorm: BatchNormMode::Auto,
            dropout: DropoutMode::Auto,
            unbiased_running_variance: false,
        },
        ..Options::default()
    };
    let mut dynamic = String::new();
    for known in [Known::Nothing, Known::Integers, Known::Small] {
        let (bytes, chosen) = bound(&case.model, inputs, known);
        match import_bytes(&case.name, bytes.into(), &options) {
            Ok(imported) => return Ok((imported, chosen)),
            Err(e) => match *e.kind {
                ImportErrorKind::Dynamic { .. } => dynamic = e.kind.to_string(),
                ImportErrorKind::Unsupported(_) => return Err(Outcome::NotSupported(e.kind.to_string())),
                // Types that dtrc does not have are refused where they are declared.
                ref k if k.to_string().contains("not supported") => {
                    return Err(Outcome::NotSupported(k.to_string()));
                }
                _ => return Err(Outcome::Failed(e.to_string())),
            },
        }
    }
    Err(Outcome::NotSupported(dynamic))
}

/// The model with every size of its inputs unknown.
fn unbound(model: &pb::ModelProto) -> Vec<u8> {
    let mut model = model.clone();
    for (i, info) in model.graph.mut_or_insert_default().input.iter_mut().enumerate() {
        let value = &mut info.type_.mut_or_insert_default().value;
        let Some(type_proto::Value::TensorType(t)) = value else { continue };
        for (k, d) in t.shape.mut_or_insert_default().dim.iter_mut().enumerate() {
            d.set_dim_param(format!("d{i}_{k}"));
        }
    }
    model.write_to_bytes().unwrap()
}

/// Whether a result is the expected one: dtype and shape equal, floats within the test's tolerance or what their bits can tell apart, all else
/// equal.
fn compare(got: &Literal, want: &Literal, rtol: f64, atol: f64) -> Result<(), String> {
    same_type(got, want)?;
    if got.bytes() == want.bytes() {
        return Ok(());
    }
    let (rtol, atol) = if want.dtype().is_float() { (rtol, atol) } else { (0.0, 0.0) };
    let rtol = rtol.max(rounding(want.dtype()));
    for (i, (g, w)) in got.to_floats().iter().zip(want.to_floats()).enumerate() {
        let equal = *g == w || (g.is_nan() && w.is_nan());
        let near = w.is_finite() && (g - w).abs() <= atol + rtol * w.abs();
        if !equal && !near {
            return Err(format!("element {i} is {g}, not {w}"));
        }
    }
    Ok(())
}

/// What 16 bits cannot tell apart, relative: two units in the last place. The suite's tolerance is less than that,
/// its results are rounded once, and a function's body is rounded at every node.
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 2f64.powi(-6),
        DType::F16 => 2f64.powi(-9),
        _ => 0.0,
    }
}

fn same_type(got: &Literal, want: &Literal) -> Result<(), String> {
    if (got.dtype(), got.shape()) == (want.dtype(), want.shape()) {
        return Ok(());
    }
    Err(format!("{}{:?}, not {}{:?}", got.dtype(), got.shape(), want.dtype(), want.shape()))
}

/// Runs a test on one data set.
fn run_set(case: &Case, inputs: &[Literal], outputs: &[Literal]) -> Outcome {
    let (imported, known) = match import(case, inputs) {
        Ok(x) => x,
        Err(outcome) => return outcome,
    };
    let g = &imported.graph;
    let mut given: BTreeMap<ValueId, Literal> = initial_state(g, &imported.weights);
    let mut unknown = inputs.iter().zip(&known).filter(|(_, k)| !**k).map(|(l, _)| l);
    for i in &g.inputs {
        let literal = match i.role {
            InputRole::Data => unknown.next().expect("as many inputs as the model has").clone(),
            _ => Literal::scalar(g.ty(i.value).dtype, 1.0),
        };
        given.insert(i.value, literal);
    }
    let all = match interpret(g, &given) {
        Ok(all) => all,
        Err(e) => {
            return match e.error {
                OpError::Unsupported(_) | OpError::Dynamic(_) => Outcome::NotSupported(e.error.to_string()),
                _ => Outcome::Failed(e.to_string()),
            };
        }
    };
    if g.outputs.len() != outputs.len() {
        return Outcome::Failed(format!("{} outputs, not {}", g.outputs.len(), outputs.len()));
    }
    let chance = random(case);
    for (k, (v, want)) in g.outputs.iter().zip(outputs).enumerate() {
        let verdict =
            if chance { same_type(&all[v], want) } else { compare(&all[v], want, case.rtol, case.atol) };
        if let Err(e) = verdict {
            return Outcome::Failed(format!("output {k}: {e}"));
        }
    }
    if chance { Outcome::Random } else { Outcome::Passed { known: known.iter().filter(|k| **k).count() } }
}

fn run(case: &Case) -> Outcome {
    let mut last = Outcome::Failed("it has no data".to_owned());
    for (inputs, outputs) in &case.data {
        let ran = catch_unwind(AssertUnwindSafe(|| run_set(case, inputs, outputs)));
        last = ran.unwrap_or_else(|_| Outcome::Failed("panicked".to_owned()));
        if matches!(last, Outcome::Failed(_) | Outcome::NotSupported(_)) {
            break;
        }
    }
    last
}

/// Counts of one operator.
#[derive(Default)]
struct Tally {
    tried: usize,
    passed: usize,
    known: usize,
    random: usize,
    failed: Vec<String>,
    /// Reasons with how many tests each keeps out.
    not_supported: BTreeMap<String, usize>,
}

/// Counts by operator as a table.
fn table(tallies: &BTreeMap<String, Tally>) -> String {
    let mut out = String::from(
        "`known`: passed with inputs known at compile time; `random`: types and shapes only.\n\n\
         | operator | passed | tried | known | random | failed | not supported, and why |\n|---|---|---|---|---|---|---|\n",
    );
    for (op, t) in tallies {
        let why: Vec<String> =
            t.not_supported.iter().map(|(why, n)| format!("{n}x {}", why.replace('|', "\\|"))).collect();
        let (failed, why) = (t.failed.len(), why.join("; "));
        out += &format!(
            "| {op} | {} | {} | {} | {} | {failed} | {why} |\n",
            t.passed, t.tried, t.known, t.random
        );
    }
    out
}

#[test]
fn no_operator_with_a_rule_fails() {
    let Some(root) = folder() else { return };
    let mut dirs: Vec<PathBuf> = std::fs::read_dir(&root).unwrap().map(|e| e.unwrap().path()).collect();
    dirs.retain(|d| d.join("case.json").exists());
    dirs.sort();
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    for dir in &dirs {
        let (op, case) = read(dir);
        let t = tallies.entry(op).or_default();
        t.tried += 1;
        match case.map(|c| run(&c)) {
            Ok(Outcome::Passed { known }) => {
                t.passed += 1;
                t.known += usize::from(known > 0);
            }
            Ok(Outcome::Random) => t.random += 1,
            Ok(Outcome::Failed(why)) => {
                t.failed.push(format!("{}: {why}", dir.file_name().unwrap().to_string_lossy()));
            }
            Ok(Outcome::NotSupported(why)) | Err(why) => *t.not_supported.entry(why).or_default() += 1,
        }
    }
    let sum = |f: &dyn Fn(&Tally) -> usize| tallies.values().map(f).sum::<usize>();
    let (passed, failed) = (sum(&|t| t.passed), sum(&|t| t.failed.len()));
    let summary = format!(
        "{passed} of {} node tests passed ({} with inputs known at compile time), {} random, {} not supported, {failed} failed",
        sum(&|t| t.tried),
        sum(&|t| t.known),
        sum(&|t| t.random),
        sum(&|t| t.not_supported.values().sum()),
    );
    test_support::report("node_tests", &summary, &table(&tallies));
    let which: Vec<String> =
        tallies.iter().flat_map(|(op, t)| t.failed.iter().map(move |f| format!("{op} {f}"))).collect();
    assert!(which.is_empty(), "operators with a rule failed:\n{}", which.join("\n"));
    assert!(passed >= AT_LEAST, "only {passed} tests passed, {AT_LEAST} did before");
}

/// With no size and no element known, an operator may be known only at run time; it is never wrong.
#[test]
fn unknown_sizes_are_dynamic_not_wrong() {
    let Some(root) = folder() else { return };
    let options = Options {
        dims: Vec::new(),
        ops: ImportOptions {
            training: false,
            batchnorm: BatchNormMode::Auto,
            dropout: DropoutMode::Auto,
            unbiased_running_variance: false,
        },
        ..Options::default()
    };
    let mut dirs: Vec<PathBuf> = std::fs::read_dir(&root).unwrap().map(|e| e.unwrap().path()).collect();
    dirs.retain(|d| d.join("case.json").exists());
    dirs.sort();
    let (mut tried, mut static_, mut wrong) = (0, 0, Vec::new());
    for dir in &dirs {
        let (op, Ok(case)) = read(dir) else { continue };
        tried += 1;
        match import_bytes(&case.name, unbound(&case.model).into(), &options) {
            Ok(_) => static_ += 1,
            Err(e) => match *e.kind {
                ImportErrorKind::Dynamic { .. } | ImportErrorKind::Unsupported(_) => {}
                ref k if k.to_string().contains("not supported") => {}
                _ => wrong.push(format!("{op} {}: {e}", case.name)),
            },
        }
    }
    println!("{static_} of {tried} import with unknown sizes");
    assert!(wrong.is_empty(), "{} are called wrong:\n{}", wrong.len(), wrong.join("\n"));
}
