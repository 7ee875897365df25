//! Dynamic programs in pools of every size: the same bits or a refusal that leaves the state alone and names a pool that does.

use onnx_models::{BranchFirst, Common, LoopLstm, ModelProto, RandomProgram, Springs, TreeLstm};
use onnx_protobuf::{NodeProto, TensorProto};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tests::written::{Array, floats, ints, least, session, state, step};

fn common(dynamic: bool) -> Common {
    Common { batch: 2, dynamic, loss: true, seed: 3 }
}

fn lstm(batch: u64) -> Vec<Array> {
    let target: Vec<i64> = (0..batch as i64).map(|i| i % 5).collect();
    vec![("x", vec![batch, 12, 4], floats(batch * 48, batch)), ("target", vec![batch], ints(&target))]
}

fn lstm_model() -> ModelProto {
    LoopLstm { layers: 2, inputs: 4, width: 8, steps: 12, classes: 5 }.build(&common(true))
}

/// A tree of 15 nodes, leaves first.
fn tree() -> (ModelProto, Vec<Array>) {
    let left: Vec<i64> = (0..15).map(|n: i64| if n < 8 { -1 } else { 2 * (n - 8) }).collect();
    let right: Vec<i64> = (0..15).map(|n: i64| if n < 8 { -1 } else { 2 * (n - 8) + 1 }).collect();
    let data = vec![
        ("x", vec![15, 1, 4], floats(60, 1)),
        ("left", vec![15], ints(&left)),
        ("right", vec![15], ints(&right)),
        ("target", vec![1], ints(&[1])),
    ];
    (TreeLstm { nodes: 15, inputs: 4, width: 16, classes: 3 }.build(&common(false)), data)
}

#[test]
fn the_pool_that_a_refusal_names_is_enough() {
    let springs = Springs { masses: 64, steps: 60 }.build(&common(false));
    let target: Vec<Array> = vec![("target", vec![2, 64], floats(128, 1))];
    let (tree, leaves) = tree();
    for (name, model, data) in
        [("springs", springs, target), ("lstm", lstm_model(), lstm(3)), ("tree", tree, leaves)]
    {
        let mut roomy = session(&model, 1 << 26);
        let (bits, free) = step(&mut roomy, &data, 1).unwrap();
        let (mut pool, mut named) = (free.pool.peak, None);
        while named.is_none() {
            pool = pool * 2 / 3 / 256 * 256;
            let mut s = session(&model, pool);
            let before = state(&s);
            if let Err(refusal) = step(&mut s, &data, 1) {
                assert!(state(&s) == before, "{name}: a refused step has changed the state");
                if pool < 8 << 10 {
                    named = Some(least(&refusal));
                } else {
                    named = least(&refusal).map(Some);
                }
            }
        }
        let Some(least) = named.flatten() else { panic!("{name}: no refusal names a pool") };
        let mut s = session(&model, least);
        let (tight, report) = step(&mut s, &data, 1).unwrap_or_else(|e| panic!("{name} at {least}: {e}"));
        assert_eq!(tight, bits, "{name} at {least}");
        assert!(report.pool.peak <= least && least < free.pool.peak, "{name}: {least} of {}", free.pool.peak);
        assert!(state(&s) == state(&roomy), "{name}: the trained state differs at {least}");
    }
}

/// Shapes in any order: within the pool, and the bits of a session that has room.
#[test]
fn shapes_come_in_any_order() {
    let model = lstm_model();
    let largest = step(&mut session(&model, 1 << 26), &lstm(12), 1).unwrap().1.pool.peak;
    let pool = plan::align(largest * 6 / 10);
    let (mut roomy, mut tight) = (session(&model, 1 << 26), session(&model, pool));
    let mut random = StdRng::seed_from_u64(5);
    let mut evicted = 0;
    for number in 1..=200 {
        let data = lstm(random.random_range(1..=12));
        let (want, _) = step(&mut roomy, &data, number).unwrap();
        let (got, report) = step(&mut tight, &data, number).unwrap();
        assert_eq!(got, want, "step {number} of shape {:?}", data[0].1);
        assert!(report.pool.peak <= pool);
        evicted += report.evictions;
    }
    assert!(evicted > 0, "the pool was never short");
    assert!(state(&roomy) == state(&tight));
}

#[test]
fn random_programs_have_the_same_bits_or_a_clean_refusal() {
    let (mut same, mut refused, mut recomputed) = (0, 0, 0);
    for seed in 0..60 {
        let model = RandomProgram { seed }.build(&common(true));
        let data: Vec<Vec<Array>> =
            (1..=3).map(|i| vec![("x", vec![4 * i, 8], floats(32 * i, seed ^ i))]).collect();
        let mut roomy = session(&model, 1 << 24);
        let Ok(first) = step(&mut roomy, &data[0], 1) else { continue };
        let mut free = vec![(first, state(&roomy))];
        for (i, d) in data.iter().enumerate().skip(1) {
            let r = step(&mut roomy, d, 1 + i as i64).unwrap_or_else(|e| panic!("{seed}: {e}"));
            free.push((r, state(&roomy)));
        }
        let peak = free.iter().map(|((_, r), _)| r.pool.peak).max().unwrap_or(0);
        for percent in [100, 80, 60, 45, 30] {
            let mut s = session(&model, plan::align(peak * percent / 100));
            for (i, d) in data.iter().enumerate() {
                let before = state(&s);
                match step(&mut s, d, 1 + i as i64) {
                    Ok((bits, report)) => {
                        let ((want, _), after) = &free[i];
                        assert_eq!(bits, *want, "program {seed} at {percent} %, step {i}");
                        assert!(state(&s) == *after, "program {seed} at {percent} %: the state differs");
                        same += 1;
                        recomputed += u64::from(report.remats > 0);
                    }
                    Err(refusal) => {
                        assert!(refusal.contains("out of memory"), "program {seed}: {refusal}");
                        assert!(state(&s) == before, "program {seed}: a refused step has changed the state");
                        refused += 1;
                        break;
                    }
                }
            }
        }
    }
    assert!(
        same > 300 && recomputed > 50 && refused > 10,
        "{same} same, {recomputed} recomputed, {refused} refused"
    );
}

/// While the static middle is at its peak the tape of the branch before it has gone, but for what fits beside.
#[test]
fn the_tape_of_a_branch_makes_room_for_what_comes_after_it() {
    let model = |depth, wide| BranchFirst { depth, wide }.build(&Common { batch: 64, ..common(true) });
    for sign in [1.0f32, -1.0] {
        // The deeper branch, then the other one.
        let x = (0..64 * 16).flat_map(|i| (sign * (0.1 + (i % 7) as f32 / 10.0)).to_le_bytes()).collect();
        let target: Vec<i64> = (0..64).map(|i| i % 4).collect();
        let data = vec![("x", vec![64, 16], x), ("target", vec![64], ints(&target))];
        let peak = |model: &ModelProto| step(&mut session(model, 1 << 26), &data, 1).unwrap().1.pool.peak;
        let (branch, middle) = (model(24, 0), model(0, 256));
        let tape = peak(&branch);
        let refusal = step(&mut session(&middle, 4096), &data, 1).unwrap_err();
        let least = least(&refusal).unwrap_or_else(|| panic!("{refusal}"));
        assert!(least <= peak(&middle));
        // Less than both beside each other take, even if all that can go of the middle has gone.
        let pool = plan::align(least + tape / 3);
        assert!(pool < least + tape / 2 && pool < peak(&model(24, 256)));
        let (mut roomy, mut tight) = (session(&model(24, 256), 1 << 26), session(&model(24, 256), pool));
        for number in 1..=2 {
            let (want, _) = step(&mut roomy, &data, number).unwrap();
            let (got, report) = step(&mut tight, &data, number).unwrap_or_else(|e| panic!("{pool}: {e}"));
            assert_eq!(got, want);
            assert!(report.pool.peak <= pool && report.evictions > 0 && report.remats > 0);
            println!("tape {tape}, middle {least} to {}: pool {pool}, {report:?}", peak(&middle));
        }
        assert!(state(&roomy) == state(&tight));
    }
}

/// A simulation that computes in every step whether to go on: long before its end is known the pool is full, and more ops have run than
/// exact neighbourhoods are kept for.
#[test]
fn a_long_loop_that_decides_step_by_step_runs_in_little() {
    let node = |op: &str, inputs: [&str; 2], output: &str| NodeProto {
        op_type: op.to_owned(),
        name: output.to_owned(),
        input: inputs.iter().filter(|i| !i.is_empty()).map(|i| (*i).to_owned()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    };
    let mut model = Springs { masses: 4, steps: 500 }.build(&common(false));
    let graph = model.graph.as_mut().unwrap();
    graph.initializer.push(TensorProto {
        name: "yes".to_owned(),
        data_type: 9,
        raw_data: vec![1],
        ..TensorProto::default()
    });
    let all = graph.node.iter_mut().find(|n| n.op_type == "Loop").unwrap();
    all.input[1] = "yes".to_owned();
    let body = all.attribute.iter_mut().find_map(|a| a.g.as_mut()).unwrap();
    body.node.retain(|n| n.output != ["go_next"]);
    body.node.push(node("ReduceMax", ["x", ""], "far"));
    body.node.push(node("Equal", ["far", "far"], "same"));
    body.node.push(node("Squeeze", ["same", ""], "go_next"));
    let data: Vec<Array> = vec![("target", vec![2, 4], floats(8, 1))];
    let mut roomy = session(&model, 1 << 26);
    let (bits, free) = step(&mut roomy, &data, 1).unwrap();
    assert!(free.nodes > 10_000, "{free:?}");
    let pool = plan::align(free.pool.peak / 4);
    let mut tight = session(&model, pool);
    let (got, report) = step(&mut tight, &data, 1).unwrap_or_else(|e| panic!("{pool}: {e}"));
    println!("{} of {} bytes: {report:?}", pool, free.pool.peak);
    assert_eq!(got, bits);
    assert!(report.pool.peak <= pool && report.evictions > 0 && state(&tight) == state(&roomy));
    // What a refusal names does, here too.
    let mut small = session(&model, 4096);
    let refusal = step(&mut small, &data, 1).unwrap_err();
    let named = least(&refusal).unwrap_or_else(|| panic!("{refusal}"));
    let mut again = session(&model, named);
    assert_eq!(step(&mut again, &data, 1).unwrap_or_else(|e| panic!("{named}: {e}")).0, bits);
}
