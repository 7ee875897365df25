//! Optimizer steps against the textbook, element by element in float64.

use crate::support;
use graph::{Attrs, DType, Literal};

fn f32s(values: &[f32]) -> Literal {
    support::floats(&[values.len() as u64], values)
}

fn f32_scalar(v: f32) -> Literal {
    Literal::scalar(DType::F32, f64::from(v))
}

fn run(op: &str, attrs: Attrs, inputs: &[Option<Literal>]) -> Vec<Literal> {
    support::try_run(op, attrs, &inputs.iter().map(Option::as_ref).collect::<Vec<_>>()).unwrap()
}

fn close(got: &Literal, want: &[f64]) {
    support::close(got, want, 1e-6);
}

/// Enough elements for whole vector groups and a rest.
fn sample(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + seed * 101) % 97) as f32 / 48.0 - 1.0).collect()
}

#[test]
fn sgd_with_momentum_takes_two_steps_as_by_hand() {
    let n = 71;
    for nesterov in [false, true] {
        let attrs = Attrs::new().with("momentum", 0.9).with("weight_decay", 0.1).with("nesterov", nesterov);
        let (mut p, mut b) = (f32s(&sample(n, 1)), f32s(&vec![0.0; n]));
        let mut want: Vec<f64> = p.to_floats();
        let mut want_b = vec![0.0; n];
        for step in 0..2 {
            let g = f32s(&sample(n, 2 + step));
            let inputs = [Some(p), Some(g.clone()), Some(f32_scalar(0.5)), Some(b), Some(f32_scalar(2.0))];
            let out = run("Sgd", attrs.clone(), &inputs);
            (p, b) = (out[0].clone(), out[1].clone());
            for (i, g) in g.to_floats().iter().enumerate() {
                let g = 2.0 * g + 0.1 * want[i];
                want_b[i] = if step == 0 { g } else { 0.9 * want_b[i] + g };
                want[i] -= 0.5 * if nesterov { g + 0.9 * want_b[i] } else { want_b[i] };
            }
            close(&p, &want);
            close(&b, &want_b);
        }
    }
}

#[test]
fn adam_takes_three_steps_as_by_hand() {
    let n = 71;
    for decoupled in [false, true] {
        let attrs = Attrs::new().with("weight_decay", 0.1).with("decoupled", decoupled).with("eps", 1e-6);
        let (mut p, mut m, mut v) = (f32s(&sample(n, 1)), f32s(&vec![0.0; n]), f32s(&vec![0.0; n]));
        let (mut wp, mut wm, mut wv) = (p.to_floats(), vec![0.0; n], vec![0.0; n]);
        let lr = f64::from(0.01f32);
        for step in 1..=3i64 {
            let g = f32s(&sample(n, 1 + step as usize));
            let step_literal = Literal::ints(&[step]).reshaped(vec![]).unwrap();
            let inputs =
                [Some(p), Some(g.clone()), Some(f32_scalar(0.01)), Some(m), Some(v), Some(step_literal)];
            let out = run("Adam", attrs.clone(), &inputs);
            (p, m, v) = (out[0].clone(), out[1].clone(), out[2].clone());
            for (i, g) in g.to_floats().iter().enumerate() {
                let g = if decoupled { *g } else { g + 0.1 * wp[i] };
                if decoupled {
                    wp[i] -= lr * 0.1 * wp[i];
                }
                wm[i] = 0.9 * wm[i] + 0.1 * g;
                wv[i] = 0.999 * wv[i] + 0.001 * g * g;
                let (mh, vh) =
                    (wm[i] / (1.0 - 0.9f64.powi(step as i32)), wv[i] / (1.0 - 0.999f64.powi(step as i32)));
                wp[i] -= lr * mh / (vh.sqrt() + 1e-6);
            }
            close(&p, &wp);
            close(&m, &wm);
            close(&v, &wv);
        }
    }
}

#[test]
fn a_step_that_is_not_ok_changes_no_bit() {
    let n = 40;
    let x: Vec<Literal> = (0..4).map(|s| f32s(&sample(n, s))).collect();
    let nan = f32s(&vec![f32::NAN; n]);
    let (lr, no) = (f32_scalar(0.1), f32_scalar(0.0));
    let attrs = Attrs::new().with("momentum", 0.9);
    let some = |l: &Literal| Some(l.clone());
    let out = run("Sgd", attrs, &[some(&x[0]), some(&nan), some(&lr), some(&x[1]), None, some(&no)]);
    assert_eq!(out, x[..2]);
    let step = Literal::ints(&[1]).reshaped(vec![]).unwrap();
    let inputs = [some(&x[0]), some(&nan), some(&lr), some(&x[1]), some(&x[2]), Some(step), None, some(&no)];
    assert_eq!(run("Adam", Attrs::new(), &inputs), x[..3]);
    assert_eq!(run("RunningUpdate", Attrs::new(), &[some(&x[0]), some(&nan), some(&no)]), x[..1]);
    assert_eq!(run("Accumulate", Attrs::new(), &[some(&x[0]), some(&nan), some(&no)]), x[..1]);
}

#[test]
fn running_update_accumulate_and_reset() {
    let (a, b) = (f32s(&[1.0, 2.0]), f32s(&[3.0, -4.0]));
    let attrs = Attrs::new().with("momentum", 0.75).with("scale", 2.0);
    close(&run("RunningUpdate", attrs, &[Some(a.clone()), Some(b.clone())])[0], &[2.25, -0.5]);
    close(&run("Accumulate", Attrs::new(), &[Some(a.clone()), Some(b.clone())])[0], &[4.0, -2.0]);
    // Three updates one after the other, and two gathered from zero with the last one taken in at once.
    let attrs = Attrs::new().with("momentum", 0.75);
    let update = |old: &Literal, batch: f32| {
        let batch = f32s(&[batch, -batch]);
        run("RunningUpdate", attrs.clone(), &[Some(old.clone()), Some(batch)]).remove(0)
    };
    let one_by_one = [1.0, 4.0, 2.0].iter().fold(a.clone(), |r, b| update(&r, *b));
    let pending = [1.0, 4.0].iter().fold(f32s(&[0.0, 0.0]), |r, b| update(&r, *b));
    let inputs = [Some(a.clone()), Some(f32s(&[2.0, -2.0])), None, Some(pending)];
    let at_once = run("RunningUpdate", attrs.clone().with("parts", 3), &inputs).remove(0);
    close(&at_once, &one_by_one.to_floats());
    close(&run("Reset", Attrs::new(), &[Some(a), Some(b)])[0], &[0.0, 0.0]);
}

#[test]
fn norms_and_clipping() {
    // Squares of these overflow float32 one by one, their sum would be infinite.
    let big = f32s(&[1e15; 33]);
    close(&run("SumSquares", Attrs::new(), &[Some(big)])[0], &[33e30]);
    let clip = |max_norm: f64, pre_scale: f64, sums: [f32; 2]| {
        let attrs = Attrs::new().with("max_norm", max_norm).with("pre_scale", pre_scale);
        run("ClipScale", attrs, &sums.map(|v| Some(f32_scalar(v))))[0].to_floats()[0]
    };
    assert!((clip(1.0, 1.0, [9.0, 16.0]) - 0.2).abs() < 1e-6);
    assert_eq!(clip(10.0, 1.0, [9.0, 16.0]), 1.0);
    // Gradients halved anyway: norm 2.5, limit 1, so 0.5 * 0.4.
    assert!((clip(1.0, 0.5, [9.0, 16.0]) - 0.2).abs() < 1e-6);
    assert_eq!(clip(1.0, 1.0, [f32::INFINITY, 1.0]), 0.0);
    assert!(clip(1.0, 1.0, [f32::NAN, 1.0]).is_nan());
}

#[test]
fn finiteness_of_every_float_type() {
    for d in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for (v, want) in
            [(1.0, 1.0), (-0.0, 1.0), (f64::NAN, 0.0), (f64::INFINITY, 0.0), (f64::NEG_INFINITY, 0.0)]
        {
            let ones = Literal::filled(d, vec![9], 1.0).unwrap();
            let x = Literal::scalar(d, v);
            let out = run("IsFinite", Attrs::new(), &[Some(ones), Some(x)]);
            assert_eq!(out[0].to_floats(), [want], "{d} {v}");
        }
    }
}
