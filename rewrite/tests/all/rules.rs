//! Every rule: it fires on its pattern, and the results stay; to the bit where it is exact.

use crate::support::{self, Case, check, input, number};
use graph::{Attrs, Literal, ValueId};
use ops::Builder;
use rewrite::{Effect, Level, RULES, Stage};

fn call(b: &mut Builder<'_>, op: &str, args: &[ValueId]) -> ValueId {
    b.call(op, args).unwrap()
}

fn mean(b: &mut Builder<'_>, x: ValueId, axis: i64) -> ValueId {
    b.op("ReduceMean", Attrs::new().with("axes", vec![axis]).with("keepdims", true), &[x]).unwrap()
}

/// x normalised by its deviation, in one of the ways to write it.
fn normalised(b: &mut Builder<'_>, x: ValueId, centred: bool, way: u32) -> ValueId {
    let axis = b.ty(x).shape.rank() as i64 - 1;
    let d = if centred {
        let m = mean(b, x, axis);
        call(b, "Sub", &[x, m])
    } else {
        x
    };
    let two = number(b, 2.0);
    let square = if way == 0 { call(b, "Pow", &[d, two]) } else { call(b, "Mul", &[d, d]) };
    let (variance, eps) = (mean(b, square, axis), number(b, 1e-5));
    let sum = call(b, "Add", &[variance, eps]);
    let root = call(b, "Sqrt", &[sum]);
    match way {
        0 => call(b, "Div", &[d, root]),
        1 => {
            let inverse = call(b, "Reciprocal", &[root]);
            call(b, "Mul", &[d, inverse])
        }
        _ => {
            let one = number(b, 1.0);
            let inverse = call(b, "Div", &[one, root]);
            call(b, "Mul", &[inverse, d])
        }
    }
}

fn layer_norm(b: &mut Builder<'_>, way: u32) -> Vec<ValueId> {
    let (x, scale, bias) = (input(b, &[3, 7]), input(b, &[7]), input(b, &[7]));
    let n = normalised(b, x, true, way);
    let y = if way == 0 { call(b, "Mul", &[n, scale]) } else { call(b, "Mul", &[scale, n]) };
    vec![call(b, "Add", &[y, bias])]
}

fn rms_norm(b: &mut Builder<'_>, way: u32) -> Vec<ValueId> {
    let (x, scale) = (input(b, &[2, 3, 5]), input(b, &[5]));
    let n = normalised(b, x, false, way);
    vec![call(b, "Mul", &[scale, n])]
}

/// x/2·(1 + erf(x/√2)) in one of the ways to write it.
fn gelu(b: &mut Builder<'_>, way: u32) -> Vec<ValueId> {
    let x = input(b, &[4, 9]);
    let (root, inverse) = (number(b, 2f64.sqrt()), number(b, 0.5f64.sqrt()));
    let u = if way == 0 { call(b, "Div", &[x, root]) } else { call(b, "Mul", &[inverse, x]) };
    let (erf, one, half) = (call(b, "Erf", &[u]), number(b, 1.0), number(b, 0.5));
    let gate = if way == 0 { call(b, "Add", &[erf, one]) } else { call(b, "Add", &[one, erf]) };
    vec![match way {
        0 => {
            let y = call(b, "Mul", &[x, gate]);
            call(b, "Mul", &[y, half])
        }
        1 => {
            let y = call(b, "Mul", &[half, x]);
            call(b, "Mul", &[y, gate])
        }
        2 => {
            let y = call(b, "Mul", &[half, gate]);
            call(b, "Mul", &[x, y])
        }
        _ => {
            let (y, two) = (call(b, "Mul", &[x, gate]), number(b, 2.0));
            call(b, "Div", &[y, two])
        }
    }]
}

fn gelu_tanh(b: &mut Builder<'_>, way: u32) -> Vec<ValueId> {
    let x = input(b, &[4, 9]);
    let (root, cube) = (number(b, 0.797_884_560_802_865_4), number(b, 0.044_715));
    let third = if way == 0 {
        let three = number(b, 3.0);
        call(b, "Pow", &[x, three])
    } else {
        let square = call(b, "Mul", &[x, x]);
        call(b, "Mul", &[square, x])
    };
    let c = call(b, "Mul", &[third, cube]);
    let sum = call(b, "Add", &[x, c]);
    let u = call(b, "Mul", &[sum, root]);
    let (tanh, one, half) = (call(b, "Tanh", &[u]), number(b, 1.0), number(b, 0.5));
    let gate = call(b, "Add", &[tanh, one]);
    let y = call(b, "Mul", &[x, half]);
    vec![call(b, "Mul", &[y, gate])]
}

/// GELU with its half inside of the sum, or its polynomial multiplied out.
fn gelu_inside(b: &mut Builder<'_>, way: u32) -> Vec<ValueId> {
    let x = input(b, &[4, 9]);
    let [half, one, root, cube] = [0.5, 1.0, 0.797_884_560_802_865_4, 0.044_715].map(|n| number(b, n));
    let gate = |b: &mut Builder<'_>, f| {
        let f = call(b, "Mul", &[f, half]);
        call(b, "Add", &[f, half])
    };
    if way == 0 {
        let inverse = number(b, 0.5f64.sqrt());
        let u = call(b, "Mul", &[x, inverse]);
        let erf = call(b, "Erf", &[u]);
        let g = gate(b, erf);
        return vec![call(b, "Mul", &[x, g])];
    }
    let cx = call(b, "Mul", &[x, cube]);
    let cxx = call(b, "Mul", &[cx, x]);
    let u = match way {
        // √(2/π)·(x + ((c·x)·x)·x)
        1 => {
            let cxxx = call(b, "Mul", &[cxx, x]);
            let sum = call(b, "Add", &[x, cxxx]);
            call(b, "Mul", &[sum, root])
        }
        // (√(2/π)·x)·(1 + (c·x)·x)
        2 => {
            let (sum, rx) = (call(b, "Add", &[cxx, one]), call(b, "Mul", &[x, root]));
            call(b, "Mul", &[rx, sum])
        }
        // √(2/π)·x + (√(2/π)·c)·x²·x
        _ => {
            let (two, both) = (number(b, 2.0), number(b, 0.797_884_560_802_865_4 * 0.044_715));
            let square = call(b, "Pow", &[x, two]);
            let third = call(b, "Mul", &[square, x]);
            let (rx, third) = (call(b, "Mul", &[root, x]), call(b, "Mul", &[third, both]));
            call(b, "Add", &[third, rx])
        }
    };
    let tanh = call(b, "Tanh", &[u]);
    let g = gate(b, tanh);
    vec![call(b, "Mul", &[g, x])]
}

/// Probabilities, and 0 where they are NaN.
fn guarded(b: &mut Builder<'_>, p: ValueId) -> ValueId {
    let (nan, zero) = (call(b, "IsNaN", &[p]), number(b, 0.0));
    call(b, "Where", &[nan, zero, p])
}

/// Attention with its scores turned, masked twice, or scaled or guarded after their softmax.
fn attention_otherwise(b: &mut Builder<'_>, way: u32) -> Vec<ValueId> {
    let softmax = |b: &mut Builder<'_>, s, axis: i64| b.op("Softmax", Attrs::new().with("axis", axis), &[s]);
    let [q, k, v] = [31, 33, 33].map(|rows| input(b, &[2, rows, 8]));
    let (turned, scale) = (way < 4, number(b, 0.4));
    let s = if turned { b.matmul(k, q, false, true) } else { b.matmul(q, k, false, true) };
    let mut s = call(b, "Mul", &[s.unwrap(), scale]);
    let masked = |b: &mut Builder<'_>, s, shape: &[usize]| {
        let (m, most) = (input(b, shape), number(b, 0.5));
        let (masked, least) = (call(b, "Less", &[most, m]), number(b, -1e9));
        call(b, "Where", &[masked, least, s])
    };
    // Queries lie along the columns of turned scores.
    match way {
        1 => {
            let m = input(b, &[31]);
            s = call(b, "Add", &[s, m]);
        }
        2 => {
            let m = input(b, &[2, 33, 1]);
            s = call(b, "Add", &[m, s]);
        }
        3 => s = masked(b, s, &[33, 31]),
        4 => {
            let (m, n) = (input(b, &[2, 1, 33]), input(b, &[31, 33]));
            s = call(b, "Add", &[s, m]);
            s = call(b, "Add", &[n, s]);
        }
        5 => {
            s = masked(b, s, &[31, 33]);
            s = masked(b, s, &[2, 1, 33]);
        }
        // Of some rows nothing is left.
        7 => {
            let (m, most) = (input(b, &[31, 1]), number(b, 0.5));
            let less = call(b, "Less", &[most, m]);
            let [zero, none] = [0.0, f64::NEG_INFINITY].map(|n| number(b, n));
            let m = call(b, "Where", &[less, none, zero]);
            s = call(b, "Add", &[s, m]);
        }
        8 => {
            let (m, most, none) = (input(b, &[2, 31, 1]), number(b, 0.5), number(b, f64::NEG_INFINITY));
            let less = call(b, "Less", &[m, most]);
            s = call(b, "Where", &[less, s, none]);
        }
        _ => {}
    }
    let p = match way {
        0 | 1 => {
            let p = softmax(b, s, 1).unwrap();
            b.transpose(p, &[0, 2, 1]).unwrap()
        }
        2 | 3 => {
            let s = b.transpose(s, &[0, 2, 1]).unwrap();
            softmax(b, s, 2).unwrap()
        }
        _ => softmax(b, s, 2).unwrap(),
    };
    let p = match way {
        6 => call(b, "Mul", &[p, scale]),
        7 | 8 => guarded(b, p),
        _ => p,
    };
    vec![b.matmul(p, v, false, false).unwrap()]
}

/// Attention in one of the ways to write it.
fn attention(b: &mut Builder<'_>, way: u32) -> Vec<ValueId> {
    let perm = |b: &mut Builder<'_>, x, p: &[i64]| b.transpose(x, p).unwrap();
    let product = |b: &mut Builder<'_>, x, y, t| b.matmul(x, y, false, t).unwrap();
    let scale = number(b, 0.5);
    let (q, k, v, scores) = match way {
        // Scale and mask after the product, everything transposed as exporters do.
        0 => {
            let [q, k, v] = [0; 3].map(|_| input(b, &[2, 33, 3, 8]));
            let (q, v) = (perm(b, q, &[0, 2, 1, 3]), perm(b, v, &[0, 2, 1, 3]));
            let k = perm(b, k, &[0, 2, 3, 1]);
            let s = product(b, q, k, false);
            let s = call(b, "Mul", &[s, scale]);
            let mask = input(b, &[2, 1, 33, 33]);
            (q, k, v, call(b, "Add", &[s, mask]))
        }
        // The scale on both sides, no mask.
        1 => {
            let [q, k, v] = [0; 3].map(|_| input(b, &[3, 33, 8]));
            let k = perm(b, k, &[0, 2, 1]);
            let (q, k) = (call(b, "Mul", &[q, scale]), call(b, "Mul", &[k, scale]));
            (q, k, v, product(b, q, k, false))
        }
        // Masked scores replaced: what is kept is told, or what is not.
        _ => {
            let [q, k, v] = [0; 3].map(|_| input(b, &[2, 33, 8]));
            let two = number(b, 2.0);
            let s = product(b, q, k, true);
            let s = call(b, "Div", &[s, two]);
            let (m, zero) = (input(b, &[33, 33]), number(b, 0.9));
            let (keep, least) = (call(b, "Less", &[m, zero]), number(b, f64::from(f32::MIN)));
            if way == 2 {
                (q, k, v, call(b, "Where", &[keep, s, least]))
            } else {
                let least = if way == 3 { least } else { number(b, f64::NEG_INFINITY) };
                let masked = call(b, "Not", &[keep]);
                (q, k, v, call(b, "Where", &[masked, least, s]))
            }
        }
    };
    let _ = (q, k);
    let axis = b.ty(scores).shape.rank() as i64 - 1;
    let p = b.op("Softmax", Attrs::new().with("axis", axis), &[scores]).unwrap();
    let y = product(b, p, v, false);
    if way == 0 { vec![perm(b, y, &[0, 2, 1, 3])] } else { vec![y] }
}

fn labels(b: &mut Builder<'_>, n: usize, classes: i64) -> ValueId {
    let values: Vec<i64> = (0..n as i64).map(|i| (i * 5) % classes).collect();
    let l = Literal::ints(&values);
    b.constant(l)
}

/// A linear layer before cross entropy.
fn head(b: &mut Builder<'_>, way: u32) -> Vec<ValueId> {
    let (x, w) = (input(b, &[2, 3, 8]), input(b, &[300, 8]));
    let w = b.transpose(w, &[1, 0]).unwrap();
    let y = b.matmul(x, w, false, false).unwrap();
    let y = if way == 0 {
        y
    } else {
        let bias = input(b, &[300]);
        call(b, "Add", &[bias, y])
    };
    let y = b.reshape(y, &graph::Shape::from(&[6usize, 300][..])).unwrap();
    let t = labels(b, 6, 300);
    vec![b.op("SoftmaxCrossEntropyLoss", Attrs::new().with("reduction", "mean"), &[y, t]).unwrap()]
}

fn nll(b: &mut Builder<'_>, _: u32) -> Vec<ValueId> {
    let x = input(b, &[64, 50]);
    let p = b.op("LogSoftmax", Attrs::new().with("axis", 1), &[x]).unwrap();
    let t = labels(b, 64, 50);
    vec![b.op("NegativeLogLikelihoodLoss", Attrs::new().with("reduction", "sum"), &[p, t]).unwrap()]
}

fn cases() -> Vec<Case> {
    let c = |rule, way, build: fn(&mut Builder<'_>, u32) -> Vec<ValueId>| Case { rule, way, build };
    vec![
        c("common-subexpressions", 0, |b, _| {
            let x = input(b, &[3, 4]);
            let (a, c) = (call(b, "Exp", &[x]), call(b, "Exp", &[x]));
            vec![call(b, "Mul", &[a, c])]
        }),
        c("cancel-transposes", 0, |b, _| {
            let x = input(b, &[2, 3, 4]);
            let y = b.transpose(x, &[2, 0, 1]).unwrap();
            let y = b.transpose(y, &[0, 2, 1]).unwrap();
            vec![call(b, "Exp", &[y])]
        }),
        c("cancel-transposes", 1, |b, _| {
            let x = input(b, &[2, 3, 4]);
            let y = b.transpose(x, &[2, 0, 1]).unwrap();
            let y = b.transpose(y, &[1, 2, 0]).unwrap();
            vec![call(b, "Exp", &[y])]
        }),
        c("merge-reshapes", 0, |b, _| {
            let x = input(b, &[2, 3, 4]);
            let y = b.reshape(x, &graph::Shape::from(&[24usize][..])).unwrap();
            let y = b.reshape(y, &graph::Shape::from(&[4usize, 6][..])).unwrap();
            vec![call(b, "Exp", &[y])]
        }),
        c("idle-movement", 0, |b, _| {
            let x = input(b, &[2, 3]);
            let y = b.op("Expand", Attrs::new().with("shape", vec![2, 3]), &[x]).unwrap();
            vec![call(b, "Exp", &[y])]
        }),
        c("unit-scale", 0, |b, _| {
            let (x, one) = (input(b, &[2, 3]), number(b, 1.0));
            let y = call(b, "Mul", &[one, x]);
            let y = call(b, "Div", &[y, one]);
            vec![call(b, "Exp", &[y])]
        }),
        c("double-negation", 0, |b, _| {
            let x = input(b, &[2, 3]);
            let y = call(b, "Neg", &[x]);
            let y = call(b, "Neg", &[y]);
            vec![call(b, "Exp", &[y])]
        }),
        c("merge-scales", 0, |b, _| {
            let (x, p, q) = (input(b, &[2, 3]), number(b, 0.3), number(b, 0.7));
            let y = call(b, "Mul", &[x, p]);
            vec![call(b, "Div", &[y, q])]
        }),
        c("scale-into-product", 0, |b, _| {
            let (x, w, p) = (input(b, &[9, 3]), input(b, &[3, 9]), number(b, 0.3));
            let y = b.matmul(x, w, false, false).unwrap();
            vec![call(b, "Mul", &[y, p])]
        }),
        c("transpose-into-product", 0, |b, _| {
            let (x, w) = (input(b, &[2, 5, 30]), input(b, &[40, 30]));
            let w = b.transpose(w, &[1, 0]).unwrap();
            vec![b.matmul(x, w, false, false).unwrap()]
        }),
        c("bias-into-product", 0, |b, _| {
            let (x, w, bias) = (input(b, &[2, 5, 3]), input(b, &[3, 4]), input(b, &[4]));
            let y = b.matmul(x, w, false, false).unwrap();
            vec![call(b, "Add", &[bias, y])]
        }),
        c("root-from-output", 0, |b, _| {
            let (x, half) = (input(b, &[2, 3]), number(b, 0.5));
            let x = call(b, "Exp", &[x]);
            vec![call(b, "Pow", &[x, half])]
        }),
        c("reciprocal-from-output", 0, |b, _| {
            let (x, one) = (input(b, &[2, 3]), number(b, 1.0));
            let x = call(b, "Exp", &[x]);
            vec![call(b, "Div", &[one, x])]
        }),
        c("relu-from-output", 0, |b, _| {
            let x = input(b, &[2, 3]);
            vec![b.op("Clip", Attrs::new().with("min", 0.0), &[x]).unwrap()]
        }),
        c("relu-from-output", 1, |b, _| {
            let x = input(b, &[2, 3]);
            let attrs = Attrs::new().with("min", 0.0).with("max", f64::INFINITY);
            vec![b.op("Clip", attrs, &[x]).unwrap()]
        }),
        c("log-softmax-from-output", 0, |b, _| {
            let x = input(b, &[2, 3]);
            let p = b.op("Softmax", Attrs::new().with("axis", 1), &[x]).unwrap();
            vec![call(b, "Log", &[p])]
        }),
        c("gelu", 0, gelu),
        c("gelu", 1, gelu),
        c("gelu", 2, gelu),
        c("gelu", 3, gelu),
        c("gelu", 0, gelu_tanh),
        c("gelu", 1, gelu_tanh),
        c("gelu", 0, gelu_inside),
        c("gelu", 1, gelu_inside),
        c("gelu", 2, gelu_inside),
        c("gelu", 3, gelu_inside),
        c("swish", 0, |b, _| {
            let (x, alpha) = (input(b, &[2, 3]), number(b, 1.702));
            let u = call(b, "Mul", &[x, alpha]);
            let gate = call(b, "Sigmoid", &[u]);
            vec![call(b, "Mul", &[x, gate])]
        }),
        c("layer-normalization", 0, layer_norm),
        c("layer-normalization", 1, layer_norm),
        c("layer-normalization", 2, layer_norm),
        c("rms-normalization", 0, rms_norm),
        c("rms-normalization", 1, rms_norm),
        c("rms-normalization", 2, rms_norm),
        c("attention", 1, attention),
        c("attention", 2, attention),
        c("attention", 3, attention),
        c("attention", 4, attention),
        c("attention", 0, attention_otherwise),
        c("attention", 1, attention_otherwise),
        c("attention", 2, attention_otherwise),
        c("attention", 3, attention_otherwise),
        c("attention", 4, attention_otherwise),
        c("attention", 5, attention_otherwise),
        c("attention", 6, attention_otherwise),
        c("attention", 7, attention_otherwise),
        c("attention", 8, attention_otherwise),
        c("attention-of-transposed", 0, attention),
        c("attention-transposed", 0, attention),
        c("nll-of-log-softmax", 0, nll),
        c("linear-cross-entropy", 0, head),
        c("linear-cross-entropy", 1, head),
    ]
}

#[test]
fn every_rule_fires_and_keeps_the_results() {
    let cases = cases();
    for rule in RULES {
        assert!(cases.iter().any(|c| c.rule == rule.name), "{} has no case", rule.name);
    }
    for case in &cases {
        let rule = RULES.iter().find(|r| r.name == case.rule);
        let exact = rule.is_none_or(|r| r.effect == Effect::Exact);
        let stage = rule.and_then(|r| r.stage).unwrap_or(Stage::After);
        let level = if exact { Level::Exact } else { Level::Memory };
        let fired = check(case, level, stage);
        assert!(
            fired.contains(&case.rule.to_owned()),
            "{} ({}) did not fire, but {fired:?}",
            case.rule,
            case.way
        );
    }
}

/// At every level and stage the results stay what they are, whatever fires.
#[test]
fn levels_keep_the_results() {
    for case in &cases() {
        for level in [Level::Exact, Level::Fast, Level::Memory] {
            for stage in [Stage::Before, Stage::After] {
                let fired = check(case, level, stage);
                let exact = |f: &String| RULES.iter().all(|r| r.name != f || r.effect == Effect::Exact);
                assert!(level != Level::Exact || fired.iter().all(exact), "{fired:?}");
            }
        }
    }
}

/// What keeps a rule from firing is said.
#[test]
fn failed_conditions_are_told() {
    let rejected = |build: fn(&mut Builder<'_>, u32) -> Vec<ValueId>, rule: &str| -> String {
        let report = support::report(&Case { rule: "", way: 0, build }, Level::Memory, Stage::Before);
        assert!(report.fired.iter().all(|f| f.rule != rule), "{report}");
        let m = report.missed.iter().find(|m| m.rule == rule).unwrap_or_else(|| panic!("{report}"));
        assert!(!m.at.is_empty());
        m.why.clone()
    };
    let why = rejected(
        |b, _| {
            let [q, k, v] = [0; 3].map(|_| input(b, &[5, 4]));
            let (x, zero, few) = (input(b, &[5, 5]), number(b, 0.0), number(b, -100.0));
            let scores = b.matmul(q, k, false, true).unwrap();
            let keep = call(b, "Less", &[x, zero]);
            let scores = call(b, "Where", &[keep, scores, few]);
            let p = b.op("Softmax", Attrs::new().with("axis", 1), &[scores]).unwrap();
            vec![b.matmul(p, v, false, false).unwrap()]
        },
        "attention",
    );
    assert!(why.contains("minus infinity"), "{why}");
    let why = rejected(
        |b, _| {
            let (x, zero) = (input(b, &[2, 3]), number(b, 0.0));
            vec![call(b, "Max", &[x, zero])]
        },
        "relu-from-output",
    );
    assert!(why.contains("half of the gradient"), "{why}");
    let why = rejected(
        |b, _| {
            let (x, w) = (input(b, &[6, 4]), input(b, &[4, 5]));
            let y = b.matmul(x, w, false, false).unwrap();
            let t = labels(b, 6, 5);
            vec![b.op("SoftmaxCrossEntropyLoss", Attrs::new().with("reduction", "none"), &[y, t]).unwrap()]
        },
        "linear-cross-entropy",
    );
    assert!(why.contains("for each row"), "{why}");
    let why = rejected(
        |b, _| {
            let (x, scale) = (input(b, &[3, 5]), input(b, &[3, 1]));
            let n = normalised(b, x, false, 0);
            vec![call(b, "Mul", &[n, scale])]
        },
        "rms-normalization",
    );
    assert!(why.contains("scale"), "{why}");
}

/// Attention on two inputs, of which `between` makes scores, and what stands behind the softmax.
fn almost_attention(
    b: &mut Builder<'_>,
    between: fn(&mut Builder<'_>, ValueId) -> ValueId,
    behind: fn(&mut Builder<'_>, ValueId) -> ValueId,
) -> Vec<ValueId> {
    let [q, k, v] = [0; 3].map(|_| input(b, &[5, 4]));
    let s = b.matmul(q, k, false, true).unwrap();
    let s = between(b, s);
    let p = b.op("Softmax", Attrs::new().with("axis", 1), &[s]).unwrap();
    let p = behind(b, p);
    vec![b.matmul(p, v, false, false).unwrap()]
}

fn masked(b: &mut Builder<'_>, s: ValueId, fill: f64) -> ValueId {
    let (m, most) = (input(b, &[5, 5]), number(b, 0.5));
    let (masked, fill) = (call(b, "Less", &[most, m]), number(b, fill));
    call(b, "Where", &[masked, fill, s])
}

fn added(b: &mut Builder<'_>, s: ValueId) -> ValueId {
    let m = input(b, &[5, 5]);
    call(b, "Add", &[s, m])
}

fn times(b: &mut Builder<'_>, x: ValueId, by: f64) -> ValueId {
    let by = b.scalar(b.ty(x).dtype, by);
    call(b, "Mul", &[x, by])
}

fn cast(b: &mut Builder<'_>, x: ValueId, to: graph::DType) -> ValueId {
    b.cast(x, to).unwrap()
}

/// x multiplied by two numbers.
fn scaled_twice(b: &mut Builder<'_>, dtype: graph::DType, by: [f64; 2]) -> Vec<ValueId> {
    let ty = graph::TensorType::new(dtype, &[2usize, 3][..]);
    let x = b.graph_mut().add_input("x", ty, graph::InputRole::Data);
    let y = times(b, x, by[0]);
    vec![times(b, y, by[1])]
}

/// What is nearly a pattern says which condition fails.
#[test]
fn what_is_nearly_a_pattern_is_told() {
    use graph::DType::{BF16, F16, F32, F64};
    type Build = fn(&mut Builder<'_>, u32) -> Vec<ValueId>;
    let nearly: &[(&str, &str, Build)] = &[
        ("attention", "a mask is added to scores of which some were replaced", |b, _| {
            let between = |b: &mut Builder<'_>, s| {
                let s = masked(b, s, -1e9);
                added(b, s)
            };
            almost_attention(b, between, |_, p| p)
        }),
        ("attention", "replaced after another mask", |b, _| {
            let between = |b: &mut Builder<'_>, s| {
                let s = added(b, s);
                masked(b, s, -1e9)
            };
            almost_attention(b, between, |_, p| p)
        }),
        ("attention", "replaced after another mask", |b, _| {
            let between = |b: &mut Builder<'_>, s| {
                let s = masked(b, s, -1e9);
                masked(b, s, -1e10)
            };
            almost_attention(b, between, |_, p| p)
        }),
        ("attention", "scaled after they were masked", |b, _| {
            let between = |b: &mut Builder<'_>, s| {
                let s = added(b, s);
                times(b, s, 0.5)
            };
            almost_attention(b, between, |_, p| p)
        }),
        ("attention", "replaced by 0 behind the softmax", |b, _| {
            almost_attention(b, |_, s| s, |b, p| masked(b, p, 0.0))
        }),
        ("attention", "no factor that scores can have", |b, _| {
            let between = |b: &mut Builder<'_>, s| {
                let s = times(b, s, 1e25);
                times(b, s, 1e25)
            };
            almost_attention(b, between, |_, p| p)
        }),
        ("attention", "no factor that a result can have", |b, _| {
            let behind = |b: &mut Builder<'_>, s| {
                let s = times(b, s, 1e-25);
                times(b, s, 1e-25)
            };
            almost_attention(b, |_, s| s, behind)
        }),
        ("attention", "probabilities are f16 and cast to f32", |b, _| {
            let between = |b: &mut Builder<'_>, s| cast(b, s, F16);
            almost_attention(b, between, |b, p| cast(b, p, F32))
        }),
        ("attention", "probabilities are f64 and cast to f32", |b, _| {
            let between = |b: &mut Builder<'_>, s| cast(b, s, F64);
            almost_attention(b, between, |b, p| cast(b, p, F32))
        }),
        ("attention", "scores are f32 and cast to f64", |b, _| {
            let [q, k, v] = [0; 3].map(|_| input(b, &[5, 4]));
            let s = b.matmul(q, k, false, true).unwrap();
            let (s, v) = (cast(b, s, F64), cast(b, v, F64));
            let p = b.op("Softmax", Attrs::new().with("axis", 1), &[s]).unwrap();
            vec![b.matmul(p, v, false, false).unwrap()]
        }),
        ("attention", "a mask is larger than the scores", |b, _| {
            let [q, k, v, m] = [1, 5, 5, 5].map(|rows| input(b, &[rows, 5]));
            let s = b.matmul(q, k, false, true).unwrap();
            let s = call(b, "Add", &[m, s]);
            let p = b.op("Softmax", Attrs::new().with("axis", 1), &[s]).unwrap();
            vec![b.matmul(p, v, false, false).unwrap()]
        }),
        ("gelu", "erf(0.90000·x)", |b, _| {
            let x = input(b, &[4, 9]);
            let (u, half) = (times(b, x, 0.9), number(b, 0.5));
            let erf = call(b, "Erf", &[u]);
            let erf = times(b, erf, 0.5);
            let gate = call(b, "Add", &[erf, half]);
            vec![call(b, "Mul", &[x, gate])]
        }),
        ("gelu", "tanh(0.79788·x + 0.07979·x³)", |b, _| {
            let x = input(b, &[4, 9]);
            let (u, three, one) = (times(b, x, 0.797_884_56), number(b, 3.0), number(b, 1.0));
            let third = call(b, "Pow", &[x, three]);
            let third = times(b, third, 0.079_788_456);
            let u = call(b, "Add", &[u, third]);
            let tanh = call(b, "Tanh", &[u]);
            let gate = call(b, "Add", &[tanh, one]);
            let half = times(b, x, 0.5);
            vec![call(b, "Mul", &[half, gate])]
        }),
        ("gelu", "0.5 + 0.25·f(x)", |b, _| {
            let x = input(b, &[4, 9]);
            let (u, half) = (times(b, x, 0.5f64.sqrt()), number(b, 0.5));
            let erf = call(b, "Erf", &[u]);
            let erf = times(b, erf, 0.25);
            let gate = call(b, "Add", &[half, erf]);
            vec![call(b, "Mul", &[gate, x])]
        }),
        ("merge-scales", "no normal number of f32", |b, _| scaled_twice(b, F32, [1e25, 1e25])),
        ("merge-scales", "no normal number of f32", |b, _| scaled_twice(b, F32, [1e-20, -1e-25])),
        ("merge-scales", "no normal number of f32", |b, _| scaled_twice(b, F32, [1e-20, 1e-19])),
        ("merge-scales", "no normal number of f64", |b, _| scaled_twice(b, F64, [1e200, 1e200])),
        ("merge-scales", "no normal number of f16", |b, _| scaled_twice(b, F16, [256.0, 256.0])),
        ("merge-scales", "no normal number of f16", |b, _| scaled_twice(b, F16, [1.0 / 256.0, 1.0 / 128.0])),
        ("merge-scales", "no normal number of bf16", |b, _| scaled_twice(b, BF16, [2e19, 2e19])),
        ("scale-into-product", "no normal number of f32", |b, _| {
            let (x, w, by) = (input(b, &[9, 3]), input(b, &[3, 9]), number(b, 1e-39));
            let y = b.matmul(x, w, false, false).unwrap();
            vec![call(b, "Div", &[y, by])]
        }),
    ];
    for (rule, why, build) in nearly {
        let report = support::report(&Case { rule: "", way: 0, build: *build }, Level::Memory, Stage::Before);
        assert!(report.fired.iter().all(|f| f.rule != *rule), "{report}");
        let told = report.missed.iter().any(|m| m.rule == *rule && m.why.contains(why));
        assert!(told, "{rule}: {why}\n{report}");
    }
    // The last numbers that fit.
    for (dtype, by) in [(F16, [256.0, 255.0]), (F32, [1e19, 3e19]), (BF16, [1e19, 3e19])] {
        let mut g = graph::Graph::default();
        g.outputs = scaled_twice(&mut Builder::new(&mut g), dtype, by);
        let report = support::rewritten(&g, Level::Fast, Stage::After).report;
        assert!(report.fired.iter().any(|f| f.rule == "merge-scales"), "{dtype} {report}");
    }
}

/// A class that holds its own product by 1 ends no search in itself.
#[test]
fn unit_scales_on_the_way_hide_no_pattern() {
    let build: fn(&mut Builder<'_>, u32) -> Vec<ValueId> = |b, _| {
        let between = |b: &mut Builder<'_>, s| {
            let s = times(b, s, 0.5);
            times(b, s, 1.0)
        };
        almost_attention(b, between, |b, p| times(b, p, 1.0))
    };
    let fired = check(&Case { rule: "attention", way: 0, build }, Level::Memory, Stage::Before);
    assert!(fired.contains(&"attention".to_owned()), "{fired:?}");
    let build: fn(&mut Builder<'_>, u32) -> Vec<ValueId> = |b, _| {
        let between = |b: &mut Builder<'_>, s| {
            let s = call(b, "Relu", &[s]);
            times(b, s, 1.0)
        };
        almost_attention(b, between, |_, p| p)
    };
    check(&Case { rule: "attention", way: 0, build }, Level::Memory, Stage::Before);
}
