//! With its sizes bound, nothing is known only at run time in a model without control flow.

use compiler::{
    cost::{CostModel, DeviceProfile},
    import,
    pipeline::{Budget, Request, plan_programs, programs},
    planner::Options,
};
use plan::{Device, show, validate};
use tests::{
    data,
    reference::{OPEN, Reference, STATIC, dims_of, files, options, sgd},
};

#[test]
fn a_model_without_control_flow_is_one_static_region() {
    let Some(root) = data("models") else { return };
    let costs = CostModel::estimated(DeviceProfile::cpu());
    // Which plan it is does not matter here.
    let planner = Options { work: Some(1), ..Options::default() };
    let request = Request {
        model: "test",
        accumulate: 1,
        device: Device::Cpu,
        weight_hash: &|_| None,
        costs: &costs,
        planner: &planner,
    };
    let all = std::fs::read_dir(root.join("small")).unwrap().count();
    let mut done = 0;
    for (model, file) in files(&root) {
        if OPEN.contains(&model.as_str()) {
            done += 1;
            continue;
        }
        let reference = Reference::load(&root, &model);
        let path = root.join("small").join(&file);
        let how = import::Options { dims: dims_of(&path, &reference.io), ..import::Options::default() };
        // The import that walks nothing at run time.
        let imported = import::import(&path, &how).unwrap_or_else(|e| panic!("{file}: {e}"));
        let train = options(&imported, &reference, &file, sgd());
        let (graphs, _) = programs(&imported.graph, Some(&train), None).unwrap_or_else(|e| panic!("{e}"));
        let plan = plan_programs(graphs, Budget::OfKeepAll(1.0), &request);
        let plan = plan.unwrap_or_else(|e| panic!("{file}: {e}")).plan;
        let text = show(&plan, &validate(&plan, &ops::Registry).unwrap());
        assert_eq!(text.matches("static region {").count(), 1, "{file}: {text}");
        assert!(!text.contains("dynamic"), "{file}: {text}");
        done += 1;
    }
    // Every file of the folder is of a model that is known here.
    assert!(done == all && STATIC.len() > 10, "{done} of {all}");
}
