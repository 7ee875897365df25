//! Buckets: one program a bucket over one state and one arena, on the extents at hand, with the bits of a plan for exactly these.

use compiler::{pipeline::Budget, train::Loss};
use plan::validate_at;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tests::{
    data,
    variants::{Batch, Subject, floats, ints, step, trained},
};

fn bert(seq: u64, seed: u64) -> Batch {
    let mask = vec![1i64; 4 * seq as usize].iter().flat_map(|i| i.to_le_bytes()).collect();
    vec![
        ints("input_ids", &[4, seq], 64, seed),
        ("attention_mask".to_owned(), vec![4, seq], mask),
        ints("target", &[4], 2, seed + 1),
    ]
}

fn small(file: &str) -> Option<Subject> {
    let path = data("models")?.join("small").join(file);
    Some(Subject::new(&path, Some(Loss::CrossEntropy)))
}

/// One step at `sizes` by the plan of buckets and by a plan for exactly these sizes: loss and state to the bit.
fn as_exact(subject: &Subject, buckets: &plan::Plan, dims: &[(&str, i64)], batch: &Batch, label: &str) {
    let mut exact = subject.session(subject.fixed(dims, &[Budget::OfKeepAll(1.0)]));
    let mut ours = subject.session(buckets.clone());
    for n in 1..=2 {
        let (a, b) = (step(&mut exact, batch, n).unwrap(), step(&mut ours, batch, n).unwrap());
        assert_eq!(buckets.programs[b.report.program].label(), label, "{dims:?}: {:?}", b.report.why_dynamic);
        assert_eq!(a.outputs, b.outputs, "{dims:?}");
    }
    let (a, b) = (trained(&exact), trained(&ours));
    // The dynamic program beside the buckets has memory for parameters that the loss does not reach, too.
    for (name, bytes) in &a {
        assert!(b.iter().any(|(n, other)| n == name && other == bytes), "{dims:?}: {name}");
    }
}

#[test]
fn every_length_has_the_bits_of_its_own_plan() {
    for file in ["bert.ts_dyn.onnx", "bert.dy_dyn.onnx"] {
        let Some(subject) = small(file) else { return };
        let plan = subject.open(&[("batch", 4)], &[("seq", &[8, 16])], &[Budget::OfKeepAll(0.8)]);
        for seq in [2u64, 5, 8, 9, 13, 16] {
            let label = if seq <= 8 { "seq <= 8" } else { "seq <= 16" };
            as_exact(&subject, &plan, &[("batch", 4), ("seq", seq as i64)], &bert(seq, seq), label);
        }
        // Beyond the last bucket, and where the graph is another one: the same numbers, another way.
        let plan = subject.open(&[("batch", 4)], &[("seq", &[8, 16])], &[Budget::OfKeepAll(1.0)]);
        for seq in [1u64, 20] {
            as_exact(&subject, &plan, &[("batch", 4), ("seq", seq as i64)], &bert(seq, seq), "dynamic");
        }
    }
}

#[test]
fn several_sizes_make_the_product_of_their_buckets() {
    let Some(subject) = small("gpt2.ts_dyn.onnx") else { return };
    let plan = subject.open(&[], &[("seq", &[6, 12]), ("batch", &[2, 4])], &[Budget::OfKeepAll(1.0)]);
    let labels: Vec<String> = plan.programs.iter().map(|p| p.label()).collect();
    let all =
        ["batch <= 2, seq <= 6", "batch <= 2, seq <= 12", "batch <= 4, seq <= 6", "batch <= 4, seq <= 12"];
    assert_eq!(labels, [&all[..], &["dynamic"]].concat());
    for (batch, seq, label) in [(2u64, 4u64, all[0]), (2, 12, all[1]), (3, 5, all[2]), (4, 9, all[3])] {
        let data = vec![ints("input_ids", &[batch, seq], 128, seq), ints("target", &[batch, seq], 128, 3)];
        as_exact(&subject, &plan, &[("batch", batch as i64), ("seq", seq as i64)], &data, label);
    }
}

fn rows_at_hand(file: &str, batch: &Batch, dims: &[(&str, i64)], bounds: &[(&str, &[i64])], label: &str) {
    let Some(subject) = small(file) else { return };
    let plan = subject.open(&[], bounds, &[Budget::OfKeepAll(1.0)]);
    as_exact(&subject, &plan, dims, batch, label);
}

#[test]
fn convolutions_statistics_and_recurrence_run_on_the_rows_at_hand() {
    let batch = vec![floats("x", &[3, 1, 700], 1), ints("target", &[3], 6, 2)];
    let bounds: [(&str, &[i64]); 2] = [("batch", &[4]), ("samples", &[800])];
    let dims = [("batch", 3), ("samples", 700)];
    rows_at_hand("wav2vec.dy_dyn.onnx", &batch, &dims, &bounds, "batch <= 4, samples <= 800");
    let batch = vec![floats("x", &[3, 3, 64, 64], 1), ints("target", &[3], 10, 2)];
    rows_at_hand("resnet18.ts_dyn.onnx", &batch, &[("batch", 3)], &[("batch", &[4])], "batch <= 4");
    let batch = vec![ints("ids", &[2, 9], 30, 1), ints("target", &[2], 5, 2)];
    let bounds: [(&str, &[i64]); 2] = [("batch", &[4]), ("seq", &[12])];
    rows_at_hand(
        "lstm_cls.ts_dyn.onnx",
        &batch,
        &[("batch", 2), ("seq", 9)],
        &bounds,
        "batch <= 4, seq <= 12",
    );
}

/// 200 random lengths in any order, with the state going on: the bits of online DTR with all the memory it wants, and never more than the
/// arena, which the validator has checked every one of these programs against.
#[test]
fn two_hundred_random_lengths_stay_within_the_arena() {
    let Some(subject) = small("bert.ts_dyn.onnx") else { return };
    let plan = subject.open(&[("batch", 4)], &[("seq", &[8, 16, 24])], &[Budget::OfKeepAll(0.7)]);
    let free = subject.open(&[("batch", 4)], &[], &[Budget::Bytes(1 << 28)]);
    assert!(plan.arena < free.arena && plan.arena <= plan.budget);
    let mut ours = subject.session(plan.clone());
    let mut reference = subject.session(free);
    let mut rng = StdRng::seed_from_u64(7);
    let mut ran = vec![0u32; plan.programs.len()];
    for n in 1..=200 {
        let seq = rng.random_range(1..=24);
        let batch = bert(seq, n);
        let (a, b) =
            (step(&mut reference, &batch, n as i64).unwrap(), step(&mut ours, &batch, n as i64).unwrap());
        assert_eq!(a.outputs, b.outputs, "step {n}, length {seq}");
        ran[b.report.program] += 1;
        let in_bucket = plan.programs[b.report.program].dynamic.is_none();
        assert_eq!(in_bucket, b.report.why_dynamic.is_none());
        assert!(in_bucket || seq == 1, "length {seq}: {:?}", b.report.why_dynamic);
        if let Some(d) = b.report.dynamic {
            assert!(d.pool.peak <= plan.arena - plan.state_bytes);
        }
    }
    assert!(ran.iter().all(|n| *n > 0), "{ran:?}");
    assert!(trained(&ours) == trained(&reference));
}

/// Lengths and budgets that both change at every step: the first program that fits both runs, and no bit changes.
#[test]
fn buckets_and_budgets_change_together() {
    let Some(subject) = small("bert.ts_dyn.onnx") else { return };
    let budgets = [Budget::OfKeepAll(1.0), Budget::OfKeepAll(0.7)];
    let plan = subject.open(&[("batch", 4)], &[("seq", &[8, 16])], &budgets);
    let arenas: Vec<u64> = plan.programs.iter().map(|p| p.certificate.arena).collect();
    let planned = plan.programs.len() - 1;
    assert!(planned >= 3 && plan.programs[planned].dynamic.is_some());
    let free = subject.open(&[("batch", 4)], &[], &[Budget::Bytes(1 << 28)]);
    let (mut ours, mut reference) = (subject.session(plan.clone()), subject.session(free));
    let mut rng = StdRng::seed_from_u64(3);
    let mut ran = vec![0u32; planned];
    for n in 1..=60u64 {
        let seq = rng.random_range(2..=16);
        let budget = arenas[rng.random_range(0..planned)];
        ours.set_budget(budget).unwrap();
        let batch = bert(seq, n);
        let a = step(&mut reference, &batch, n as i64).unwrap();
        let sizes = graph::Bindings::from([("seq".into(), seq as i64)]);
        let first = (0..planned).find(|i| plan.programs[*i].guard.admits(&sizes) && arenas[*i] <= budget);
        let b = match step(&mut ours, &batch, n as i64) {
            Ok(b) => b,
            // A long batch may need more than a short one's arena; the step did nothing then.
            Err(e) => {
                assert!(first.is_none() && matches!(e, runtime::RuntimeError::PoolFull(_)), "{e}");
                ours.set_budget(plan.arena).unwrap();
                step(&mut ours, &batch, n as i64).unwrap()
            }
        };
        assert_eq!(a.outputs, b.outputs, "step {n}, length {seq}, budget {budget}");
        if let Some(first) = first {
            assert_eq!(b.report.program, first, "length {seq}, budget {budget}");
            ran[first] += 1;
        }
    }
    assert!(ran.iter().all(|n| *n > 0), "{ran:?}");
    assert!(trained(&ours) == trained(&reference));
}

#[test]
fn a_graph_of_other_sizes_is_checked_like_a_plan() {
    let Some(subject) = small("bert.ts_dyn.onnx") else { return };
    let plan = subject.open(&[("batch", 4)], &[("seq", &[8, 16])], &[Budget::OfKeepAll(1.0)]);
    let graph = |i: usize| plan.programs[i].graph.clone();
    // The smaller bucket's graph runs at the larger one's offsets, but not the other way round.
    validate_at(&plan, 1, graph(0), &ops::Registry).unwrap();
    let e = validate_at(&plan, 0, graph(1), &ops::Registry).unwrap_err();
    assert!(e.what.contains("overlap") || e.what.contains("outside") || e.what.contains("beyond"), "{e}");
    let mut other = graph(0);
    other.nodes[0].op = "Neg".into();
    assert!(validate_at(&plan, 0, other, &ops::Registry).is_err());
    let mut fewer = graph(0);
    fewer.outputs.clear();
    assert!(validate_at(&plan, 0, fewer, &ops::Registry).unwrap_err().what.contains("outputs"));
}
