//! Steps that are alike with their commits early and differ with their commits late, and the other way round: a plan is played for the
//! program that it was made for, whichever batch came first.

use compiler::train::{Optimizer, TrainOptions};
use runtime::Session;
use tests::{
    bodies::{graph, model, tensor, weight},
    reference::{adamw, sgd},
    written::{Array, ints, session_as, state, step},
};

const ROWS: usize = 40;
const SIDE: usize = 8;

/// What a condition chooses is carried into a loop that does not read it: neither branch has a gradient, the step's graph has the one that
/// was taken all the same.
fn unread() -> Vec<u8> {
    let then = graph("", "a1 = MatMul(h0, wa)\n a = Tanh(a1)", &[], "a f64[n, 8]");
    let other = graph("", "b = Tanh(h0)", &[], "b f64[n, 8]");
    let body = graph(
        "it i64[], on bool[], before f64[n, 8]",
        "more = Identity(on)
         u = MatMul(h0, w2)
         after = Tanh(u)",
        &[],
        "more bool[], after f64[n, 8]",
    );
    let text = "g0 = MatMul(x, w0)
        h0 = Tanh(g0)
        s = ReduceSum(x) keepdims=0
        c = Less(s, zero)
        y = If(c) then_branch=@then else_branch=@else
        y3 = Loop(times, yes, y) body=@body
        y4 = Sin(y3)
        q = Add(y4, x)
        qs = Mul(q, y4)
        loss = ReduceMean(qs) keepdims=0";
    let bodies = [("then", &then), ("else", &other), ("body", &body)];
    let main = graph("x f64[n, 8], times i64[]", text, &bodies, "loss f64[]");
    let zero = tensor("zero", 11, &[], 0f64.to_le_bytes().to_vec());
    let yes = tensor("yes", 9, &[], vec![1]);
    let side = [SIDE as i64, SIDE as i64];
    let weights = ["w0", "w2", "wa"].into_iter().zip(1..).map(|(name, seed)| weight(name, &side, seed));
    onnx_models::to_bytes(&model(main, weights.chain([zero, yes]).collect())).unwrap()
}

/// A batch whose sum has the sign, and how often the loop runs.
fn batch(sign: f64, seed: u64) -> (Vec<f64>, Vec<Array>) {
    let small = weight("x", &[ROWS as i64, SIDE as i64], seed);
    let x: Vec<f64> = doubles(&small.raw_data).iter().map(|v| v + sign / 2.0).collect();
    let bytes = x.iter().flat_map(|v| v.to_le_bytes()).collect();
    (x, vec![("x", vec![ROWS as u64, SIDE as u64], bytes), ("times", vec![], ints(&[3]))])
}

fn doubles(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
}

/// `a b`, of matrices row by row; with `across` the transpose of `a` by `b`.
fn product(a: &[f64], b: &[f64], across: bool) -> Vec<f64> {
    let columns = SIDE;
    let rows = if across { SIDE } else { a.len() / SIDE };
    let inner = if across { a.len() / SIDE } else { SIDE };
    let at = |i: usize, k: usize| if across { a[k * SIDE + i] } else { a[i * SIDE + k] };
    let element = |e: usize| (0..inner).map(|k| at(e / columns, k) * b[k * columns + e % columns]).sum();
    (0..rows * columns).map(element).collect()
}

fn each(a: &[f64], b: &[f64], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect()
}

/// The gradients of `w0` and `w2`, by hand.
fn gradients(x: &[f64], w0: &[f64], w2: &[f64]) -> [Vec<f64>; 2] {
    let n = x.len() as f64;
    let tanh = |v: Vec<f64>| -> Vec<f64> { v.into_iter().map(f64::tanh).collect() };
    let h0 = tanh(product(x, w0, false));
    let h = tanh(product(&h0, w2, false));
    let dy = each(x, &h, |x, h| (2.0 * h.sin() + x) / n * h.cos());
    let du = each(&dy, &h, |d, h| d * (1.0 - h * h));
    let transposed: Vec<f64> = (0..SIDE * SIDE).map(|e| w2[e % SIDE * SIDE + e / SIDE]).collect();
    let dg = each(&product(&du, &transposed, false), &h0, |d, h| d * (1.0 - h * h));
    [product(x, &dg, true), product(&h0, &du, true)]
}

type How = (&'static str, Optimizer, Option<f64>);

fn ways() -> [How; 4] {
    let momentum = Optimizer::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    [
        ("sgd", sgd(), None),
        ("momentum", momentum, None),
        ("adamw", adamw(), None),
        ("clipped adamw", adamw(), Some(0.1)),
    ]
}

fn open(model: &[u8], pool: u64, how: &How) -> Session {
    let change = |t: &mut TrainOptions| (t.optimizer, t.clip_norm) = (how.1.clone(), how.2);
    session_as(model, pool, change)
}

#[test]
fn weights_are_those_of_the_batches_in_any_order_and_pool() {
    let model = unread();
    let mut same = 0;
    for signs in [[1.0, -1.0, -1.0, 1.0], [-1.0, 1.0, 1.0, -1.0]] {
        let batches: Vec<_> = (0..).zip(signs).map(|(i, sign)| batch(sign, 5 + i)).collect();
        for how in ways() {
            let mut roomy = open(&model, 1 << 22, &how);
            let mut all = Vec::new();
            let mut peak = 0;
            for (i, (_, data)) in (1..).zip(&batches) {
                let (bits, report) = step(&mut roomy, data, i).unwrap();
                peak = peak.max(report.pool.peak);
                all.push((bits, state(&roomy)));
            }
            if how.0 == "momentum" {
                // Plainly, in the same precision.
                let rate = f64::from(0.01f32);
                let mut w =
                    [1, 2].map(|seed| doubles(&weight("w", &[SIDE as i64, SIDE as i64], seed).raw_data));
                let mut velocity = [vec![0.0; SIDE * SIDE], vec![0.0; SIDE * SIDE]];
                for (x, _) in &batches {
                    let g = gradients(x, &w[0], &w[1]);
                    for i in 0..2 {
                        velocity[i] = each(&velocity[i], &g[i], |v, g| f64::from(0.9f32) * v + g);
                        w[i] = each(&w[i], &velocity[i], |w, v| w - rate * v);
                    }
                }
                for (name, w) in [("w0", &w[0]), ("w2", &w[1])] {
                    for (got, wanted) in doubles(&roomy.state(name).unwrap()).iter().zip(w) {
                        assert!((got - wanted).abs() < 1e-9, "{name}: {got} against {wanted}");
                    }
                }
            }
            for percent in (40..=110).step_by(5) {
                let mut s = open(&model, plan::align(peak * percent / 100), &how);
                for (i, ((_, data), (bits, after))) in (1..).zip(batches.iter().zip(&all)) {
                    let before = state(&s);
                    match step(&mut s, data, i) {
                        Ok((got, _)) => {
                            assert_eq!(got, *bits, "{} at {percent} %, step {i}", how.0);
                            assert!(state(&s) == *after, "{} at {percent} %, step {i}", how.0);
                            same += 1;
                        }
                        Err(e) => {
                            assert!(e.contains("out of memory"), "{} at {percent} %, step {i}: {e}", how.0);
                            assert!(state(&s) == before, "{} at {percent} %, step {i}", how.0);
                            break;
                        }
                    }
                }
            }
        }
    }
    assert!(same > 250, "{same}");
}
