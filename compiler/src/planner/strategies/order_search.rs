//! Orders without recomputation: annealing on the exact incremental replay.
//!
//! A move looks at a moment near the peak and takes what keeps something alive over it to the other side, a producer behind it or a
//! reader before it, with all that has to go along ([`super::drag`]).

use super::super::decode::Genome;
use super::super::problem::Bytes;
use super::super::timeline::{Full, Timeline};
use super::drag::Drag;
use super::stages::Stages;
use super::{Candidate, Context, Random};

const STAGES: u64 = 48;
const COOLING: f64 = 0.9;
/// After so many stages the search goes on from the best so far.
const RESTART: u64 = 12;
/// Moments within a few of these parts of the peak are looked at.
const NEAR_PEAK: Bytes = 128;

/// A candidate without repeated executions whose peak is no higher than the start's, found with about `work` executed steps.
/// `heat` is the temperature of the beginning, in parts of the start's transient bytes.
pub(crate) fn improve(
    context: &mut Context<'_, '_>,
    start: &Candidate,
    heat: f64,
    work: u64,
    salt: u64,
) -> Option<Candidate> {
    let index = context.index;
    let timeline = Timeline::new(index, &start.sequence);
    let peak = timeline.peak();
    let mut search = Search {
        random: Random::new(context.seed ^ salt.wrapping_mul(0x6B65_6570_616C_6C65)),
        peak,
        best_peak: peak,
        best: start.sequence.clone(),
        unsaved: false,
        temperature: heat * (peak - index.problem.resident) as f64,
        drag: Drag::new(index.nodes()),
        timeline,
    };
    let mut stages = Stages::new(STAGES, RESTART);
    while search.timeline.work < work {
        let done = search.timeline.work;
        while let Some(returns) = stages.next(done, work) {
            search.temperature *= COOLING;
            if returns {
                search.restart();
            }
        }
        search.step();
    }
    search.save();
    context.evaluator.work += search.timeline.work;
    context.decode(start.strategy, Genome::keep_all(index, search.best), u64::MAX)
}

struct Search<'i, 'a> {
    timeline: Timeline<'i, 'a>,
    random: Random,
    peak: Bytes,
    best: Vec<u32>,
    best_peak: Bytes,
    /// The timeline is the best so far and has not been written down.
    unsaved: bool,
    /// In bytes.
    temperature: f64,
    drag: Drag,
}

impl Search<'_, '_> {
    /// Writes the best order down before it is left.
    fn save(&mut self) {
        if std::mem::take(&mut self.unsaved) {
            self.timeline.work += self.best.len() as u64 / 8;
            self.best = self.timeline.sequence();
        }
    }

    fn restart(&mut self) {
        self.save();
        let work = self.timeline.work;
        self.timeline = Timeline::new(self.timeline.index, &self.best);
        self.timeline.work += work;
        self.peak = self.best_peak;
    }

    fn step(&mut self) {
        self.timeline.work += 1;
        let Some(tried) = self.propose() else { return };
        if let Err(full) = tried {
            self.timeline.undo(0);
            return self.timeline.make_room(full);
        }
        let unit = self.random.unit();
        let peak = self.timeline.peak();
        if peak as f64 > self.peak as f64 + 3.0 * self.temperature * unit * unit * unit {
            return self.timeline.undo(0);
        }
        if peak > self.best_peak && std::mem::take(&mut self.unsaved) {
            self.best = self.timeline.sequence_before_changes();
            self.timeline.work += self.best.len() as u64 / 8;
        }
        self.timeline.commit();
        self.peak = peak;
        if peak < self.best_peak {
            (self.best_peak, self.unsaved) = (peak, true);
        }
    }

    /// Changes the timeline; none if there was nothing to change.
    fn propose(&mut self) -> Option<Result<(), Full>> {
        let slack = self.peak / NEAR_PEAK * self.random.below(3) as Bytes;
        let random = &mut self.random;
        let slot = self.timeline.slot_above(self.peak - slack, || random.below(2) == 0)?;
        self.drag.across(&mut self.timeline, slot, random)
    }
}
