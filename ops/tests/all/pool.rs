//! Pools against values worked out by hand and against the definition.

use crate::support::{floats, run};
use graph::{Attrs, DType, Literal, TensorType};
use ops::{
    OpDef, Signature,
    pool::{average::AveragePool, max},
};

fn window_attrs(kernel: &[i64], strides: &[i64], pads: &[i64], dilations: &[i64], ceil: bool) -> Attrs {
    let attrs = Attrs::new().with("kernel", kernel).with("strides", strides).with("pads", pads);
    attrs.with("dilations", dilations).with("ceil_mode", ceil)
}

#[test]
fn maxima_positions_and_indices() {
    let x = floats(&[1, 1, 3, 3], &[1.0, 5.0, 2.0, 5.0, 0.0, 3.0, f32::NAN, 4.0, 9.0]);
    let attrs = window_attrs(&[2, 2], &[1, 1], &[0; 4], &[1, 1], false);
    let out = run("MaxPool", attrs.clone(), &[&x]);
    let y = out[0].to_floats();
    assert_eq!((y[0], y[1], y[3]), (5.0, 5.0, 9.0));
    assert!(y[2].is_nan());
    // Of equal elements the first counts.
    assert_eq!(out[1].to_ints().unwrap(), [1, 0, 2, 3]);
    let attrs = attrs.with("size", &[3i64, 3][..]);
    let of = |order: i64| run("MaxPoolIndices", attrs.clone().with("storage_order", order), &[&out[1]]);
    assert_eq!(of(0)[0].to_ints().unwrap(), [1, 1, 6, 8]);
    assert_eq!(of(1)[0].to_ints().unwrap(), [3, 3, 2, 8]);
    let dx = run("MaxPoolGrad", attrs.clone(), &[&out[1], &floats(&[1, 1, 2, 2], &[1.0, 2.0, 4.0, 8.0])]);
    assert_eq!(dx[0].to_floats(), [0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 4.0, 0.0, 8.0]);
}

#[test]
fn a_window_of_padding_alone_has_no_position() {
    let x = floats(&[1, 1, 2], &[f32::NEG_INFINITY, -1.0]);
    let attrs = window_attrs(&[2], &[1], &[3, 0], &[1], false);
    let out = run("MaxPool", attrs.clone(), &[&x]);
    assert_eq!(out[0].to_floats(), [f64::NEG_INFINITY, f64::NEG_INFINITY, f64::NEG_INFINITY, -1.0]);
    assert_eq!(out[1].to_ints().unwrap(), [255, 255, 1, 1]);
}

#[test]
fn maxima_of_integers() {
    let x = Literal::new(DType::I8, vec![1, 1, 4], vec![0x80, 0x81, 0x80, 5]).unwrap();
    let out = run("MaxPool", window_attrs(&[2], &[2], &[0, 0], &[1], false), &[&x]);
    assert_eq!(out[0].to_ints().unwrap(), [-127, 5]);
    let x = Literal::new(DType::U8, vec![1, 1, 4], vec![0, 0, 200, 7]).unwrap();
    let out = run("MaxPool", window_attrs(&[3], &[1], &[1, 1], &[1], false), &[&x]);
    assert_eq!(out[0].to_ints().unwrap(), [0, 200, 200, 200]);
}

#[test]
fn means_divide_by_what_counts() {
    let x = floats(&[1, 1, 5], &[1.0, 2.0, 3.0, 4.0, 5.0]);
    let attrs = window_attrs(&[3], &[2], &[1, 0], &[1], true);
    let of = |divide: &str| run("AveragePool", attrs.clone().with("divide", divide), &[&x])[0].to_floats();
    // Windows: (pad 1 2), (2 3 4), (4 5 beyond): what lies beyond the padding counts for nobody.
    assert_eq!(of("elements"), [1.5, 3.0, 4.5]);
    assert_eq!(of("padding"), [1.0, 3.0, 4.5]);
    assert_eq!(of("nothing"), [3.0, 9.0, 9.0]);
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let of = |shape: &[usize], attrs: Attrs| {
        let t = TensorType::new(DType::F32, shape);
        let s = Signature { attrs: &attrs, inputs: vec![Some(&t)], constants: vec![None], outputs: vec![] };
        (max::MaxPool.infer(&s).is_err(), AveragePool.infer(&s).is_err())
    };
    let ok = window_attrs(&[2, 2], &[1, 1], &[0; 4], &[1, 1], false);
    assert_eq!(of(&[1, 1, 2, 2], ok.clone()), (false, false));
    assert_eq!(of(&[1, 1, 1, 2], ok.clone()), (true, true));
    assert_eq!(of(&[1, 1, 4], ok.clone()), (true, true));
    assert_eq!(of(&[4, 4], ok.clone()), (true, true));
    assert_eq!(of(&[1, 1, 4, 4], ok.clone().with("strides", vec![0i64, 1])), (true, true));
    assert_eq!(of(&[1, 1, 4, 4], ok.clone().with("kernel", vec![0i64, 1])), (true, true));
    assert_eq!(of(&[1, 1, 4, 4], ok.with("pads", vec![0i64, 1])), (true, true));
}
