//! The command line on the simulated CUDA device: what has no GPU in it is the same on a real one.

use crate::support::{Outcome, command, dtrc, floats, generated, mlp_data, model, write};
use graph::DType;
use runtime::data::npz;
use serde_json::Value;
use std::{path::Path, process::Command};
use tests::data;

/// Runs a command on the simulated device; `None` after saying loudly that there is no C++ compiler.
fn simulated(args: &[&str]) -> Option<Outcome> {
    let cxx = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    if !Command::new(&cxx).arg("--version").output().is_ok_and(|o| o.status.success()) {
        test_support::skipped("there is no C++ compiler: install one, or set CXX");
        return None;
    }
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/cuda-host");
    let out = command(args).env("DTRC_CUDA_SIM", kernels).output().unwrap();
    Some(Outcome {
        code: out.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    })
}

#[test]
fn training_overlaps_uploads_and_gives_the_losses_of_the_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let data = mlp_data(dir.path(), 3);
    let mlp = model("mlp_tiny");
    let base =
        ["--json", "train", &mlp, "--budget", "100%", "--data", &data, "--lr", "0.01", "--epochs", "2"];
    let on_gpu = ["--device", "cuda", "--target", "h200"];
    let Some(cuda) = simulated(&[&base[..], &on_gpu].concat()) else { return };
    let losses = |o: &Outcome| -> Vec<f64> { o.losses().iter().map(|l| l.parse().unwrap()).collect() };
    let cuda = cuda.ok();
    let (got, expected) = (losses(&cuda), losses(&dtrc(&base).ok()));
    assert_eq!((got.len(), expected.len()), (6, 6));
    assert!(got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 2e-5 * b.abs()), "{got:?} {expected:?}");
    assert!(cuda.stderr.contains("device memory: arena"), "{}", cuda.stderr);
    // Evaluation takes the slot, and the next step puts its inputs there again.
    let eval = ["--eval-data", &data, "--eval-every", "2", "--shuffle", "3"];
    let got = losses(&simulated(&[&base[..], &eval, &on_gpu].concat()).unwrap().ok());
    let expected = losses(&dtrc(&[&base[..], &eval].concat()).ok());
    assert!(
        got.len() == 6 && got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 2e-5 * b.abs()),
        "{got:?} {expected:?}"
    );
}

/// Halves beside float32, and a loss scale that is state on the device.
#[test]
fn mixed_precision_trains_as_on_the_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let resnet = generated(d, "resnet.onnx", |c| {
        let c = onnx_models::Common { batch: 4, loss: true, ..*c };
        onnx_models::ResNet { depth: 8, width: 4, classes: 3, size: 8, channels: 3 }.build(&c)
    });
    let images = write(&d.join("images.npz"), (&[4, 3, 8, 8], &floats(4 * 3 * 64, 7)), (&[4], &[0, 1, 2, 1]));
    for (model, data) in [(model("mlp_tiny"), mlp_data(d, 1)), (resnet, images)] {
        for amp in ["bf16", "fp16"] {
            let base = [
                "--json", "train", &model, "--budget", "100%", "--data", &data, "--epochs", "3", "--amp", amp,
            ];
            let Some(cuda) = simulated(&[&base[..], &["--device", "cuda", "--target", "h200"]].concat())
            else {
                return;
            };
            let losses =
                |o: &Outcome| -> Vec<f64> { o.losses().iter().map(|l| l.parse().unwrap()).collect() };
            let (cuda, cpu) = (cuda.ok(), dtrc(&base).ok());
            let (got, expected) = (losses(&cuda), losses(&cpu));
            assert_eq!(got.len(), 3);
            // Sums in another order fall on other sides of a rounding.
            let near = got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-2 * b.abs());
            assert!(near, "{model}, {amp}: {got:?} {expected:?}");
            let scale = |o: &Outcome| o.objects().pop().unwrap().get("scale").cloned();
            assert_eq!(scale(&cuda), scale(&cpu));
            assert_eq!(scale(&cpu).is_some(), amp == "fp16");
        }
    }
}

/// A folder with a batch of each of these lengths, for the handed bert.
fn batches(dir: &Path, lengths: &[u64]) -> String {
    for (i, n) in lengths.iter().enumerate() {
        let ints = |below: i64, count: u64| -> Vec<u8> {
            (0..count as i64).flat_map(|k| ((k * 7 + i as i64) % below).to_le_bytes()).collect()
        };
        let (ids, target) = (ints(50, 4 * n), ints(2, 4));
        let mask: Vec<u8> = (0..4 * n).flat_map(|_| 1i64.to_le_bytes()).collect();
        let file = std::fs::File::create(dir.join(format!("b{i:03}.npz"))).unwrap();
        let (ids, mask) = (
            ("input_ids", DType::I64, &[4, *n][..], &ids[..]),
            ("attention_mask", DType::I64, &[4, *n][..], &mask[..]),
        );
        npz::write(file, [ids, mask, ("target", DType::I64, &[4][..], &target[..])]).unwrap();
    }
    dir.display().to_string()
}

/// Programs for buckets and for several budgets, over one state in one arena; what was not planned is refused.
#[test]
fn batches_of_varying_length_run_in_buckets() {
    let Some(root) = data("models") else { return };
    let dir = tempfile::tempdir().unwrap();
    let bert = root.join("small/bert.ts_dyn.onnx").display().to_string();
    let folder = batches(dir.path(), &[5, 8, 12, 7, 5, 16]);
    let base = ["--json", "train", &bert, "--loss", "cross-entropy", "--dim", "batch=4", "--dim", "seq=8,16"];
    let more = ["--budget", "100%,70%", "--data", &folder];
    let on_gpu = ["--device", "cuda", "--target", "h200"];
    let args = [&base[..], &more].concat();
    let Some(got) = simulated(&[&args[..], &on_gpu].concat()) else { return };
    let (got, expected) = (got.ok(), dtrc(&args).ok());
    let numbers = |o: &Outcome| -> Vec<f64> { o.losses().iter().map(|l| l.parse().unwrap()).collect() };
    let (a, b) = (numbers(&got), numbers(&expected));
    assert!(a.len() == 6 && a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 2e-5 * b.abs()), "{a:?} {b:?}");
    let programs = |o: &Outcome| -> Vec<String> {
        let name = |o: &Value| o["program"].as_str().map(|p| p.split(" in ").next().unwrap().to_owned());
        o.objects().iter().filter_map(name).collect()
    };
    assert_eq!(programs(&got), programs(&expected));
    assert_eq!(programs(&got)[..4], ["seq <= 8", "seq <= 8", "seq <= 16", "seq <= 8"]);
    let far = dir.path().join("far");
    std::fs::create_dir_all(&far).unwrap();
    let far = batches(&far, &[8, 20]);
    let args = [&base[..], &["--budget", "100%", "--data", &far], &on_gpu].concat();
    let refused = simulated(&args).unwrap();
    assert!(
        refused.code != 0 && refused.stderr.contains("seq=20 is beyond the last bucket"),
        "{}",
        refused.stderr
    );
    assert!(refused.stderr.contains("on CUDA only what was planned ahead runs"), "{}", refused.stderr);
    let open = ["compile", &bert, "--loss", "cross-entropy", "--budget", "64M", "--dim", "batch=4"];
    dtrc(&[&open[..], &on_gpu].concat()).fails(64, &["do not run on CUDA yet", "buckets"]);
}

#[test]
fn profile_measures_the_device_and_compile_takes_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = |n: &str| dir.path().join(n).display().to_string();
    let (mlp, costs, plan) = (model("mlp_tiny"), file("c.json"), file("p.dtrc"));
    let args = ["--json", "profile", &mlp, "--device", "cuda", "--repeat", "2", "-o", &costs];
    let Some(o) = simulated(&args) else { return };
    let told = o.ok().objects().pop().unwrap();
    assert_eq!(told["device"], "simulated device");
    let mut json: Value = serde_json::from_str(&std::fs::read_to_string(&costs).unwrap()).unwrap();
    assert_eq!(json["profile"]["name"], "simulated device");
    assert!(json["measured"].as_object().unwrap().values().all(|ns| ns.as_u64().unwrap() > 0));
    assert_eq!(json["measured"].as_object().unwrap().len() as u64, told["measured_kinds"].as_u64().unwrap());
    let compile = |more: &[&str]| {
        dtrc(&[&["--json", "compile", &mlp, "--device", "cuda", "-o", &plan][..], more].concat())
    };
    // Measured costs need no target, and are what the plan says.
    for ns in json["measured"].as_object_mut().unwrap().values_mut() {
        *ns = 1_000_000_000u64.into();
    }
    json["context_bytes"] = (1u64 << 30).into();
    std::fs::write(&costs, json.to_string()).unwrap();
    let o = compile(&["--budget", "100%", "--costs", &costs]).ok().objects().pop().unwrap();
    assert!(o["predicted_seconds_per_step"].as_f64().unwrap() > 3.0, "{o}");
    // What the context takes comes out of a budget in bytes.
    let whole = ((1u64 << 30) + o["arena_bytes"].as_u64().unwrap()).to_string();
    let included = ["--budget", &whole, "--costs", &costs, "--budget-includes-context"];
    let o = compile(&included).ok();
    assert_eq!(o.objects()[0]["budget_bytes"].as_u64().unwrap() + (1 << 30), whole.parse::<u64>().unwrap());
    assert!(o.stderr.contains("1.00 GiB of the budget (measured)"), "{}", o.stderr);
    compile(&["--budget", "900M", "--costs", &costs, "--budget-includes-context"])
        .fails(64, &["943718400", "1073741824"]);
    let rough = compile(&["--budget", "1G", "--target", "h200", "--budget-includes-context"]).ok();
    assert!(rough.stderr.contains("(roughly)"), "{}", rough.stderr);
}

#[test]
fn costs_of_the_wrong_device_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let costs = dir.path().join("c.json").display().to_string();
    let mlp = model("mlp_tiny");
    dtrc(&["profile", &mlp, "--repeat", "1", "-o", &costs]).ok();
    let compile = ["compile", &mlp, "--budget", "100%"];
    let with = |more: &[&str]| dtrc(&[&compile[..], more].concat());
    with(&["--device", "cuda", "--costs", &costs]).fails(64, &["measured on the CPU", "--device cuda"]);
    with(&["--device", "cuda"]).fails(64, &["--target GPU", "--costs"]);
    with(&["--budget-includes-context"]).fails(64, &["--device cuda"]);
    with(&["--target", "h200"]).fails(64, &["--target is the GPU"]);
}

/// `--tf32` is part of the numerics and of the plan, changes losses a little, and is refused where the device has none of it.
#[test]
fn products_in_tf32() {
    let dir = tempfile::tempdir().unwrap();
    let data = mlp_data(dir.path(), 2);
    let mlp = model("mlp_tiny");
    let numerics = |more: &[&str]| -> String {
        let out = dir.path().join("mlp.dtrc").display().to_string();
        let base = ["--json", "compile", &mlp, "--budget", "100%", "-o", &out, "--device", "cuda"];
        let done = dtrc(&[&base[..], more].concat()).ok();
        let object: Value = serde_json::from_str(done.stdout.lines().last().unwrap()).unwrap();
        object["numerics"].as_str().unwrap().to_owned()
    };
    assert_ne!(numerics(&["--target", "a100"]), numerics(&["--target", "a100", "--tf32"]));
    // The last one is such a plan, and it is the model's.
    let plan = dir.path().join("mlp.dtrc").display().to_string();
    dtrc(&["check", &plan, "--model", &mlp]).ok();
    let refused = |more: &[&str], why: &str| {
        let out = dtrc(&[&["compile", &mlp, "--budget", "100%"][..], more].concat());
        assert!(out.code == 64 && out.stderr.contains(why), "{}", out.stderr);
    };
    refused(
        &["--device", "cuda", "--target", "t4", "--tf32"],
        "TF32 before CUDA architecture 80 (this is 75)",
    );
    refused(&["--tf32"], "--tf32 is a choice of --device cuda");
    let base =
        ["--json", "train", &mlp, "--budget", "100%", "--data", &data, "--lr", "0.01", "--device", "cuda"];
    let base = [&base[..], &["--target", "h200"]].concat();
    let losses = |o: &Outcome| -> Vec<f64> { o.losses().iter().map(|l| l.parse().unwrap()).collect() };
    let Some(exact) = simulated(&base) else { return };
    let (exact, tf32) =
        (losses(&exact.ok()), losses(&simulated(&[&base[..], &["--tf32"]].concat()).unwrap().ok()));
    assert_eq!((exact.len(), tf32.len()), (2, 2));
    assert_ne!(exact, tf32);
    assert!(exact.iter().zip(&tf32).all(|(a, b)| (a - b).abs() < 5e-3 * a.abs()), "{exact:?} {tf32:?}");
}
