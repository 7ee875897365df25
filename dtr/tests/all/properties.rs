//! What must hold on every program: random ones, all heuristics, all ways of dealing with the dead.

use dtr::{
    Cause, Command, CostPart, Dealloc, Error, Event, Heuristic, Options, Output, Program, StorageId, TensorId,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

struct Case {
    program: Program,
    schedule: Vec<Command>,
    bytes: u64,
}

fn case(random: &mut StdRng) -> Case {
    let mut program = Program::new();
    let mut schedule = Vec::new();
    let mut usable: Vec<TensorId> = Vec::new();
    let mut bytes = 0;
    for _ in 0..random.random_range(1..4) {
        let size = random.random_range(0..4);
        bytes += size;
        usable.push(program.constant(size).expect("a constant"));
    }
    schedule.extend(program.load_constants());
    for _ in 0..random.random_range(5..60) {
        let args: Vec<_> = (0..random.random_range(0..4))
            .map(|_| usable[usable.len() - 1 - random.random_range(0..usable.len().min(8))])
            .collect();
        // An op that views one storage must not read another: that the reference leaves open.
        let single = args.windows(2).all(|pair| program.storage_of(pair[0]) == program.storage_of(pair[1]));
        let outputs: Vec<_> = (0..random.random_range(1..4))
            .map(|_| match random.random_bool(0.2) && !args.is_empty() && single {
                true => Output::AliasOf { argument: random.random_range(0..args.len()) },
                false => Output::New { bytes: random.random_range(0..9) },
            })
            .collect();
        let cost = random.random_range(0..20);
        let op = match random.random_bool(0.05) {
            true => program.once(&args, &outputs, cost),
            false => program.op(&args, &outputs, cost),
        };
        let op = op.expect("a valid op");
        schedule.push(Command::Compute(op));
        usable.extend(program.outputs_of(op));
        bytes += outputs
            .iter()
            .map(|output| if let Output::New { bytes } = output { *bytes } else { 0 })
            .sum::<u64>();
        while usable.len() > 3 && random.random_bool(0.5) {
            let tensor = usable.remove(random.random_range(0..usable.len()));
            schedule.push(Command::Release(tensor));
        }
    }
    schedule.extend(usable.iter().filter(|_| random.random_bool(0.3)).map(|&tensor| Command::Pin(tensor)));
    Case { program, schedule, bytes }
}

fn heuristics() -> Vec<Heuristic> {
    let named = Heuristic::NAMED.iter().map(|named| named.1);
    let grid = [CostPart::Unit, CostPart::Local, CostPart::Classes, CostPart::Neighbourhood]
        .into_iter()
        .flat_map(|cost| {
            [(false, false), (true, false), (false, true)].map(|(size, stale)| Heuristic::Score {
                cost,
                size,
                stale,
            })
        });
    named.chain(grid).collect()
}

/// Replays the events by the plainest rules and checks each.
fn check(case: &Case, options: &Options, events: &[Event]) -> (u64, u64) {
    let program = &case.program;
    let (mut defined, mut resident) =
        (vec![false; program.tensor_count()], vec![false; program.storage_count()]);
    let (mut executed, mut held) = (vec![0; program.op_count()], vec![false; program.storage_count()]);
    let mut gone = vec![false; program.storage_count()];
    let (mut memory, mut peak) = (0, 0);
    for event in events {
        match *event {
            Event::Execute { op, target, first } => {
                assert!(
                    program.args_of(op).all(|arg| defined[arg.index()]),
                    "{event:?} reads what is not there"
                );
                assert_eq!(first, executed[op.index()] == 0);
                executed[op.index()] += 1;
                assert!(program.outputs_of(op).any(|output| output == target) && !defined[target.index()]);
                let roots: Vec<_> =
                    program.outputs_of(op).filter(|output| is_root(program, *output)).collect();
                let bytes = |tensor: &TensorId| {
                    program.storage_bytes(program.storage_of(*tensor).expect("a storage"))
                };
                memory += roots.iter().map(bytes).sum::<u64>();
                assert!(memory <= options.budget, "{event:?} goes over the budget");
                peak = peak.max(memory);
                for output in program.outputs_of(op) {
                    let storage = program.storage_of(output).expect("a storage").index();
                    if is_root(program, output) && (resident[storage] || gone[storage]) {
                        memory -= bytes(&output);
                    }
                    // What was given up for good is written to scratch memory only.
                    if gone[storage] {
                        continue;
                    }
                    (defined[output.index()], resident[storage]) = (true, true);
                }
            }
            Event::Drop { storage, cause, .. } => {
                assert!(resident[storage.index()]);
                assert!(
                    !held[storage.index()] || (cause == Cause::Gone && options.dealloc == Dealloc::Banish),
                    "{event:?} drops a pinned storage"
                );
                resident[storage.index()] = false;
                gone[storage.index()] |= cause == Cause::Gone;
                memory -= program.storage_bytes(storage);
                for tensor in (0..program.tensor_count() as u32).map(TensorId) {
                    if program.storage_of(tensor) == Some(storage) {
                        defined[tensor.index()] = false;
                    }
                }
            }
            Event::Forget { storage, .. } => gone[storage.index()] = true,
            Event::Pin { storage, .. } => {
                assert!(resident[storage.index()]);
                held[storage.index()] = true;
            }
        }
    }
    (memory, peak)
}

fn is_root(program: &Program, tensor: TensorId) -> bool {
    let storage = program.storage_of(tensor);
    (0..tensor.0).all(|before| program.storage_of(TensorId(before)) != storage)
}

#[test]
fn every_run_is_lawful() {
    let mut random = StdRng::seed_from_u64(11);
    let (mut finished, mut repeated, mut starved) = (0, 0, 0);
    for _ in 0..150 {
        let case = case(&mut random);
        for heuristic in heuristics() {
            let dealloc = [Dealloc::Ignore, Dealloc::Eager, Dealloc::Banish, Dealloc::Retire]
                [random.random_range(0..4)];
            let options = Options {
                dealloc,
                order_remats: random.random_bool(0.5),
                sample: random.random_bool(0.2),
                skip_small: random.random_bool(0.2).then_some(0.5),
                seed: random.random(),
                remat_limit: Some(2000),
                ..Options::new(random.random_range(1..=case.bytes.max(1)), heuristic)
            };
            let outcome = dtr::run(&case.program, &case.schedule, &options);
            let (memory, peak) = check(&case, &options, &outcome.events);
            assert_eq!((memory, peak), (outcome.stats.memory, outcome.stats.peak));
            repeated += outcome.stats.remats;
            match outcome.result {
                Ok(()) => {
                    finished += 1;
                    assert_eq!(outcome.completed, case.schedule.len());
                }
                Err(Error::Oom { used, needed, budget, .. }) => {
                    starved += 1;
                    assert!(used + needed > budget);
                }
                Err(Error::Thrash { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            let again = dtr::run(&case.program, &case.schedule, &options);
            assert_eq!(again.events, outcome.events, "the same twice");
        }
    }
    assert!(finished > 1000 && repeated > 4000 && starved > 200, "{finished} {repeated} {starved}");
}

#[test]
fn retiring_keeps_nothing_that_is_dead_at_the_end() {
    // Two chains meet in one kept value: at the end everything dead is gone, held values included.
    let mut program = Program::new();
    let first = program.once(&[], &[Output::New { bytes: 3 }], 1).expect("once");
    let second = program.op(&[program.output(first, 0)], &[Output::New { bytes: 2 }], 1).expect("op");
    let third = program.once(&[program.output(second, 0)], &[Output::New { bytes: 1 }], 1).expect("once");
    let schedule = [
        Command::Compute(first),
        Command::Compute(second),
        Command::Compute(third),
        Command::Release(program.output(second, 0)),
        Command::Release(program.output(first, 0)),
    ];
    let options = Options { dealloc: Dealloc::Retire, ..Options::new(6, Heuristic::DTR) };
    let outcome = dtr::run(&program, &schedule, &options);
    outcome.result.expect("fits");
    assert_eq!(outcome.stats.memory, 1);
    let last = outcome.events.last();
    assert!(matches!(last, Some(Event::Drop { storage: StorageId(0), cause: Cause::Gone, .. })), "{last:?}");
}
