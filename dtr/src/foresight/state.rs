//! Where every storage is, and who still needs it.
//!
//! A storage is *wanted* while it is evicted and something will read it, or something wanted is recomputed from it. Wanted storages keep
//! their op's inputs needed; the counts are carried along at every change, so that what nobody needs is known at once.

use super::program::Straight;

/// Where a storage is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Its op has not run.
    Future,
    Resident,
    /// It was there and is not.
    Evicted,
}

pub(super) struct State<'p> {
    pub(super) program: &'p Straight,
    pub(super) place: Vec<Place>,
    /// Ops that read each storage, in order: `uses[starts[s]..starts[s + 1]]`.
    uses: Vec<u32>,
    starts: Vec<u32>,
    /// The first of its uses that is still to come.
    cursor: Vec<u32>,
    /// Outputs in want that are recomputed from it.
    needy: Vec<u32>,
    /// How many ops that are about to run need it to stay.
    pub(super) holds: Vec<u32>,
    /// It is never evicted, only given up when nobody can need it.
    pub(super) fixed: Vec<bool>,
    /// No other copy can be made: what makes it reads, itself or through what is gone, what a commit has overwritten.
    pub(super) single: Vec<bool>,
    /// A commit has written a new version there.
    pub(super) stale: Vec<bool>,
    pub(super) used: u64,
    stack: Vec<u32>,
}

impl<'p> State<'p> {
    pub(super) fn new(program: &'p Straight) -> State<'p> {
        let n = program.bytes.len();
        let end = program.steps.len() as u32;
        let mut starts = vec![0u32; n + 1];
        let all = || {
            let steps = program.steps.iter().enumerate();
            let reads = steps.flat_map(|(i, s)| s.reads.iter().map(move |r| (*r, i as u32)));
            reads.chain(program.results.iter().map(move |r| (*r, end)))
        };
        for (s, _) in all() {
            starts[s as usize + 1] += 1;
        }
        for i in 0..n {
            starts[i + 1] += starts[i];
        }
        let mut fill = starts.clone();
        let mut uses = vec![0u32; starts[n] as usize];
        for (s, at) in all() {
            uses[fill[s as usize] as usize] = at;
            fill[s as usize] += 1;
        }
        let mut cursor: Vec<u32> = starts[..n].to_vec();
        for s in 0..n {
            while cursor[s] < starts[s + 1] && (uses[cursor[s] as usize] as usize) < program.ran {
                cursor[s] += 1;
            }
        }
        let mut state = State {
            program,
            place: vec![Place::Future; n],
            uses,
            starts,
            cursor,
            needy: vec![0; n],
            holds: vec![0; n],
            fixed: vec![false; n],
            single: vec![false; n],
            stale: vec![false; n],
            used: 0,
            stack: Vec::new(),
        };
        for (s, maker) in program.makers.iter().enumerate() {
            if program.bytes[s] == 0 || *maker == Straight::OUTSIDE {
                state.place[s] = Place::Resident;
                state.fixed[s] = true;
            } else if program.steps[*maker as usize].once {
                state.fixed[s] = true;
            }
        }
        for s in &program.resident {
            let s = *s as usize;
            if state.place[s] == Place::Future {
                state.place[s] = Place::Resident;
                state.used += program.bytes[s];
            }
        }
        for s in 0..n {
            if state.place[s] == Place::Future && (program.makers[s] as usize) < program.ran {
                state.gone(s as u32);
            }
        }
        state
    }

    /// The position at which an op reads it next, if one will.
    pub(super) fn next_use(&self, s: u32) -> Option<u32> {
        let at = self.cursor[s as usize];
        (at < self.starts[s as usize + 1]).then(|| self.uses[at as usize])
    }

    /// Ops that read it, in order.
    pub(super) fn readers(&self, s: u32) -> &[u32] {
        &self.uses[self.starts[s as usize] as usize..self.starts[s as usize + 1] as usize]
    }

    /// Whether an op or a recomputation will read it.
    pub(super) fn is_needed(&self, s: u32) -> bool {
        self.needy[s as usize] > 0 || self.next_use(s).is_some()
    }

    /// Whether it is evicted and will have to come back.
    pub(super) fn is_wanted(&self, s: u32) -> bool {
        self.place[s as usize] == Place::Evicted && self.is_needed(s)
    }

    /// An op that reads it has run.
    pub(super) fn passed(&mut self, s: u32, position: u32) {
        let (cursor, end) = (&mut self.cursor[s as usize], self.starts[s as usize + 1]);
        while *cursor < end && self.uses[*cursor as usize] <= position {
            *cursor += 1;
        }
    }

    /// A storage is there. Those that are not needed any more because of it are added to `idle`.
    pub(super) fn came(&mut self, s: u32, idle: &mut Vec<u32>) {
        let was_wanted = self.is_wanted(s);
        self.place[s as usize] = Place::Resident;
        self.used += self.program.bytes[s as usize];
        if was_wanted {
            self.let_parents_go(s, idle);
        }
    }

    fn let_parents_go(&mut self, s: u32, idle: &mut Vec<u32>) {
        let mut stack = std::mem::take(&mut self.stack);
        stack.push(s);
        while let Some(s) = stack.pop() {
            for r in &self.program.steps[self.program.makers[s as usize] as usize].reads {
                let needy = &mut self.needy[*r as usize];
                *needy -= 1;
                if *needy == 0 && self.next_use(*r).is_none() {
                    match self.place[*r as usize] {
                        // It was wanted until now.
                        Place::Evicted => stack.push(*r),
                        Place::Resident => idle.push(*r),
                        Place::Future => {}
                    }
                }
            }
        }
        self.stack = stack;
    }

    /// A resident storage is no longer there.
    pub(super) fn went(&mut self, s: u32) {
        self.used -= self.program.bytes[s as usize];
        self.gone(s);
    }

    /// Whether it may be evicted.
    pub(super) fn may_go(&self, s: u32) -> bool {
        !(self.fixed[s as usize] || self.single[s as usize] && self.is_needed(s))
    }

    /// A storage is about to be overwritten, or is gone for good: what its readers make has no other copy from now on. What is gone of
    /// that and will be read, and so must come back before, is added to `missing`.
    pub(super) fn expire(&mut self, s: u32, missing: &mut Vec<u32>) {
        let (from, to) = (self.starts[s as usize] as usize, self.starts[s as usize + 1] as usize);
        for at in from..to {
            self.singles(self.uses[at], missing);
        }
    }

    /// What an op makes can be made no more, nor can what else is made from it where it is gone.
    fn singles(&mut self, op: u32, missing: &mut Vec<u32>) {
        let program = self.program;
        let Some(step) = program.steps.get(op as usize) else { return };
        let mut stack = std::mem::take(&mut self.stack);
        stack.extend(&step.makes);
        while let Some(s) = stack.pop() {
            let i = s as usize;
            if self.place[i] == Place::Future || std::mem::replace(&mut self.single[i], true) {
                continue;
            }
            if self.place[i] == Place::Evicted {
                if self.next_use(s).is_some() {
                    missing.push(s);
                }
                for reader in self.readers(s) {
                    stack.extend(program.steps.get(*reader as usize).iter().flat_map(|step| &step.makes));
                }
            }
        }
        self.stack = stack;
    }

    fn gone(&mut self, s: u32) {
        self.place[s as usize] = Place::Evicted;
        if !self.is_needed(s) {
            if self.single[s as usize] {
                let mut missing = Vec::new();
                self.expire(s, &mut missing);
                debug_assert!(missing.is_empty(), "nobody needs it, and what it is made to is wanted");
            }
            return;
        }
        let mut stack = std::mem::take(&mut self.stack);
        stack.push(s);
        while let Some(s) = stack.pop() {
            for r in &self.program.steps[self.program.makers[s as usize] as usize].reads {
                let before = self.is_wanted(*r);
                self.needy[*r as usize] += 1;
                if !before && self.place[*r as usize] == Place::Evicted {
                    stack.push(*r);
                }
            }
        }
        self.stack = stack;
    }
}
