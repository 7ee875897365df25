//! Making room: choosing what goes, and dropping it.

use crate::error::Error;
use crate::heuristic::{CostPart, Heuristic};
use crate::ids::{NONE, OpId, StorageId, TensorId};
use crate::live::{HELD, MATERIAL, PINNED};
use crate::machine::{Machine, Neighbourhood};
use crate::pool::ODD;
use crate::region::union_around;
use crate::score::divide;
use crate::world::{Cause, Event, World};

impl Machine {
    /// Evicts one storage after the other until `bytes` fit.
    pub(crate) fn make_room<W: World>(&mut self, bytes: u64, op: OpId, world: &mut W) -> Result<(), Error> {
        let mut victims = Vec::new();
        while !world.fits(op, self.stats.memory, bytes, self.options.budget) {
            if self.pool.len() == 0 {
                match self.waiting_victim() {
                    Some(victim) => self.evict(victim, Cause::Chosen, world)?,
                    None => return Err(self.oom(bytes, op)),
                }
                continue;
            }
            if world.places() {
                self.refresh();
                let candidates: Vec<u32> = self.pool.iter().collect();
                let scored: Vec<_> =
                    candidates.iter().map(|&storage| (StorageId(storage), self.score(storage))).collect();
                self.stats.scores += scored.len() as u64;
                victims.clear();
                world.victims(&scored, bytes, &mut victims);
                victims.retain(|victim| {
                    self.live.storages.get(victim.index()).is_some_and(|storage| storage.slot != NONE)
                });
                for victim in &victims {
                    if self.live.at(victim.0).slot != NONE {
                        self.evict(victim.0, Cause::Chosen, world)?;
                    }
                }
                if !victims.is_empty() {
                    continue;
                }
            }
            if let Some(victim) = self.choose() {
                self.evict(victim, Cause::Chosen, world)?;
            }
        }
        Ok(())
    }

    fn oom(&self, needed: u64, op: OpId) -> Error {
        let (mut pinned, mut locked) = (0, 0);
        for storage in self.live.storages.iter().filter(|storage| storage.is(MATERIAL)) {
            if storage.is(PINNED) || storage.is(HELD) {
                pinned += storage.bytes;
            } else if storage.locks > 0 {
                locked += storage.bytes;
            }
        }
        Error::Oom { op, needed, used: self.stats.memory, budget: self.options.budget, pinned, locked }
    }

    /// Drops a resident storage; it and its aliases become undefined.
    pub(crate) fn evict<W: World>(&mut self, storage: u32, cause: Cause, world: &mut W) -> Result<(), Error> {
        self.vacate(storage, cause, world)?;
        match &mut self.around {
            Neighbourhood::None => {}
            Neighbourhood::Classes(classes) => classes.evicted(&mut self.live, storage, &mut self.scratch),
            Neighbourhood::Regions(regions) => regions.evicted(&mut self.live, storage, &mut self.scratch),
        }
        Ok(())
    }

    /// Frees a resident storage without telling its neighbours.
    pub(crate) fn vacate<W: World>(
        &mut self,
        storage: u32,
        cause: Cause,
        world: &mut W,
    ) -> Result<(), Error> {
        if self.live.at(storage).slot != NONE {
            self.pool.remove(&mut self.live, storage);
        }
        let entry = self.live.at_mut(storage);
        entry.flags &= !MATERIAL;
        entry.epoch += 1;
        self.stats.memory -= entry.bytes;
        self.stats.evictions += 1;
        self.stats.eager += u64::from(cause != Cause::Chosen);
        let root = TensorId(entry.root);
        world.event(Event::Drop { storage: StorageId(storage), root, cause })?;
        Ok(())
    }

    /// Brings the scores of everything in the pool up to date.
    fn refresh(&mut self) {
        while let Some(storage) = self.live.next_stale() {
            let entry = self.live.at(storage);
            let (slot, cost) = (entry.slot, entry.cost as i64);
            self.numerators[storage as usize] = match (&mut self.around, self.options.heuristic.cost_part()) {
                (Neighbourhood::Classes(classes), _) => cost + classes.around(&self.live, storage),
                (Neighbourhood::Regions(regions), _) => cost + regions.around(&mut self.live, storage) as i64,
                (Neighbourhood::None, CostPart::Local) => cost,
                (Neighbourhood::None, _) => 1,
            };
            self.pool.reweigh(slot, self.weight(storage));
        }
    }

    /// The reciprocal of a storage's score without its staleness.
    pub(crate) fn weight(&self, storage: u32) -> f64 {
        let Heuristic::Score { size, .. } = self.heuristic() else { return 1.0 };
        let (bytes, numerator) = (self.live.at(storage).bytes, self.numerators[storage as usize]);
        match (size, numerator) {
            (true, _) if bytes == 0 => 0.0,
            (_, ..=0) => ODD,
            (true, _) => bytes as f64 / numerator as f64,
            (false, _) => 1.0 / numerator as f64,
        }
    }

    /// A storage's score, its numerator being up to date; lowest goes first.
    fn score(&mut self, storage: u32) -> f64 {
        if self.heuristic().cost_part() == CostPart::Union {
            let (cost, last) = union_around(&mut self.live, storage, &mut self.scratch);
            let entry = self.live.at(storage);
            return quotient(
                self.heuristic(),
                (entry.cost + cost) as i64,
                entry.bytes,
                last,
                self.stats.clock,
            );
        }
        let entry = self.live.at(storage);
        quotient(
            self.heuristic(),
            self.numerators[storage as usize],
            entry.bytes,
            entry.last,
            self.stats.clock,
        )
    }

    /// Which storage of a pool that is not empty goes next.
    fn choose(&mut self) -> Option<u32> {
        let filtered = self.options.sample || self.options.skip_small.is_some();
        if self.heuristic() == Heuristic::Random && !filtered {
            self.stats.scores += self.pool.len() as u64;
            return self.pool.nth(self.random.below(self.pool.len()));
        }
        self.refresh();
        if filtered {
            let candidates = self.candidates();
            self.stats.scores += candidates.len() as u64;
            return self.scan(candidates);
        }
        self.stats.scores += self.pool.len() as u64;
        if self.heuristic().cost_part() == CostPart::Union || self.pool.has_odd() {
            let candidates = self.pool.iter().collect();
            return self.scan(candidates);
        }
        let (live, numerators, heuristic, clock) =
            (&self.live, &self.numerators, self.options.heuristic, self.stats.clock);
        self.pool.lowest(clock, heuristic.uses_staleness(), |storage| {
            let entry = live.at(storage);
            quotient(heuristic, numerators[storage as usize], entry.bytes, entry.last, clock)
        })
    }

    /// The reference's scan: the last of equals, but the first that costs nothing.
    fn scan(&mut self, candidates: Vec<u32>) -> Option<u32> {
        if self.heuristic() == Heuristic::Random {
            return candidates.get(self.random.below(candidates.len().max(1))).copied();
        }
        let (mut chosen, mut lowest) = (None, f64::INFINITY);
        for storage in candidates {
            let score = self.score(storage);
            if score <= lowest {
                (chosen, lowest) = (Some(storage), score);
            }
            if score == 0.0 {
                break;
            }
        }
        chosen
    }

    /// The part of the pool that the prototype's filters leave.
    fn candidates(&mut self) -> Vec<u32> {
        let mut candidates: Vec<u32> = self.pool.iter().collect();
        if let Some(share) = self.options.skip_small {
            let bytes: f64 = candidates.iter().map(|&storage| self.live.at(storage).bytes as f64).sum();
            let least = share * bytes / candidates.len() as f64;
            let large: Vec<u32> = candidates
                .iter()
                .copied()
                .filter(|&storage| self.live.at(storage).bytes as f64 >= least)
                .collect();
            if !large.is_empty() {
                candidates = large;
            }
        }
        if self.options.sample {
            let count = (candidates.len() as f64).sqrt().ceil() as usize;
            for drawn in 0..count {
                let other = drawn + self.random.below(candidates.len() - drawn);
                candidates.swap(drawn, other);
            }
            candidates.truncate(count);
        }
        candidates
    }
}

fn quotient(heuristic: Heuristic, numerator: i64, bytes: u64, last: u64, clock: u64) -> f64 {
    let Heuristic::Score { size, stale, .. } = heuristic else { return last as f64 };
    let size = if size { u128::from(bytes) } else { 1 };
    let staleness = if stale { u128::from(clock - last) } else { 1 };
    match size * staleness {
        0 => f64::INFINITY,
        denominator => divide(numerator, denominator),
    }
}
