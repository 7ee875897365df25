//! Small programs by hand, one rule each.

use dtr::{
    Cause, Command, Dealloc, Error, Event, Heuristic, Options, Outcome, Output, Program, StorageId, TensorId,
    World,
};

use Command::{Compute, Forbid, Get, Hold, Pin, Release};

fn new(bytes: u64) -> [Output; 1] {
    [Output::New { bytes }]
}

/// `t0 -> t1 -> ... -> t(n-1)`, unit sizes and costs; op i computes tensor i.
fn chain(n: u32) -> Program {
    let mut program = Program::new();
    for i in 0..n {
        let args: Vec<_> = i.checked_sub(1).map(TensorId).into_iter().collect();
        program.op(&args, &new(1), 1).expect("a chain");
    }
    program
}

fn op(id: u32) -> dtr::OpId {
    dtr::OpId(id)
}

fn options(budget: u64, dealloc: Dealloc) -> Options {
    Options { dealloc, ..Options::new(budget, Heuristic::Lru) }
}

fn lines(outcome: &Outcome) -> String {
    outcome.events.iter().filter_map(dtr::simrd::trace_line).collect::<Vec<_>>().join(" ")
}

#[test]
fn evicts_the_least_recently_used_and_recomputes_it() {
    let mut program = chain(3);
    program.op(&[TensorId(0)], &new(1), 1).expect("a fourth");
    let outcome = dtr::run(
        &program,
        &[Compute(op(0)), Compute(op(1)), Compute(op(2)), Compute(op(3))],
        &options(2, Dealloc::Eager),
    );
    outcome.result.as_ref().expect("two units suffice");
    assert_eq!(lines(&outcome), "C0 C1 E0 C2 E1 R0 E2 C3");
    assert_eq!((outcome.stats.peak, outcome.stats.remats, outcome.stats.clock), (2, 1, 6));
}

#[test]
fn a_deep_chain_needs_no_deep_stack() {
    const N: u32 = 100_000;
    let program = chain(N);
    let mut schedule: Vec<_> = (0..N).map(|i| Compute(op(i))).collect();
    schedule.extend([Pin(TensorId(N - 9))]);
    let outcome = dtr::run(&program, &schedule, &options(3, Dealloc::Eager));
    outcome.result.expect("a chain needs two units");
    assert!(outcome.stats.remats >= u64::from(N) - 8);
}

#[test]
fn an_evicted_storage_takes_its_aliases_along() {
    let mut program = Program::new();
    program.op(&[], &new(4), 5).expect("base");
    program.op(&[TensorId(0)], &[Output::AliasOf { argument: 0 }], 3).expect("view");
    program.op(&[], &new(4), 5).expect("other");
    program.op(&[TensorId(1)], &new(4), 5).expect("reader");
    let outcome = dtr::run(
        &program,
        &[Compute(op(0)), Compute(op(1)), Compute(op(2)), Compute(op(3))],
        &options(8, Dealloc::Eager),
    );
    outcome.result.as_ref().expect("fits");
    assert_eq!(
        lines(&outcome),
        "C0 C1 C2 E0 C3".replace("E0 C3", "E2 C3"),
        "the view's use counts for the base"
    );

    let schedule = [Compute(op(0)), Compute(op(1)), Compute(op(2)), Compute(op(3))];
    let outcome = dtr::run(
        &program,
        &schedule,
        &Options { dealloc: Dealloc::Eager, ..Options::new(4, Heuristic::Lru) },
    );
    assert!(matches!(outcome.result, Err(Error::Oom { .. })), "reader and base do not fit together");
    assert_eq!(outcome.completed, 3);
    assert_eq!(lines(&outcome), "C0 C1 E0 C2 E2 R0 R1");
}

#[test]
fn siblings_are_recomputed_together_and_duplicates_dropped() {
    let mut program = Program::new();
    program.op(&[], &[Output::New { bytes: 2 }, Output::New { bytes: 3 }], 1).expect("pair");
    program.op(&[], &new(3), 1).expect("big");
    let schedule = [Compute(op(0)), Compute(op(1)), Pin(TensorId(1)), Pin(TensorId(0))];
    let outcome = dtr::run(&program, &schedule, &options(10, Dealloc::Eager));
    outcome.result.as_ref().expect("fits");
    assert_eq!((outcome.stats.memory, outcome.stats.remats), (8, 0));
    // The first output dies and comes back beside its sibling, which is there twice for a moment.
    let schedule = [Compute(op(0)), Release(TensorId(0)), Pin(TensorId(0))];
    let outcome = dtr::run(&program, &schedule, &options(8, Dealloc::Eager));
    outcome.result.as_ref().expect("fits");
    assert_eq!(lines(&outcome), "C0 X0 R0 P0");
    assert_eq!((outcome.stats.peak, outcome.stats.memory), (8, 5));
    let outcome = dtr::run(&program, &schedule, &options(7, Dealloc::Eager));
    outcome.result.as_ref().expect("fits, without the sibling");
    assert_eq!(lines(&outcome), "C0 X0 E1 R0 P0");
}

#[test]
fn what_the_dead_become() {
    let program = chain(3);
    let schedule =
        [Compute(op(0)), Compute(op(1)), Release(TensorId(0)), Compute(op(2)), Release(TensorId(1))];
    let trace = |dealloc| lines(&dtr::run(&program, &schedule, &options(u64::MAX, dealloc)));
    assert_eq!(trace(Dealloc::Ignore), "C0 C1 C2");
    assert_eq!(trace(Dealloc::Eager), "C0 C1 X0 C2 X1");
    // Banishing pins what can no longer be recomputed.
    assert_eq!(trace(Dealloc::Banish), "C0 C1 X0 P1 C2 X1 P2");
    assert_eq!(trace(Dealloc::Retire), "C0 C1 X0 C2 X1");
}

#[test]
fn banishing_waits_for_evicted_children() {
    let mut program = Program::new();
    program.op(&[], &new(1), 1).expect("base");
    program.op(&[TensorId(0)], &new(2), 1).expect("child");
    program.op(&[], &new(1), 1).expect("other");
    // The child goes for the other; the base, dead, stays until the child is back.
    let schedule = [
        Compute(op(0)),
        Compute(op(1)),
        Compute(op(2)),
        Release(TensorId(0)),
        Release(TensorId(2)),
        Pin(TensorId(1)),
    ];
    let outcome = dtr::run(
        &program,
        &schedule,
        &Options { dealloc: Dealloc::Banish, ..Options::new(3, Heuristic::SIZE) },
    );
    outcome.result.as_ref().expect("fits");
    assert_eq!(lines(&outcome), "C0 C1 E1 C2 X2 R1 X0 P1");
}

#[test]
fn held_until_dead_and_unneeded() {
    let mut program = Program::new();
    let mask = program.once(&[], &new(1), 1).expect("mask");
    let dropped = program.op(&[TensorId(0)], &new(1), 1).expect("dropout");
    let other = program.op(&[], &new(1), 1).expect("other");
    let state = program.once(&[TensorId(1)], &new(1), 1).expect("commit");
    let schedule = [
        Compute(mask),
        Compute(dropped),
        Release(TensorId(0)),
        Compute(other),
        Release(TensorId(2)),
        Pin(TensorId(1)),
        Compute(state),
    ];
    // The mask outlives its last reference, because the dropped value may be recomputed, and is.
    let outcome = dtr::run(&program, &schedule, &options(2, Dealloc::Retire));
    assert_eq!(lines(&outcome), "C0 C1 E1 C2 X2 R1 P1 X0 C3");
    outcome.result.as_ref().expect("once the dropped value is pinned, nothing needs the mask");
    // Without uses being tracked it stays.
    let outcome = dtr::run(&program, &schedule, &options(3, Dealloc::Eager));
    assert_eq!(lines(&outcome), "C0 C1 C2 X2 P1 C3");
    assert_eq!(outcome.stats.memory, 3);

    // A commit reads the dropped value for good: both go.
    let schedule =
        [Compute(mask), Compute(dropped), Release(TensorId(0)), Compute(state), Release(TensorId(1))];
    let outcome = dtr::run(&program, &schedule, &options(3, Dealloc::Retire));
    outcome.result.as_ref().expect("fits");
    assert_eq!(lines(&outcome), "C0 C1 C3 X1 X0");
    let gone = |event: &&Event| matches!(event, Event::Drop { cause: Cause::Gone, .. });
    assert_eq!((outcome.events.iter().filter(gone).count(), outcome.stats.memory), (1, 1));
}

#[test]
fn a_forbidden_op_never_runs_again() {
    let mut program = chain(2);
    program.op(&[], &new(2), 1).expect("big");
    let base = [Compute(op(0)), Compute(op(1))];
    // Held in time: out of memory rather than recomputed.
    let held: Vec<_> = base.into_iter().chain([Hold(TensorId(1)), Forbid(op(1)), Compute(op(2))]).collect();
    let outcome = dtr::run(&program, &held, &options(2, Dealloc::Eager));
    assert!(matches!(outcome.result, Err(Error::Oom { pinned: 1, .. })), "{:?}", outcome.result);
    // Forbidden while evicted: lost.
    let lost: Vec<_> = base.into_iter().chain([Compute(op(2)), Forbid(op(1)), Pin(TensorId(1))]).collect();
    let outcome = dtr::run(&program, &lost, &options(2, Dealloc::Eager));
    assert!(
        matches!(outcome.result, Err(Error::Unrecoverable { tensor: TensorId(1), .. })),
        "{:?}",
        outcome.result
    );
}

#[test]
fn thrashing_stops() {
    let program = chain(4);
    let schedule = [
        Compute(op(0)),
        Compute(op(1)),
        Compute(op(2)),
        Compute(op(3)),
        Pin(TensorId(0)),
        Pin(TensorId(1)),
        Pin(TensorId(2)),
    ];
    let limited = Options { remat_limit: Some(1), ..options(2, Dealloc::Eager) };
    let outcome = dtr::run(&program, &schedule, &limited);
    assert!(matches!(outcome.result, Err(Error::Thrash { repeated: 2, limit: 1 })), "{:?}", outcome.result);
}

#[test]
fn misuse_is_an_error() {
    let program = chain(2);
    let fails = |schedule: &[Command]| {
        dtr::run(&program, schedule, &options(9, Dealloc::Eager)).result.expect_err("misuse").to_string()
    };
    assert_eq!(fails(&[Compute(op(1))]), "tensor 0 is used before it is computed");
    assert_eq!(fails(&[Compute(op(0)), Compute(op(0))]), "op 0 is computed twice by the schedule");
    assert_eq!(fails(&[Compute(op(7))]), "no such op: 7");
    assert_eq!(fails(&[Pin(TensorId(9))]), "no such tensor: 9");
    assert_eq!(
        fails(&[Compute(op(0)), Release(TensorId(0)), Release(TensorId(0))]),
        "tensor 0 has no reference left"
    );
    assert_eq!(
        fails(&[Compute(op(0)), Release(TensorId(0)), Get(TensorId(0))]),
        "tensor 0 has no reference left"
    );
}

/// A world with measured costs and a memory of its own.
struct Metered {
    places: bool,
    asked: usize,
}

impl World for Metered {
    fn event(&mut self, event: Event) -> Result<Option<u64>, Error> {
        Ok(matches!(event, Event::Execute { .. }).then_some(100))
    }

    fn fits(&mut self, _: dtr::OpId, used: u64, bytes: u64, _: u64) -> bool {
        used + bytes <= 2
    }

    fn places(&self) -> bool {
        self.places
    }

    fn victims(&mut self, candidates: &[(StorageId, f64)], _: u64, victims: &mut Vec<StorageId>) {
        self.asked += 1;
        victims.extend(candidates.first().map(|candidate| candidate.0));
    }
}

#[test]
fn the_world_may_measure_and_place() {
    for places in [false, true] {
        let mut program = chain(2);
        program.op(&[], &new(1), 1).expect("other");
        let mut machine = dtr::Machine::new(program, options(u64::MAX, Dealloc::Eager)).expect("options");
        let mut world = Metered { places, asked: 0 };
        let (_, result) =
            dtr::drive(&mut machine, &[Compute(op(0)), Compute(op(1)), Compute(op(2))], &mut world);
        result.expect("runs");
        assert_eq!(machine.stats().clock, 301);
        assert_eq!(machine.program().cost_of(op(0)), 100);
        // LRU takes the one used longest ago, which entered the pool last; this world takes the first.
        assert_eq!((machine.is_defined(TensorId(0)), machine.is_defined(TensorId(1))), (places, !places));
        assert_eq!(world.asked, usize::from(places));
        assert!(machine.is_resident(StorageId(2)));
    }
}

#[test]
fn heuristics_have_names() {
    for (name, heuristic) in Heuristic::NAMED {
        assert_eq!(name.parse::<Heuristic>().expect("a name"), heuristic);
        assert_eq!(heuristic.to_string(), name);
    }
    for cost in ["e", "eq", "local", "none"] {
        for suffix in ["", "-size", "-stale", "-size-stale"] {
            let heuristic: Heuristic = format!("ab-{cost}{suffix}").parse().expect("the grid");
            assert_eq!(heuristic.to_string().parse::<Heuristic>().expect("its name"), heuristic);
        }
    }
    assert_eq!("ab-e-size-stale".parse::<Heuristic>().expect("the grid"), Heuristic::DTR);
    assert!("ab-x".parse::<Heuristic>().is_err());
    assert!("".parse::<Heuristic>().is_err());
}

/// An alias that went with its storage and has not come back with the root is evicted, whatever lies there: what it reads is kept for it.
#[test]
fn banishing_waits_for_evicted_aliases() {
    let mut program = Program::new();
    program.op(&[], &new(1), 1).expect("view's other argument");
    program.op(&[], &new(2), 1).expect("base");
    program.op(&[TensorId(1), TensorId(0)], &[Output::AliasOf { argument: 0 }], 1).expect("view");
    program.op(&[], &new(2), 1).expect("other");
    // The base and its view go for the other; the base alone comes back, and then what the view reads dies.
    let schedule = [
        Compute(op(0)),
        Compute(op(1)),
        Compute(op(2)),
        Compute(op(3)),
        Release(TensorId(3)),
        Pin(TensorId(1)),
        Release(TensorId(0)),
        Pin(TensorId(2)),
    ];
    let outcome = dtr::run(
        &program,
        &schedule,
        &Options { dealloc: Dealloc::Banish, ..Options::new(3, Heuristic::SIZE) },
    );
    outcome.result.as_ref().expect("fits");
    assert_eq!(lines(&outcome), "C0 C1 C2 E1 C3 X3 R1 P1 R2 X0");
}
