//! Exhaustive search over order, recomputation, overwriting and implementations on small random problems: no bound may exceed it.
//!
//! The search is written from the meaning of a schedule in `problem.rs` alone. A state is which nodes have run and which values are
//! there, on which storages; dropping a value costs nothing and may happen at any time, which covers every possible last read.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::super::*;
use crate::planner::problem::{Implementation, Node, State, Value};

/// What is there: for each value the storage its instance lies on (0: not there, `FIXED`: in the state section), and storage sizes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Situation {
    done: u32,
    on: Vec<u8>,
    sizes: Vec<Bytes>,
}

const FIXED: u8 = u8::MAX;

impl Situation {
    fn start(problem: &Problem) -> Self {
        let mut s = Self { done: 0, on: vec![0; problem.values.len()], sizes: vec![0] };
        for (v, value) in problem.values.iter().enumerate().filter(|(_, v)| v.producer.is_none()) {
            s.on[v] = if value.resident { FIXED } else { s.fresh(value.bytes) };
        }
        s
    }

    fn fresh(&mut self, bytes: Bytes) -> u8 {
        self.sizes.push(bytes);
        self.sizes.len() as u8 - 1
    }

    /// Numbers storages by the first value on each and forgets the empty ones.
    fn tidy(mut self) -> Self {
        let mut sizes = vec![0];
        let mut new = vec![0u8; self.sizes.len()];
        for on in self.on.iter_mut().filter(|on| **on != FIXED && **on != 0) {
            if new[*on as usize] == 0 {
                sizes.push(self.sizes[*on as usize]);
                new[*on as usize] = sizes.len() as u8 - 1;
            }
            *on = new[*on as usize];
        }
        self.sizes = sizes;
        self
    }

    fn live(&self) -> Bytes {
        (1..self.sizes.len()).filter(|s| self.on.contains(&(*s as u8))).map(|s| self.sizes[s]).sum()
    }
}

/// What follows from running a node, in every way that is lawful and keeps the budget.
fn run(problem: &Problem, from: &Situation, n: usize, budget: Bytes) -> Vec<(Situation, Nanos)> {
    let node = &problem.nodes[n];
    let root = |mut v: u32| {
        while let Some(s) = problem.values[v as usize].view_of {
            v = s;
        }
        v
    };
    let committed = |s: &State| from.done >> s.commit & 1 == 1;
    let stale =
        problem.states.iter().filter(|s| committed(s)).any(|s| node.inputs.iter().any(|&v| root(v) == s.old));
    let commits = problem.states.iter().any(|s| s.commit as usize == n);
    if stale
        || ((node.once || commits) && from.done >> n & 1 == 1)
        || node.inputs.iter().any(|&v| from.on[v as usize] == 0)
    {
        return Vec::new();
    }
    let mut results = Vec::new();
    for chosen in 0..1u32 << node.overwrites.len() {
        let pairs: Vec<_> = node
            .overwrites
            .iter()
            .enumerate()
            .filter(|(k, _)| chosen >> k & 1 == 1)
            .map(|(_, p)| *p)
            .collect();
        let hosts: Vec<u8> = pairs.iter().map(|p| from.on[node.inputs[p.1 as usize] as usize]).collect();
        let distinct =
            |k: usize| !pairs[..k].iter().any(|p| p.0 == pairs[k].0) && !hosts[..k].contains(&hosts[k]);
        if !(0..pairs.len()).all(|k| distinct(k) && hosts[k] != FIXED) {
            continue;
        }
        let mut next = from.clone();
        // The old instances of the outputs have seen their last read.
        node.outputs.iter().for_each(|&v| next.on[v as usize] = 0);
        let mut during = next.clone();
        let mut lawful = true;
        for &v in &node.outputs {
            let value = &problem.values[v as usize];
            if let Some(source) = value.view_of {
                let host = next.on[source as usize];
                lawful &= host != 0 && !hosts.contains(&host);
                next.on[v as usize] = host;
                continue;
            }
            let position = node.outputs.iter().position(|o| *o == v).unwrap() as u32;
            match pairs.iter().position(|p| p.0 == position) {
                None => {
                    next.on[v as usize] = next.fresh(value.bytes);
                    during.on[v as usize] = during.fresh(value.bytes);
                }
                Some(k) => {
                    lawful &= next.sizes[hosts[k] as usize] >= value.bytes;
                    // Nothing on the storage is read later.
                    next.on.iter_mut().filter(|on| **on == hosts[k]).for_each(|on| *on = 0);
                    next.on[v as usize] = hosts[k];
                }
            }
        }
        if !lawful {
            continue;
        }
        next.done |= 1 << n;
        for i in &node.implementations {
            if problem.resident + during.live() + i.workspace <= budget {
                results.push((next.clone().tidy(), i.time));
            }
        }
    }
    results
}

/// The least total time of any schedule within the budget. `Err` if the search grows too large.
fn least_time(problem: &Problem, budget: Bytes, given_order: bool) -> Result<Option<Nanos>, ()> {
    let start = Situation::start(problem).tidy();
    if problem.resident + start.live() > budget {
        return Ok(None);
    }
    let required =
        (0..problem.nodes.len()).filter(|&n| problem.nodes[n].required).fold(0u32, |m, n| m | 1 << n);
    let goal = |s: &Situation| {
        s.done & required == required
            && problem.values.iter().zip(&s.on).all(|(v, on)| !v.keep_to_end || *on != 0)
    };
    let mut best: BTreeMap<Situation, Nanos> = BTreeMap::new();
    let mut queue = BinaryHeap::new();
    best.insert(start.clone(), 0);
    queue.push((Reverse(0), start));
    while let Some((Reverse(time), at)) = queue.pop() {
        if best[&at] < time {
            continue;
        }
        if goal(&at) {
            return Ok(Some(time));
        }
        if best.len() > 60_000 {
            return Err(());
        }
        let mut next = Vec::new();
        for v in (0..at.on.len()).filter(|&v| at.on[v] != 0 && at.on[v] != FIXED) {
            let mut dropped = at.clone();
            dropped.on[v] = 0;
            next.push((dropped.tidy(), 0));
        }
        for n in 0..problem.nodes.len() {
            if given_order && (at.done >> n) & 1 == 0 && at.done != (1 << n) - 1 {
                continue;
            }
            next.extend(run(problem, &at, n, budget));
        }
        for (situation, cost) in next {
            let time = time + cost;
            if best.get(&situation).is_none_or(|&b| time < b) {
                best.insert(situation.clone(), time);
                queue.push((Reverse(time), situation));
            }
        }
    }
    Ok(None)
}

/// A stream of small numbers.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

fn value(name: String, producer: Option<u32>, bytes: Bytes) -> Value {
    Value { name, producer, bytes, view_of: None, resident: false, keep_to_end: false }
}

/// A random problem of up to `most` nodes. `rich` ones have views, overwrites, commits, several outputs and implementations.
fn draw(draw: &mut Draw, most: u64, rich: bool) -> Problem {
    let mut p = Problem { alignment: 1, resident: draw.below(3), ..Problem::default() };
    let mut state = value("state".into(), None, 0);
    state.resident = true;
    p.values.push(state);
    if rich && draw.chance(40) {
        p.values.push(value("staged".into(), None, 1 + draw.below(4)));
    }
    let count = 3 + draw.below(most - 2);
    for n in 0..count as u32 {
        let mut inputs: Vec<u32> = Vec::new();
        for _ in 0..1 + draw.below(3) {
            // Lean towards recent values, so that graphs are deep, but also far back, as in a backward pass.
            let have = p.values.len() as u64;
            let v =
                if draw.chance(50) { have - 1 - draw.below(have.min(3)) } else { draw.below(have) } as u32;
            if !inputs.contains(&v) {
                inputs.push(v);
            }
        }
        let mut node = Node {
            name: format!("n{n}"),
            inputs,
            outputs: Vec::new(),
            implementations: vec![Implementation { workspace: draw.below(3), time: 1 + draw.below(6) }],
            overwrites: Vec::new(),
            once: rich && draw.chance(8),
            required: !rich || n as u64 + 1 == count || draw.chance(60),
        };
        if rich && draw.chance(20) {
            node.implementations[0].workspace += 3;
            let slower = Implementation {
                workspace: draw.below(2),
                time: node.implementations[0].time + 1 + draw.below(3),
            };
            node.implementations.push(slower);
        }
        if rich && draw.chance(20) {
            let source = node.inputs[0];
            let mut view = value(format!("v{n}"), Some(n), 0);
            view.view_of = Some(source);
            node.implementations = vec![Implementation { workspace: 0, time: draw.below(2) }];
            node.outputs.push(p.values.len() as u32);
            p.values.push(view);
        } else {
            for o in 0..if rich && draw.chance(25) { 2 } else { 1 } {
                let made = value(format!("n{n}.{o}"), Some(n), 1 + draw.below(5));
                node.outputs.push(p.values.len() as u32);
                p.values.push(made);
                let input = draw.below(node.inputs.len() as u64) as u32;
                if rich && draw.chance(40) && p.values[node.inputs[input as usize] as usize].view_of.is_none()
                {
                    node.overwrites.push((o, input));
                }
            }
        }
        p.nodes.push(node);
    }
    for v in 0..p.values.len() {
        if draw.chance(10) && p.values[v].producer.is_some() {
            p.values[v].keep_to_end = true;
        }
    }
    if rich && draw.chance(40) {
        let commit = draw.below(count) as u32;
        p.states.push(State { old: 0, commit });
    }
    p
}

/// Checks every bound on one problem under a few budgets; counts bounds above zero, exact ones, and those that
/// several moments at once raise.
fn check(problem: &Problem, given_order: bool, tally: &mut [u32; 5]) {
    let floor = least_peak(problem);
    if floor > 0 {
        assert!(
            matches!(least_time(problem, floor - 1, false), Ok(None) | Err(())),
            "least peak {floor} is too high: {problem:#?}"
        );
    }
    for budget in floor..floor + 5 {
        let Ok(least) = least_time(problem, budget, given_order) else { continue };
        let mut bounds = vec![
            order_free(problem, budget, Effort::default()),
            order_free(problem, budget, Effort::quick()),
        ];
        if given_order {
            bounds.push(keep_order(problem, budget, Effort::default()));
            bounds.push(sharpen(problem, budget, Order::Given, bounds[2], Nanos::MAX, 4_000_000));
        }
        bounds.insert(1, sharpen(problem, budget, Order::Free, bounds[0], Nanos::MAX, 4_000_000));
        tally[4] += u32::from(bounds[1].extra_time > bounds[0].extra_time);
        let Some(least) = least else { continue };
        tally[0] += 1;
        for bound in &bounds {
            assert!(!bound.is_infeasible(), "a schedule exists under {budget}: {problem:#?}");
            let extra = least - bound.base_time;
            assert!(
                bound.extra_time <= extra,
                "bound {bound:?} above the least extra time {extra} under {budget}: {problem:#?}"
            );
        }
        tally[1] += u32::from(least > bounds[0].base_time);
        tally[2] += u32::from(bounds[0].extra_time > 0);
        tally[3] += u32::from(
            least > bounds[0].base_time && bounds[bounds.len() - 1].extra_time == least - bounds[0].base_time,
        );
    }
}

#[test]
fn no_bound_exceeds_exhaustive_search_on_plain_graphs() {
    let mut stream = Draw(1);
    let mut tally = [0; 5];
    for round in 0..120 {
        let problem = draw(&mut stream, 9, false);
        check(&problem, round % 2 == 0, &mut tally);
    }
    println!("cases, with extra time, bounded above zero, exact, raised: {tally:?}");
    assert!(tally[0] > 200 && tally[2] > 10 && tally[3] > 5, "{tally:?}");
}

#[test]
fn no_bound_exceeds_exhaustive_search_on_rich_problems() {
    let mut stream = Draw(2);
    let mut tally = [0; 5];
    for _ in 0..250 {
        let problem = draw(&mut stream, 7, true);
        check(&problem, false, &mut tally);
    }
    println!("cases, with extra time, bounded above zero, exact, raised: {tally:?}");
    assert!(tally[0] > 300 && tally[2] > 5, "{tally:?}");
}

#[test]
fn problems_with_views_are_solved_to_the_optimum() {
    use crate::planner::{Options, PlanError, StopReason, plan};
    let mut stream = Draw(3);
    let options = Options { live_bytes_only: true, ..Options::default() };
    let (mut solved, mut above) = (0, 0);
    for round in 0..400 {
        let mut problem = draw(&mut stream, 8, true);
        problem.states.clear();
        for node in &mut problem.nodes {
            node.overwrites.clear();
            node.implementations.truncate(1);
        }
        let views = problem.values.iter().any(|v| v.view_of.is_some());
        if !views || problem.nodes.iter().any(|n| n.outputs.len() > 1) {
            continue;
        }
        let floor = least_peak(&problem);
        for budget in floor..floor + 4 {
            let Ok(least) = least_time(&problem, budget, false) else { continue };
            match (least, plan(&problem, budget, &options)) {
                (Some(least), Ok(plan)) => {
                    assert_eq!(plan.time, least, "round {round}, budget {budget}: {problem:#?}");
                    assert_ne!(
                        plan.stop,
                        StopReason::WorkLimit,
                        "round {round}, budget {budget}: not proved"
                    );
                    solved += 1;
                    above += u32::from(least > plan.base_time);
                }
                (None, Err(PlanError::Infeasible(refusal))) => assert!(refusal.proved, "round {round}"),
                (least, plan) => panic!("round {round}, budget {budget}: {least:?} but {plan:?}"),
            }
        }
    }
    assert!(solved > 100 && above > 15, "{solved} solved, {above} of them with extra time");
}
