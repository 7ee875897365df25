//! CUDA kernels on the CPU beyond the operators' cases: sizes that are no multiple of a tile, several tiles and blocks, special values,
//! empty tensors, indices that repeat, and data that is refused.

mod common;

use common::{Given, floats, host, run};
use graph::{Attr, Attrs, DType, Literal};
use ops::find;

/// Compares one call on both sides; an input is left out where there is `None`.
fn compare(op: &str, attrs: Attrs, inputs: Vec<Option<Literal>>) {
    let Some((mut driver, mut compiler)) = host() else { return };
    let def = find(op).unwrap();
    let given = Given::new(def, attrs.clone(), inputs).unwrap_or_else(|e| panic!("{op}: {e}"));
    let done = run(&mut driver, &mut compiler, def, &given);
    assert_eq!(done, Ok(true), "{op} {attrs:?}");
}

/// What a call says of its data.
fn refusal(op: &str, attrs: Attrs, inputs: Vec<Option<Literal>>) -> Option<String> {
    let (mut driver, mut compiler) = host()?;
    let def = find(op).unwrap();
    let given = Given::new(def, attrs, inputs).unwrap_or_else(|e| panic!("{op}: {e}"));
    assert!(given.on_cpu(def).is_err(), "{op} takes it on the CPU");
    Some(given.on_cuda(&mut driver, &mut compiler, def, &[]).expect_err("data that is refused"))
}

fn x(shape: &[usize], seed: u64) -> Option<Literal> {
    Some(floats(shape, seed, false))
}

/// In float64, where sums of many terms differ by no rounding that matters.
fn wide(shape: &[usize], seed: u64) -> Option<Literal> {
    Some(common::cast(&floats(shape, seed, false), DType::F64))
}

/// Some NaN and infinities among the elements.
fn odd(shape: &[usize], seed: u64) -> Option<Literal> {
    Some(floats(shape, seed, true))
}

/// Indices that repeat, from either end of an axis of `n`.
fn indices(shape: &[usize], n: i64) -> Option<Literal> {
    let all: usize = shape.iter().product();
    let v: Vec<i64> = (0..all as i64).map(|i| (i * i + 5 * i) % n - if i % 3 == 0 { n } else { 0 }).collect();
    Some(Literal::ints(&v).reshaped(shape.iter().map(|d| *d as u64).collect()).unwrap())
}

fn ints32(v: &[i32]) -> Option<Literal> {
    let bytes: Vec<u8> = v.iter().flat_map(|i| i.to_le_bytes()).collect();
    Some(Literal::new(DType::I32, vec![v.len() as u64], bytes).unwrap())
}

/// The log-sum-exp of attention's rows, and what its gradient takes.
fn attention(attrs: &Attrs, shapes: [&[usize]; 3], mask: Option<Literal>) {
    let Some(_) = host() else { return };
    let qkv: Vec<_> = shapes.iter().enumerate().map(|(i, s)| x(s, 20 + i as u64)).collect();
    let forward = [qkv.clone(), vec![mask]].concat();
    compare("Attention", attrs.clone(), forward.clone());
    let op = find("Attention").unwrap();
    let out = Given::new(op, attrs.clone(), forward.clone()).unwrap().on_cpu(op).unwrap();
    let shape = |l: &Literal| l.shape().iter().map(|d| *d as usize).collect::<Vec<_>>();
    let (dy, dl) = (x(&shape(&out[0]), 30), x(&shape(&out[1]), 31));
    let rest = vec![Some(out[0].clone()), Some(out[1].clone()), dy, dl, Some(out[2].clone())];
    compare("AttentionGrad", attrs.clone(), [forward, rest].concat());
}

#[test]
fn attention_of_many_tiles_and_columns() {
    let scale = Attrs::new().with("scale", 0.3);
    attention(&scale, [&[2, 37, 19], &[2, 130, 19], &[2, 130, 33]], x(&[37, 130], 9));
    // More columns than one block keeps.
    attention(&scale, [&[5, 270], &[9, 270], &[9, 300]], None);
    let swapped = scale.with("q_swapped", 1).with("k_swapped", 1).with("v_swapped", 1).with("y_swapped", 1);
    attention(&swapped, [&[2, 17, 3, 8], &[2, 65, 3, 8], &[2, 65, 3, 8]], None);
}

/// A causal mask: whole tiles of keys count nothing, and the first row sees one key only.
#[test]
fn attention_with_masked_tiles() {
    let n = 70usize;
    let values = (0..n * n).map(|i| if i % n > i / n { f32::NEG_INFINITY } else { 0.0 });
    let mask =
        Literal::new(DType::F32, vec![n as u64; 2], values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>())
            .unwrap();
    attention(&Attrs::new().with("scale", 0.5), [&[1, n, 8], &[1, n, 8], &[1, n, 8]], Some(mask));
}

/// Rows of which nothing counts: masked by large finite numbers, added or put in the place of scores.
#[test]
fn attention_with_masked_rows() {
    let (n, scale) = (70usize, Attrs::new().with("scale", 0.5));
    let counts = |i: usize| i % n <= i / n && i / n != 3 && i / n != 66;
    let shapes: [&[usize]; 3] = [&[2, n, 8], &[2, n, 8], &[2, n, 8]];
    for fill in [-1e9f32, f32::MIN] {
        let values = (0..n * n).map(|i| if counts(i) { 0.0 } else { fill });
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        attention(&scale, shapes, Some(Literal::new(DType::F32, vec![n as u64; 2], bytes).unwrap()));
        let keep: Vec<u8> = (0..n * n).map(|i| u8::from(counts(i))).collect();
        let keep = Literal::new(DType::Bool, vec![n as u64; 2], keep).unwrap();
        attention(&scale.clone().with("fill", f64::from(fill)), shapes, Some(keep));
    }
}

/// Scores with a large common offset.
#[test]
fn cross_entropy_of_offset_scores() {
    let Some(_) = host() else { return };
    for offset in [0.0, 1e6, -1e9] {
        for shape in [vec![9usize, 300], vec![2, 5, 70]] {
            let near = floats(&shape, 1, false).to_floats();
            let bytes: Vec<u8> = near.iter().flat_map(|v| (*v as f32 + offset).to_le_bytes()).collect();
            let dims: Vec<u64> = shape.iter().map(|d| *d as u64).collect();
            let scores = Some(Literal::new(DType::F32, dims.clone(), bytes).unwrap());
            let rows: Vec<u64> = [&dims[..1], &dims[2..]].concat();
            let count = rows.iter().product::<u64>() as i64;
            let ids: Vec<i64> = (0..count).map(|i| i * 3 % shape[1] as i64).collect();
            let labels = Some(Literal::ints(&ids).reshaped(rows).unwrap());
            let attrs = Attrs::new().with("reduction", "sum");
            let op = find("SoftmaxCrossEntropyLoss").unwrap();
            let given = vec![scores, labels];
            let out = Given::new(op, attrs.clone(), given.clone()).unwrap().on_cpu(op).unwrap();
            let more = vec![Some(out[1].clone()), x(&[], 4)];
            compare("SoftmaxCrossEntropyGrad", attrs, [given, more].concat());
        }
    }
}

#[test]
fn linear_cross_entropy_of_many_classes() {
    for (turned, reduction) in [(0i64, "mean"), (1, "sum")] {
        let attrs =
            Attrs::new().with("trans_b", turned).with("reduction", reduction).with("ignore_index", -1);
        let (n, depth, classes) = (35, 270, 131);
        let w: &[usize] = if turned == 1 { &[classes, depth] } else { &[depth, classes] };
        let labels: Vec<i64> = (0..n as i64).map(|i| if i % 7 == 3 { -1 } else { i * 17 % 131 }).collect();
        let inputs =
            vec![wide(&[n, depth], 1), wide(w, 2), Some(Literal::ints(&labels)), wide(&[classes], 3)];
        compare("LinearCrossEntropy", attrs.clone(), inputs.clone());
        let op = find("LinearCrossEntropy").unwrap();
        let out = Given::new(op, attrs.clone(), inputs.clone()).unwrap().on_cpu(op).unwrap();
        let more = vec![Some(out[1].clone()), wide(&[], 4), wide(&[n], 5), Some(out[2].clone())];
        compare("LinearCrossEntropyGrad", attrs, [inputs, more].concat());
    }
}

#[test]
fn elements_by_index() {
    let axis = |a: i64| Attrs::new().with("axis", a);
    for (a, x_shape, i_shape) in
        [(0, &[70, 9][..], &[300, 7][..]), (1, &[5, 33, 6], &[5, 100, 6]), (0, &[1000], &[3000])]
    {
        let n = x_shape[a as usize] as i64;
        compare("GatherElements", axis(a), vec![odd(x_shape, 1), indices(i_shape, n)]);
        for how in ["add", "mul", "max", "min"] {
            let attrs = axis(a).with("reduction", how);
            compare("ScatterElements", attrs, vec![x(x_shape, 2), indices(i_shape, n), x(i_shape, 3)]);
        }
        // The last of equal indices stays.
        let attrs = axis(a).with("reduction", "none");
        compare("ScatterElements", attrs, vec![x(x_shape, 2), indices(i_shape, n), odd(i_shape, 3)]);
    }
    let nd = |how: &str| Attrs::new().with("batch_dims", 0).with("reduction", how);
    compare("GatherND", Attrs::new().with("batch_dims", 0), vec![x(&[9, 9, 70], 4), indices(&[33, 2], 9)]);
    for how in ["none", "add", "max"] {
        compare("ScatterND", nd(how), vec![x(&[9, 9, 70], 5), indices(&[33, 2], 9), x(&[33, 70], 6)]);
        compare("ScatterND", nd(how), vec![x(&[9, 3], 5), indices(&[0, 1], 9), x(&[0, 3], 6)]);
    }
    let places: Vec<i64> = (0..500).map(|i| i * 37 % 900).collect();
    let places = Literal::ints(&places).reshaped(vec![1, 2, 10, 25]).unwrap();
    compare(
        "MaxUnpool",
        Attrs::new().with("shape", vec![1, 2, 30, 50]),
        vec![x(&[1, 2, 10, 25], 7), Some(places)],
    );
    compare(
        "OneHot",
        Attrs::new().with("axis", 1).with("depth", 300),
        vec![indices(&[40, 3], 200), x(&[2], 8)],
    );
}

#[test]
fn selections_of_special_values() {
    for (shape, axis, k) in [(&[3, 300][..], 1, 40), (&[70, 5], 0, 70), (&[2, 9, 33], 1, 1)] {
        for largest in [true, false] {
            let attrs = Attrs::new().with("axis", axis).with("k", k).with("largest", largest);
            compare("TopK", attrs, vec![odd(shape, 11)]);
        }
    }
    compare(
        "ReduceProdGrad",
        Attrs::new().with("axes", vec![0, 2]),
        vec![x(&[3, 40, 5], 1), x(&[1, 40, 1], 2)],
    );
    let (ties, most) = (Literal::ints(&[1; 600]), Literal::ints(&[1; 3]));
    let float = |l: &Literal, shape: Vec<u64>| Some(common::cast(l, DType::F32).reshaped(shape).unwrap());
    let inputs = vec![float(&ties, vec![200, 3]), float(&most, vec![1, 3]), x(&[1, 3], 3)];
    compare("ReduceExtremeGrad", Attrs::new().with("axes", vec![0]), inputs);
    compare(
        "Pad",
        Attrs::new().with("mode", "reflect").with("pads", vec![3, 70, 2, 1]),
        vec![odd(&[9, 300], 4)],
    );
    let lengths = Some(Literal::ints(&[40, 0, 7]));
    compare("ReverseSequence", Attrs::new().with("time_axis", 0), vec![odd(&[40, 3, 11], 5), lengths]);
}

#[test]
fn images_resampled() {
    // Tables of taps longer than one launch carries.
    let to = |mode: &str, from: usize, size: i64| {
        Attrs::new()
            .with("mode", mode)
            .with("coordinates", "half_pixel")
            .with("axes", vec![2, 3])
            .with("sizes", vec![size, size + 3])
            .with("scales", vec![size as f64 / from as f64, (size + 3) as f64 / from as f64])
    };
    for (mode, from, size) in [("cubic", 20, 97), ("linear", 33, 8), ("nearest", 7, 1000)] {
        compare("Resize", to(mode, from, size), vec![x(&[1, 2, from, from], 1)]);
        let shape = vec![1, 2, from as i64, from as i64];
        let dy: &[usize] = &[1, 2, size as usize, size as usize + 3];
        if mode != "nearest" {
            compare("ResizeGrad", to(mode, from, size).with("shape", shape), vec![x(dy, 2)]);
        }
    }
    for (mode, padding) in [("linear", "zeros"), ("nearest", "border"), ("linear", "reflection")] {
        let attrs = Attrs::new().with("mode", mode).with("padding_mode", padding).with("align_corners", true);
        let (image, grid): (&[usize], &[usize]) = (&[2, 3, 11, 7], &[2, 20, 13, 2]);
        compare("GridSample", attrs.clone(), vec![x(image, 3), odd(grid, 4)]);
        let shape: Vec<i64> = image.iter().map(|d| *d as i64).collect();
        let dy: &[usize] = &[2, 3, 20, 13];
        compare("GridSampleGradImage", attrs.clone().with("shape", shape), vec![x(grid, 5), x(dy, 6)]);
        compare("GridSampleGradGrid", attrs, vec![x(image, 3), x(grid, 5), x(dy, 6)]);
    }
}

#[test]
fn transforms_of_every_kind_of_length() {
    for n in [1i64, 2, 8, 60, 97, 128, 210] {
        let attrs = Attrs::new().with("axis", 1).with("length", n).with("bins", n / 2 + 1);
        compare("Dft", attrs, vec![x(&[3, n as usize, 5, 1], n as u64)]);
    }
    let frames = |length: i64, step: i64| Attrs::new().with("length", length).with("step", step);
    compare("Frame", frames(100, 37), vec![odd(&[3, 1000, 2], 1)]);
    let count = (1000 - 100) / 37 + 1;
    compare("FrameGrad", frames(100, 37).with("total", 1000i64), vec![x(&[3, count, 100, 2], 2)]);
}

#[test]
fn recurrent_layers_wider_than_a_warp() {
    let (t, b, h) = (3, 4, 70);
    let functions = |names: &[&str]| {
        let zeros = vec![0.0; names.len()];
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        Attrs::new().with("activations", Attr::Strs(names)).with("alphas", zeros.clone()).with("betas", zeros)
    };
    let lengths = ints32(&[3, 1, 0, 2]);
    for reverse in [false, true] {
        let lstm = functions(&["Sigmoid", "Tanh", "Tanh"]).with("reverse", reverse);
        let gates = |n: usize, seed: u64| x(&[t, b, n * h], seed);
        let weight = |n: usize| x(&[n * h, h], 2);
        let inputs =
            vec![gates(4, 1), weight(4), x(&[b, h], 3), x(&[b, h], 4), lengths.clone(), x(&[3 * h], 5)];
        compare("Lstm", lstm, inputs);
        let gru = functions(&["Sigmoid", "Tanh"]).with("reverse", reverse);
        for linear in [false, true] {
            let attrs = gru.clone().with("linear_before_reset", linear);
            compare("Gru", attrs.clone(), vec![gates(3, 6), weight(3), x(&[b, h], 7), lengths.clone()]);
            let inputs =
                vec![gates(3, 8), x(&[t, b, h], 9), x(&[t, b, h], 10), weight(3), x(&[b, h], 11), None];
            let cotangents = vec![x(&[t, b, h], 12), x(&[b, h], 13), gates(3, 14), x(&[t, b, h], 15)];
            compare("GruGrad", attrs, [inputs, cotangents].concat());
        }
        let rnn = functions(&["Tanh"]).with("reverse", reverse);
        compare("Rnn", rnn.clone(), vec![gates(1, 16), weight(1), None, lengths.clone()]);
        compare("RnnGrad", rnn, vec![gates(1, 17), weight(1), None, None, x(&[t, b, h], 18), x(&[b, h], 19)]);
    }
}

#[test]
fn normalisations_beyond_one_block() {
    let group = Attrs::new().with("groups", 3);
    let (c, row): (&[usize], &[usize]) = (&[9], &[2, 3]);
    compare(
        "GroupNormalization",
        group.clone().with("eps", 1e-5),
        vec![x(&[2, 9, 131], 1), x(c, 2), x(c, 3)],
    );
    let inputs = vec![x(&[2, 9, 131], 1), x(c, 2), x(row, 3), x(row, 4), x(&[2, 9, 131], 5)];
    compare("GroupNormalizationGrad", group, inputs);
    for p in [1i64, 2] {
        compare("LpNormalization", Attrs::new().with("axis", 1).with("p", p), vec![x(&[3, 300, 5], 6)]);
        compare("LpNormalization", Attrs::new().with("axis", 0).with("p", p), vec![x(&[4, 0], 6)]);
    }
    let lrn = Attrs::new().with("size", 6).with("alpha", 0.5);
    compare("LRN", lrn.clone(), vec![x(&[2, 70, 9], 7)]);
    compare("LrnGrad", lrn, vec![x(&[2, 70, 9], 7), x(&[2, 70, 9], 8)]);
}

#[test]
fn random_numbers_are_those_of_the_cpu() {
    let scalar = |v: i64| Some(Literal::scalar(DType::I64, v as f64));
    let attrs =
        |shape: Vec<i64>| Attrs::new().with("shape", shape).with("dtype", DType::F32).with("id", 3i64);
    for shape in [vec![0], vec![1], vec![129], vec![70, 301]] {
        compare("RandomUniform", attrs(shape.clone()).with("low", -2.0), vec![scalar(-5), scalar(1 << 40)]);
        compare("RandomNormal", attrs(shape).with("scale", 3.0), vec![scalar(7), scalar(2)]);
    }
    let choice = |d: DType| Attrs::new().with("dtype", d).with("id", 1i64);
    compare("Bernoulli", choice(DType::U8), vec![odd(&[1000], 1), scalar(1), scalar(2)]);
    let draws = choice(DType::I64).with("samples", 200i64);
    compare("Multinomial", draws, vec![x(&[3, 77], 2), scalar(1), scalar(2)]);
}

/// What the CPU refuses is refused with the place.
#[test]
fn bad_data_is_refused() {
    let scalar = |v: i64| Some(Literal::scalar(DType::I64, v as f64));
    let outside = Some(Literal::ints(&[0, 1, 0, 7, 1, 1]).reshaped(vec![2, 3]).unwrap());
    let axis = Attrs::new().with("axis", 1);
    let Some(e) = refusal("GatherElements", axis.clone(), vec![x(&[2, 3], 1), outside.clone()]) else {
        return;
    };
    assert_eq!(e, "index 7 at position 3 of the indices is outside of its axis");
    for how in ["none", "add"] {
        let attrs = axis.clone().with("reduction", how);
        let e = refusal("ScatterElements", attrs, vec![x(&[2, 3], 1), outside.clone(), x(&[2, 3], 2)]);
        assert_eq!(e.unwrap(), "index 7 at position 3 of the indices is outside of its axis");
    }
    let lengths = ints32(&[2, 5]);
    let attrs = Attrs::new().with("activations", Attr::Strs(vec!["Tanh".to_owned()]));
    let attrs = attrs.with("alphas", vec![0.0]).with("betas", vec![0.0]);
    let e = refusal("Rnn", attrs, vec![x(&[3, 2, 4], 1), x(&[4, 4], 2), None, lengths]);
    assert_eq!(e.unwrap(), "length 5 of sequence 1 is outside of the steps that there are");
    let e = refusal(
        "ReverseSequence",
        Attrs::new().with("time_axis", 0),
        vec![x(&[3, 2], 1), Some(Literal::ints(&[1, -1]))],
    );
    assert_eq!(e.unwrap(), "length -1 of sequence 1 is outside of the steps that there are");
    let attrs = Attrs::new().with("dtype", DType::I32).with("id", 1i64).with("samples", 2i64);
    let e = refusal("Multinomial", attrs, vec![odd(&[2, 9], 1), scalar(1), scalar(2)]);
    assert!(e.unwrap().starts_with("row 0 has no probabilities"));
    let attrs = Attrs::new().with("shape", vec![1, 1, 2, 2]);
    let places = Literal::ints(&[4]).reshaped(vec![1; 4]).unwrap();
    let e = refusal("MaxUnpool", attrs, vec![x(&[1, 1, 1, 1], 1), Some(places)]);
    assert_eq!(e.unwrap(), "index 4 at position 0 of the indices is outside of its axis");
    let attrs = Attrs::new().with("height", 2i64).with("width", 2i64);
    let e = refusal("RoiAlign", attrs, vec![x(&[2, 1, 4, 4], 1), x(&[1, 4], 2), Some(Literal::ints(&[2]))]);
    assert_eq!(e.unwrap(), "region 0 is of image 2, which there is not");
}
