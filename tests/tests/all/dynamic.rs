//! Models whose shapes or branches are known only at run time: the numbers of the straight program, at every budget to the bit.

use compiler::train::Optimizer;
use graph::DType;
use runtime::{CpuDevice, LoadOptions, RunOptions, Session, StepInputs};
use tests::{
    Weights, data,
    open::{Subject, infer},
    reference::{Reference, adamw, import_model, options, sgd},
    written::least,
};

/// State plus half of the rest of the unbudgeted peak, or the least pool that the refusal names: the same bits as without a limit.
fn same_at_half(file: &str, optimizer: Optimizer, lr: f32) -> Option<String> {
    let subject = Subject::new(file, optimizer)?;
    let roomy = 1 << 30;
    let state = subject.plan(roomy).state_bytes;
    let (losses, weights, free) = subject.train(roomy, lr, 6).unwrap_or_else(|e| panic!("{file}: {e}"));
    assert!(losses.iter().all(|l| f64::from_bits(*l).is_finite()), "{file}: {losses:?}");
    let half = plan::align(free.pool.peak / 2);
    let (pool, (l, w, tight)) = match subject.train(state + half, lr, 6) {
        Ok(r) => (half, r),
        Err(refusal) => {
            let least = least(&refusal).unwrap_or_else(|| panic!("{file}: {refusal}"));
            assert!(least > half && least <= free.pool.peak + free.pool.peak / 8 + 4096, "{file}: {refusal}");
            (least, subject.train(state + least, lr, 6).unwrap_or_else(|e| panic!("{file} at {least}: {e}")))
        }
    };
    assert_eq!(l, losses, "{file}: losses differ at a pool of {pool}");
    assert!(w == weights, "{file}: the trained state differs at a pool of {pool}");
    assert!(tight.pool.peak <= pool);
    Some(format!(
        "{file:<28} peak {:>9}  pool {pool:>9} ({:>3} %)  evictions {:>5}  remats {:>5}  extra {:>4.1} %",
        free.pool.peak,
        pool * 100 / free.pool.peak,
        tight.evictions,
        tight.remats,
        tight.extra_permille as f64 / 10.0
    ))
}

#[test]
fn the_bits_do_not_depend_on_the_pool() {
    let Some(root) = data("models") else { return };
    let all = tests::reference::files(&root).into_iter().map(|(_, file)| file);
    // Those of open sizes, and control flow where the sizes are bound.
    let loops = ["act_while.ts_loss.onnx", "ifnet_pos.ts_loss.onnx", "lstm_loop.ts_loss.onnx"];
    let files: Vec<String> = all.filter(|f| f.contains("_dyn") || loops.contains(&f.as_str())).collect();
    assert!(files.len() >= 41, "{files:?}");
    for file in &files {
        for (optimizer, lr) in [(sgd(), 0.01), (adamw(), 1e-3)] {
            match same_at_half(file, optimizer, lr) {
                Some(line) => println!("{line}"),
                None => return,
            }
        }
    }
}

/// Losses of six steps against PyTorch's, as the test of static models compares them.
#[test]
fn control_flow_trains_as_pytorch_does() {
    let Some(root) = data("models") else { return };
    for (model, file) in tests::reference::files(&root) {
        if !tests::reference::OPEN.contains(&model.as_str()) {
            continue;
        }
        let reference = Reference::load(&root, &model);
        for (key, optimizer, lr) in [("sgd", sgd(), 0.01), ("adamw", adamw(), 1e-3)] {
            let Some(subject) = Subject::new(&file, optimizer) else { return };
            let (losses, _, _) = subject.train(1 << 30, lr, 6).unwrap_or_else(|e| panic!("{file}: {e}"));
            let (f32s, f64s) = (reference.losses(key, "losses"), reference.losses(key, "losses_f64"));
            let noise = f32s.iter().zip(&f64s).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            for (step, (bits, want)) in losses.iter().zip(&f64s).enumerate() {
                let (got, tolerance) = (f64::from_bits(*bits), (10.0 * noise).max(2e-6 * want.abs()));
                assert!(
                    (got - want).abs() <= tolerance,
                    "{file} {key} step {step}: {got}, PyTorch {want}, {tolerance:.1e}"
                );
            }
        }
        println!("ok    {file}");
    }
}

#[test]
fn a_static_plan_has_the_same_bits() {
    let Some(root) = data("models") else { return };
    for file in ["mlp.ts_dyn.onnx", "bert.ts_dyn.onnx", "smallcnn.ts_dyn.onnx"] {
        let Some(subject) = Subject::new(file, sgd()) else { return };
        let (losses, _, _) = subject.train(1 << 30, 0.01, 3).unwrap();
        let model = file.split('.').next().unwrap();
        let reference = Reference::load(&root, model);
        let imported = import_model(&root.join("small").join(file), file, model, &reference.io);
        let train = options(&imported, &reference, file, sgd());
        let (programs, _) = compiler::pipeline::programs(&imported.graph, Some(&train), None).unwrap();
        let straight = tests::train_interpreted(&programs[0].1, &imported.weights, &reference.io, 0.01, 3);
        assert_eq!(losses, straight, "{file}");
    }
}

#[test]
fn wrong_inputs_are_named() {
    let Some(subject) = Subject::new("ifnet_pos.ts_dyn.onnx", sgd()) else { return };
    let device = Box::new(CpuDevice::new(1).unwrap());
    let mut weights = Weights(&subject.open.weights);
    let mut s = Session::load(subject.plan(1 << 24), device, &mut weights, LoadOptions::default()).unwrap();
    let x = vec![0u8; 4 * 16 * 4];
    let y = vec![0u8; 4 * 8];
    let mut run = |data: &[(&str, &[u8])], shapes: &[(&str, &[u64])]| {
        let inputs = StepInputs { data, shapes, learning_rate: 0.1, step: 1, seed: 0 };
        s.run(0, &inputs, RunOptions::default()).map(|r| r.loss()).map_err(|e| e.to_string())
    };
    let e = run(&[("target", &y)], &[]).unwrap_err();
    assert!(e.contains("\"x\"") && e.contains("not given"), "{e}");
    let e = run(&[("x", &x), ("target", &y)], &[]).unwrap_err();
    assert!(e.contains("shape is open"), "{e}");
    let e = run(&[("x", &x), ("target", &y)], &[("x", &[4, 15]), ("target", &[4])]).unwrap_err();
    assert!(e.contains("do not make up"), "{e}");
    let e = run(&[("x", &x), ("target", &y)], &[("x", &[8, 8]), ("target", &[4])]).unwrap_err();
    assert!(e.contains("the model's"), "{e}");
    let e = run(&[("x", &x), ("target", &y[..8])], &[("x", &[4, 16]), ("target", &[1])]).unwrap_err();
    assert!(e.contains("\"target\""), "{e}");
    // The session survives all of it.
    assert!(
        run(&[("x", &x), ("target", &y)], &[("x", &[4, 16]), ("target", &[4])]).unwrap().unwrap().is_finite()
    );
}

#[test]
fn a_label_of_the_graph_is_typed() {
    let Some(subject) = Subject::new("mlp.ts_dyn.onnx", sgd()) else { return };
    let plan = subject.plan(1 << 24);
    let label = &plan.programs[0].graph.inputs.iter().find(|i| i.role == graph::InputRole::Label).unwrap();
    assert_eq!(plan.programs[0].graph.ty(label.value).dtype, DType::I64);
}

#[test]
fn models_of_other_people_give_the_outputs_of_onnxruntime() {
    let Some(root) = data("models") else { return };
    let names = [
        "silero-vad__silero_vad",
        "silero-vad__silero_vad_half",
        "onnx-asr__kaldi",
        "onnx-asr__nemo80",
        "onnx-asr__resample_16_8",
    ];
    for name in names {
        let path = root.join("thirdparty").join(format!("{name}.onnx"));
        let io = tests::npz(&root.join("reference_thirdparty").join(format!("{name}.io.npz")));
        let (free, peak) = infer(&path, &io, 1 << 30).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (output, want) in io.iter().filter_map(|(n, l)| Some((n.strip_prefix("out:")?, l))) {
            let got = &free[output];
            assert_eq!(got.shape(), want.shape(), "{name} {output}");
            let (got, want) = (got.to_floats(), want.to_floats());
            let largest = want.iter().fold(0.0f64, |m, x| m.max(x.abs()));
            let worst = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0f64, f64::max);
            // Logarithms of small energies carry the noise of float32 sums.
            assert!(worst <= 1e-4 * largest, "{name} {output}: off by {worst:.2e} of {largest}");
        }
        // 70 % of what the state leaves, or the least pool that the refusal there names.
        let share = plan::align(peak * 7 / 10);
        let (pool, (tight, used)) = match infer(&path, &io, share) {
            Ok(r) => (share, r),
            Err(refusal) => {
                let least = least(&refusal).unwrap_or_else(|| panic!("{name} at {share}: {refusal}"));
                assert!(least > share && least <= plan::align(peak), "{name}: {refusal}");
                (least, infer(&path, &io, least).unwrap_or_else(|e| panic!("{name} at {least}: {e}")))
            }
        };
        assert!(used <= pool, "{name}: {used} bytes in a pool of {pool}");
        assert!(tight == free, "{name}: the outputs differ in a pool of {pool}");
        println!("{name:<30} peak {peak:>10}   the same bits at {} %", pool * 100 / peak);
    }
}
