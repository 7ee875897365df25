//! What runs in a pool runs in every larger one: the planner's greed is no reason to refuse a step.

use compiler::train::TrainOptions;
use runtime::Session;
use tests::{
    bodies::{graph, ints, model, tensor, weight},
    reference::adamw,
    written::{self, Array, least, session_as, state, step},
};

/// Words by a table that also scores them, a branch that data choose, and a loop as long as they say.
fn words() -> Vec<u8> {
    let then = graph("", "a1 = MatMul(rows, w1)\n a2 = Tanh(a1)\n a = MatMul(a2, wm)", &[], "a f64[6, 7, 8]");
    let other = graph(
        "",
        "b1 = MatMul(rows, w1)
         b2 = Sigmoid(b1)
         b3 = MatMul(b2, wb)
         b = Add(b3, bias)",
        &[],
        "b f64[6, 7, 8]",
    );
    let body = graph(
        "it i64[], on bool[], before f64[6, 7, 8]",
        "more = Identity(on)
         u = MatMul(before, w1)
         v = Tanh(u)
         v2 = MatMul(v, wl)
         v3 = Sigmoid(v2)
         after = Add(v3, before)",
        &[],
        "more bool[], after f64[6, 7, 8]",
    );
    let text = "e = Gather(table, ids) axis=0
        positive = Greater(scale, zero)
        mask = Cast(positive) to=11
        em = MatMul(e, wm)
        rows = Mul(em, mask)
        c = Greater(k, none)
        y = If(c) then_branch=@then else_branch=@else
        h = Loop(times, yes, y) body=@body
        hv = Mul(h, scale)
        hm = ReduceMean(hv, one) keepdims=0
        across = Transpose(table) perm=[1,0]
        s = MatMul(hm, across)
        soft = Softmax(s) axis=1
        lg = Log(soft)
        column = Unsqueeze(classes, one)
        picked = GatherElements(lg, column) axis=1
        negative = Neg(picked)
        loss = ReduceMean(negative) keepdims=0";
    let bodies = [("then", &then), ("else", &other), ("body", &body)];
    let main = graph("ids i64[6, 7], classes i64[6], k i64[], times i64[]", text, &bodies, "loss f64[]");
    let square = |name, seed| weight(name, &[8, 8], seed);
    let initializers = vec![
        weight("table", &[20, 8], 1),
        square("wm", 2),
        square("w1", 3),
        square("wb", 4),
        square("wl", 5),
        weight("bias", &[8], 6),
        weight("scale", &[8], 7),
        ints("none", &[], &[0]),
        ints("one", &[1], &[1]),
        tensor("zero", 11, &[], 0f64.to_le_bytes().to_vec()),
        tensor("yes", 9, &[], vec![1]),
    ];
    onnx_models::to_bytes(&model(main, initializers)).unwrap()
}

fn batches() -> Vec<Vec<Array>> {
    let batch = |(i, (k, times)): (i64, (i64, i64))| -> Vec<Array> {
        let pick = |n: i64, seed: i64| (0..n).map(|j| (j * 7 + seed * 5 + j * j) % 20).collect::<Vec<_>>();
        vec![
            ("ids", vec![6, 7], written::ints(&pick(42, i))),
            ("classes", vec![6], written::ints(&pick(6, i + 3))),
            ("k", vec![], written::ints(&[k])),
            ("times", vec![], written::ints(&[times])),
        ]
    };
    (1..).zip([(1, 3), (-1, 4), (1, 0), (-1, 6), (-1, 2), (1, 5)]).map(batch).collect()
}

fn open(model: &[u8], pool: u64) -> Session {
    session_as(model, pool, |t: &mut TrainOptions| (t.optimizer, t.clip_norm) = (adamw(), Some(0.1)))
}

/// The losses' bits and the state.
type Trained = (Vec<u64>, Vec<Vec<u8>>);

/// All steps, or the first one that is refused.
fn train(model: &[u8], pool: u64) -> Result<Trained, (usize, String)> {
    let mut s = open(model, pool);
    let one = |(i, data): (usize, &Vec<Array>)| step(&mut s, data, i as i64).map(|r| r.0).map_err(|e| (i, e));
    let losses: Vec<u64> = (1..).zip(&batches()).map(one).collect::<Result<_, _>>()?;
    Ok((losses, state(&s)))
}

#[test]
fn what_runs_in_a_pool_runs_in_every_larger_one() {
    let model = words();
    let wanted = train(&model, 1 << 22).unwrap();
    let (mut ran, mut refused) = (None, Vec::new());
    for pool in (12_288..=28_672).step_by(256) {
        match train(&model, pool) {
            Ok(got) => {
                assert!(got == wanted, "{pool}: other bits");
                ran = ran.or(Some(pool));
            }
            Err((at, refusal)) => {
                assert!(ran.is_none(), "{pool} is refused at step {at}, {ran:?} runs: {refusal}");
                refused.push((pool, least(&refusal).unwrap_or_else(|| panic!("{refusal}"))));
            }
        }
    }
    let ran = ran.expect("a pool that runs");
    println!("{ran} runs; pools and what their refusals name: {refused:?}");
    // What is named is for one of the steps.
    let rung = ran + ran / 16;
    assert!(refused.len() > 4 && refused.iter().all(|(pool, least)| pool < least && *least <= rung));
}
