//! Several programs of a kind: what a validator must refuse, and what changes no bit.

use crate::common::{self, Toy, keep_all, recomputing, run};
use graph::{Bindings, Dim, InputRole, Shape, TensorType};
use plan::{
    Certificate, Dynamic, Guard, Place, Plan, Program, ProgramKind, Rates, plan_numerics, text,
    training_numerics, validate, validate_at,
};

/// A bucket of up to 64 elements, and a dynamic program for all else.
fn bucket() -> Plan {
    let mut p = keep_all();
    p.programs[0].guard.dims = vec![("n".into(), 1, 64)];
    let mut graph = graph::Graph::default();
    let ty = TensorType { dtype: graph::DType::F32, shape: Shape(vec![Dim::symbol("n")]) };
    graph.add_input("x", ty, InputRole::Data);
    p.programs.push(Program {
        kind: ProgramKind::Train,
        guard: Guard::default(),
        inputs: vec![256],
        graph,
        steps: Vec::new(),
        certificate: Certificate { live_peak: 1792, arena: 1792, ..Certificate::default() },
        dynamic: Some(Dynamic {
            recipe: vec![1, 2, 3],
            reason: "n beyond the last bucket".to_owned(),
            pool: 256,
            work: 1536,
            rates: Rates::of(plan::Device::Cpu),
        }),
    });
    hashed(p)
}

fn hashed(mut p: Plan) -> Plan {
    p.numerics = plan_numerics(&p, &Toy);
    p
}

#[track_caller]
fn refused(mut p: Plan, f: impl FnOnce(&mut Plan), what: &str) {
    f(&mut p);
    let e = validate(&hashed(p), &Toy).unwrap_err();
    assert!(e.to_string().contains(what), "{e}");
}

#[test]
fn buckets_are_checked() {
    validate(&bucket(), &Toy).unwrap();
    let bounds = |p: &mut Plan, dims: &[(&str, u64, u64)]| {
        p.programs[0].guard.dims = dims.iter().map(|(n, a, b)| ((*n).into(), *a, *b)).collect();
    };
    refused(bucket(), |p| bounds(p, &[("n", 1, 65)]), "is not the dynamic program's at the guard's bounds");
    refused(bucket(), |p| bounds(p, &[("n", 65, 64)]), "never holds");
    refused(bucket(), |p| bounds(p, &[("n", 1, u64::MAX)]), "never holds");
    refused(bucket(), |p| bounds(p, &[("n", 1, 64), ("n", 1, 64)]), "two bounds");
    refused(bucket(), |p| bounds(p, &[("m", 1, 64), ("n", 1, 64)]), "which no input has");
    refused(bucket(), |p| bounds(p, &[]), "there is a dynamic program of its kind");
    refused(bucket(), |p| drop(p.programs.pop()), "there is no dynamic program of its kind");
    refused(bucket(), |p| p.programs[1].guard.dims.push(("n".into(), 1, 64)), "and yet has a guard");
    refused(bucket(), |p| p.programs.push(p.programs[1].clone()), "second dynamic program");
    refused(bucket(), |p| p.programs.insert(1, p.programs[0].clone()), "never runs");
    // The recipe decides the bits, the bucket does not.
    let fewer = {
        let mut p = bucket();
        p.programs.remove(0);
        p
    };
    assert_eq!(plan_numerics(&fewer, &Toy), bucket().numerics);
    assert_eq!(training_numerics(&fewer, &Toy), training_numerics(&bucket(), &Toy));
    let mut other = bucket();
    other.programs[1].dynamic.as_mut().unwrap().recipe.push(0);
    assert_ne!(plan_numerics(&other, &Toy), bucket().numerics);
}

#[test]
fn an_input_that_follows_from_sizes_needs_a_guard() {
    let constant = |p: &mut Plan| p.programs[0].graph.inputs[1].role = InputRole::Constant;
    let mut p = bucket();
    constant(&mut p);
    validate(&hashed(p), &Toy).unwrap();
    refused(keep_all(), constant, "follows from sizes");
}

#[test]
fn budgets_change_no_bit() {
    let mut p = keep_all();
    p.programs.push(recomputing().programs.remove(0));
    assert_eq!(hashed(p.clone()).numerics, keep_all().numerics);
    let replays = validate(&p, &Toy).unwrap();
    assert_eq!((replays[0].arena, replays[1].arena), (1792, 1280));
    refused(p.clone(), |p| p.programs.swap(0, 1), "needs no more memory");
    let shown = plan::show(&p, &replays);
    assert_eq!(shown.matches("static region").count(), 2);
}

#[test]
fn the_text_and_the_bytes_hold_guards() {
    let mut p = bucket();
    p.programs[0].graph.inputs[1].role = InputRole::Constant;
    let p = hashed(p);
    let full = text::full(&p).unwrap();
    assert!(full.contains("  guard n 1 64\n") && full.contains("constant @ 512"), "{full}");
    assert_eq!(text::parse(&full).unwrap(), p);
    assert_eq!(plan::from_bytes(&plan::to_bytes(&p).unwrap()).unwrap(), p);
    let shown = plan::show(&p, &validate(&p, &Toy).unwrap());
    assert!(
        shown.contains("  where n <= 64: planned at the upper bounds") && shown.contains("dynamic region")
    );
    assert_eq!(p.programs[0].label(), "n <= 64");
    assert_eq!(p.interface(ProgramKind::Train).unwrap().label(), "dynamic");
}

#[test]
fn guards_hold_within_their_bounds() {
    let guard = Guard { dims: vec![("batch".into(), 1, 4), ("seq".into(), 16, 128)] };
    assert_eq!(guard.to_string(), "batch <= 4, 16 <= seq <= 128");
    let sizes = |batch: i64, seq: i64| Bindings::from([("batch".into(), batch), ("seq".into(), seq)]);
    for (batch, seq, holds) in
        [(4, 128, true), (1, 16, true), (5, 16, false), (4, 15, false), (-1, 16, false)]
    {
        assert_eq!(guard.admits(&sizes(batch, seq)), holds, "{batch} {seq}");
    }
    assert!(!guard.admits(&Bindings::from([("batch".into(), 1)])));
    assert!(Guard::default().admits(&Bindings::new()));
}

#[test]
fn planned_steps_run_on_graphs_of_the_same_structure_only() {
    let p = bucket();
    let (program, replay) = validate_at(&p, 0, common::graph(), &Toy).unwrap();
    assert_eq!((program.steps.len(), replay.arena), (p.programs[0].steps.len(), 1792));
    let refused = |g: graph::Graph, what: &str| {
        let e = validate_at(&p, 0, g, &Toy).unwrap_err();
        assert!(e.to_string().contains(what), "{e}");
    };
    let mut g = common::graph();
    g.nodes[2].inputs.swap(0, 1);
    refused(g, "reads or makes other values");
    let mut g = common::graph();
    g.nodes[2].op = "AddRow".into();
    refused(g, "AddRow, for these sizes");
    let mut g = common::graph();
    g.inputs[1].role = InputRole::Step;
    refused(g, "input \"lr\" is another one");
    // A step that has no place for what these sizes need.
    let mut small = p.clone();
    small.programs[0].steps[1] = run(1, Place::New { space: 0, offset: 1024 }, 0, None, &[]);
    assert!(validate_at(&small, 0, common::graph(), &Toy).is_err());
}
