//! The machine: its state, and the doors through which a driver reaches it.
//!
//! Everything here follows the reference's runtime step by step; the order of steps is observable through ties and must stay.

use crate::banish::Aliases;
use crate::class::Classes;
use crate::error::Error;
use crate::heuristic::{CostPart, Heuristic};
use crate::ids::{NONE, OpId, StorageId, TensorId};
use crate::live::{GONE, Live, MATERIAL, PINNED, SETTLED, STALE};
use crate::options::{Dealloc, Options};
use crate::order::Order;
use crate::pool::Pool;
use crate::program::{Op, Output, Program, ProgramError};
use crate::random::Random;
use crate::region::Regions;
use crate::world::{Event, World};

/// Figures of a run so far. Costs are in units of the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The clock: 1 plus the cost of all executions.
    pub clock: u64,
    /// Cost of first executions.
    pub first_cost: u64,
    /// Cost of repeated executions.
    pub repeat_cost: u64,
    /// Ops executed a first time.
    pub firsts: u64,
    /// Repeated executions.
    pub remats: u64,
    /// Storages dropped for whatever cause.
    pub evictions: u64,
    /// Storages dropped because they were dead or gone.
    pub eager: u64,
    /// Scores compared.
    pub scores: u64,
    /// Edges followed to find what is evicted around a storage.
    pub followed: u64,
    /// Bytes resident.
    pub memory: u64,
    /// The most bytes resident at once.
    pub peak: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Declared,
    /// Its outputs exist, its arguments are being made ready.
    Born,
    Executed,
    /// Must not run again.
    Forbidden,
}

/// An op that is being made ready: its target, and its part of [`Machine::waiting`].
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) target: u32,
    pub(crate) start: u32,
    pub(crate) next: u32,
}

/// What stands behind a numerator, kept up to date as storages come and go.
pub(crate) enum Neighbourhood {
    None,
    Classes(Classes),
    Regions(Regions),
}

/// The state of Dynamic Tensor Rematerialization over a program that may grow.
pub struct Machine {
    pub(crate) program: Program,
    pub(crate) options: Options,
    pub(crate) live: Live,
    /// Each tensor's epoch; it is defined while that is its storage's.
    pub(crate) defined: Vec<u32>,
    pub(crate) stages: Vec<Stage>,
    pub(crate) pool: Pool,
    pub(crate) around: Neighbourhood,
    /// Each storage's numerator, valid while it is not stale.
    pub(crate) numerators: Vec<i64>,
    pub(crate) order: Option<Order>,
    /// Kept for [`Dealloc::Banish`] alone.
    pub(crate) aliases: Aliases,
    pub(crate) random: Random,
    pub(crate) frames: Vec<Frame>,
    /// Arguments that the ops on the stack still wait for or have got, frame by frame.
    pub(crate) waiting: Vec<u32>,
    /// How many wanted storages this command has had to evict.
    pub(crate) forced: usize,
    pub(crate) stats: Stats,
    pub(crate) scratch: Vec<u32>,
    pub(crate) stopped: bool,
}

impl Machine {
    /// A machine over a program, nothing computed yet.
    ///
    /// # Errors
    /// [`Error::Options`] if a filter's share is not a number of at least 0.
    pub fn new(program: Program, options: Options) -> Result<Self, Error> {
        if options.skip_small.is_some_and(|share| share.is_nan() || share < 0.0) {
            return Err(Error::Options(
                "the share below which storages are ignored must be a number of at least 0",
            ));
        }
        let around = match options.heuristic.cost_part() {
            CostPart::Classes => Neighbourhood::Classes(Classes::new()),
            CostPart::Neighbourhood => Neighbourhood::Regions(Regions::new(true)),
            CostPart::Ancestors => Neighbourhood::Regions(Regions::new(false)),
            CostPart::Unit | CostPart::Local | CostPart::Union => Neighbourhood::None,
        };
        let mut machine = Self {
            live: Live::default(),
            defined: Vec::new(),
            stages: Vec::new(),
            pool: Pool::default(),
            around,
            numerators: Vec::new(),
            order: options.order_remats.then(Order::default),
            aliases: Aliases::default(),
            random: Random::new(options.seed),
            frames: Vec::new(),
            waiting: Vec::new(),
            forced: 0,
            stats: Stats { clock: 1, ..Stats::default() },
            scratch: Vec::new(),
            stopped: false,
            program,
            options,
        };
        machine.extend();
        Ok(machine)
    }

    fn extend(&mut self) {
        self.live.extend(&self.program);
        let storages = self.live.storages.len();
        self.defined.resize(self.program.tensors.len(), 0);
        self.stages.resize(self.program.ops.len(), Stage::Declared);
        self.numerators.resize(storages, 0);
        match &mut self.around {
            Neighbourhood::None => {}
            Neighbourhood::Classes(classes) => classes.extend(storages),
            Neighbourhood::Regions(regions) => regions.extend(storages),
        }
        if let Some(order) = &mut self.order {
            order.extend(&self.program);
        }
        if self.options.dealloc == Dealloc::Banish {
            self.aliases.extend(&self.program, storages, |storage| self.live.at(storage).root);
        }
    }

    /// Declares one more op, as [`Program::op`] or, with `once`, [`Program::once`] does.
    ///
    /// # Errors
    /// As those.
    pub fn declare(
        &mut self,
        args: &[TensorId],
        outputs: &[Output],
        cost: u64,
        once: bool,
    ) -> Result<OpId, ProgramError> {
        let op = if once {
            self.program.once(args, outputs, cost)?
        } else {
            self.program.op(args, outputs, cost)?
        };
        self.extend();
        Ok(op)
    }

    /// Sets [`Options::remat_limit`] anew.
    pub fn limit_repeats(&mut self, limit: u64) {
        self.options.remat_limit = Some(limit);
    }

    /// The program as it is now; measured costs have replaced declared ones.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The figures so far.
    pub fn stats(&self) -> Stats {
        Stats { followed: self.live.followed, ..self.stats }
    }

    /// Whether the tensor can be read without recomputation.
    pub fn is_defined(&self, tensor: TensorId) -> bool {
        tensor.index() < self.defined.len() && self.has(tensor.0)
    }

    /// Whether a storage is resident.
    pub fn is_resident(&self, storage: StorageId) -> bool {
        self.live.storages.get(storage.index()).is_some_and(|storage| storage.is(MATERIAL))
    }

    pub(crate) fn has(&self, tensor: u32) -> bool {
        self.defined[tensor as usize] == self.live.at(self.storage(tensor)).epoch
    }

    pub(crate) fn storage(&self, tensor: u32) -> u32 {
        self.program.tensors[tensor as usize].storage
    }

    /// Runs a command's body unless the machine has failed before; remembers if it fails now.
    fn guarded(&mut self, body: impl FnOnce(&mut Self) -> Result<(), Error>) -> Result<(), Error> {
        if self.stopped {
            return Err(Error::Stopped);
        }
        let result = body(self);
        self.stopped = result.is_err();
        result
    }

    fn known(&self, tensor: TensorId) -> Result<u32, Error> {
        let known = self
            .program
            .tensors
            .get(tensor.index())
            .ok_or(Error::UnknownId { kind: "tensor", id: tensor.0 })?;
        match self.stages[known.op as usize] {
            Stage::Declared | Stage::Born => Err(Error::NotComputed { tensor }),
            Stage::Executed | Stage::Forbidden => Ok(tensor.0),
        }
    }

    /// Computes an op for the first time, recomputing arguments that were dropped. Each output starts with one reference.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn compute<W: World>(&mut self, op: OpId, world: &mut W) -> Result<(), Error> {
        self.guarded(|machine| {
            machine.birth(op)?;
            let Op { first, outputs, once, .. } = machine.program.ops[op.index()];
            machine.materialize(first, world)?;
            if let Neighbourhood::Regions(regions) = &mut machine.around
                && regions.window.is_open()
            {
                regions.window.close(&mut machine.live);
            }
            for tensor in first..first + outputs {
                machine.touch(machine.storage(tensor));
            }
            if once { machine.forbid_now(op.0, world) } else { Ok(()) }
        })
    }

    /// Takes one more reference to a tensor.
    ///
    /// # Errors
    /// [`Error::Dead`] if its storage has none left.
    pub fn get(&mut self, tensor: TensorId) -> Result<(), Error> {
        self.guarded(|machine| {
            let storage = machine.storage(machine.known(tensor)?);
            let entry = machine.live.at_mut(storage);
            if entry.refs == 0 {
                return Err(Error::Dead { tensor });
            }
            entry.refs += 1;
            Ok(())
        })
    }

    /// Gives a reference back; what happens to a storage without any is [`Options::dealloc`]'s.
    ///
    /// # Errors
    /// [`Error::Dead`] if there is none.
    pub fn release<W: World>(&mut self, tensor: TensorId, world: &mut W) -> Result<(), Error> {
        self.guarded(|machine| {
            let storage = machine.storage(machine.known(tensor)?);
            let entry = machine.live.at_mut(storage);
            entry.refs = entry.refs.checked_sub(1).ok_or(Error::Dead { tensor })?;
            if entry.refs == 0 { machine.dead(storage, world) } else { Ok(()) }
        })
    }

    /// Brings a tensor back if need be and pins its storage for ever.
    ///
    /// # Errors
    /// As [`Machine::compute`].
    pub fn pin<W: World>(&mut self, tensor: TensorId, world: &mut W) -> Result<(), Error> {
        self.guarded(|machine| {
            let tensor = machine.known(tensor)?;
            if !machine.has(tensor) {
                machine.materialize(tensor, world)?;
            }
            machine.pin_now(machine.storage(tensor), world)
        })
    }

    pub(crate) fn pin_now<W: World>(&mut self, storage: u32, world: &mut W) -> Result<(), Error> {
        if self.live.at(storage).is(PINNED) {
            return Ok(());
        }
        self.live.at_mut(storage).flags |= PINNED;
        self.lock(storage);
        let root = TensorId(self.live.at(storage).root);
        world.event(Event::Pin { storage: StorageId(storage), root })?;
        self.settle(storage, world)
    }

    /// Brings a tensor back if need be; from now on its storage is not evictable.
    ///
    /// # Errors
    /// As [`Machine::compute`].
    pub fn hold<W: World>(&mut self, tensor: TensorId, world: &mut W) -> Result<(), Error> {
        self.guarded(|machine| {
            let tensor = machine.known(tensor)?;
            if !machine.has(tensor) {
                machine.materialize(tensor, world)?;
            }
            machine.hold_now(machine.storage(tensor), world)
        })
    }

    /// Forbids an op to run from now on: its resident outputs are held, its evicted ones are lost, and asking for one of them is
    /// [`Error::Unrecoverable`]. Hold what is still needed first.
    ///
    /// # Errors
    /// [`Error::NotComputed`] if the op has not run.
    pub fn forbid<W: World>(&mut self, op: OpId, world: &mut W) -> Result<(), Error> {
        self.guarded(|machine| {
            let known =
                machine.program.ops.get(op.index()).ok_or(Error::UnknownId { kind: "op", id: op.0 })?;
            machine.known(TensorId(known.first))?;
            machine.forbid_now(op.0, world)
        })
    }

    /// The op's outputs come into being, not yet computed.
    fn birth(&mut self, id: OpId) -> Result<(), Error> {
        let op = self.program.ops.get(id.index()).ok_or(Error::UnknownId { kind: "op", id: id.0 })?.clone();
        if self.stages[id.index()] != Stage::Declared {
            return Err(Error::ComputedTwice { op: id });
        }
        let keep_pinned = matches!(self.options.dealloc, Dealloc::Banish);
        let mark = self.live.fresh_mark();
        let mut feeding = std::mem::take(&mut self.scratch);
        feeding.clear();
        let mut waits = false;
        for &arg in self.program.args(&op) {
            self.known(TensorId(arg))?;
            waits |= !self.has(arg);
            let storage = self.storage(arg);
            if self.live.set_mark(storage, mark) && (keep_pinned || !self.live.at(storage).is(PINNED)) {
                feeding.push(storage);
            }
        }
        self.stages[id.index()] = Stage::Born;
        let mut aliased: Vec<(u32, u64)> = Vec::new();
        let (mut output, mut outputs_cost) = (None, 0);
        for tensor in op.first..op.first + op.outputs {
            let storage = self.storage(tensor);
            let entry = self.live.at_mut(storage);
            entry.refs += 1;
            if entry.last_op != id.0 {
                entry.last_op = id.0;
                entry.cost += op.cost;
                if entry.root != tensor {
                    self.live.outdate(storage);
                    if waits {
                        aliased.push((storage, op.cost));
                    }
                }
            }
            let entry = self.live.at(storage);
            let (is_new, settled) = (entry.root == tensor, entry.is(SETTLED));
            if is_new {
                output = Some(storage);
                outputs_cost += op.cost;
            }
            for &feeder in &feeding {
                if feeder != storage {
                    self.live.connect(feeder, storage);
                    self.live.at_mut(feeder).open += u32::from(!settled);
                    if !is_new {
                        self.live.outdate(feeder);
                        self.live.outdate(storage);
                        if let Neighbourhood::Regions(regions) = &mut self.around {
                            regions.connected(&mut self.live, feeder, storage);
                        }
                    }
                }
            }
        }
        self.scratch = feeding;
        if waits && let Neighbourhood::Regions(regions) = &mut self.around {
            regions.window.open(&mut self.live, output, outputs_cost, &aliased);
        }
        Ok(())
    }

    /// The storage is used now.
    pub(crate) fn touch(&mut self, storage: u32) {
        let clock = self.stats.clock;
        let entry = self.live.at_mut(storage);
        entry.last = clock;
        if entry.slot != NONE {
            self.pool.touch(entry.slot, clock);
        }
    }

    pub(crate) fn lock(&mut self, storage: u32) {
        let entry = self.live.at_mut(storage);
        entry.locks += 1;
        if entry.slot != NONE {
            self.pool.remove(&mut self.live, storage);
        }
    }

    pub(crate) fn unlock(&mut self, storage: u32) {
        self.live.at_mut(storage).locks -= 1;
        self.enter_pool(storage);
    }

    /// Puts a storage into the pool if it is resident and nobody needs it.
    pub(crate) fn enter_pool(&mut self, storage: u32) {
        let entry = self.live.at(storage);
        if entry.locks == 0
            && entry.wants == 0
            && entry.slot == NONE
            && entry.flags & (MATERIAL | GONE) == MATERIAL
        {
            let stale = entry.is(STALE);
            let weight = if stale { 0.0 } else { self.weight(storage) };
            self.pool.push(&mut self.live, storage, weight);
            if stale {
                self.live.enqueue(storage);
            }
        }
    }

    pub(crate) fn heuristic(&self) -> Heuristic {
        self.options.heuristic
    }
}
