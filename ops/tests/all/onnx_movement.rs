//! Forward values of the movement and indexing operators, read from ONNX nodes: numbers worked out by hand or given by the ONNX
//! specification.

use crate::support::floats;
use graph::{Attrs, DType, Graph, InputRole, Literal, TensorType};
use ops::{
    Builder, OpError,
    cpu::interpret,
    onnx::{BatchNormMode, DropoutMode, ImportCx, ImportOptions, find_rule},
};
use std::collections::BTreeMap;

/// An input of a node.
enum In {
    /// Known at run time.
    Data(Literal),
    /// Part of the model.
    Const(Literal),
    /// Left out.
    None,
}
use In::{Const, Data, None as Absent};

fn ints(shape: &[u64], values: &[i64]) -> Literal {
    Literal::ints(values).reshaped(shape.to_vec()).unwrap()
}

/// 0, 1, 2, .. from `first`.
fn count(shape: &[u64], first: f32) -> Literal {
    let n: u64 = shape.iter().product();
    floats(shape, &(0..n).map(|i| first + i as f32).collect::<Vec<_>>())
}

/// Imports one node and evaluates it.
fn run(
    op_type: &str,
    opset: i64,
    attrs: Attrs,
    inputs: Vec<In>,
    outputs: usize,
) -> Result<Vec<Literal>, OpError> {
    let mut graph = Graph::default();
    let mut given = BTreeMap::new();
    let mut ids = Vec::new();
    for (i, input) in inputs.into_iter().enumerate() {
        ids.push(match input {
            In::Data(l) => {
                let v =
                    graph.add_input(format!("x{i}"), TensorType::new(l.dtype(), l.shape()), InputRole::Data);
                given.insert(v, l);
                Some(v)
            }
            In::Const(l) => Some(graph.add_constant(format!("x{i}"), l)),
            In::None => None,
        });
    }
    let mut b = Builder::new(&mut graph);
    let options = ImportOptions {
        training: true,
        batchnorm: BatchNormMode::Auto,
        dropout: DropoutMode::Auto,
        unbiased_running_variance: false,
    };
    let used = vec![true; outputs];
    let mut cx = ImportCx {
        b: &mut b,
        options,
        op_type,
        opset,
        attrs: &attrs,
        inputs: &ids,
        used: &used,
        outputs: Vec::new(),
        remarks: Vec::new(),
    };
    let rule = find_rule("", op_type).unwrap_or_else(|| panic!("no rule for {op_type}"));
    (rule.import)(&mut cx)?;
    let results = cx.outputs;
    graph::verify(&graph).unwrap();
    let values = interpret(&graph, &given).map_err(|e| e.error)?;
    Ok(results.into_iter().map(|v| values[&v.unwrap()].clone()).collect())
}

fn one(op_type: &str, opset: i64, attrs: Attrs, inputs: Vec<In>) -> Literal {
    run(op_type, opset, attrs, inputs, 1).unwrap_or_else(|e| panic!("{op_type}: {e}")).remove(0)
}

#[track_caller]
fn close(got: &Literal, want: &Literal) {
    assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()));
    for (i, (g, w)) in got.to_floats().iter().zip(want.to_floats()).enumerate() {
        assert!(
            (g - w).abs() <= 2e-5 * w.abs().max(1.0),
            "element {i}: {g}, not {w} (of {:?})",
            got.to_floats()
        );
    }
}

fn none() -> Attrs {
    Attrs::new()
}

#[test]
fn reshapes() {
    let x = || Data(count(&[2, 3, 4], 0.0));
    let c = |v: &[i64]| Const(Literal::ints(v));
    let shape = |l: Literal| l.shape().to_vec();
    assert_eq!(shape(one("Reshape", 14, none(), vec![x(), c(&[0, -1])])), [2, 12]);
    assert_eq!(shape(one("Flatten", 13, none().with("axis", 2), vec![x()])), [6, 4]);
    assert_eq!(shape(one("Flatten", 13, none().with("axis", -3), vec![x()])), [1, 24]);
    assert_eq!(shape(one("Flatten", 13, none().with("axis", 3), vec![x()])), [24, 1]);
    let thin = || Data(count(&[1, 3, 1], 0.0));
    assert_eq!(shape(one("Squeeze", 11, none().with("axes", vec![-1]), vec![thin()])), [1, 3]);
    assert_eq!(shape(one("Squeeze", 13, none(), vec![thin(), c(&[0])])), [3, 1]);
    assert_eq!(shape(one("Squeeze", 13, none(), vec![thin()])), [3]);
    assert!(run("Squeeze", 13, none(), vec![thin(), c(&[1])], 1).is_err());
    assert_eq!(shape(one("Unsqueeze", 11, none().with("axes", vec![0, 4]), vec![x()])), [1, 2, 3, 4, 1]);
    assert_eq!(shape(one("Unsqueeze", 13, none(), vec![x(), c(&[-1, 1])])), [2, 1, 3, 4, 1]);
    assert!(run("Unsqueeze", 13, none(), vec![x(), c(&[0, 0])], 1).is_err());
    assert_eq!(one("Shape", 13, none(), vec![x()]), Literal::ints(&[2, 3, 4]));
    assert_eq!(one("Shape", 15, none().with("start", -2), vec![x()]), Literal::ints(&[3, 4]));
    assert_eq!(one("Shape", 15, none().with("start", 0).with("end", -1), vec![x()]), Literal::ints(&[2, 3]));
    assert_eq!(one("Size", 13, none(), vec![x()]), ints(&[], &[24]));
}

#[test]
fn generated_tensors() {
    let c = |v: &[i64]| Const(Literal::ints(v));
    assert_eq!(one("ConstantOfShape", 9, none(), vec![c(&[2, 1])]), floats(&[2, 1], &[0.0, 0.0]));
    let value = none().with("value", ints(&[1], &[7]));
    assert_eq!(one("ConstantOfShape", 9, value, vec![c(&[3])]), ints(&[3], &[7, 7, 7]));
    assert_eq!(one("ConstantOfShape", 9, none(), vec![c(&[300, 100])]).len(), 30_000);
    let scalar = |v| Const(Literal::scalar(DType::I64, v));
    assert_eq!(
        one("Range", 11, none(), vec![scalar(10.0), scalar(4.0), scalar(-2.0)]),
        ints(&[3], &[10, 8, 6])
    );
    let eye = none().with("k", 1).with("dtype", 7);
    let x = Data(count(&[2, 3], 0.0));
    assert_eq!(one("EyeLike", 9, eye, vec![x]), ints(&[2, 3], &[0, 1, 0, 0, 0, 1]));
    assert_eq!(one("Constant", 13, none().with("value_ints", vec![3, 4]), vec![]), Literal::ints(&[3, 4]));
}

#[test]
fn transposes_and_blocks() {
    let x = || Data(count(&[2, 3], 0.0));
    assert_eq!(one("Transpose", 13, none(), vec![x()]), floats(&[3, 2], &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]));
    let x = || Data(count(&[1, 8, 1, 2], 0.0));
    let dcr = one("DepthToSpace", 13, none().with("blocksize", 2), vec![x()]);
    let want = [0.0, 4.0, 1.0, 5.0, 8.0, 12.0, 9.0, 13.0, 2.0, 6.0, 3.0, 7.0, 10.0, 14.0, 11.0, 15.0];
    assert_eq!(dcr, floats(&[1, 2, 2, 4], &want));
    let crd = one("DepthToSpace", 13, none().with("blocksize", 2).with("mode", "CRD"), vec![x()]);
    let want = [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0, 8.0, 10.0, 9.0, 11.0, 12.0, 14.0, 13.0, 15.0];
    assert_eq!(crd, floats(&[1, 2, 2, 4], &want));
    let back = one("SpaceToDepth", 13, none().with("blocksize", 2), vec![Data(dcr)]);
    assert_eq!(back, count(&[1, 8, 1, 2], 0.0));
}

#[test]
fn slices_and_pieces() {
    let x = || Data(count(&[2, 4], 1.0));
    let c = |v: &[i64]| Const(Literal::ints(v));
    let got = one("Slice", 13, none(), vec![x(), c(&[1, 0]), c(&[2, 3]), c(&[0, 1]), c(&[1, 2])]);
    assert_eq!(got, floats(&[1, 2], &[5.0, 7.0]));
    assert_eq!(
        one("Slice", 13, none(), vec![x(), c(&[0, 1]), c(&[-1, 1000])]),
        floats(&[1, 3], &[2.0, 3.0, 4.0])
    );
    let back = one("Slice", 13, none(), vec![x(), c(&[-1]), c(&[i64::MIN]), c(&[-1]), c(&[-2])]);
    assert_eq!(back, floats(&[2, 2], &[4.0, 2.0, 8.0, 6.0]));
    let old = none().with("starts", vec![1]).with("ends", vec![2]).with("axes", vec![0]);
    assert_eq!(one("Slice", 9, old, vec![x()]), floats(&[1, 4], &[5.0, 6.0, 7.0, 8.0]));
    let pieces = run("Split", 18, none().with("num_outputs", 4), vec![x()], 4).unwrap_err();
    assert!(pieces.to_string().contains("does not split"), "{pieces}");
    let pieces =
        run("Split", 18, none().with("axis", -1).with("num_outputs", 2), vec![Data(count(&[1, 5], 0.0))], 2);
    assert_eq!(pieces.unwrap(), [floats(&[1, 3], &[0.0, 1.0, 2.0]), floats(&[1, 2], &[3.0, 4.0])]);
    let pieces = run("Split", 13, none().with("axis", 1), vec![x(), c(&[1, 3])], 2).unwrap();
    assert_eq!(pieces, [floats(&[2, 1], &[1.0, 5.0]), floats(&[2, 3], &[2.0, 3.0, 4.0, 6.0, 7.0, 8.0])]);
    let pieces = run("Split", 11, none(), vec![x()], 2).unwrap();
    assert_eq!(pieces[1], count(&[1, 4], 5.0));
    let joined = one(
        "Concat",
        13,
        none().with("axis", -1),
        vec![x(), Data(count(&[2, 0], 0.0)), Data(count(&[2, 1], 9.0))],
    );
    assert_eq!(joined, floats(&[2, 5], &[1.0, 2.0, 3.0, 4.0, 9.0, 5.0, 6.0, 7.0, 8.0, 10.0]));
}

#[test]
fn broadcasts_and_triangles() {
    let c = |v: &[i64]| Const(Literal::ints(v));
    let x = || Data(floats(&[2, 1], &[1.0, 2.0]));
    let wide = one("Expand", 13, none(), vec![x(), c(&[2, 1, 2])]);
    assert_eq!(wide, floats(&[2, 2, 2], &[1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0]));
    assert_eq!(one("Expand", 13, none(), vec![x(), c(&[1])]), floats(&[2, 1], &[1.0, 2.0]));
    let tiled = one("Tile", 13, none(), vec![Data(count(&[2, 2], 1.0)), c(&[2, 2])]);
    let row = [1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0];
    assert_eq!(tiled, floats(&[4, 4], &[row, row].concat()));
    let x = || Data(count(&[3, 3], 1.0));
    let upper = one("Trilu", 14, none(), vec![x(), Const(ints(&[], &[1]))]);
    assert_eq!(upper, floats(&[3, 3], &[0.0, 2.0, 3.0, 0.0, 0.0, 6.0, 0.0, 0.0, 0.0]));
    let lower = one("Trilu", 14, none().with("upper", 0), vec![x()]);
    assert_eq!(lower, floats(&[3, 3], &[1.0, 0.0, 0.0, 4.0, 5.0, 0.0, 7.0, 8.0, 9.0]));
    let sequences = vec![Data(count(&[4, 2], 0.0)), Const(Literal::ints(&[3, 1]))];
    let got = one("ReverseSequence", 10, none(), sequences);
    assert_eq!(got, floats(&[4, 2], &[4.0, 1.0, 2.0, 3.0, 0.0, 5.0, 6.0, 7.0]));
}

#[test]
fn padding() {
    let c = |v: &[i64]| Const(Literal::ints(v));
    let x = || Data(floats(&[2, 2], &[1.0, 2.0, 3.0, 4.0]));
    let got = one("Pad", 13, none(), vec![x(), c(&[0, 1, 1, 0]), Const(floats(&[], &[9.0]))]);
    assert_eq!(got, floats(&[3, 3], &[9.0, 1.0, 2.0, 9.0, 3.0, 4.0, 9.0, 9.0, 9.0]));
    let old = none().with("pads", vec![0, 1, 0, 0]).with("value", 5.0);
    assert_eq!(one("Pad", 2, old, vec![x()]), floats(&[2, 3], &[5.0, 1.0, 2.0, 5.0, 3.0, 4.0]));
    // A negative pad crops.
    assert_eq!(one("Pad", 13, none(), vec![x(), c(&[-1, 0, 0, 1])]), floats(&[1, 3], &[3.0, 4.0, 0.0]));
    let row = || Data(floats(&[1, 3], &[1.0, 2.0, 3.0]));
    let mode = |m: &str| none().with("mode", m);
    let along = |m: &str| one("Pad", 19, mode(m), vec![row(), c(&[2, 2]), Absent, c(&[-1])]);
    assert_eq!(along("reflect"), floats(&[1, 7], &[3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0]));
    assert_eq!(along("edge"), floats(&[1, 7], &[1.0, 1.0, 1.0, 2.0, 3.0, 3.0, 3.0]));
    assert_eq!(along("wrap"), floats(&[1, 7], &[2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0]));
    let got = one("CenterCropPad", 18, none(), vec![Data(count(&[1, 4], 0.0)), c(&[2, 1])]);
    assert_eq!(got, floats(&[2, 1], &[1.0, 0.0]));
    let got = one("CenterCropPad", 18, none().with("axes", vec![1]), vec![row(), c(&[6])]);
    assert_eq!(got, floats(&[1, 6], &[0.0, 1.0, 2.0, 3.0, 0.0, 0.0]));
}

#[test]
fn gathers() {
    let x = || Data(floats(&[3, 2], &[1.0, 1.2, 2.3, 3.4, 4.5, 5.7]));
    let i = |shape: &[u64], v: &[i64]| Data(ints(shape, v));
    let got = one("Gather", 13, none(), vec![x(), i(&[2, 2], &[0, 1, 1, -1])]);
    assert_eq!(got, floats(&[2, 2, 2], &[1.0, 1.2, 2.3, 3.4, 2.3, 3.4, 4.5, 5.7]));
    let got = one("Gather", 13, none().with("axis", -1), vec![x(), i(&[], &[1])]);
    assert_eq!(got, floats(&[3], &[1.2, 3.4, 5.7]));
    let error = run("Gather", 13, none(), vec![x(), i(&[2], &[0, 3])], 1).unwrap_err().to_string();
    assert!(error.contains("index 3 at position 1") && error.contains("3 elements"), "{error}");
    let got = one("Gather", 13, none().with("axis", 1), vec![x(), Const(ints(&[1, 1], &[-1]))]);
    assert_eq!(got, floats(&[3, 1, 1], &[1.2, 3.4, 5.7]));
    assert!(run("Gather", 13, none(), vec![x(), Const(ints(&[], &[3]))], 1).is_err());
    let square = || Data(count(&[2, 2], 1.0));
    let got = one("GatherElements", 13, none().with("axis", 1), vec![square(), i(&[2, 2], &[0, 0, -1, 0])]);
    assert_eq!(got, floats(&[2, 2], &[1.0, 1.0, 4.0, 3.0]));
    let cube = || Data(count(&[2, 2, 2], 0.0));
    let got = one("GatherND", 12, none(), vec![cube(), i(&[2, 2], &[0, 1, 1, 0])]);
    assert_eq!(got, floats(&[2, 2], &[2.0, 3.0, 4.0, 5.0]));
    let got = one("GatherND", 12, none().with("batch_dims", 1), vec![cube(), i(&[2, 1], &[1, 0])]);
    assert_eq!(got, floats(&[2, 2], &[2.0, 3.0, 4.0, 5.0]));
    let keep = |axis: Option<i64>, v: &[f64]| {
        let bytes: Vec<u8> = v.iter().map(|x| *x as u8).collect();
        let condition = Literal::new(DType::Bool, vec![v.len() as u64], bytes).unwrap();
        let attrs = axis.map_or_else(none, |a| none().with("axis", a));
        one("Compress", 11, attrs, vec![x(), Const(condition)])
    };
    assert_eq!(keep(Some(0), &[0.0, 1.0, 1.0]), floats(&[2, 2], &[2.3, 3.4, 4.5, 5.7]));
    assert_eq!(keep(Some(1), &[0.0, 1.0]), floats(&[3, 1], &[1.2, 3.4, 5.7]));
    assert_eq!(keep(None, &[0.0, 1.0, 0.0, 0.0, 1.0]), floats(&[2], &[1.2, 4.5]));
    let error = run("NonZero", 13, none(), vec![x()], 1).unwrap_err();
    assert!(matches!(error, OpError::Dynamic(_)), "{error}");
}

#[test]
fn scatters() {
    let i = |shape: &[u64], v: &[i64]| Data(ints(shape, v));
    let got = one(
        "ScatterElements",
        18,
        none(),
        vec![
            Data(count(&[3, 3], 0.0)),
            i(&[2, 3], &[1, 0, 2, 0, 2, 1]),
            Data(floats(&[2, 3], &[1.0, 1.1, 1.2, 2.0, 2.1, 2.2])),
        ],
    );
    assert_eq!(got, floats(&[3, 3], &[2.0, 1.1, 2.0, 1.0, 4.0, 2.2, 6.0, 2.1, 1.2]));
    let row = |reduction: &str| {
        let attrs = none().with("axis", 1).with("reduction", reduction);
        let x = Data(count(&[1, 5], 1.0));
        one("ScatterElements", 18, attrs, vec![x, i(&[1, 2], &[1, 1]), Data(floats(&[1, 2], &[1.1, 2.1]))])
    };
    close(&row("add"), &floats(&[1, 5], &[1.0, 5.2, 3.0, 4.0, 5.0]));
    close(&row("mul"), &floats(&[1, 5], &[1.0, 4.62, 3.0, 4.0, 5.0]));
    close(&row("max"), &floats(&[1, 5], &[1.0, 2.1, 3.0, 4.0, 5.0]));
    close(&row("min"), &floats(&[1, 5], &[1.0, 1.1, 3.0, 4.0, 5.0]));
    let x = Data(count(&[8], 1.0));
    let got = one("ScatterND", 18, none(), vec![x, i(&[4, 1], &[4, 3, 1, -1]), Data(count(&[4], 9.0))]);
    assert_eq!(got, floats(&[8], &[1.0, 11.0, 3.0, 10.0, 9.0, 6.0, 7.0, 12.0]));
    let add = none().with("reduction", "add");
    let x = Data(count(&[2, 2], 0.0));
    let got = one("ScatterND", 18, add, vec![x, i(&[2, 1], &[1, 1]), Data(count(&[2, 2], 1.0))]);
    assert_eq!(got, floats(&[2, 2], &[0.0, 1.0, 6.0, 9.0]));
    let x = Data(count(&[2, 2], 0.0));
    let error = run("ScatterND", 18, none(), vec![x, i(&[1, 2], &[1, 2]), Data(count(&[1], 0.0))], 1);
    assert!(error.unwrap_err().to_string().contains("index 2 at position 1"));
}

#[test]
fn discrete_choices() {
    let x = || Data(floats(&[2, 3], &[2.0, 1.0, 2.0, 3.0, 3.0, f32::NAN]));
    assert_eq!(one("ArgMax", 13, none().with("axis", 1), vec![x()]), ints(&[2, 1], &[0, 2]));
    let last = none().with("axis", -1).with("keepdims", 0).with("select_last_index", 1);
    assert_eq!(one("ArgMax", 13, last.clone(), vec![x()]), ints(&[2], &[2, 2]));
    assert_eq!(one("ArgMin", 13, last, vec![x()]), ints(&[2], &[1, 2]));
    let x = || Data(floats(&[2, 4], &[0.0, 3.0, 2.0, 3.0, 7.0, 5.0, 4.0, 6.0]));
    let k = || Const(Literal::ints(&[3]));
    let got = run("TopK", 11, none(), vec![x(), k()], 2).unwrap();
    assert_eq!(got[0], floats(&[2, 3], &[3.0, 3.0, 2.0, 7.0, 6.0, 5.0]));
    assert_eq!(got[1], ints(&[2, 3], &[1, 3, 2, 0, 3, 1]));
    let got =
        run("TopK", 11, none().with("largest", 0).with("axis", 0), vec![x(), Const(Literal::ints(&[1]))], 2);
    assert_eq!(got.unwrap()[1], ints(&[1, 4], &[0, 0, 0, 0]));
    let values = || Const(floats(&[2], &[5.0, 2.0]));
    let depth = || Const(Literal::scalar(DType::I64, 3.0));
    let got = one("OneHot", 11, none(), vec![Data(ints(&[3], &[1, -1, 7])), depth(), values()]);
    assert_eq!(got, floats(&[3, 3], &[5.0, 2.0, 5.0, 5.0, 5.0, 2.0, 5.0, 5.0, 5.0]));
    let got = one("OneHot", 11, none().with("axis", 0), vec![Data(ints(&[2], &[1, 0])), depth(), values()]);
    assert_eq!(got, floats(&[3, 2], &[5.0, 2.0, 2.0, 5.0, 5.0, 5.0]));
    let got = one("Hardmax", 13, none(), vec![x()]);
    assert_eq!(got, floats(&[2, 4], &[0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]));
    let got = one("Hardmax", 11, none().with("axis", 0), vec![x()]);
    assert_eq!(got, floats(&[2, 4], &[0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]));
}

#[test]
fn moves_of_other_dtypes() {
    for dtype in DType::ALL {
        let bytes: Vec<u8> =
            [1.0, 0.0, 1.0, 1.0].iter().flat_map(|v| Literal::scalar(dtype, *v).bytes().to_vec()).collect();
        let x = || Data(Literal::new(dtype, vec![2, 2], bytes.clone()).unwrap());
        assert_eq!(one("Transpose", 13, none(), vec![x()]).to_floats(), [1.0, 1.0, 0.0, 1.0]);
        let index = || Data(ints(&[1], &[1]));
        assert_eq!(one("Gather", 13, none(), vec![x(), index()]).to_floats(), [1.0, 1.0]);
        let pads = || Const(Literal::ints(&[0, 1, 0, 0]));
        assert_eq!(one("Pad", 13, none(), vec![x(), pads()]).to_floats(), [0.0, 1.0, 0.0, 0.0, 1.0, 1.0]);
        let update = Data(Literal::new(dtype, vec![1, 1], Literal::scalar(dtype, 0.0).bytes()).unwrap());
        let at = Data(ints(&[1, 1], &[1]));
        let got = one("ScatterElements", 18, none(), vec![x(), at, update]);
        assert_eq!(got.to_floats(), [1.0, 0.0, 0.0, 1.0]);
    }
}

/// A resize of a `[1, 1, h, w]` image.
fn resize(attrs: Attrs, image: Literal, scales: &[f32], sizes: &[i64]) -> Literal {
    let scales =
        if scales.is_empty() { Absent } else { Const(floats(&[4], &[&[1.0, 1.0], scales].concat())) };
    let sizes = if sizes.is_empty() { Absent } else { Const(Literal::ints(&[&[1, 1], sizes].concat())) };
    one("Resize", 19, attrs, vec![Data(image), Absent, scales, sizes])
}

fn image(h: u64, w: u64) -> Literal {
    count(&[1, 1, h, w], 1.0)
}

fn mode(mode: &str, coordinates: &str) -> Attrs {
    none().with("mode", mode).with("coordinate_transformation_mode", coordinates)
}

#[test]
fn nearest_resizes() {
    let got = resize(mode("nearest", "half_pixel"), image(2, 2), &[2.0, 3.0], &[]);
    let (a, b) = ([1.0, 1.0, 1.0, 2.0, 2.0, 2.0], [3.0, 3.0, 3.0, 4.0, 4.0, 4.0]);
    assert_eq!(got, floats(&[1, 1, 4, 6], &[a, a, b, b].concat()));
    let got = resize(mode("nearest", "half_pixel"), image(2, 4), &[0.6, 0.6], &[]);
    assert_eq!(got, floats(&[1, 1, 1, 2], &[1.0, 3.0]));
    let row = |coordinates: &str, nearest: &str| {
        let attrs = mode("nearest", coordinates).with("nearest_mode", nearest);
        resize(attrs, image(4, 4), &[], &[8, 8]).to_floats()[..8].to_vec()
    };
    assert_eq!(row("half_pixel", "ceil"), [1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 4.0]);
    assert_eq!(row("align_corners", "floor"), [1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0]);
    assert_eq!(row("asymmetric", "round_prefer_ceil"), [1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 4.0]);
    assert_eq!(row("asymmetric", "round_prefer_floor"), [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]);
    let scales = || Const(floats(&[4], &[1.0, 1.0, 2.0, 3.0]));
    let got = one("Upsample", 9, none(), vec![Data(image(2, 2)), scales()]);
    assert_eq!(got, floats(&[1, 1, 4, 6], &[a, a, b, b].concat()));
    let scales = none().with("scales", vec![1.0, 1.0, 1.0, 2.0]);
    assert_eq!(
        one("Upsample", 7, scales, vec![Data(image(1, 2))]),
        floats(&[1, 1, 1, 4], &[1.0, 1.0, 2.0, 2.0])
    );
    let scales = || Const(floats(&[4], &[1.0, 1.0, 0.6, 0.6]));
    assert_eq!(
        one("Resize", 10, none(), vec![Data(image(2, 4)), scales()]),
        floats(&[1, 1, 1, 2], &[1.0, 3.0])
    );
    let keep = |policy: &str| {
        let attrs =
            mode("nearest", "half_pixel").with("axes", vec![2, 3]).with("keep_aspect_ratio_policy", policy);
        let inputs = vec![Data(image(2, 4)), Absent, Absent, Const(Literal::ints(&[7, 8]))];
        one("Resize", 19, attrs, inputs).shape().to_vec()
    };
    assert_eq!(keep("not_larger"), [1, 1, 4, 8]);
    assert_eq!(keep("not_smaller"), [1, 1, 7, 14]);
}

#[test]
fn linear_resizes() {
    let got = resize(mode("linear", "half_pixel"), image(2, 2), &[2.0, 2.0], &[]);
    let want = [1.0, 1.25, 1.75, 2.0, 1.5, 1.75, 2.25, 2.5, 2.5, 2.75, 3.25, 3.5, 3.0, 3.25, 3.75, 4.0];
    close(&got, &floats(&[1, 1, 4, 4], &want));
    let got = resize(mode("linear", "align_corners"), image(2, 2), &[2.0, 2.0], &[]);
    let third = [3.0, 4.0, 5.0, 6.0, 5.0, 6.0, 7.0, 8.0, 7.0, 8.0, 9.0, 10.0, 9.0, 10.0, 11.0, 12.0];
    close(&got, &floats(&[1, 1, 4, 4], &third.map(|v: f32| v / 3.0)));
    let got = resize(mode("linear", "half_pixel"), image(2, 4), &[0.6, 0.6], &[]);
    close(&got, &floats(&[1, 1, 1, 2], &[2.666_666_5, 4.333_333]));
    let got = resize(mode("linear", "pytorch_half_pixel"), image(4, 4), &[], &[3, 1]);
    close(&got, &floats(&[1, 1, 3, 1], &[1.666_666_6, 7.0, 12.333_333]));
    let got = resize(mode("linear", "half_pixel_symmetric"), image(1, 4), &[1.0, 0.6], &[]);
    close(&got, &floats(&[1, 1, 1, 2], &[1.666_666_7, 3.333_333_3]));
    let got = resize(mode("linear", "half_pixel_symmetric"), image(2, 2), &[2.3, 2.94], &[]);
    close(
        &floats(&[5], &got.to_floats()[..5].iter().map(|v| *v as f32).collect::<Vec<_>>()),
        &floats(&[5], &[1.0, 1.159_864, 1.5, 1.840_136, 2.0]),
    );
    let got = resize(mode("linear", "half_pixel").with("antialias", 1), image(4, 4), &[0.6, 0.6], &[]);
    close(&got, &floats(&[1, 1, 2, 2], &[2.875, 4.5, 9.375, 11.0]));
}

#[test]
fn resizes_of_a_region() {
    let crop = |roi: &[f32], outside: f64| {
        let attrs = mode("linear", "tf_crop_and_resize").with("extrapolation_value", outside);
        let inputs =
            vec![Data(image(4, 4)), Const(floats(&[8], roi)), Absent, Const(Literal::ints(&[1, 1, 3, 3]))];
        one("Resize", 13, attrs, inputs)
    };
    let got = crop(&[0.0, 0.0, 0.4, 0.6, 1.0, 1.0, 0.6, 0.8], 0.0);
    close(&got, &floats(&[1, 1, 3, 3], &[7.6, 7.9, 8.2, 8.8, 9.1, 9.4, 10.0, 10.3, 10.6]));
    let got = crop(&[0.0, 0.0, 0.4, 0.6, 1.0, 1.0, 1.2, 1.7], 10.0);
    close(&got, &floats(&[1, 1, 3, 3], &[7.6, 10.0, 10.0, 12.4, 10.0, 10.0, 10.0, 10.0, 10.0]));
}

#[test]
fn cubic_resizes() {
    let first = |attrs: Attrs| {
        let got = resize(attrs, image(4, 4), &[2.0, 2.0], &[]);
        assert_eq!(got.shape(), [1, 1, 8, 8]);
        floats(&[8], &got.to_floats()[..8].iter().map(|v| *v as f32).collect::<Vec<_>>())
    };
    close(
        &first(mode("cubic", "half_pixel")),
        &floats(
            &[8],
            &[
                0.472_656_25,
                0.769_531_25,
                1.246_093_8,
                1.875,
                2.281_25,
                2.910_156_3,
                3.386_718_8,
                3.683_593_8,
            ],
        ),
    );
    let inside = mode("cubic", "half_pixel").with("cubic_coeff_a", -0.5).with("exclude_outside", 1);
    close(
        &first(inside),
        &floats(
            &[8],
            &[
                0.558_824,
                0.814_942_04,
                1.356_982_5,
                1.897_058_8,
                2.397_058_8,
                2.937_135_2,
                3.479_175_6,
                3.735_294,
            ],
        ),
    );
    let got = resize(mode("cubic", "half_pixel"), image(4, 4), &[0.8, 0.8], &[]);
    let want = [
        1.471_191_4,
        2.781_25,
        4.082_519_5,
        6.711_426,
        8.021_484,
        9.322_754,
        11.916_504,
        13.226_563,
        14.527_832,
    ];
    close(&got, &floats(&[1, 1, 3, 3], &want));
    let got = resize(mode("cubic", "half_pixel").with("antialias", 1), image(4, 4), &[0.6, 0.6], &[]);
    close(&got, &floats(&[1, 1, 2, 2], &[2.518_072_1, 4.285_886_3, 9.589_329, 11.357_142]));
}

#[test]
fn grid_samples() {
    let grid =
        [-10.0, -10.0, -5.0, -5.0, -0.2, -0.2, 10.0, 10.0, 10.0, 10.0, -0.2, -0.2, 5.0, 5.0, 10.0, 10.0];
    let sample = |padding: &str| {
        let inputs = vec![Data(count(&[1, 1, 3, 2], 0.0)), Data(floats(&[1, 2, 4, 2], &grid))];
        one("GridSample", 16, none().with("padding_mode", padding), inputs)
    };
    let want = |v: &[f32]| floats(&[1, 1, 2, 4], v);
    close(&sample("zeros"), &want(&[0.0, 0.0, 1.7, 0.0, 0.0, 1.7, 0.0, 0.0]));
    close(&sample("border"), &want(&[0.0, 0.0, 1.7, 5.0, 5.0, 1.7, 5.0, 5.0]));
    close(&sample("reflection"), &want(&[2.5, 0.0, 1.7, 2.5, 2.5, 1.7, 5.0, 2.5]));
}
