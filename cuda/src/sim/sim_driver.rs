//! The driver's calls, done on the CPU and checked.

use super::{
    Fault, HostLibrary, Kernel,
    clock::{Actor, Clock},
    memory::Memory as Bytes,
};
use crate::{
    Access, DeviceInfo, Driver, DriverError, Event, Function, GraphExec, Image, Memory, Module, Read, Stream,
    Write,
};
use std::collections::{BTreeMap, BTreeSet};

/// What a graph has recorded.
enum Step {
    Launch { kernel: Function, grid: u32, block: u32, args: Vec<Vec<u8>>, access: Access },
    Copy { from: Read, to: Write, what: String },
    Zero { to: Write, what: String },
    Record(Event),
    Wait(Event),
}

/// A stream that is being recorded, or belongs to a graph that is.
struct Capture {
    /// The stream on which it began.
    origin: Stream,
    /// Streams that have joined, by events that were recorded in the capture.
    streams: Vec<Stream>,
    events: Vec<Event>,
    steps: Vec<(Stream, Step)>,
}

struct Graph {
    origin: Stream,
    steps: Vec<(Stream, Step)>,
}

/// The simulated driver.
pub struct Sim {
    info: DeviceInfo,
    total: u64,
    memory: Bytes,
    /// What the host has waited for; it touches no device memory itself. Stream `i` is actor `i + 1`.
    host: Clock,
    streams: Vec<Clock>,
    events: Vec<Option<Clock>>,
    libraries: Vec<HostLibrary>,
    kernels: Vec<(Kernel, String)>,
    /// `None` once given back.
    graphs: Vec<Option<Graph>>,
    capture: Option<Capture>,
    next_actor: usize,
    faults: Vec<Fault>,
    calls: usize,
    waits: usize,
    uploads: usize,
    copies: usize,
    broken: bool,
    /// Kernel launches done.
    launches: u64,
    /// Kernels that have run: as real drivers do, memory is taken for a kernel when it first runs.
    ran: BTreeSet<Function>,
}

/// Bytes that are taken for a kernel.
const OF_KERNEL: u64 = 4096;

/// Actors of streams and of the host; those of runs of graphs come after.
const FIRST_RUN: usize = 1 << 20;

impl Sim {
    /// A device of so many bytes.
    pub fn new(total: u64) -> Sim {
        Sim {
            info: DeviceInfo { name: "simulated device".to_owned(), architecture: 90, driver_version: 13000 },
            total,
            memory: Bytes::default(),
            host: Clock::default(),
            streams: Vec::new(),
            events: Vec::new(),
            libraries: Vec::new(),
            kernels: Vec::new(),
            graphs: Vec::new(),
            capture: None,
            next_actor: FIRST_RUN,
            faults: Vec::new(),
            calls: 0,
            waits: 0,
            uploads: 0,
            copies: 0,
            broken: false,
            launches: 0,
            ran: BTreeSet::new(),
        }
    }

    /// As if it were of this architecture (`10 * major + minor`); kernels run the same.
    #[must_use]
    pub fn of_architecture(mut self, architecture: u32) -> Sim {
        self.info.architecture = architecture;
        self
    }

    /// Plants a fault.
    #[must_use]
    pub fn with(mut self, fault: Fault) -> Sim {
        self.faults.push(fault);
        self
    }

    /// Kernels launched so far.
    pub fn launches(&self) -> u64 {
        self.launches
    }

    /// Counts a call, and fails it where that was planted.
    fn call(&mut self, call: &'static str, of: &str) -> Result<(), DriverError> {
        let n = self.calls;
        self.calls += 1;
        self.broken |= self.faults.contains(&Fault::FailCall(n));
        if self.broken {
            let what = "an illegal memory access was encountered (planted)".to_owned();
            return Err(DriverError { call, of: of.to_owned(), what, sticky: true });
        }
        Ok(())
    }

    fn actor(stream: Stream) -> Actor {
        Actor(stream.0 + 1)
    }

    /// Records a step if its stream is captured.
    fn captured(&mut self, stream: Stream, step: impl FnOnce() -> Step) -> bool {
        match &mut self.capture {
            Some(c) if c.streams.contains(&stream) => {
                c.steps.push((stream, step()));
                true
            }
            _ => false,
        }
    }

    /// Checks and notes the accesses of an operation by an actor whose clock is given.
    fn touch(&mut self, access: &Access, actor: Actor, clock: &mut Clock) -> Result<(), String> {
        let now = clock.tick(actor);
        for r in &access.reads {
            self.memory.read(r, now, clock, &access.what)?;
        }
        for w in &access.writes {
            self.memory.write(w, now, clock, &access.what)?;
        }
        Ok(())
    }

    /// Does a step for an actor.
    fn perform(&mut self, step: &Step, actor: Actor, clock: &mut Clock) -> Result<(), DriverError> {
        match step {
            Step::Launch { kernel: on, grid, block, args, access } => {
                let (kernel, name) = self.kernels[on.0].clone();
                let of = format!("node {}, kernel {name}", access.what);
                let refuse = |what| DriverError::new("cuLaunchKernel", &of, what);
                self.touch(access, actor, clock).map_err(refuse)?;
                // SAFETY: addresses come from allocations of this driver, whose places were just checked; kernels stay inside of them, which
                // their own tests check.
                unsafe { kernel.run(*grid, *block, args) }.map_err(refuse)?;
                self.launches += 1;
                self.ran.insert(*on);
            }
            Step::Copy { from, to, what } => {
                let refuse = |e: String| DriverError::new("cuMemcpyDtoDAsync", what, e);
                let access = Access { what: what.clone(), reads: vec![*from], writes: vec![*to] };
                self.touch(&access, actor, clock).map_err(refuse)?;
                let bytes = self.memory.bytes(from.at, from.len).map_err(refuse)?.to_vec();
                self.memory.bytes(to.at, to.len).map_err(refuse)?.copy_from_slice(&bytes);
            }
            Step::Zero { to, what } => {
                let refuse = |e: String| DriverError::new("cuMemsetD8Async", what, e);
                let access = Access { what: what.clone(), reads: vec![], writes: vec![*to] };
                self.touch(&access, actor, clock).map_err(refuse)?;
                self.memory.bytes(to.at, to.len).map_err(refuse)?.fill(0);
            }
            Step::Record(_) | Step::Wait(_) => {}
        }
        Ok(())
    }

    /// Does a step now, on a stream. What the host has issued before, it has seen before.
    fn now(&mut self, step: &Step, stream: Stream) -> Result<(), DriverError> {
        let mut clock = std::mem::take(&mut self.streams[stream.0]);
        clock.join(&self.host);
        let done = self.perform(step, Sim::actor(stream), &mut clock);
        self.streams[stream.0] = clock;
        done
    }
}

impl Driver for Sim {
    fn device(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn memory(&mut self) -> Result<Memory, DriverError> {
        let used = self.memory.used + OF_KERNEL * self.ran.len() as u64;
        Ok(Memory { free: self.total.saturating_sub(used), total: self.total })
    }

    fn alloc(&mut self, bytes: u64) -> Result<u64, DriverError> {
        self.call("cuMemAlloc", "")?;
        if bytes > self.total.saturating_sub(self.memory.used) {
            return Err(DriverError::new("cuMemAlloc", "", "out of memory"));
        }
        Ok(self.memory.alloc(bytes))
    }

    fn free(&mut self, at: u64) -> Result<(), DriverError> {
        self.memory.free(at).map_err(|e| DriverError::new("cuMemFree", "", e))
    }

    fn stream(&mut self) -> Result<Stream, DriverError> {
        self.call("cuStreamCreate", "")?;
        self.streams.push(Clock::default());
        Ok(Stream(self.streams.len() - 1))
    }

    fn event(&mut self) -> Result<Event, DriverError> {
        self.call("cuEventCreate", "")?;
        self.events.push(None);
        Ok(Event(self.events.len() - 1))
    }

    fn record(&mut self, event: Event, stream: Stream) -> Result<(), DriverError> {
        self.call("cuEventRecord", "")?;
        if let Some(c) = &mut self.capture
            && c.streams.contains(&stream)
        {
            c.events.push(event);
            c.steps.push((stream, Step::Record(event)));
            return Ok(());
        }
        self.events[event.0] = Some(self.streams[stream.0].clone());
        Ok(())
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DriverError> {
        self.call("cuStreamWaitEvent", "")?;
        let n = self.waits;
        self.waits += 1;
        if self.faults.contains(&Fault::SkipWait(n)) {
            return Ok(());
        }
        if let Some(c) = &mut self.capture
            && c.events.contains(&event)
        {
            if !c.streams.contains(&stream) {
                c.streams.push(stream);
            }
            c.steps.push((stream, Step::Wait(event)));
            return Ok(());
        }
        if let Some(clock) = &self.events[event.0] {
            let clock = clock.clone();
            self.streams[stream.0].join(&clock);
        }
        Ok(())
    }

    fn synchronize(&mut self, stream: Stream) -> Result<(), DriverError> {
        self.call("cuStreamSynchronize", "")?;
        let clock = self.streams[stream.0].clone();
        self.host.join(&clock);
        Ok(())
    }

    fn upload(&mut self, bytes: &[u8], to: Write, stream: Stream, what: &str) -> Result<(), DriverError> {
        self.call("cuMemcpyHtoDAsync", what)?;
        let n = self.uploads;
        self.uploads += 1;
        if self.faults.contains(&Fault::SkipUpload(n)) {
            return Ok(());
        }
        let refuse = |e: String| DriverError::new("cuMemcpyHtoDAsync", what, e);
        let mut clock = std::mem::take(&mut self.streams[stream.0]);
        clock.join(&self.host);
        let access = Access { what: what.to_owned(), reads: vec![], writes: vec![to] };
        let done = self.touch(&access, Sim::actor(stream), &mut clock);
        self.streams[stream.0] = clock;
        done.map_err(refuse)?;
        self.memory.bytes(to.at, to.len).map_err(refuse)?.copy_from_slice(bytes);
        Ok(())
    }

    fn download(
        &mut self,
        from: Read,
        bytes: &mut [u8],
        stream: Stream,
        what: &str,
    ) -> Result<(), DriverError> {
        self.call("cuMemcpyDtoHAsync", what)?;
        let refuse = |e: String| DriverError::new("cuMemcpyDtoHAsync", what, e);
        let mut clock = std::mem::take(&mut self.streams[stream.0]);
        clock.join(&self.host);
        let access = Access { what: what.to_owned(), reads: vec![from], writes: vec![] };
        let done = self.touch(&access, Sim::actor(stream), &mut clock);
        self.streams[stream.0] = clock;
        done.map_err(refuse)?;
        bytes.copy_from_slice(self.memory.bytes(from.at, from.len).map_err(refuse)?);
        self.synchronize(stream)
    }

    fn copy(&mut self, from: Read, to: Write, stream: Stream, what: &str) -> Result<(), DriverError> {
        self.call("cuMemcpyDtoDAsync", what)?;
        let n = self.copies;
        self.copies += 1;
        if self.faults.contains(&Fault::SkipCopy(n)) {
            return Ok(());
        }
        let step = || Step::Copy { from, to, what: what.to_owned() };
        if self.captured(stream, step) { Ok(()) } else { self.now(&step(), stream) }
    }

    fn forget(&mut self, at: u64, len: u64) {
        self.memory.forget(at, len);
    }

    fn zero(&mut self, to: Write, stream: Stream, what: &str) -> Result<(), DriverError> {
        self.call("cuMemsetD8Async", what)?;
        let step = || Step::Zero { to, what: what.to_owned() };
        if self.captured(stream, step) { Ok(()) } else { self.now(&step(), stream) }
    }

    fn load(&mut self, image: &Image, name: &str) -> Result<Module, DriverError> {
        self.call("cuModuleLoadData", name)?;
        let refuse = |e: String| DriverError::new("cuModuleLoadData", name, e);
        let Image::Host(path) = image else {
            return Err(refuse("a cubin is nothing for the simulated driver".to_owned()));
        };
        self.libraries.push(HostLibrary::open(path).map_err(refuse)?);
        Ok(Module(self.libraries.len() - 1))
    }

    fn function(&mut self, module: Module, name: &str) -> Result<Function, DriverError> {
        self.call("cuModuleGetFunction", name)?;
        let kernel = self.libraries[module.0].kernel(name);
        let kernel = kernel.map_err(|e| DriverError::new("cuModuleGetFunction", name, e))?;
        self.kernels.push((kernel, name.to_owned()));
        Ok(Function(self.kernels.len() - 1))
    }

    fn launch(
        &mut self,
        kernel: Function,
        grid: u32,
        block: u32,
        args: &[Vec<u8>],
        stream: Stream,
        access: &Access,
    ) -> Result<(), DriverError> {
        self.call("cuLaunchKernel", &access.what)?;
        let step = || Step::Launch { kernel, grid, block, args: args.to_vec(), access: access.clone() };
        if self.captured(stream, step) { Ok(()) } else { self.now(&step(), stream) }
    }

    fn begin_capture(&mut self, stream: Stream) -> Result<(), DriverError> {
        self.call("cuStreamBeginCapture", "")?;
        if self.capture.is_some() {
            return Err(DriverError::new("cuStreamBeginCapture", "", "a stream is captured already"));
        }
        let (streams, events) = (vec![stream], Vec::new());
        self.capture = Some(Capture { origin: stream, streams, events, steps: Vec::new() });
        Ok(())
    }

    fn end_capture(&mut self, stream: Stream) -> Result<GraphExec, DriverError> {
        self.call("cuStreamEndCapture", "")?;
        let refuse = |what| DriverError::new("cuStreamEndCapture", "", what);
        let c = self.capture.take().ok_or_else(|| refuse("no stream is captured"))?;
        if c.origin != stream {
            return Err(refuse("the capture began on another stream"));
        }
        self.graphs.push(Some(Graph { origin: c.origin, steps: c.steps }));
        Ok(GraphExec(self.graphs.len() - 1))
    }

    fn drop_graph(&mut self, graph: GraphExec) -> Result<(), DriverError> {
        self.call("cuGraphExecDestroy", "")?;
        self.graphs[graph.0] = None;
        Ok(())
    }

    /// Each recorded stream is an actor of this run: the first knows what the launching stream knows, the others what their events tell
    /// them; in the end the launching stream knows what all have done.
    fn launch_graph(&mut self, graph: GraphExec, stream: Stream) -> Result<(), DriverError> {
        self.call("cuGraphLaunch", "")?;
        let gone = || DriverError::new("cuGraphLaunch", "", "the graph was given back");
        let Graph { origin, steps } = self.graphs[graph.0].take().ok_or_else(gone)?;
        let mut start = self.streams[stream.0].clone();
        start.join(&self.host);
        let mut clocks: BTreeMap<Stream, (Actor, Clock)> = BTreeMap::new();
        let mut events: BTreeMap<Event, Clock> = BTreeMap::new();
        clocks.insert(origin, (Actor(self.next_actor), start));
        self.next_actor += 1;
        let mut done = Ok(());
        for (on, step) in &steps {
            let fresh = Actor(self.next_actor);
            let (actor, clock) = clocks.entry(*on).or_insert_with(|| (fresh, Clock::default()));
            if *actor == fresh {
                self.next_actor += 1;
            }
            match step {
                Step::Record(e) => {
                    events.insert(*e, clock.clone());
                }
                Step::Wait(e) => {
                    if let Some(known) = events.get(e) {
                        clock.join(known);
                    }
                }
                work => {
                    done = self.perform(work, *actor, clock);
                    if done.is_err() {
                        break;
                    }
                }
            }
        }
        for (_, clock) in clocks.values() {
            self.streams[stream.0].join(clock);
        }
        let _ = self.streams[stream.0].tick(Sim::actor(stream));
        self.graphs[graph.0] = Some(Graph { origin, steps });
        done
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        // Kernels are addresses in the libraries.
        self.kernels.clear();
    }
}
