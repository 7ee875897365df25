//! What a person sees of plans that the search finds: `show` of small models at a budget that needs recomputation. A change of the planner
//! shows here as a change of its decisions; accept it (`INSTA_UPDATE=always`) if the figures on the first lines are no worse.

use compiler::{cost::DeviceProfile, dynamic, import, train::Optimizer};
use onnx_models::{BranchFirst, Common};
use ops::Registry;
use plan::{Plan, diff, show, validate};
use tests::tiny;

#[test]
fn searched_plans() {
    let sgd = Optimizer::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    for (model, share) in [("mlp_tiny", 0.9), ("resnet_tiny", 0.6), ("transformer_tiny", 0.8)] {
        let imported = tiny::imported(&format!("{model}.onnx"));
        let plan = tiny::plans(&imported, sgd.clone(), &[share]).remove(0);
        let replays = validate(&plan, &Registry).unwrap();
        insta::assert_snapshot!(model, show(&plan, &replays));
    }
}

/// A plan of what is known only at run time: with the pool that is left of the budget, or one that is given.
fn dynamic_plan(pool: Option<u64>) -> Plan {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("branch_first.onnx");
    let common = Common { batch: 2, dynamic: false, loss: true, seed: 3 };
    let model = BranchFirst { depth: 2, wide: 8 }.build(&common);
    std::fs::write(&path, onnx_models::to_bytes(&model).unwrap()).unwrap();
    let how = import::Options::default();
    let reason = import::import(&path, &how).unwrap_err();
    assert!(reason.is_open());
    let open = import::import_open(&path, &how).unwrap();
    let sgd = Optimizer::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    let train = compiler::train::TrainOptions {
        loss: None,
        output: None,
        label: "target".to_owned(),
        class_axis: None,
        ignore_index: None,
        optimizer: sgd,
        clip_norm: None,
        accumulate: 1,
        trainable: import::trainable::select(&open.graph, &open.candidates, &[], &[]).unwrap(),
        amp: None,
    };
    let request = dynamic::Request {
        model: "branch_first",
        open: &open,
        modes: how.ops,
        train: Some(&train),
        with_inference: true,
        evaluate: None,
        reason: &reason.reason(),
        device: plan::Device::Cpu,
        rates: &DeviceProfile::cpu(),
        weight_hash: &|_| None,
    };
    dynamic::plan(&request, 64 << 10, pool).unwrap()
}

#[test]
fn dynamic_plans() {
    let (whole, part) = (dynamic_plan(None), dynamic_plan(Some(16 << 10)));
    let replays = [&whole, &part].map(|p| validate(p, &Registry).unwrap());
    insta::assert_snapshot!("dynamic", show(&whole, &replays[0]));
    insta::assert_snapshot!("dynamic_pool", show(&part, &replays[1]));
    let both = diff((&whole, &replays[0]), (&part, &replays[1]));
    insta::assert_snapshot!("dynamic_diff", both.to_string());
}
