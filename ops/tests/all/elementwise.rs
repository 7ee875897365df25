//! Values of elementwise operators and reductions as ONNX and PyTorch define them, through the importing rules.

use graph::{Attrs, DType, Graph, InputRole, Literal, TensorType, ValueId};
use ops::{
    Builder, OpError,
    cpu::interpret,
    grad::backward,
    onnx::{BatchNormMode, DropoutMode, ImportCx, ImportOptions, find_rule},
};
use std::collections::BTreeMap;

fn tensor(dtype: DType, shape: &[usize], values: &[f64]) -> Literal {
    let bytes: Vec<u8> = values.iter().flat_map(|v| Literal::scalar(dtype, *v).bytes().to_vec()).collect();
    Literal::new(dtype, shape.iter().map(|d| *d as u64).collect(), bytes).unwrap()
}

fn f32s(shape: &[usize], values: &[f64]) -> Literal {
    tensor(DType::F32, shape, values)
}

fn i64s(values: &[i64]) -> Literal {
    Literal::ints(values)
}

/// Imports one node, the inputs in `constants` as constants, and evaluates it.
fn import(op: &str, attrs: Attrs, inputs: &[Literal], constants: &[usize]) -> Result<Literal, OpError> {
    let mut graph = Graph::default();
    let mut given = BTreeMap::new();
    let mut values = Vec::new();
    for (i, l) in inputs.iter().enumerate() {
        if constants.contains(&i) {
            values.push(Some(graph.add_constant(format!("x{i}"), l.clone())));
            continue;
        }
        let shape: Vec<usize> = l.shape().iter().map(|d| *d as usize).collect();
        let v = graph.add_input(format!("x{i}"), TensorType::new(l.dtype(), &shape), InputRole::Data);
        given.insert(v, l.clone());
        values.push(Some(v));
    }
    let mut b = Builder::new(&mut graph);
    let mut cx = ImportCx {
        b: &mut b,
        options: ImportOptions {
            training: true,
            batchnorm: BatchNormMode::Auto,
            dropout: DropoutMode::Auto,
            unbiased_running_variance: true,
        },
        op_type: op,
        opset: 21,
        attrs: &attrs,
        inputs: &values,
        used: &[true],
        outputs: Vec::new(),
        remarks: Vec::new(),
    };
    (find_rule("", op).unwrap_or_else(|| panic!("{op} cannot be imported")).import)(&mut cx)?;
    let out = cx.outputs[0].unwrap();
    graph::verify(&graph).unwrap();
    Ok(interpret(&graph, &given).map_err(|e| e.error)?[&out].clone())
}

fn run(op: &str, attrs: Attrs, inputs: &[Literal]) -> Vec<f64> {
    import(op, attrs, inputs, &[]).unwrap().to_floats()
}

/// The cotangents of all inputs for cotangent 1 of the output.
fn gradients(op: &str, attrs: Attrs, inputs: &[Literal]) -> Vec<Vec<f64>> {
    let mut graph = Graph::default();
    let mut given = BTreeMap::new();
    let mut values: Vec<ValueId> = Vec::new();
    for (i, l) in inputs.iter().enumerate() {
        let shape: Vec<usize> = l.shape().iter().map(|d| *d as usize).collect();
        let v = graph.add_input(format!("x{i}"), TensorType::new(l.dtype(), &shape), InputRole::Data);
        given.insert(v, l.clone());
        values.push(v);
    }
    let mut b = Builder::new(&mut graph);
    let y = b.op(op, attrs, &values).unwrap();
    let ty = b.ty(y).clone();
    let shape = ty.shape.fixed().unwrap().into_iter().map(|d| d as u64).collect();
    let seed = b.constant(Literal::filled(ty.dtype, shape, 1.0).unwrap());
    let grads = backward(&mut b, &[(y, seed)], &values).unwrap();
    let all = interpret(&graph, &given).unwrap();
    grads.into_iter().map(|g| all[&g.unwrap()].to_floats()).collect()
}

#[track_caller]
fn assert_close(got: &[f64], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: number of elements");
    for (g, w) in got.iter().zip(want) {
        let same = g == w || g.is_nan() && w.is_nan();
        assert!(same || (g - w).abs() <= tolerance * w.abs().max(1.0), "{what}: {got:?}, not {want:?}");
    }
}

#[test]
fn functions_have_the_values_of_their_definitions() {
    let erf = |x: f64| {
        // The series, which converges everywhere.
        let terms = (1..80).scan(x, |t, n| {
            *t *= -x * x / n as f64;
            Some(*t / (2 * n + 1) as f64)
        });
        2.0 / std::f64::consts::PI.sqrt() * (x + terms.sum::<f64>())
    };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let softplus = |x: f64| (1.0 + x.exp()).ln();
    let gelu = |x: f64| 0.5 * x * (1.0 + erf(x / 2f64.sqrt()));
    let elu = |x: f64, a: f64| if x > 0.0 { x } else { a * (x.exp() - 1.0) };
    type Row<'a> = (&'a str, &'a dyn Fn(f64) -> f64);
    let table: &[Row<'_>] = &[
        ("Relu", &|x| x.max(0.0)),
        ("LeakyRelu", &|x| if x > 0.0 { x } else { 0.01 * x }),
        ("ThresholdedRelu", &|x| if x > 1.0 { x } else { 0.0 }),
        ("Elu", &|x| elu(x, 1.0)),
        ("Selu", &|x| 1.050_701 * elu(x, 1.673_263_2)),
        ("Celu", &|x| elu(x, 1.0)),
        ("Sigmoid", &sigmoid),
        ("Tanh", &f64::tanh),
        ("Swish", &|x| x * sigmoid(x)),
        ("Mish", &|x| x * softplus(x).tanh()),
        ("Gelu", &gelu),
        ("Softplus", &softplus),
        ("Softsign", &|x| x / (1.0 + x.abs())),
        ("HardSigmoid", &|x| (0.2 * x + 0.5).clamp(0.0, 1.0)),
        ("HardSwish", &|x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0)),
        ("Shrink", &|x| if x.abs() > 0.5 { x } else { 0.0 }),
        ("Erf", &erf),
        ("Exp", &f64::exp),
        ("Reciprocal", &|x| 1.0 / x),
        ("Sin", &f64::sin),
        ("Cos", &f64::cos),
        ("Tan", &f64::tan),
        ("Atan", &f64::atan),
        ("Sinh", &f64::sinh),
        ("Cosh", &f64::cosh),
        ("Asinh", &f64::asinh),
        ("Log", &f64::ln),
        ("Sqrt", &f64::sqrt),
        ("Acosh", &f64::acosh),
        ("Asin", &f64::asin),
        ("Acos", &f64::acos),
        ("Atanh", &f64::atanh),
        ("Neg", &|x| -x),
        ("Abs", &f64::abs),
        ("Sign", &f64::signum),
        ("Floor", &f64::floor),
        ("Ceil", &f64::ceil),
        ("Round", &f64::round_ties_even),
    ];
    let x = [-3.5, -2.0, -0.5, -0.25, 0.125, 0.5, 1.5, 2.5, 3.25];
    for dtype in [DType::F32, DType::F64] {
        for (op, f) in table {
            let want: Vec<f64> = x.iter().map(|x| f(*x)).collect();
            let got = run(op, Attrs::new(), &[tensor(dtype, &[3, 3], &x)]);
            assert_close(&got, &want, if *op == "Selu" || dtype == DType::F32 { 1e-6 } else { 1e-12 }, op);
        }
    }
    let tanh = Attrs::new().with("approximate", "tanh");
    let want = |x: &f64| {
        0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
    };
    let want: Vec<f64> = x.iter().map(want).collect();
    assert_close(&run("Gelu", tanh, &[f32s(&[9], &x)]), &want, 1e-6, "Gelu by tanh");
}

#[test]
fn broadcasting_arithmetic() {
    let a = f32s(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let row = f32s(&[3], &[10.0, 20.0, 30.0]);
    let column = f32s(&[2, 1], &[2.0, -2.0]);
    let none = Attrs::new;
    assert_eq!(run("Sub", none(), &[a.clone(), row.clone()]), [-9.0, -18.0, -27.0, -6.0, -15.0, -24.0]);
    assert_eq!(run("Div", none(), &[a.clone(), column.clone()]), [0.5, 1.0, 1.5, -2.0, -2.5, -3.0]);
    assert_eq!(run("Pow", none(), &[a.clone(), column.clone()])[..3], [1.0, 4.0, 9.0]);
    assert_eq!(run("Max", none(), &[row.clone(), column.clone()]), [10.0, 20.0, 30.0, 10.0, 20.0, 30.0]);
    assert_eq!(
        run("Min", none(), &[a.clone(), column.clone(), row.clone()]),
        [1.0, 2.0, 2.0, -2.0, -2.0, -2.0]
    );
    assert_eq!(run("Sum", none(), &[a.clone(), row.clone(), column.clone()])[..3], [13.0, 24.0, 35.0]);
    assert_eq!(run("Mean", none(), &[a.clone(), row.clone(), column.clone()])[2], f64::from(35f32 / 3.0));
    assert_eq!(run("Mean", none(), std::slice::from_ref(&a)), a.to_floats());
    let mixed = run("Pow", none(), &[a.clone(), tensor(DType::I64, &[], &[2.0])]);
    assert_eq!(mixed, [1.0, 4.0, 9.0, 16.0, 25.0, 36.0]);
    let ints = import("Pow", none(), &[i64s(&[2, 9]), f32s(&[2], &[3.0, 0.5])], &[]).unwrap();
    assert_eq!(ints, i64s(&[8, 3]));
    assert_eq!(run("Div", none(), &[i64s(&[-7, 7, 5]), i64s(&[2, -2, 0])]), [-3.0, -3.0, 0.0]);
    assert_eq!(run("Mod", none(), &[i64s(&[-7, 7]), i64s(&[3, -3])]), [2.0, -2.0]);
    assert_eq!(run("Mod", none().with("fmod", 1i64), &[i64s(&[-7, 7]), i64s(&[3, -3])]), [-1.0, 1.0]);
    let floats = [f32s(&[2], &[-7.0, 7.0]), f32s(&[2], &[3.0, -3.0])];
    assert_eq!(run("Mod", none(), &floats), [2.0, -2.0]);
    assert!(import("Add", none(), &[a.clone(), f32s(&[2], &[1.0, 2.0])], &[]).is_err(), "shapes");
    assert!(import("Add", none(), &[a, i64s(&[1, 2, 3])], &[]).is_err(), "dtypes");
}

#[test]
fn comparisons_and_logic() {
    let (a, b) = (f32s(&[3], &[1.0, 2.0, f64::NAN]), f32s(&[3], &[2.0, 2.0, 2.0]));
    let go = |op: &str| run(op, Attrs::new(), &[a.clone(), b.clone()]);
    assert_eq!(go("Equal"), [0.0, 1.0, 0.0]);
    assert_eq!(go("Less"), [1.0, 0.0, 0.0]);
    assert_eq!(go("LessOrEqual"), [1.0, 1.0, 0.0]);
    assert_eq!(go("Greater"), [0.0, 0.0, 0.0]);
    assert_eq!(go("GreaterOrEqual"), [0.0, 1.0, 0.0]);
    let (p, q) = (tensor(DType::Bool, &[2, 1], &[0.0, 1.0]), tensor(DType::Bool, &[2], &[0.0, 1.0]));
    let go = |op: &str| run(op, Attrs::new(), &[p.clone(), q.clone()]);
    assert_eq!(go("And"), [0.0, 0.0, 0.0, 1.0]);
    assert_eq!(go("Or"), [0.0, 1.0, 1.0, 1.0]);
    assert_eq!(go("Xor"), [0.0, 1.0, 1.0, 0.0]);
    assert_eq!(go("Equal"), [1.0, 0.0, 0.0, 1.0]);
    assert_eq!(run("Not", Attrs::new(), &[q]), [1.0, 0.0]);
    let u = |v: &[f64]| tensor(DType::U8, &[3], v);
    let shift = |d: &str| {
        run("BitShift", Attrs::new().with("direction", d), &[u(&[1.0, 255.0, 6.0]), u(&[1.0, 4.0, 9.0])])
    };
    assert_eq!(shift("LEFT"), [2.0, 240.0, 0.0]);
    assert_eq!(shift("RIGHT"), [0.0, 15.0, 0.0]);
    assert_eq!(run("BitwiseXor", Attrs::new(), &[i64s(&[12, -1]), i64s(&[10, 5])]), [6.0, -6.0]);
    assert_eq!(run("BitwiseNot", Attrs::new(), &[i64s(&[0, 5])]), [-1.0, -6.0]);
    let special = f32s(&[3], &[f64::NEG_INFINITY, f64::INFINITY, f64::NAN]);
    assert_eq!(
        run("IsInf", Attrs::new().with("detect_negative", 0i64), std::slice::from_ref(&special)),
        [0.0, 1.0, 0.0]
    );
    assert_eq!(run("IsNaN", Attrs::new(), &[special]), [0.0, 0.0, 1.0]);
}

#[test]
fn selection_and_clipping() {
    let c = tensor(DType::Bool, &[2, 1], &[1.0, 0.0]);
    let y = run("Where", Attrs::new(), &[c, f32s(&[2], &[1.0, 2.0]), f32s(&[], &[9.0])]);
    assert_eq!(y, [1.0, 2.0, 9.0, 9.0]);
    let x = f32s(&[4], &[-2.0, 0.5, 3.0, f64::NAN]);
    let (lo, hi) = (f32s(&[], &[-1.0]), f32s(&[], &[1.0]));
    let want = [-1.0, 0.5, 1.0, f64::NAN];
    for constants in [&[1, 2][..], &[1], &[2], &[]] {
        let got = import("Clip", Attrs::new(), &[x.clone(), lo.clone(), hi.clone()], constants).unwrap();
        assert_close(&got.to_floats(), &want, 0.0, "Clip");
    }
    assert_close(&run("Clip", Attrs::new().with("min", -1.0).with("max", 1.0), &[x]), &want, 0.0, "Clip-6");
    let big = i64s(&[i64::MIN, 0, i64::MAX]);
    let got = import("Clip", Attrs::new(), &[big, i64s(&[i64::MAX - 1]).reshaped(vec![]).unwrap()], &[1]);
    assert_eq!(got.unwrap(), i64s(&[i64::MAX - 1, i64::MAX - 1, i64::MAX]));
    let y =
        run("PRelu", Attrs::new(), &[f32s(&[2, 2], &[-1.0, 2.0, -3.0, -4.0]), f32s(&[2, 1], &[0.5, 0.25])]);
    assert_eq!(y, [-0.5, 2.0, -0.75, -1.0]);
}

#[test]
fn casts_truncate_saturate_and_round_to_even() {
    let cast = |x: &Literal, to: i64| {
        import("Cast", Attrs::new().with("to", to), std::slice::from_ref(x), &[]).unwrap()
    };
    let x = f32s(&[6], &[-1.5, 0.5, 300.0, f64::NAN, f64::INFINITY, 0.0]);
    assert_eq!(cast(&x, 2).to_floats(), [0.0, 0.0, 255.0, 0.0, 255.0, 0.0], "u8");
    assert_eq!(cast(&x, 6).to_floats()[..4], [-1.0, 0.0, 300.0, 0.0], "i32");
    assert_eq!(cast(&x, 7).to_ints().unwrap()[4], i64::MAX, "i64");
    assert_eq!(cast(&x, 9).to_floats(), [1.0, 1.0, 1.0, 1.0, 1.0, 0.0], "bool");
    // Halfway between neighbours of bf16 (8 bits of mantissa) and f16 (11 bits).
    let ties = f32s(&[2], &[1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0]);
    assert_eq!(cast(&ties, 16).to_floats(), [1.0, 1.0 + 4.0 / 256.0]);
    let ties = f32s(&[2], &[1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0]);
    assert_eq!(cast(&ties, 10).to_floats(), [1.0, 1.0 + 4.0 / 2048.0]);
    let big = i64s(&[(1 << 53) + 1, -1]);
    assert_eq!(cast(&big, 11).to_floats(), [9_007_199_254_740_992.0, -1.0]);
    assert_eq!(cast(&tensor(DType::Bool, &[2], &[0.0, 1.0]), 1).to_floats(), [0.0, 1.0]);
    assert!(import("Cast", Attrs::new().with("to", 8i64), &[x], &[]).is_err(), "strings");
}

#[test]
fn equal_extremes_share_the_gradient() {
    let (a, b) = (f32s(&[3], &[1.0, 2.0, 3.0]), f32s(&[3], &[2.0, 2.0, 2.0]));
    assert_eq!(gradients("Max", Attrs::new(), &[a.clone(), b.clone()]), [[0.0, 0.5, 1.0], [1.0, 0.5, 0.0]]);
    assert_eq!(gradients("Min", Attrs::new(), &[a, b]), [[1.0, 0.5, 0.0], [0.0, 0.5, 1.0]]);
    let x = f32s(&[2, 4], &[3.0, 1.0, 3.0, 0.0, 5.0, 5.0, 5.0, 5.0]);
    let attrs = |axis: i64| Attrs::new().with("axes", vec![axis]).with("keepdims", false);
    assert_eq!(
        gradients("ReduceMax", attrs(1), std::slice::from_ref(&x))[0],
        [0.5, 0.0, 0.5, 0.0, 0.25, 0.25, 0.25, 0.25]
    );
    assert_eq!(gradients("ReduceMin", attrs(0), &[x])[0], [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    let zeros = f32s(&[3], &[0.0, 2.0, 3.0]);
    assert_eq!(gradients("ReduceProd", attrs(0), std::slice::from_ref(&zeros))[0], [6.0, 0.0, 0.0]);
    assert_eq!(gradients("ReduceL2", attrs(0), &[f32s(&[2], &[0.0, 0.0])])[0], [0.0, 0.0]);
    let clip = Attrs::new().with("min", 0.0).with("max", 2.0);
    assert_eq!(gradients("Clip", clip, &[zeros])[0], [0.0, 0.0, 0.0], "bounds excluded, as in PyTorch");
    let zeros = f32s(&[5], &[-1.0, 0.0, 1.0, f64::INFINITY, f64::NEG_INFINITY]);
    let relu = gradients("Relu", Attrs::new(), std::slice::from_ref(&zeros))[0].clone();
    assert_eq!(relu, [0.0, 0.0, 1.0, 1.0, 0.0]);
    for max in [None, Some(f64::INFINITY)] {
        let clip = Attrs::new().with("min", 0.0);
        let clip = max.map_or(clip.clone(), |max| clip.with("max", max));
        assert_eq!(gradients("Clip", clip, std::slice::from_ref(&zeros))[0], relu);
    }
}

/// Where alpha·x is more than a float holds, the sigmoid has long been 0 or 1.
#[test]
fn the_gradient_of_swish_does_not_overflow() {
    let x = f32s(&[6], &[3e38, -3e38, f64::INFINITY, 40.0, 0.0, -40.0]);
    let attrs = Attrs::new().with("alpha", 50.0);
    assert_eq!(gradients("Swish", attrs, &[x])[0], [1.0, 0.0, 1.0, 1.0, 0.5, 0.0]);
    assert!(gradients("Swish", Attrs::new(), &[f32s(&[1], &[f64::NAN])])[0][0].is_nan());
}

/// A common offset of what is summed changes no gradient.
#[test]
fn the_gradient_of_log_sum_exp_knows_no_common_offset() {
    for offset in [0.0, 1e6, -1e9, f64::from(f32::MIN)] {
        let x = f32s(&[2, 4], &[0.0, 1.0, 2.0, 0.5, -1.0, 0.0, 0.0, 3.0].map(|v: f64| v + offset));
        let v = x.to_floats();
        let want: Vec<f64> = (0..8)
            .map(|i| {
                let row = &v[i / 4 * 4..][..4];
                let e = |x: f64| (x - row[0]).exp();
                e(v[i]) / row.iter().map(|x| e(*x)).sum::<f64>()
            })
            .collect();
        let attrs = Attrs::new().with("axes", vec![1]).with("keepdims", false);
        assert_close(&gradients("ReduceLogSumExp", attrs, &[x])[0], &want, 1e-6, "ReduceLogSumExp");
    }
}

/// A reduction by plain loops in 64 bits.
fn naive(op: &str, x: &[f64], dims: &[usize], axes: &[usize]) -> Vec<f64> {
    let out: Vec<usize> = (0..dims.len()).map(|i| if axes.contains(&i) { 1 } else { dims[i] }).collect();
    let mut groups = vec![Vec::new(); out.iter().product()];
    for (i, v) in x.iter().enumerate() {
        let (mut rest, mut at, mut step) = (i, 0, 1);
        for k in (0..dims.len()).rev() {
            let index = rest % dims[k];
            rest /= dims[k];
            at += if axes.contains(&k) { 0 } else { index * step };
            step *= out[k];
        }
        groups[at].push(*v);
    }
    let one = |g: &Vec<f64>| {
        let (sum, squares) = (g.iter().sum::<f64>(), g.iter().map(|v| v * v).sum::<f64>());
        match op {
            "ReduceSum" => sum,
            "ReduceMean" => sum / g.len() as f64,
            "ReduceMax" => g.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            "ReduceMin" => g.iter().copied().fold(f64::INFINITY, f64::min),
            "ReduceProd" => g.iter().product(),
            "ReduceL1" => g.iter().map(|v| v.abs()).sum(),
            "ReduceL2" => squares.sqrt(),
            "ReduceSumSquare" => squares,
            "ReduceLogSum" => sum.ln(),
            _ => g.iter().map(|v| v.exp()).sum::<f64>().ln(),
        }
    };
    groups.iter().map(one).collect()
}

#[test]
fn reductions_are_those_of_plain_loops() {
    let shapes: &[(&[usize], &[&[usize]])] = &[
        (&[7, 45], &[&[0], &[1], &[0, 1]]),
        (&[3, 5, 49], &[&[0], &[1], &[2], &[0, 2], &[0, 1], &[1, 2]]),
        (&[2, 3, 4, 5], &[&[0, 2], &[1, 3], &[2], &[0, 2, 3]]),
        (&[300, 140], &[&[0], &[1]]),
        (&[3, 40_000], &[&[0, 1], &[1]]),
        (&[20_000, 6], &[&[0]]),
    ];
    let ops = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"];
    for (dims, all) in shapes {
        let n: usize = dims.iter().product();
        let x: Vec<f64> = (0..n).map(|i| f64::from(((i * 7919 % 1009) as f32 / 1009.0) + 0.5)).collect();
        for axes in *all {
            for op in ops.map(|o| format!("Reduce{o}")) {
                if op == "ReduceProd" && n > 10_000 {
                    continue;
                }
                let list: Vec<i64> = axes.iter().map(|a| *a as i64 - dims.len() as i64).collect();
                let got = run(&op, Attrs::new().with("axes", list), &[f32s(dims, &x)]);
                let want = naive(&op, &x, dims, axes);
                // A product rounds once a factor.
                let tolerance = if op == "ReduceProd" { 1e-5 } else { 2e-7 };
                for (g, w) in got.iter().zip(&want) {
                    assert!(
                        (g - w).abs() <= tolerance * w.abs(),
                        "{op} of {dims:?} over {axes:?}: {g}, not {w}"
                    );
                }
                assert_eq!(got.len(), want.len());
            }
        }
    }
}

#[test]
fn sums_of_many_floats_are_accurate() {
    let n = 3_000_000;
    let x = Literal::filled(DType::F32, vec![n], 0.1).unwrap();
    let want = f64::from(0.1f32) * n as f64;
    let got = run("ReduceSum", Attrs::new(), &[x])[0];
    assert!((got - want).abs() < 3e-7 * want, "{got}, not {want}");
}

#[test]
fn reductions_in_every_onnx_form() {
    let x = f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let shape = |op: &str, attrs: Attrs, inputs: &[Literal]| {
        let y = import(op, attrs, inputs, &[1]).unwrap();
        (y.shape().to_vec(), y.to_floats())
    };
    let keep = |k: i64| Attrs::new().with("keepdims", k);
    assert_eq!(shape("ReduceSum", keep(0), &[x.clone(), i64s(&[-1])]), (vec![2], vec![3.0, 7.0]));
    assert_eq!(shape("ReduceSum", keep(1), &[x.clone(), i64s(&[0])]), (vec![1, 2], vec![4.0, 6.0]));
    assert_eq!(shape("ReduceMax", keep(0), std::slice::from_ref(&x)), (vec![], vec![4.0]));
    assert_eq!(shape("ReduceSum", Attrs::new(), &[x.clone(), i64s(&[])]), (vec![1, 1], vec![10.0]));
    let noop = Attrs::new().with("noop_with_empty_axes", 1i64);
    let negative = f32s(&[2, 2], &[-1.0, 2.0, -3.0, 4.0]);
    let over_none = |op: &str| shape(op, noop.clone(), &[negative.clone(), i64s(&[])]);
    for op in ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceLogSumExp"] {
        assert_eq!(over_none(op), (vec![2, 2], vec![-1.0, 2.0, -3.0, 4.0]), "{op} over no axes");
    }
    for op in ["ReduceL1", "ReduceL2"] {
        assert_eq!(over_none(op), (vec![2, 2], vec![1.0, 2.0, 3.0, 4.0]), "{op} over no axes");
    }
    assert_eq!(over_none("ReduceSumSquare").1, [1.0, 4.0, 9.0, 16.0]);
    assert_eq!(
        shape("ReduceLogSum", noop.clone(), std::slice::from_ref(&x)).1,
        [1.0, 2.0, 3.0, 4.0].map(f64::ln).map(|y| f64::from(y as f32))
    );
    assert!(import("ReduceSum", Attrs::new(), &[x.clone(), i64s(&[2])], &[1]).is_err(), "axis 2");
    let dynamic = import("ReduceSum", Attrs::new(), &[x, i64s(&[0])], &[]);
    assert!(matches!(dynamic, Err(OpError::Dynamic(_))), "axes at run time");
    let empty = f32s(&[2, 0], &[]);
    let last = || Attrs::new().with("axes", vec![1i64]);
    assert_eq!(run("ReduceSum", last(), std::slice::from_ref(&empty)), [0.0, 0.0]);
    assert_eq!(run("ReduceProd", last(), std::slice::from_ref(&empty)), [1.0, 1.0]);
    assert_eq!(run("ReduceMax", last(), &[empty]), [f64::NEG_INFINITY; 2]);
    let nan = f32s(&[3], &[1.0, f64::NAN, 2.0]);
    assert!(run("ReduceMax", Attrs::new(), std::slice::from_ref(&nan))[0].is_nan());
    assert!(run("ReduceMin", Attrs::new(), &[nan])[0].is_nan());
    let infinite = f32s(&[2], &[f64::NEG_INFINITY, f64::NEG_INFINITY]);
    assert_eq!(run("ReduceLogSumExp", Attrs::new(), &[infinite]), [f64::NEG_INFINITY]);
    assert_close(
        &run("ReduceLogSumExp", Attrs::new(), &[f32s(&[2], &[1000.0, 1000.0])]),
        &[1000.0 + 2f64.ln()],
        1e-6,
        "large",
    );
    let image = f32s(&[1, 2, 1, 2], &[1.0, 3.0, 5.0, 9.0]);
    assert_eq!(
        shape("GlobalAveragePool", Attrs::new(), std::slice::from_ref(&image)),
        (vec![1, 2, 1, 1], vec![2.0, 7.0])
    );
    assert_eq!(shape("GlobalMaxPool", Attrs::new(), &[image]), (vec![1, 2, 1, 1], vec![3.0, 9.0]));
    let ints = tensor(DType::I32, &[3], &[7.0, 1.0, 3.0]);
    assert_eq!(run("ReduceMean", Attrs::new(), &[ints]), [3.0]);
    let bools = tensor(DType::Bool, &[2, 2], &[0.0, 1.0, 1.0, 1.0]);
    assert_eq!(run("ReduceMin", last(), &[bools]), [0.0, 1.0]);
}

#[test]
fn running_sums() {
    let x = f32s(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let go = |exclusive: i64, reverse: i64, axis: i64| {
        let attrs = Attrs::new().with("exclusive", exclusive).with("reverse", reverse);
        import("CumSum", attrs, &[x.clone(), i64s(&[axis])], &[1]).unwrap().to_floats()
    };
    assert_eq!(go(0, 0, 1), [1.0, 3.0, 6.0, 4.0, 9.0, 15.0]);
    assert_eq!(go(0, 0, -2), [1.0, 2.0, 3.0, 5.0, 7.0, 9.0]);
    assert_eq!(go(1, 0, 1), [0.0, 1.0, 3.0, 0.0, 4.0, 9.0]);
    assert_eq!(go(0, 1, 1), [6.0, 5.0, 3.0, 15.0, 11.0, 6.0]);
    assert_eq!(go(1, 1, 1), [5.0, 3.0, 0.0, 11.0, 6.0, 0.0]);
}
