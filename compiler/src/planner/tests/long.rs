//! Loops written out over thousands of nodes: what every round reads, room where many moves insert, and placement.

use super::super::decode::Evaluator;
use super::super::index::Index;
use super::super::offsets::{Buffer, Limits, check::validate, place};
use super::super::outcome::Options;
use super::super::problem::{Bytes, Problem};
use super::super::replay::replay;
use super::super::strategies::{Random, foresight};
use super::super::timeline::Timeline;
use super::foresight::recurrent;
use super::{Build, context, plan, quick};

/// A chain whose every node reads one value, and some of them slices of what is staged.
fn chain(nodes: usize) -> Problem {
    let mut build = Build::new();
    let staged = build.staged(40);
    let slices: Vec<u32> = (0..80).map(|_| build.view(staged)).collect();
    let shared = build.node(&[], 3, 2);
    let mut last = build.node(&[shared], 5, 1);
    for round in 0..nodes {
        let mut inputs = vec![last, shared];
        if round % 50 == 0 {
            inputs.push(slices[round / 50 % slices.len()]);
        }
        last = build.node(&inputs, 1 + round as Bytes % 7, 1);
    }
    build.require(last);
    build.0.values[shared as usize].keep_to_end = true;
    build.0
}

#[test]
fn the_timeline_agrees_with_the_evaluation_where_one_value_is_read_in_every_round() {
    let problem = chain(9_000);
    let index = Index::new(&problem).expect("well formed");
    let mut random = Random::new(1);
    let mut evaluator = Evaluator::new(&index);
    let mut timeline = Timeline::new(&index, &index.given);
    let (mut full, mut removed) = (0, 0);
    for round in 0..600 {
        let mark = timeline.mark();
        // Always about the same places, so that their slots run out.
        let node = index.given[[81, 4_000, 4_001, 8_000][random.below(4)]];
        let slot = timeline.runs(node).last().copied().expect("it runs");
        if random.below(5) == 0 && timeline.runs(node).len() > 1 {
            timeline.remove(slot);
            removed += 1;
        } else {
            let before = timeline.after(slot).unwrap_or(timeline.end());
            if let Err(wanted) = timeline.insert(&[node, node], before) {
                timeline.commit();
                timeline.make_room(wanted);
                full += 1;
            }
        }
        if random.below(4) == 0 {
            timeline.undo(mark);
        }
        timeline.commit();
        if round % 20 == 0 {
            let score = evaluator.evaluate(&timeline.sequence(), Bytes::MAX);
            assert_eq!((timeline.peak(), timeline.time), (score.peak, score.time), "{round}");
        }
    }
    assert!(full > 10 && removed > 10, "{full} times without room, {removed} removed");
}

#[test]
fn many_buffers_are_placed_in_the_order_of_time() {
    let mut random = Random::new(3);
    let mut buffers = |sizes: &[Bytes]| -> Vec<Buffer> {
        (0..40_000)
            .map(|_| {
                let start = random.below(90_000) as u64;
                let long = random.below(10) == 0;
                let end = start + 1 + random.below(if long { 4_000 } else { 60 }) as u64;
                Buffer { start, end, size: sizes[random.below(sizes.len())] }
            })
            .collect()
    };
    // Of one size, nothing is lost at all.
    let equal = buffers(&[256]);
    let placed = place(&equal, None, Limits::quick());
    assert_eq!(validate(&equal, &placed.offsets, placed.height), Ok(()));
    assert_eq!(placed.height, placed.lower_bound);
    let mixed = buffers(&[256, 256, 512, 1024, 4096]);
    let placed = place(&mixed, None, Limits::quick());
    assert_eq!(validate(&mixed, &placed.offsets, placed.height), Ok(()));
    assert!(placed.height * 4 < placed.lower_bound * 5, "{} of {}", placed.height, placed.lower_bound);
    assert_eq!(placed, place(&mixed, None, Limits::quick()));
}

/// The seed's bytes fit; the plan's addresses do, too, and it takes no longer.
#[test]
fn a_plan_of_a_long_loop_is_no_slower_than_the_planner_of_dynamic_programs() {
    let problem = recurrent(80);
    let index = Index::new(&problem).expect("well formed");
    assert!(index.given.len() > 1_000);
    let options = Options { work: Some(4_000_000), ..quick() };
    for percent in [50, 30] {
        let (_, budget) = super::foresight::at_share(&problem, &index, percent);
        let mut context = super::Context { work: 4_000_000, ..context(&index, budget) };
        let seeds = foresight::run(&mut context);
        let seed = seeds.iter().filter(|c| c.score.peak <= budget).map(|c| c.score.time).min();
        let planned = plan(&problem, budget, &options).expect("a plan");
        assert!(planned.arena <= budget);
        assert!(seed.is_none_or(|t| planned.time <= t), "{percent} %: {} and {seed:?}", planned.time);
        assert!(replay(&problem, &planned.schedule).expect("lawful").peak <= budget);
    }
}
