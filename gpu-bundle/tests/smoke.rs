//! The part `smoke` on the simulated driver: what the bundle does on a machine with a GPU, as far as it can be done without one.

use gpu_bundle::{
    Bundle,
    device::On,
    part::{Clock, State},
    run, table,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A bundle's folder with mlp in it, or `None` after saying loudly that the test is skipped.
fn bundle() -> Option<(tempfile::TempDir, Bundle)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let on = On::Sim { folder: root.join("target/cuda-host"), sources: Some(root.join("ops/src")) };
    let (models, works) = (tests::data("models")?, on.open());
    if let Err(e) = works {
        test_support::skipped(&e.to_string());
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let copy = |file: &str| {
        let to: PathBuf = dir.path().join("models").join(file);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(to, fs::read(models.join(file)).unwrap()).unwrap();
    };
    for file in ["small/mlp.ts_loss.onnx", "small/act_while.ts_loss.onnx"] {
        copy(file);
    }
    for model in ["mlp", "act_while"] {
        copy(&format!("reference/{model}.io.npz"));
        copy(&format!("reference/{model}.ref.json"));
    }
    let folder = dir.path().to_owned();
    Some((dir, Bundle { folder, on }))
}

#[test]
fn smoke_runs_on_the_simulated_driver_and_goes_on_where_it_stopped() {
    let Some((_dir, bundle)) = bundle() else { return };
    let none = run(&bundle, "smoke", None, Clock::seconds(0)).unwrap();
    assert!(none.results.items.is_empty() && none.results.left.len() == 10, "{:?}", none.results.left);
    let part = run(&bundle, "smoke", None, Clock::seconds(600)).unwrap();
    for (name, item) in &part.results.items {
        assert_eq!(item.state, State::Done, "{name}: {}", item.note);
    }
    let items = &part.results.items;
    assert_eq!((items.len(), part.failed(), part.results.left.len()), (10, 0, 0));
    assert!(items["MatMul"].figures["cases"].as_u64().unwrap() >= 4);
    assert_eq!(items["losses: mlp"].figures["losses"].as_array().unwrap().len(), 6);
    assert!(
        items["budgets: mlp"].figures[1]["arena_bytes"].as_u64()
            < items["budgets: mlp"].figures[0]["arena_bytes"].as_u64()
    );
    let memory = &items["memory: mlp"].figures;
    // Kernels take memory when they first run, which is while the plan is loaded.
    assert_eq!(memory["taken_in_steps_bytes"], 0);
    assert!(memory["modules_and_graphs_bytes"].as_u64().unwrap() > 0, "{memory}");
    assert!(memory["taken_for_arena_bytes"].as_u64() >= memory["plan_arena_bytes"].as_u64());
    let speed = &items["speed: mlp"].figures;
    assert!(
        speed["median_seconds"].as_f64().unwrap() > 0.0 && speed["predicted_seconds"].as_f64().unwrap() > 0.0
    );
    assert!(
        speed["below_floor"].as_array().unwrap().len() > 3,
        "nothing simulated is near a GPU's bandwidth: {speed}"
    );
    // Done is done.
    let again = run(&bundle, "smoke", None, Clock::seconds(0)).unwrap();
    let kept = |p: &gpu_bundle::part::Part| -> Vec<(String, State, u32)> {
        p.results.items.iter().map(|(n, i)| (n.clone(), i.state, i.tries)).collect()
    };
    assert_eq!(kept(&again), kept(&part));
    assert_eq!(again.results.items["speed: mlp"].figures["arena_bytes"], speed["arena_bytes"]);
    let text = table::table(&table::all(&bundle.folder).unwrap());
    assert!(
        text.contains("| smoke | 10 | 0 | 0 | 0 | 0 |") && text.contains("| speed-gpt2 | | | | | not run |"),
        "{text}"
    );
}

/// What cannot run says so in its result.
#[test]
fn what_is_not_run_says_why() {
    let Some((_dir, bundle)) = bundle() else { return };
    let part = run(&bundle, "losses", None, Clock::seconds(600)).unwrap();
    let open = &part.results.items["act_while"];
    assert!(open.state == State::NotRun && open.note.contains("dynamic"), "{open:?}");
    assert!(run(&bundle, "speed", None, Clock::seconds(1)).err().unwrap().contains("resnet50"));
    assert!(run(&bundle, "spede", None, Clock::seconds(1)).err().unwrap().contains("there are smoke"));
}

#[test]
fn the_script_for_pytorch_reads_its_arguments() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/torch_step.py");
    let out = std::process::Command::new("python3").arg(script).args(["resnet51", "--batch", "1"]).output();
    let Ok(out) = out else {
        test_support::skipped("there is no python3");
        return;
    };
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("invalid choice: 'resnet51'"));
}
