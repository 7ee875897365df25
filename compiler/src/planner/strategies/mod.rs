//! The strategies: one file each, one signature, one result type.
//!
//! A strategy reads the context (index, budget, orders, work limits) and returns candidates, within the budget or not. It never judges:
//! candidates carry the exact score of their sequence, and the driver takes the best.

pub(crate) mod best_cut;
pub(crate) mod chain;
pub(crate) mod drag;
pub(crate) mod dtr_seeds;
pub(crate) mod exact;
pub(crate) mod foresight;
pub(crate) mod hindsight;
pub(crate) mod ilp_windows;
pub(crate) mod keep_all;
pub(crate) mod local_search;
pub(crate) mod moments;
pub(crate) mod neighbourhood;
pub(crate) mod order_search;
pub(crate) mod sequence_search;
pub(crate) mod square_root;
mod stages;
pub(crate) mod window_repair;

use super::decode::{Evaluator, Genome, Score};
use super::index::Index;
use super::problem::{Bytes, Nanos};

/// A sequence of executions and how it came about.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) strategy: &'static str,
    pub(crate) genome: Genome,
    pub(crate) sequence: Vec<u32>,
    pub(crate) score: Score,
}

/// What strategies work with.
pub(crate) struct Context<'i, 'a> {
    pub(crate) index: &'i Index<'a>,
    pub(crate) budget: Bytes,
    /// The order of first executions is fixed.
    pub(crate) keep_order: bool,
    /// Orders to start from, the best for memory first.
    pub(crate) orders: Vec<Vec<u32>>,
    pub(crate) evaluator: Evaluator<'i>,
    pub(crate) seed: u64,
    /// A schedule within the budget that takes no more time than this cannot or need not be improved.
    pub(crate) enough: Nanos,
    /// Executed steps that a search may simulate.
    pub(crate) work: u64,
}

impl Context<'_, '_> {
    /// Decodes a genome into a candidate; none if it is unlawful or its time exceeds the cutoff.
    pub(crate) fn decode(
        &mut self,
        strategy: &'static str,
        genome: Genome,
        cutoff: Nanos,
    ) -> Option<Candidate> {
        let score = self.evaluator.decode(&genome, self.budget, cutoff)?;
        if self.evaluator.breaks_commit_rule() || (self.keep_order && !self.evaluator.keeps_order(&genome)) {
            return None;
        }
        Some(Candidate { strategy, genome, sequence: self.evaluator.sequence.clone(), score })
    }

    /// Scores a sequence, its commits behind the last reader of the old version; none if something else needs one earlier.
    pub(crate) fn sequence(&mut self, strategy: &'static str, mut sequence: Vec<u32>) -> Option<Candidate> {
        let mut score = self.evaluator.evaluate(&sequence, self.budget);
        if self.evaluator.breaks_commit_rule() {
            if self.keep_order {
                return None;
            }
            sequence = self.evaluator.delay_commits()?;
            score = self.evaluator.evaluate(&sequence, self.budget);
            if self.evaluator.breaks_commit_rule() {
                return None;
            }
        }
        let genome = hindsight::from_sequence(self.index, &sequence);
        Some(Candidate { strategy, genome, sequence, score })
    }

    /// The candidate scored under the context's budget.
    pub(crate) fn rescored(&mut self, candidate: &Candidate) -> Candidate {
        let score = self.evaluator.evaluate(&candidate.sequence, self.budget);
        Candidate { score, ..candidate.clone() }
    }

    /// The better of two candidates under the budget.
    pub(crate) fn better(&self, a: Candidate, b: Candidate) -> Candidate {
        if b.score.key(self.budget) < a.score.key(self.budget) { b } else { a }
    }
}

/// Keeps the better of the best so far and a new one.
pub(crate) fn take_better(budget: Bytes, best: &mut Option<Candidate>, new: Option<Candidate>) {
    if let Some(new) = new
        && best.as_ref().is_none_or(|b| new.score.key(budget) < b.score.key(budget))
    {
        *best = Some(new);
    }
}

/// A small deterministic generator (SplitMix64): the same sequence on every platform.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `n`, which is not zero.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// In `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
