//! The pool that a refusal names does at once, however little the refused one was, and it is found soon.

use graph::{Graph, NodeId};
use onnx_models::ModelProto;
use runtime::{
    Available, BesideBody, Call, CpuDevice, Device, Eager, EagerBody, LoadedProgram, Prepared, Region,
    RunOptions, RunReport, RuntimeError,
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tests::{
    bodies::{graph, ints, model, tensor, weight},
    written::{Array, floats, least, session, session_on, state, step},
};

/// Scans over rows, a loop that goes on as long as a sum says, and a sequence that leads nowhere: what the walk runs and what the step keeps
/// of it differ.
fn scans() -> ModelProto {
    let first = graph(
        "s f64[1, 4], t f64[4]",
        "p = MatMul(s, w0)
         q = Add(p, t)
         o = Tanh(q)
         y = MatMul(o, w1)",
        &[],
        "o f64[1, 4], y f64[1, 4]",
    );
    let second = graph(
        "s2 f64[1, 4], t2 f64[4]",
        "p2 = MatMul(s2, w2)
         q2 = Add(p2, t2)
         o2 = Tanh(q2)
         y2 = Mul(o2, w3)",
        &[],
        "o2 f64[1, 4], y2 f64[1, 4]",
    );
    let lists = graph(
        "i i64[], go bool[], a f64[n, 4], b f64[n, 4]",
        "list = SplitToSequence(b) axis=1
         longer = SequenceInsert(list, v12, zero)
         other = SequenceErase(longer, one)
         joined = ConcatFromSequence(other) axis=1
         part = Slice(joined, two, six, ax1)
         c1 = Identity(part)
         d1 = Identity(part)
         sum1 = ReduceSum(part) keepdims=0
         less1 = Less(sum1, big)
         go1 = And(less1, go)
         seen = Tanh(a)",
        &[],
        "go1 bool[], c1 f64[n, 4], d1 f64[n, 4], seen f64[n, 4]",
    );
    let turns = graph(
        "i3 i64[], go3 bool[], a3 f64[n, 4], b3 f64[n, 4]",
        "scaled = Mul(v36, w4)
         curve = Tanh(scaled)
         v63m = Mul(v53, w5)
         v63 = Tanh(v63m)
         c3 = Identity(v63)
         d3 = Identity(v63)
         sum3 = ReduceSum(v53) keepdims=0
         less3 = Less(sum3, big)
         go4 = And(less3, go3)",
        &[],
        "go4 bool[], c3 f64[n, 4], d3 f64[n, 4]",
    );
    let yes = graph(
        "",
        "v48 = ReduceSum(v11, ax0) keepdims=1
         v49, v50 = Scan(v48, v33) num_scan_inputs=1 body=@second
         v52 = Squeeze(v50, ax1)
         v53 = Mul(v52, v49)
         v70, v71 = Loop(trips, true, v33, v33) body=@turns
         o74 = Identity(v32)
         o75 = Neg(v70)",
        &[("second", &second), ("turns", &turns)],
        "o74 f64[n, 4], o75 f64[n, 4]",
    );
    let no = graph(
        "",
        "o82 = Identity(v36)
         o83 = Neg(v32)",
        &[],
        "o82 f64[n, 4], o83 f64[n, 4]",
    );
    let all = graph(
        "x f64[n, 4]",
        "v7 = ReduceSum(x, ax0) keepdims=1
         v8, v9 = Scan(v7, x) num_scan_inputs=1 body=@first
         v11 = Squeeze(v9, ax1)
         v12 = Mul(v11, v8)
         v32, v33, v34 = Loop(trips, true, v12, x) body=@lists
         v36 = ReduceSum(v34, ax0) keepdims=0
         v37 = ReduceSum(v11) keepdims=0
         less = Less(v37, big)
         v40, v41 = If(less) then_branch=@yes else_branch=@no
         v85 = Sub(v32, v33)
         fin = Mul(v85, v41)
         fin2 = Add(fin, x)
         fw = Mul(fin2, w6)
         loss = ReduceMean(fw) keepdims=0",
        &[("first", &first), ("lists", &lists), ("yes", &yes), ("no", &no)],
        "loss f64[]",
    );
    let square = |name: &str, seed| weight(name, &[4, 4], seed);
    let initializers = vec![
        square("w0", 1),
        square("w1", 2),
        square("w2", 3),
        weight("w3", &[1, 4], 4),
        weight("w4", &[4], 5),
        weight("w5", &[1, 4], 6),
        weight("w6", &[4], 7),
        ints("ax0", &[1], &[0]),
        ints("ax1", &[1], &[1]),
        ints("two", &[1], &[2]),
        ints("six", &[1], &[6]),
        ints("zero", &[], &[0]),
        ints("one", &[], &[1]),
        ints("trips", &[], &[6]),
        tensor("big", 11, &[], 1e9f64.to_le_bytes().to_vec()),
        tensor("true", 9, &[], vec![1]),
    ];
    model(all, initializers)
}

fn rows(n: u64) -> Vec<Array> {
    let singles = floats(4 * n, n);
    let doubles = singles.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
    vec![("x", vec![n, 4], doubles.flat_map(f64::to_le_bytes).collect())]
}

/// What comes before the step fails in some pools and the step in others: what one trial leaves must not lead the next one astray.
#[test]
fn the_pool_that_a_refusal_names_is_enough_at_once() {
    let (model, data) = (scans(), rows(100));
    let mut roomy = session(&model, 1 << 26);
    let (bits, _) = step(&mut roomy, &data, 1).unwrap();
    let refusal = step(&mut session(&model, 4096), &data, 1).unwrap_err();
    let named = least(&refusal).unwrap_or_else(|| panic!("{refusal}"));
    let mut s = session(&model, named);
    let (got, report) = step(&mut s, &data, 1).unwrap_or_else(|e| panic!("{named}: {e}"));
    assert!(got == bits && report.pool.peak <= named && state(&s) == state(&roomy), "{named}: {report:?}");
    // From whichever pool one comes.
    let refusal = step(&mut session(&model, named / 2), &data, 1).unwrap_err();
    assert_eq!(least(&refusal), Some(named), "{refusal}");
}

/// The planner is greedy, so that there may be pools that do below some that do not.
#[test]
fn no_pool_far_below_the_named_one_does() {
    let model = scans();
    for n in [3, 40, 100] {
        let data = rows(n);
        let refusal = step(&mut session(&model, 1024), &data, 1).unwrap_err();
        let named = least(&refusal).unwrap_or_else(|| panic!("{n}: {refusal}"));
        let below = (1..).map(|i| named - named / 40 - i * plan::ALIGNMENT);
        for pool in below.take_while(|pool| *pool >= named - named / 4).step_by(3) {
            let done = step(&mut session(&model, pool), &data, 1);
            assert!(done.is_err(), "{n} rows: {named} bytes are named, {pool} do");
        }
    }
}

/// A device that counts kernels.
struct Counting(CpuDevice, Arc<AtomicU64>);

struct Calls<'a>(&'a mut dyn Eager, &'a AtomicU64);

impl Eager for Calls<'_> {
    fn prepare(&mut self, graph: &Graph, node: NodeId) -> Result<Prepared, RuntimeError> {
        self.0.prepare(graph, node)
    }
    fn call(
        &mut self,
        kernel: &Prepared,
        inputs: &[Option<Region>],
        outputs: &[Region],
        workspace: Option<Region>,
    ) -> Result<(), String> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.call(kernel, inputs, outputs, workspace)
    }
    fn read(&self, offset: u64, bytes: &mut [u8]) {
        self.0.read(offset, bytes);
    }
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.0.write(offset, bytes);
    }
    fn shift(&mut self, from: u64, to: u64, len: u64) {
        self.0.shift(from, to, len);
    }
}

impl Device for Counting {
    fn kind(&self) -> plan::Device {
        self.0.kind()
    }
    fn available(&self) -> Option<Available> {
        self.0.available()
    }
    fn allocate(&mut self, bytes: u64) -> Result<(), RuntimeError> {
        self.0.allocate(bytes)
    }
    fn load(&mut self, graph: &Graph, calls: Vec<Call>) -> Result<LoadedProgram, RuntimeError> {
        self.0.load(graph, calls)
    }
    fn run(&mut self, program: LoadedProgram, options: RunOptions) -> Result<RunReport, RuntimeError> {
        self.0.run(program, options)
    }
    fn eager(&mut self, body: &mut EagerBody<'_>) -> Result<(), RuntimeError> {
        let count = self.1.clone();
        self.0.eager(&mut |e| body(&mut Calls(e, &count)))
    }
    fn eager_beside(&mut self, bytes: u64, body: &mut BesideBody<'_>) -> Result<(), RuntimeError> {
        let count = self.1.clone();
        self.0.eager_beside(bytes, &mut |e, base| body(&mut Calls(e, &count), base))
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

/// One value that comes back may ask for thousands of others, and each of them for others again.
#[test]
fn a_refusal_does_not_recompute_for_ever() {
    let (model, data) = (scans(), rows(100));
    let (_, free) = step(&mut session(&model, 1 << 26), &data, 1).unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let device = Box::new(Counting(CpuDevice::new(1).unwrap(), calls.clone()));
    let mut s = session_on(&onnx_models::to_bytes(&model).unwrap(), 8192, device);
    let refusal = step(&mut s, &data, 1).unwrap_err();
    assert!(refusal.contains("out of memory") && least(&refusal).is_some(), "{refusal}");
    let calls = calls.load(Ordering::Relaxed);
    assert!(calls < 20 * free.nodes, "{calls} kernels for {} nodes", free.nodes);
}
