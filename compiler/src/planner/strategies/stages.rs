//! The stages of an annealing search, by the work that is done.

/// Stages of a search in which the temperature falls, and after some of which it goes on from the best so far.
pub(crate) struct Stages {
    /// In all.
    count: u64,
    /// So many stages from one return to the best to the next.
    between: u64,
    stage: u64,
}

impl Stages {
    /// None has begun.
    pub(crate) fn new(count: u64, between: u64) -> Self {
        Self { count, between, stage: 0 }
    }

    /// The next stage that begins after `done` of `work` executed steps, if one does: whether the search then returns to its best.
    pub(crate) fn next(&mut self, done: u64, work: u64) -> Option<bool> {
        if self.stage >= done.saturating_mul(self.count) / work.max(1) {
            return None;
        }
        self.stage += 1;
        Some(self.stage.is_multiple_of(self.between))
    }
}
