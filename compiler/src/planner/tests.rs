//! Properties that hold on every problem, and small problems with known answers.

mod foresight;
mod large;
mod long;

use super::decode::{Evaluator, Genome};
use super::driver::{fits, plan, plan_least, plan_many, working_set_bound};
use super::index::{Index, NONE};
use super::order;
use super::outcome::{Options, PlanError, Planned, StopReason};
use super::problem::{Bytes, Implementation, Nanos, Node, Problem, State, Value};
use super::replay::{OverwriteFault, ReplayError, assemble, replay};
use super::schedule::{Schedule, Step};
use super::strategies::{
    Context, Random, chain, dtr_seeds, hindsight, ilp_windows, keep_all, local_search, neighbourhood,
    order_search, sequence_search, square_root, window_repair,
};
use super::timeline::Timeline;

/// Builds problems by hand.
#[derive(Default)]
struct Build(Problem);

impl Build {
    fn new() -> Self {
        Self(Problem { alignment: 1, ..Problem::default() })
    }

    fn value(&mut self, bytes: Bytes, view_of: Option<u32>, resident: bool, producer: Option<u32>) -> u32 {
        let name = format!("v{}", self.0.values.len());
        self.0.values.push(Value { name, producer, bytes, view_of, resident, keep_to_end: false });
        self.0.values.len() as u32 - 1
    }

    fn parameter(&mut self, bytes: Bytes) -> u32 {
        self.0.resident += bytes;
        self.value(0, None, true, None)
    }

    fn staged(&mut self, bytes: Bytes) -> u32 {
        self.value(bytes, None, false, None)
    }

    fn bare(&mut self, inputs: &[u32], time: Nanos) -> u32 {
        let name = format!("n{}", self.0.nodes.len());
        self.0.nodes.push(Node {
            name,
            inputs: inputs.to_vec(),
            outputs: Vec::new(),
            implementations: vec![Implementation { workspace: 0, time }],
            overwrites: Vec::new(),
            once: false,
            required: false,
        });
        self.0.nodes.len() as u32 - 1
    }

    fn output(&mut self, node: u32, bytes: Bytes) -> u32 {
        let value = self.value(bytes, None, false, Some(node));
        self.0.nodes[node as usize].outputs.push(value);
        value
    }

    fn node(&mut self, inputs: &[u32], bytes: Bytes, time: Nanos) -> u32 {
        let node = self.bare(inputs, time);
        self.output(node, bytes)
    }

    fn view(&mut self, source: u32) -> u32 {
        let node = self.bare(&[source], 1);
        let value = self.value(0, Some(source), false, Some(node));
        self.0.nodes[node as usize].outputs.push(value);
        value
    }

    fn commit(&mut self, state: u32, inputs: &[u32]) -> u32 {
        let mut all = vec![state];
        all.extend(inputs.iter().filter(|v| **v != state));
        let node = self.bare(&all, 1);
        let new = self.value(0, None, true, Some(node));
        let n = &mut self.0.nodes[node as usize];
        n.outputs.push(new);
        (n.once, n.required) = (true, true);
        self.0.states.push(State { old: state, commit: node });
        node
    }

    fn require(&mut self, value: u32) {
        let node = self.0.values[value as usize].producer.expect("made by a node");
        self.0.nodes[node as usize].required = true;
    }
}

/// A random problem with views, several outputs, overwrites, once nodes, commits and implementations.
fn random_problem(seed: u64, nodes: usize) -> Problem {
    let mut random = Random::new(seed);
    let mut build = Build::new();
    build.0.alignment = [1, 4][random.below(2)];
    let unit = build.0.alignment;
    let parameters: Vec<u32> = (0..1 + random.below(3)).map(|_| build.parameter(unit * 2)).collect();
    let mut values: Vec<u32> = (0..1 + random.below(2)).map(|_| build.staged(unit * 3)).collect();
    for _ in 0..nodes {
        let mut inputs = Vec::new();
        for _ in 0..1 + random.below(3) {
            let near = values.len().min(4);
            let at = if random.below(3) == 0 {
                random.below(values.len())
            } else {
                values.len() - 1 - random.below(near)
            };
            if !inputs.contains(&values[at]) {
                inputs.push(values[at]);
            }
        }
        if random.below(6) == 0 {
            values.push(build.view(inputs[0]));
            continue;
        }
        if random.below(3) == 0 {
            inputs.push(parameters[random.below(parameters.len())]);
        }
        let time = 1 + random.below(9) as Nanos;
        let node = build.bare(&inputs, time);
        for _ in 0..1 + usize::from(random.below(5) == 0) {
            let bytes = unit * random.below(6) as Bytes;
            values.push(build.output(node, bytes));
        }
        let n = &mut build.0.nodes[node as usize];
        n.once = random.below(12) == 0;
        n.required = random.below(8) == 0;
        n.implementations[0].workspace = random.below(4) as Bytes;
        if random.below(4) == 0 {
            n.implementations.push(Implementation { workspace: 0, time: time + 2 });
        }
        for input in 0..n.inputs.len() as u32 {
            if random.below(3) == 0 {
                n.overwrites.push((0, input));
            }
        }
    }
    let last = *values.last().expect("there are inputs");
    if build.0.values[last as usize].producer.is_some() {
        build.require(last);
    }
    for &parameter in &parameters {
        if random.below(2) == 0 {
            let gradient = values[values.len() - 1 - random.below(values.len().min(5))];
            build.commit(parameter, &[gradient]);
        }
    }
    for value in &mut build.0.values {
        if value.producer.is_some() && random.below(15) == 0 {
            value.keep_to_end = true;
        }
    }
    build.0
}

fn context<'i, 'a>(index: &'i Index<'a>, budget: Bytes) -> Context<'i, 'a> {
    Context {
        index,
        budget,
        keep_order: false,
        orders: order::candidates(index).into_iter().map(|o| o.1).collect(),
        evaluator: Evaluator::new(index),
        seed: 7,
        enough: index.base_time,
        work: 40_000,
    }
}

fn quick() -> Options {
    Options { work: Some(60_000), ..Options::default() }
}

#[test]
fn every_strategy_is_lawful_and_scored_exactly() {
    let (mut candidates, mut recomputing) = (0, 0);
    for seed in 0..150 {
        let problem = random_problem(seed, 4 + (seed as usize * 5) % 40);
        let index = Index::new(&problem).expect("well formed");
        let peak = keep_all::run(&mut context(&index, 0)).score.peak;
        let floor = working_set_bound(&index);
        for part in [0, 2, 4] {
            let budget = floor + (peak - floor) * part / 4;
            let mut context = context(&index, budget);
            let mut all = square_root::run(&mut context);
            all.extend(chain::run(&mut context));
            all.extend(super::strategies::foresight::run(&mut context));
            all.extend(hindsight::run(&mut context));
            all.extend(window_repair::run(&mut context));
            all.push(keep_all::run(&mut context));
            let start = all[all.len() - 1].clone();
            all.extend(dtr_seeds::run(&mut context));
            all.push(local_search::improve(&mut context, &start, 0.3, 20_000, 1));
            all.push(sequence_search::improve(&mut context, &start, 0.3, 20_000, 1));
            all.extend(order_search::improve(&mut context, &start, 0.02, 20_000, 1));
            all.push(neighbourhood::improve(&mut context, &start, 0.3, 20_000, 1));
            all.push(ilp_windows::improve(&mut context, &start, 200_000));
            for candidate in all {
                let schedule = assemble(&problem, &candidate.sequence, budget);
                let name = candidate.strategy;
                let replay =
                    replay(&problem, &schedule).unwrap_or_else(|e| panic!("seed {seed}, {name}: {e}"));
                let score = context.evaluator.evaluate(&candidate.sequence, budget);
                assert_eq!((replay.peak, replay.time), (score.peak, score.time), "seed {seed}, {name}");
                assert!(replay.peak >= floor, "seed {seed}, {name}: below the working set bound");
                candidates += 1;
                recomputing += usize::from(schedule.recomputations() > 0);
            }
        }
    }
    assert!(candidates > 2_000 && recomputing > 500, "{candidates} candidates, {recomputing} recompute");
}

#[test]
fn windows_improve_what_checkpoints_leave() {
    let (mut improved, mut tried) = (0, 0);
    for seed in 0..24 {
        let problem = random_problem(500 + seed, 40);
        let index = Index::new(&problem).expect("well formed");
        let peak = keep_all::run(&mut context(&index, 0)).score.peak;
        let floor = working_set_bound(&index);
        let budget = floor + (peak - floor) / 2;
        let mut context = context(&index, budget);
        for start in square_root::run(&mut context) {
            let found = ilp_windows::improve(&mut context, &start, 400_000);
            assert!(found.score.key(budget) <= start.score.key(budget), "seed {seed}");
            replay(&problem, &assemble(&problem, &found.sequence, budget))
                .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            improved += usize::from(found.score.key(budget) < start.score.key(budget));
            tried += 1;
        }
    }
    assert!(improved >= 5, "{improved} of {tried}");
}

#[test]
fn hindsight_keeps_within_its_work_on_long_chains() {
    let mut build = Build::new();
    let mut forward = Vec::new();
    for _ in 0..1_500 {
        let read: Vec<u32> = forward.last().copied().into_iter().collect();
        let node = build.bare(&read, 1);
        forward.push(build.output(node, 1));
    }
    let mut gradient = None;
    for &value in forward.iter().rev() {
        let read: Vec<u32> = gradient.into_iter().chain([value]).collect();
        let node = build.bare(&read, 1);
        gradient = Some(build.output(node, 1));
        build.0.nodes[node as usize].required = true;
    }
    let index = Index::new(&build.0).expect("well formed");
    let mut context = context(&index, 300);
    let before = context.evaluator.work;
    hindsight::run(&mut context);
    let spent = context.evaluator.work - before;
    assert!(spent <= context.work, "{spent} of {}", context.work);
}

#[test]
fn plans_fit_their_budget_and_rising_budgets_never_take_longer() {
    let mut planned = 0;
    for seed in 0..40 {
        let problem = random_problem(1000 + seed, 5 + (seed as usize * 7) % 30);
        let index = Index::new(&problem).expect("well formed");
        let keep = keep_all::run(&mut context(&index, 0)).score.peak;
        let floor = working_set_bound(&index);
        let budgets: Vec<Bytes> = (0..=5).map(|i| floor + (keep - floor) * i / 5).chain([keep * 2]).collect();
        let results = plan_many(&problem, &budgets, &quick()).expect("well formed");
        let mut before = Nanos::MAX;
        for (result, budget) in results.iter().zip(&budgets) {
            let Ok(plan) = result else {
                assert_eq!(before, Nanos::MAX, "seed {seed}: a larger budget failed");
                continue;
            };
            let replay = replay(&problem, &plan.schedule).expect("lawful");
            assert!(plan.arena <= *budget && replay.peak <= *budget, "seed {seed}");
            assert_eq!((plan.live_peak, plan.time), (replay.peak, replay.time));
            assert!(plan.time <= before, "seed {seed}: slower with more memory");
            before = plan.time;
            planned += 1;
        }
        assert_eq!(before, index.base_time, "seed {seed}: no recomputation with memory in abundance");
        let Ok(all) = results.last().expect("seven budgets") else { panic!("seed {seed}") };
        let at_its_arena = plan(&problem, all.keep_all.arena, &quick()).expect("keep-all fits its own arena");
        assert_eq!(at_its_arena.time, index.base_time, "seed {seed}: recomputes at keep-all's arena");
    }
    assert!(planned > 120, "{planned}");
}

#[test]
fn every_budget_from_the_least_one_on_is_planned_and_refusals_name_it() {
    let mut refused = 0;
    for seed in 0..24 {
        let problem = random_problem(3000 + seed, 8 + (seed as usize * 5) % 30);
        for live_bytes_only in [false, true] {
            let options = Options { live_bytes_only, ..quick() };
            let (least, plans) = plan_least(std::slice::from_ref(&problem), &options).expect("well formed");
            let need = |p: &Planned| if live_bytes_only { p.live_peak } else { p.arena };
            assert!(need(&plans[0]) <= least, "seed {seed}");
            for percent in [0, 1, 2, 5, 20] {
                let budget = least + least * percent / 100;
                let plan = plan(&problem, budget, &options).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                assert!(need(&plan) <= budget, "seed {seed} at +{percent} %");
                assert_eq!(fits(&problem, budget, &options).expect("well formed"), Ok(()), "seed {seed}");
            }
            for below in [least - 1, least - least / 8] {
                if let Err(PlanError::Infeasible(refusal)) = plan(&problem, below, &options) {
                    let named = if live_bytes_only { refusal.least_peak } else { refusal.least_arena };
                    assert_eq!(named, least, "seed {seed}: another figure at {below}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 60, "{refused}");
}

#[test]
fn the_same_inputs_give_the_same_plan() {
    let problem = random_problem(77, 30);
    let index = Index::new(&problem).expect("well formed");
    let keep = keep_all::run(&mut context(&index, 0)).score.peak;
    let budget = keep - keep / 5;
    let (a, b) = (plan(&problem, budget, &quick()), plan(&problem, budget, &quick()));
    assert_eq!(a, b);
}

/// Least time of any schedule within the budget by Dijkstra over (what has run, what is live). Plain problems only: no views,
/// overwrites, states or choices; lives are freed as early as one likes, which is never worse than the last read.
fn exhaustive(problem: &Problem, budget: Bytes) -> Option<Nanos> {
    let nodes = problem.nodes.len();
    assert!(nodes <= 9 && problem.values.len() <= 16);
    let goal: u32 = (0..nodes).filter(|&n| problem.nodes[n].required).map(|n| 1 << n).sum();
    let bytes = |live: u32| -> Bytes {
        let on = problem.values.iter().enumerate().filter(|(v, _)| live >> v & 1 == 1);
        on.map(|(_, v)| v.bytes).sum::<Bytes>() + problem.resident
    };
    let mut best: std::collections::BTreeMap<(u32, u32), Nanos> = std::collections::BTreeMap::new();
    let mut queue = std::collections::BTreeSet::from([(0, 0u32, 0u32)]);
    best.insert((0, 0), 0);
    while let Some((time, ran, live)) = queue.pop_first() {
        if best[&(ran, live)] < time {
            continue;
        }
        if ran & goal == goal {
            return Some(time);
        }
        let mut go = |ran: u32, live: u32, time: Nanos| {
            let known = best.entry((ran, live)).or_insert(Nanos::MAX);
            if time < *known {
                *known = time;
                queue.insert((time, ran, live));
            }
        };
        for value in 0..problem.values.len() {
            if live >> value & 1 == 1 {
                go(ran, live & !(1 << value), time);
            }
        }
        for (n, node) in problem.nodes.iter().enumerate() {
            let have = node.inputs.iter().all(|&v| live >> v & 1 == 1);
            let made: u32 = node.outputs.iter().map(|&v| 1 << v).sum();
            if have && bytes(live | made) <= budget {
                go(ran | 1 << n, live | made, time + node.implementations[0].time);
            }
        }
    }
    None
}

#[test]
fn tiny_problems_against_the_exhaustive_optimum() {
    let (mut solved, mut refused) = (0, 0);
    let options = Options { live_bytes_only: true, ..quick() };
    for seed in 0..240 {
        let mut random = Random::new(seed);
        let mut build = Build::new();
        let mut values = Vec::new();
        for i in 0..4 + random.below(4) {
            let count = if i == 0 { 0 } else { 1 + random.below(2.min(i)) };
            let mut inputs: Vec<u32> = (0..count).map(|_| values[random.below(values.len())]).collect();
            inputs.sort_unstable();
            inputs.dedup();
            let node = build.bare(&inputs, 1 + random.below(5) as Nanos);
            for _ in 0..1 + usize::from(random.below(4) == 0) {
                values.push(build.output(node, 1 + random.below(4) as Bytes));
            }
            build.0.nodes[node as usize].required = true;
        }
        let problem = build.0;
        let index = Index::new(&problem).expect("well formed");
        let keep = keep_all::run(&mut context(&index, 0)).score.peak;
        let floor = working_set_bound(&index);
        for budget in floor..=keep {
            let optimum = exhaustive(&problem, budget);
            match (optimum, plan(&problem, budget, &options)) {
                (Some(optimum), Ok(plan)) => {
                    assert_eq!(plan.time, optimum, "seed {seed}, budget {budget}");
                    let bound = plan.bound.expect("a bound");
                    assert!(plan.base_time + bound <= optimum, "seed {seed}, budget {budget}: bound {bound}");
                    assert_ne!(plan.stop, StopReason::WorkLimit, "seed {seed}, budget {budget}: not proved");
                    solved += 1;
                }
                (None, Err(PlanError::Infeasible(refusal))) => {
                    assert!(refusal.proved, "seed {seed}, budget {budget}: not proved impossible");
                    refused += 1;
                }
                (optimum, plan) => panic!("seed {seed}, budget {budget}: {optimum:?} but {plan:?}"),
            }
        }
    }
    assert!(solved > 300 && refused > 10, "{solved} solved, {refused} refused");
}

/// w is read in the forward pass by a node whose large result the backward pass needs again; its commit is ready before.
fn commit_problem() -> Problem {
    let mut b = Build::new();
    let w = b.parameter(1);
    let x = b.staged(1);
    let a = b.node(&[x, w], 10, 5);
    let c = b.node(&[a], 1, 1);
    let gradient = b.node(&[c], 6, 1);
    let commit = b.commit(w, &[gradient]);
    let new = b.0.nodes[commit as usize].outputs[0];
    let big = b.node(&[c, new], 10, 1);
    let s = b.node(&[big], 1, 1);
    let last = b.node(&[s, a], 1, 1);
    b.require(last);
    b.0
}

#[test]
fn recomputation_from_an_old_version_is_rejected_and_never_planned() {
    let problem = commit_problem();
    let steps = |nodes: &[u32]| assemble(&problem, nodes, Bytes::MAX);
    // Dropping the result and making it again after the commit would need 14 bytes: less than keeping it, and wrong.
    let wrong = steps(&[0, 1, 2, 3, 4, 5, 0, 6]);
    assert!(matches!(replay(&problem, &wrong), Err(ReplayError::ReadAfterCommit { step: 6, commit: 3, .. })));
    let mut without_rule = problem.clone();
    without_rule.states.clear();
    let cheap = plan(&without_rule, 18, &quick()).expect("feasible without the rule");
    assert!(cheap.time > cheap.base_time);
    // With the rule the big value and the result live together.
    match plan(&problem, 18, &quick()) {
        Err(PlanError::Infeasible(refusal)) => assert!(refusal.least_peak > 18),
        other => panic!("planned: {other:?}"),
    }
    let lawful = plan(&problem, 24, &quick()).expect("feasible");
    replay(&problem, &lawful.schedule).expect("lawful");
}

#[test]
fn broken_schedules_are_named() {
    let mut b = Build::new();
    let x = b.staged(4);
    let a = b.node(&[x], 4, 1);
    let r = b.node(&[a], 4, 1);
    let out = b.node(&[r, x], 2, 1);
    b.require(out);
    b.0.nodes[1].overwrites.push((0, 0));
    b.0.nodes[2].once = true;
    b.0.nodes[2].overwrites.push((0, 0));
    b.0.values[out as usize].keep_to_end = true;
    let problem = b.0;
    let step =
        |node, overwrites: &[(u32, u32)]| Step { node, implementation: 0, overwrites: overwrites.to_vec() };
    let run = |steps: &[Step]| replay(&problem, &Schedule { steps: steps.to_vec() });
    let fine = run(&[step(0, &[]), step(1, &[(0, 0)]), step(2, &[])]).expect("lawful");
    assert_eq!(fine.live, [8, 8, 10]);
    assert_eq!((fine.peak, fine.peak_step, fine.time), (10, 2, 3));
    assert!(matches!(run(&[step(1, &[])]), Err(ReplayError::InputMissing { step: 0, .. })));
    assert!(matches!(run(&[step(0, &[])]), Err(ReplayError::RequiredMissing { .. })));
    assert!(matches!(run(&[step(9, &[])]), Err(ReplayError::Unknown { step: 0 })));
    let twice = run(&[step(0, &[]), step(1, &[]), step(2, &[]), step(2, &[])]);
    assert!(matches!(twice, Err(ReplayError::RunTwice { step: 3, .. })));
    // The first node's result is overwritten, then read again.
    let stale = run(&[step(0, &[]), step(1, &[(0, 0)]), step(1, &[]), step(2, &[])]);
    assert!(matches!(stale, Err(ReplayError::Overwritten { step: 2, overwrite: 1, .. })));
    let offered = run(&[step(0, &[(0, 0)]), step(1, &[]), step(2, &[])]);
    assert!(matches!(offered, Err(ReplayError::BadOverwrite { reason: OverwriteFault::NotOffered, .. })));
}

#[test]
fn a_view_keeps_its_storage_and_blocks_overwriting() {
    let mut b = Build::new();
    let x = b.staged(1);
    let a = b.node(&[x], 8, 1);
    let v = b.view(a);
    let r = b.node(&[a], 8, 1);
    let out = b.node(&[r, v], 1, 1);
    b.require(out);
    b.0.nodes[2].overwrites.push((0, 0));
    let problem = b.0;
    let schedule = assemble(&problem, &[0, 1, 2, 3], Bytes::MAX);
    assert!(schedule.steps[2].overwrites.is_empty(), "the view is read later");
    assert_eq!(replay(&problem, &schedule).expect("lawful").live, [9, 8, 16, 17]);
    // Made again from a new instance, the view no longer lies on the overwritten storage.
    let schedule = assemble(&problem, &[0, 2, 0, 1, 3], Bytes::MAX);
    assert_eq!(schedule.steps[1].overwrites, [(0, 0)]);
    assert_eq!(replay(&problem, &schedule).expect("lawful").peak, 17);
}

#[test]
fn a_smaller_workspace_is_chosen_before_recomputation() {
    let mut b = Build::new();
    let x = b.staged(2);
    let a = b.node(&[x], 10, 50);
    let c = b.node(&[x], 2, 5);
    let out = b.node(&[a, c], 1, 1);
    b.require(out);
    b.0.nodes[1].implementations =
        vec![Implementation { workspace: 6, time: 5 }, Implementation { workspace: 0, time: 7 }];
    // In this order the workspace is beside the large value.
    let options = Options { keep_order: true, ..quick() };
    let plan = plan(&b.0, 16, &options).expect("feasible");
    assert_eq!((plan.time, plan.schedule.recomputations()), (58, 0));
    assert_eq!(plan.schedule.steps[1].implementation, 1);
}

#[test]
fn a_kept_order_is_that_of_the_first_executions_of_views_too() {
    let (mut plans, mut repeated) = (0, 0);
    for seed in 0..60 {
        let problem = random_problem(7000 + seed, 30 + (seed as usize * 3) % 30);
        let index = Index::new(&problem).expect("well formed");
        let options = Options { keep_order: true, live_bytes_only: true, ..quick() };
        let floor = working_set_bound(&index);
        let high = plan(&problem, Bytes::MAX / 2, &options).expect("no limit").keep_all.live_peak;
        for part in 1..4 {
            let Ok(found) = plan(&problem, floor + (high - floor) * part / 4, &options) else { continue };
            let mut seen = vec![false; index.nodes()];
            let firsts = found.schedule.steps.iter().map(|s| s.node);
            let firsts: Vec<u32> =
                firsts.filter(|&n| !std::mem::replace(&mut seen[n as usize], true)).collect();
            assert_eq!(firsts, index.given, "seed {seed}");
            plans += 1;
            repeated += found.schedule.recomputations();
        }
    }
    assert!(plans > 60 && repeated > 100, "{plans} plans, {repeated} repeated executions");
}

#[test]
fn keep_all_of_any_order_equals_its_own_decoding() {
    for seed in 0..60 {
        let problem = random_problem(500 + seed, 20);
        let index = Index::new(&problem).expect("well formed");
        let mut evaluator = Evaluator::new(&index);
        for (name, order) in order::candidates(&index) {
            assert!(index.is_order(&order));
            let genome = Genome::keep_all(&index, order.clone());
            let decoded = evaluator.decode(&genome, Bytes::MAX, Nanos::MAX).expect("no cutoff");
            assert_eq!(evaluator.sequence, order, "{name}");
            assert_eq!(decoded, evaluator.evaluate(&order, Bytes::MAX));
            assert_eq!(hindsight::from_sequence(&index, &order), genome);
        }
    }
}

#[test]
fn the_timeline_agrees_with_the_evaluation() {
    let (mut compared, mut shared) = (0, 0);
    for seed in 0..120 {
        let problem = random_problem(3000 + seed, 4 + (seed as usize * 5) % 40);
        let index = Index::new(&problem).expect("well formed");
        let mut random = Random::new(seed);
        let mut evaluator = Evaluator::new(&index);
        evaluator.fastest_only = true;
        let mut timeline = Timeline::new(&index, &index.given);
        for round in 0..60 {
            let mark = timeline.mark();
            let node = index.given[random.below(index.given.len())];
            let made = index.inputs.row(node).iter().filter_map(|&v| {
                let producer = index.producer[v as usize];
                (producer != NONE).then(|| timeline.runs(producer)[0])
            });
            let from = made.max().unwrap_or(0);
            let repeat = timeline.runs(node).get(1).copied();
            match (random.below(3), repeat) {
                (0, Some(slot)) => timeline.remove(slot),
                _ if index.once[node as usize] => continue,
                _ => {
                    let mut before = timeline.after(from).unwrap_or(timeline.end());
                    for _ in 0..random.below(12) {
                        before = timeline.after(before).unwrap_or(timeline.end());
                    }
                    if let Err(full) = timeline.insert(&[node], before) {
                        timeline.commit();
                        timeline.make_room(full);
                        continue;
                    }
                }
            }
            if random.below(3) == 0 {
                timeline.undo(mark);
            }
            let sequence = timeline.sequence();
            let score = evaluator.evaluate(&sequence, Bytes::MAX);
            assert_eq!((timeline.peak(), timeline.time), (score.peak, score.time), "seed {seed}, {round}");
            compared += 1;
            let bare = Schedule {
                steps: sequence
                    .iter()
                    .map(|&node| Step { node, implementation: 0, overwrites: Vec::new() })
                    .collect(),
            };
            shared += usize::from(replay(&problem, &bare).is_ok_and(|r| r.peak > score.peak));
        }
    }
    assert!(compared > 3_000 && shared > 100, "{compared} compared, {shared} overwrite");
}

#[test]
fn a_larger_budget_is_hardly_ever_slower_across_compiles() {
    let Some(folder) = test_support::data("plans/graphs") else { return };
    let mut worst: f64 = 0.0;
    for name in ["chain16", "unet_coarse"] {
        let text = std::fs::read_to_string(folder.join(format!("{name}.json"))).expect("a graph");
        let problem = super::import_json::import(&text).expect("a graph").problem;
        let index = Index::new(&problem).expect("well formed");
        let keep = keep_all::run(&mut context(&index, 0)).score.peak;
        let mut least: Option<f64> = None;
        for part in (36..98).step_by(4) {
            let budget = keep * part / 100;
            let options = Options { live_bytes_only: true, work: Some(150_000), ..Options::default() };
            let Ok(plan) = plan(&problem, budget, &options) else {
                assert_eq!(least, None, "{name}: a larger budget failed");
                continue;
            };
            let extra = plan.extra_fraction();
            let slower = least.map_or(0.0, |l| extra - l);
            println!("{name} {part} {extra:.5} {slower:.5}");
            worst = worst.max(slower);
            least = Some(least.map_or(extra, |l: f64| l.min(extra)));
        }
    }
    assert!(worst <= 0.003, "slower by {worst}");
}
