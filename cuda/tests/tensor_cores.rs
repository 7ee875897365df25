//! Products on tensor cores, on the CPU: the lanes of a warp exchange their fragments as the GPU's instructions do, so that a wrong index of
//! a lane is a wrong result here; copies to shared memory arrive when they are waited for, and what is used before is refused.

mod common;

use common::{Given, cast, compare, floats, host, run};
use cuda::{
    CompileError, Compiler, Image, Unit,
    sim::{HostCompiler, Sim},
};
use graph::{Attrs, DType, Literal};
use ops::find;
use std::path::Path;

/// Element types of products on tensor cores; float32 in TF32.
const TYPES: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

/// Numbers that TF32 holds exactly, so that the float32 reference has the same terms.
fn exact(shape: &[usize], seed: u64, dtype: DType, special: bool) -> Literal {
    let bf16 = cast(&floats(shape, seed, special), DType::BF16);
    cast(&bf16, dtype)
}

/// One call in every type against the CPU's, with every lawful overwrite, twice.
fn call(op: &str, attrs: &Attrs, shapes: &[&[usize]], special: bool) {
    let Some((mut driver, mut compiler)) = host() else { return };
    call_on(&mut driver, &mut compiler, &TYPES, op, attrs, shapes, special);
}

fn call_on(
    driver: &mut Sim,
    compiler: &mut dyn Compiler,
    types: &[DType],
    op: &str,
    attrs: &Attrs,
    shapes: &[&[usize]],
    special: bool,
) {
    let op = find(op).unwrap();
    for dtype in types {
        let attrs = attrs.clone().with("tf32", *dtype == DType::F32);
        let inputs = shapes.iter().enumerate().map(|(i, s)| Some(exact(s, 50 + i as u64, *dtype, special)));
        let given = Given::new(op, attrs.clone(), inputs.collect()).unwrap();
        let launches = given.launches(op);
        let on_tensor_cores = |l: &ops::cuda::Launch| l.defines.iter().any(|(n, _)| *n == "TENSOR");
        assert!(launches.iter().all(on_tensor_cores), "{} {dtype}", op.name());
        let done = run(driver, compiler, op, &given);
        assert_eq!(done, Ok(true), "{} {dtype} of {shapes:?} {attrs:?}", op.name());
    }
}

fn turned(a: bool, b: bool) -> Attrs {
    Attrs::new().with("trans_a", a).with("trans_b", b)
}

/// The shapes of two operands for m x n results of k terms.
fn operands(a: bool, b: bool, [m, n, k]: [usize; 3]) -> [[usize; 2]; 2] {
    [if a { [k, m] } else { [m, k] }, if b { [n, k] } else { [k, n] }]
}

/// Sizes on both sides of a tile, of a step of terms and of 16 bytes, in every order of the operands' axes.
#[test]
fn products_of_any_size_and_order() {
    for (a, b) in [(false, false), (true, false), (false, true), (true, true)] {
        for size in [
            [1, 1, 1],
            [7, 9, 5],
            [16, 8, 16],
            [128, 128, 32],
            [129, 136, 72],
            [131, 130, 67],
            [40, 264, 200],
        ] {
            let [left, right] = operands(a, b, size);
            call("MatMul", &turned(a, b), &[&left, &right], false);
        }
        // Few results of many terms: in slices.
        let [left, right] = operands(a, b, [8, 24, 2100]);
        call("MatMul", &turned(a, b), &[&left, &right], false);
    }
    call("MatMul", &turned(false, false), &[&[3, 1, 17, 24], &[2, 24, 66]], false);
    let scaled = turned(false, true).with("alpha", 0.5).with("beta", 2.0);
    call("Gemm", &scaled, &[&[3, 2000], &[70, 2000], &[70]], false);
    call("MatMul", &turned(false, false), &[&[5, 0], &[0, 9]], false);
}

#[test]
fn special_values_stay_in_their_rows_and_columns() {
    for (a, b) in [(false, false), (true, true)] {
        let [left, right] = operands(a, b, [33, 40, 24]);
        call("MatMul", &turned(a, b), &[&left, &right], true);
        let [left, right] = operands(a, b, [21, 11, 19]);
        call("MatMul", &turned(a, b), &[&left, &right], true);
    }
}

#[test]
fn convolutions() {
    let a = |s: i64, p: i64, g: i64| {
        Attrs::new()
            .with("strides", vec![s, s])
            .with("pads", vec![p; 4])
            .with("dilations", vec![1, 1])
            .with("group", g)
    };
    call("Conv", &a(1, 1, 1), &[&[2, 5, 9, 11], &[70, 5, 3, 3], &[70]], false);
    call("Conv", &a(2, 1, 2), &[&[1, 6, 13, 10], &[8, 3, 3, 3]], false);
    // Windows of one element: both sides lie in order, and whole chunks of them where points are a multiple.
    call("Conv", &a(1, 0, 1), &[&[2, 24, 8, 8], &[130, 24, 1, 1]], false);
    call("Conv", &a(1, 0, 1), &[&[2, 9, 3, 5], &[10, 9, 1, 1]], true);
    let padded = a(2, 1, 1).with("output_padding", vec![1, 0]);
    call("ConvTranspose", &padded, &[&[2, 7, 5, 6], &[7, 66, 3, 3]], false);
    call(
        "ConvGradWeight",
        &a(1, 1, 1).with("kernel", vec![3, 3]),
        &[&[3, 9, 20, 21], &[3, 8, 20, 21]],
        false,
    );
    call("ConvGradWeight", &a(1, 0, 1).with("kernel", vec![1, 1]), &[&[2, 24, 8, 8], &[2, 130, 8, 8]], false);
}

/// Operands are rounded to TF32, ties away from zero, and to no less.
#[test]
fn float32_is_rounded_to_tf32() {
    let Some((mut driver, mut compiler)) = host() else { return };
    let op = find("MatMul").unwrap();
    let one = |x: f32| Literal::new(DType::F32, vec![1, 1], x.to_le_bytes().to_vec()).unwrap();
    let ulp = 2f32.powi(-10);
    let cases = [
        (1.0 + ulp, 1.0 + ulp),
        (1.0 + ulp / 2.0, 1.0 + ulp),
        (1.0 + ulp / 4.0, 1.0),
        (-1.0 - ulp / 2.0, -1.0 - ulp),
        (1.0 + ulp * 1.499, 1.0 + ulp),
    ];
    for (x, expected) in cases {
        let given =
            Given::new(op, Attrs::new().with("tf32", true), vec![Some(one(x)), Some(one(1.0))]).unwrap();
        let got = given.on_cuda(&mut driver, &mut compiler, op, &[]).unwrap();
        assert_eq!(got[0], one(expected), "{x}");
        // Without the option nothing is rounded.
        let plain = Given::new(op, Attrs::new(), vec![Some(one(x)), Some(one(1.0))]).unwrap();
        assert_eq!(plain.on_cuda(&mut driver, &mut compiler, op, &[]).unwrap()[0], one(x));
    }
}

/// Compiles units with a macro more, and with a piece of their text or of a header replaced.
struct Changed {
    inner: HostCompiler,
    define: Option<(&'static str, &'static str)>,
    replace: Option<(&'static str, &'static str)>,
}

impl Changed {
    fn new() -> Changed {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/cuda-host");
        Changed { inner: HostCompiler::new(&folder), define: None, replace: None }
    }
}

impl Compiler for Changed {
    fn compile(&mut self, unit: &Unit) -> Result<Image, CompileError> {
        let mut unit = unit.reread(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/src"));
        unit.defines.extend(self.define.map(|(n, v)| (n.to_owned(), v.to_owned())));
        if let Some((from, to)) = self.replace {
            assert!(unit.text.contains(from), "{from}");
            unit.text = unit.text.replacen(from, to, 1);
        }
        self.inner.compile(&unit)
    }
}

/// Architecture 75 has no asynchronous copies: elements are put to shared memory at once, and the barriers are enough for that, too.
#[test]
fn the_oldest_architecture_has_the_same_results() {
    if host().is_none() {
        return;
    }
    let mut old = Changed { define: Some(("DTRC_HOST_ARCH", "75")), ..Changed::new() };
    let mut driver = Sim::new(1 << 30);
    for size in [[129, 136, 72], [21, 11, 19]] {
        let [left, right] = operands(false, true, size);
        call_on(
            &mut driver,
            &mut old,
            &[DType::F16],
            "MatMul",
            &turned(false, true),
            &[&left, &right],
            false,
        );
    }
}

/// Every barrier and every wait is needed, and so is every place of a lane: without one of them the kernel is refused or wrong.
#[test]
fn a_kernel_with_a_mistake_is_found() {
    if host().is_none() {
        return;
    }
    let op = find("MatMul").unwrap();
    let inputs =
        |dtype| vec![Some(exact(&[70, 96], 1, dtype, false)), Some(exact(&[96, 72], 2, dtype, false))];
    let wait = "await_copies<1>();\n        barrier();";
    let mistakes = [
        (wait, "await_copies<1>();", "shared element"),
        (wait, "barrier();", "before a copy to it has arrived"),
        (wait, "await_copies<2>();\n        barrier();", "before a copy to it has arrived"),
        // A copy that other threads wait for must be waited for by its own thread, before they meet.
        (wait, "barrier();\n        await_copies<1>();", "race on shared element"),
        ("        barrier();\n        now = 1 - now;", "        now = 1 - now;", "shared element"),
        ("[i % 2 * 2 + j % 2]", "[j % 2 * 2 + i % 2]", "is not"),
        ("PAIRED ? second : third", "PAIRED ? third : second", "is not"),
        ("l / 8 % 2 * 8, third", "l / 16 * 8, third", "is not"),
    ];
    for (from, to, why) in mistakes {
        let given = Given::new(op, Attrs::new(), inputs(DType::F16)).unwrap();
        let expected = given.reference(op).unwrap();
        let mut changed = Changed { replace: Some((from, to)), ..Changed::new() };
        let got = given.on_cuda(&mut Sim::new(1 << 30), &mut changed, op, &[]);
        let done = got.and_then(|g| compare(&expected[0], &g[0], 1e-3));
        match done {
            Err(e) => assert!(e.contains(why), "{to}: {e}"),
            Ok(()) => panic!("with {to:?} for {from:?} it is right"),
        }
    }
}
