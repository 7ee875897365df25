//! What tests of kernels share: a simulated device with the C++ compiler behind it, tensors.

#![allow(dead_code, unused_imports)]

pub use cuda::compare::{Given, case_of, compare, run};
use cuda::sim::{HostCompiler, Sim};
use graph::{Attrs, DType, Literal};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::path::Path;

/// A simulated device and its compiler, or `None` after saying loudly that the test is skipped.
///
/// # Panics
///
/// If `CI` is set and there is no C++ compiler.
pub fn host() -> Option<(Sim, HostCompiler)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/cuda-host");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/src");
    let compiler = HostCompiler::new(&folder).reading(&sources);
    if !compiler.works() {
        test_support::skipped("there is no C++ compiler: install one, or set CXX");
        return None;
    }
    Some((Sim::new(1 << 40), compiler))
}

/// Does the same for two types side by side: most of the time goes to the C++ compiler.
pub fn side_by_side<T: Send>(dtypes: [DType; 2], each: fn(DType) -> T) -> [T; 2] {
    std::thread::scope(|scope| {
        let threads = dtypes.map(|dtype| scope.spawn(move || each(dtype)));
        threads.map(|t| t.join().unwrap())
    })
}

/// A float32 tensor uniform in [-1, 1], and with special values here and there if asked for.
pub fn floats(shape: &[usize], seed: u64, special: bool) -> Literal {
    let mut rng = StdRng::seed_from_u64(seed);
    let n: usize = shape.iter().product();
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-40, 3e38];
    let one = |i: usize, x: f32| if special && i % 5 == 2 { odd[i / 5 % odd.len()] } else { x };
    let bytes: Vec<u8> = (0..n).flat_map(|i| one(i, rng.random_range(-1.0..1.0)).to_le_bytes()).collect();
    Literal::new(DType::F32, shape.iter().map(|d| *d as u64).collect(), bytes).unwrap()
}

/// A tensor in another dtype, by the CPU's kernel.
pub fn cast(l: &Literal, to: DType) -> Literal {
    let op = ops::find("Cast").unwrap();
    let given = Given::new(op, Attrs::new().with("to", to), vec![Some(l.clone())]).unwrap();
    given.on_cpu(op).unwrap().swap_remove(0)
}

/// What tells a launch's kernel from others of its source by more than the function that it applies or the types that it reads: operators
/// of one form differ in one line, and one of them stands for all.
pub fn form(launch: &ops::cuda::Launch) -> (&'static str, Vec<(&'static str, String)>, &'static str) {
    let of_form = |name: &str| !["F", "R", "T", "TA", "TB", "TC", "TY", "K", "L"].contains(&name);
    let defines = launch.defines.iter().filter(|(n, _)| of_form(n)).cloned().collect();
    (launch.source.name, defines, launch.entry)
}
