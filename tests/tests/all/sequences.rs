//! Sequences and optional values are of the walk alone: a model with them trains as the one that says the same without them.

use onnx_protobuf as pb;
use pb::{GraphProto, TensorProto};
use tests::{
    bodies::{graph, ints, model, tensor, weight},
    written::{self, Array, session_of, state, step},
};

/// Losses and the state after a step of each batch.
fn trained(main: &GraphProto, more: Vec<TensorProto>, batches: &[Vec<Array>]) -> (Vec<u64>, Vec<Vec<u8>>) {
    let weights = [weight("w", &[4, 4], 1), weight("v", &[4, 4], 2)];
    let model = model(main.clone(), weights.into_iter().chain(more).collect());
    let mut s = session_of(&onnx_models::to_bytes(&model).unwrap(), 1 << 20);
    let before = state(&s);
    let losses = (1..).zip(batches).map(|(i, data)| step(&mut s, data, i).unwrap().0).collect();
    assert!(state(&s) != before, "nothing was trained");
    (losses, state(&s))
}

fn rows(n: u64, seed: i64) -> Array {
    let x = weight("x", &[n as i64, 4], seed as u64);
    ("x", vec![n, 4], x.raw_data)
}

/// The type that an absent value would have is the only way to write one.
fn say_type(g: &mut GraphProto, output: &str, shape: &[&str]) {
    let mut ty = pb::TypeProto::new();
    let tensor = pb::type_proto::Tensor { elem_type: 11, ..Default::default() };
    ty.value = Some(pb::type_proto::Value::TensorType(tensor));
    let dims = shape.iter().map(|d| pb::tensor_shape_proto::Dimension {
        value: Some(pb::tensor_shape_proto::dimension::Value::DimParam((*d).to_owned())),
        ..Default::default()
    });
    if let Some(pb::type_proto::Value::TensorType(t)) = &mut ty.value {
        t.shape.mut_or_insert_default().dim = dims.collect();
    }
    let node = g.node.iter_mut().find(|n| n.output[0] == output).unwrap();
    node.attribute.push(pb::AttributeProto {
        name: "type".to_owned(),
        tp: Some(ty).into(),
        type_: pb::attribute_proto::AttributeType::TYPE_PROTO.into(),
        ..Default::default()
    });
}

#[test]
fn an_absent_value_has_no_element() {
    let got = graph("", "inner = OptionalGetElement(some)\n t = Tanh(inner)", &[], "t f64[n, 4]");
    let kept = graph("", "same = Identity(y)", &[], "same f64[n, 4]");
    let absent = graph("", "lost = OptionalGetElement(none)\n a = Neg(lost)", &[], "a f64[n, 4]");
    let square = graph("", "b = Mul(z, z)", &[], "b f64[n, 4]");
    // Which one comes out data decide, whether there is one follows from that.
    let full = graph("", "fa = Optional(z2)", &[], "fa f64[n, 4]");
    let mut empty = graph("", "fb = Optional()", &[], "fb f64[n, 4]");
    say_type(&mut empty, "fb", &["n", "m"]);
    let mine = graph("", "fc = OptionalGetElement(found)\n c = Sin(fc)", &[], "c f64[n, 4]");
    let other = graph("", "d = MatMul(z2, v)", &[], "d f64[n, 4]");
    let mut main = graph(
        "x f64[n, 4]",
        "y = MatMul(x, w)
         some = Optional(y)
         has = OptionalHasElement(some)
         z = If(has) then_branch=@got else_branch=@kept
         none = Optional()
         has2 = OptionalHasElement(none)
         z2 = If(has2) then_branch=@absent else_branch=@square
         sum = ReduceSum(x) keepdims=0
         positive = Greater(sum, zero)
         found = If(positive) then_branch=@full else_branch=@empty
         has3 = OptionalHasElement(found)
         z3 = If(has3) then_branch=@mine else_branch=@other
         loss = ReduceMean(z3) keepdims=0",
        &[
            ("got", &got),
            ("kept", &kept),
            ("absent", &absent),
            ("square", &square),
            ("full", &full),
            ("empty", &empty),
            ("mine", &mine),
            ("other", &other),
        ],
        "loss f64[]",
    );
    say_type(&mut main, "none", &["n", "m"]);
    let mine = graph("", "c = Sin(z2)", &[], "c f64[n, 4]");
    let plain = graph(
        "x f64[n, 4]",
        "y = MatMul(x, w)
         z = Tanh(y)
         z2 = Mul(z, z)
         sum = ReduceSum(x) keepdims=0
         positive = Greater(sum, zero)
         z3 = If(positive) then_branch=@mine else_branch=@other
         loss = ReduceMean(z3) keepdims=0",
        &[("mine", &mine), ("other", &other)],
        "loss f64[]",
    );
    let shifted = |by: f64, seed| -> Vec<Array> {
        let (name, shape, bytes) = rows(5, seed);
        let x = bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap()) + by);
        vec![(name, shape, x.flat_map(f64::to_le_bytes).collect())]
    };
    let batches = [shifted(2.0, 1), shifted(-2.0, 2), shifted(2.0, 3)];
    let zero = || vec![tensor("zero", 11, &[], 0f64.to_le_bytes().to_vec())];
    assert!(trained(&main, zero(), &batches) == trained(&plain, zero(), &batches));
}

/// A body over two sequences, a tensor that is the same at each position, and a weight from outside; it gives two sequences.
#[test]
fn a_body_is_mapped_over_sequences() {
    let body = graph(
        "e f64[a, 4], f f64[a, 4], factor f64[]",
        "m = MatMul(e, v)
         t = Tanh(m)
         p = Mul(t, f)
         q = Mul(p, factor)",
        &[],
        "q f64[a, 4], t f64[a, 4]",
    );
    let mapped = graph(
        "x f64[n, 4], parts i64[k]",
        "y = MatMul(x, w)
         factor = ReduceMean(y) keepdims=0
         ys = SplitToSequence(y, parts) axis=0
         xs = SplitToSequence(x, parts) axis=0
         qs, ts = SequenceMap(ys, xs, factor) body=@body
         q = ConcatFromSequence(qs) axis=0
         last = SequenceAt(ts, end)
         sum = ReduceSum(last) keepdims=0
         mean = ReduceMean(q) keepdims=0
         loss = Add(mean, sum)",
        &[("body", &body)],
        "loss f64[]",
    );
    // As ONNX says it in other operators: a loop over positions.
    let turn = graph(
        "i i64[], on bool[], before f64[n, 4], rest f64[n, 4]",
        "more = Identity(on)
         e = SequenceAt(ys, i)
         f = SequenceAt(xs, i)
         m = MatMul(e, v)
         t = Tanh(m)
         p = Mul(t, f)
         q1 = Mul(p, factor)
         after = SequenceInsert(before, q1)
         tail = SequenceInsert(rest, t)",
        &[],
        "more bool[], after f64[n, 4], tail f64[n, 4]",
    );
    let looped = graph(
        "x f64[n, 4], parts i64[k]",
        "y = MatMul(x, w)
         factor = ReduceMean(y) keepdims=0
         ys = SplitToSequence(y, parts) axis=0
         xs = SplitToSequence(x, parts) axis=0
         length = SequenceLength(ys)
         none = SequenceEmpty() dtype=11
         qs, ts = Loop(length, yes, none, none) body=@turn
         q = ConcatFromSequence(qs) axis=0
         last = SequenceAt(ts, end)
         sum = ReduceSum(last) keepdims=0
         mean = ReduceMean(q) keepdims=0
         loss = Add(mean, sum)",
        &[("turn", &turn)],
        "loss f64[]",
    );
    let batch = |parts: &[i64], seed| -> Vec<Array> {
        let n = parts.iter().sum::<i64>() as u64;
        vec![rows(n, seed), ("parts", vec![parts.len() as u64], written::ints(parts))]
    };
    let batches = [batch(&[2, 3, 1], 1), batch(&[4], 2), batch(&[1, 1, 1, 3], 3), batch(&[2, 3, 1], 4)];
    let more = || vec![ints("end", &[], &[-1]), tensor("yes", 9, &[], vec![1])];
    assert!(trained(&mapped, more(), &batches) == trained(&looped, more(), &batches));
    // Sequences of different lengths.
    let mut wrong = mapped;
    let split = wrong.node.iter_mut().find(|n| n.output[0] == "xs").unwrap();
    split.input.truncate(1);
    let model =
        model(wrong, [weight("w", &[4, 4], 1), weight("v", &[4, 4], 2)].into_iter().chain(more()).collect());
    let mut s = session_of(&onnx_models::to_bytes(&model).unwrap(), 1 << 20);
    let refusal = step(&mut s, &batches[0], 1).unwrap_err();
    assert!(refusal.contains("SequenceMap") && refusal.contains("different lengths"), "{refusal}");
}
