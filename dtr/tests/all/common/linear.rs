//! The uniform linear network of Theorem 3.1: unit costs, unit sizes, a backward pass that releases as it goes.
#![allow(unreachable_pub, reason = "shared by tests and benches")]

use dtr::{Command, Output, Program};

/// `n` forward and `n` backward ops, and their schedule.
pub fn linear(n: usize) -> (Program, Vec<Command>) {
    let mut program = Program::new();
    let mut schedule = Vec::new();
    let unit = [Output::New { bytes: 1 }];
    let mut forward = Vec::new();
    for i in 0..n {
        let before: Vec<_> = i.checked_sub(1).map(|before| forward[before]).into_iter().collect();
        let op = program.op(&before, &unit, 1).expect("a chain");
        forward.push(program.output(op, 0));
        schedule.push(Command::Compute(op));
    }
    schedule.push(Command::Release(forward[n - 1]));
    let op = program.op(&[], &unit, 1).expect("a gradient");
    schedule.push(Command::Compute(op));
    let mut gradient = program.output(op, 0);
    for i in (0..n - 1).rev() {
        schedule.push(Command::Release(forward[i]));
        let args: Vec<_> =
            i.checked_sub(1).map(|before| forward[before]).into_iter().chain([gradient]).collect();
        let op = program.op(&args, &unit, 1).expect("a gradient");
        schedule.extend([Command::Compute(op), Command::Release(gradient)]);
        gradient = program.output(op, 0);
    }
    (program, schedule)
}
