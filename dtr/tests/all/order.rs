//! Ordered recomputation succeeds where locks of nested recomputation starve the reference.

use crate::common;
use dtr::simrd::{Budget, SimOptions, Status};
use dtr::{Command, Error, Heuristic, Options, Output, Program, TensorId};

/// A comb: `y(i)` is computed from a side value of its own and from `y(i-1)`. Brought back from the start in the order of arguments, every
/// level locks its side value before it goes down.
fn comb(n: usize) -> (Program, Vec<Command>, TensorId) {
    let mut program = Program::new();
    let start = program.op(&[], &[Output::New { bytes: 1 }], 1).expect("start");
    let mut schedule = vec![Command::Compute(start)];
    let mut y = program.output(start, 0);
    for _ in 0..n {
        let side = program.op(&[], &[Output::New { bytes: 4 }], 1).expect("side");
        let joint = program.op(&[program.output(side, 0), y], &[Output::New { bytes: 1 }], 1).expect("joint");
        y = program.output(joint, 0);
        schedule.extend([side, joint].map(Command::Compute));
    }
    (program, schedule, y)
}

#[test]
fn locks_do_not_starve_it() {
    let (mut program, mut schedule, last) = comb(40);
    // A large op drives everything out, then the last value is wanted again.
    let large = program.op(&[], &[Output::New { bytes: 10 }], 1).expect("large");
    schedule.extend([
        Command::Compute(large),
        Command::Release(program.output(large, 0)),
        Command::Pin(last),
    ]);
    let reference = Options::new(10, Heuristic::DTR);
    let failed = dtr::run(&program, &schedule, &reference);
    assert!(matches!(failed.result, Err(Error::Oom { locked: 8, .. })), "{:?}", failed.result);
    let outcome = dtr::run(&program, &schedule, &Options { order_remats: true, ..reference });
    outcome.result.expect("every op fits");
    assert!(outcome.stats.peak <= 10);
    assert_eq!(outcome.stats.remats, 81, "each value once");
}

#[test]
fn recorded_logs_pass_below_the_references_least_ratio() {
    let rows = [("unet", 0.4), ("unet", 0.3), ("resnet32", 0.1), ("inceptionv4", 0.2), ("transformer", 0.13)];
    for (model, ratio) in rows {
        let Some(log) = common::log(model) else { return };
        let baseline = log.baseline().expect("a recorded log replays");
        let status = |order_remats| {
            let options = SimOptions {
                order_remats,
                overhead_limit: order_remats.then_some(f64::INFINITY).or(Some(2.0)),
                ..SimOptions::new(Heuristic::DTR_EQ, Budget::Ratio(ratio))
            };
            log.replay(baseline, &options).expect("a recorded log replays").status
        };
        assert_eq!(status(true), Status::Ok, "{model} at {ratio}");
        assert_ne!(status(false), Status::Ok, "{model} at {ratio}, locks as in the reference");
    }
}
