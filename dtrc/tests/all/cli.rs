//! What goes wrong is a sentence that helps and an exit code of its own, never a panic.

use crate::support::{self, dtrc, floats, model, resnet_data, write};

#[test]
fn budgets_that_are_none_or_too_small() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("p.dtrc").display().to_string();
    let mlp = model("mlp_tiny");
    dtrc(&["compile", &mlp, "--budget", "abc", "-o", &out]).fails(64, &["abc", "4G", "50%"]);
    let small = dtrc(&["compile", &mlp, "--budget", "1K", "-o", &out]);
    small.fails(
        2,
        &[
            "proved impossible",
            "state alone needs",
            "proven lower bound",
            "the step that binds",
            "would help",
        ],
    );
    assert!(!dir.path().join("p.dtrc").exists());
    // The budget that the refusal names is one.
    let (_, rest) = small.stderr.split_once("give --budget ").unwrap();
    let least: String = rest.chars().take_while(char::is_ascii_digit).collect();
    dtrc(&["compile", &mlp, "--budget", &least, "-o", &out]).ok();
    dtrc(&["compile", &mlp, "--budget", "99999T", "-o", &out]).ok();
    dtrc(&["check", &out]).ok();
    dtrc(&["compile", &mlp, "-o", &out]).fails(64, &["--budget"]);
    dtrc(&["train", &mlp, "--synthetic", "--steps", "1"]).fails(64, &["--budget"]);
}

#[test]
fn files_that_are_none() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path().display().to_string();
    let mlp = model("mlp_tiny");
    let plan = dir.path().join("p.dtrc").display().to_string();
    dtrc(&["compile", &mlp, "--budget", "1G", "-o", &plan]).ok();
    // Read: a name that is none, or a folder's, is the same mistake whatever is read.
    let train = ["train", &mlp, "--budget", "1G"];
    let plain = ["train", &plan, "--synthetic", "--steps", "1", "--weights"];
    for (name, words) in
        [("no.thing", "there is no such file"), (d.as_str(), "this is a folder, a file is needed")]
    {
        for command in [
            vec!["compile", name, "--budget", "1G"],
            vec!["estimate", name],
            vec!["min-budget", name],
            vec!["sweep", name],
            vec!["run", name, "--synthetic"],
            vec!["train", name, "--synthetic", "--steps", "1"],
            [&plain[..], &[name]].concat(),
            vec!["show", name],
            vec!["check", name],
            vec!["diff", &plan, name],
            vec!["explain", name],
            vec!["offsets", name, "--capacity", "9"],
            vec!["plan", "--from-graph", name, "--budget-ratio", "0.5"],
            vec!["simulate", name, "--heuristic", "dtr", "--budget-ratio", "0.5"],
            vec!["compile", &mlp, "--budget", "1G", "-o", &plan, "--costs", name],
        ] {
            dtrc(&command).fails(65, &[name, words]);
        }
    }
    // What the system will not read is the disk's trouble.
    if cfg!(target_os = "linux") {
        for command in [vec!["show"], vec!["compile", "--budget", "1G"], vec!["offsets", "--capacity", "9"]] {
            dtrc(&[&command[..], &["/proc/self/mem"]].concat())
                .fails(74, &["/proc/self/mem: cannot be read"]);
        }
    }
    dtrc(&[&train[..], &["--data", "no.npz"]].concat()).fails(65, &["no.npz: there is no such file"]);
    dtrc(&[&train[..], &["--data", &d]].concat()).fails(65, &["no .npz and no .npy file"]);
    let eval = ["--synthetic", "--steps", "1", "--eval-data", "no.npz"];
    dtrc(&[&train[..], &eval].concat()).fails(65, &["no.npz: there is no such file"]);
    // Written: before anything is planned or trained.
    for flag in ["--log", "--save", "--save-inference", "--checkpoint"] {
        let file = dir.path().join("no/such").display().to_string();
        for (place, words) in [
            (d.as_str(), "give a name in this folder"),
            (&file, "make its folder first"),
            (&plan, "a folder is needed"),
        ] {
            if (flag == "--checkpoint") == (place == plan) {
                let out = dtrc(&[&train[..], &["--synthetic", "--steps", "1", flag, place]].concat());
                out.fails(74, &[place, "cannot be written", words]);
                assert!(!out.stderr.contains("keep-all"), "{}", out.stderr);
            }
        }
    }
    dtrc(&["compile", &mlp, "--budget", "1G", "-o", "/no/such/folder/p.dtrc"])
        .fails(74, &["cannot be written", "folder"]);
    dtrc(&["compile", &mlp, "--budget", "1G", "-o", &d])
        .fails(74, &["cannot be written", "give a name in this folder"]);
    let garbage = dir.path().join("g.onnx");
    std::fs::write(&garbage, [0xff; 300]).unwrap();
    dtrc(&["compile", &garbage.display().to_string(), "--budget", "1G"]).fails(65, &["g.onnx"]);
    dtrc(&["train", &mlp, "--budget", "1G", "--synthetic", "--steps", "2", "--log", "/dev/full"])
        .fails(74, &["/dev/full", "free some space"]);
}

#[test]
fn errors_are_objects_with_json() {
    for (args, code, kind) in [
        (vec!["--json", "compile", "no.onnx", "--budget", "1G"], 65, "not-found"),
        (vec!["--json", "show", "no.dtrc"], 65, "not-found"),
        (vec!["--json", "compile", "x", "--budget", "abc"], 64, "usage"),
        (vec!["--json", "compile", &model("mlp_tiny"), "--budget", "1K"], 2, "infeasible"),
    ] {
        let out = dtrc(&args);
        out.fails(code, &["error: "]);
        let objects = out.objects();
        let [o] = objects.as_slice() else { panic!("{}", out.stdout) };
        assert_eq!((&o["schema"], &o["exit_code"]), (&1.into(), &code.into()));
        assert_eq!(o["kind"], kind);
        assert!(o["message"].as_str().is_some_and(|m| !m.is_empty()));
    }
}

#[test]
fn plans_that_must_not_run() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (plan, mlp) = (file("p.dtrc"), model("mlp_tiny"));
    dtrc(&["compile", &mlp, "--budget", "100%", "-o", &plan]).ok();
    let bytes = std::fs::read(&plan).unwrap();
    for (name, bytes) in [
        ("cut", &bytes[..bytes.len() / 2]),
        ("empty", &[]),
        ("head", &bytes[..8]),
        (
            "flipped",
            &bytes.iter().enumerate().map(|(i, b)| if i == 300 { b ^ 4 } else { *b }).collect::<Vec<_>>(),
        ),
    ] {
        let path = file(&format!("{name}.dtrc"));
        std::fs::write(&path, bytes).unwrap();
        for command in
            [vec!["show", &path], vec!["check", &path], vec!["train", &path, "--synthetic", "--steps", "1"]]
        {
            dtrc(&command).fails(65, &[name]);
        }
    }
    let train = ["train", plan.as_str(), "--synthetic", "--steps", "1"];
    // The weights are looked for beside the plan.
    dtrc(&train).fails(65, &["mlp_tiny.onnx", "--weights"]);
    let with = |weights: &str| dtrc(&[&train[..], &["--weights", weights]].concat());
    with(&mlp).ok();
    with(&model("resnet_tiny")).fails(65, &["weight", "the model has no such tensor"]);
    dtrc(&[&train[..], &["--weights", &mlp, "--budget", "1G"]].concat())
        .fails(64, &["a plan has its budget"]);
    dtrc(&["compile", &mlp, "--inference", "--budget", "100%", "-o", &plan]).ok();
    with(&mlp).fails(65, &["inference plan", "--loss"]);
}

#[test]
fn data_that_does_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let plan = at("p.dtrc").display().to_string();
    let mlp = model("mlp_tiny");
    dtrc(&["compile", &mlp, "--budget", "100%", "-o", &plan]).ok();
    let train = |data: &str, more: &[&str]| {
        dtrc(&[&["train", &plan, "--weights", &mlp, "--data", data, "--steps", "2"], more].concat())
    };
    let x = floats(16 * 32, 3);
    let labels = vec![1i64; 16];
    let rows: &[u64] = &[16];
    let mut wrong = labels.clone();
    wrong[5] = 99;
    let value = write(&at("value.npz"), (&[16, 32], &x), (rows, &wrong));
    train(&value, &[]).fails(65, &["label 99", "row 5", "outside of 0..", "batch 0"]);
    let shape = write(&at("shape.npz"), (&[16, 32], &x), (&[4, 4], &labels));
    train(&shape, &[]).fails(65, &["shape.npz[target]", "[4, 4]", "[16]"]);
    let short = write(&at("short.npz"), (&[15, 32], &x[..15 * 32]), (&[15], &labels[..15]));
    train(&short, &[]).fails(65, &["short.npz", "[15, 32]", "[16, 32]"]);
    std::fs::write(at("text.npz"), "no archive").unwrap();
    train(&at("text.npz").display().to_string(), &[]).fails(65, &["text.npz", "not an npz archive"]);
    train(&at("none.npz").display().to_string(), &[]).fails(65, &["none.npz"]);
    let bytes = std::fs::read(&value).unwrap();
    std::fs::write(at("cut.npz"), &bytes[..bytes.len() / 2]).unwrap();
    train(&at("cut.npz").display().to_string(), &[]).fails(65, &["cut.npz"]);
    // An array is missing.
    let file = std::fs::File::create(at("one.npz")).unwrap();
    let raw: Vec<u8> = x.iter().flat_map(|v| v.to_le_bytes()).collect();
    runtime::data::npz::write(file, [("x", graph::DType::F32, [16, 32].as_slice(), raw.as_slice())]).unwrap();
    train(&at("one.npz").display().to_string(), &[]).fails(65, &["no array \"target\"", "there are x"]);
    // A loss that is no number stops, or is skipped.
    let mut bad = x.clone();
    bad[7] = f32::NAN;
    let nan = write(&at("nan.npz"), (&[16, 32], &bad), (rows, &labels));
    train(&nan, &[]).fails(1, &["step 1", "NaN", "--clip-norm", "--on-nan skip"]);
    let skipped = train(&nan, &["--on-nan", "skip"]).ok();
    assert!(skipped.stderr.contains("skipped"), "{}", skipped.stderr);
}

#[test]
fn sizes_that_are_not_bound() {
    let Some(dynamic) = tests::data("models/small/mlp.ts_dyn.onnx") else { return };
    let dynamic = dynamic.display().to_string();
    let strict = ["compile", &dynamic, "--budget", "1G", "--loss", "cross-entropy", "--strict-static"];
    dtrc(&strict).fails(65, &["--dim batch=N"]);
    dtrc(&["sweep", &dynamic, "--loss", "cross-entropy"]).fails(65, &["--dim batch=N"]);
    dtrc(&["compile", &dynamic, "--budget", "1G", "--dim", "no_such=4"]).fails(64, &["no_such", "it has"]);
}

#[test]
fn every_command_teaches() {
    let top = dtrc(&["--help"]).ok().stdout;
    assert!(top.contains("Exit codes"));
    let names: Vec<&str> = top
        .lines()
        .skip_while(|l| *l != "Commands:")
        .skip(1)
        .take_while(|l| !l.is_empty())
        .filter_map(|l| l.strip_prefix("  ")?.split_whitespace().next())
        .filter(|w| w.chars().all(|c| c.is_ascii_lowercase() || c == '-') && *w != "help")
        .collect();
    assert!(names.len() >= 14, "{names:?}");
    let names = [
        "compile",
        "train",
        "run",
        "show",
        "check",
        "estimate",
        "profile",
        "doctor",
        "plan",
        "simulate",
        "offsets",
        "sweep",
        "min-budget",
        "explain",
        "completions",
        "man",
    ];
    for name in names {
        let help = dtrc(&[name, "--help"]).ok().stdout;
        assert!(help.contains("Usage: dtrc"), "{name}");
    }
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("new");
    dtrc(&["man", &pages.display().to_string()]).ok();
    for name in names {
        let page = std::fs::read_to_string(pages.join(format!("dtrc-{name}.1"))).unwrap();
        assert!(page.contains(".TH") && page.contains("\\-\\-json"), "{name}: {page}");
    }
    let train = std::fs::read_to_string(pages.join("dtrc-train.1")).unwrap();
    assert!(train.contains("\\-\\-on\\-nan") && train.contains("dtrc train"), "{train}");
    assert_eq!(dtrc(&["man"]).ok().stdout, std::fs::read_to_string(pages.join("dtrc.1")).unwrap());
    let script = dtrc(&["completions", "bash"]).ok().stdout;
    assert!(script.contains("min-budget") && script.contains("--budget-ratio"));
}

/// A reader that goes away ends the command without a panic.
#[test]
fn a_closed_pipe_is_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("p.dtrc").display().to_string();
    dtrc(&["compile", &model("transformer_tiny"), "--budget", "100%", "-o", &plan]).ok();
    let mut child = support::command(&["show", &plan]).spawn().unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert!(!String::from_utf8_lossy(&out.stderr).contains("panicked"));
}

#[test]
fn numbers_do_not_depend_on_the_thread_count() {
    let dir = tempfile::tempdir().unwrap();
    let data = resnet_data(dir.path(), 1);
    let losses = |threads: &str| {
        let out = dtrc(&[
            "--json",
            "train",
            &model("resnet_tiny"),
            "--budget",
            "70%",
            "--work-limit",
            "20000",
            "--epochs",
            "3",
            "--data",
            &data,
            "--threads",
            threads,
        ]);
        out.ok().losses()
    };
    let one = losses("1");
    assert_eq!(one.len(), 3);
    assert_eq!(one, losses("2"));
    assert_eq!(one, losses("3"));
}
