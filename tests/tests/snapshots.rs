//! What a person sees of plans that the search finds: `show` of small models at a budget that needs recomputation. A change of the planner
//! shows here as a change of its decisions; accept it (`INSTA_UPDATE=always`) if the figures on the first lines are no worse.

use compiler::train::Optimizer;
use ops::Registry;
use plan::{show, validate};
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
