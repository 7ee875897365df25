//! Walks every operator and every case: gradients against finite differences in float64, overwriting, implementations and thread counts
//! to the bit.

use graph::{DType, Graph, InputRole, Literal, TensorType, ValueId};
use ops::{
    Builder, OPS, OpDef, Signature,
    case::{Case, Fill},
    cpu::{evaluate_with, interpret},
    grad::backward,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;

/// Operators without a gradient that were looked at: integer, boolean or piecewise-constant results, and operators that occur in
/// gradients, losses or optimizers only.
const NOT_DIFFERENTIABLE: &str = include_str!("not_differentiable.txt");

fn draw(fill: &Fill, dtype: DType, shape: &[usize], rng: &mut StdRng) -> Literal {
    let n: usize = shape.iter().product();
    let values = fill.draw(n, &mut || rng.random());
    let bytes: Vec<u8> = values.iter().flat_map(|v| Literal::scalar(dtype, *v).bytes().to_vec()).collect();
    Literal::new(dtype, shape.iter().map(|d| *d as u64).collect(), bytes).unwrap()
}

struct Built {
    graph: Graph,
    inputs: Vec<Option<ValueId>>,
    outputs: Vec<ValueId>,
    given: BTreeMap<ValueId, Literal>,
}

fn build(op: &dyn OpDef, case: &Case, dtype: DType, seed: u64) -> Result<Built, String> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut graph = Graph::default();
    let (mut inputs, mut given) = (Vec::new(), BTreeMap::new());
    for (i, input) in case.inputs.iter().enumerate() {
        inputs.push(input.as_ref().map(|c| {
            let dtype = c.dtype.unwrap_or(dtype);
            let l = draw(&c.fill, dtype, &c.shape, &mut rng);
            if c.constant {
                return graph.add_constant(format!("x{i}"), l);
            }
            let v = graph.add_input(format!("x{i}"), TensorType::new(dtype, &c.shape), InputRole::Data);
            given.insert(v, l);
            v
        }));
    }
    let outputs =
        Builder::new(&mut graph).emit(op.name(), case.attrs.clone(), &inputs).map_err(|e| e.to_string())?;
    Ok(Built { graph, inputs, outputs, given })
}

fn dot(a: &Literal, b: &Literal) -> f64 {
    a.to_floats().iter().zip(b.to_floats()).map(|(x, y)| x * y).sum()
}

/// Compares the gradients of one case with central differences.
fn check_gradient(op: &dyn OpDef, case: &Case) -> Result<(), String> {
    let built = build(op, case, DType::F64, 7)?;
    let forward = built.graph.clone();
    let (mut graph, mut given) = (built.graph, built.given.clone());
    let mut rng = StdRng::seed_from_u64(11);
    let mut seeds = Vec::new();
    for o in &built.outputs {
        let ty = graph.ty(*o).clone();
        if ty.dtype.is_float() {
            let shape: Vec<usize> = ty.shape.fixed().unwrap();
            let c = graph.add_input(format!("cotangent{}", seeds.len()), ty, InputRole::Data);
            given.insert(c, draw(&Fill::Uniform(0.5, 1.5), DType::F64, &shape, &mut rng));
            seeds.push((*o, c));
        }
    }
    let wrt: Vec<(usize, ValueId)> = case
        .inputs
        .iter()
        .enumerate()
        .filter(|(_, c)| c.as_ref().is_some_and(|c| c.differentiate && c.dtype.is_none()))
        .map(|(i, _)| (i, built.inputs[i].unwrap()))
        .collect();
    let values: Vec<ValueId> = wrt.iter().map(|(_, v)| *v).collect();
    let grads = backward(&mut Builder::new(&mut graph), &seeds, &values).map_err(|e| e.to_string())?;
    graph::verify(&graph).map_err(|e| e.to_string())?;
    let all = interpret(&graph, &given).map_err(|e| e.to_string())?;
    let objective = |given: &BTreeMap<ValueId, Literal>| -> Result<f64, String> {
        let r = interpret(&forward, given).map_err(|e| e.to_string())?;
        Ok(seeds.iter().map(|(o, c)| dot(&r[o], &all[c])).sum())
    };
    for ((i, v), g) in wrt.iter().zip(grads) {
        let x = built.given[v].clone();
        let analytic = g.map_or_else(|| vec![0.0; x.len()], |g| all[&g].to_floats());
        let scale = analytic.iter().fold(1.0f64, |m, a| m.max(a.abs()));
        for k in 0..x.len() {
            let h = 1e-5;
            let shifted = |d: f64| -> Result<f64, String> {
                let mut e = x.to_floats();
                e[k] += d;
                let bytes: Vec<u8> = e.iter().flat_map(|v| v.to_le_bytes()).collect();
                let mut given = built.given.clone();
                given.insert(*v, Literal::new(DType::F64, x.shape().to_vec(), bytes).unwrap());
                objective(&given)
            };
            let numeric = (shifted(h)? - shifted(-h)?) / (2.0 * h);
            let off = (numeric - analytic[k]).abs();
            if off.is_nan() || off > 1e-6 * scale {
                return Err(format!("input {i} element {k}: analytic {} numeric {numeric}", analytic[k]));
            }
        }
    }
    Ok(())
}

/// Every lawful overwrite, every implementation and one or two threads give the bits of the plain evaluation.
fn check_bits(op: &dyn OpDef, case: &Case) -> Result<(), String> {
    let built = build(op, case, DType::F32, 13)?;
    let Some(node) = built.graph.nodes.last() else { return Ok(()) };
    let sig = Signature::of(&built.graph, node);
    let elements: Vec<Option<Literal>> = built
        .inputs
        .iter()
        .map(|i| i.map(|v| built.given.get(&v).or(built.graph.constant(v)).unwrap().clone()))
        .collect();
    let args: Vec<Option<&Literal>> = elements.iter().map(|e| e.as_ref()).collect();
    let facts = op.facts(&sig);
    let reference = evaluate_with(op, &sig, &args, 0, &[]).map_err(|e| e.to_string())?;
    for threads in [1, 2, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        for k in 0..facts.implementations.len() {
            let mut sharings: Vec<Vec<(usize, usize)>> = vec![vec![]];
            sharings.extend(facts.overwrites.iter().map(|p| vec![*p]));
            for sharing in sharings {
                let got = pool
                    .install(|| evaluate_with(op, &sig, &args, k, &sharing))
                    .map_err(|e| e.to_string())?;
                if got != reference {
                    return Err(format!(
                        "bits differ: implementation {k}, overwriting {sharing:?}, {threads} threads"
                    ));
                }
            }
        }
    }
    Ok(())
}

fn for_every_case(
    check: impl Fn(&dyn OpDef, &Case) -> Result<(), String>,
    filter: impl Fn(&dyn OpDef) -> bool,
) {
    let mut failures = Vec::new();
    let mut count = 0;
    for op in OPS.iter().filter(|op| filter(**op)) {
        for case in op.cases() {
            count += 1;
            if let Err(e) = check(*op, &case) {
                failures.push(format!("{} ({}): {e}", op.name(), case.name));
            }
        }
    }
    assert!(failures.is_empty(), "{} of {count} cases fail:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn gradients_equal_finite_differences() {
    for_every_case(check_gradient, |op| op.differentiable());
}

#[test]
fn sharing_implementations_and_threads_keep_the_bits() {
    for_every_case(check_bits, |_| true);
}

#[test]
fn every_op_has_cases_and_a_gradient_or_a_reason() {
    let listed: Vec<&str> = NOT_DIFFERENTIABLE.lines().filter(|l| !l.starts_with('#')).collect();
    for op in OPS {
        assert!(!op.cases().is_empty(), "{} has no cases", op.name());
        assert_eq!(
            !op.differentiable(),
            listed.contains(&op.name()),
            "{}: differentiable() and the list disagree",
            op.name()
        );
    }
    let names: std::collections::BTreeSet<_> = OPS.iter().map(|o| o.name()).collect();
    assert_eq!(names.len(), OPS.len(), "two operators share a name");
}
