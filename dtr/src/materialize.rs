//! Nested recomputation: to run an op, its arguments must be there; to get one back, its op must run.
//!
//! The stack is explicit, so that depth costs memory and not the thread's stack: a chain of 100,000 evicted values is brought back from its
//! first one.

use crate::error::Error;
use crate::ids::{NONE, OpId, TensorId};
use crate::live::{GONE, MATERIAL, PENDING};
use crate::machine::{Frame, Machine, Neighbourhood, Stage};
use crate::options::Dealloc;
use crate::world::{Event, World};

impl Machine {
    /// Computes a tensor that is not defined, with all it needs.
    pub(crate) fn materialize<W: World>(&mut self, target: u32, world: &mut W) -> Result<(), Error> {
        self.forced = 0;
        self.enter(target)?;
        while let Some(&Frame { target, start, next }) = self.frames.last() {
            let Some(&arg) = self.waiting.get(next as usize) else {
                if self.order.is_some() && !self.take_all(start) {
                    continue;
                }
                self.frames.pop();
                self.waiting.truncate(start as usize);
                self.execute(target, world)?;
                continue;
            };
            if !self.has(arg) {
                self.enter(arg)?;
                continue;
            }
            if self.order.is_none() {
                self.lock(self.storage(arg));
            }
            if let Some(frame) = self.frames.last_mut() {
                frame.next += 1;
            }
        }
        Ok(())
    }

    /// Puts the op of a tensor on the stack. Arguments that are there are locked; the others wait in line.
    fn enter(&mut self, target: u32) -> Result<(), Error> {
        let id = self.program.tensors[target as usize].op;
        let gone = self.live.at(self.storage(target)).is(GONE);
        match self.stages[id as usize] {
            Stage::Born if self.frames.is_empty() => {}
            Stage::Executed if !gone => {}
            Stage::Declared | Stage::Born => return Err(Error::NotComputed { tensor: TensorId(target) }),
            Stage::Executed | Stage::Forbidden => {
                return Err(Error::Unrecoverable { tensor: TensorId(target), op: OpId(id) });
            }
        }
        let op = &self.program.ops[id as usize];
        let args = op.args as usize..(op.args + op.arity) as usize;
        let start = self.waiting.len() as u32;
        let banish = self.options.dealloc == Dealloc::Banish;
        for index in args.clone() {
            let storage = self.storage(self.program.args[index]);
            if !banish || self.live.at(storage).refs > 0 {
                self.touch(storage);
            }
        }
        if let Some(order) = &self.order {
            order.line_up(&self.program, id, &mut self.waiting);
            for index in args {
                let storage = self.storage(self.program.args[index]);
                let entry = self.live.at_mut(storage);
                entry.wants += 1;
                if entry.slot != NONE {
                    self.pool.remove(&mut self.live, storage);
                }
            }
        } else {
            for index in args {
                let arg = self.program.args[index];
                if self.has(arg) {
                    self.lock(self.storage(arg));
                } else {
                    self.waiting.push(arg);
                }
            }
        }
        self.frames.push(Frame { target, start, next: start });
        Ok(())
    }

    /// Runs an op whose arguments are all locked, and lets go of them.
    fn execute<W: World>(&mut self, target: u32, world: &mut W) -> Result<(), Error> {
        let id = self.program.tensors[target as usize].op;
        let bytes = self.program.ops[id as usize].bytes;
        if !world.fits(OpId(id), self.stats.memory, bytes, self.options.budget) {
            self.make_room(bytes, OpId(id), world)?;
        }
        self.run_op(id, target, world)?;
        let op = &self.program.ops[id as usize];
        for index in op.args as usize..(op.args + op.arity) as usize {
            let storage = self.storage(self.program.args[index]);
            if !self.live.at(storage).is(GONE) {
                self.unlock(storage);
                if self.options.dealloc == Dealloc::Banish && self.live.at(storage).refs == 0 {
                    self.banish(storage, world)?;
                }
            }
        }
        match self.options.remat_limit {
            Some(limit) if self.stats.repeat_cost > limit => {
                Err(Error::Thrash { repeated: self.stats.repeat_cost, limit })
            }
            _ => Ok(()),
        }
    }

    fn run_op<W: World>(&mut self, id: u32, target: u32, world: &mut W) -> Result<(), Error> {
        let first = self.stages[id as usize] == Stage::Born;
        let measured = world.event(Event::Execute { op: OpId(id), target: TensorId(target), first })?;
        if let Some(cost) = measured.filter(|_| first) {
            self.learn_cost(id, cost);
        }
        let op = &self.program.ops[id as usize];
        let (cost, outputs) = (measured.unwrap_or(op.cost), op.first..op.first + op.outputs);
        self.stats.clock = self.stats.clock.saturating_add(cost);
        if first {
            self.stages[id as usize] = Stage::Executed;
            self.stats.firsts += 1;
            self.stats.first_cost = self.stats.first_cost.saturating_add(cost);
        } else {
            self.stats.remats += 1;
            self.stats.repeat_cost = self.stats.repeat_cost.saturating_add(cost);
        }
        self.stats.memory += op.bytes;
        self.stats.peak = self.stats.peak.max(self.stats.memory);

        // Siblings enter the pool before the one that was asked for.
        let mut fresh = std::mem::take(&mut self.scratch);
        fresh.clear();
        for tensor in outputs.filter(|&tensor| tensor != target).chain([target]) {
            let storage = self.storage(tensor);
            let entry = &mut self.live.storages[storage as usize];
            // What is there already or given up for good was written to scratch memory.
            if self.defined[tensor as usize] == entry.epoch || entry.is(GONE) {
                self.stats.memory -= if entry.root == tensor { entry.bytes } else { 0 };
                continue;
            }
            self.defined[tensor as usize] = entry.epoch;
            if !entry.is(MATERIAL) {
                entry.flags = (entry.flags | MATERIAL) & !PENDING;
                fresh.push(storage);
            }
        }
        match &mut self.around {
            Neighbourhood::None => {}
            Neighbourhood::Classes(classes) => {
                for &storage in &fresh {
                    classes.restored(&mut self.live, storage);
                    self.live.outdate(storage);
                }
            }
            // A first execution changes nobody's neighbourhood: all its arguments are resident.
            Neighbourhood::Regions(_) if first => {}
            Neighbourhood::Regions(regions) => {
                for &storage in &fresh {
                    regions.restored(&mut self.live, storage);
                }
            }
        }
        for &storage in &fresh {
            self.enter_pool(storage);
        }
        self.scratch = fresh;
        Ok(())
    }

    /// A measured cost replaces the declared one.
    fn learn_cost(&mut self, id: u32, cost: u64) {
        let cost = cost.min(1 << 40);
        let op = &mut self.program.ops[id as usize];
        let declared = std::mem::replace(&mut op.cost, cost);
        let mark = self.live.fresh_mark();
        for tensor in op.first..op.first + op.outputs {
            let storage = self.program.tensors[tensor as usize].storage;
            if self.live.set_mark(storage, mark) {
                let entry = self.live.at_mut(storage);
                entry.cost = entry.cost - declared + cost;
                self.live.outdate(storage);
            }
        }
    }
}
