//! Gradients of attention before and after rewriting, where masks leave nothing of a row: against plain loops in float64.

use crate::support::{number, rewritten_for};
use graph::{DType, Graph, InputRole, Literal, TensorType, ValueId};
use ops::{Builder, cpu::interpret, grad::backward};
use rewrite::{Level, Stage};
use std::collections::BTreeMap;

/// Queries, keys and columns; one head.
const N: usize = 33;
const D: usize = 4;
/// A power of two: scores are exact in float32, so that what a large mask leaves of them is, too.
const SCALE: f64 = 0.5;

/// How a model masks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mask {
    /// A number is added.
    Added,
    /// Where(keep, scores, number).
    Kept,
    /// Where(masked, number, scores).
    Filled,
}

fn element(i: usize) -> f32 {
    ((i * 7919 + i / 5) % 9) as f32 / 4.0 - 1.0
}

/// Causal, and two rows of padding of which nothing counts.
fn counts(i: usize) -> bool {
    let (row, column) = (i / N, i % N);
    column <= row && row != 2 && row != 20
}

fn floats(n: usize, first: usize, shape: &[usize]) -> Literal {
    let bytes: Vec<u8> = (first..first + n).flat_map(|i| element(i).to_le_bytes()).collect();
    Literal::new(DType::F32, shape.iter().map(|d| *d as u64).collect(), bytes).unwrap()
}

fn operands() -> [Literal; 4] {
    [0, 1, 2, 3].map(|i| floats(N * D, i * 1000, &[1, N, D]))
}

fn model(mask: Mask, fill: f64) -> Graph {
    let mut g = Graph::default();
    let [q, k, v] =
        ["q", "k", "v"].map(|n| g.add_input(n, TensorType::new(DType::F32, &[1, N, D][..]), InputRole::Data));
    let mut b = Builder::new(&mut g);
    let bools = |f: &dyn Fn(usize) -> bool| {
        Literal::new(DType::Bool, vec![N as u64; 2], (0..N * N).map(|i| u8::from(f(i))).collect::<Vec<u8>>())
    };
    let s = b.matmul(q, k, false, true).unwrap();
    let scale = number(&mut b, SCALE);
    let s = b.call("Mul", &[s, scale]).unwrap();
    let s = match mask {
        Mask::Added => {
            let row = (0..N * N).flat_map(|i| (if counts(i) { 0.0 } else { fill as f32 }).to_le_bytes());
            let m = Literal::new(DType::F32, vec![N as u64; 2], row.collect::<Vec<u8>>()).unwrap();
            let m = b.constant(m);
            b.call("Add", &[s, m]).unwrap()
        }
        Mask::Kept => {
            let (keep, fill) = (b.constant(bools(&counts).unwrap()), number(&mut b, fill));
            b.call("Where", &[keep, s, fill]).unwrap()
        }
        Mask::Filled => {
            let (masked, fill) = (b.constant(bools(&|i| !counts(i)).unwrap()), number(&mut b, fill));
            b.call("Where", &[masked, fill, s]).unwrap()
        }
    };
    let p = b.op("Softmax", graph::Attrs::new().with("axis", 2), &[s]).unwrap();
    let y = b.matmul(p, v, false, false).unwrap();
    g.outputs = vec![y];
    g
}

/// dq, dk and dv for the cotangent that stands behind them in the operands.
fn gradients(g: &Graph) -> Vec<Vec<f64>> {
    let mut g = g.clone();
    let inputs: Vec<ValueId> = g.inputs.iter().map(|i| i.value).collect();
    let y = g.outputs[0];
    let [q, k, v, dy] = operands();
    let mut b = Builder::new(&mut g);
    let seed = b.constant(dy);
    let grads = backward(&mut b, &[(y, seed)], &inputs).unwrap();
    let given: BTreeMap<ValueId, Literal> = inputs.iter().copied().zip([q, k, v]).collect();
    let all = interpret(&g, &given).unwrap();
    grads.into_iter().map(|d| all[&d.unwrap()].to_floats()).collect()
}

fn reference(mask: Mask, fill: f64) -> Vec<Vec<f64>> {
    reference_of(mask, fill, |_| true)
}

/// Gradients of the rows that are told.
fn reference_of(mask: Mask, fill: f64, is_in: fn(usize) -> bool) -> Vec<Vec<f64>> {
    let [q, k, v, dy] = operands().map(|l| l.to_floats());
    let dot = |a: &[f64], i: usize, b: &[f64], j: usize| -> f64 {
        (0..D).map(|c| a[i * D + c] * b[j * D + c]).sum()
    };
    let mut out = vec![vec![0.0; N * D]; 3];
    for i in (0..N).filter(|i| is_in(*i)) {
        let masked = |j: usize| {
            let s = dot(&q, i, &k, j) * SCALE;
            match mask {
                _ if counts(i * N + j) => s,
                Mask::Added => f64::from(s as f32 + fill as f32),
                Mask::Kept | Mask::Filled => fill,
            }
        };
        let s: Vec<f64> = (0..N).map(masked).collect();
        let top = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = s.iter().map(|x| (x - top).exp()).sum();
        let p: Vec<f64> = s.iter().map(|x| (x - top).exp() / sum).collect();
        let mean: f64 = (0..N).map(|j| p[j] * dot(&dy, i, &v, j)).sum();
        for j in 0..N {
            let passes = mask == Mask::Added || counts(i * N + j);
            let ds = if passes { p[j] * (dot(&dy, i, &v, j) - mean) * SCALE } else { 0.0 };
            for c in 0..D {
                out[0][i * D + c] += ds * k[j * D + c];
                out[1][j * D + c] += ds * q[i * D + c];
                out[2][j * D + c] += p[j] * dy[i * D + c];
            }
        }
    }
    out
}

#[test]
fn rows_of_which_nothing_counts_have_the_gradient_of_the_model() {
    let least = f64::from(f32::MIN);
    for mask in [Mask::Added, Mask::Kept, Mask::Filled] {
        for fill in [-1e4, -1e9, -1e30, least] {
            let g = model(mask, fill);
            let want = reference(mask, fill);
            let inputs: Vec<ValueId> = g.inputs.iter().map(|i| i.value).collect();
            let mut graphs = vec![("as written", g.clone())];
            for (name, level) in [("fast", Level::Fast), ("memory", Level::Memory)] {
                let done = rewritten_for(&g, level, Stage::Before, &inputs);
                let fired = done.report.fired.iter().any(|f| f.rule == "attention");
                assert!(fired || level == Level::Fast, "{mask:?} {fill}: {}", done.report);
                graphs.push((name, done.graph));
            }
            for (name, g) in graphs {
                for (of, (got, want)) in ["q", "k", "v"].iter().zip(gradients(&g).iter().zip(&want)) {
                    let off = got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0.0, f64::max);
                    assert!(off <= 1e-5, "{mask:?} {fill} {name}: d{of} is off by {off}");
                }
            }
        }
    }
}

/// Nothing is masked by minus infinity alone: a row without a score is no number in either form, but replaced scores get no gradient.
#[test]
fn rows_of_minus_infinity_pass_no_gradient_to_replaced_scores() {
    let g = model(Mask::Kept, f64::NEG_INFINITY);
    let inputs: Vec<ValueId> = g.inputs.iter().map(|i| i.value).collect();
    let done = rewritten_for(&g, Level::Memory, Stage::Before, &inputs);
    assert!(done.report.fired.iter().any(|f| f.rule == "attention"), "{}", done.report);
    let (before, after) = (gradients(&g), gradients(&done.graph));
    for i in [0, 1] {
        for (b, a) in before[i].iter().zip(&after[i]) {
            assert!((b - a).abs() <= 1e-5, "{b} and {a}");
        }
    }
    assert!(before[2].iter().zip(&after[2]).all(|(b, a)| b.is_nan() == a.is_nan()));
}

/// The model with a mask of minus infinity, and 0 for probabilities that are NaN.
fn guarded(mask: Mask) -> Graph {
    let mut g = model(mask, f64::NEG_INFINITY);
    let product = g.nodes.pop().expect("the product");
    let p = product.inputs[0].expect("probabilities");
    let v = product.inputs[1].expect("values");
    let mut b = Builder::new(&mut g);
    let (nan, zero) = (b.call("IsNaN", &[p]).unwrap(), number(&mut b, 0.0));
    let p = b.call("Where", &[nan, zero, p]).unwrap();
    let y = b.matmul(p, v, false, false).unwrap();
    g.outputs = vec![y];
    g
}

/// The guard holds for any scores: rows with a NaN or an infinite one are 0, but beside values that are no numbers.
#[test]
fn guarded_rows_of_scores_that_are_no_numbers_are_those_of_the_model() {
    let with = |l: &Literal, special: &[(usize, f32)]| {
        let mut x: Vec<f32> = l.to_floats().iter().map(|x| *x as f32).collect();
        special.iter().for_each(|(i, n)| x[*i] = *n);
        let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
        Literal::new(DType::F32, l.shape().to_vec(), bytes).unwrap()
    };
    let [q, k, v, _] = operands();
    let q = with(&q, &[(0, f32::NAN), (5 * D + 1, f32::INFINITY), (7 * D, f32::NEG_INFINITY)]);
    for special in [&[][..], &[(3 * D + 2, f32::INFINITY), (9 * D, f32::NAN)]] {
        let v = with(&v, special);
        for mask in [Mask::Added, Mask::Kept, Mask::Filled] {
            let g = guarded(mask);
            let inputs: Vec<ValueId> = g.inputs.iter().map(|i| i.value).collect();
            let done = rewritten_for(&g, Level::Memory, Stage::Before, &inputs);
            assert!(done.report.fired.iter().any(|f| f.rule == "attention"), "{mask:?}: {}", done.report);
            let y = |g: &Graph| {
                let values = [q.clone(), k.clone(), v.clone()];
                let given = g.inputs.iter().map(|i| i.value).zip(values).collect();
                interpret(g, &given).unwrap()[&g.outputs[0]].to_floats()
            };
            let (want, got) = (y(&g), y(&done.graph));
            for (i, (w, g)) in want.iter().zip(&got).enumerate() {
                let same = w == g || w.is_nan() && g.is_nan() || (w - g).abs() < 1e-5;
                assert!(same, "{mask:?}, row {}: {w} and {g}", i / D);
            }
            let rows: Vec<usize> = (0..N).filter(|r| want[r * D..][..D].iter().all(|x| *x == 0.0)).collect();
            assert!(!special.is_empty() || rows == [0, 2, 5, 7, 20], "{mask:?}: {rows:?}");
        }
    }
}

/// Rows of which a mask leaves nothing: 0 behind the guard that PyTorch exports, and no gradient, as its own operator has it.
#[test]
fn guarded_rows_of_which_nothing_counts_have_no_gradient() {
    for mask in [Mask::Added, Mask::Kept, Mask::Filled] {
        let g = guarded(mask);
        let inputs: Vec<ValueId> = g.inputs.iter().map(|i| i.value).collect();
        let done = rewritten_for(&g, Level::Memory, Stage::Before, &inputs);
        assert!(done.report.fired.iter().any(|f| f.rule == "attention"), "{mask:?}: {}", done.report);
        // Far below all other scores, probabilities are those of minus infinity, but in the two rows of padding.
        let want = reference_of(mask, -1e30, |i| i != 2 && i != 20);
        for (name, g) in [("as written", &g), ("memory", &done.graph)] {
            for (of, (got, want)) in ["q", "k", "v"].iter().zip(gradients(g).iter().zip(&want)) {
                let off = got.iter().zip(want).map(|(g, w)| (g - w).abs());
                assert!(
                    off.clone().all(|off| off <= 1e-5),
                    "{mask:?} {name}: d{of} is off by {:?}",
                    off.max_by(f64::total_cmp)
                );
            }
        }
    }
}
