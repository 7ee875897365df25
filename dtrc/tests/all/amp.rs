//! `--amp`: halves beside float32, the loss scale, and what depends on neither budget nor threads.

use crate::support::{self, dtrc, floats, generated, mlp_data, model, resnet_data};
use compiler::import::{Weights, read_weights};
use graph::{DType, Init};
use plan::Plan;
use runtime::{CpuDevice, LoadOptions, RunOptions, Session, StepInputs, data::npz};
use serde_json::json;
use std::path::Path;
use tests::onnxruntime;

/// Losses of a run, and what its last line says.
fn train(model: &str, data: &str, more: &[&str]) -> (Vec<f64>, serde_json::Value) {
    let fixed = ["--json", "train", model, "--data", data, "--work-limit", "20000"];
    let budget: &[&str] = if more.contains(&"--budget") { &[] } else { &["--budget", "100%"] };
    let out = dtrc(&[&fixed[..], budget, more].concat()).ok();
    let losses = out.losses().iter().map(|l| l.parse().unwrap()).collect();
    (losses, out.objects().pop().unwrap())
}

/// Tokens for the small transformer, and the token that follows each.
fn tokens(dir: &Path) -> String {
    let ids: Vec<u8> = (0..128i64).flat_map(|i| (i * 5 % 7 + 1).to_le_bytes()).collect();
    let next: Vec<u8> = (1..129i64).flat_map(|i| (i * 5 % 7 + 1).to_le_bytes()).collect();
    let path = dir.join("tokens.npz");
    let file = std::fs::File::create(&path).unwrap();
    let arrays =
        [("input_ids", DType::I64, &[4, 32][..], ids.as_slice()), ("target", DType::I64, &[4, 32], &next)];
    npz::write(file, arrays).unwrap();
    path.display().to_string()
}

#[test]
fn losses_stay_near_those_of_float32() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let models =
        [("mlp_tiny", mlp_data(d, 1)), ("resnet_tiny", resnet_data(d, 1)), ("transformer_tiny", tokens(d))];
    for (name, data) in models {
        for rewrites in ["exact", "fast"] {
            let steps = ["--epochs", "6", "--lr", "0.05", "--momentum", "0.9", "--rewrites", rewrites];
            let run = |amp: &[&str]| train(&model(name), &data, &[&steps[..], amp].concat());
            let (plain, last) = run(&[]);
            for (amp, bound) in [("bf16", 3e-2), ("fp16", 5e-3)] {
                let (losses, mixed) = run(&["--amp", amp]);
                assert_eq!(losses.len(), 6);
                assert_ne!(losses, plain, "{name}: nothing was rounded");
                assert_ne!(mixed["numerics"], last["numerics"]);
                for (a, b) in losses.iter().zip(&plain) {
                    let off = (a - b).abs() / b.abs();
                    assert!(off <= bound, "{name}, {amp}, {rewrites}: {losses:?} and {plain:?}");
                }
                assert!(losses[5] < losses[0], "{name}: {losses:?}");
                assert_eq!(mixed.get("scale").is_some(), amp == "fp16");
            }
        }
    }
}

#[test]
fn budgets_and_threads_change_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let (data, out) = (resnet_data(d, 2), d.join("out.onnx"));
    let save = out.display().to_string();
    for amp in ["bf16", "fp16"] {
        let run = |budget: &str, threads: &str| {
            let fixed =
                ["--amp", amp, "--epochs", "2", "--momentum", "0.9", "--clip-norm", "1", "--save", &save];
            let place = ["--budget", budget, "--threads", threads, "--check-recompute"];
            let (losses, last) = train(&model("resnet_tiny"), &data, &[&fixed[..], &place].concat());
            (losses, last["numerics"].clone(), std::fs::read(&out).unwrap(), last["arena_bytes"].as_u64())
        };
        let (losses, numerics, weights, all) = run("100%", "1");
        for (budget, threads) in [("100%", "2"), ("70%", "1"), ("70%", "2")] {
            let other = run(budget, threads);
            assert!(
                (&other.0, &other.1) == (&losses, &numerics),
                "{amp}, {budget}, {threads}: {:?}",
                other.0
            );
            assert!(other.2 == weights, "{amp}, {budget}, {threads}: other weights");
            assert_eq!(other.3 < all, budget == "70%");
        }
    }
}

fn compiled(dir: &Path, model: &str, more: &[&str]) -> (Plan, Weights) {
    let path = dir.join("m.dtrc").display().to_string();
    dtrc(&[&["compile", model, "--budget", "100%", "-o", &path, "--work-limit", "20000"], more].concat())
        .ok();
    let weights =
        compiler::import::import(model.as_ref(), &compiler::import::Options::default()).unwrap().weights;
    (plan::from_bytes(&std::fs::read(path).unwrap()).unwrap(), weights)
}

fn all_state(s: &Session) -> Vec<(String, Vec<u8>)> {
    let names = s.plan().state.iter().map(|e| e.name.to_string());
    names.map(|n| (n.clone(), s.state(&n).unwrap())).collect()
}

fn number(s: &Session, name: &str) -> f32 {
    f32::from_le_bytes(s.state(name).unwrap().try_into().unwrap())
}

/// A loss that is finite and whose scaled gradients are not: nothing of the step stays but the scale, which is halved.
#[test]
fn a_step_that_overflows_changes_only_the_scale() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let resnet = generated(d, "resnet.onnx", |c| {
        onnx_models::ResNet { depth: 8, width: 8, classes: 3, size: 16, channels: 3 }.build(c)
    });
    for more in [&["--optimizer", "adamw"][..], &["--momentum", "0.9", "--clip-norm", "0.5"]] {
        let flags = [&["--amp", "fp16", "--loss", "mse", "--batchnorm", "train"][..], more].concat();
        let (plan, weights) = compiled(d, &resnet, &flags);
        let device = CpuDevice::new(1).unwrap();
        let mut s =
            Session::load(plan, Box::new(device), &mut tests::Weights(&weights), LoadOptions::default())
                .unwrap();
        let shape = |s: &Session, name: &str| {
            let g = &s.plan().programs[0].graph;
            let v = g.inputs.iter().find(|i| &*g.value(i.value).name == name).unwrap().value;
            g.ty(v).shape.elements().unwrap() as usize
        };
        let x: Vec<u8> = floats(shape(&s, "x"), 4).iter().flat_map(|v| v.to_le_bytes()).collect();
        let targets = |s: &Session, size: f32| -> Vec<u8> {
            floats(shape(s, "target"), 5).iter().flat_map(|v| (v * size).to_le_bytes()).collect()
        };
        let step = |s: &mut Session, n: i64, size: f32| {
            let target = targets(s, size);
            let data = [("x", x.as_slice()), ("target", target.as_slice())];
            let inputs = StepInputs { data: &data, learning_rate: 0.01, step: n, ..StepInputs::default() };
            s.run(0, &inputs, RunOptions::default()).unwrap().loss().unwrap()
        };
        let first = step(&mut s, 1, 1.0);
        assert_eq!((number(&s, "amp/scale"), number(&s, "amp/good")), (65_536.0, 1.0));
        let before = all_state(&s);
        assert!(step(&mut s, 2, 1e7).is_finite());
        assert_eq!((number(&s, "amp/scale"), number(&s, "amp/skipped")), (32_768.0, 1.0));
        assert_eq!(number(&s, "amp/good"), 0.0);
        for ((name, was), (_, is)) in before.iter().zip(all_state(&s)) {
            assert!(name.starts_with("amp/") || *was == is, "{name} changed");
        }
        let moments = s.plan().state.iter().filter(|e| e.init == Init::Zeros).count();
        assert!(moments > 10, "{moments} states beside the weights");
        // It recovers, and the state moves again.
        let mut last = 0.0;
        for n in 3..9 {
            last = step(&mut s, n, 1.0);
        }
        assert!(last < first, "{first} became {last}");
        assert_eq!((number(&s, "amp/good"), number(&s, "amp/skipped")), (6.0, 1.0));
        let moved = before.iter().zip(all_state(&s)).filter(|((_, was), (_, is))| was != is).count();
        assert!(moved > 10, "{moved} states moved");
        // 2,000 good steps in a row double it.
        s.write_state("amp/good", 0, &1999f32.to_le_bytes()).unwrap();
        step(&mut s, 9, 1.0);
        assert_eq!((number(&s, "amp/scale"), number(&s, "amp/good")), (65_536.0, 0.0));
    }
}

/// The number that Adam corrects by is that of updates, not of steps.
#[test]
fn a_skipped_step_is_no_update() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let scores = support::scores_model(d);
    let flags = ["--amp", "fp16", "--loss", "mse", "--optimizer", "adam"];
    let (plan, weights) = compiled(d, &scores, &flags);
    let run = |sizes: &[f32]| {
        let device = CpuDevice::new(1).unwrap();
        let mut s = Session::load(
            plan.clone(),
            Box::new(device),
            &mut tests::Weights(&weights),
            LoadOptions::default(),
        )
        .unwrap();
        let x: Vec<u8> = floats(16 * 32, 4).iter().flat_map(|v| v.to_le_bytes()).collect();
        for (i, size) in sizes.iter().enumerate() {
            let target: Vec<u8> = floats(160, 5).iter().flat_map(|v| (v * size).to_le_bytes()).collect();
            let data = [("x", x.as_slice()), ("target", target.as_slice())];
            let step = i as i64 + 1;
            let inputs = StepInputs { data: &data, learning_rate: 0.01, step, ..StepInputs::default() };
            s.run(0, &inputs, RunOptions::default()).unwrap();
            // The same scale in both runs.
            s.write_state("amp/scale", 0, &1024f32.to_le_bytes()).unwrap();
        }
        all_state(&s).into_iter().filter(|(n, _)| !n.starts_with("amp/")).collect::<Vec<_>>()
    };
    assert!(run(&[1.0, 1e9, 1.0, 1.0]) == run(&[1.0, 1.0, 1.0]));
    assert!(run(&[1.0, 1.0, 1.0, 1.0]) != run(&[1.0, 1.0, 1.0]));
}

#[test]
fn accumulated_steps_skip_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let scores = support::scores_model(d);
    let write = |name: &str, sizes: &[f32]| {
        let rows = 16 * sizes.len();
        let x: Vec<u8> = floats(rows * 32, 1).iter().flat_map(|v| v.to_le_bytes()).collect();
        let target: Vec<u8> = floats(rows * 10, 2)
            .iter()
            .enumerate()
            .flat_map(|(i, v)| (v * sizes[i / 160]).to_le_bytes())
            .collect();
        let path = d.join(name);
        let shapes: [&[u64]; 2] = [&[rows as u64, 32], &[rows as u64, 10]];
        let arrays = [("x", DType::F32, shapes[0], x.as_slice()), ("target", DType::F32, shapes[1], &target)];
        npz::write(std::fs::File::create(&path).unwrap(), arrays).unwrap();
        path.display().to_string()
    };
    let flags =
        ["--amp", "fp16", "--loss", "mse", "--accumulate", "2", "--clip-norm", "1", "--optimizer", "adamw"];
    let out = d.join("out.onnx");
    let save = out.display().to_string();
    let run = |data: &str, more: &[&str]| {
        let (losses, last) = train(&scores, data, &[&flags[..], &["--save", &save], more].concat());
        (losses, last["scale"].as_f64(), last["skipped"].as_u64(), std::fs::read(&out).unwrap())
    };
    // Whichever part overflows, the whole step is skipped.
    let good = run(&write("good.npz", &[1.0, 1.0]), &[]);
    assert_eq!((good.1, good.2), (Some(65_536.0), Some(0)));
    for bad in [[1.0, 1.0, 1e8, 1.0], [1.0, 1.0, 1.0, 1e8]] {
        let both = run(&write("bad.npz", &bad), &[]);
        assert_eq!((both.1, both.2), (Some(32_768.0), Some(1)));
        assert!(both.3 == good.3, "a skipped step left a trace");
    }
    // At every budget the same bits, near those of float32.
    let data = resnet_data(d, 4);
    let parts =
        ["--accumulate", "2", "--clip-norm", "1", "--optimizer", "adamw", "--epochs", "2", "--save", &save];
    let run = |more: &[&str]| {
        let (losses, last) = train(&model("resnet_tiny"), &data, &[&parts[..], more].concat());
        (losses, last["numerics"].clone(), std::fs::read(&out).unwrap())
    };
    let all = run(&["--amp", "fp16", "--budget", "100%"]);
    assert!(all == run(&["--amp", "fp16", "--budget", "80%", "--threads", "2", "--check-recompute"]));
    let plain = run(&["--budget", "100%"]);
    assert!(
        all.0.iter().zip(&plain.0).all(|(a, b)| (a - b).abs() <= 1e-2 * b.abs()),
        "{:?} {:?}",
        all.0,
        plain.0
    );
}

#[test]
fn checkpoints_carry_the_scale() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let (data, mlp) = (mlp_data(d, 2), model("mlp_tiny"));
    let folder = d.join("checkpoints").display().to_string();
    let log = d.join("log.csv").display().to_string();
    let flags = ["--amp", "fp16", "--optimizer", "adamw", "--lr", "0.001"];
    let (straight, end) = train(&mlp, &data, &[&flags[..], &["--steps", "6", "--epochs", "9"]].concat());
    let at = ["--checkpoint", &folder, "--log", &log, "--epochs", "9", "--steps"];
    let (first, _) = train(&mlp, &data, &[&flags[..], &at, &["3"]].concat());
    let (rest, last) = train(&mlp, &data, &[&flags[..], &at, &["6", "--resume"]].concat());
    assert_eq!([first, rest].concat(), straight);
    assert_eq!((&last["scale"], &last["skipped"]), (&end["scale"], &end["skipped"]));
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.starts_with("step,epoch,loss,lr,seconds,scale,skipped\n"), "{text}");
    assert!(text.lines().nth(6).is_some_and(|l| l.ends_with(",65536,0")), "{text}");
    // Other numbers do not go on from these.
    let other = ["train", &mlp, "--budget", "100%", "--data", &data, "--optimizer", "adamw", "--steps", "7"];
    let more = ["--checkpoint", &folder, "--resume", "--epochs", "9"];
    dtrc(&[&other[..], &more].concat()).fails(65, &["another training step", "--amp"]);
}

#[test]
fn what_is_made_at_every_step_has_the_bits_of_a_static_plan() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let mlp = |dynamic: bool| {
        let make = |c: &onnx_models::Common| {
            let c = onnx_models::Common { dynamic, loss: true, ..*c };
            onnx_models::Mlp { inputs: 32, hidden: vec![64, 64], classes: 10 }.build(&c)
        };
        generated(d, if dynamic { "open.onnx" } else { "fixed.onnx" }, make)
    };
    let data = mlp_data(d, 2);
    for amp in ["bf16", "fp16"] {
        let flags =
            ["--amp", amp, "--epochs", "2", "--momentum", "0.9", "--batch", "16", "--eval-data", &data];
        let run = |dynamic: bool, budget: &str| {
            let (losses, last) = train(&mlp(dynamic), &data, &[&flags[..], &["--budget", budget]].concat());
            (losses, last["scale"].clone(), last["eval"].clone())
        };
        assert_eq!(run(true, "4M"), run(false, "100%"));
    }
}

/// Everything kept takes less, also where rewriting has left out scores and logits.
#[test]
fn halves_take_less_memory() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let unet = generated(d, "unet.onnx", |c| {
        let c = onnx_models::Common { batch: 4, loss: true, ..*c };
        onnx_models::UNet { levels: 3, width: 16, classes: 4, size: 128, channels: 3 }.build(&c)
    });
    let transformer = generated(d, "transformer.onnx", |c| {
        let c = onnx_models::Common { batch: 4, loss: true, ..*c };
        let t = onnx_models::Transformer { layers: 4, width: 256, heads: 8, vocabulary: 512, sequence: 256 };
        t.build(&c)
    });
    let plan = d.join("m.dtrc").display().to_string();
    let beyond_state = |model: &str, more: &[&str]| {
        let fixed = ["--json", "compile", model, "--budget", "100%", "--work-limit", "2000", "-o", &plan];
        let out = dtrc(&[&fixed[..], more].concat()).ok().objects().pop().unwrap();
        out["arena_bytes"].as_u64().unwrap() - out["state_bytes"].as_u64().unwrap()
    };
    for (model, rewrites, per_cent) in
        [(&unet, "exact", 65), (&transformer, "exact", 80), (&transformer, "memory", 85)]
    {
        let all = beyond_state(model, &["--rewrites", rewrites]);
        for amp in ["bf16", "fp16"] {
            let less = beyond_state(model, &["--rewrites", rewrites, "--amp", amp]);
            assert!(less * 100 <= all * per_cent, "{model}, {rewrites}, {amp}: {less} of {all}");
        }
    }
}

#[test]
fn what_amp_is_not_for_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let (mlp, plan) = (model("mlp_tiny"), dir.path().join("m.dtrc").display().to_string());
    let out = ["compile", &mlp, "--budget", "100%", "-o", &plan, "--amp", "bf16", "--inference"];
    dtrc(&out).fails(64, &["--amp is for training", "--loss"]);
}

#[test]
fn onnxruntime_takes_the_steps_that_are_written() {
    let Some(python) = onnxruntime::python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let at = |name: &str| d.join(name).display().to_string();
    for (name, data, amp) in
        [("mlp_tiny", mlp_data(d, 2), "bf16"), ("resnet_tiny", resnet_data(d, 2), "fp16")]
    {
        let (model, flags) = (model(name), ["--amp", amp, "--momentum", "0.9"]);
        let compile =
            ["compile", &model, "--budget", "100%", "-o", &at("m.dtrc"), "--emit-onnx", &at("step.onnx")];
        dtrc(&[&compile[..], &flags].concat()).ok();
        let save = at("trained.onnx");
        let (losses, _) =
            train(&model, &data, &[&flags[..], &["--steps", "2", "--lr", "0.05", "--save", &save]].concat());
        let case = json!({"last": at("step.onnx"), "micro": null, "parts": 1, "updates": 2, "batch": 16,
            "lr": 0.05, "seed": 1, "data": data, "out": at("out.npz")});
        onnxruntime::train(&python, &d.join("case.json"), &case);
        let out = tests::npz(&d.join("out.npz"));
        for (want, found) in losses.iter().zip(out["loss"].to_floats()) {
            assert!((want - found).abs() <= 1e-3 * want.abs(), "{name}: losses {want} and {found}");
        }
        let (start, trained) = (read_weights(model.as_ref()).unwrap(), read_weights(save.as_ref()).unwrap());
        let (mut moved, mut all) = (0, (0.0, 0.0));
        for (name, _) in trained.iter() {
            let [was, want] = [&start, &trained].map(|w| w.literal(name).unwrap().to_floats());
            if was == want {
                continue;
            }
            moved += 1;
            let found = out[&**name].to_floats();
            let length =
                |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
            let (by, off) = (length(&was, &want), length(&want, &found));
            assert!(off <= 0.2 * by + 1e-6, "{name}: {off} of {by}");
            (all.0, all.1) = (all.0 + by * by, all.1 + off * off);
        }
        // What falls on the other side of a rounding moves single elements by a step of the halves, not the whole.
        assert!(all.1.sqrt() <= 0.02 * all.0.sqrt(), "{name}: {} of {}", all.1.sqrt(), all.0.sqrt());
        assert!(moved >= 6, "{moved} tensors moved");
    }
}

#[test]
fn a_parameter_may_have_the_name_of_the_scale() {
    let dir = tempfile::tempdir().unwrap();
    let mlp = onnx_models::Mlp { inputs: 32, hidden: vec![64], classes: 10 };
    let named = generated(dir.path(), "named.onnx", |common| {
        let mut model = mlp.build(common);
        let g = model.graph.mut_or_insert_default();
        let weight = g.initializer.iter_mut().find(|t| t.data_type == 1 && t.dims.len() == 2).unwrap();
        let old = std::mem::replace(&mut weight.name, "amp/scale".to_owned());
        for input in g.node.iter_mut().flat_map(|n| &mut n.input).filter(|i| **i == old) {
            *input = "amp/scale".to_owned();
        }
        model
    });
    let data = mlp_data(dir.path(), 2);
    let run = |more: &[&str]| train(&named, &data, &[&["--loss", "cross-entropy"], more].concat());
    let log = dir.path().join("log.csv");
    assert!(run(&["--log", log.to_str().unwrap()]).1.get("scale").is_none());
    assert!(std::fs::read_to_string(log).unwrap().starts_with("step,epoch,loss,lr,seconds\n"));
    assert_eq!(run(&["--amp", "fp16"]).1["scale"], json!(65536.0));
}

#[test]
fn confident_mistakes_of_probabilities_train() {
    let dir = tempfile::tempdir().unwrap();
    let mlp = onnx_models::Mlp { inputs: 32, hidden: vec![], classes: 10 };
    let certain = generated(dir.path(), "certain.onnx", |common| {
        let mut model = mlp.build(common);
        let g = model.graph.mut_or_insert_default();
        let y = std::mem::replace(&mut g.node.last_mut().unwrap().output[0], "scores".to_owned());
        let (input, output) = (vec!["scores".to_owned()], vec![y]);
        let op_type = "Sigmoid".to_owned();
        g.node.push(onnx_protobuf::NodeProto { op_type, input, output, ..Default::default() });
        model
    });
    // Logits of some 20 either way.
    let bytes = |values: Vec<f32>| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let x = bytes(floats(16 * 32, 1).iter().map(|v| v * 60.0).collect());
    let target = bytes([0.0, 1.0].repeat(80));
    let data = dir.path().join("certain.npz");
    let file = std::fs::File::create(&data).unwrap();
    let arrays = [("x", DType::F32, &[16, 32][..], x.as_slice()), ("target", DType::F32, &[16, 10], &target)];
    npz::write(file, arrays).unwrap();
    let data = data.display().to_string();
    let run = |amp: &[&str]| {
        train(&certain, &data, &[&["--loss", "bce", "--epochs", "8", "--lr", "0.001"], amp].concat())
    };
    let (plain, _) = run(&[]);
    let (mixed, last) = run(&["--amp", "fp16"]);
    // The first scale may be too large for a gradient; then it is halved, and the next step is the one that was skipped.
    let skipped = last["skipped"].as_u64().unwrap() as usize;
    assert!(skipped <= 2, "{last}");
    assert!(plain[7] < 0.97 * plain[0], "{plain:?}");
    for (a, b) in mixed[skipped..].iter().zip(&plain) {
        assert!((a - b).abs() < 0.005 * b.abs(), "{mixed:?} and {plain:?}");
    }
}
