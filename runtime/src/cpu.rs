//! The CPU: kernels in this process, threads from a pool of its own.

use crate::{
    RuntimeError,
    arena::Arena,
    available::{Available, available_memory},
    device::{
        BesideBody, Device, Eager, EagerBody, LoadedProgram, Prepared as PreparedCall, RunOptions, RunReport,
    },
    resolve::{Call, Region},
};
use graph::{Graph, NodeId};
use ops::{
    Signature,
    cpu::{Buffer, CpuKernel, Io},
};
use std::{collections::BTreeMap, sync::Arc, time::Instant};

struct Prepared {
    kernel: Arc<CpuKernel>,
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
    workspace: Buffer,
    /// Index of the node, for names.
    node: usize,
    recompute: bool,
    /// Index among the program's calls.
    call: usize,
}

struct Program {
    calls: Vec<Prepared>,
    total_calls: usize,
    /// (node name, operator) by node.
    names: Vec<(String, String)>,
    /// Whether a node runs more than once.
    repeated: Vec<bool>,
}

/// The CPU device.
pub struct CpuDevice {
    pool: rayon::ThreadPool,
    arena: Option<Arena>,
    /// `None` where one was unloaded.
    programs: Vec<Option<Program>>,
}

impl CpuDevice {
    /// A device with this many threads; 0 for one a core.
    pub fn new(threads: usize) -> Result<CpuDevice, RuntimeError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("dtrc-{i}"))
            .build()
            .map_err(|e| RuntimeError::Allocate { bytes: 0, error: std::io::Error::other(e) })?;
        Ok(CpuDevice { pool, arena: None, programs: Vec::new() })
    }

    fn arena(&self) -> Result<&Arena, RuntimeError> {
        self.arena.as_ref().ok_or_else(no_arena)
    }
}

fn no_arena() -> RuntimeError {
    RuntimeError::Allocate { bytes: 0, error: std::io::Error::other("the arena is not allocated yet") }
}

impl Device for CpuDevice {
    fn kind(&self) -> plan::Device {
        plan::Device::Cpu
    }

    fn available(&self) -> Option<Available> {
        available_memory()
    }

    fn allocate(&mut self, bytes: u64) -> Result<(), RuntimeError> {
        self.programs.clear();
        self.arena = None;
        self.arena = Some(Arena::new(bytes)?);
        Ok(())
    }

    fn load(&mut self, graph: &Graph, calls: Vec<Call>) -> Result<LoadedProgram, RuntimeError> {
        let arena = self.arena()?;
        let mut kernels: BTreeMap<(NodeId, usize), Arc<CpuKernel>> = BTreeMap::new();
        let mut prepared = Vec::with_capacity(calls.len());
        let mut repeated = vec![false; graph.nodes.len()];
        let total_calls = calls.len();
        for (index, call) in calls.into_iter().enumerate() {
            repeated[call.node.index()] |= call.recompute;
            if call.is_view {
                continue;
            }
            let kernel = match kernels.get(&(call.node, call.implementation)) {
                Some(k) => k.clone(),
                None => {
                    let k = Arc::new(prepare(graph, call.node, call.implementation)?);
                    kernels.insert((call.node, call.implementation), k.clone());
                    k
                }
            };
            let buffer = |r: &Region| arena.buffer(r.offset, r.len);
            prepared.push(Prepared {
                kernel,
                inputs: call.inputs.iter().map(|r| r.as_ref().map_or(Buffer::NONE, buffer)).collect(),
                outputs: call.outputs.iter().map(buffer).collect(),
                workspace: call.workspace.as_ref().map_or(Buffer::NONE, buffer),
                node: call.node.index(),
                recompute: call.recompute,
                call: index,
            });
        }
        let names = graph.nodes.iter().map(|n| (n.name.to_string(), n.op.to_string())).collect();
        let program = Some(Program { calls: prepared, total_calls, names, repeated });
        let free = self.programs.iter().position(Option::is_none);
        let at = free.unwrap_or(self.programs.len());
        match free {
            Some(at) => self.programs[at] = program,
            None => self.programs.push(program),
        }
        Ok(LoadedProgram(at))
    }

    fn unload(&mut self, program: LoadedProgram) {
        if let Some(p) = self.programs.get_mut(program.0) {
            *p = None;
        }
    }

    fn release(&mut self, from: u64) -> Result<(), RuntimeError> {
        self.arena.as_mut().ok_or_else(no_arena)?.release(from, u64::MAX)
    }

    fn run(&mut self, program: LoadedProgram, options: RunOptions) -> Result<RunReport, RuntimeError> {
        let program = self.programs.get(program.0).and_then(Option::as_ref).ok_or_else(no_arena)?;
        self.pool.install(|| run(program, options))
    }

    fn eager(&mut self, body: &mut EagerBody<'_>) -> Result<(), RuntimeError> {
        let arena = self.arena.as_mut().ok_or_else(no_arena)?;
        // One task of the pool for all calls: each is too short to be handed over.
        self.pool.install(|| body(&mut EagerCpu { arena, beside: None }))
    }

    fn eager_beside(&mut self, bytes: u64, body: &mut BesideBody<'_>) -> Result<(), RuntimeError> {
        let refuse = |what: &str| RuntimeError::Allocate { bytes, error: std::io::Error::other(what) };
        if available_memory().is_none_or(|a| a.bytes / 2 < bytes) {
            return Err(refuse("it is more than half of what is available"));
        }
        let memory = Arena::new(bytes)?;
        let arena = self.arena.as_mut().ok_or_else(no_arena)?;
        let base = arena.bytes_in_all().next_multiple_of(plan::ALIGNMENT);
        self.pool.install(|| body(&mut EagerCpu { arena, beside: Some((base, memory)) }, base))
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RuntimeError> {
        let arena = self.arena.as_mut().ok_or_else(no_arena)?;
        arena.bytes_mut(offset, bytes.len() as u64).copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), RuntimeError> {
        bytes.copy_from_slice(self.arena()?.bytes(offset, bytes.len() as u64));
        Ok(())
    }

    fn zero(&mut self, offset: u64, len: u64) -> Result<(), RuntimeError> {
        self.arena.as_mut().ok_or_else(no_arena)?.bytes_mut(offset, len).fill(0);
        Ok(())
    }
}

/// Calls one by one over the arena, and over memory beside it from an address on.
struct EagerCpu<'a> {
    arena: &'a mut Arena,
    beside: Option<(u64, Arena)>,
}

impl EagerCpu<'_> {
    /// The memory that an address lies in, and the address there.
    fn memory(&self, offset: u64) -> (&Arena, u64) {
        match &self.beside {
            Some((base, memory)) if offset >= *base => (memory, offset - base),
            _ => (self.arena, offset),
        }
    }

    fn memory_mut(&mut self, offset: u64) -> (&mut Arena, u64) {
        match &mut self.beside {
            Some((base, memory)) if offset >= *base => (memory, offset - *base),
            _ => (self.arena, offset),
        }
    }

    fn buffer(&self, r: &Region) -> Buffer {
        let (memory, offset) = self.memory(r.offset);
        memory.buffer(offset, r.len)
    }
}

impl Eager for EagerCpu<'_> {
    fn prepare(&mut self, graph: &Graph, node: NodeId) -> Result<PreparedCall, RuntimeError> {
        Ok(Arc::new(prepare(graph, node, 0)?))
    }

    fn call(
        &mut self,
        kernel: &PreparedCall,
        inputs: &[Option<Region>],
        outputs: &[Region],
        workspace: Option<Region>,
    ) -> Result<(), String> {
        let kernel = kernel.downcast_ref::<CpuKernel>().ok_or("a kernel of another device (a bug)")?;
        let buffer = |r: &Region| self.buffer(r);
        let inputs: Vec<Buffer> = inputs.iter().map(|r| r.as_ref().map_or(Buffer::NONE, buffer)).collect();
        let outputs: Vec<Buffer> = outputs.iter().map(buffer).collect();
        let workspace = workspace.as_ref().map_or(Buffer::NONE, buffer);
        // SAFETY: inside of the memory (checked by `buffer`); the caller's places do not overlap but where the facts allow it, storages are
        // 256-byte aligned, and calls come one at a time through `&mut self`.
        let io = unsafe { Io::new(&inputs, &outputs, workspace) };
        kernel(&io).map_err(|e| e.0)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) {
        let (memory, offset) = self.memory(offset);
        bytes.copy_from_slice(memory.bytes(offset, bytes.len() as u64));
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let (memory, offset) = self.memory_mut(offset);
        memory.bytes_mut(offset, bytes.len() as u64).copy_from_slice(bytes);
    }

    fn shift(&mut self, from: u64, to: u64, len: u64) {
        let distance = from.abs_diff(to);
        let (memory, low) = self.memory_mut(from.min(to));
        let both = memory.bytes_mut(low, distance + len);
        let (from, to) = if from <= to { (0, distance) } else { (distance, 0) };
        both.copy_within(from as usize..(from + len) as usize, to as usize);
    }

    fn discard(&mut self, offset: u64, len: u64) {
        let (memory, offset) = self.memory_mut(offset);
        // Where it fails the pages stay.
        let _ = memory.release(offset, offset.saturating_add(len));
    }
}

fn prepare(graph: &Graph, node: NodeId, implementation: usize) -> Result<CpuKernel, RuntimeError> {
    let node = graph.node(node);
    let wrap = |what| RuntimeError::Prepare { node: node.name.to_string(), op: node.op.to_string(), what };
    let op = ops::find(&node.op).ok_or_else(|| wrap("this runtime does not know the operator".to_owned()))?;
    ops::cpu::widen::prepare(op, &Signature::of(graph, node), implementation).map_err(|e| wrap(e.to_string()))
}

fn run(program: &Program, options: RunOptions) -> Result<RunReport, RuntimeError> {
    let mut report = RunReport::default();
    if options.measure {
        report.call_ns = vec![0; program.total_calls];
    }
    let mut hashes: BTreeMap<usize, blake3::Hash> = BTreeMap::new();
    for c in &program.calls {
        let start = options.measure.then(Instant::now);
        // SAFETY: the plan was validated: buffers lie in the arena, live storages do not overlap, sharing follows the facts; 256-byte
        // alignment holds for storages and element alignment for views; the session runs one program at a time.
        let io = unsafe { Io::new(&c.inputs, &c.outputs, c.workspace) };
        let named = || program.names[c.node].clone();
        (c.kernel)(&io).map_err(|e| {
            let (node, op) = named();
            RuntimeError::Kernel { node, op, what: e.0 }
        })?;
        if let Some(start) = start {
            report.call_ns[c.call] = start.elapsed().as_nanos() as u64;
        }
        if options.check_recompute && program.repeated[c.node] {
            let mut h = blake3::Hasher::new();
            for o in &c.outputs {
                // SAFETY: just written by the kernel.
                h.update(unsafe { std::slice::from_raw_parts(o.ptr, o.len) });
            }
            let hash = h.finalize();
            if *hashes.entry(c.node).or_insert(hash) != hash {
                let (node, op) = named();
                return Err(RuntimeError::RecomputeDiffers { node, op });
            }
        }
        debug_assert!(!c.recompute || program.repeated[c.node]);
    }
    Ok(report)
}
