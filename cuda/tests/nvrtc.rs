//! Every kernel of every operator compiled for every architecture, by NVIDIA's compiler from PyPI: no GPU, no headers.

mod common;

use common::{case_of, form};
use cuda::{
    Unit,
    nvrtc::{Nvrtc, Output},
    search::{Library, Process, find},
};
use graph::DType;
use ops::OPS;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Architectures that kernels are promised for and that are compiled here: all of them in CI, where minutes are spent; elsewhere, unless
/// `DTRC_ALL_ARCHITECTURES` is set, the oldest and the newest, which differ most.
fn architectures() -> &'static [u32] {
    let all = ["CI", "DTRC_ALL_ARCHITECTURES"].iter().any(|v| std::env::var_os(v).is_some());
    if all { &[75, 80, 90, 100, 120] } else { &[75, 120] }
}

/// The compiler, or `None` after saying loudly that the test is skipped.
///
/// # Panics
///
/// If `CI` is set and there is none, or if it does not open.
fn nvrtc() -> Option<Nvrtc> {
    let found = find(&Process, Library::Nvrtc, None);
    if found.is_none() {
        test_support::skipped(&format!("NVRTC is not found: {}", Library::Nvrtc.remedy()));
    }
    found.map(|path| Nvrtc::open(&path).unwrap_or_else(|e| panic!("{e}")))
}

/// The unit of a launch, as its source is now.
fn current(launch: &ops::cuda::Launch) -> Unit {
    Unit::of(launch).reread(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/src"))
}

/// The units of all cases of all operators, by a representative operator.
fn units(dtypes: &[DType]) -> BTreeMap<Unit, &'static str> {
    let mut all = BTreeMap::new();
    for op in OPS {
        for case in op.cases() {
            for dtype in dtypes {
                let Ok(given) = case_of(*op, &case, *dtype, 1) else { continue };
                for launch in given.launches(*op) {
                    all.entry(current(&launch)).or_insert_with(|| op.name());
                }
            }
        }
    }
    all
}

/// What the assembler says of each kernel: name, registers, bytes of spills.
fn resources(log: &str) -> Vec<(String, u32, u32)> {
    let number = |line: &str, before: &str| -> Option<u32> {
        line.split(before).next()?.trim_end().rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let (mut all, mut name, mut spills) = (Vec::new(), String::new(), 0);
    for line in log.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            name = rest.split('\'').next().unwrap_or_default().to_owned();
        } else if line.contains("bytes spill stores") {
            spills = number(line, " bytes spill stores").unwrap_or(0)
                + number(line, " bytes spill loads").unwrap_or(0);
        } else if line.contains("registers") {
            all.push((name.clone(), number(line, " registers").unwrap_or(0), spills));
        }
    }
    all
}

/// Compiles units for architectures on all cores. Returns how many kernels there were; limits on registers and spills are asserted.
fn compile_all(nvrtc: &Nvrtc, units: &[(Unit, &str)], architectures: &[u32]) -> usize {
    let next = AtomicUsize::new(0);
    let (problems, seen) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some((unit, op)) = units.get(i / architectures.len()) else { break };
                    let arch = architectures[i % architectures.len()];
                    match nvrtc.compile(unit, arch, Output::Cubin) {
                        Err(e) => problems.lock().unwrap().push(format!("{op}: {e}")),
                        Ok(done) => {
                            let kernels = resources(&done.log);
                            if kernels.is_empty() {
                                problems.lock().unwrap().push(format!("{}: no kernels in {:?}", unit.describe(), done.log));
                            }
                            seen.fetch_add(kernels.len(), Ordering::Relaxed);
                            // 256 threads of 128 registers are two blocks a processor.
                            for (name, registers, spills) in kernels {
                                if spills > 0 || registers > 128 {
                                    let what = format!("{name} of {}: {registers} registers, {spills} bytes spilled on sm_{arch}", unit.describe());
                                    problems.lock().unwrap().push(what);
                                }
                            }
                        }
                    }
                }
            });
        }
    });
    let (problems, seen) = (problems.into_inner().unwrap(), seen.into_inner());
    println!("{} units, {seen} kernels on {} architectures", units.len(), architectures.len());
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    seen
}

#[test]
fn every_kernel_compiles_for_every_architecture() {
    let Some(nvrtc) = nvrtc() else { return };
    let units: Vec<(Unit, &str)> = units(&[DType::F32]).into_iter().collect();
    compile_all(&nvrtc, &units, architectures());
}

/// 86 and 89 have the instructions of 80, with other limits: one unit of every source is enough to see that they are known.
#[test]
fn every_source_compiles_for_the_architectures_between() {
    let Some(nvrtc) = nvrtc() else { return };
    let mut of_source: BTreeMap<String, (Unit, &str)> = BTreeMap::new();
    for (unit, op) in units(&[DType::F32]) {
        of_source.entry(unit.name.clone()).or_insert((unit, op));
    }
    let units: Vec<(Unit, &str)> = of_source.into_values().collect();
    assert!(units.len() > 20, "{} sources", units.len());
    assert!(compile_all(&nvrtc, &units, &[86, 89]) >= 2 * units.len());
}

/// Kernels on 16-bit floats: one unit of every form, float16 on the oldest and the newest architecture, bfloat16 where it begins and on the
/// newest; elsewhere and in other functions the arithmetic is that of float32.
#[test]
fn kernels_on_halves_compile() {
    let Some(nvrtc) = nvrtc() else { return };
    for (dtype, architectures) in [(DType::F16, [75, 120]), (DType::BF16, [80, 120])] {
        let (mut seen, mut units) = (BTreeSet::new(), BTreeMap::new());
        for op in OPS {
            let given = op.cases().into_iter().filter_map(|c| case_of(*op, &c, dtype, 1).ok());
            for launch in given.flat_map(|g| g.launches(*op)) {
                let halves = launch.defines.iter().any(|(_, v)| v == ops::cuda::dtype_name(dtype));
                if halves && seen.insert(form(&launch)) {
                    units.entry(current(&launch)).or_insert_with(|| op.name());
                }
            }
        }
        let units: Vec<(Unit, &str)> = units.into_iter().collect();
        assert!(units.len() > 40, "{} units", units.len());
        compile_all(&nvrtc, &units, &architectures);
    }
}

/// Kernels that move whole tensors do so 16 bytes at a time.
#[test]
fn bulk_kernels_access_16_bytes() {
    let Some(nvrtc) = nvrtc() else { return };
    let find_unit = |op: &str, dtype: DType| {
        let op = ops::find(op).unwrap();
        let given = case_of(op, &op.cases()[0], dtype, 1).unwrap();
        current(&given.launches(op)[0])
    };
    let all = ["Add", "Relu", "Fill"].map(|op| (op, DType::F32)).into_iter();
    for (op, dtype) in all.chain([("Add", DType::F16), ("Relu", DType::BF16)]) {
        let unit = find_unit(op, dtype);
        let ptx = nvrtc.compile(&unit, 80, Output::Ptx).unwrap();
        let text = String::from_utf8_lossy(&ptx.bytes).into_owned();
        assert!(
            text.contains("st.global.v4") || text.contains("st.global.v2.b64"),
            "{op}: no stores of 16 bytes"
        );
        if op != "Fill" {
            assert!(
                text.contains("ld.global.v4") || text.contains("ld.global.v2.b64"),
                "{op}: no loads of 16 bytes"
            );
        }
    }
}

/// The units of an operator's first case in a type, in TF32 where that is float32.
fn on_tensor_cores(op: &str, dtype: DType) -> Vec<(Unit, &'static str)> {
    let op = ops::find(op).unwrap();
    let mut case = op.cases().swap_remove(0);
    case.attrs = case.attrs.with("tf32", dtype == DType::F32);
    let launches = case_of(op, &case, dtype, 1).unwrap().launches(op);
    let tensor = launches.iter().filter(|l| l.defines.iter().any(|(n, _)| *n == "TENSOR"));
    tensor.map(|l| (current(l), op.name())).collect()
}

/// Products use tensor cores, copies of 16 bytes and no more registers than two blocks a processor have, 64-bit indices included.
#[test]
fn products_multiply_on_tensor_cores() {
    let Some(nvrtc) = nvrtc() else { return };
    // With those of the test of 16-bit floats every architecture is among them.
    for (dtype, architectures, instruction) in [
        (DType::F16, &[75, 90][..], "m16n8k16.row.col.f32.f16.f16.f32"),
        (DType::BF16, &[80, 100], "m16n8k16.row.col.f32.bf16.bf16.f32"),
        (DType::F32, &[80, 90, 120], "m16n8k8.row.col.f32.tf32.tf32.f32"),
    ] {
        let all = ["MatMul", "Conv", "ConvTranspose", "ConvGradWeight"].map(|op| on_tensor_cores(op, dtype));
        let units: Vec<(Unit, &str)> = all.into_iter().flatten().collect();
        assert!(units.len() >= 4, "{dtype}: {} units", units.len());
        compile_all(&nvrtc, &units, architectures);
        let mut wide = if dtype == DType::F16 { units.clone() } else { Vec::new() };
        for (_, value) in wide.iter_mut().flat_map(|(u, _)| &mut u.defines).filter(|(n, _)| n == "INDEX") {
            "long long".clone_into(value);
        }
        compile_all(&nvrtc, &wide, &[80]);
        let ptx = |architecture| {
            let done = nvrtc.compile(&units[0].0, architecture, Output::Ptx).unwrap();
            String::from_utf8_lossy(&done.bytes).into_owned()
        };
        let text = ptx(80);
        let copies = text.matches("cp.async.cg.shared.global").count();
        assert!(
            text.contains(&format!("mma.sync.aligned.{instruction}")) && copies >= 4,
            "{dtype}: {copies} copies"
        );
        assert_eq!(text.contains("ldmatrix.sync"), dtype != DType::F32, "{dtype}");
        if dtype == DType::F16 {
            let text = ptx(75);
            assert!(text.contains("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"), "{dtype}");
            assert!(
                text.contains("ld.global.v4") || text.contains("ld.global.v2.b64"),
                "{dtype}: no loads of 16 bytes"
            );
            assert!(!text.contains("cp.async"), "{dtype}");
        }
    }
}

#[test]
fn what_does_not_compile_is_said_with_the_line() {
    let Some(nvrtc) = nvrtc() else { return };
    let unit = Unit {
        name: "wrong.cu".to_owned(),
        text: "nonsense".to_owned(),
        defines: vec![],
        headers: Default::default(),
    };
    let e = nvrtc.compile(&unit, 80, Output::Cubin).unwrap_err().to_string();
    assert!(e.contains("wrong.cu") && e.contains("sm_80"), "{e}");
}
