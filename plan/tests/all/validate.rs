//! What a validator must refuse, rule by rule, on plans that are right but for one thing.

use crate::common::{Toy, at, keep_all, plan, recomputing, run, vector};
use graph::{Attrs, DType, Dim, Graph, Init, InputRole, Literal, NodeId, StateKind, TensorType, ValueId};
use plan::{Place, Plan, ProgramKind, Run, Step, from_bytes, numerics, to_bytes, validate};

/// The plan with the numerics hash of its own programs.
fn hashed(mut p: Plan) -> Plan {
    let programs: Vec<_> = p.programs.iter().map(|p| (p.kind, &p.graph, p.dynamic.as_ref())).collect();
    p.numerics = numerics(p.device, p.accumulate, programs, &Toy);
    p
}

#[track_caller]
fn refused(p: Plan, what: &str) {
    let e = validate(&hashed(p), &Toy).unwrap_err();
    assert!(e.to_string().contains(what), "{e}");
}

fn edited(mut p: Plan, f: impl FnOnce(&mut Plan)) -> Plan {
    f(&mut p);
    p
}

fn step(p: &mut Plan, i: usize) -> &mut Run {
    match &mut p.programs[0].steps[i] {
        Step::Run(r) => r,
        other => panic!("{other:?}"),
    }
}

#[test]
fn right_plans_are_accepted() {
    assert_eq!(validate(&keep_all(), &Toy).unwrap()[0].live, [1024, 1792, 1536, 1280, 1024]);
    assert_eq!(validate(&recomputing(), &Toy).unwrap()[0].recomputed, [2]);
}

#[test]
fn steps_are_checked() {
    refused(edited(keep_all(), |p| step(p, 0).queue = 1), "only queue 0");
    refused(edited(keep_all(), |p| step(p, 0).time_ns += 1), "7500 ns, the executions take 7501");
    refused(edited(keep_all(), |p| step(p, 0).implementation = 1), "no such implementation");
    refused(edited(keep_all(), |p| step(p, 0).node = NodeId(9)), "does not exist");
    refused(edited(keep_all(), |p| step(p, 1).workspace = None), "the workspace is not");
    refused(edited(keep_all(), |p| step(p, 1).workspace = Some(u64::MAX - 255)), "outside of the arena");
    refused(edited(keep_all(), |p| step(p, 1).workspace = Some(1024)), "overlap");
    refused(edited(keep_all(), |p| step(p, 2).drops = vec![ValueId(4), ValueId(3)]), "not in the order");
    refused(edited(keep_all(), |p| step(p, 2).drops = vec![ValueId(3), ValueId(3)]), "not in the order");
    refused(edited(keep_all(), |p| step(p, 2).drops = vec![ValueId(99)]), "does not exist");
    refused(edited(keep_all(), |p| step(p, 4).drops.push(ValueId(2))), "not in the order");
    refused(edited(keep_all(), |p| step(p, 1).drops.push(ValueId(2))), "drops the state");
    refused(edited(keep_all(), |p| step(p, 4).drops = vec![ValueId(5)]), "not live at the end");
    refused(edited(keep_all(), |p| step(p, 1).outputs.clear()), "the number of places");
    refused(edited(keep_all(), |p| step(p, 1).outputs[0] = at(1000)), "not a multiple of 256");
    refused(edited(keep_all(), |p| step(p, 4).outputs[0] = at(1536)), "a view or a commit");
    refused(edited(keep_all(), |p| step(p, 0).outputs[0] = Place::Overwrite { input: 1 }), "cannot take");
    refused(edited(keep_all(), |p| step(p, 0).outputs[0] = Place::Overwrite { input: 7 }), "may not");
    refused(edited(recomputing(), |p| step(p, 1).drops.clear()), "still read");
    refused(edited(keep_all(), |p| p.programs[0].steps.push(Step::Wait { queue: 0, on: 1 })), "wait");
}

#[test]
fn the_old_version_is_dead_after_the_commit() {
    // Everything that the late step needs is live but the old weight.
    let late = edited(keep_all(), |p| {
        step(p, 3).drops.clear();
        p.programs[0].steps.push(run(0, at(768), 0, None, &[0, 3]));
    });
    refused(late, "old version of a committed state");
    let output = edited(keep_all(), |p| p.programs[0].graph.outputs.push(ValueId(2)));
    refused(output, "old version of a committed state");
    let twice = edited(keep_all(), |p| {
        step(p, 4).drops.clear();
        let again = p.programs[0].steps[4].clone();
        p.programs[0].steps.push(again);
    });
    refused(twice, "runs twice");
    refused(edited(keep_all(), |p| drop(p.programs[0].steps.pop())), "not committed exactly once");
}

#[test]
fn nothing_refuses_its_data_after_a_commit() {
    // The last step looks up rows of `c` by the indices `i`, behind the commit; `before` puts another look-up in front of it.
    let looking = |before: bool| {
        let mut p = keep_all();
        let g = &mut p.programs[0].graph;
        let i = g.add_input("i", TensorType::new(DType::I64, &[32u64][..]), InputRole::Data);
        let mut look = |name: &str| {
            let inputs = vec![Some(ValueId(5)), Some(i)];
            let n = g.add_node(name, "Look", Attrs::new(), inputs, vec![(name.into(), vector())]);
            (n.0, g.node(n).outputs[0])
        };
        let (first, late) = (look("first"), look("late"));
        g.outputs.extend([first.1, late.1]);
        p.programs[0].inputs.push(0x1200);
        let at_step = if before { 4 } else { 5 };
        p.programs[0].steps.insert(at_step, run(first.0, at(0x1000), 0, None, &[]));
        p.programs[0].steps.push(run(late.0, at(0x1100), 0, None, &[]));
        (p.arena, p.budget) = (0x1300, 0x1300);
        let c = &mut p.programs[0].certificate;
        c.arena = 0x1300;
        c.live_peak = 2048;
        c.time_ns += 2 * 1500;
        hashed(p)
    };
    refused(looking(false), "may refuse its data, but runs after a commit");
    if let Err(e) = validate(&looking(true), &Toy) {
        panic!("{e}");
    }
}

#[test]
fn the_state_section_is_checked() {
    refused(edited(keep_all(), |p| p.state[0].offset = 256), "lies outside of the state section");
    refused(edited(keep_all(), |p| p.state[0].offset = 1), "lies outside of the state section");
    refused(edited(keep_all(), |p| p.state[0].init = Init::Zeros), "first elements");
    refused(edited(keep_all(), |p| p.state[0].kind = StateKind::Frozen), "is Parameter, not Frozen");
    let mut entry = keep_all().state[0].clone();
    let twice = edited(keep_all(), |p| {
        p.state_bytes = 512;
        entry.offset = 256;
        p.state.push(entry.clone());
    });
    refused(twice, "two states have the name");
    let orphan = edited(keep_all(), |p| {
        p.state_bytes = 512;
        entry.name = "other".into();
        p.state.push(entry);
    });
    refused(orphan, "is of no program");
    let long = edited(keep_all(), |p| p.state[0].init = Init::Literal(Literal::ints(&[0; 1000])));
    refused(long, "elements of another type");
    refused(edited(keep_all(), |p| p.state_bytes = 4096), "larger than the arena");
}

#[test]
fn the_header_is_checked() {
    refused(edited(keep_all(), |p| p.arena = 4096), "larger than the budget");
    refused(edited(keep_all(), |p| p.accumulate = 0), "0 parts");
    refused(edited(keep_all(), |p| p.accumulate = 2), "2 parts");
    refused(edited(keep_all(), |p| p.programs[0].kind = ProgramKind::Last), "1 parts");
    refused(edited(keep_all(), |p| p.programs.clear()), "no program");
    refused(edited(keep_all(), |p| p.programs[0].inputs.push(0)), "number of input offsets");
    refused(edited(keep_all(), |p| p.programs[0].inputs[0] = 0), "outside of the arena's free part");
    refused(edited(keep_all(), |p| p.programs[0].certificate.live_peak += 256), "the certificate says");
    let other = edited(keep_all(), |p| p.numerics[5] ^= 1);
    assert!(validate(&other, &Toy).unwrap_err().what.contains("numerics"));
}

#[test]
fn graphs_that_define_a_value_twice_are_refused() {
    refused(edited(keep_all(), |p| p.programs[0].graph.states[0].input = ValueId(0)), "does not point back");
    refused(edited(keep_all(), |p| p.programs[0].graph.inputs[1].value = ValueId(0)), "does not point back");
    let twice = edited(keep_all(), |p| {
        let input = p.programs[0].graph.inputs[0].clone();
        p.programs[0].graph.inputs.push(input);
    });
    refused(twice, "is listed as an input");
    let twice = edited(keep_all(), |p| {
        let g = &mut p.programs[0].graph;
        let mut s = g.states[0].clone();
        s.name = "other".into();
        g.states.push(s);
    });
    refused(twice, "is not its old version");
}

#[test]
fn sizes_must_be_known_and_small_enough() {
    for d in [Dim::symbol("n"), Dim::constant(-1), Dim::constant(i64::MAX)] {
        let unknown = edited(keep_all(), |p| {
            // The empty extent makes it zero bytes.
            p.programs[0].graph.values[0].ty.shape.0 = vec![d, Dim::constant(i64::MAX), Dim::constant(0)];
        });
        refused(unknown, "is unknown or too large");
    }
}

/// A vector of 64 elements that is read whole and by its second half.
fn halves(op: &str, second: bool, place: Place, drops: &[u32]) -> Plan {
    let mut g = Graph::default();
    let x = g.add_input("x", vector(), InputRole::Data);
    let half = TensorType::new(DType::F32, &[32u64][..]);
    let h = g.add_node("half", "Half", Attrs::new(), vec![Some(x)], vec![("half".into(), half)]);
    let h = g.node(h).outputs[0];
    let args = vec![Some(x), Some(if second { h } else { x })];
    let y = g.add_node("y", op, Attrs::new(), args, vec![("y".into(), vector())]);
    g.outputs.push(g.node(y).outputs[0]);
    let steps = vec![run(0, Place::View { input: 0 }, 0, None, &[]), run(1, place, 0, None, drops)];
    let arena = if matches!(place, Place::New { .. }) { 768 } else { 512 };
    plan(g, vec![256], steps, arena, arena)
}

#[test]
fn nothing_is_overwritten_while_another_argument_reads_it() {
    let over = Place::Overwrite { input: 0 };
    validate(&halves("AddRow", true, at(512), &[]), &Toy).unwrap();
    validate(&halves("Mul", false, over, &[0, 1]), &Toy).unwrap();
    // The kernel bears its first input being overwritten; its second lies on the same bytes, shifted or not.
    refused(halves("AddRow", true, over, &[0, 1]), "writes in place what it reads through \"half\"");
    refused(halves("AddRow", false, over, &[0, 1]), "writes in place what it reads through \"x\"");
    refused(halves("Mul", true, over, &[0, 1]), "writes in place what it reads through \"half\"");
}

#[test]
fn a_commit_writes_over_no_other_argument() {
    let aliased = edited(keep_all(), |p| {
        p.programs[0].graph.nodes[4].inputs[1] = Some(ValueId(2));
        step(p, 3).drops = vec![ValueId(0), ValueId(6)];
        step(p, 4).drops = vec![ValueId(1), ValueId(7)];
    });
    refused(aliased, "writes in place what it reads through \"layer.weight\"");
}

#[test]
fn views_are_aligned_to_their_elements() {
    let mut g = Graph::default();
    let odd = TensorType::new(DType::F32, &[5u64][..]);
    let x = g.add_input("x", odd, InputRole::Data);
    let half = TensorType::new(DType::F32, &[2u64][..]);
    g.add_node("half", "Half", Attrs::new(), vec![Some(x)], vec![("half".into(), half)]);
    // Half of 20 bytes is 10: no float begins there.
    let view = vec![run(0, Place::View { input: 0 }, 0, None, &[])];
    refused(plan(g, vec![256], view, 512, 512), "does not begin at a multiple of its 4 bytes");
}

#[test]
fn sizes_nested_without_end_do_not_end_the_stack() {
    // A size within a size: one term, whose one atom is a division of such a size.
    let bytes = to_bytes(&keep_all()).unwrap();
    let nested = [1u8, 1, 1].repeat(1_000_000);
    assert!(postcard::from_bytes::<Dim>(&nested).is_err());
    let fine = Dim::symbol("n").add(&Dim::constant(1)).floor_div(&Dim::constant(2)).unwrap();
    assert_eq!(postcard::from_bytes(&postcard::to_stdvec(&fine).unwrap()), Ok(fine));
    assert_eq!(from_bytes(&bytes), Ok(keep_all()));
}

#[test]
fn literals_have_the_bytes_of_their_shape() {
    let mut bytes = postcard::to_stdvec(&Literal::ints(&[1, 2])).unwrap();
    assert_eq!(postcard::from_bytes(&bytes), Ok(Literal::ints(&[1, 2])));
    // dtype, rank, extent.
    bytes[2] = 3;
    assert!(postcard::from_bytes::<Literal>(&bytes).is_err());
}
