//! Dynamic steps commit before their end what they can: gradients need not live at once, the bits stay, and a step that fails leaves no
//! trace.

use compiler::train::{Optimizer, TrainOptions};
use onnx_models::{Common, Mlp, ModelProto, ResNet, Transformer, UNet, to_bytes};
use runtime::Session;
use tests::{
    bodies,
    reference::{adamw, sgd},
    written::{Array, floats, ints, least, session_as, state, step},
};

fn common() -> Common {
    Common { batch: 2, dynamic: true, loss: true, seed: 3 }
}

/// Eight equal layers, whose weights are far more than what a small batch keeps of them.
fn deep() -> (ModelProto, Vec<Array>) {
    let model = Mlp { inputs: 64, hidden: vec![64; 8], classes: 4 }.build(&common());
    (model, vec![("x", vec![2, 64], floats(128, 1)), ("target", vec![2], ints(&[1, 3]))])
}

fn session(model: &ModelProto, pool: u64, change: impl FnOnce(&mut TrainOptions)) -> Session {
    session_as(&to_bytes(model).expect("bytes"), pool, change)
}

fn optimizers() -> [(&'static str, Optimizer, Option<f64>); 4] {
    let momentum = Optimizer::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.01 };
    [
        ("sgd", sgd(), None),
        ("momentum", momentum, None),
        ("adamw", adamw(), None),
        // All gradients are wanted before the first commit, and again for it.
        ("clipped adamw", adamw(), Some(0.1)),
    ]
}

#[test]
fn gradients_do_not_live_at_once() {
    let (model, data) = deep();
    for (name, optimizer, clip) in optimizers() {
        let open = |pool| session(&model, pool, |t| (t.optimizer, t.clip_norm) = (optimizer.clone(), clip));
        let report = step(&mut open(1 << 26), &data, 1).unwrap().1;
        let gradients: u64 = 8 * 64 * 64 * 4;
        if clip.is_some() {
            assert!(report.pool.peak > gradients, "{name}: {report:?}");
            continue;
        }
        assert!(report.pool.peak < gradients / 2, "{name}: {report:?}");
        let tight = step(&mut open(gradients / 4), &data, 1).unwrap_or_else(|e| panic!("{name}: {e}")).1;
        assert!(tight.extra_permille < 500, "{name}: {tight:?}");
    }
}

/// Whatever is kept, dropped or made again, and whether commits come early or late.
#[test]
fn the_bits_do_not_depend_on_when_commits_run() {
    let image = |target: Vec<u64>| -> Vec<Array> {
        let classes: Vec<i64> = (0..target.iter().product::<u64>() as i64).map(|i| i % 3).collect();
        vec![("x", vec![2, 3, 16, 16], floats(2 * 768, 1)), ("target", target, ints(&classes))]
    };
    let tokens: Vec<i64> = (0..16).map(|i| (i * 7) % 24).collect();
    let words = vec![("input_ids", vec![2, 8], ints(&tokens)), ("target", vec![2, 8], ints(&tokens))];
    let resnet = ResNet { depth: 8, width: 8, classes: 3, size: 16, channels: 3 };
    let unet = UNet { levels: 2, width: 8, classes: 3, size: 16, channels: 3 };
    let transformer = Transformer { layers: 2, width: 16, heads: 2, vocabulary: 24, sequence: 8 };
    let (mut same, mut refused, mut recomputed) = (0, 0, 0);
    for (model, built, data) in [
        ("resnet", resnet.build(&common()), image(vec![2])),
        ("unet", unet.build(&common()), image(vec![2, 16, 16])),
        ("transformer", transformer.build(&common()), words),
    ] {
        for (name, optimizer, clip) in optimizers() {
            let open =
                |pool| session(&built, pool, |t| (t.optimizer, t.clip_norm) = (optimizer.clone(), clip));
            let mut roomy = open(1 << 26);
            let wanted: Vec<_> =
                (1..=2).map(|i| (step(&mut roomy, &data, i).unwrap(), state(&roomy))).collect();
            let peak = wanted[0].0.1.pool.peak;
            for percent in [90, 75, 60, 50, 40] {
                let mut s = open(plan::align(peak * percent / 100));
                for (i, ((bits, _), after)) in (1..).zip(&wanted) {
                    let before = state(&s);
                    match step(&mut s, &data, i) {
                        Ok((got, report)) => {
                            assert_eq!(got, *bits, "{model}, {name} at {percent} %");
                            assert!(state(&s) == *after, "{model}, {name} at {percent} %: the state differs");
                            same += 1;
                            recomputed += u32::from(report.remats > 0);
                        }
                        Err(refusal) => {
                            assert!(least(&refusal).is_some(), "{model}, {name}: {refusal}");
                            assert!(
                                state(&s) == before,
                                "{model}, {name}: a refused step has changed the state"
                            );
                            refused += 1;
                            break;
                        }
                    }
                }
            }
        }
    }
    assert!(same > 60 && recomputed > 40, "{same} same, {recomputed} recomputed, {refused} refused");
}

/// A label that is no class is found before anything is committed, an infinite loss lets every commit keep the old state.
#[test]
fn a_step_that_fails_changes_no_state() {
    let (model, good) = deep();
    let bad_label = vec![good[0].clone(), ("target", vec![2], ints(&[1, 99]))];
    let huge: Vec<u8> = (0..128).flat_map(|_| f32::INFINITY.to_le_bytes()).collect();
    let no_loss = vec![("x", vec![2, 64], huge), good[1].clone()];
    for (name, optimizer, clip) in optimizers() {
        let mut roomy = session(&model, 1 << 26, |t| (t.optimizer, t.clip_norm) = (optimizer.clone(), clip));
        let peak = step(&mut roomy, &good, 1).unwrap().1.pool.peak;
        // All gradients at once leave little to drop.
        let pool = plan::align(if clip.is_some() { peak } else { peak * 8 / 10 });
        let mut tight = session(&model, pool, |t| (t.optimizer, t.clip_norm) = (optimizer, clip));
        step(&mut tight, &good, 1).unwrap_or_else(|e| panic!("{name} at {pool}: {e}"));
        let before = state(&tight);
        // Twice: planned, and played again.
        for _ in 0..2 {
            let refusal = step(&mut tight, &bad_label, 2).unwrap_err();
            assert!(refusal.contains("99"), "{name}: {refusal}");
            assert!(state(&tight) == before, "{name}: a refused step has changed the state");
            let loss = f64::from_bits(step(&mut tight, &no_loss, 2).unwrap().0);
            assert!(!loss.is_finite() && state(&tight) == before, "{name}: {loss} was committed");
        }
        assert_eq!(step(&mut tight, &good, 2).unwrap().0, step(&mut roomy, &good, 2).unwrap().0);
        assert!(state(&tight) == state(&roomy) && state(&tight) != before, "{name}");
    }
}

/// Layers of which data choose the first, with a weight each.
fn chosen() -> (ModelProto, Vec<Array>, Vec<Array>) {
    let layer = |name: &str, weight: &str| {
        let text = format!("{name}m = MatMul(x, {weight})\n {name} = Tanh({name}m)");
        bodies::graph("", &text, &[], &format!("{name} f64[n, 32]"))
    };
    let (one, other) = (layer("h0", "w0"), layer("g0", "w1"));
    let mut text = "sum = ReduceSum(x) keepdims=0
        positive = Greater(sum, zero)
        h1 = If(positive) then_branch=@one else_branch=@other\n"
        .to_owned();
    for i in 1..8 {
        text += &format!("m{i} = MatMul(h{i}, w{i})\n h{} = Tanh(m{i})\n", i + 1);
    }
    text += "loss = ReduceMean(h8) keepdims=0";
    let main = bodies::graph("x f64[n, 32]", &text, &[("one", &one), ("other", &other)], "loss f64[]");
    let weights = (0..8).map(|i| bodies::weight(&format!("w{i}"), &[32, 32], i));
    let zero = bodies::tensor("zero", 11, &[], 0f64.to_le_bytes().to_vec());
    let model = bodies::model(main, weights.chain([zero]).collect());
    let rows = |n: i64| vec![("x", vec![n as u64, 32], bodies::weight("x", &[n, 32], 9).raw_data)];
    (model, rows(2), rows(400))
}

/// Between steps that commit early, one that the pool is too small for: the next goes on as if it had not been, planned or played again.
#[test]
fn a_step_that_is_refused_memory_leaves_no_trace() {
    let (plain, small) = deep();
    let wide = vec![("x", vec![400, 64], floats(400 * 64, 2)), ("target", vec![400], ints(&[1; 400]))];
    let (choosing, rows, many) = chosen();
    for (model, small, large, gradients) in
        [(plain, small, wide, 8 * 64 * 64 * 4), (choosing, rows, many, 8 * 32 * 32 * 8)]
    {
        for (name, optimizer, clip) in optimizers().into_iter().filter(|o| o.2.is_none()) {
            let open =
                |pool| session(&model, pool, |t| (t.optimizer, t.clip_norm) = (optimizer.clone(), clip));
            // The gradients of one step do not fit together.
            let pool = gradients / 2;
            let (mut tried, mut spared) = (open(pool), open(pool));
            let mut seen = state(&tried);
            for i in 1..=4 {
                let refusal = step(&mut tried, &large, i).unwrap_err();
                assert!(refusal.contains("out of memory") && least(&refusal).is_some(), "{name}: {refusal}");
                assert!(state(&tried) == seen, "{name}: a refused step has changed the state");
                let got = step(&mut tried, &small, i).unwrap_or_else(|e| panic!("{name}: {e}"));
                let wanted = step(&mut spared, &small, i).unwrap_or_else(|e| panic!("{name}: {e}"));
                assert_eq!(got.0, wanted.0, "{name}: step {i}");
                let after = state(&tried);
                assert!(after == state(&spared) && after != seen, "{name}: step {i}");
                seen = after;
            }
        }
    }
}
