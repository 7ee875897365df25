//! Pools that are too small: what a refusal names does, whether or not the way of the program was known, and the session goes on.

use graph::Literal;
use runtime::{
    Available, Call, CpuDevice, Device, EagerBody, Least, LoadOptions, LoadedProgram, PoolFull, RunOptions,
    RunReport, RuntimeError, Session,
};
use std::collections::BTreeMap;
use tests::{
    Weights,
    open::{Subject, step},
    reference::sgd,
    written::state,
};

type Arrays = BTreeMap<String, Literal>;

/// The loss's bits, or why the pool was too small.
fn run(s: &mut Session, io: &Arrays) -> Result<u64, Box<PoolFull>> {
    match step(s, io, 0.01, 1) {
        Ok(r) => Ok(r.loss().unwrap().to_bits()),
        Err(RuntimeError::PoolFull(full)) => Err(full),
        Err(e) => panic!("{e}"),
    }
}

/// The first `rows` rows of the reference's batch along every input's first axis; sequence models have it second.
fn rows(subject: &Subject, rows: usize) -> Arrays {
    let batch = subject.io["target"].shape()[0];
    let cut = |l: &Literal| {
        let axis = l.shape().iter().position(|n| *n == batch).unwrap_or(0);
        part(l, axis, rows)
    };
    subject.io.iter().map(|(n, l)| (n.clone(), cut(l))).collect()
}

/// The first `keep` places along an axis.
fn part(l: &Literal, axis: usize, keep: usize) -> Literal {
    let shape = l.shape();
    let outer: u64 = shape[..axis].iter().product();
    let inner = shape[axis + 1..].iter().product::<u64>() * l.dtype().size();
    let row = (shape[axis] * inner) as usize;
    let kept = keep * inner as usize;
    let bytes: Vec<u8> =
        (0..outer as usize).flat_map(|o| l.bytes()[o * row..o * row + kept].to_vec()).collect();
    let mut shape = shape.to_vec();
    shape[axis] = keep as u64;
    Literal::new(l.dtype(), shape, bytes).unwrap()
}

const FILES: [&str; 8] = [
    "lstm_cls.ts_dyn.onnx",
    "lstm_lens.ts_dyn.onnx",
    "rnn_cls.ts_dyn.onnx",
    "lstm_loop.ts_dyn.onnx",
    "ifnet_pos.ts_dyn.onnx",
    "act_while.ts_dyn.onnx",
    "scannet.dy_dyn.onnx",
    "mlp.ts_dyn.onnx",
];

/// From pools in which not even the first condition can be computed to ones that are almost enough.
#[test]
fn the_pool_that_is_named_does_at_once() {
    let mut refused = 0;
    for file in FILES {
        let Some(subject) = Subject::new(file, sgd()) else { return };
        let mut roomy = subject.in_pool(1 << 26);
        let r = step(&mut roomy, &subject.io, 0.01, 1).unwrap_or_else(|e| panic!("{file}: {e}"));
        let (bits, peak) = (r.loss().unwrap().to_bits(), r.report.dynamic.unwrap().pool.peak);
        let mut named = Vec::new();
        for pool in [256, 512, 1024, peak / 8, peak / 4, peak / 2, peak * 3 / 4, peak * 7 / 8] {
            let pool = plan::align(pool);
            let mut s = subject.in_pool(pool);
            let before = state(&s);
            let Err(full) = run(&mut s, &subject.io) else { continue };
            refused += 1;
            assert!(state(&s) == before, "{file}: a refused step has changed the state");
            let Some(Least::Enough(least)) = full.least else { panic!("{file} at {pool}: {full}") };
            assert!(pool < least && least <= plan::align(peak + peak / 8), "{file} at {pool}: {full}");
            let mut again = subject.in_pool(least);
            let got = run(&mut again, &subject.io).unwrap_or_else(|e| panic!("{file} at {pool}: {e}"));
            assert_eq!(got, bits, "{file} at {least}");
            assert!(state(&again) == state(&roomy), "{file} at {least}");
            named.push((pool, least));
        }
        println!("{file:<24} peak {peak:>8}   pool and what its refusal names: {named:?}");
    }
    assert!(refused > 30, "{refused}");
}

/// After a batch that was too large comes one that is not, as if nothing had been.
#[test]
fn another_batch_may_be_given() {
    let mut refused = 0;
    for file in FILES {
        let Some(subject) = Subject::new(file, sgd()) else { return };
        let (small, large) = (rows(&subject, 1), rows(&subject, 4));
        let Err(full) = run(&mut subject.in_pool(256), &small) else { panic!("{file}: no refusal") };
        let Some(Least::Enough(pool)) = full.least else { panic!("{file}: {full}") };
        let (mut tried, mut spared) = (subject.in_pool(pool), subject.in_pool(pool));
        if run(&mut tried, &large).is_ok() {
            // Alignment left room for more rows in the pool of one.
            println!("{file:<24} pool {pool:>8}   the larger batch fits");
            continue;
        }
        refused += 1;
        for _ in 0..2 {
            let bits = run(&mut spared, &small).unwrap_or_else(|e| panic!("{file}: {e}"));
            assert_eq!(run(&mut tried, &small).unwrap_or_else(|e| panic!("{file}: {e}")), bits, "{file}");
            assert!(state(&tried) == state(&spared), "{file}: the state differs after a refusal");
        }
        println!("{file:<24} pool {pool:>8}   refused, then as if nothing had been");
    }
    assert!(refused >= 5, "{refused}");
}

/// A CPU that lends no memory beside its arena.
struct Strict(CpuDevice);

impl Device for Strict {
    fn kind(&self) -> plan::Device {
        self.0.kind()
    }
    fn available(&self) -> Option<Available> {
        self.0.available()
    }
    fn allocate(&mut self, bytes: u64) -> Result<(), RuntimeError> {
        self.0.allocate(bytes)
    }
    fn load(&mut self, graph: &graph::Graph, calls: Vec<Call>) -> Result<LoadedProgram, RuntimeError> {
        self.0.load(graph, calls)
    }
    fn run(&mut self, program: LoadedProgram, options: RunOptions) -> Result<RunReport, RuntimeError> {
        self.0.run(program, options)
    }
    fn eager(&mut self, body: &mut EagerBody<'_>) -> Result<(), RuntimeError> {
        self.0.eager(body)
    }
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.0.write(offset, bytes)
    }
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), RuntimeError> {
        self.0.read(offset, bytes)
    }
    fn zero(&mut self, offset: u64, len: u64) -> Result<(), RuntimeError> {
        self.0.zero(offset, len)
    }
}

/// Where the way of the program stays unknown the refusal says so, and what it names brings the next try further.
#[test]
fn what_is_not_known_is_said_to_be_a_part() {
    for file in ["ifnet_pos.ts_dyn.onnx", "act_while.ts_dyn.onnx"] {
        let Some(subject) = Subject::new(file, sgd()) else { return };
        let mut pools = vec![256];
        let mut parts = 0;
        loop {
            let pool = *pools.last().unwrap();
            let plan = subject.plan_in(1 << 40, Some(pool));
            let device = Box::new(Strict(CpuDevice::new(1).unwrap()));
            let options = LoadOptions::default();
            let mut s = Session::load(plan, device, &mut Weights(&subject.open.weights), options).unwrap();
            let before = state(&s);
            let Err(full) = run(&mut s, &subject.io) else { break };
            assert!(state(&s) == before, "{file}: a refused step has changed the state");
            let next = match full.least {
                Some(Least::SoFar(n)) => {
                    parts += 1;
                    assert!(full.to_string().contains("the rest may need more"), "{full}");
                    n
                }
                Some(Least::Enough(n)) => n,
                None => panic!("{file} at {pool}: {full}"),
            };
            assert!(next > pool && pools.len() < 64, "{file}: {pools:?}, then {full}");
            pools.push(next);
        }
        assert!(parts > 0, "{file}: {pools:?}");
        println!("{file:<24} {pools:?}");
    }
}
