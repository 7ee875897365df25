//! CUDA: one allocation, and each program as a graph that is captured once.
//!
//! Above the driver's calls ([`cuda::Driver`]) there is one path: a real device and the simulated one run this file. Inputs go to the
//! plan's input slot on a stream of their own, while the step before may still run; a step waits for them by an event, copies them to its
//! own places, and tells by another event that the slot is free. Kernels leave what they refuse in a status behind the arena;
//! commits read it on the device, so that a step that failed changes nothing, and the host reads it after the step.

mod program;

use crate::{
    RuntimeError,
    available::Available,
    device::{Device, DeviceMemory, EagerBody, LoadedProgram, Move, RunOptions, RunReport},
    resolve::Call,
};
use cuda::{Compiler, Driver, DriverError, Event, Function, Module, Read, Status, Stream, Tag, Unit, Write};
use graph::Graph;
use program::{EXTERNAL, Program};
use std::{cell::RefCell, collections::BTreeMap};

/// Of the tags of what lies in the input slot.
const IN_SLOT: u64 = 1 << 63;

struct Arena {
    base: u64,
    bytes: u64,
}

impl Arena {
    /// The status lies behind the arena, in the same allocation.
    fn status(&self) -> u64 {
        self.base + self.bytes
    }
}

/// A CUDA device, real or simulated.
pub struct CudaDevice {
    /// A read needs the driver as a write does, but leaves the session as it is.
    driver: RefCell<Box<dyn Driver>>,
    compiler: Box<dyn Compiler>,
    compute: Stream,
    copies: Stream,
    uploaded: Event,
    /// The copies out of the input slot that a step begins with; later copies into it wait for them.
    taken: Event,
    /// What lies in the input slot.
    turn: u64,
    arena: Option<Arena>,
    modules: BTreeMap<Unit, Module>,
    functions: BTreeMap<(Module, &'static str), Function>,
    programs: Vec<Program>,
    memory: DeviceMemory,
    notes: Vec<String>,
    /// After an error that breaks the context nothing else is tried.
    broken: Option<String>,
}

impl From<DriverError> for RuntimeError {
    fn from(e: DriverError) -> RuntimeError {
        let after =
            if e.sticky { "; the CUDA context is lost: checkpoints are intact, start again" } else { "" };
        RuntimeError::Cuda(format!("{e}{after}"))
    }
}

impl CudaDevice {
    /// The first real device, with the compiler that is found. The error says what is missing and how to get it.
    pub fn open() -> Result<CudaDevice, RuntimeError> {
        let (driver, compiler) = cuda::first_device().map_err(RuntimeError::Cuda)?;
        CudaDevice::new(driver, compiler)
    }

    /// A device on a driver, with a compiler for it.
    pub fn new(mut driver: Box<dyn Driver>, compiler: Box<dyn Compiler>) -> Result<CudaDevice, RuntimeError> {
        let (compute, copies) = (driver.stream()?, driver.stream()?);
        let (uploaded, taken) = (driver.event()?, driver.event()?);
        Ok(CudaDevice {
            driver: RefCell::new(driver),
            compiler,
            compute,
            copies,
            uploaded,
            taken,
            turn: 0,
            arena: None,
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            programs: Vec::new(),
            memory: DeviceMemory::default(),
            notes: Vec::new(),
            broken: None,
        })
    }

    /// Remarks for people, once each.
    pub fn notes(&mut self) -> Vec<String> {
        self.notes.extend(self.compiler.notes());
        std::mem::take(&mut self.notes)
    }

    fn arena(&self) -> Result<&Arena, RuntimeError> {
        if let Some(e) = &self.broken {
            return Err(RuntimeError::Cuda(e.clone()));
        }
        self.arena.as_ref().ok_or_else(|| RuntimeError::Internal("the arena is not allocated yet".to_owned()))
    }

    /// Address of a part of the arena.
    fn place(&self, offset: u64, len: u64) -> Result<u64, RuntimeError> {
        let arena = self.arena()?;
        if offset.checked_add(len).is_none_or(|end| end > arena.bytes) {
            return Err(RuntimeError::Internal(format!("{len} bytes at {offset} lie outside of the arena")));
        }
        Ok(arena.base + offset)
    }

    /// Remembers an error that breaks the context.
    fn checked<T>(&mut self, r: Result<T, DriverError>) -> Result<T, RuntimeError> {
        r.map_err(|e| {
            let sticky = e.sticky;
            let e = RuntimeError::from(e);
            if sticky {
                self.broken = Some(e.to_string());
            }
            e
        })
    }

    /// A kernel, compiled and loaded once.
    fn function(&mut self, launch: &ops::cuda::Launch) -> Result<Function, RuntimeError> {
        let unit = Unit::of(launch);
        let module = match self.modules.get(&unit) {
            Some(m) => *m,
            None => {
                let image = self.compiler.compile(&unit).map_err(|e| RuntimeError::Cuda(e.to_string()))?;
                let loaded = self.driver.get_mut().load(&image, &unit.name);
                let m = self.checked(loaded)?;
                self.modules.insert(unit, m);
                m
            }
        };
        if let Some(f) = self.functions.get(&(module, launch.entry)) {
            return Ok(*f);
        }
        let found = self.driver.get_mut().function(module, launch.entry);
        let f = self.checked(found)?;
        self.functions.insert((module, launch.entry), f);
        Ok(f)
    }

    /// Copies to the device are done before later work of the compute stream.
    fn await_copies(&mut self) -> Result<(), RuntimeError> {
        let recorded = self.driver.get_mut().record(self.uploaded, self.copies);
        self.checked(recorded)?;
        let waits = self.driver.get_mut().wait(self.compute, self.uploaded);
        self.checked(waits)
    }

    /// What a kernel of the program said of its data, if it refused it.
    fn refusal(&mut self, program: usize) -> Result<(), RuntimeError> {
        let at = self.arena()?.status();
        let mut bytes = [0; Status::BYTES];
        let from = Read { at, len: Status::BYTES as u64, tag: None };
        let read = self.driver.get_mut().download(from, &mut bytes, self.compute, "the status");
        self.checked(read)?;
        match Status::read(&bytes) {
            None => Ok(()),
            Some(s) => {
                let (node, op) = self.programs[program].name(s.call);
                Err(RuntimeError::Kernel { node, op, what: s.to_string() })
            }
        }
    }
}

impl Device for CudaDevice {
    fn kind(&self) -> plan::Device {
        plan::Device::Cuda
    }

    /// What is free on the device was asked for when the arena was taken; see [`Device::allocate`].
    fn available(&self) -> Option<Available> {
        None
    }

    fn name(&self) -> Option<String> {
        Some(self.driver.borrow().device().name)
    }

    fn memory(&mut self) -> Result<Option<DeviceMemory>, RuntimeError> {
        let asked = self.driver.get_mut().memory();
        self.memory.now = self.checked(asked)?.free;
        Ok(Some(self.memory))
    }

    fn allocate(&mut self, bytes: u64) -> Result<(), RuntimeError> {
        self.programs.clear();
        if let Some(old) = self.arena.take() {
            let freed = self.driver.get_mut().free(old.base);
            self.checked(freed)?;
        }
        let asked = self.driver.get_mut().memory();
        let cuda::Memory { free, total } = self.checked(asked)?;
        // As the arena's own: multiples of 256 bytes.
        let (bytes, status) = (bytes.next_multiple_of(256), 256);
        if free < bytes + status {
            return Err(RuntimeError::NotEnoughMemory {
                needed: bytes + status,
                available: free,
                source_of_limit: format!("free on {}", self.driver.get_mut().device().name),
            });
        }
        let taken = self.driver.get_mut().alloc(bytes + status);
        let base = self.checked(taken)?;
        self.arena = Some(Arena { base, bytes });
        self.memory = DeviceMemory { total, before: free, loaded: free, now: free, arena: bytes + status };
        Ok(())
    }

    fn load(&mut self, graph: &Graph, calls: Vec<Call>) -> Result<LoadedProgram, RuntimeError> {
        let mut program = Program::prepare(self, graph, &calls)?;
        let begun = self.driver.get_mut().begin_capture(self.compute);
        self.checked(begun)?;
        program.issue(self, None)?;
        let captured = self.driver.get_mut().end_capture(self.compute);
        program.graph = Some(self.checked(captured)?);
        self.programs.push(program);
        let asked = self.driver.get_mut().memory();
        self.memory.loaded = self.checked(asked)?.free;
        Ok(LoadedProgram(self.programs.len() - 1))
    }

    fn run(&mut self, program: LoadedProgram, options: RunOptions) -> Result<RunReport, RuntimeError> {
        let report = self.start(program, &[], options)?;
        self.finish(program)?;
        Ok(report)
    }

    /// Drivers load kernels when they first run, and make room for their stacks then.
    fn warm(&mut self) -> Result<(), RuntimeError> {
        let (at, len) = (self.arena()?.base, self.arena()?.bytes);
        for graph in self.programs.iter().filter_map(|p| p.graph).collect::<Vec<_>>() {
            let to = Write { at, len, tag: EXTERNAL };
            let zeroed = self.driver.get_mut().zero(to, self.compute, "the arena");
            self.checked(zeroed)?;
            let launched = self.driver.get_mut().launch_graph(graph, self.compute);
            self.checked(launched)?;
        }
        // What kernels say of zeros is nothing to anybody.
        let waited = self.driver.get_mut().synchronize(self.compute);
        self.checked(waited)?;
        self.driver.get_mut().forget(at, len);
        let asked = self.driver.get_mut().memory();
        self.memory.loaded = self.checked(asked)?.free;
        Ok(())
    }

    fn unload(&mut self, program: LoadedProgram) {
        let old = self.programs.get_mut(program.0).map(std::mem::take);
        if let Some(graph) = old.and_then(|p| p.graph) {
            let dropped = self.driver.get_mut().drop_graph(graph);
            // What is wrong with the context the next call says, too.
            let _ = self.checked(dropped);
        }
    }

    fn stage(&mut self, parts: &[(u64, &[u8])]) -> Result<(), RuntimeError> {
        if self.turn > 0 {
            let waits = self.driver.get_mut().wait(self.copies, self.taken);
            self.checked(waits)?;
        }
        self.turn += 1;
        for (offset, bytes) in parts.iter().filter(|p| !p.1.is_empty()) {
            let (at, len) = (self.place(*offset, bytes.len() as u64)?, bytes.len() as u64);
            let to = Write { at, len, tag: Tag(IN_SLOT | self.turn) };
            let done = self.driver.get_mut().upload(bytes, to, self.copies, "an input");
            self.checked(done)?;
        }
        Ok(())
    }

    fn start(
        &mut self,
        program: LoadedProgram,
        moves: &[Move],
        options: RunOptions,
    ) -> Result<RunReport, RuntimeError> {
        self.arena()?;
        self.await_copies()?;
        let at = program.0;
        if at >= self.programs.len() {
            return Err(RuntimeError::Internal("no such program".to_owned()));
        }
        for m in moves.iter().filter(|m| m.len > 0) {
            let (from, to, len) = (self.place(m.from, m.len)?, self.place(m.to, m.len)?, m.len);
            let (from, to) = (
                Read { at: from, len, tag: Some(Tag(IN_SLOT | self.turn)) },
                Write { at: to, len, tag: EXTERNAL },
            );
            let copied = self.driver.get_mut().copy(from, to, self.compute, "an input out of the slot");
            self.checked(copied)?;
        }
        let recorded = self.driver.get_mut().record(self.taken, self.compute);
        self.checked(recorded)?;
        let mut report = RunReport::default();
        if options.measure || options.check_recompute {
            // Call by call, so that each can be looked at; the kernels and their order are those of the graph.
            let p = std::mem::take(&mut self.programs[at]);
            let done = p.issue(self, Some((options, &mut report)));
            self.programs[at] = p;
            done?;
        } else if let Some(graph) = self.programs[at].graph {
            let launched = self.driver.get_mut().launch_graph(graph, self.compute);
            self.checked(launched)?;
        }
        Ok(report)
    }

    fn finish(&mut self, program: LoadedProgram) -> Result<(), RuntimeError> {
        // Waits for the whole step: the outputs are read next.
        self.refusal(program.0)
    }

    fn eager(&mut self, _: &mut EagerBody<'_>) -> Result<(), RuntimeError> {
        let what = "programs whose shapes are known only at run time do not run on CUDA yet: bind their sizes with --dim";
        Err(RuntimeError::Cuda(what.to_owned()))
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RuntimeError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let at = self.place(offset, bytes.len() as u64)?;
        let to = Write { at, len: bytes.len() as u64, tag: EXTERNAL };
        let done = self.driver.get_mut().upload(bytes, to, self.copies, "an input");
        self.checked(done)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), RuntimeError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let at = self.place(offset, bytes.len() as u64)?;
        let from = Read { at, len: bytes.len() as u64, tag: None };
        let mut driver = self.driver.borrow_mut();
        // Copies to the device may be under way still.
        driver.record(self.uploaded, self.copies)?;
        driver.wait(self.compute, self.uploaded)?;
        Ok(driver.download(from, bytes, self.compute, "an output")?)
    }

    fn zero(&mut self, offset: u64, len: u64) -> Result<(), RuntimeError> {
        let at = self.place(offset, len)?;
        let done = self.driver.get_mut().zero(Write { at, len, tag: EXTERNAL }, self.copies, "a state");
        self.checked(done)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        if let (Some(arena), None) = (self.arena.take(), &self.broken) {
            // Whatever still runs uses the arena.
            let _ = self.driver.get_mut().synchronize(self.compute);
            let _ = self.driver.get_mut().free(arena.base);
        }
    }
}
