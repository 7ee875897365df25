//! Training end to end: the same numbers at every budget, the options.

use crate::support::{self, dtrc, mlp_data, model, resnet_data};

#[test]
fn losses_are_equal_at_every_budget() {
    let dir = tempfile::tempdir().unwrap();
    let data = resnet_data(dir.path(), 2);
    let train = |budget: &str| {
        let out = dtrc(&[
            "--json",
            "train",
            &model("resnet_tiny"),
            "--budget",
            budget,
            "--data",
            &data,
            "--epochs",
            "2",
            "--momentum",
            "0.9",
            "--check-recompute",
            "--work-limit",
            "100000",
        ])
        .ok();
        let last = out.objects().pop().unwrap();
        (out.losses(), last["arena_bytes"].as_u64().unwrap(), last["numerics"].clone())
    };
    let (all, keep_all, numerics) = train("100%");
    assert_eq!(all.len(), 4);
    let (losses, arena, other) = train("65%");
    assert_eq!((&losses, &other), (&all, &numerics));
    assert!(arena * 100 <= keep_all * 65, "{arena} of {keep_all}");
}

#[test]
fn options_do_what_they_say() {
    let dir = tempfile::tempdir().unwrap();
    let (one, four) = (mlp_data(dir.path(), 1), mlp_data(dir.path(), 4));
    let mlp = model("mlp_tiny");
    let run = |more: &[&str]| {
        let fixed = ["--json", "train", &mlp, "--budget", "100%"];
        dtrc(&[&fixed, more].concat()).ok()
    };
    let numbers =
        |o: &support::Outcome| -> Vec<f64> { o.losses().iter().map(|l| l.parse().unwrap()).collect() };
    // A batch used again and again is learnt, by either optimizer.
    for optimizer in [["--optimizer", "adamw"], ["--momentum", "0.9"]] {
        let out = run(&[&["--data", &one, "--epochs", "20", "--lr", "0.01"][..], &optimizer].concat());
        let l = numbers(&out);
        assert!(l.len() == 20 && l[19] < l[0] * 0.9, "{optimizer:?}: {l:?}");
    }
    // A tiny norm moves nothing to speak of.
    let l = numbers(&run(&["--data", &one, "--epochs", "5", "--lr", "0.1", "--clip-norm", "1e-9"]));
    assert!(l.iter().all(|x| (x - l[0]).abs() < 1e-6), "{l:?}");
    // Two batches a step: half as many steps, the first loss is the mean of the first two.
    let single = numbers(&run(&["--data", &four, "--lr", "0"]));
    let double = numbers(&run(&["--data", &four, "--lr", "0", "--accumulate", "2"]));
    assert_eq!((single.len(), double.len()), (4, 2));
    assert!((double[0] - (single[0] + single[1]) / 2.0).abs() < 1e-9, "{single:?} {double:?}");
    // Schedules, as the log tells them.
    let log = dir.path().join("lr.csv").display().to_string();
    run(&["--data", &four, "--lr", "0.4", "--lr-schedule", "linear", "--log", &log]);
    let text = std::fs::read_to_string(&log).unwrap();
    let rates: Vec<f64> =
        text.lines().skip(1).map(|l| l.split(',').nth(3).unwrap().parse().unwrap()).collect();
    let expected = [0.4, 0.3, 0.2, 0.1];
    assert!(rates.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12) && rates.len() == 4, "{rates:?}");
    // A batch that is used again takes any number of steps; --epochs bounds them where it is given.
    for (args, steps) in [
        (&["--steps", "5"][..], 5),
        (&["--steps", "5", "--epochs", "3"], 3),
        (&["--steps", "2", "--epochs", "3"], 2),
        (&["--epochs", "3"], 3),
        (&[], 1),
    ] {
        assert_eq!(run(&[&["--data", one.as_str()][..], args].concat()).losses().len(), steps, "{args:?}");
    }
    assert_eq!(run(&["--data", &four, "--steps", "9"]).losses().len(), 9);
    // Evaluation runs over the same parameters: at rate 0 its mean is that of the training losses.
    let out = run(&["--data", &four, "--lr", "0", "--eval-data", &four, "--eval-every", "2"]);
    let evals: Vec<f64> =
        out.objects().iter().filter_map(|o| o.get("step").and(o.get("eval"))?["loss"].as_f64()).collect();
    assert_eq!(evals.len(), 2, "{}", out.stdout);
    let mean = single.iter().sum::<f64>() / 4.0;
    assert!(evals.iter().all(|e| (e - mean).abs() < 1e-6), "{evals:?} {mean}");
    let end = out.objects().pop().unwrap();
    assert!(end["peak_rss_bytes"].as_u64().is_some_and(|b| b > 0) && end["steps"] == 4);
}

#[test]
fn none_of_something_is_refused_with_what_to_give() {
    let mlp = model("mlp_tiny");
    for flag in ["--steps", "--epochs", "--eval-every", "--every", "--keep", "--accumulate"] {
        let fixed =
            ["train", &mlp, "--budget", "100%", "--synthetic", "--eval-data", "e", "--checkpoint", "c"];
        for bad in ["0", "x"] {
            dtrc(&[&fixed[..], &[flag, bad]].concat()).fails(64, &[flag, "1 or more"]);
        }
    }
}
