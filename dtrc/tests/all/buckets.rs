//! Sizes that vary and budgets that change, from the command line.

use crate::support::{
    self, dtrc, model,
    onnx::{graph, int, node, numbers, weight, write},
    resnet_data,
};
use graph::DType;
use runtime::data::npz;
use std::path::Path;
use tests::data;

/// A folder with a file for each batch of these lengths.
fn batches(dir: &Path, lengths: &[u64]) -> String {
    let folder = dir.join("batches");
    std::fs::create_dir_all(&folder).unwrap();
    for (i, n) in lengths.iter().enumerate() {
        let bytes = |below: i64, count: u64| -> Vec<u8> {
            (0..count as i64).flat_map(|k| ((k * 7 + i as i64) % below).to_le_bytes()).collect()
        };
        let (ids, target) = (bytes(50, 4 * n), bytes(2, 4));
        let mask: Vec<u8> = (0..4 * n).flat_map(|_| 1i64.to_le_bytes()).collect();
        let file = std::fs::File::create(folder.join(format!("b{i:03}.npz"))).unwrap();
        let shape = [4, *n];
        npz::write(
            file,
            [
                ("input_ids", DType::I64, &shape[..], ids.as_slice()),
                ("attention_mask", DType::I64, &shape[..], mask.as_slice()),
                ("target", DType::I64, &[4][..], target.as_slice()),
            ],
        )
        .unwrap();
    }
    folder.display().to_string()
}

#[test]
fn batches_of_varying_length_run_in_buckets() {
    let Some(root) = data("models") else { return };
    let dir = tempfile::tempdir().unwrap();
    let model = root.join("small").join("bert.ts_dyn.onnx").display().to_string();
    let lengths = [5, 8, 12, 20, 3, 16];
    let folder = batches(dir.path(), &lengths);
    let common = ["--loss", "cross-entropy", "--dim", "batch=4"];
    let with = |head: &[&str], more: &[&str]| dtrc(&[head, &common, more].concat());
    let log = dir.path().join("log.csv").display().to_string();
    let data = ["--data", &folder];
    let out = with(
        &["--json", "train", &model],
        &[&["--dim", "seq=8,16", "--budget", "100%", "--log", &log], &data[..]].concat(),
    )
    .ok();
    let ran: Vec<String> =
        out.objects().iter().filter_map(|o| Some(o["program"].as_str()?.to_owned())).collect();
    assert_eq!(ran, ["seq <= 8", "seq <= 8", "seq <= 16", "dynamic", "seq <= 8", "seq <= 16"]);
    assert!(out.stderr.contains("step 4 ran dynamic: seq=20 is beyond the last bucket"), "{}", out.stderr);
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.starts_with("step,epoch,loss,lr,seconds,program\n"), "{text}");
    assert!(text.lines().nth(4).unwrap().ends_with(",\"dynamic\""), "{text}");
    // The same losses as without buckets, and in one bucket with less memory.
    let free = with(&["--json", "train", &model], &[&["--budget", "64M"], &data[..]].concat()).ok();
    assert_eq!(out.losses(), free.losses());
    let bound = with(
        &["--json", "train", &model],
        &[&["--dim", "seq<=20", "--budget", "60%", "--check-recompute"], &data[..]].concat(),
    )
    .ok();
    assert_eq!(bound.losses(), free.losses());
    assert!(!bound.stderr.contains("ran dynamic"), "{}", bound.stderr);
    // In a file.
    let plan = dir.path().join("b.dtrc").display().to_string();
    let compiled = with(
        &["--json", "compile", &model],
        &["--dim", "seq=8,16", "--budget", "80%", "--metric", "loss", "-o", &plan],
    )
    .ok();
    let programs = compiled.objects()[0]["programs"].as_array().unwrap().clone();
    let labels: Vec<&str> = programs.iter().map(|p| p["label"].as_str().unwrap()).collect();
    assert_eq!(labels, ["seq <= 8", "seq <= 8", "seq <= 16", "seq <= 16", "dynamic", "dynamic"]);
    dtrc(&["check", &plan]).ok();
    let shown = dtrc(&["show", &plan]).ok().stdout;
    assert!(shown.contains("where seq <= 8") && shown.contains("where seq <= 16"), "{shown}");
    assert!(shown.contains("dynamic region"), "{shown}");
    let compared = dtrc(&["diff", &plan, &plan]).ok().stdout;
    for heading in
        ["program train where seq <= 8 ", "program infer where seq <= 16 ", "program train, dynamic "]
    {
        assert!(compared.contains(heading), "{heading}: {compared}");
    }
    assert!(compared.contains("pool bytes") && compared.contains("decided at run time"), "{compared}");
    let again =
        dtrc(&["--json", "train", &plan, "--weights", &model, "--data", &folder, "--eval-data", &folder])
            .ok();
    assert_eq!(again.losses(), free.losses());
    let ran = dtrc(&["run", &plan, "--weights", &model, "--data", &folder, "--batch", "3"]).ok();
    assert!(ran.stderr.contains("beyond the last bucket"), "{}", ran.stderr);
    let estimated = with(&["estimate", &model], &["--dim", "seq=8,16"]).ok().stdout;
    assert!(estimated.contains("train seq <= 16"), "{estimated}");
    let estimated = with(&["--json", "estimate", &model], &["--dim", "seq<=16", "--fits", "64M"]).ok();
    assert_eq!(estimated.objects()[0]["fits"], "yes");
}

#[test]
fn buckets_that_cannot_be_are_refused() {
    let Some(root) = data("models") else { return };
    let file = |n: &str| root.join("small").join(n).display().to_string();
    let (bert, ifnet) = (file("bert.ts_dyn.onnx"), file("ifnet_pos.ts_dyn.onnx"));
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("x.dtrc").display().to_string();
    let compile = |model: &str, budget: &str, dims: &[&str], more: &[&str]| {
        let dims: Vec<&str> = dims.iter().flat_map(|d| ["--dim", d]).collect();
        let head = ["compile", model, "--loss", "cross-entropy", "--budget", budget, "-o", &out];
        dtrc(&[&head[..], &dims, more].concat())
    };
    compile(&bert, "64M", &["sek=8", "batch=2"], &[]).fails(64, &["--dim sek=8", "it has", "batch", "seq"]);
    compile(&bert, "64M", &["sek=8,16", "batch=2"], &[]).fails(64, &["--dim sek", "it has", "seq"]);
    compile(&ifnet, "1M", &["bath=4"], &[]).fails(64, &["--dim bath=4", "it has batch"]);
    compile(&bert, "64M", &["seq=8,16"], &[])
        .fails(64, &["batch", "neither bound nor bounded", "--dim batch=N"]);
    compile(&bert, "64M", &["batch=1,2,3,4,5", "seq=4,8,12,16"], &[])
        .fails(64, &["5 of batch times 4 of seq", "16"]);
    compile(&bert, "64M", &["batch=4", "len<=8"], &[]).fails(64, &["--dim len", "it has seq"]);
    compile(&bert, "64M", &["batch=4", "seq<=8", "input_ids:1<=9"], &[]).fails(64, &["bounds already"]);
    compile(&bert, "64M", &["batch=4", "seq<=0"], &[]).fails(64, &["NAME<=N"]);
    compile(&bert, "64M", &["batch=4", "seq<=8"], &["--strict-static"]).fails(64, &["give one size"]);
    compile(&bert, "16K", &["batch=4", "seq<=8"], &[]).fails(2, &["too small"]);
    // A branch is open at any size.
    compile(&ifnet, "50%", &["batch<=4"], &[]).fails(64, &["even at batch <= 4", "in bytes"]);
    let noted = compile(&ifnet, "1M", &["batch<=4"], &[]).ok();
    assert!(
        noted.stderr.contains("dynamic, made anew at every step: even at batch <= 4"),
        "{}",
        noted.stderr
    );
    dtrc(&["sweep", &bert, "--loss", "cross-entropy", "--dim", "batch=4", "--dim", "seq<=8"])
        .fails(64, &["give one size"]);
}

/// A loop of the length that varies: a program for each bound runs batches of exactly that length, and says so.
#[test]
fn loops_of_varying_length_have_a_program_for_each_bound() {
    let Some(root) = data("models") else { return };
    let dir = tempfile::tempdir().unwrap();
    let (model, out) = (root.join("small").join("lstm_loop.ts_dyn.onnx"), dir.path().join("x.dtrc"));
    let (model, out) = (model.display().to_string(), out.display().to_string());
    let dims = ["--dim", "batch=4", "--dim", "seq=6,12", "--budget", "1M"];
    let head = ["compile", &model, "--loss", "cross-entropy", "-o", &out];
    let noted = dtrc(&[&head[..], &dims].concat()).ok().stderr;
    assert!(noted.contains("a loop is unrolled by its length"), "{noted}");
    let io = root.join("reference").join("lstm_loop.io.npz").display().to_string();
    let ran = dtrc(&["--json", "train", &out, "--weights", &model, "--data", &io, "--steps", "2"]).ok();
    assert_eq!(ran.objects()[0]["program"], "seq <= 12", "{}", ran.stderr);
    // A model without such a loop says nothing.
    let bert = root.join("small").join("bert.ts_dyn.onnx").display().to_string();
    let head = ["compile", &bert, "--loss", "cross-entropy", "-o", &out];
    let noted = dtrc(&[&head[..], &dims].concat()).ok().stderr;
    assert!(!noted.contains("unrolled"), "{noted}");
}

/// Of one row the lookup of positions is a slice: that is no fault of the plan, and the bits are those of any way.
#[test]
fn a_size_that_makes_other_operators_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = vec![
        node("Shape", "x", "extent", vec![int("end", 1)]),
        node("Squeeze", "extent", "rows", vec![]),
        node("Range", "zero rows one", "places", vec![]),
        node("Gather", "table places", "position", vec![]),
        node("Add", "x position", "placed", vec![]),
        node("Tanh", "placed", "y", vec![]),
        node("ReduceMean", "y", "loss", vec![int("keepdims", 0)]),
    ];
    let table: Vec<f32> = support::floats(64, 3);
    let constants =
        vec![weight("table", &[16, 4], &table), numbers("zero", &[], &[0]), numbers("one", &[], &[1])];
    let model = write(dir.path(), "places.onnx", 18, graph("x[S,4]", nodes, "loss[]", constants));
    let plan = dir.path().join("places.dtrc").display().to_string();
    let how = ["--loss", "output:loss", "--budget", "1M"];
    dtrc(&[&["compile", &model, "--dim", "S=8,16", "-o", &plan][..], &how].concat()).ok();
    for (rows, words) in
        [(1, Some("S=1 makes other steps than its bucket's, and they are planned now: node")), (3, None)]
    {
        let x: Vec<u8> = support::floats(4 * rows, 5).iter().flat_map(|v| v.to_le_bytes()).collect();
        let data = dir.path().join(format!("{rows}.npz"));
        let shape = [rows as u64, 4];
        let file = std::fs::File::create(&data).unwrap();
        npz::write(file, [("x", DType::F32, &shape[..], x.as_slice())]).unwrap();
        let run = |what: &[&str], out: &str| {
            let out = dir.path().join(out).display().to_string();
            let data = data.display().to_string();
            let fixed = ["--data", &data, "--lr", "0.5", "--state", "-o", &out];
            let ran = dtrc(&[&["run"], what, &fixed].concat()).ok();
            (ran.stderr, std::fs::read(out).unwrap())
        };
        let (noted, bucket) = run(&[&plan, "--weights", &model], "bucket.npz");
        let (_, plain) = run(&[&[&*model][..], &how].concat(), "plain.npz");
        assert!(bucket == plain, "{rows} rows: the bits differ");
        match words {
            Some(words) => {
                assert!(noted.contains(words) && noted.contains("Gather, is Slice"), "{noted}");
                assert!(!noted.contains("invalid"), "{noted}");
            }
            None => assert!(!noted.contains("dynamic"), "{noted}"),
        }
    }
}

#[test]
fn several_budgets_in_one_plan() {
    let dir = tempfile::tempdir().unwrap();
    let (net, batch) = (model("resnet_tiny"), resnet_data(dir.path(), 3));
    let plan = dir.path().join("several.dtrc").display().to_string();
    let out = dtrc(&["--json", "compile", &net, "--budget", "100%,80%,65%", "-o", &plan]).ok();
    let programs = out.objects()[0]["programs"].as_array().unwrap().clone();
    let arenas: Vec<u64> = programs.iter().map(|p| p["arena_bytes"].as_u64().unwrap()).collect();
    assert!(arenas.len() >= 2 && arenas.is_sorted_by(|a, b| a > b), "{arenas:?}");
    dtrc(&["check", &plan]).ok();
    let train = |what: &[&str]| dtrc(&[&["--json", "train"], what, &["--data", &batch]].concat()).ok();
    let one = train(&[&net, "--budget", "100%"]);
    let followed = train(&[&plan, "--weights", &net, "--follow-memory"]);
    assert_eq!(one.losses(), followed.losses());
    let last = |o: &support::Outcome| o.objects().last().unwrap()["numerics"].clone();
    assert_eq!(last(&one), last(&followed));
    let label = followed.objects()[0]["program"].as_str().unwrap().to_owned();
    assert!(label.contains("iB"), "{label}");
    dtrc(&["compile", &net, "--budget", "100%,", "-o", &plan]).fails(64, &["no budget"]);
}
