//! Loops written out, whose weights are committed when all rounds have been gone through backwards: seeds that repeat rounds.

use super::super::index::Index;
use super::super::problem::{Bytes, Nanos, Problem};
use super::super::replay::{assemble, replay};
use super::super::strategies::{Context, best_cut, dtr_seeds, foresight, keep_all, square_root};
use super::{Build, context, plan, quick};

/// Rounds of two gated recurrent layers, with gradients that are summed up over the rounds, and commits of both layers' weights.
pub(super) fn recurrent(rounds: usize) -> Problem {
    let mut build = Build::new();
    let weights: Vec<u32> = (0..2).map(|_| build.parameter(64)).collect();
    let inputs: Vec<u32> = (0..rounds).map(|_| build.staged(2)).collect();
    let first = build.node(&[inputs[0]], 8, 1);
    let mut carried = [first, first];
    let mut saved = Vec::new();
    for &input in &inputs {
        let mut below = input;
        for layer in 0..2 {
            let product = build.node(&[below, carried[layer], weights[layer]], 32, 20);
            let gates = build.node(&[product], 32, 4);
            let next = build.node(&[gates, carried[layer]], 8, 2);
            saved.push((layer, below, carried[layer], gates, next));
            carried[layer] = next;
            below = next;
        }
    }
    let mut down = [build.node(&[carried[1]], 8, 2), build.node(&[carried[0]], 8, 2)];
    down.reverse();
    let mut sums: [Option<u32>; 2] = [None, None];
    for (layer, below, before, gates, next) in saved.into_iter().rev() {
        let of_gates = build.node(&[down[layer], gates, next], 32, 4);
        let product = build.node(&[of_gates, below, before], 64, 20);
        let sum: Vec<u32> = sums[layer].into_iter().chain([product]).collect();
        sums[layer] = Some(build.node(&sum, 64, 2));
        let back = build.node(&[of_gates, weights[layer]], 8, 20);
        down[layer] = build.node(&[down[layer], back], 8, 1);
        if layer == 1 {
            down[0] = build.node(&[down[0], back], 8, 1);
        }
    }
    for (weight, sum) in weights.into_iter().zip(sums) {
        build.commit(weight, &[sum.expect("there are rounds")]);
    }
    build.0
}

pub(super) fn at_share(problem: &Problem, index: &Index<'_>, percent: Bytes) -> (Bytes, Bytes) {
    let peak = keep_all::run(&mut context(index, Bytes::MAX)).score.peak;
    (peak, problem.resident + (peak - problem.resident) * percent / 100)
}

#[test]
fn rounds_of_a_loop_are_repeated_within_a_small_budget() {
    let problem = recurrent(60);
    let index = Index::new(&problem).expect("well formed");
    for (percent, most) in [(50, 0.2), (30, 0.3), (20, 0.35)] {
        let (_, budget) = at_share(&problem, &index, percent);
        let mut context = Context { work: 24_000_000, ..context(&index, budget) };
        let candidates = foresight::run(&mut context);
        let best = candidates.iter().min_by_key(|c| c.score.key(budget)).expect("a schedule");
        assert!(best.score.peak <= budget, "{percent} %: {} over", best.score.peak - budget);
        let extra = best.score.time as f64 / index.base_time as f64 - 1.0;
        assert!(extra <= most, "{percent} %: {extra}");
        let schedule = assemble(&problem, &best.sequence, budget);
        assert!(replay(&problem, &schedule).expect("lawful").peak <= budget);
        let others = square_root::run(&mut context).into_iter().chain(dtr_seeds::run(&mut context));
        let others = others.chain(best_cut::run(&mut context, &[]));
        let cheapest = others.filter(|c| c.score.peak <= budget).map(|c| c.score.time).min();
        assert!(cheapest.is_none_or(|t: Nanos| best.score.time < t), "{percent} %: another seed is cheaper");
    }
}

/// What is repeated late reads the old version: the commits in the order cannot stay where they are.
#[test]
fn commits_come_after_what_is_repeated() {
    let problem = recurrent(40);
    let index = Index::new(&problem).expect("well formed");
    let (peak, budget) = at_share(&problem, &index, 35);
    let mut context = Context { work: 24_000_000, ..context(&index, budget) };
    for candidate in foresight::run(&mut context) {
        let schedule = assemble(&problem, &candidate.sequence, budget);
        replay(&problem, &schedule).expect("lawful");
        // The pass puts them last; where nothing repeated reads the old version they do not stay there.
        let commit = problem.states[1].commit;
        let at = candidate.sequence.iter().position(|&n| n == commit).expect("required");
        assert!(at + 3 < candidate.sequence.len());
    }
    let planned = plan(&problem, budget, &quick()).expect("a plan");
    assert!(planned.arena <= budget && planned.arena < peak / 2);
    assert_eq!(planned, plan(&problem, budget, &quick()).expect("the same plan"));
}

#[test]
fn the_given_order_is_kept() {
    let problem = recurrent(30);
    let index = Index::new(&problem).expect("well formed");
    let (_, budget) = at_share(&problem, &index, 50);
    let mut context = Context {
        work: 24_000_000,
        keep_order: true,
        orders: vec![index.given.clone()],
        ..context(&index, budget)
    };
    let candidates = foresight::run(&mut context);
    assert!(!candidates.is_empty());
    for candidate in candidates {
        assert_eq!(candidate.genome.order, index.given);
    }
}
