//! Graphs before and after rewriting, run side by side.
use graph::{DType, Graph, InputRole, Literal, Node, TensorType, ValueId};
use ops::{Builder, Signature, cpu::interpret, find};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rewrite::{Costs, Level, Report, Rewritten, Stage, rewrite};
use std::collections::BTreeMap;

/// A graph that a rule should change.
pub struct Case {
    /// The rule.
    pub rule: &'static str,
    /// Which of several ways to write the same.
    pub way: u32,
    /// Makes the graph and gives its outputs.
    pub build: fn(&mut Builder<'_>, u32) -> Vec<ValueId>,
}

/// An input of random floats.
pub fn input(b: &mut Builder<'_>, shape: &[usize]) -> ValueId {
    let name = b.unique("x");
    b.graph_mut().add_input(name, TensorType::new(DType::F32, shape), InputRole::Data)
}

/// A constant scalar.
pub fn number(b: &mut Builder<'_>, value: f64) -> ValueId {
    b.scalar(DType::F32, value)
}

/// A roofline.
pub fn time(g: &Graph, n: &Node) -> u64 {
    let (Some(op), sig) = (find(&n.op), Signature::of(g, n)) else { return 1 };
    if op.facts(&sig).views.len() == n.outputs.len() {
        return 1;
    }
    let w = op.work(&sig);
    let rate = if w.product { 200.0 } else { 15.0 };
    ((w.flops as f64 / rate).max(w.bytes as f64 / 20.0) + 500.0) as u64
}

pub fn rewritten(g: &Graph, level: Level, stage: Stage) -> Rewritten {
    rewritten_for(g, level, stage, &[])
}

/// As [`rewritten`], where these values will be trained.
pub fn rewritten_for(g: &Graph, level: Level, stage: Stage, trained: &[ValueId]) -> Rewritten {
    let done =
        rewrite(g, level, stage, trained, Costs { time: &time }).unwrap_or_else(|e| panic!("{e}\n{g}"));
    graph::verify(&done.graph).unwrap_or_else(|e| panic!("{e}\n{g}\n{}", done.graph));
    done
}

fn results(g: &Graph, seed: u64) -> Vec<(String, Literal)> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut given = BTreeMap::new();
    for i in &g.inputs {
        let shape: Vec<u64> = g.ty(i.value).shape.fixed().unwrap().iter().map(|d| *d as u64).collect();
        let n = shape.iter().product::<u64>();
        let bytes: Vec<u8> = (0..n).flat_map(|_| rng.random_range(-1.0f32..1.0).to_le_bytes()).collect();
        given.insert(i.value, Literal::new(DType::F32, shape, bytes).unwrap());
    }
    let all = interpret(g, &given).unwrap_or_else(|e| panic!("{e}\n{g}"));
    g.outputs.iter().map(|o| (g.value(*o).name.to_string(), all[o].clone())).collect()
}

/// Compares the results; `exact` to the bit.
pub fn compare(before: &Graph, after: &Graph, exact: bool) {
    for seed in 0..3 {
        for ((name, want), (named, got)) in results(before, seed).iter().zip(&results(after, seed)) {
            assert_eq!(name, named, "an output lost its name");
            assert_eq!((want.dtype(), want.shape()), (got.dtype(), got.shape()));
            if exact {
                assert_eq!(want.bytes(), got.bytes(), "{name}\n{before}\n{after}");
            }
            let scale = want.to_floats().iter().fold(1.0f64, |m, x| m.max(x.abs()));
            for (w, g) in want.to_floats().iter().zip(got.to_floats()) {
                assert!((w - g).abs() <= 2e-5 * scale, "{name}: {w} and {g}\n{before}\n{after}");
            }
        }
    }
}

pub fn build(case: &Case) -> Graph {
    let mut g = Graph::default();
    let outputs = (case.build)(&mut Builder::new(&mut g), case.way);
    g.outputs = outputs;
    g
}

pub fn report(case: &Case, level: Level, stage: Stage) -> Report {
    rewritten(&build(case), level, stage).report
}

/// Rewrites, compares, and tells which rules fired.
pub fn check(case: &Case, level: Level, stage: Stage) -> Vec<String> {
    let g = build(case);
    // Reading outputs instead of inputs shows in gradients only.
    let all: Vec<ValueId> = g.inputs.iter().map(|i| i.value).collect();
    let gradients = stage == Stage::Before && case.rule.ends_with("-from-output");
    let trained: &[ValueId] = if gradients { &all } else { &[] };
    let done = rewritten_for(&g, level, stage, trained);
    compare(&g, &done.graph, level == Level::Exact);
    assert_eq!(rewritten_for(&g, level, stage, trained).graph, done.graph, "not deterministic");
    done.report.fired.iter().map(|f| f.rule.to_owned()).collect()
}
