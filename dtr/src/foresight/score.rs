//! What a storage would cost to do without.

use super::{
    program::Straight,
    state::{Place, State},
};

/// How many evicted ops a walk goes back over; what is made from more is not evicted while anything else is left.
const MOST: u32 = 512;
/// How many readers a walk looks at. What has more may be wanted at once.
const READERS: u32 = 512;

/// Walks over evicted neighbourhoods.
pub(super) struct Scores {
    /// Cost of all ops before each one.
    elapsed: Vec<u64>,
    /// The first commit of what each storage is made from, directly or not.
    deadlines: Vec<u32>,
    marks: Vec<u32>,
    mark: u32,
    stack: Vec<u32>,
    /// Storages and ops that walks have looked at.
    pub(super) looks: u64,
    /// Until when each storage may be wanted although nothing needs it now: [`super::planner`] says what that is.
    pub(super) spare: Vec<u32>,
    /// What such a storage's score is multiplied by.
    pub(super) suspicion: f64,
}

impl Scores {
    pub(super) fn new(program: &Straight) -> Scores {
        let mut elapsed = Vec::with_capacity(program.steps.len() + 1);
        let mut sum = 0u64;
        for s in &program.steps {
            elapsed.push(sum);
            sum = sum.saturating_add(s.cost.max(1));
        }
        elapsed.push(sum);
        let marks = vec![0; program.steps.len()];
        Scores {
            elapsed,
            deadlines: deadlines(program),
            marks,
            mark: 0,
            stack: Vec::new(),
            looks: 0,
            spare: vec![0; program.bytes.len()],
            suspicion: 0.0,
        }
    }

    /// Marks an op; false if it was marked already on this walk.
    fn visit(&mut self, op: u32) -> bool {
        std::mem::replace(&mut self.marks[op as usize], self.mark) != self.mark
    }

    /// What [`Scores::of`] is not below, without a walk.
    pub(super) fn at_least(&self, state: &State<'_>, s: u32, position: u32) -> f64 {
        let program = state.program;
        let cost = program.steps[program.makers[s as usize] as usize].cost;
        let next = self.next(state, s, position).unwrap_or(program.steps.len() as u32);
        self.weight(state, s) * cost as f64
            / (program.bytes[s as usize] as f64 * self.distance(position, next))
    }

    /// The lowest goes first.
    pub(super) fn of(&mut self, state: &State<'_>, s: u32, position: u32) -> f64 {
        let program = state.program;
        let maker = program.makers[s as usize];
        let bytes = program.bytes[s as usize] as f64;
        if self.mark == u32::MAX {
            self.marks.fill(0);
            self.mark = 0;
        }
        self.mark += 1;
        let mut next = self.next(state, s, position);
        let mut cost = program.steps[maker as usize].cost;
        if program.steps[maker as usize].leaf {
            // Half of a program may read it: whoever is recomputed from it comes soon or late, the copy costs the same.
            let next = next.unwrap_or(position + 1);
            return cost as f64 / (bytes * self.distance(position, next));
        }
        let mut evicted = 0;
        self.visit(maker);
        // Everything evicted that it is made from.
        self.stack.push(s);
        while let Some(v) = self.stack.pop() {
            let reads = &program.steps[program.makers[v as usize] as usize].reads;
            self.looks += 1 + reads.len() as u64;
            for r in reads {
                if state.place[*r as usize] == Place::Evicted {
                    let op = program.makers[*r as usize];
                    if self.visit(op) {
                        cost += program.steps[op as usize].cost;
                        evicted += 1;
                        self.stack.push(*r);
                    }
                }
            }
            if evicted > MOST {
                self.stack.clear();
                return if state.is_needed(s) { f64::MAX } else { 0.0 };
            }
        }
        // Everything wanted that is made from it, the latest first.
        let mut edges = 0;
        self.stack.push(s);
        while let Some(v) = self.stack.pop() {
            let readers = state.readers(v);
            let ran = readers.partition_point(|op| *op < position);
            self.looks += 1 + ran.min(READERS as usize) as u64;
            for op in readers[..ran].iter().rev() {
                edges += 1;
                if edges > READERS {
                    break;
                }
                let step = &program.steps[*op as usize];
                let wanted = |m: &&u32| state.is_wanted(**m);
                if step.makes.iter().any(|m| wanted(&m)) && self.visit(*op) {
                    cost += step.cost;
                    for m in step.makes.iter().filter(wanted) {
                        next = match (next, self.next(state, *m, position)) {
                            (Some(a), Some(b)) => Some(a.min(b)),
                            (a, b) => a.or(b),
                        };
                        self.stack.push(*m);
                    }
                }
            }
            if edges > READERS {
                next = Some(position + 1);
                self.stack.clear();
            }
        }
        let next = next.unwrap_or(self.spare[s as usize].max(position + 1));
        self.weight(state, s) * cost as f64 / (bytes * self.distance(position, next))
    }

    /// When it must be there again: at its next use, or before a commit after which it could not be made.
    fn next(&self, state: &State<'_>, s: u32, position: u32) -> Option<u32> {
        let deadline = self.deadlines[s as usize];
        state.next_use(s).map(|next| if deadline > position { next.min(deadline) } else { next })
    }

    fn weight(&self, state: &State<'_>, s: u32) -> f64 {
        if state.is_needed(s) { 1.0 } else { self.suspicion }
    }

    /// Cost of what runs until then.
    fn distance(&self, position: u32, next: u32) -> f64 {
        let at = |p: u32| self.elapsed[(p as usize).min(self.elapsed.len() - 1)];
        at(next).saturating_sub(at(position)).max(1) as f64
    }
}

fn deadlines(program: &Straight) -> Vec<u32> {
    let mut all = vec![u32::MAX; program.bytes.len()];
    for (i, step) in program.steps.iter().enumerate() {
        for s in &step.commits {
            all[*s as usize] = all[*s as usize].min(i as u32);
        }
    }
    for step in &program.steps {
        let first = step.reads.iter().map(|s| all[*s as usize]).min().unwrap_or(u32::MAX);
        for s in &step.makes {
            all[*s as usize] = first;
        }
    }
    all
}
