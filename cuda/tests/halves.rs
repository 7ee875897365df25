//! CUDA kernels on 16-bit floats, on the CPU: what is stored in them is computed with in float32 and rounded once. The reference is the
//! CPU's float32 kernel on the same numbers, rounded.

mod common;

use common::{Given, case_of, cast, floats, form, host, run, side_by_side};
use graph::{Attrs, DType, Literal};
use ops::{OPS, find};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

/// Operators' cases in 16-bit floats, with every lawful overwrite: all of an operator that has a form of kernel that none before had.
#[test]
fn cases_of_every_form() {
    for (dtype, found) in HALVES.iter().zip(side_by_side(HALVES, cases_in)) {
        let Some((report, compared)) = found else { return };
        assert!(report.is_empty(), "{report}");
        assert!(compared.len() > 60, "only {} operators were compared in {dtype}", compared.len());
    }
}

/// What is wrong, and how many cases of which operators were compared.
fn cases_in(dtype: DType) -> Option<(String, BTreeMap<&'static str, u32>)> {
    let (mut driver, mut compiler) = host()?;
    let (mut report, mut compared, mut without) = (String::new(), BTreeMap::new(), BTreeSet::new());
    let mut seen = BTreeSet::new();
    for op in OPS {
        let cases = op.cases();
        let drawn = cases.iter().enumerate().map(|(k, c)| (c.name, case_of(*op, c, dtype, 3000 + k as u64)));
        let given: Vec<_> = drawn.filter_map(|(name, g)| Some((name, g.ok()?))).collect();
        let forms: Vec<_> = given.iter().flat_map(|(_, g)| g.launches(*op)).map(|l| form(&l)).collect();
        if forms.is_empty() {
            without.insert(op.name());
        }
        // All of them, also where one is new.
        let new = forms.into_iter().filter(|f| seen.insert(f.clone())).count();
        for (name, given) in given.iter().filter(|_| new > 0) {
            match run(&mut driver, &mut compiler, *op, given) {
                Ok(true) => *compared.entry(op.name()).or_insert(0) += 1,
                Ok(false) => {}
                Err(e) => writeln!(report, "{} ({name}, {dtype}): {e}", op.name()).unwrap(),
            }
        }
    }
    println!("{dtype}: {} forms of kernels, {compared:?}, without halves: {without:?}", seen.len());
    Some((report, compared))
}

/// One call in both types, inputs uniform in [-1, 1] with some special values if asked for.
fn call(op: &str, attrs: &Attrs, shapes: &[&[usize]], special: bool) {
    let Some((mut driver, mut compiler)) = host() else { return };
    let op = find(op).unwrap();
    for dtype in HALVES {
        let inputs =
            shapes.iter().enumerate().map(|(i, s)| Some(cast(&floats(s, 7 + i as u64, special), dtype)));
        let given = Given::new(op, attrs.clone(), inputs.collect()).unwrap();
        let done = run(&mut driver, &mut compiler, op, &given);
        assert_eq!(done, Ok(true), "{} {dtype} of {shapes:?} {attrs:?}", op.name());
    }
}

#[test]
fn odd_sizes_and_special_values() {
    let none = Attrs::new();
    for n in [0, 1, 7, 127, 1025, 70_001] {
        for op in ["Relu", "Neg", "IsNaN", "Sigmoid"] {
            call(op, &none, &[&[n]], true);
        }
        for op in ["Add", "Max", "Less"] {
            call(op, &none, &[&[n], &[n]], true);
            call(op, &none, &[&[n], &[1]], true);
        }
    }
    call("Mul", &none, &[&[33, 1, 65], &[7, 1]], true);
    call("Transpose", &Attrs::new().with("perm", vec![1, 0]), &[&[70, 133]], true);
    for axis in [0, 1] {
        call("Softmax", &Attrs::new().with("axis", axis), &[&[37, 515]], false);
        call("Concat", &Attrs::new().with("axis", axis), &[&[5, 9], &[5, 9]], true);
    }
}

/// Sums of more terms than a 16-bit float can count.
#[test]
fn sums_of_many_terms() {
    let axes = |a: &[i64]| Attrs::new().with("axes", a).with("keepdims", false);
    for (shape, a) in [(&[9000, 3][..], &[0][..]), (&[70_001], &[0]), (&[3, 40, 57], &[0, 2])] {
        call("ReduceSum", &axes(a), &[shape], false);
        call("ReduceMean", &axes(a), &[shape], false);
    }
    let norm = Attrs::new().with("axis", 1);
    call("LayerNormalization", &norm.clone().with("eps", 1e-5), &[&[67, 301], &[301], &[301]], false);
    call("LayerNormalizationGrad", &norm, &[&[67, 301], &[301], &[67, 1], &[67, 1], &[67, 301]], false);
    call("BatchNormTraining", &Attrs::new().with("eps", 1e-5), &[&[3, 5, 9, 13], &[5], &[5]], false);
}

/// Updates that all go to few places: each alone is less than half of a unit of what they add up to.
#[test]
fn updates_are_added_in_float32() {
    let Some((mut driver, mut compiler)) = host() else { return };
    for dtype in HALVES {
        let half = |l: Literal| Some(cast(&l, dtype));
        let ones = |n: usize| half(cast(&Literal::ints(&vec![1; n]), DType::F32));
        let indices = Literal::ints(&(0..6000).map(|i| i % 2).collect::<Vec<i64>>());
        let scatter = Attrs::new().with("axis", 0).with("reduction", "add");
        let gather = Attrs::new().with("axis", 0).with("shape", vec![2i64]);
        for (op, attrs, inputs) in [
            (
                "ScatterElements",
                scatter,
                vec![half(floats(&[2], 1, false)), Some(indices.clone()), ones(6000)],
            ),
            ("GatherGrad", gather, vec![Some(indices), ones(6000)]),
        ] {
            let op = find(op).unwrap();
            let given = Given::new(op, attrs, inputs).unwrap();
            assert_eq!(run(&mut driver, &mut compiler, op, &given), Ok(true), "{} {dtype}", op.name());
            let got = given.on_cuda(&mut driver, &mut compiler, op, &[]).unwrap();
            assert!(got[0].to_floats().iter().all(|x| (x - 3000.0).abs() < 12.0), "{:?}", got[0].to_floats());
        }
    }
}

/// Positive numbers.
fn positive(shape: &[usize], seed: u64) -> Option<Literal> {
    let x = floats(shape, seed, false);
    let bytes = x.to_floats().into_iter().flat_map(|v| (v * v + 0.25).to_le_bytes()).collect::<Vec<u8>>();
    let double = Literal::new(DType::F64, x.shape().to_vec(), bytes).unwrap();
    Some(cast(&double, DType::F32))
}

/// Parameters, statistics, masks and sums are float32 beside what is stored in 16 bits.
#[test]
fn statistics_are_float32() {
    let Some((mut driver, mut compiler)) = host() else { return };
    let mut compare = |op: &str, attrs: &Attrs, inputs: Vec<Option<Literal>>| {
        let def = find(op).unwrap();
        let given = Given::new(def, attrs.clone(), inputs).unwrap_or_else(|e| panic!("{op}: {e}"));
        assert_eq!(run(&mut driver, &mut compiler, def, &given), Ok(true), "{op}");
    };
    for dtype in HALVES {
        let h = |shape: &[usize], seed: u64| Some(cast(&floats(shape, seed, false), dtype));
        let x = |shape: &[usize], seed: u64| Some(floats(shape, seed, false));
        let axis = Attrs::new().with("axis", 1);
        let eps = |a: &Attrs| a.clone().with("eps", 1e-5);
        let (rows, row, one): (&[usize], &[usize], &[usize]) = (&[37, 65], &[65], &[37, 1]);
        compare("LayerNormalization", &eps(&axis), vec![h(rows, 1), x(row, 2), x(row, 3)]);
        let given = vec![h(rows, 1), x(row, 2), x(one, 3), positive(one, 4), h(rows, 5)];
        compare("LayerNormalizationGrad", &axis, given);
        compare("RmsNormalization", &eps(&axis), vec![h(rows, 1), x(row, 2)]);
        compare("RmsNormalizationGrad", &axis, vec![h(rows, 1), x(row, 2), positive(one, 4), h(rows, 5)]);
        let (images, c): (&[usize], &[usize]) = (&[3, 5, 9, 13], &[5]);
        let none = Attrs::new();
        compare("BatchNormTraining", &eps(&none), vec![h(images, 1), x(c, 2), x(c, 3)]);
        let given = vec![h(images, 1), x(c, 2), x(c, 3), positive(c, 4), h(images, 5)];
        compare("BatchNormGrad", &none, given.clone());
        compare("BatchNormInferenceGrad", &eps(&none), given);
        let given = vec![h(images, 1), x(c, 2), x(c, 3), x(c, 4), positive(c, 5)];
        compare("BatchNormInference", &eps(&none), given);
        let groups = Attrs::new().with("groups", 3);
        let (g, of_group): (&[usize], &[usize]) = (&[9], &[2, 3]);
        compare("GroupNormalization", &eps(&groups), vec![h(&[2, 9, 31], 1), x(g, 2), x(g, 3)]);
        let given =
            vec![h(&[2, 9, 31], 1), x(g, 2), x(of_group, 3), positive(of_group, 4), h(&[2, 9, 31], 5)];
        compare("GroupNormalizationGrad", &groups, given);
        compare("Softmax", &axis.clone().with("to", dtype), vec![x(rows, 6)]);

        let scale = Attrs::new().with("scale", 0.3);
        let (q, k, v): (&[usize], &[usize], &[usize]) = (&[2, 37, 19], &[2, 70, 19], &[2, 70, 33]);
        for mask in [None, x(&[37, 70], 9), h(&[37, 70], 9)] {
            let forward = vec![h(q, 1), h(k, 2), h(v, 3), mask];
            compare("Attention", &scale, forward.clone());
            let op = find("Attention").unwrap();
            let out = Given::new(op, scale.clone(), forward.clone()).unwrap().reference(op).unwrap();
            let rest = vec![
                Some(out[0].clone()),
                Some(out[1].clone()),
                h(&[2, 37, 33], 4),
                x(&[2, 37], 5),
                Some(out[2].clone()),
            ];
            compare("AttentionGrad", &scale, [forward, rest].concat());
        }

        let (n, depth, classes) = (35, 40, 131);
        let labels: Vec<i64> = (0..n as i64).map(|i| if i % 7 == 3 { -1 } else { i * 17 % 131 }).collect();
        let attrs = Attrs::new().with("trans_b", 1i64).with("reduction", "mean").with("ignore_index", -1);
        let forward =
            vec![h(&[n, depth], 1), h(&[classes, depth], 2), Some(Literal::ints(&labels)), h(&[classes], 3)];
        compare("LinearCrossEntropy", &attrs, forward.clone());
        let op = find("LinearCrossEntropy").unwrap();
        let out = Given::new(op, attrs.clone(), forward.clone()).unwrap().reference(op).unwrap();
        assert_eq!(out[1].dtype(), DType::F32);
        compare(
            "LinearCrossEntropyGrad",
            &attrs,
            [forward, vec![Some(out[1].clone()), x(&[], 4), x(&[n], 5), Some(out[2].clone())]].concat(),
        );
    }
}
