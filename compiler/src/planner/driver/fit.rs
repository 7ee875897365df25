//! Schedules whose bytes fit and whose placement does not: bytes are left free where something sticks out, and nowhere else.
//!
//! A schedule of a long loop is as full as the budget nearly everywhere, and fragmentation shows at a few moments. Asking for a smaller
//! budget everywhere would cost recomputation at every round. Instead each buffer that reaches above the capacity has its bytes left
//! free while the nodes of its life run (as if these needed more scratch), and the local search repairs what is over then.

use super::super::decode::Evaluator;
use super::super::offsets::Limits;
use super::super::problem::Bytes;
use super::super::strategies::{Candidate, Context, neighbourhood};
use super::{Placed, Session};

/// Times that bytes are left free and everything is placed again.
const ROUNDS: u64 = 10;
/// The part of the work for each.
const PART: u64 = 24;
/// Salt of the random choices for schedules that are no search's.
const AHEAD: u64 = 5_000;
/// Temperature: the schedule at hand is good but for a few moments.
const HEAT: f64 = 0.05;

impl Session<'_, '_> {
    /// The candidate as it is, if its placement fits, or a schedule near it.
    pub(super) fn placed_or_fitted(
        &mut self,
        candidate: &Candidate,
        budget: Bytes,
    ) -> Option<(Candidate, Placed)> {
        let (candidate, placed) = self.place_within(candidate.clone(), budget);
        if candidate.score.peak <= budget && self.need(&placed) <= budget {
            return Some((candidate, placed));
        }
        self.fitted(&candidate, &placed, budget, AHEAD)
    }

    /// A schedule near the candidate, which fits in bytes, that has a placement within the budget.
    pub(super) fn fitted(
        &mut self,
        candidate: &Candidate,
        placed: &Placed,
        budget: Bytes,
        salt: u64,
    ) -> Option<(Candidate, Placed)> {
        let (mut candidate, mut placed) = (candidate.clone(), placed.clone());
        let mut reserve = vec![0; self.index.nodes()];
        for round in 0..ROUNDS {
            self.leave_free(&placed, budget, &mut reserve);
            let index = self.index.with_reserve(reserve.clone());
            let mut context = Context {
                index: &index,
                budget,
                keep_order: self.context.keep_order,
                orders: Vec::new(),
                evaluator: Evaluator::new(&index),
                seed: self.context.seed,
                enough: self.context.enough,
                work: self.context.work,
            };
            let start = context.rescored(&candidate);
            let salt = salt + 64 * round;
            let improved = neighbourhood::improve(&mut context, &start, HEAT, self.context.work / PART, salt);
            let work = context.evaluator.work;
            self.context.evaluator.work += work;
            if improved.score.peak > budget {
                return None;
            }
            self.context.budget = budget;
            let improved = self.context.rescored(&improved);
            (candidate, placed) = self.place_within(improved, budget);
            if self.need(&placed) <= budget {
                return Some((candidate, placed));
            }
        }
        None
    }

    /// Adds the bytes of what lies above the capacity to what is left free during its life.
    fn leave_free(&self, placed: &Placed, budget: Bytes, reserve: &mut [Bytes]) {
        let capacity = budget.saturating_sub(self.index.problem.resident);
        let steps = &placed.schedule.steps;
        let mut change = vec![0i64; steps.len() + 1];
        for life in placed.above(capacity) {
            change[life.start as usize] += life.size as i64;
            change[(life.end as usize).min(steps.len())] -= life.size as i64;
        }
        let mut above = 0;
        let mut more = vec![0; reserve.len()];
        for (step, change) in steps.iter().zip(change) {
            above += change;
            let most: &mut Bytes = &mut more[step.node as usize];
            *most = (*most).max(above as Bytes);
        }
        reserve.iter_mut().zip(more).for_each(|(r, m)| *r += m);
    }

    /// Work on the offsets of a schedule that nearly fits.
    pub(super) fn patience(&self, buffers: usize) -> Limits {
        if buffers > MANY_BUFFERS {
            Limits { repair: 400_000_000, ..super::KEEP_ALL }
        } else {
            super::KEEP_ALL
        }
    }
}

/// Buffers of which one order takes so long that the usual work is one round of repair.
const MANY_BUFFERS: usize = 2_000;
