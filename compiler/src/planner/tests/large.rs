//! Sums just below what a problem may have: nothing overflows on the way to a plan.

use super::super::check::{MOST_BYTES, MOST_TIME, ProblemError};
use super::super::index::Index;
use super::super::problem::Problem;
use super::super::replay::replay;
use super::super::{bounds, strategies::keep_all};
use super::{Build, context, plan, plan_many, quick, random_problem, working_set_bound};
use crate::planner::outcome::Options;

/// Multiplies times and sizes so that they add up to nearly the most there may be.
fn enlarged(mut problem: Problem) -> Problem {
    let implementations = problem.nodes.iter().flat_map(|n| &n.implementations);
    let workspace: u64 = implementations.clone().map(|i| i.workspace).sum();
    let time = (MOST_TIME - 1) / implementations.map(|i| i.time).sum::<u64>().max(1);
    let bytes: u64 = problem.values.iter().map(|v| v.bytes).sum();
    let size = (MOST_BYTES - 1) / (bytes + workspace + problem.resident + problem.alignment);
    for i in problem.nodes.iter_mut().flat_map(|n| &mut n.implementations) {
        (i.time, i.workspace) = (i.time * time, i.workspace * size);
    }
    problem.values.iter_mut().for_each(|v| v.bytes *= size);
    (problem.resident, problem.alignment) = (problem.resident * size, problem.alignment * size);
    problem
}

#[test]
fn plans_of_the_largest_sums_are_those_of_small_ones() {
    let mut recomputing = 0;
    for seed in 0..40 {
        let small = random_problem(900 + seed, 4 + (seed as usize * 5) % 30);
        let large = enlarged(small.clone());
        let index = Index::new(&large).expect("well formed");
        let peak = keep_all::run(&mut context(&index, 0)).score.peak;
        let floor = working_set_bound(&index);
        let budgets: Vec<u64> = (0..5).map(|part| floor + (peak - floor) / 4 * part).collect();
        for live_bytes_only in [false, true] {
            let options = Options { live_bytes_only, ..quick() };
            for (budget, planned) in
                budgets.iter().zip(plan_many(&large, &budgets, &options).expect("well formed"))
            {
                let effort = bounds::Effort::default();
                let (free, kept) = (
                    bounds::order_free(&large, *budget, effort),
                    bounds::keep_order(&large, *budget, effort),
                );
                let Ok(planned) = planned else { continue };
                let told = replay(&large, &planned.schedule).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                assert!(told.peak <= *budget && planned.extra_fraction() >= free.fraction(), "seed {seed}");
                assert!(free.fraction().is_finite() && !free.is_infeasible() && !kept.fraction().is_nan());
                recomputing += usize::from(planned.schedule.recomputations() > 0);
            }
        }
    }
    assert!(recomputing > 20, "{recomputing} recompute");
}

#[test]
fn sums_beyond_the_limits_are_told() {
    let two = |bytes, time| {
        let mut build = Build::new();
        let first = build.node(&[], bytes, time);
        build.node(&[first], 1, 1);
        plan(&build.0, 10, &quick()).map(|_| ()).unwrap_err().to_string()
    };
    let times = two(1, MOST_TIME - 1);
    assert!(times.contains("the times in nanoseconds add up to 1125899906842624"), "{times}");
    assert!(times.contains("less than 1125899906842624; most by \"n0\""), "{times}");
    let sizes = two(MOST_BYTES, 1);
    assert!(sizes.contains("the sizes in bytes add up to 2882303761517117"), "{sizes}");
    assert!(sizes.contains("less than 288230376151711744; most by \"v0\""), "{sizes}");
    let many = ProblemError::TooMany { what: "nodes", count: 1 << 28 }.to_string();
    assert_eq!(many, "268435456 nodes are more than a plan can have: there must be less than 268435456");
}
