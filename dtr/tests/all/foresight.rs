//! Plans of known programs: every one is replayed by a checker of its own, and chains cost what theory says.

use dtr::foresight::{Action, Failure, Limits, Schedule, Step, Straight, plan, plan_below, plan_within};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// What a plan does, step by step, against the rules; returns the most bytes in use.
fn check(p: &Straight, s: &Schedule) -> u64 {
    let mut there = vec![false; p.bytes.len()];
    for (i, maker) in p.makers.iter().enumerate() {
        there[i] = *maker == Straight::OUTSIDE || p.bytes[i] == 0;
    }
    p.resident.iter().for_each(|s| there[*s as usize] = true);
    let mut used: u64 = p.resident.iter().map(|s| p.bytes[*s as usize]).sum();
    let (mut next, mut peak, mut repeats, mut cost) = (p.ran, used, 0, 0);
    for action in &s.actions {
        match *action {
            Action::Drop { storage } => {
                assert!(std::mem::replace(&mut there[storage as usize], false), "{storage} dropped twice");
                used -= p.bytes[storage as usize];
            }
            Action::Run { step, again, over } => {
                let op = &p.steps[step as usize];
                if again {
                    assert!((step as usize) < next && !op.once, "op {step} runs again");
                    assert!(next <= p.last, "op {step} runs again after the last ones began");
                    (repeats, cost) = (repeats + 1, cost + op.cost);
                } else {
                    assert_eq!(step as usize, next, "ops run in order");
                    next += 1;
                }
                assert!(op.reads.iter().all(|s| there[*s as usize]), "op {step} reads what is not there");
                assert!(!over || (!again && op.over.is_some()));
                let over = op.over.filter(|_| over);
                let made: u64 = op.makes.iter().map(|s| p.bytes[*s as usize]).sum();
                peak = peak.max(used + made + op.workspace - over.map_or(0, |(m, _)| p.bytes[m as usize]));
                if let Some((_, read)) = over {
                    there[read as usize] = false;
                    used -= p.bytes[read as usize];
                }
                for m in &op.makes {
                    used += if there[*m as usize] { 0 } else { p.bytes[*m as usize] };
                    there[*m as usize] = true;
                }
            }
        }
    }
    assert_eq!(next, p.steps.len());
    assert!(p.results.iter().all(|s| there[*s as usize]), "a result is not there");
    assert_eq!((s.repeats, s.repeat_cost), (repeats, cost));
    assert_eq!(s.peak, peak);
    assert_eq!(stale_read(p, s), None, "an op reads what is overwritten");
    peak
}

/// The first op that reads what a commit has overwritten.
fn stale_read(p: &Straight, s: &Schedule) -> Option<u32> {
    let mut stale = vec![false; p.bytes.len()];
    for action in &s.actions {
        if let Action::Run { step, .. } = *action {
            let op = &p.steps[step as usize];
            if op.reads.iter().any(|s| stale[*s as usize]) {
                return Some(step);
            }
            op.commits.iter().for_each(|s| stale[*s as usize] = true);
        }
    }
    None
}

#[derive(Default)]
struct Maker(Straight);

impl Maker {
    fn op(&mut self, reads: &[u32], bytes: &[u64], cost: u64) -> Vec<u32> {
        let step = self.0.steps.len() as u32;
        let mut reads = reads.to_vec();
        reads.sort_unstable();
        reads.dedup();
        let first = self.0.bytes.len() as u32;
        let makes: Vec<u32> = (first..first + bytes.len() as u32).collect();
        self.0.bytes.extend(bytes);
        self.0.makers.extend(bytes.iter().map(|_| step));
        self.0.steps.push(Step { reads, makes: makes.clone(), cost, ..Step::default() });
        makes
    }

    fn one(&mut self, reads: &[u32]) -> u32 {
        self.op(reads, &[1], 1)[0]
    }

    fn done(mut self, results: &[u32]) -> Straight {
        self.0.results = results.to_vec();
        self.0.last = self.0.steps.len();
        self.0
    }
}

/// A chain of `n` and its gradient.
fn chain(n: usize) -> Straight {
    let mut m = Maker::default();
    let mut forward = vec![m.one(&[])];
    for i in 1..n {
        forward.push(m.one(&[forward[i - 1]]));
    }
    let mut g = m.one(&[forward[n - 1]]);
    for f in forward.iter().rev() {
        g = m.one(&[g, *f]);
    }
    m.done(&[g])
}

/// Two values carried through a loop, of which gradients read only one: a position and its velocity.
fn carried(n: usize) -> Straight {
    let mut m = Maker::default();
    let (mut x, mut v) = (m.one(&[]), m.one(&[]));
    let mut saved = Vec::new();
    for _ in 0..n {
        let square = m.one(&[x]);
        let force = m.one(&[square, x]);
        v = m.one(&[v, force]);
        saved.push((x, square));
        x = m.one(&[x, v]);
    }
    let (mut gx, mut gv) = (m.one(&[x]), m.one(&[x]));
    for (x, square) in saved.into_iter().rev() {
        gv = m.one(&[gv, gx]);
        let g = m.one(&[gv, x, square]);
        gx = m.one(&[gx, g]);
    }
    m.done(&[gx, gv])
}

fn limits(budget: u64) -> Limits {
    Limits { budget, repeat_cost: u64::MAX }
}

/// Theorem 3.1 of the paper: with a budget of twice the square root, a chain of n costs at most a constant times n; here n, one more forward
/// pass.
#[test]
fn a_chain_at_twice_the_root_costs_one_more_forward_pass() {
    for n in [16, 100, 1024, 10_000] {
        let p = chain(n);
        let root = (n as f64).sqrt().ceil() as u64;
        let s = plan(&p, limits(2 * root + 3)).unwrap();
        assert!(check(&p, &s) <= 2 * root + 3);
        assert!(s.repeat_cost <= 5 * n as u64 / 4, "{n}: {} repeated", s.repeat_cost);
        // Less than the root: recursion, whose cost grows with the logarithm.
        let s = plan(&p, limits(root.div_ceil(2) + 5)).unwrap();
        assert!(check(&p, &s) <= root.div_ceil(2) + 5);
        assert!(s.repeat_cost <= 8 * n as u64, "{n}: {} repeated", s.repeat_cost);
    }
}

/// What no gradient reads must be kept all the same where checkpoints need it.
#[test]
fn a_simulation_is_checkpointed_with_all_that_it_carries() {
    let p = carried(2_000);
    let free = plan(&p, limits(u64::MAX)).unwrap();
    assert_eq!((free.repeats, free.evictions, check(&p, &free)), (0, 0, free.peak));
    for percent in [90, 75, 50, 30, 20, 10, 8] {
        let budget = free.peak * percent / 100;
        let s = plan(&p, limits(budget)).unwrap();
        assert!(check(&p, &s) <= budget);
        assert!(
            s.repeat_cost <= free.first_cost * 2 / 3,
            "{percent} %: {} of {}",
            s.repeat_cost,
            free.first_cost
        );
    }
}

/// A random program with some ops that run once, in-place updates, scratch, and storages that are there at the start.
fn random(seed: u64) -> Straight {
    let mut r = StdRng::seed_from_u64(seed);
    let n = r.random_range(5..60);
    let mut m = Maker::default();
    let mut values: Vec<u32> = Vec::new();
    for i in 0..n {
        let mut reads = Vec::new();
        for _ in 0..r.random_range(0..4usize).min(values.len()) {
            let near = r.random_bool(0.5);
            let from = if near { values.len().saturating_sub(4) } else { 0 };
            reads.push(values[r.random_range(from..values.len())]);
        }
        let sizes: Vec<u64> = (0..r.random_range(1..4)).map(|_| r.random_range(0..9)).collect();
        let made = m.op(&reads, &sizes, r.random_range(0..20));
        let step = &mut m.0.steps[i];
        step.once = r.random_bool(0.1);
        step.leaf = reads.is_empty() && !step.once;
        step.workspace = if r.random_bool(0.2) { 5 } else { 0 };
        values.extend(made);
    }
    let results: Vec<u32> = values.iter().rev().take(2).copied().collect();
    let mut p = m.done(&results);
    if r.random_bool(0.5) {
        p.last = r.random_range(n.saturating_sub(3)..n);
        for step in &mut p.steps[p.last..] {
            step.once = true;
        }
    }
    if r.random_bool(0.3) {
        p.ran = r.random_range(0..n / 2);
        let makers = p.makers.iter().enumerate().filter(|(_, m)| (**m as usize) < p.ran);
        let mut there: Vec<u32> =
            makers.map(|(s, _)| s as u32).filter(|s| p.bytes[*s as usize] > 0).collect();
        there.retain(|s| p.steps[p.makers[*s as usize] as usize].once || r.random_bool(0.6));
        p.resident = there;
    }
    // In place where nothing else reads the argument.
    for i in p.ran..n {
        let readers = |s: u32| p.steps.iter().filter(|o| o.reads.contains(&s)).count();
        let fits = |(made, read): &(u32, u32)| {
            p.bytes[*made as usize] == p.bytes[*read as usize]
                && p.bytes[*made as usize] > 0
                && readers(*read) == 1
                && !p.results.contains(read)
                && !p.steps[p.makers[*read as usize] as usize].once
                && !p.steps[p.makers[*read as usize] as usize].leaf
        };
        let step = &p.steps[i];
        let pairs = step.makes.iter().flat_map(|m| step.reads.iter().map(move |r| (*m, *r)));
        let over = pairs.clone().find(fits);
        p.steps[i].over = over;
    }
    p
}

/// A random program that overwrites states on its way, each at any time after their readers.
fn updating(seed: u64) -> Straight {
    let mut p = random(seed);
    let mut r = StdRng::seed_from_u64(seed ^ 0x5eed);
    for _ in 0..r.random_range(1..4) {
        let state = p.bytes.len() as u32;
        p.bytes.push(0);
        p.makers.push(Straight::OUTSIDE);
        let n = p.steps.len();
        let often = r.random_range(0.02..0.3);
        let mut at = p.ran;
        for (i, step) in p.steps.iter_mut().enumerate().filter(|(_, s)| s.commits.is_empty() && !s.leaf) {
            if r.random_bool(often) {
                step.reads.push(state);
                at = at.max(i + 1);
            }
        }
        let at = r.random_range(at..=n);
        let overwritten = |s: u32| p.steps.iter().any(|o| o.over.is_some_and(|(_, read)| read == s));
        let before = |s: &u32| (p.makers[*s as usize] as usize) < at && !overwritten(*s);
        let made: Vec<u32> = (0..state).filter(before).collect();
        let mut reads: Vec<u32> =
            (0..made.len().min(2)).map(|_| made[r.random_range(0..made.len())]).collect();
        reads.push(state);
        reads.dedup();
        p.steps.insert(at, Step { reads, cost: 1, once: true, commits: vec![state], ..Step::default() });
        p.makers.iter_mut().filter(|m| **m != Straight::OUTSIDE && **m as usize >= at).for_each(|m| *m += 1);
        p.last += usize::from(at <= p.last);
    }
    p
}

/// What is made from an old version stays, or comes back before the commit, and only where the planner is told of it.
#[test]
fn nothing_is_repeated_from_what_is_overwritten() {
    let (mut repeated, mut failed, mut caught) = (0, 0, 0);
    for seed in 0..3_000 {
        let p = updating(seed);
        let free = plan(&p, limits(u64::MAX)).unwrap();
        assert_eq!((check(&p, &free), free.evictions), (free.peak, 0), "{seed}");
        let mut untold = p.clone();
        untold.steps.iter_mut().for_each(|s| s.commits.clear());
        for percent in [95, 80, 60, 40] {
            let there = p.resident.iter().map(|s| p.bytes[*s as usize]).sum();
            let limits =
                Limits { budget: (free.peak * percent / 100).max(there), repeat_cost: free.first_cost * 64 };
            match plan(&p, limits) {
                Ok(s) => {
                    assert!(check(&p, &s) <= limits.budget, "{seed} at {percent} %");
                    repeated += u64::from(s.repeats > 0);
                }
                Err(e) => {
                    assert!(!matches!(e, Failure::Stale(_)), "{seed} at {percent} %: {e}");
                    failed += 1;
                }
            }
            caught += usize::from(plan(&untold, limits).is_ok_and(|s| stale_read(&p, &s).is_some()));
        }
    }
    assert!(
        repeated > 1_000 && caught > 300 && repeated > failed,
        "{repeated} repeated, {failed} failed, {caught} caught"
    );
}

/// A chain of layers, each with a state of its own: what reads it forward and backward, and its update.
fn layers(n: usize, early: bool) -> Straight {
    let mut m = Maker::default();
    let state = |m: &mut Maker| {
        m.0.bytes.push(0);
        m.0.makers.push(Straight::OUTSIDE);
        m.0.bytes.len() as u32 - 1
    };
    let states: Vec<u32> = (0..n).map(|_| state(&mut m)).collect();
    let mut forward = vec![m.one(&[])];
    for (i, s) in states.iter().enumerate() {
        forward.push(m.one(&[forward[i], *s]));
    }
    let mut g = m.one(&[forward[n]]);
    let mut updates = Vec::new();
    for (i, s) in states.iter().enumerate().rev() {
        let weight = m.op(&[g, forward[i]], &[4], 1)[0];
        g = m.one(&[g, *s]);
        updates.push((weight, *s));
        if early {
            m.op(&[weight, *s], &[], 1);
            m.0.steps.last_mut().unwrap().commits = vec![*s];
        }
    }
    let last = m.0.steps.len();
    for (weight, s) in updates.into_iter().filter(|_| !early) {
        m.op(&[weight, s], &[], 1);
        m.0.steps.last_mut().unwrap().commits = vec![s];
    }
    m.0.steps.iter_mut().filter(|s| !s.commits.is_empty()).for_each(|s| s.once = true);
    let mut p = m.done(&[g]);
    p.last = last;
    p
}

/// Gradients go as they come, and nothing is repeated that updates late would not repeat.
#[test]
fn early_commits_let_gradients_go() {
    let (late, early) = (layers(100, false), layers(100, true));
    let all = plan(&late, limits(u64::MAX)).unwrap().peak;
    let free = plan(&early, limits(u64::MAX)).unwrap();
    assert!(check(&early, &free) < all / 3, "{} of {all}", free.peak);
    for budget in [90, 60, 40, 25] {
        let s = plan(&early, limits(budget)).unwrap();
        assert!(check(&early, &s) <= budget);
        assert!(s.repeat_cost <= 2 * free.first_cost, "{budget}: {} of {}", s.repeat_cost, free.first_cost);
    }
    assert!(plan(&late, limits(90)).is_err(), "gradients alone take 400");
}

#[test]
fn random_programs_run_or_fail_cleanly() {
    let (mut tight, mut failed) = (0, 0);
    for seed in 0..3_000 {
        let p = random(seed);
        let free = plan(&p, limits(u64::MAX)).unwrap();
        assert_eq!((check(&p, &free), free.evictions), (free.peak, 0), "{seed}");
        for percent in [95, 80, 60, 40] {
            let there = p.resident.iter().map(|s| p.bytes[*s as usize]).sum();
            let budget = (free.peak * percent / 100).max(there);
            match plan(&p, Limits { budget, repeat_cost: free.first_cost * 64 }) {
                Ok(s) => {
                    assert!(check(&p, &s) <= budget, "{seed} at {percent} %");
                    assert_eq!(plan(&p, Limits { budget, repeat_cost: free.first_cost * 64 }).unwrap(), s);
                    tight += 1;
                }
                Err(Failure::Full { held, budget: b, .. }) => {
                    assert!(held <= b);
                    failed += 1;
                }
                Err(_) => failed += 1,
            }
        }
    }
    assert!(tight > failed, "{tight} plans, {failed} failures");
}

/// What fits into less is found where the budget itself has no plan, so that hardly a program is refused above what it runs in.
#[test]
fn less_is_tried_before_a_program_is_refused() {
    let (mut holes, mut left) = (0, 0);
    for seed in 0..300 {
        let p = if seed % 2 == 0 { random(seed) } else { updating(seed) };
        let free = plan(&p, limits(u64::MAX)).unwrap();
        let there: u64 = p.resident.iter().map(|s| p.bytes[*s as usize]).sum();
        let (mut ran, mut ran_alone) = (false, false);
        for budget in p.largest_need().max(there)..=free.peak {
            let limits = Limits { budget, repeat_cost: free.first_cost * 8 };
            let alone = plan(&p, limits).ok();
            let below = if alone.is_none() { plan_below(&p, limits, &mut { u64::MAX }) } else { None };
            if let Some(s) = &below {
                assert!(check(&p, s) <= budget && s.repeat_cost <= limits.repeat_cost, "{seed} at {budget}");
            }
            holes += u32::from(ran_alone && alone.is_none());
            left += u32::from(ran && alone.is_none() && below.is_none());
            ran_alone |= alone.is_some();
            ran |= alone.is_some() || below.is_some();
        }
    }
    assert!(holes > 0 && left * 10 < holes, "{holes} holes, {left} left");
}

/// What is planned depends on the effort only where it ends.
#[test]
fn effort_is_counted_and_ends_a_plan() {
    let mut ended = 0;
    for seed in 0..50 {
        let p = random(seed);
        let free = plan(&p, limits(u64::MAX)).unwrap();
        let limits = Limits { budget: free.peak * 3 / 4, repeat_cost: free.first_cost * 8 };
        let whole = plan(&p, limits);
        let mut left = 1 << 40;
        assert_eq!(plan_within(&p, limits, &mut left), whole);
        let used = (1 << 40) - left;
        assert!(used >= p.steps.len() as u64, "{seed}: {used}");
        let mut left = used;
        assert_eq!(plan_within(&p, limits, &mut left), whole);
        for part in [0, used / 4, used / 2] {
            let mut left = part;
            match plan_within(&p, limits, &mut left) {
                Err(Failure::Effort) => {
                    assert_eq!(left, 0);
                    ended += 1;
                }
                // The best of the ways that were tried.
                other => assert!(other.is_ok() && whole.is_ok(), "{seed}: {other:?}"),
            }
        }
    }
    assert!(ended > 50, "{ended}");
}
