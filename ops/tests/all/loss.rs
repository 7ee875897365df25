//! Losses against plain loops in float64, and what they refuse.

use crate::support::{self, f32s, run, wavy};
use graph::{Attrs, Literal};
use ops::OpError;

fn labels(shape: &[u64], values: &[i64]) -> Literal {
    Literal::ints(values).reshaped(shape.to_vec()).unwrap()
}

fn try_run(op: &str, attrs: Attrs, inputs: &[&Literal]) -> Result<Vec<Literal>, OpError> {
    support::try_run(op, attrs, &inputs.iter().copied().map(Some).collect::<Vec<_>>())
}

fn close(got: &Literal, want: &[f64]) {
    support::close(got, want, 2e-6);
}

#[test]
fn softmax_of_rows_and_columns_is_that_of_a_plain_loop() {
    for (shape, axis) in [([3, 1000, 1], 1), ([2, 5, 70], 1), ([4, 3, 33], 2), ([6, 2, 40], 0)] {
        let x = f32s(&shape, wavy);
        let v = x.to_floats();
        let (n, inner) = (shape[axis] as usize, shape[axis + 1..].iter().product::<u64>() as usize);
        let (mut soft, mut log) = (vec![0.0; v.len()], vec![0.0; v.len()]);
        for line in 0..v.len() / n {
            let at = |k: usize| line / inner * n * inner + k * inner + line % inner;
            let sum: f64 = (0..n).map(|k| v[at(k)].exp()).sum();
            for k in 0..n {
                soft[at(k)] = v[at(k)].exp() / sum;
                log[at(k)] = v[at(k)] - sum.ln();
            }
        }
        let attrs = Attrs::new().with("axis", axis as i64);
        close(&run("Softmax", attrs.clone(), &[&x])[0], &soft);
        close(&run("LogSoftmax", attrs, &[&x])[0], &log);
    }
}

#[test]
fn softmax_survives_large_scores() {
    let attrs = Attrs::new().with("axis", 0i64);
    let x = f32s(&[3], |i| [1e30, 1e30, -1e30][i]);
    close(&run("Softmax", attrs.clone(), &[&x])[0], &[0.5, 0.5, 0.0]);
    let x = f32s(&[2], |i| [0.0, f32::NEG_INFINITY][i]);
    close(&run("Softmax", attrs.clone(), &[&x])[0], &[1.0, 0.0]);
    let x = f32s(&[40], |i| if i == 17 { f32::NAN } else { 0.0 });
    assert!(run("Softmax", attrs, &[&x])[0].to_floats().iter().all(|v| v.is_nan()));
}

#[test]
fn cross_entropy_is_that_of_a_plain_loop() {
    for (shape, spatial) in [(vec![50u64, 700], 1usize), (vec![3, 6, 5, 9], 45)] {
        let x = f32s(&shape, wavy);
        let (v, c) = (x.to_floats(), shape[1] as usize);
        let lines = shape[0] as usize * spatial;
        let ids: Vec<i64> = (0..lines).map(|i| ((i * 31) % c) as i64).collect();
        let mut rows = shape.clone();
        rows.remove(1);
        let (t, w) = (labels(&rows, &ids), f32s(&[c as u64], |i| 0.5 + i as f32 / c as f32));
        let weights = w.to_floats();
        let (mut sum, mut total, mut each) = (0.0, 0.0, Vec::new());
        for (l, id) in ids.iter().enumerate() {
            let at = |k: usize| v[l / spatial * c * spatial + k * spatial + l % spatial];
            let lse = (0..c).map(|k| at(k).exp()).sum::<f64>().ln();
            let weight = if *id == 3 { 0.0 } else { weights[*id as usize] };
            each.push(weight * (lse - at(*id as usize)));
            sum += weight * (lse - at(*id as usize));
            total += weight;
        }
        let attrs = |r: &str| Attrs::new().with("reduction", r).with("ignore_index", 3);
        let loss = |r: &str| run("SoftmaxCrossEntropyLoss", attrs(r), &[&x, &t, &w])[0].clone();
        close(&loss("none"), &each);
        close(&loss("sum"), &[sum]);
        close(&loss("mean"), &[sum / total]);
        let log = run("LogSoftmax", Attrs::new().with("axis", 1), &[&x]);
        let nll = |r: &str| run("NegativeLogLikelihoodLoss", attrs(r), &[&log[0], &t, &w])[0].clone();
        close(&nll("none"), &each);
        close(&nll("mean"), &[sum / total]);
    }
}

/// Offsets that all scores of a row have in common, at which a float32 log-sum-exp has no digits left for the logarithm.
const OFFSETS: [f32; 6] = [0.0, 1e4, 1e6, -1e9, 1e30, f32::MIN];

#[test]
fn gradients_of_cross_entropy_know_no_common_offset() {
    for offset in OFFSETS {
        for (shape, inner) in [(vec![5u64, 700], 1usize), (vec![2, 5, 70], 70), (vec![4, 1], 1)] {
            let x = f32s(&shape, |i| wavy(i) + offset);
            let (v, c) = (x.to_floats(), shape[1] as usize);
            let lines = v.len() / c;
            let ids: Vec<i64> = (0..lines).map(|i| ((i * 31) % c) as i64).collect();
            let mut rows = shape.clone();
            rows.remove(1);
            let (t, dy) = (labels(&rows, &ids), f32s(&rows, |i| 1.0 + i as f32 / 100.0));
            let attrs = Attrs::new().with("reduction", "none");
            let lse = run("SoftmaxCrossEntropyLoss", attrs.clone(), &[&x, &t])[1].clone();
            let mut want = vec![0.0; v.len()];
            for (l, (id, dy)) in ids.iter().zip(dy.to_floats()).enumerate() {
                let at = |k: usize| l / inner * c * inner + k * inner + l % inner;
                let top = (0..c).map(|k| v[at(k)]).fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = (0..c).map(|k| (v[at(k)] - top).exp()).sum();
                for k in 0..c {
                    want[at(k)] = ((v[at(k)] - top).exp() / sum - f64::from(k as i64 == *id)) * dy;
                }
            }
            close(&run("SoftmaxCrossEntropyGrad", attrs, &[&x, &t, &lse, &dy])[0], &want);
        }
    }
}

/// As above for a linear layer, whose bias has the offset; more classes than a block.
#[test]
fn gradients_of_a_linear_layers_cross_entropy_know_no_common_offset() {
    let (n, depth, classes) = (5usize, 4usize, 300usize);
    // Products are exact in float32, so that what an offset leaves of them is known.
    let eighths = |i: usize| ((i * 7919) % 17) as f32 / 8.0 - 1.0;
    let (x, w) = (f32s(&[5, 4], eighths), f32s(&[4, 300], |i| eighths(i + 3)));
    let ids: Vec<i64> = (0..n).map(|i| (i * 67 % classes) as i64).collect();
    let (t, dy) = (labels(&[5], &ids), f32s(&[], |_| 1.0));
    for offset in OFFSETS {
        let bias = f32s(&[300], |i| wavy(i) + offset);
        let attrs = Attrs::new().with("reduction", "sum");
        let out = run("LinearCrossEntropy", attrs.clone(), &[&x, &w, &t, &bias]);
        let no = f32s(&[5], |_| 0.0);
        let got = run("LinearCrossEntropyGrad", attrs, &[&x, &w, &t, &bias, &out[1], &dy, &no, &out[2]]);
        let (v, u, b) = (x.to_floats(), w.to_floats(), bias.to_floats());
        let (mut dx, mut dw, mut db) = (vec![0.0; n * depth], vec![0.0; depth * classes], vec![0.0; classes]);
        for r in 0..n {
            let score = |c: usize| {
                let product: f64 = (0..depth).map(|k| v[r * depth + k] * u[k * classes + c]).sum();
                f64::from(product as f32 + b[c] as f32)
            };
            let s: Vec<f64> = (0..classes).map(score).collect();
            let top = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = s.iter().map(|x| (x - top).exp()).sum();
            for c in 0..classes {
                let d = (s[c] - top).exp() / sum - f64::from(c as i64 == ids[r]);
                db[c] += d;
                for k in 0..depth {
                    dx[r * depth + k] += d * u[k * classes + c];
                    dw[k * classes + c] += d * v[r * depth + k];
                }
            }
        }
        close(&got[0], &dx);
        close(&got[1], &dw);
        close(&got[2], &db);
    }
}

#[test]
fn a_label_that_is_no_class_is_named() {
    let x = f32s(&[3, 4], wavy);
    for (op, bad) in [("SoftmaxCrossEntropyLoss", 4), ("NegativeLogLikelihoodLoss", -2)] {
        let t = labels(&[3], &[0, -1, bad]);
        let e = try_run(op, Attrs::new().with("ignore_index", -1), &[&x, &t]).unwrap_err().to_string();
        assert_eq!(e, format!("label {bad} at row 2 is outside of 0..4 and is not ignore_index -1"));
    }
    let e = try_run("SoftmaxCrossEntropyLoss", Attrs::new(), &[&x, &labels(&[2], &[0, 1])]).unwrap_err();
    assert!(e.to_string().contains("expected [3], found [2]"), "{e}");
}

#[test]
fn means_of_single_losses() {
    let (x, t) = (f32s(&[2, 35], |i| wavy(i) / 2.0), f32s(&[2, 35], |i| ((i * 13) % 11) as f32 / 10.0));
    let (v, u) = (x.to_floats(), t.to_floats());
    let mean = |f: &dyn Fn(f64, f64) -> f64| v.iter().zip(&u).map(|(x, t)| f(*x, *t)).sum::<f64>() / 70.0;
    close(&run("MseLoss", Attrs::new(), &[&x, &t])[0], &[mean(&|x, t| (x - t).powi(2))]);
    let bce = |p: f64, t: f64| -(t * p.ln() + (1.0 - t) * (1.0 - p).ln());
    let logits = run("BceWithLogitsLoss", Attrs::new(), &[&x, &t]);
    close(&logits[0], &[mean(&|x, t| bce(1.0 / (1.0 + (-x).exp()), t))]);
    // A probability of exactly 0 costs at most 100.
    let (p, one) = (f32s(&[1], |_| 0.0), f32s(&[1], |_| 1.0));
    close(&run("BceLoss", Attrs::new(), &[&p, &one])[0], &[100.0]);
}
