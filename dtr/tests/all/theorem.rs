//! Theorem 3.1: on a linear network of N layers with 2*ceil(sqrt N) units of memory, few operations suffice.

#[path = "common/linear.rs"]
mod linear;

use dtr::{Heuristic, Machine, Options, Stats};

fn run(n: usize, heuristic: Heuristic) -> Stats {
    let (program, schedule) = linear::linear(n);
    let budget = 2 * (n as f64).sqrt().ceil() as u64;
    let mut machine = Machine::new(program, Options::new(budget, heuristic)).expect("options");
    let (_, result) = dtr::drive(&mut machine, &schedule, &mut ());
    result.expect("the budget suffices");
    let stats = machine.stats();
    assert!(stats.peak <= budget);
    stats
}

fn at_most_5n(n: usize, heuristic: Heuristic) {
    let Stats { firsts, remats, .. } = run(n, heuristic);
    assert_eq!(firsts, 2 * n as u64);
    assert!(firsts + remats <= 5 * n as u64, "{heuristic} at {n}: {} operations", firsts + remats);
}

#[test]
fn every_small_network() {
    for n in 16..=1024 {
        for heuristic in [Heuristic::E_STAR, Heuristic::DTR, Heuristic::DTR_EQ] {
            at_most_5n(n, heuristic);
        }
    }
}

#[test]
fn large_networks() {
    for n in [2048, 4096, 8192, 16384, 32768, 65536, 100_000] {
        for heuristic in [Heuristic::E_STAR, Heuristic::DTR, Heuristic::DTR_EQ] {
            at_most_5n(n, heuristic);
        }
    }
}

/// Figures of the reference and of an independent implementation, and what heuristics without neighbourhoods come to.
#[test]
fn known_figures() {
    let total = |n, heuristic| {
        let Stats { firsts, remats, .. } = run(n, heuristic);
        firsts + remats
    };
    assert_eq!(total(1024, Heuristic::E_STAR), 3764);
    assert_eq!(total(4096, Heuristic::E_STAR), 15646);
    assert_eq!(total(4096, Heuristic::DTR), 12409);
    assert_eq!(total(16384, Heuristic::DTR_EQ), 50677);
    assert_eq!(total(1024, Heuristic::MSPS), 3517);
    assert_eq!(total(1024, Heuristic::DTR_LOCAL), 28652);
    assert_eq!(total(1024, Heuristic::Lru), 28652);
}
