//! Random small models through everything: every budget that is planned passes the validator and gives the bits of the interpreter.

use compiler::{pipeline::programs, train::Optimizer};
use onnx_models::{Common, RandomMovement};
use ops::Registry;
use plan::validate;
use std::collections::BTreeMap;
use tests::{initial_state, inputs, tiny};

/// Loss and state after one step of the training graph, node by node as it stands.
fn interpreted(imported: &compiler::import::Imported, data: &[(String, Vec<u8>)]) -> Vec<Vec<u8>> {
    let options = tiny::train_options(imported, sgd());
    let (graphs, _) = programs(&imported.graph, Some(&options), None).unwrap();
    let g = &graphs[0].1;
    let literal = |(name, bytes): &(String, Vec<u8>)| {
        let v = g.inputs.iter().map(|i| i.value).find(|v| *g.value(*v).name == **name).unwrap();
        let dims = g.ty(v).shape.fixed().unwrap();
        let dims = dims.into_iter().map(|d| d as u64).collect();
        (format!("in:{name}"), graph::Literal::new(g.ty(v).dtype, dims, bytes.clone()).unwrap())
    };
    let io: BTreeMap<String, graph::Literal> = data.iter().map(literal).collect();
    let mut given = inputs(g, &io, 0.01, 1);
    given.extend(initial_state(g, &imported.weights));
    let all = ops::cpu::interpret(g, &given).unwrap();
    let mut states: Vec<_> = g.states.iter().map(|s| (s.name.clone(), s.output.unwrap_or(s.input))).collect();
    states.sort();
    let made = std::iter::once(g.outputs[0]).chain(states.into_iter().map(|(_, v)| v));
    made.map(|v| all.get(&v).or_else(|| given.get(&v)).unwrap().bytes().to_vec()).collect()
}

fn sgd() -> Optimizer {
    Optimizer::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 }
}

#[test]
fn every_budget_gives_the_bits_of_the_interpreter() {
    let mut recomputed = 0;
    for seed in 0..200 {
        let common = Common { batch: 1 + (seed % 3) as u32 * 40, dynamic: false, loss: true, seed };
        let imported = tiny::written(&RandomMovement { seed }.build(&common));
        let plans = tiny::plans(&imported, sgd(), &[1.0, 0.8, 0.1]);
        let data = tiny::data(&plans[0]);
        let expected = interpreted(&imported, &data);
        for (i, plan) in plans.iter().enumerate() {
            let replays = validate(plan, &Registry).unwrap_or_else(|e| panic!("seed {seed}, plan {i}: {e}"));
            recomputed += usize::from(!replays[0].recomputed.is_empty());
            let got = tiny::step(plan, &imported.weights, &data);
            let got = got.unwrap_or_else(|e| panic!("seed {seed}, plan {i}: {e}"));
            assert!(got == expected, "seed {seed}, plan {i}: other bits than the interpreter's");
        }
    }
    assert!(recomputed > 40, "only {recomputed} plans recompute");
}
