//! The pass over the program that makes the schedule.

use super::{
    program::{Action, Failure, Schedule, Straight},
    score::Scores,
    state::{Place, State},
};
use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeSet, BinaryHeap},
};

/// How far a plan may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that may be in use at once.
    pub budget: u64,
    /// What repeated executions may cost together.
    pub repeat_cost: u64,
}

/// A score in the heap, lowest first; on equal scores the lowest number.
#[derive(Clone, Copy, PartialEq)]
struct Entry {
    score: f64,
    storage: u32,
    version: u32,
}

impl Eq for Entry {}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        self.score.total_cmp(&other.score).then(self.storage.cmp(&other.storage))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// How much a score may have grown and still be taken without comparing again.
const NEAR: f64 = 1.02;

struct Planner<'p> {
    state: State<'p>,
    scores: Scores,
    heap: BinaryHeap<Reverse<Entry>>,
    /// Counts a storage's entries in the heap; only the latest one counts.
    versions: Vec<u32>,
    limits: Limits,
    /// How much may be looked at.
    effort: u64,
    schedule: Schedule,
    position: u32,
    /// The op at which the most bytes are in use.
    peak_at: u32,
    idle: Vec<u32>,
    /// Storages that must not be made twice, with the op after which nothing can need them, latest first.
    expiring: Vec<(u32, u32)>,
    /// Of the ops that come back together.
    marks: Vec<u32>,
    mark: u32,
}

/// How much a storage counts that nothing needs now but something might. With much memory suspicion is a waste, with little memory
/// checkpoints must be whole; where none at all is better than a little, there is much.
const SUSPICIONS: [f64; 4] = [0.01, 0.0, 0.1, 1.0];

/// What repeated executions may cost at first, in first executions: a plan that needs more is tried when no other is found.
const PATIENCE: u64 = 2;

/// Plans a program within a budget: the cheapest of a few plans.
///
/// # Errors
///
/// [`Failure`]. The schedules are not the best possible: another policy may succeed.
pub fn plan(program: &Straight, limits: Limits) -> Result<Schedule, Failure> {
    plan_within(program, limits, &mut { u64::MAX })
}

/// The same with no more `effort` than is left, which it is lessened by: storages and ops that are looked at, to which the time that
/// planning takes is about proportional.
///
/// # Errors
///
/// As [`plan`], and [`Failure::Effort`].
pub fn plan_within(program: &Straight, limits: Limits, effort: &mut u64) -> Result<Schedule, Failure> {
    let mut free = Planner::new(program, Limits { budget: u64::MAX, ..limits });
    free.run_within(effort)?;
    if free.schedule.peak <= limits.budget {
        return Ok(free.schedule);
    }
    let (peak_at, first_cost) = (free.peak_at as usize, free.schedule.first_cost);
    drop(free);
    let spare = spare(program, peak_at);
    let patient = first_cost.saturating_mul(PATIENCE).min(limits.repeat_cost);
    let mut failure = None;
    // With more patience only what ran out of it ends otherwise.
    let mut open = SUSPICIONS.to_vec();
    for most in BTreeSet::from([patient, limits.repeat_cost]) {
        let mut best: Option<Schedule> = None;
        for suspicion in std::mem::take(&mut open) {
            let repeat_cost = best.as_ref().map_or(most, |b| b.repeat_cost.saturating_sub(1));
            let mut p = Planner::new(program, Limits { repeat_cost, ..limits });
            if suspicion > 0.0 {
                p.suspect(&spare, suspicion);
            }
            match p.run_within(effort) {
                Ok(()) => {
                    best = Some(p.schedule);
                    if suspicion == 0.0 {
                        break;
                    }
                }
                Err(Failure::Effort) => return best.ok_or(Failure::Effort),
                Err(e) => {
                    if matches!(e, Failure::Thrashing(_)) {
                        open.push(suspicion);
                    }
                    failure = failure.or(Some(e));
                }
            }
        }
        if let Some(best) = best {
            return Ok(best);
        }
    }
    Err(failure.unwrap_or(Failure::Thrashing(limits.repeat_cost)))
}

/// Until when what is made before the peak may be wanted by what else is made before it. A storage that no op reads any more, but that
/// others would be recomputed from if they had to go, is worth its bytes until then: without the velocity, no position of a simulation
/// can be brought back from the position before. After the peak memory gets free, and nothing is kept on suspicion.
fn spare(program: &Straight, peak_at: usize) -> Vec<u32> {
    let mut until = vec![0u32; program.bytes.len()];
    for (i, step) in program.steps.iter().enumerate().rev() {
        let made = step.makes.iter().map(|s| until[*s as usize]).max().unwrap_or(0);
        let needed = if i < peak_at { made.max(i as u32) } else { i as u32 };
        for s in &step.reads {
            until[*s as usize] = until[*s as usize].max(needed);
        }
    }
    for (s, m) in program.makers.iter().enumerate() {
        let step = program.steps.get(*m as usize).filter(|step| !step.once && !step.leaf);
        if *m as usize >= peak_at || step.is_none() {
            until[s] = 0;
        }
    }
    until
}

/// What is made by ops that run once, and the last op that could need it, be it for a recomputation; latest first.
fn expiring(program: &Straight) -> Vec<(u32, u32)> {
    let mut until: Vec<u32> =
        program.makers.iter().map(|m| if *m == Straight::OUTSIDE { 0 } else { *m }).collect();
    for s in &program.results {
        until[*s as usize] = u32::MAX;
    }
    for (i, step) in program.steps.iter().enumerate().rev() {
        let made = if step.once { None } else { step.makes.iter().map(|s| until[*s as usize]).max() };
        let needed = made.unwrap_or(0).max(i as u32);
        for s in &step.reads {
            until[*s as usize] = until[*s as usize].max(needed);
        }
    }
    let once = program.steps.iter().filter(|s| s.once).flat_map(|s| &s.makes);
    let mut all: Vec<(u32, u32)> = once.map(|s| (until[*s as usize], *s)).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all
}

impl<'p> Planner<'p> {
    fn new(program: &'p Straight, limits: Limits) -> Planner<'p> {
        Planner {
            state: State::new(program),
            scores: Scores::new(program),
            heap: BinaryHeap::new(),
            versions: vec![0; program.bytes.len()],
            limits,
            effort: u64::MAX,
            schedule: Schedule {
                actions: Vec::with_capacity(2 * program.steps.len()),
                ..Schedule::default()
            },
            position: program.ran as u32,
            peak_at: 0,
            idle: Vec::new(),
            expiring: expiring(program),
            marks: vec![0; program.steps.len()],
            mark: 0,
        }
    }

    /// Keeps what may be wanted, as far as memory reaches.
    fn suspect(&mut self, spare: &[u32], suspicion: f64) {
        self.scores.spare = spare.to_vec();
        self.scores.suspicion = suspicion;
        let until = spare.iter().enumerate().filter(|(_, u)| **u > 0);
        self.expiring.extend(until.map(|(s, u)| (*u, s as u32)));
        self.expiring.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// Runs with as much effort as is left, and lessens it.
    fn run_within(&mut self, left: &mut u64) -> Result<(), Failure> {
        self.effort = *left;
        let done = self.run();
        *left = left.saturating_sub(self.looks());
        done
    }

    /// What was looked at.
    fn looks(&self) -> u64 {
        self.scores.looks + self.schedule.actions.len() as u64
    }

    fn run(&mut self) -> Result<(), Failure> {
        let program = self.state.program;
        self.schedule.peak = self.state.used;
        for s in &program.resident {
            self.settle(*s);
        }
        for at in program.ran..program.steps.len() {
            if at == program.last {
                self.gather()?;
            }
            self.position = at as u32;
            self.first(at as u32)?;
        }
        if program.last >= program.steps.len() {
            self.position = program.steps.len() as u32;
            self.gather()?;
        }
        Ok(())
    }

    /// All that the last ops read, and the results, are there at once and stay.
    fn gather(&mut self) -> Result<(), Failure> {
        let program = self.state.program;
        let mut all: Vec<u32> = program.steps[program.last.min(program.steps.len())..]
            .iter()
            .flat_map(|s| &s.reads)
            .chain(&program.results)
            .copied()
            .filter(|s| self.state.place[*s as usize] != Place::Future)
            .collect();
        all.sort_unstable();
        all.dedup();
        self.bring(&all)?;
        for s in all {
            self.state.fixed[s as usize] = true;
        }
        Ok(())
    }

    /// The first execution of an op.
    fn first(&mut self, at: u32) -> Result<(), Failure> {
        let program = self.state.program;
        let step = &program.steps[at as usize];
        if step.reads.iter().any(|s| self.state.stale[*s as usize]) {
            return Err(Failure::Stale(at));
        }
        let mut missing = Vec::new();
        step.commits.iter().for_each(|s| self.state.expire(*s, &mut missing));
        self.bring(&missing)?;
        self.bring(&step.reads)?;
        step.reads.iter().for_each(|s| self.state.holds[*s as usize] += 1);
        // What a checkpoint may need is not overwritten.
        let over = step.over.filter(|(_, read)| {
            self.state.passed(*read, at);
            !self.state.is_needed(*read) && self.scores.spare[*read as usize] <= at
        });
        let shared = over.map_or(0, |(made, _)| program.bytes[made as usize]);
        let makes: u64 = step.makes.iter().map(|s| program.bytes[*s as usize]).sum();
        self.room(makes - shared + step.workspace, at)?;
        self.schedule.actions.push(Action::Run { step: at, again: false, over: over.is_some() });
        self.schedule.first_cost = self.schedule.first_cost.saturating_add(step.cost);
        for s in &step.reads {
            self.state.holds[*s as usize] -= 1;
            self.state.passed(*s, at);
        }
        for s in step.makes.iter().filter(|s| program.bytes[**s as usize] > 0) {
            let mut idle = std::mem::take(&mut self.idle);
            self.state.came(*s, &mut idle);
            self.idle = idle;
        }
        if let Some((_, read)) = over {
            self.state.went(read);
        }
        step.commits.iter().for_each(|s| self.state.stale[*s as usize] = true);
        step.reads.iter().chain(&step.makes).for_each(|s| self.settle(*s));
        while let Some((_, s)) = self.expiring.pop_if(|(until, _)| *until <= at) {
            let there =
                self.state.place[s as usize] == Place::Resident && self.state.program.bytes[s as usize] > 0;
            if there && !self.state.is_needed(s) {
                self.drop(s);
            }
        }
        Ok(())
    }

    /// Brings back what is not there of some storages: all evicted ancestors in program order.
    fn bring(&mut self, wanted: &[u32]) -> Result<(), Failure> {
        if wanted.iter().all(|s| self.state.place[*s as usize] != Place::Evicted) {
            return Ok(());
        }
        let program = self.state.program;
        self.mark += 1;
        let mut ops = Vec::new();
        let mut stack: Vec<u32> = wanted.to_vec();
        while let Some(s) = stack.pop() {
            if self.state.place[s as usize] == Place::Evicted {
                let op = program.makers[s as usize];
                if std::mem::replace(&mut self.marks[op as usize], self.mark) != self.mark {
                    let step = &program.steps[op as usize];
                    if step.once {
                        return Err(Failure::Once(op));
                    }
                    if step.reads.iter().any(|s| self.state.stale[*s as usize]) {
                        return Err(Failure::Stale(op));
                    }
                    ops.push(op);
                    stack.extend(&step.reads);
                }
            }
        }
        ops.sort_unstable();
        let reads = ops.iter().flat_map(|op| &program.steps[*op as usize].reads);
        reads.chain(wanted).for_each(|s| self.state.holds[*s as usize] += 1);
        for op in ops {
            self.again(op)?;
        }
        for s in wanted {
            self.state.holds[*s as usize] -= 1;
        }
        wanted.iter().for_each(|s| self.settle(*s));
        Ok(())
    }

    /// A repeated execution; what it reads is there.
    fn again(&mut self, op: u32) -> Result<(), Failure> {
        let program = self.state.program;
        let step = &program.steps[op as usize];
        let makes: u64 = step.makes.iter().map(|s| program.bytes[*s as usize]).sum();
        self.room(makes + step.workspace, op)?;
        self.schedule.actions.push(Action::Run { step: op, again: true, over: false });
        self.schedule.repeats += 1;
        self.schedule.repeat_cost = self.schedule.repeat_cost.saturating_add(step.cost);
        if self.schedule.repeat_cost > self.limits.repeat_cost {
            return Err(Failure::Thrashing(self.limits.repeat_cost));
        }
        let mut idle = std::mem::take(&mut self.idle);
        for s in &step.makes {
            if self.state.place[*s as usize] == Place::Evicted {
                self.state.came(*s, &mut idle);
            }
        }
        for s in &step.reads {
            self.state.holds[*s as usize] -= 1;
        }
        step.reads.iter().chain(&step.makes).for_each(|s| self.settle(*s));
        idle.drain(..).for_each(|s| self.settle(s));
        self.idle = idle;
        Ok(())
    }

    /// A storage is no longer being read: it goes if nobody needs it, or may be evicted from now on.
    fn settle(&mut self, s: u32) {
        let i = s as usize;
        if self.state.place[i] != Place::Resident
            || self.state.holds[i] > 0
            || self.state.program.bytes[i] == 0
        {
            return;
        }
        let maker = self.state.program.makers[i];
        if maker == Straight::OUTSIDE || self.state.program.steps[maker as usize].once {
            return;
        }
        if !self.state.is_needed(s) && self.scores.spare[i] <= self.position {
            self.drop(s);
        } else if self.state.may_go(s) {
            self.versions[i] += 1;
            let score = self.scores.at_least(&self.state, s, self.position);
            self.heap.push(Reverse(Entry { score, storage: s, version: self.versions[i] }));
        }
    }

    fn drop(&mut self, s: u32) {
        self.schedule.actions.push(Action::Drop { storage: s });
        self.state.went(s);
    }

    /// Evicts until so many bytes are free.
    fn room(&mut self, bytes: u64, step: u32) -> Result<(), Failure> {
        if self.looks() > self.effort {
            return Err(Failure::Effort);
        }
        while self.state.used.saturating_add(bytes) > self.limits.budget {
            let Some(victim) = self.choose() else {
                let (held, budget) = (self.state.used, self.limits.budget);
                return Err(Failure::Full { step, needed: bytes, held, budget });
            };
            self.schedule.evictions += u64::from(self.state.is_needed(victim));
            self.drop(victim);
        }
        if self.state.used + bytes > self.schedule.peak {
            self.schedule.peak = self.state.used + bytes;
            self.peak_at = self.position;
        }
        Ok(())
    }

    /// The evictable storage of the lowest score.
    fn choose(&mut self) -> Option<u32> {
        while let Some(Reverse(e)) = self.heap.pop() {
            let i = e.storage as usize;
            if e.version != self.versions[i]
                || self.state.place[i] != Place::Resident
                || self.state.holds[i] > 0
                || !self.state.may_go(e.storage)
            {
                continue;
            }
            let score = self.scores.of(&self.state, e.storage, self.position);
            let next = self.heap.peek().map_or(f64::MAX, |Reverse(n)| n.score);
            if score <= e.score * NEAR || score <= next {
                return Some(e.storage);
            }
            self.heap.push(Reverse(Entry { score, ..e }));
        }
        None
    }
}
