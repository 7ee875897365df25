//! Models of other people, from published packages: inference against onnxruntime's numbers, and why those that are refused are.
//!
//! `thirdparty_refused.txt` lists each model that is not imported with sizes bound, with the words its refusal must have and the reason.

use compiler::{
    cost::{CostModel, DeviceProfile},
    import::{self, Options},
    lower::lower,
    pipeline::programs,
    train::{Loss, find_loss},
};
use graph::{DType, Literal};
use ops::cpu::interpret;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};
use tests::{
    data, initial_state, inputs, npz,
    reference::{dims_of, sgd},
};

const REFUSED: &str = include_str!("thirdparty_refused.txt");
/// Sizes of models without reference inputs, as the importer's tests bind them.
const DIMS: &str = include_str!("../../../compiler/tests/all/import_support/dims.tsv");
/// Relative to an output's largest element: other orders of summation through a whole network, and variances that exporters compute as
/// differences of squares.
const TOLERANCE: f64 = 1e-4;
/// The same for 16-bit floats: four units in the last place, since each node of a network rounds once.
const TOLERANCE_OF_HALVES: f64 = 2e-3;
/// Absolute: onnxruntime's sigmoid is 0 where the true one is not yet.
const LEAST: f64 = 1e-7;

fn models(folder: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut out: Vec<PathBuf> = all.filter(|p| p.extension().is_some_and(|e| e == "onnx")).collect();
    out.sort();
    out
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}

fn inference(dims: Vec<(String, i64)>) -> Options {
    let mut options = Options { dims, ..Options::default() };
    options.ops.training = false;
    options
}

fn compare(got: &Literal, want: &Literal) -> Result<f64, String> {
    if got.dtype() != want.dtype() || got.shape() != want.shape() {
        return Err(format!("{got:?} instead of {want:?}"));
    }
    let (x, y) = (got.to_floats(), want.to_floats());
    let largest = y.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let off = x.iter().zip(&y).map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() }).fold(0.0, f64::max);
    let exact = !want.dtype().is_float();
    let tolerance = if want.dtype() == DType::F16 { TOLERANCE_OF_HALVES } else { TOLERANCE };
    if off.is_nan() || (exact && off > 0.0) || off > tolerance * largest + LEAST {
        return Err(format!("off by {off:.3e}, the largest element is {largest:.3e}"));
    }
    Ok(off / largest.max(LEAST))
}

#[test]
fn inference_equals_onnxruntime_or_is_refused_for_a_reason() {
    let Some(root) = data("models") else { return };
    let refused: BTreeMap<&str, (&str, &str)> = REFUSED
        .lines()
        .filter(|l| !l.starts_with('#') && !l.is_empty())
        .map(|l| {
            let mut parts = l.splitn(3, '\t');
            let mut next = || parts.next().expect("model, words of the refusal, reason");
            (next(), (next(), next()))
        })
        .collect();
    let (mut failures, mut seen, mut compared, mut imported_count) = (Vec::new(), BTreeSet::new(), 0, 0);
    let all = models(&root.join("thirdparty"));
    let mut table = vec!["| model | | |\n|---|---|---|\n".to_owned()];
    for path in &all {
        let name = name(path);
        let io = root.join("reference_thirdparty").join(format!("{name}.io.npz"));
        let io = io.exists().then(|| npz(&io));
        let dims = match &io {
            Some(io) => dims_of(path, io),
            None => {
                let line = DIMS.lines().find_map(|l| l.strip_prefix(&format!("thirdparty/{name}.onnx\t")));
                line.unwrap_or("").split_whitespace().map(|d| import::parse_binding(d).unwrap()).collect()
            }
        };
        // Whatever is refused, by the importer or by a kernel, is refused in one line and for a reviewed reason.
        let mut refusal = |e: String| match refused.get(name.as_str()) {
            Some((words, why)) if e.contains(words) && !e.contains('\n') => {
                table.push(format!("| {name} | refused | {why} |\n"));
                seen.insert(name.clone());
            }
            Some((words, _)) => failures.push(format!("{name}: {words:?} expected in {e}")),
            None => failures.push(format!("{name}: {e}")),
        };
        let imported = match import::import(path, &inference(dims)) {
            Ok(imported) => imported,
            Err(e) => {
                refusal(e.to_string());
                continue;
            }
        };
        imported_count += 1;
        let Some(io) = io else {
            table.push(format!("| {name} | imported | {} nodes |\n", imported.graph.nodes.len()));
            continue;
        };
        let g = &imported.graph;
        let mut given = inputs(g, &io, 0.0, 1);
        given.extend(initial_state(g, &imported.weights));
        let mut worst = 0.0f64;
        match interpret(g, &given) {
            Err(e) => refusal(e.to_string()),
            Ok(values) => {
                compared += 1;
                for (o, output) in g.outputs.iter().zip(&imported.output_names) {
                    match compare(&values[o], &io[&format!("out:{output}")]) {
                        Ok(off) => worst = worst.max(off),
                        Err(e) => failures.push(format!("{name}: {output}: {e}")),
                    }
                }
                let nodes = g.nodes.len();
                table.push(format!(
                    "| {name} | compared | {nodes} nodes, off by {worst:.1e} of the largest |\n"
                ));
            }
        }
    }
    for name in refused.keys().filter(|n| !seen.contains(**n)) {
        failures.push(format!("{name} is listed, and was not refused"));
    }
    let all = all.len();
    let summary = format!(
        "{imported_count} of {all} models of others are imported, {compared} compared with onnxruntime"
    );
    test_support::report("thirdparty", &summary, &table.concat());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Where a model without bound sizes ends: in a program whose sizes are all known, one with open sizes, or a refusal.
fn unbound(path: &Path) -> Result<&'static str, String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let imported = import::import(path, &Options::default()).map_err(|e| text(&e))?;
    let trained = imported.candidates.iter().map(|n| n.to_string()).collect();
    let train = compiler::train::TrainOptions {
        loss: None::<Loss>,
        output: None,
        label: "target".to_owned(),
        ignore_index: None,
        class_axis: None,
        optimizer: sgd(),
        clip_norm: None,
        accumulate: 1,
        trainable: trained,
        amp: None,
    };
    let has_loss = find_loss(&imported.graph).is_some();
    let infer = (!has_loss).then_some(&imported.graph);
    let (graphs, _) = programs(&imported.graph, has_loss.then_some(&train), infer).map_err(|e| text(&e))?;
    let costs = CostModel::estimated(DeviceProfile::cpu());
    for (_, g) in &graphs {
        lower(g, &costs, 0).map_err(|e| text(&e))?;
    }
    Ok(if has_loss { "trains" } else { "infers" })
}

/// The operator and the reason, without the model's own names of nodes and sizes.
fn reason(message: &str) -> String {
    let text = message.rsplit_once(".onnx: ").map_or(message, |(_, r)| r);
    let Some((at, why)) = text.split_once(": ") else { return text.to_owned() };
    let op = at.split(' ').next().unwrap_or(at);
    let op = if op.starts_with('"') { "an input" } else { op };
    let why = why.split("; bind").next().unwrap_or(why);
    let why = why.split(": bind").next().unwrap_or(why);
    match (why.split_once(", ["), why.rsplit_once("],")) {
        (Some((before, _)), Some((_, after))) => format!("{op}: {before}{after}"),
        _ if why.contains(" is known only") && why.starts_with("the extent ") => {
            format!("{op}: the extent is known only at run time")
        }
        _ => format!("{op}: {why}"),
    }
}

/// What works without `--dim`, and what does not and why: a table, one line a reason.
#[test]
fn unbound_sizes_work_or_are_named() {
    let Some(root) = data("models") else { return };
    let (mut text, mut counts) = (String::new(), Vec::new());
    for folder in ["small", "topology", "thirdparty"] {
        let mut table: BTreeMap<String, (usize, String)> = BTreeMap::new();
        let all = models(&root.join(folder));
        for path in &all {
            let key = match unbound(path) {
                Ok(what) => what.to_owned(),
                Err(e) => {
                    assert!(!e.is_empty() && !e.contains('\n'), "{}: {e:?}", path.display());
                    reason(&e)
                }
            };
            let entry = table.entry(key).or_insert((0, name(path)));
            entry.0 += 1;
        }
        text += &format!("## {folder}\n\n| models | | first of them |\n|---|---|---|\n");
        for (why, (count, first)) in &table {
            text += &format!("| {count} | {} | {first} |\n", why.replace('|', "\\|"));
        }
        text.push('\n');
        let works = |key: &str| table.get(key).map_or(0, |t| t.0);
        counts.push(format!("{folder} {} of {}", works("trains") + works("infers"), all.len()));
        assert!(table.contains_key("trains") || table.contains_key("infers"), "{folder}: nothing works");
    }
    let summary = format!("without bound sizes models are static: {}", counts.join(", "));
    test_support::report("unbound_sizes", &summary, &text);
}
