//! The commands beside compile and train: each gives what its help promises.

use crate::support::{dtrc, mlp_data, model};
use runtime::data::npz::Npz;

const LIMIT: [&str; 2] = ["--work-limit", "20000"];

#[test]
fn run_gives_outputs_and_state() {
    let dir = tempfile::tempdir().unwrap();
    let data = mlp_data(dir.path(), 3);
    let file = |n: &str| dir.path().join(n).display().to_string();
    let mlp = model("mlp_tiny");
    let trained =
        dtrc(&["--json", "train", &mlp, "--budget", "100%", "--data", &data, "--lr", "0.01"]).ok().losses();
    // One step of the training program: the same loss, and the state after it.
    let out = file("step.npz");
    let o =
        dtrc(&["--json", "run", &mlp, "--data", &data, "--state", "-o", &out]).ok().objects().pop().unwrap();
    assert_eq!(o["program"], "train");
    assert_eq!(o["outputs"][0]["values"][0].as_f64().unwrap() as f32, trained[0].parse::<f32>().unwrap());
    let mut step = Npz::open(out.as_ref()).unwrap();
    assert!(step.names().len() > 2, "{:?}", step.names());
    assert_eq!(step.read("loss").unwrap().to_floats()[0], trained[0].parse::<f64>().unwrap());
    // All batches through the inference program, stacked.
    let out = file("all.npz");
    let o = dtrc(&["--json", "run", &mlp, "--inference", "--data", &data, "--batches", "0", "-o", &out]).ok();
    assert_eq!(o.objects()[0]["batches"], 3);
    let loss = Npz::open(out.as_ref()).unwrap().read("loss").unwrap();
    assert_eq!(loss.shape(), [3]);
    assert!((loss.to_floats()[0] - trained[0].parse::<f64>().unwrap()).abs() < 1e-6);
    dtrc(&["run", &mlp, "--data", &data, "--batch", "9"]).fails(65, &["the data has 3"]);
}

#[test]
fn profile_writes_what_compile_takes() {
    let dir = tempfile::tempdir().unwrap();
    let costs = dir.path().join("c.json").display().to_string();
    let plan = dir.path().join("p.dtrc").display().to_string();
    let mlp = model("mlp_tiny");
    let o = dtrc(&["--json", "profile", &mlp, "-o", &costs, "--repeat", "3"]).ok().objects().pop().unwrap();
    let (predicted, measured) =
        (o["predicted_seconds"].as_f64().unwrap(), o["measured_seconds"].as_f64().unwrap());
    assert!(predicted > 0.0 && measured > 0.0 && o["measured_kinds"].as_u64().unwrap() > 3, "{o}");
    let shown = dtrc(&["--json", "compile", &mlp, "--budget", "100%", "--costs", &costs, "-o", &plan]).ok();
    assert_eq!(shown.objects()[0]["extra_time_fraction"], 0.0);
    // A time that was measured is the one that is used.
    let text = std::fs::read_to_string(&costs).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    for ns in json["measured"].as_object_mut().unwrap().values_mut() {
        *ns = 1_000_000_000u64.into();
    }
    std::fs::write(&costs, json.to_string()).unwrap();
    let slow = dtrc(&["--json", "profile", &mlp, "--costs", &costs, "-o", &costs, "--repeat", "1"])
        .ok()
        .objects()
        .pop()
        .unwrap();
    assert!(slow["estimated_seconds"].as_f64().unwrap() > 3.0, "{slow}");
    let resnet = model("resnet_tiny");
    let other = dtrc(&["compile", &resnet, "--budget", "100%", "--costs", &costs, "-o", &plan]).ok();
    assert!(other.stderr.contains("others are estimated"), "{}", other.stderr);
    std::fs::write(&costs, "{}").unwrap();
    dtrc(&["compile", &mlp, "--budget", "100%", "--costs", &costs, "-o", &plan])
        .fails(65, &["not a costs file"]);
}

#[test]
fn sweep_and_min_budget_agree() {
    let dir = tempfile::tempdir().unwrap();
    let file = |n: &str| dir.path().join(n).display().to_string();
    let net = model("resnet_tiny");
    let (csv, svg, plan) = (file("s.csv"), file("s.svg"), file("m.dtrc"));
    let sweep = dtrc(
        &[
            &["--json", "sweep", &net, "--budgets", "100%,80%,65%,1K", "--csv", &csv, "--svg", &svg][..],
            &LIMIT,
        ]
        .concat(),
    )
    .ok();
    let rows = sweep.objects();
    assert_eq!(rows.len(), 4);
    let extra: Vec<Option<f64>> = rows.iter().map(|r| r["extra_time_fraction"].as_f64()).collect();
    assert_eq!(extra[0], Some(0.0));
    for pair in rows.windows(2) {
        let e = |r: &serde_json::Value| r["extra_time_fraction"].as_f64().unwrap_or(f64::INFINITY);
        assert!(e(&pair[0]) <= e(&pair[1]), "less memory never takes less time: {pair:?}");
    }
    for r in rows.iter().filter(|r| r["status"] == "ok") {
        assert!(
            r["lower_bound_fraction"].as_f64().unwrap() <= r["extra_time_fraction"].as_f64().unwrap() + 1e-9,
            "{r}"
        );
        assert!(r["arena_bytes"].as_u64() <= r["budget_bytes"].as_u64(), "{r}");
    }
    assert_eq!(rows[3]["status"], "infeasible-proved");
    assert_eq!(rows[0]["online_extra_fraction"].as_object().unwrap().len(), 4);
    assert!(rows[3]["online_extra_fraction"]["dtr"].is_null(), "no online run lives without memory");
    assert_eq!(std::fs::read_to_string(&csv).unwrap().lines().count(), 5);
    assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg"));
    let least = dtrc(&[&["--json", "min-budget", &net, "--rounds", "2", "-o", &plan][..], &LIMIT].concat())
        .ok()
        .objects()
        .pop()
        .unwrap();
    let (found, bound) =
        (least["least_budget_bytes"].as_u64().unwrap(), least["lower_bound_bytes"].as_u64().unwrap());
    assert!(bound <= found && found < least["keep_all_peak_bytes"].as_u64().unwrap(), "{least}");
    let checked = dtrc(&["--json", "check", &plan]).ok().objects().pop().unwrap();
    assert_eq!(checked["arena_bytes"].as_u64(), Some(found));
}

#[test]
fn compile_finds_plans_from_the_least_budget_on() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("p.dtrc").display().to_string();
    for name in ["mlp_tiny", "resnet_tiny", "transformer_tiny", "unet_tiny"] {
        let net = model(name);
        let least =
            dtrc(&[&["--json", "min-budget", &net][..], &LIMIT].concat()).ok().objects().pop().unwrap();
        let least = least["least_budget_bytes"].as_u64().unwrap();
        for percent in [0, 1, 2, 5] {
            let budget = (least + least * percent / 100).to_string();
            dtrc(&[&["compile", &net, "--budget", &budget, "-o", &plan][..], &LIMIT].concat()).ok();
        }
        let below = (least - least / 4).to_string();
        let named = format!("--budget {least})");
        dtrc(&[&["compile", &net, "--budget", &below, "-o", &plan][..], &LIMIT].concat()).fails(2, &[&named]);
    }
}

#[test]
fn what_would_be_ignored_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let log = write("a.log", b"{}");
    dtrc(&["simulate", &log, "--budget-ratio", "0.5", "--skip-small", "nan"])
        .fails(64, &["--skip-small", "0.01"]);
    dtrc(&["simulate", &log, "--budget-ratio", "1e300"]).fails(64, &["--budget-ratio", "0.5"]);
    let graph = write("g.json", b"{\"nodes\":[],\"outputs\":[]}");
    dtrc(&["plan", "--from-graph", &graph, "--budget-ratio", "inf"]).fails(64, &["--budget-ratio"]);
    dtrc(&["plan", "--from-graph", &graph, "--budget-ratio", "0.5"]).fails(65, &["no nodes"]);
    let pool = ["plan", "--from-graph", &graph, "--budget-ratio", "0.5", "--dynamic-pool", "1M"];
    dtrc(&pool).fails(64, &["--dynamic-pool", "static"]);
    let plan = dir.path().join("p.dtrc").display().to_string();
    let mlp = model("mlp_tiny");
    dtrc(&["compile", &mlp, "--budget", "100%", "--dynamic-pool", "1M", "-o", &plan])
        .fails(64, &["--dynamic-pool", "static"]);
    let csv = write("e.csv", b"id,lower,upper,size\n");
    dtrc(&["offsets", &csv]).fails(65, &["no buffers"]);
    let csv = write("d.csv", b"id,lower,upper,size\na,0,1,4\nb,0,1,4\na,1,2,4\n");
    dtrc(&["offsets", &csv]).fails(65, &["line 4", "\"a\"", "line 2"]);
    let binary = write("b.log", &[0xff, 0xfe, 0x00, b'\n', 0x80]);
    dtrc(&["simulate", &binary, "--budget-ratio", "0.5"]).fails(65, &["b.log", "line 1", "not text"]);
}

#[test]
fn explain_tells_lives() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("p.dtrc").display().to_string();
    dtrc(&[&["compile", &model("transformer_tiny"), "--budget", "60%", "-o", &plan][..], &LIMIT].concat())
        .ok();
    let all = dtrc(&["--json", "explain", &plan]).ok().objects().pop().unwrap();
    let again = all["recomputed"].as_array().unwrap();
    assert!(!again.is_empty(), "{all}");
    let live: Vec<u64> = all["live_bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap()).collect();
    assert_eq!(live.iter().max(), all["peak_bytes"].as_u64().as_ref());
    // The prices of what is repeated add up to the extra time.
    let sum: f64 = again.iter().map(|r| r["time_fraction"].as_f64().unwrap()).sum();
    assert!(
        (sum - all["extra_time_fraction"].as_f64().unwrap()).abs() < 0.02,
        "{sum} {}",
        all["extra_time_fraction"]
    );
    let tensor = again[0]["tensor"].as_str().unwrap().trim_matches('"').to_owned();
    let one = dtrc(&["--json", "explain", &plan, "--tensor", &tensor]).ok().objects().pop().unwrap();
    assert!(one["instances"].as_array().unwrap().len() >= 2, "{one}");
    assert!(one["gaps"].as_array().unwrap().iter().any(|g| g["choice"] == "recompute"), "{one}");
    let text = dtrc(&["explain", &plan, "--tensor", &tensor]).ok().stdout;
    assert!(
        text.contains("given up, then recomputed by") && text.contains("keeping it would hold"),
        "{text}"
    );
    assert!(dtrc(&["explain", &plan]).ok().stdout.contains("the peak is at step"));
    dtrc(&["explain", &plan, "--tensor", "no such"]).fails(64, &["no tensor"]);
    dtrc(&["explain", &plan, "--program", "7"]).fails(64, &["programs"]);
    // Of several budgets, each program tells its own.
    dtrc(
        &[&["compile", &model("transformer_tiny"), "--budget", "100%,60%", "-o", &plan][..], &LIMIT].concat(),
    )
    .ok();
    let budget = |program| {
        let told = dtrc(&["--json", "explain", &plan, "--program", program]).ok().objects().pop().unwrap();
        (told["budget_bytes"].as_u64().unwrap(), told["peak_bytes"].as_u64().unwrap())
    };
    let ((large, _), (small, peak)) = (budget("0"), budget("1"));
    assert!(peak <= small && small <= large * 6 / 10, "{small} of {large}");
}

/// The times that explain tells are those that the plan was made with, and add up: on another device, and with measured costs.
#[test]
fn explain_tells_the_times_of_the_plan() {
    let dir = tempfile::tempdir().unwrap();
    let file = |n: &str| dir.path().join(n).display().to_string();
    let (plan, costs) = (file("p.dtrc"), file("c.json"));
    let slow_memory = r#"{"profile":{"name":"slow memory","product_flops_per_s":1e15,"other_flops_per_s":1e15,"bytes_per_s":1e6,"launch_ns":1},
        "measured":{}}"#;
    std::fs::write(&costs, slow_memory).unwrap();
    let mut shares = Vec::new();
    for how in [vec![], vec!["--device", "cuda", "--target", "h200"], vec!["--costs", &costs]] {
        let compile = ["compile", &model("transformer_tiny"), "--budget", "50%", "-o", &plan];
        dtrc(&[&compile[..], &LIMIT, &how].concat()).ok();
        let all = dtrc(&["--json", "explain", &plan]).ok().objects().pop().unwrap();
        let again = all["recomputed"].as_array().unwrap();
        let sum: f64 = again.iter().map(|r| r["time_fraction"].as_f64().unwrap()).sum();
        let total = all["extra_time_fraction"].as_f64().unwrap();
        assert!(total > 0.0 && (sum - total).abs() < 1e-9, "{how:?}: {sum} {total}");
        shares.push(total);
    }
    assert!(shares[0] != shares[1] && shares[1] != shares[2], "{shares:?}");
    // Given costs take the place of the plan's, and add up, too.
    dtrc(&[&["compile", &model("transformer_tiny"), "--budget", "50%", "-o", &plan][..], &LIMIT].concat())
        .ok();
    let other = dtrc(&["--json", "explain", &plan, "--costs", &costs]).ok().objects().pop().unwrap();
    let again = other["recomputed"].as_array().unwrap();
    let sum: f64 = again.iter().map(|r| r["time_fraction"].as_f64().unwrap()).sum();
    let total = other["extra_time_fraction"].as_f64().unwrap();
    assert!((sum - total).abs() < 1e-9 && total != shares[0], "{sum} {total} {}", shares[0]);
}

#[test]
fn simulate_agrees_with_the_reference() {
    let Some(root) = tests::data("simrd") else { return };
    let log = std::fs::read_dir(root.join("logs"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .find(|p| p.display().to_string().contains("resnet32"))
        .unwrap();
    let log = log.display().to_string();
    let rows = std::fs::read_to_string(root.join("spec_reimpl_results.csv")).unwrap();
    let mut lines = rows.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    let mut compared = 0;
    for line in lines {
        let row: std::collections::BTreeMap<&str, &str> =
            names.iter().copied().zip(line.split(',')).collect();
        let heuristic = match row["heuristic"] {
            "DTREqClass" => "dtr-eq",
            "LRU" => "lru",
            _ => continue,
        };
        if row["model"] != "resnet32"
            || row["simrd_match"] != "True"
            || !["0.5", "0.1"].contains(&row["ratio"])
        {
            continue;
        }
        let o = dtrc(&[
            "--json",
            "simulate",
            &log,
            "--heuristic",
            heuristic,
            "--budget-ratio",
            row["ratio"],
            "--overhead-limit",
            row["overhead_limit"],
        ]);
        let o = o.ok().objects().pop().unwrap();
        assert_eq!(
            (o["status"].as_str(), o["trace_sha256"].as_str()),
            (Some(row["status"]), Some(row["trace_sha256"])),
            "{line}"
        );
        assert_eq!(o["evictions"].to_string(), row["evictions"]);
        compared += 1;
    }
    assert!(compared >= 3, "{compared}");
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("t").display().to_string();
    let o = dtrc(&["--json", "simulate", &log, "--budget-ratio", "0.5", "--trace", &trace])
        .ok()
        .objects()
        .pop()
        .unwrap();
    assert_eq!(
        std::fs::read_to_string(&trace).unwrap().lines().filter(|l| l.starts_with('R')).count() as u64,
        o["remats"]
    );
    dtrc(&["simulate", &log, "--heuristic", "best", "--budget-ratio", "0.5"]).fails(64, &["dtr-eq"]);
    dtrc(&["simulate", &model("mlp_tiny"), "--budget-ratio", "0.5"]).fails(65, &["line 1"]);
}

#[test]
fn the_planner_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = |n: &str| dir.path().join(n).display().to_string();
    // A chain of four, each read again in reverse.
    let graph = file("g.json");
    let node = |id: u32, inputs: &[u32]| {
        format!("{{\"id\":{},\"name\":\"n{id}\",\"inputs\":{inputs:?},\"bytes\":10,\"cost\":5}}", id + 10)
    };
    let nodes = [
        node(0, &[]),
        node(1, &[10]),
        node(2, &[11]),
        node(3, &[12]),
        node(4, &[13, 12]),
        node(5, &[14, 11]),
        node(6, &[15, 10]),
    ];
    std::fs::write(&graph, format!("{{\"nodes\":[{}],\"outputs\":[16]}}", nodes.join(","))).unwrap();
    let schedule = file("s.txt");
    let o = dtrc(&[
        "--json",
        "plan",
        "--from-graph",
        &graph,
        "--budget-bytes",
        "40",
        "--schedule-out",
        &schedule,
    ])
    .ok()
    .objects()
    .pop()
    .unwrap();
    assert_eq!(o["status"], "ok");
    assert!(o["peak_bytes"].as_u64().unwrap() <= 40, "{o}");
    let ids: Vec<u64> =
        std::fs::read_to_string(&schedule).unwrap().lines().map(|l| l.parse().unwrap()).collect();
    assert!((10..=16).all(|id| ids.contains(&id)), "{ids:?}");
    assert_eq!(ids.len() as u64, o["executions"]);
    let extra = (ids.len() - 7) as f64 * 5.0 / 35.0;
    assert!((o["extra_compute_fraction"].as_f64().unwrap() - extra).abs() < 1e-9, "{o}");
    assert!(o["lower_bound_fraction"].as_f64().unwrap() <= extra + 1e-9, "{o}");
    let small = dtrc(&["--json", "plan", "--from-graph", &graph, "--budget-bytes", "9"]);
    assert_eq!((small.code, small.objects()[0]["status"].as_str()), (2, Some("infeasible-proved")));
    let kept = dtrc(&["--json", "plan", "--from-graph", &graph, "--budget-ratio", "1.0", "--keep-order"])
        .ok()
        .objects()
        .pop()
        .unwrap();
    assert_eq!(
        (&kept["extra_compute_fraction"], &kept["keep_order_bound_fraction"]),
        (&0.0.into(), &0.0.into())
    );
    std::fs::write(&graph, "{").unwrap();
    dtrc(&["plan", "--from-graph", &graph, "--budget-bytes", "9"]).fails(65, &["not JSON"]);
    dtrc(&["plan", "--budget-bytes", "9"]).fails(64, &["--from-graph"]);
}

#[test]
fn the_allocator_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = |n: &str| dir.path().join(n).display().to_string();
    let (csv, out) = (file("i.csv"), file("o.csv"));
    std::fs::write(&csv, "id,lower,upper,size\na,0,2,4\nb,1,3,4\nc,2,4,4\n").unwrap();
    let o = dtrc(&["--json", "offsets", &csv, "--capacity", "8", "-o", &out]).ok().objects().pop().unwrap();
    assert_eq!((&o["status"], &o["height"], &o["lower_bound"]), (&"ok".into(), &8.into(), &8.into()));
    let placed = std::fs::read_to_string(&out).unwrap();
    let offsets: Vec<u64> =
        placed.lines().skip(1).map(|l| l.rsplit(',').next().unwrap().parse().unwrap()).collect();
    assert!(offsets[0].abs_diff(offsets[1]) >= 4 && offsets[1].abs_diff(offsets[2]) >= 4, "{placed}");
    let tight = dtrc(&["--json", "offsets", &csv, "--capacity", "7"]);
    assert_eq!((tight.code, tight.objects()[0]["status"].as_str()), (2, Some("infeasible-proved")));
    std::fs::write(&csv, "id,lower,upper\n").unwrap();
    dtrc(&["offsets", &csv, "--capacity", "7"]).fails(65, &["line 1", "size"]);
    dtrc(&["offsets", &csv, "--capacity", "50%"]).fails(64, &["not a share"]);
}

#[test]
fn the_largest_size_has_a_plan() {
    let Some(model) = tests::data("models/small/mlp.ts_dyn.onnx") else { return };
    let model = model.display().to_string();
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("p.dtrc").display().to_string();
    let fixed = [model.as_str(), "--loss", "cross-entropy", "--work-limit", "20000"];
    let o =
        dtrc(&[&["--json", "estimate"][..], &fixed, &["--max", "batch", "--budget", "64K"]].concat()).ok();
    let o = o.objects().pop().unwrap();
    let n = o["max"].as_i64().unwrap();
    assert!(n > 1 && o["arena_bytes"].as_u64().unwrap() <= 65536 && o["next"]["size"] == n + 1, "{o}");
    let compile = |n: i64| {
        let dim = format!("batch={n}");
        dtrc(&[&["compile"][..], &fixed, &["--budget", "64K", "-o", &plan, "--dim", &dim]].concat())
    };
    compile(n).ok();
    compile(n + 1).fails(2, &["too small"]);
    dtrc(&[&["estimate"][..], &fixed, &["--max", "batch"]].concat()).fails(64, &["--budget"]);
}

/// Positions of this model end at 64, whatever the memory.
#[test]
fn a_size_that_the_model_does_not_take_is_above_the_largest() {
    let Some(model) = tests::data("models/small/bert.ts_loss.onnx") else { return };
    let model = model.display().to_string();
    let max = |dim: &str, bound: &str, budget: &str, format: &[&str]| {
        let search = ["estimate", &model, "--max", dim, "--dim", bound, "--budget", budget];
        dtrc(&[format, &search, &LIMIT].concat())
    };
    let o = max("seq", "batch=1", "300K", &["--json"]).ok().objects().pop().unwrap();
    assert_eq!((&o["max"], &o["next"]["size"]), (&64.into(), &65.into()), "{o}");
    assert!(o["next"]["reason"].as_str().unwrap().contains("65"), "{o}");
    let text = max("seq", "batch=1", "300K", &[]).ok().stdout;
    assert!(text.contains("seq = 65: the model does not take it: "), "{text}");
    // No batch helps where the other size is wrong.
    max("batch", "seq=65", "300K", &[]).fails(65, &["no batch from 1 to ", "broadcast"]);
}

/// Graph JSON of (bytes, cost), a chain in which the last node reads the first one, too.
fn chain(nodes: &[(u64, u64)]) -> String {
    let last = nodes.len() - 1;
    let node = |(i, (bytes, cost)): (usize, &(u64, u64))| {
        let inputs = match i {
            0 => String::new(),
            i if i == last => format!("{},0", i - 1),
            i => format!("{}", i - 1),
        };
        format!(r#"{{"id":{i},"name":"n{i}","inputs":[{inputs}],"bytes":{bytes},"cost":{cost}}}"#)
    };
    let nodes: Vec<String> = nodes.iter().enumerate().map(node).collect();
    format!(r#"{{"nodes":[{}],"outputs":[{last}]}}"#, nodes.join(","))
}

#[test]
fn no_bytes_are_a_number_of_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let status = |args: &[&str], code: i32, status: &str| {
        let o = dtrc(&[&["--json"][..], args].concat());
        assert_eq!(
            (o.code, o.objects()[0]["status"].as_str()),
            (code, Some(status)),
            "{args:?} {}",
            o.stdout
        );
    };
    // Outputs count nothing.
    let none = write("none.json", &chain(&[(0, 3), (9, 4)]));
    let some = write("some.json", &chain(&[(5, 3), (9, 4)]));
    for budget in [["--budget-bytes", "0"], ["--budget-ratio", "0"]] {
        status(&[&["plan", "--from-graph", &none][..], &budget].concat(), 0, "ok");
        status(&[&["plan", "--from-graph", &some][..], &budget].concat(), 2, "infeasible-proved");
    }
    let csv = write("b.csv", "id,lower,upper,size\n0,0,3,4\n");
    status(&["offsets", &csv, "--capacity", "0"], 2, "infeasible-proved");
    let log = write(
        "a.log",
        r#"{"INSTRUCTION":"ANNOTATE","ANNOTATION":"START"}
{"INSTRUCTION":"CONSTANT","NAME":"x"}
{"INSTRUCTION":"MEMORY","NAME":"x","MEMORY":"5"}
"#,
    );
    status(&["simulate", &log, "--budget-bytes", "0"], 0, "oom");
    let mlp = model("mlp_tiny");
    dtrc(&["compile", &mlp, "--budget", "0"]).fails(64, &["no budget"]);
    dtrc(&["compile", &mlp, "--budget", "1M", "--dynamic-pool", "0"]).fails(64, &["at least 256"]);
}

#[test]
fn costs_are_counted_in_any_unit_and_sizes_have_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.json").display().to_string();
    let plan = |graph: &str, more: &[&str]| {
        std::fs::write(&path, graph).unwrap();
        dtrc(&[&["--json", "plan", "--from-graph", &path][..], more].concat())
    };
    // The last node reads the first, which is too large to be kept beside the third.
    let graph = |unit: u64| chain(&[(6, 300 * unit), (4, 500 * unit), (9, 200 * unit), (1, unit)]);
    for unit in [1, 1_000_000_000_000, 18_000_000_000_000_000] {
        let o = plan(&graph(unit), &["--budget-bytes", "16"]).ok().objects().pop().unwrap();
        let extra = o["extra_compute_fraction"].as_f64().unwrap();
        assert!((extra - 300.0 / 1001.0).abs() < 1e-12, "{unit}: {o}");
        assert_eq!(o["gap"].as_f64().map(|gap| gap.abs() < 1e-12), Some(true), "{unit}: {o}");
    }
    let large = plan(&chain(&[(1 << 58, 1), (9, 1)]), &["--budget-bytes", "16"]);
    large.fails(
        65,
        &["g.json", "sizes in bytes add up to 288230376151711745", "288230376151711744", "\"n0\""],
    );
}

#[test]
fn marks_of_byte_order_are_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, format!("\u{feff}{text}")).unwrap();
        path.display().to_string()
    };
    let graph = write("g.json", &chain(&[(5, 3), (9, 4)]));
    dtrc(&["plan", "--from-graph", &graph, "--budget-ratio", "1"]).ok();
    let csv = write("b.csv", "id,lower,upper,size\n0,0,3,4\n");
    dtrc(&["offsets", &csv]).ok();
    let log = write(
        "a.log",
        r#"{"INSTRUCTION":"ANNOTATE","ANNOTATION":"START"}
{"INSTRUCTION":"CALL","NAME":"f","ARGS":[],"RESULT":["x"],"TIME":"1"}
{"INSTRUCTION":"MEMORY","NAME":"x","MEMORY":"5"}
{"INSTRUCTION":"ALIAS","NAME":"x","ALIAS":"-1"}
"#,
    );
    dtrc(&["simulate", &log, "--budget-ratio", "1"]).ok();
    dtrc(&["plan", "--from-log", &log, "--budget-ratio", "1"]).ok();
}
