//! What the CPU form of kernels finds in wrong ones: small kernels with one mistake each, and our own with a barrier taken out.

mod common;

use common::{Given, floats, host};
use cuda::{
    Access, CompileError, Compiler, Driver, Image, Tag, Unit, Write,
    sim::{HostCompiler, Sim},
};
use graph::{Attrs, Literal};
use std::path::Path;

/// Runs a kernel `k(float *y)` of 64 threads and `blocks` blocks; what is said of it.
fn run(body: &str, blocks: u32) -> Option<Result<(), String>> {
    let (mut sim, mut compiler) = host()?;
    let text = format!("#include \"dtrc_device.h\"\nKERNEL(k, f32 *y) {{\n{body}\n}}\n");
    let unit = Unit { name: "planted.cu".to_owned(), text, defines: vec![], headers: Unit::own_headers() };
    let image = compiler.compile(&unit).unwrap_or_else(|e| panic!("{e}"));
    let module = sim.load(&image, "planted").unwrap();
    let kernel = sim.function(module, "k").unwrap();
    let (stream, at) = (sim.stream().unwrap(), sim.alloc(4096).unwrap());
    sim.upload(&[0; 4096], Write { at, len: 4096, tag: Tag(0) }, stream, "zeros").unwrap();
    let access = Access { what: "planted".to_owned(), ..Access::default() };
    let args = vec![at.to_le_bytes().to_vec()];
    Some(sim.launch(kernel, blocks, 64, &args, stream, &access).map_err(|e| e.to_string()))
}

/// The kernel is refused, and for this reason.
fn refused(body: &str, why: &str) {
    let Some(done) = run(body, 2) else { return };
    let e = done.expect_err(body);
    assert!(e.contains(why), "{e:?} does not say {why:?}");
}

const EXCHANGE: &str = "shared Shared<f32, 64> s; int t = (int)threadIdx.x;";

#[test]
fn a_right_kernel_runs() {
    let body = format!("{EXCHANGE} s[t] = (f32)t;\nbarrier();\ny[t] = s[63 - t];\nbarrier();\ns[t] = 0;");
    assert_eq!(run(&body, 3).unwrap_or(Ok(())), Ok(()));
}

#[test]
fn a_barrier_that_threads_miss_is_found() {
    refused("if (threadIdx.x < 32)\n    barrier();", "barrier divergence: it has returned, others wait");
    refused(
        "if (threadIdx.x < 7) {\n    barrier();\n} else {\n    barrier();\n}",
        "barrier divergence: lines",
    );
    // The number of rounds differs between threads.
    refused("for (int i = 0; i < (int)threadIdx.x % 3; i++)\n    barrier();", "barrier divergence");
}

#[test]
fn a_shuffle_without_its_warp_is_found() {
    refused("if (threadIdx.x != 5)\n    y[threadIdx.x] = shuffle_xor(1.0f, 1);", "shuffle divergence");
    refused(
        "if (threadIdx.x % 32 < 16)\n    y[0] = shuffle_xor(1.0f, 1);\nelse\n    barrier();",
        "shuffle divergence",
    );
}

#[test]
fn races_on_shared_memory_are_found() {
    let race = |rest: &str| refused(&format!("{EXCHANGE} {rest}"), "race on shared element");
    // Read without a barrier after the write; written again without one after the read; two writers.
    race("s[t] = 1;\ny[t] = s[t / 2];");
    race("s[t] = 1;\nbarrier();\ny[t] = s[63 - t];\ns[t] = 2;");
    race("s[t / 2] = (f32)t;");
    // A warp in step is no order: a shuffle is no barrier.
    race("s[t] = 1;\ny[t] = shuffle_xor(1.0f, 1) + s[t ^ 1];");
}

#[test]
fn stray_and_early_reads_are_found() {
    refused(&format!("{EXCHANGE} y[t] = s[t];"), "is read before it is written");
    refused(&format!("{EXCHANGE} s[t + 1] = 1;"), "shared element 64 of 64");
    // What the block before has left is nothing to read.
    let body = format!("{EXCHANGE} if (blockIdx.x == 0)\n    s[t] = 1;\nbarrier();\ny[t] = s[t];");
    refused(&body, "block 1, thread 0: shared element 0 is read before it is written");
}

/// Compiles units with the n-th barrier of a part of their text, or of the header, taken out.
struct Without {
    inner: HostCompiler,
    /// A barrier is one of this function or kernel.
    of: &'static str,
    nth: usize,
    found: bool,
}

impl Without {
    fn cut(&mut self, text: &str) -> Option<String> {
        let start = text.find(self.of)?;
        let (at, _) = text[start..].match_indices("barrier();").nth(self.nth)?;
        let end = text[start..].find("\n}\n").unwrap_or(text.len() - start);
        (at < end).then(|| {
            self.found = true;
            format!("{}{}", &text[..start + at], &text[start + at + "barrier();".len()..])
        })
    }
}

impl Compiler for Without {
    fn compile(&mut self, unit: &Unit) -> Result<Image, CompileError> {
        let mut unit = unit.clone();
        if let Some(text) = self.cut(&unit.text) {
            unit.text = text;
        } else if let Some(header) = self.cut(&unit.headers[0]) {
            unit.headers[0] = header;
        }
        self.inner.compile(&unit)
    }
}

/// Every barrier of these functions is needed, and the shim says so where one is missing.
#[test]
fn our_kernels_without_a_barrier_are_refused() {
    if host().is_none() {
        return;
    }
    let none = Attrs::new;
    let x = |shape: &[usize], seed| Some(floats(shape, seed, false));
    let rows: [Option<Literal>; 3] = [x(&[3, 70, 20], 1), x(&[3, 70, 20], 2), x(&[3, 70, 20], 3)];
    let line = || x(&[3, 70], 8);
    let gradient = [rows.to_vec(), vec![None, x(&[3, 70, 20], 9), line(), x(&[3, 70, 20], 10)]].concat();
    let transposed = none().with("perm", vec![1, 0]);
    let matrices = vec![x(&[70, 40], 4), x(&[40, 66], 5)];
    // Where the barriers are, which of them, the operator, attributes, inputs.
    type Case<'a> = (&'static str, &'a [usize], &'a str, Attrs, Vec<Option<Literal>>);
    let cases: [Case<'_>; 6] = [
        ("dev Arith block_reduce", &[0, 1], "Softmax", none().with("axis", 1), vec![x(&[5, 300], 6)]),
        ("dev void dots", &[0, 1], "Attention", none(), rows.to_vec()),
        ("KERNEL(forward,", &[0], "Attention", none(), rows.to_vec()),
        ("KERNEL(backward,", &[0], "AttentionGrad", none(), gradient),
        ("dev void tile(", &[0, 1], "MatMul", none(), matrices),
        ("KERNEL(transpose,", &[1], "Transpose", transposed, vec![x(&[300, 2100], 7)]),
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/cuda-host");
    for (of, barriers, op, attrs, inputs) in cases {
        let op = ops::find(op).unwrap();
        let given = Given::new(op, attrs, inputs).unwrap();
        for nth in barriers {
            let mut compiler = Without { inner: HostCompiler::new(&folder), of, nth: *nth, found: false };
            let done = given.on_cuda(&mut Sim::new(1 << 30), &mut compiler, op, &[]);
            assert!(compiler.found, "{of} has no barrier {nth}");
            let e = done.map(|_| "it runs").map_err(|e| e.contains("shared element"));
            assert_eq!(e, Err(true), "{of} without barrier {nth}");
        }
    }
}
