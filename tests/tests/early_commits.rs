//! Dynamic steps commit before their end what they can: gradients need not live at once, the bits stay, and a step that fails leaves no
//! trace.

use compiler::train::{Optimizer, TrainOptions};
use onnx_models::{Common, Mlp, ModelProto, ResNet, Transformer, UNet, to_bytes};
use runtime::Session;
use tests::{
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
        let mut s = session(&model, 1 << 26, |t| (t.optimizer, t.clip_norm) = (optimizer, clip));
        let report = step(&mut s, &data, 1).unwrap().1;
        let gradients: u64 = 8 * 64 * 64 * 4;
        match clip {
            None => assert!(report.pool.peak < gradients / 2, "{name}: {report:?}"),
            Some(_) => assert!(report.pool.peak > gradients, "{name}: {report:?}"),
        }
        // In less than all gradients take the step runs at little cost.
        if clip.is_none() {
            let mut tight = session(&model, gradients / 4, |t| (t.optimizer, t.clip_norm) = (optimizer, clip));
            let tight = step(&mut tight, &data, 1).unwrap().1;
            assert!(tight.extra_permille < 500, "{name}: {tight:?}");
        }
    }
}

/// Whatever is kept, dropped or made again, and whether commits come early or late.
#[test]
fn the_bits_do_not_depend_on_when_commits_run() {
    let pixels: Vec<Array> =
        vec![("x", vec![2, 3, 16, 16], floats(2 * 768, 1)), ("target", vec![2], ints(&[1, 2]))];
    let unet = UNet { inputs: 3, width: 4, depth: 2, classes: 3, size: 16 }.build(&common());
    let _ = (pixels, unet);
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
        let pool = plan::align(peak * 8 / 10);
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
