//! Rates of the product, convolution and pool kernels, as CSV.
//!
//! `kernels [filter]` runs each case several times and prints, for the best run, wall time, GFLOP/s by wall time and GFLOP/s a core by
//! CPU time (what remains meaningful while other programs use the machine), and the same two rates of a plain 1024-cubed product taken
//! right before, so that a slow moment shows. Pools report Gbyte/s in place of GFLOP/s.

use graph::{Attrs, DType, TensorType};
use ops::{
    OpDef, Signature,
    cpu::{Buffer, Io},
};
use std::time::{Duration, Instant};

struct Case {
    name: String,
    op: &'static str,
    attrs: Attrs,
    inputs: Vec<(DType, Vec<usize>)>,
}

fn product(m: usize, n: usize, k: usize, tb: bool) -> Case {
    Case {
        name: format!("matmul {m}x{n}x{k}{}", if tb { " bT" } else { "" }),
        op: "MatMul",
        attrs: Attrs::new().with("trans_b", tb),
        inputs: vec![(DType::F32, vec![m, k]), (DType::F32, if tb { vec![n, k] } else { vec![k, n] })],
    }
}

/// Forward, input gradient and weight gradient of one square convolution.
fn conv(n: usize, c: usize, f: usize, size: usize, k: usize, stride: usize, group: usize) -> Vec<Case> {
    let pad = (k - 1) / 2;
    let out = (size + 2 * pad - k) / stride + 1;
    let attrs = Attrs::new()
        .with("strides", vec![stride as i64; 2])
        .with("pads", vec![pad as i64; 4])
        .with("group", group as i64);
    let extra = (size + 2 * pad - k) % stride;
    let (x, w, y) = (vec![n, c, size, size], vec![f, c / group, k, k], vec![n, f, out, out]);
    let of = |s: &Vec<usize>| (DType::F32, s.clone());
    let name = format!("{n}x{c}x{size} -> {f}, {k}x{k} s{stride} g{group}");
    let case = |what: &str, op, attrs, inputs| Case { name: format!("{what} {name}"), op, attrs, inputs };
    vec![
        case("conv", "Conv", attrs.clone(), vec![of(&x), of(&w)]),
        case(
            "conv dx",
            "ConvTranspose",
            attrs.clone().with("output_padding", vec![extra as i64; 2]),
            vec![of(&y), of(&w)],
        ),
        case("conv dw", "ConvGradWeight", attrs.with("kernel", vec![k as i64; 2]), vec![of(&x), of(&y)]),
    ]
}

fn pool(op: &'static str, n: usize, c: usize, size: usize, k: usize, stride: usize) -> Case {
    let pad = (k - 1) / 2;
    Case {
        name: format!("{op} {n}x{c}x{size}, {k}x{k} s{stride}"),
        op,
        attrs: Attrs::new()
            .with("kernel", vec![k as i64; 2])
            .with("strides", vec![stride as i64; 2])
            .with("pads", vec![pad as i64; 4]),
        inputs: vec![(DType::F32, vec![n, c, size, size])],
    }
}

fn cases() -> Vec<Case> {
    let mut v = vec![
        product(1024, 1024, 1024, false),
        product(1024, 1024, 1024, true),
        product(512, 3072, 768, false),
        product(8, 1000, 512, true),
        product(4096, 64, 64, false),
        product(256, 512, 512, true),
    ];
    // ResNet-18 at 224, batch 8.
    v.extend(conv(8, 3, 64, 224, 7, 2, 1));
    v.extend(conv(8, 64, 64, 56, 3, 1, 1));
    v.extend(conv(8, 64, 128, 56, 3, 2, 1));
    v.extend(conv(8, 64, 128, 56, 1, 2, 1));
    v.extend(conv(8, 128, 128, 28, 3, 1, 1));
    v.extend(conv(8, 256, 256, 14, 3, 1, 1));
    v.extend(conv(8, 512, 512, 7, 3, 1, 1));
    // UNet, bottlenecks, depthwise.
    v.extend(conv(2, 3, 32, 256, 3, 1, 1));
    v.extend(conv(2, 32, 32, 256, 3, 1, 1));
    v.extend(conv(2, 128, 64, 128, 3, 1, 1));
    v.extend(conv(8, 256, 64, 56, 1, 1, 1));
    v.extend(conv(8, 96, 96, 56, 3, 1, 96));
    v.extend(conv(8, 96, 96, 56, 3, 2, 96));
    v.push(pool("MaxPool", 8, 64, 112, 3, 2));
    v.push(pool("MaxPool", 2, 64, 128, 2, 2));
    v.push(pool("AveragePool", 8, 64, 112, 3, 2));
    v
}

/// CPU time of the process.
fn cpu_time() -> Duration {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid; the clock exists on every Unix.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t) };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// Best wall and CPU seconds of `runs` runs.
fn best(runs: usize, mut f: impl FnMut()) -> (f64, f64) {
    f();
    (0..runs).fold((f64::MAX, f64::MAX), |(wall, cpu), _| {
        let (w, c) = (Instant::now(), cpu_time());
        f();
        let (w, c) = (w.elapsed().as_secs_f64(), (cpu_time() - c).as_secs_f64());
        (wall.min(w), cpu.min(c))
    })
}

struct Memory(Vec<Vec<u64>>);

impl Memory {
    fn buffers(&mut self) -> Vec<Buffer> {
        let of = |v: &mut Vec<u64>| Buffer { ptr: v.as_mut_ptr().cast(), len: v.len() * 8 };
        self.0.iter_mut().map(of).collect()
    }
}

/// Memory for a tensor with elements that are neither zero nor denormal.
fn tensor(t: &TensorType, seed: u64) -> anyhow::Result<Vec<u64>> {
    let bytes = t.bytes().ok_or_else(|| anyhow::anyhow!("{t} has no fixed size"))?;
    let mut x = seed | 1;
    let mut next = || {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((x >> 41) as f32 / (1u32 << 22) as f32) - 1.0
    };
    let pair = |a: f32, b: f32| u64::from(a.to_bits()) | u64::from(b.to_bits()) << 32;
    Ok((0..bytes.div_ceil(8)).map(|_| pair(next(), next())).collect())
}

fn run(case: &Case, runs: usize) -> anyhow::Result<(f64, f64, f64)> {
    let op: &dyn OpDef = ops::find(case.op).ok_or_else(|| anyhow::anyhow!("no operator {}", case.op))?;
    let types: Vec<TensorType> = case.inputs.iter().map(|(d, s)| TensorType::new(*d, s)).collect();
    let s = Signature {
        attrs: &case.attrs,
        inputs: types.iter().map(Some).collect(),
        constants: vec![None; types.len()],
        outputs: vec![],
    };
    let out = op.infer(&s)?;
    let s = Signature { outputs: out.iter().collect(), ..s };
    let kernel = ops::cpu::widen::prepare(op, &s, 0)?;
    let mut inputs = Memory(types.iter().zip(1..).map(|(t, i)| tensor(t, i)).collect::<Result<_, _>>()?);
    let mut outputs = Memory(out.iter().map(|t| tensor(t, 9)).collect::<Result<_, _>>()?);
    let mut workspace =
        vec![0u64; ops::cpu::widen::facts(op, &s).implementations[0].workspace.div_ceil(8) as usize];
    let (i, o) = (inputs.buffers(), outputs.buffers());
    let w = Buffer { ptr: workspace.as_mut_ptr().cast(), len: workspace.len() * 8 };
    let (wall, cpu) = best(runs, || {
        // SAFETY: buffers of the sizes of the types, owned by this function, disjoint.
        let io = unsafe { Io::new(&i, &o, w) };
        let _ = kernel(&io);
    });
    let work = op.work(&s);
    let amount = if work.product { work.flops } else { work.bytes };
    Ok((amount as f64 / 1e9, wall, cpu))
}

fn main() -> anyhow::Result<()> {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let reference = product(1024, 1024, 1024, false);
    println!("case,ms,wall_rate,core_rate,reference_wall_rate,reference_core_rate");
    for case in cases().iter().filter(|c| c.name.contains(&filter)) {
        let (rg, rw, rc) = run(&reference, 5)?;
        let (g, w, c) = run(case, 15)?;
        println!("\"{}\",{:.3},{:.1},{:.1},{:.1},{:.1}", case.name, w * 1e3, g / w, g / c, rg / rw, rg / rc);
    }
    Ok(())
}
