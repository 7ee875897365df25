//! Budgets that change between steps: the largest program that fits runs, or online DTR; the bits stay.

use compiler::pipeline::Budget;
use plan::{Plan, ProgramKind};
use runtime::{
    Available, CpuDevice, Device, EagerBody, LoadOptions, LoadedProgram, RunOptions, RunReport, RuntimeError,
    Session,
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tests::{
    tiny,
    variants::{Batch, Subject, step, trained},
};

const SHARES: [Budget; 3] = [Budget::OfKeepAll(1.0), Budget::OfKeepAll(0.8), Budget::OfKeepAll(0.6)];

fn subject() -> (Subject, Plan, Batch) {
    let subject = Subject::new(&tiny::path("transformer_tiny.onnx"), None);
    let plan = subject.fixed(&[], &SHARES);
    let g = &plan.programs[0].graph;
    let shape = |name: &str| -> Vec<u64> {
        let v = g.values.iter().find(|v| &*v.name == name).unwrap();
        v.ty.shape.fixed().unwrap().iter().map(|d| *d as u64).collect()
    };
    let batch = tiny::data(&plan).into_iter().map(|(n, b)| (n.clone(), shape(&n), b)).collect();
    (subject, plan, batch)
}

/// Which programs ran, losses, and the state at the end.
type Trace = (Vec<usize>, Vec<Vec<u8>>, Vec<(String, Vec<u8>)>);

fn train(session: &mut Session, batch: &Batch, change: &mut dyn FnMut(&mut Session, i64)) -> Trace {
    let (mut ran, mut losses) = (Vec::new(), Vec::new());
    for n in 1..=8 {
        change(session, n);
        let r = step(session, batch, n).unwrap();
        ran.push(if r.report.dynamic.is_some() { usize::MAX } else { r.report.program });
        losses.push(r.outputs[0].2.clone());
    }
    (ran, losses, trained(session))
}

#[test]
fn programs_for_several_budgets_share_a_plan() {
    let (subject, plan, _) = subject();
    let arenas: Vec<u64> = plan.programs.iter().map(|p| p.certificate.arena).collect();
    assert_eq!(arenas.len(), 3);
    assert!(arenas.is_sorted_by(|a, b| a > b) && plan.arena == arenas[0], "{arenas:?}");
    let single = subject.fixed(&[], &SHARES[..1]);
    assert_eq!(plan.numerics, single.numerics);
    assert_eq!((plan.state_bytes, plan.programs[0].certificate.arena), (single.state_bytes, single.arena));
    let bytes = plan::to_bytes(&plan).unwrap();
    assert_eq!(plan::from_bytes(&bytes).unwrap(), plan);
}

#[test]
fn a_budget_that_changes_at_steps_3_and_6_changes_no_bit() {
    let (subject, plan, batch) = subject();
    let arena = |i: usize| plan.programs[i].certificate.arena;
    let (_, losses, state) = train(&mut subject.session(plan.clone()), &batch, &mut |_, _| {});
    let mut changing = subject.session(plan.clone());
    let (ran, l, s) = train(&mut changing, &batch, &mut |session, n| match n {
        3 => session.set_budget(arena(2)).unwrap(),
        6 => session.set_budget(arena(1) + 1).unwrap(),
        _ => {}
    });
    assert_eq!(ran, [0, 0, 2, 2, 2, 1, 1, 1]);
    assert!(l == losses && s == state);
}

#[test]
fn below_the_least_program_the_step_runs_online() {
    let (subject, _, batch) = subject();
    let plan = subject.fixed(&[], &[Budget::OfKeepAll(1.0), Budget::OfKeepAll(0.9)]);
    let (_, losses, state) = train(&mut subject.session(plan.clone()), &batch, &mut |_, _| {});
    let mut squeezed = subject.session(plan.clone());
    let below = plan.programs[1].certificate.arena - 256;
    let (ran, l, s) = train(&mut squeezed, &batch, &mut |session, n| match n {
        3 => session.set_budget(below).unwrap(),
        6 => session.set_budget(u64::MAX).unwrap(),
        _ => {}
    });
    let online = usize::MAX;
    assert_eq!(ran, [0, 0, online, online, online, 0, 0, 0]);
    assert!(l == losses && s == state);
    assert_eq!(squeezed.budget(), plan.arena);
}

#[test]
fn a_budget_that_is_too_small_is_refused_and_the_session_goes_on() {
    let (subject, plan, batch) = subject();
    let mut session = subject.session(plan.clone());
    let e = session.set_budget(plan.state_bytes).unwrap_err();
    assert!(matches!(e, RuntimeError::Budget { state, .. } if state == plan.state_bytes), "{e}");
    assert_eq!(session.budget(), plan.arena);
    // The state fits, and nothing else: the step is refused, the state stays, a larger budget runs.
    let before = trained(&session);
    session.set_budget(plan.state_bytes + 4096).unwrap();
    let e = step(&mut session, &batch, 1).unwrap_err();
    assert!(matches!(e, RuntimeError::PoolFull(_)), "{e}");
    assert!(trained(&session) == before);
    session.set_budget(plan.arena).unwrap();
    assert!(step(&mut session, &batch, 1).is_ok());
}

/// A CPU with as much memory as it is told.
struct Metered {
    cpu: CpuDevice,
    available: Arc<AtomicU64>,
    released: Arc<AtomicU64>,
}

impl Device for Metered {
    fn kind(&self) -> plan::Device {
        self.cpu.kind()
    }
    fn available(&self) -> Option<Available> {
        Some(Available { bytes: self.available.load(Ordering::Relaxed), source: "a test" })
    }
    fn allocate(&mut self, bytes: u64) -> Result<(), RuntimeError> {
        self.cpu.allocate(bytes)
    }
    fn load(
        &mut self,
        graph: &graph::Graph,
        calls: Vec<runtime::Call>,
    ) -> Result<LoadedProgram, RuntimeError> {
        self.cpu.load(graph, calls)
    }
    fn unload(&mut self, program: LoadedProgram) {
        self.cpu.unload(program);
    }
    fn release(&mut self, from: u64) -> Result<(), RuntimeError> {
        self.released.store(from, Ordering::Relaxed);
        self.cpu.release(from)
    }
    fn run(&mut self, program: LoadedProgram, options: RunOptions) -> Result<RunReport, RuntimeError> {
        self.cpu.run(program, options)
    }
    fn eager(&mut self, body: &mut EagerBody<'_>) -> Result<(), RuntimeError> {
        self.cpu.eager(body)
    }
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.cpu.write(offset, bytes)
    }
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), RuntimeError> {
        self.cpu.read(offset, bytes)
    }
    fn zero(&mut self, offset: u64, len: u64) -> Result<(), RuntimeError> {
        self.cpu.zero(offset, len)
    }
}

#[test]
fn a_session_follows_the_memory_there_is() {
    let (subject, plan, batch) = subject();
    let arena = |i: usize| plan.programs[i].certificate.arena;
    let (_, losses, state) = train(&mut subject.session(plan.clone()), &batch, &mut |_, _| {});
    let (available, released) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let device = || {
        let (available, released) = (available.clone(), released.clone());
        Box::new(Metered { cpu: CpuDevice::new(1).unwrap(), available, released })
    };
    // Too little for the largest program: refused, or begun with what fits.
    available.store(arena(1) + arena(1) / 8, Ordering::Relaxed);
    let refused = subject.session_on(plan.clone(), device(), LoadOptions::default());
    assert!(matches!(refused, Err(RuntimeError::NotEnoughMemory { .. })));
    let follow = LoadOptions { follow_memory: true, ..LoadOptions::default() };
    let mut session = subject.session_on(plan.clone(), device(), follow).unwrap();
    let (ran, l, s) = train(&mut session, &batch, &mut |session, n| {
        // What is free beside what the arena holds by now.
        let free = match n {
            1 => arena(1) + arena(1) / 8 - plan.state_bytes,
            2 => arena(1) / 8,
            3 | 4 => 1 << 30,
            5 => 0,
            6 => arena(0) - arena(1),
            _ => arena(0),
        };
        available.store(free, Ordering::Relaxed);
        session.follow_memory().unwrap();
        if n == 5 {
            assert!(released.load(Ordering::Relaxed) < arena(0));
        }
    });
    assert_eq!(ran, [1, 1, 0, 0, 1, 1, 0, 0]);
    assert!(l == losses && s == state);
    assert!(session.program(ProgramKind::Train).is_ok());
}
