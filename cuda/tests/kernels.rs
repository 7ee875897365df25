//! Every CUDA kernel on the CPU, against the CPU's own: the operators' cases, larger and odd shapes, empty tensors, NaN and infinities,
//! lawful overwrites; outputs are poisoned and guarded. The shim finds races and divergence of barriers.

mod common;

use common::{Given, case_of, compare, host, run, side_by_side};
use graph::{Attrs, DType, Literal};
use ops::{OPS, find};
use std::fmt::Write;

/// All cases of all operators that have kernels, in float32 and float64.
#[test]
fn cases_of_all_operators() {
    let both = side_by_side([DType::F32, DType::F64], cases_in);
    let [Some((report, compared)), Some((of_doubles, more))] = both else { return };
    println!("{} cases compared", compared + more);
    assert!(report.is_empty() && of_doubles.is_empty(), "{report}{of_doubles}");
    assert!(compared + more > 500, "only {} cases were compared", compared + more);
}

/// What is wrong, and how many cases were compared.
fn cases_in(dtype: DType) -> Option<(String, usize)> {
    let (mut driver, mut compiler) = host()?;
    let (mut report, mut compared) = (String::new(), 0);
    for op in OPS {
        for (k, case) in op.cases().iter().enumerate() {
            let given = case_of(*op, case, dtype, 1000 + k as u64);
            let Ok(given) = given else { continue };
            match run(&mut driver, &mut compiler, *op, &given) {
                Ok(true) => compared += 1,
                Ok(false) => {}
                Err(e) => writeln!(report, "{} ({}, {dtype}): {e}", op.name(), case.name).unwrap(),
            }
        }
    }
    Some((report, compared))
}

/// One call with float32 inputs of these shapes, uniform in [-1, 1] with some special values if asked for.
fn call(op: &str, attrs: Attrs, shapes: &[&[usize]], special: bool) -> Result<(), String> {
    let Some((mut driver, mut compiler)) = host() else { return Ok(()) };
    let op = find(op).unwrap();
    let inputs =
        shapes.iter().enumerate().map(|(i, s)| Some(common::floats(s, 77 + i as u64, special))).collect();
    let given = Given::new(op, attrs, inputs)?;
    run(&mut driver, &mut compiler, op, &given)?.then_some(()).ok_or("no kernel".to_owned())
}

#[test]
fn elementwise_of_odd_sizes_and_special_values() {
    for n in [0, 1, 3, 127, 1025, 70_001] {
        for op in ["Relu", "Neg", "Abs", "IsNaN", "Floor", "Sigmoid", "Tanh"] {
            call(op, Attrs::new(), &[&[n]], true).unwrap_or_else(|e| panic!("{op} of {n}: {e}"));
        }
        for op in ["Add", "Mul", "Max", "Min", "Less", "ReluGrad"] {
            call(op, Attrs::new(), &[&[n], &[n]], true).unwrap_or_else(|e| panic!("{op} of {n}: {e}"));
            call(op, Attrs::new(), &[&[n], &[1]], true).unwrap_or_else(|e| panic!("{op} of {n} and 1: {e}"));
        }
    }
    call("Add", Attrs::new(), &[&[33, 1, 65], &[7, 1]], true).unwrap();
    call("Sub", Attrs::new(), &[&[5, 1, 3, 1, 2], &[4, 1, 7, 1]], true).unwrap();
}

#[test]
fn products_beyond_one_tile() {
    let t = |a: bool, b: bool| Attrs::new().with("trans_a", a).with("trans_b", b);
    for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
        let a: &[usize] = if ta { &[33, 70] } else { &[70, 33] };
        let b: &[usize] = if tb { &[129, 33] } else { &[33, 129] };
        call("MatMul", t(ta, tb), &[a, b], false).unwrap_or_else(|e| panic!("{ta} {tb}: {e}"));
        // Few results of many terms: in slices.
        let a: &[usize] = if ta { &[2100, 5] } else { &[5, 2100] };
        let b: &[usize] = if tb { &[9, 2100] } else { &[2100, 9] };
        call("MatMul", t(ta, tb), &[a, b], false).unwrap_or_else(|e| panic!("sliced {ta} {tb}: {e}"));
    }
    call("MatMul", t(false, false), &[&[3, 1, 17, 20], &[2, 20, 66]], false).unwrap();
    call(
        "Gemm",
        t(false, true).with("alpha", 0.5).with("beta", 2.0),
        &[&[3, 2000], &[70, 2000], &[70]],
        false,
    )
    .unwrap();
}

#[test]
fn convolutions_beyond_one_tile() {
    let a = |s: i64, p: i64, g: i64| {
        Attrs::new()
            .with("strides", vec![s, s])
            .with("pads", vec![p; 4])
            .with("dilations", vec![1, 1])
            .with("group", g)
    };
    call("Conv", a(1, 1, 1), &[&[2, 5, 9, 11], &[70, 5, 3, 3], &[70]], false).unwrap();
    call("Conv", a(2, 1, 2), &[&[1, 6, 13, 10], &[8, 3, 3, 3]], false).unwrap();
    call(
        "ConvTranspose",
        a(2, 1, 1).with("output_padding", vec![1, 0]),
        &[&[2, 7, 5, 6], &[7, 66, 3, 3]],
        false,
    )
    .unwrap();
    call("ConvGradWeight", a(1, 1, 1).with("kernel", vec![3, 3]), &[&[3, 9, 20, 21], &[3, 8, 20, 21]], false)
        .unwrap();
}

#[test]
fn rows_columns_and_lines() {
    let axes = |a: &[i64]| Attrs::new().with("axes", a).with("keepdims", false);
    for op in ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceLogSumExp"] {
        for (shape, a) in [
            (&[37, 65][..], &[0][..]),
            (&[37, 65], &[1]),
            (&[3, 40, 5, 7], &[0, 2]),
            (&[3, 40, 5, 7], &[1, 3]),
            (&[9000, 3], &[0]),
            (&[70_001], &[0]),
        ] {
            call(op, axes(a), &[shape], false)
                .unwrap_or_else(|e| panic!("{op} of {shape:?} over {a:?}: {e}"));
        }
    }
    for (shape, axis) in [(&[7, 515][..], 1), (&[3, 70, 33], 1), (&[300, 2], 0)] {
        for op in ["Softmax", "LogSoftmax"] {
            call(op, Attrs::new().with("axis", axis), &[shape], false).unwrap();
        }
        call("SoftmaxGrad", Attrs::new().with("axis", axis), &[shape, shape], false).unwrap();
    }
    let norm = Attrs::new().with("axis", 1);
    call("LayerNormalization", norm.clone().with("eps", 1e-5), &[&[67, 301], &[301], &[301]], false).unwrap();
    call("LayerNormalizationGrad", norm, &[&[67, 301], &[301], &[67, 1], &[67, 1], &[67, 301]], false)
        .unwrap();
    let c: &[usize] = &[5];
    call("BatchNormTraining", Attrs::new().with("eps", 1e-5), &[&[3, 5, 9, 13], c, c], false).unwrap();
    call("BatchNormGrad", Attrs::new(), &[&[3, 5, 9, 13], c, c, c, &[3, 5, 9, 13]], false).unwrap();
}

#[test]
fn attention_guarded_against_scores_that_are_no_numbers() {
    let attrs = Attrs::new().with("scale", 0.5).with("guarded", 1);
    for rows in [3, 70] {
        call("Attention", attrs.clone(), &[&[2, rows, 5], &[2, 67, 5], &[2, 67, 20]], true)
            .unwrap_or_else(|e| panic!("{rows} rows: {e}"));
        // Of whole rows nothing is left where the mask is minus infinity.
        call("Attention", attrs.clone(), &[&[2, rows, 5], &[2, 3, 5], &[2, 3, 20], &[rows, 1]], true)
            .unwrap_or_else(|e| panic!("{rows} rows, masked: {e}"));
    }
}

#[test]
fn moves_along_every_axis() {
    for perm in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let perm: Vec<i64> = perm.to_vec();
        call("Transpose", Attrs::new().with("perm", perm.clone()), &[&[5, 34, 67]], true)
            .unwrap_or_else(|e| panic!("{perm:?}: {e}"));
    }
    call("Concat", Attrs::new().with("axis", 1), &[&[3, 5, 7], &[3, 1, 7], &[3, 40, 7]], true).unwrap();
    call("Split", Attrs::new().with("axis", 1).with("split", vec![3, 0, 37]), &[&[6, 40]], true).unwrap();
}

/// Slices that are added at many equal indices, in the order of the indices.
#[test]
fn slices_are_added_by_index() {
    let Some((mut driver, mut compiler)) = host() else { return };
    let op = find("GatherGrad").unwrap();
    for (m, n, inner) in [(700, 40, 5), (300, 7, 1100), (1000, 1, 3)] {
        let indices: Vec<i64> =
            (0..m).map(|i| (i * i + 3 * i) % n - if i % 5 == 0 { n } else { 0 }).collect();
        let attrs = Attrs::new().with("axis", 0).with("shape", vec![n, inner]);
        let dy = common::floats(&[m as usize, inner as usize], 5, false);
        let given = Given::new(op, attrs, vec![Some(Literal::ints(&indices)), Some(dy)]).unwrap();
        assert!(run(&mut driver, &mut compiler, op, &given).unwrap());
    }
}

/// A label or index that is none is said so, as the CPU does.
#[test]
fn bad_data_is_refused() {
    let Some((mut driver, mut compiler)) = host() else { return };
    let scores = common::floats(&[3, 4], 1, false);
    let loss = find("SoftmaxCrossEntropyLoss").unwrap();
    let given =
        Given::new(loss, Attrs::new(), vec![Some(scores.clone()), Some(Literal::ints(&[0, 9, 1]))]).unwrap();
    let e = given.on_cuda(&mut driver, &mut compiler, loss, &[]).unwrap_err();
    assert_eq!(e, "label 9 at row 1 is no class and not ignore_index");
    let gather = find("Gather").unwrap();
    let attrs = Attrs::new().with("axis", 0);
    let given = Given::new(gather, attrs, vec![Some(scores), Some(Literal::ints(&[0, -4]))]).unwrap();
    let e = given.on_cuda(&mut driver, &mut compiler, gather, &[]).unwrap_err();
    assert_eq!(e, "index -4 at position 1 of the indices is outside of its axis");
}

/// 16-bit floats: what they hold is computed with in float32 and rounded once.
#[test]
fn halves_are_computed_in_float32() {
    let Some((mut driver, mut compiler)) = host() else { return };
    for dtype in [DType::F16, DType::BF16] {
        for (op, attrs, shapes) in [
            ("Add", Attrs::new(), vec![vec![1025], vec![1025]]),
            ("Gelu", Attrs::new(), vec![vec![77]]),
            ("MatMul", Attrs::new(), vec![vec![66, 40], vec![40, 70]]),
            ("Softmax", Attrs::new().with("axis", 1), vec![vec![5, 90]]),
            ("ReduceSum", Attrs::new().with("axes", vec![0]).with("keepdims", false), vec![vec![50, 40]]),
            (
                "LayerNormalization",
                Attrs::new().with("axis", 1).with("eps", 1e-5),
                vec![vec![9, 70], vec![70]],
            ),
        ] {
            let op = find(op).unwrap();
            let wide: Vec<Literal> =
                shapes.iter().enumerate().map(|(i, s)| common::floats(s, 9 + i as u64, false)).collect();
            let narrow: Vec<Literal> = wide.iter().map(|l| common::cast(l, dtype)).collect();
            let widened: Vec<Option<Literal>> =
                narrow.iter().map(|l| Some(common::cast(l, DType::F32))).collect();
            let on_cpu = Given::new(op, attrs.clone(), widened).unwrap().on_cpu(op).unwrap();
            let given = Given::new(op, attrs, narrow.into_iter().map(Some).collect()).unwrap();
            let on_cuda = given.on_cuda(&mut driver, &mut compiler, op, &[]).unwrap();
            let expected = common::cast(&on_cpu[0], dtype);
            let tolerance = if dtype == DType::F16 { 1e-3 } else { 8e-3 };
            compare(&expected, &on_cuda[0], tolerance)
                .unwrap_or_else(|e| panic!("{} {dtype}: {e}", op.name()));
        }
    }
}
