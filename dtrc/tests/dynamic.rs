//! Models of which something is known only at run time, from the command line.

mod support;

use support::dtrc;
use tests::data;

#[test]
fn commands_that_need_a_static_model_say_how_to_get_one() {
    let Some(root) = data("models") else { return };
    let file = |n: &str| root.join("small").join(n).display().to_string();
    let dir = tempfile::tempdir().unwrap();
    let costs = dir.path().join("c.json").display().to_string();
    for command in [&["sweep"][..], &["min-budget"], &["profile", "-o", &costs]] {
        let run = |model: &str| dtrc(&[command, &[model]].concat());
        run(&file("mlp.ts_loss.onnx")).fails(65, &["needs a static model", "--dim batch=N"]);
        run(&file("bert.ts_loss.onnx")).fails(65, &["needs a static model", "--dim batch=N --dim seq=N"]);
        run(&file("ifnet_pos.ts_loss.onnx")).fails(65, &["data decide", "the condition", "compile --budget"]);
    }
    let max = ["estimate", &file("mlp.ts_loss.onnx"), "--max", "batch", "--budget", "1M"];
    dtrc(&[&max[..], &["--dim", "batch=8"]].concat()).fails(64, &["--dim batch", "leave", "--fits"]);
}

#[test]
fn a_model_with_a_loop_trains_in_its_pool() {
    let Some(root) = data("models") else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = |n: &str| root.join("small").join(n).display().to_string();
    let io = |n: &str| root.join("reference").join(format!("{n}.io.npz")).display().to_string();
    let (model, batch) = (file("lstm_loop.ts_dyn.onnx"), io("lstm_loop"));
    let train = |budget: &str, more: &[&str]| {
        let fixed =
            ["--json", "train", &model, "--loss", "cross-entropy", "--budget", budget, "--data", &batch];
        dtrc(&[&fixed, more].concat())
    };
    let roomy = train("1M", &["--steps", "4", "--check-recompute"]).ok();
    assert_eq!(roomy.losses().len(), 4);
    let tight = train("40K", &["--steps", "4", "--check-recompute"]).ok();
    assert_eq!(tight.losses(), roomy.losses());
    // Too little: the exit code of out of memory, and what would do.
    let out = train("16K", &["--steps", "1"]);
    assert_eq!(out.code, 71, "{}", out.stderr);
    let least = tests::written::least(&out.stderr).unwrap_or_else(|| panic!("{}", out.stderr));
    let pool = least.to_string();
    let once = train("1M", &["--steps", "4", "--check-recompute", "--dynamic-pool", &pool]).ok();
    assert_eq!(once.losses(), roomy.losses());
    // Before anybody knows how long the loop is, too.
    let unknown = train("1M", &["--steps", "1", "--dynamic-pool", "256"]);
    unknown.fails(71, &["a pool of", "would do for this batch", "with the state"]);
    // A share of what nobody knows.
    let out = train("50%", &["--steps", "1"]);
    assert_eq!(out.code, 64, "{}", out.stderr);
    assert!(out.stderr.contains("in bytes"), "{}", out.stderr);
    let out = train("1M", &["--steps", "1", "--strict-static"]);
    assert_eq!(out.code, 65, "{}", out.stderr);
    // The plan in a file, its text, and a run that goes on from a checkpoint.
    let plan = dir.path().join("loop.dtrc").display().to_string();
    let compile = ["compile", &model, "--loss", "cross-entropy", "--budget", "40K", "-o", &plan];
    dtrc(&compile).ok();
    assert!(dtrc(&["show", &plan]).ok().stdout.contains("dynamic region"));
    dtrc(&["check", &plan]).ok();
    let folder = dir.path().join("checkpoints").display().to_string();
    let steps = |n: &str, more: &[&str]| {
        let fixed = [
            "--json",
            "train",
            &plan,
            "--weights",
            &model,
            "--data",
            &batch,
            "--checkpoint",
            &folder,
            "--steps",
            n,
        ];
        dtrc(&[&fixed, more].concat()).ok().losses()
    };
    let mut losses = steps("2", &[]);
    losses.extend(steps("4", &["--resume"]));
    assert_eq!(losses, roomy.losses());
}

#[test]
fn branches_are_evaluated_and_saved() {
    let Some(root) = data("models") else { return };
    let dir = tempfile::tempdir().unwrap();
    let model = root.join("small").join("ifnet_pos.ts_dyn.onnx").display().to_string();
    let io = root.join("reference").join("ifnet_pos.io.npz").display().to_string();
    let saved = dir.path().join("trained.onnx").display().to_string();
    let fixed = [
        "--json",
        "train",
        &model,
        "--loss",
        "cross-entropy",
        "--budget",
        "1M",
        "--data",
        &io,
        "--lr",
        "0.1",
    ];
    let more = [
        "--steps",
        "6",
        "--eval-data",
        &io,
        "--metric",
        "loss,accuracy",
        "--eval-every",
        "3",
        "--save",
        &saved,
    ];
    let out = dtrc(&[&fixed[..], &more].concat()).ok();
    let evals: Vec<f64> =
        out.objects().iter().filter_map(|o| o["eval"]["loss"].as_f64().or(o["loss"].as_f64())).collect();
    assert!(evals.len() >= 6, "{}", out.stdout);
    // The saved model goes on where training ended.
    let last: f64 = out.losses().last().unwrap().parse().unwrap();
    let on = [&fixed[..1], &["train", &saved], &fixed[3..], &["--steps", "1"]].concat();
    let next: f64 = dtrc(&on).ok().losses()[0].parse().unwrap();
    assert!(next < last, "{next} after {last}");
}
