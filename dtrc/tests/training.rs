//! Training end to end: the same numbers at every budget, resumption to the byte, the options.

mod support;

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};
use support::{command, dtrc, mlp_data, model, resnet_data};

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

/// The last checkpoint of a folder.
fn last(dir: &Path) -> Option<Vec<u8>> {
    let mut files: Vec<_> = std::fs::read_dir(dir).ok()?.filter_map(|e| Some(e.ok()?.path())).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "ckpt"));
    files.sort();
    std::fs::read(files.last()?).ok()
}

#[test]
fn a_killed_run_resumes_to_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let data = mlp_data(dir.path(), 10);
    let (whole, broken) = (dir.path().join("whole"), dir.path().join("broken"));
    let mlp = model("mlp_tiny");
    let args = |folder: &Path, budget: &str| -> Vec<String> {
        [
            "train",
            &mlp,
            "--budget",
            budget,
            "--data",
            &data,
            "--epochs",
            "30",
            "--shuffle",
            "5",
            "--optimizer",
            "adam",
            "--every",
            "1",
            "--keep",
            "2",
            "--resume",
            "--work-limit",
            "20000",
            "--checkpoint",
        ]
        .iter()
        .map(|s| (*s).to_owned())
        .chain([folder.display().to_string()])
        .collect()
    };
    let start = Instant::now();
    let strings = args(&whole, "100%");
    dtrc(&strings.iter().map(String::as_str).collect::<Vec<_>>()).ok();
    let once = start.elapsed();
    let expected = last(&whole).unwrap();
    // Killed at moments spread over the whole run, the start included; and resumed under another budget, which the numbers do not depend on.
    let (mut kills, mut done) = (0, false);
    for i in 0..200u32 {
        let strings = args(&broken, if i % 2 == 0 { "100%" } else { "1G" });
        let mut child = command(&strings.iter().map(String::as_str).collect::<Vec<_>>()).spawn().unwrap();
        let pause =
            if kills < 12 { once.mul_f64(f64::from(i * 7919 % 97) / 97.0) } else { Duration::from_secs(600) };
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            if begun.elapsed() >= pause {
                break None;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        match status {
            Some(status) => {
                let out = child.wait_with_output().unwrap();
                assert!(status.success(), "{}", String::from_utf8_lossy(&out.stderr));
                done = true;
                break;
            }
            None => {
                child.kill().unwrap();
                child.wait().unwrap();
                kills += 1;
            }
        }
    }
    assert!(done && kills > 0, "{kills} kills");
    assert!(last(&broken).unwrap() == expected, "the last checkpoints differ");
}

#[test]
fn an_interrupt_ends_with_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let folder = dir.path().join(signal);
        let log = dir.path().join(format!("{signal}.jsonl"));
        let (f, l) = (folder.display().to_string(), log.display().to_string());
        let mlp = model("mlp_tiny");
        let child = command(&[
            "train",
            &mlp,
            "--budget",
            "100%",
            "--synthetic",
            "--steps",
            "100000000",
            "--checkpoint",
            &f,
            "--log",
            &l,
        ])
        .spawn()
        .unwrap();
        let begun = Instant::now();
        while std::fs::metadata(&log).map_or(0, |m| m.len()) == 0 {
            assert!(begun.elapsed() < Duration::from_secs(120), "no step was made");
            std::thread::sleep(Duration::from_millis(5));
        }
        let kill = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().unwrap();
        assert!(kill.success());
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(code), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(last(&folder).is_some());
        let steps = std::fs::read_to_string(&log).unwrap().lines().count();
        let more = (steps + 2).to_string();
        let again = dtrc(&[
            "train",
            &mlp,
            "--budget",
            "100%",
            "--synthetic",
            "--steps",
            &more,
            "--checkpoint",
            &f,
            "--resume",
        ])
        .ok();
        assert!(again.stderr.contains(&format!("resumed after step {steps}")), "{}", again.stderr);
    }
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
    // Evaluation runs over the same parameters: at rate 0 its mean is that of the training losses.
    let out = run(&["--data", &four, "--lr", "0", "--eval-data", &four, "--eval-every", "2"]);
    let evals: Vec<f64> = out.objects().iter().filter_map(|o| o.get("mean")?.as_f64()).collect();
    assert!(evals.len() >= 3, "{}", out.stdout);
    let mean = single.iter().sum::<f64>() / 4.0;
    assert!(evals.iter().all(|e| (e - mean).abs() < 1e-6), "{evals:?} {mean}");
    let end = out.objects().pop().unwrap();
    assert!(end["peak_rss_bytes"].as_u64().is_some_and(|b| b > 0) && end["steps"] == 4);
}
