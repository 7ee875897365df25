//! Checkpoints: what is resumed ends with the same bytes, whatever happened in between, and what cannot be resumed is said.

use crate::support::{Outcome, command, dtrc, floats, mlp_data, model, write};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// The checkpoints of a folder, oldest first; there is nothing else in it.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert!(files.iter().all(|p| p.extension().is_some_and(|e| e == "ckpt")), "{files:?}");
    files
}

/// The last checkpoint of a folder.
fn last(dir: &Path) -> Vec<u8> {
    fs::read(files(dir).last().unwrap()).unwrap()
}

/// A folder that is trained into.
struct Folder {
    dir: PathBuf,
    data: String,
}

impl Folder {
    fn args(&self, more: &[&str]) -> Vec<String> {
        let (dir, mlp) = (self.dir.display().to_string(), model("mlp_tiny"));
        let fixed = ["train", &mlp, "--work-limit", "20000", "--data", &self.data, "--checkpoint", &dir];
        fixed.iter().chain(more).map(|s| (*s).to_owned()).collect()
    }

    fn train(&self, more: &[&str]) -> Outcome {
        let args = self.args(more);
        dtrc(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

const ADAM: [&str; 6] = ["--budget", "100%", "--shuffle", "5", "--optimizer", "adam"];

/// `ADAM` and more.
fn adam<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&ADAM[..], more].concat()
}

#[test]
fn a_run_killed_a_hundred_times_resumes_to_the_same_bytes() {
    let temp = tempfile::tempdir().unwrap();
    let folder = |name: &str| Folder { dir: temp.path().join(name), data: mlp_data(temp.path(), 10) };
    let options = ["--epochs", "4", "--every", "1", "--keep", "2", "--resume"];
    let start = Instant::now();
    let whole = folder("whole");
    whole.train(&adam(&options)).ok();
    let once = start.elapsed();
    let expected = last(&whole.dir);
    // Moments spread over the whole run, its start included; every other time under another budget, which the numbers do not depend on.
    let mut moments = floats(100, 7).into_iter().map(|x| once.mul_f64(f64::from(x + 1.0) / 2.0)).peekable();
    let mut round = 0;
    while moments.peek().is_some() {
        round += 1;
        let broken = folder(&format!("broken{round}"));
        let log = temp.path().join(format!("broken{round}.{}", if round % 2 == 0 { "csv" } else { "jsonl" }));
        let log_name = log.display().to_string();
        loop {
            let moment = moments.next();
            let mut options = adam(&options);
            options[1] = if moments.len() % 2 == 0 { "100%" } else { "1G" };
            options.extend(["--log", &log_name]);
            let args = broken.args(&options);
            let mut child = command(&args.iter().map(String::as_str).collect::<Vec<_>>()).spawn().unwrap();
            if let Some(pause) = moment {
                std::thread::sleep(pause);
                child.kill().unwrap();
            }
            let out = child.wait_with_output().unwrap();
            // Without a code it was the kill that ended it.
            if out.status.code().is_some() {
                assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
                break;
            }
        }
        assert!(last(&broken.dir) == expected, "the last checkpoints differ in round {round}");
        // Each step has its line, and no step that was gone back behind has two.
        let text = fs::read_to_string(&log).unwrap();
        let step = |l: &str| {
            let cell = l.trim_start_matches(r#"{"schema":1,"step":"#).split(',').next()?;
            cell.parse::<u64>().ok()
        };
        assert!(text.lines().filter_map(step).eq(1..=40), "{text}");
    }
}

#[test]
fn broken_checkpoints_are_never_a_fresh_start() {
    let temp = tempfile::tempdir().unwrap();
    let f = Folder { dir: temp.path().join("c"), data: mlp_data(temp.path(), 10) };
    f.train(&adam(&["--steps", "6", "--every", "2"])).ok();
    let all = files(&f.dir);
    assert_eq!(all.len(), 3);
    let whole: Vec<Vec<u8>> = all.iter().map(|p| fs::read(p).unwrap()).collect();
    let flip = |i: usize, at: usize| {
        let mut bytes = whole[i].clone();
        bytes[at] ^= 1;
        fs::write(&all[i], bytes).unwrap();
    };
    // The newest whole one is taken, and broken newer ones do not crowd out what is written after it.
    flip(2, whole[2].len() - 100);
    fs::write(&all[1], &whole[1][..whole[1].len() / 2]).unwrap();
    let out = f.train(&adam(&["--steps", "4", "--every", "1", "--keep", "1", "--resume"])).ok();
    for word in ["step-0000000006.ckpt: damaged", "step-0000000004.ckpt: damaged", "resumed after step 2"] {
        assert!(out.stderr.contains(word), "{}", out.stderr);
    }
    assert!(fs::read(&all[1]).unwrap() == whole[1]);
    // None is whole.
    fs::write(&all[1], b"").unwrap();
    flip(2, 40);
    let e = f.train(&adam(&["--steps", "8", "--resume"]));
    e.fails(65, &["none of its 2 checkpoints is whole", "step-0000000006.ckpt", "another folder"]);
    assert_eq!(files(&f.dir).len(), 2);
}

#[test]
fn what_is_resumed_must_be_the_same_training() {
    let temp = tempfile::tempdir().unwrap();
    let f = Folder { dir: temp.path().join("c"), data: mlp_data(temp.path(), 10) };
    f.train(&adam(&["--steps", "3"])).ok();
    let before = last(&f.dir);
    f.train(&adam(&["--steps", "3"])).fails(64, &["holds checkpoints already", "--resume"]);
    let resume = |more: &[&str]| f.train(&adam(&[&["--steps", "6", "--resume"], more].concat()));
    resume(&["--seed", "1"]).fails(64, &["--seed 0 --shuffle 5", "to resume"]);
    f.train(&["--budget", "100%", "--optimizer", "adam", "--steps", "6", "--resume"])
        .fails(64, &["--shuffle 5"]);
    for other in
        [&["--optimizer", "adamw"][..], &["--accumulate", "2"], &["--clip-norm", "1"], &["--freeze", "fc1*"]]
    {
        let args = ["--budget", "100%", "--shuffle", "5", "--steps", "6", "--resume"];
        let args: Vec<&str> = if other[0] == "--optimizer" { args.to_vec() } else { adam(&args[4..]) };
        f.train(&[&args, other].concat())
            .fails(65, &["another training step", "optimizer", "another folder"]);
    }
    assert!(last(&f.dir) == before);
}

#[test]
fn evaluation_may_be_added_later() {
    let temp = tempfile::tempdir().unwrap();
    let folder = |name: &str| Folder { dir: temp.path().join(name), data: mlp_data(temp.path(), 10) };
    let (plain, mixed) = (folder("plain"), folder("mixed"));
    let eval = ["--eval-data", &plain.data, "--eval-every", "2"];
    plain.train(&adam(&["--steps", "9"])).ok();
    for (steps, more) in [("3", &[][..]), ("6", &eval[..]), ("9", &[])] {
        mixed.train(&adam(&[&["--steps", steps, "--resume"], more].concat())).ok();
    }
    assert!(last(&plain.dir) == last(&mixed.dir));
}

#[test]
fn nothing_left_to_do_is_said() {
    let temp = tempfile::tempdir().unwrap();
    let f = Folder { dir: temp.path().join("c"), data: mlp_data(temp.path(), 10) };
    f.train(&adam(&["--steps", "4"])).ok();
    let out = f.train(&adam(&["--steps", "4", "--resume"])).ok();
    assert!(out.stderr.contains("nothing left to do") && out.stderr.contains("--steps"), "{}", out.stderr);
    assert!(out.stdout.contains("no step after step 4") && !out.stdout.contains("none"), "{}", out.stdout);
    let out = f.train(&adam(&["--steps", "7", "--resume"])).ok();
    assert!(out.stdout.contains("3 steps after step 4") && out.stdout.contains("loss"), "{}", out.stdout);
}

#[test]
fn a_failed_step_ends_with_a_checkpoint_of_the_state_before_it() {
    let temp = tempfile::tempdir().unwrap();
    let x = |bad: Option<usize>| {
        let mut x = floats(4 * 512, 1);
        bad.into_iter().for_each(|i| x[i] = f32::NAN);
        x
    };
    let labels = |bad: i64| (0..64).map(|i| if i == 50 { bad } else { i % 3 }).collect::<Vec<i64>>();
    let data = |name: &str, x: &[f32], labels: &[i64]| {
        write(&temp.path().join(name), (&[64, 32], x), (&[64], labels))
    };
    let train = |name: &str, data: String, steps: &str, more: &[&str]| {
        let f = Folder { dir: temp.path().join(name), data };
        let args = ["--budget", "100%", "--momentum", "0.9", "--steps", steps];
        (f.train(&[&args, more].concat()), f)
    };
    let good = data("good.npz", &x(None), &labels(0));
    let (_, three) = train("three", good, "3", &[]);
    let nan = data("nan.npz", &x(Some(3 * 512 + 9)), &labels(0));
    let (out, f) = train("nan", nan.clone(), "8", &[]);
    out.fails(1, &["step 4", "NaN", "step-0000000003.ckpt"]);
    assert!(last(&f.dir) == last(&three.dir));
    let wrong = data("wrong.npz", &x(None), &labels(77));
    let (out, f) = train("wrong", wrong, "8", &[]);
    out.fails(65, &["label 77 at row 2", "batch 3", "step-0000000003.ckpt"]);
    assert!(last(&f.dir) == last(&three.dir));
    // It goes on from there.
    let (out, _) = train("nan", nan, "8", &["--resume", "--on-nan", "skip"]);
    assert!(out.ok().stderr.contains("resumed after step 3"));
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
            "--json",
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
        let said = String::from_utf8(out.stdout).unwrap();
        let closing: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
        assert_eq!((&closing["interrupted"], &closing["exit_code"]), (&true.into(), &code.into()));
        assert!(closing["peak_rss_bytes"].as_u64() > Some(0), "{closing}");
        assert_eq!(files(&folder).len(), 1);
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
