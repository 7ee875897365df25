//! LSTM, GRU and RNN nodes of random attributes against ONNX's equations, written out one sequence and one element at a time.

use graph::{Attr, Attrs, DType, Graph, InputRole, Literal, TensorType, ValueId};
use ops::{
    Builder,
    cpu::interpret,
    onnx::{BatchNormMode, DropoutMode, ImportCx, ImportOptions, find_rule},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;

/// A function, whether it takes alpha and beta, and its formula.
type Function = (&'static str, [bool; 2], fn(f64, [f64; 2]) -> f64);

const FUNCTIONS: [Function; 11] = [
    ("Relu", [false, false], |x, _| x.max(0.0)),
    ("Tanh", [false, false], |x, _| x.tanh()),
    ("Sigmoid", [false, false], |x, _| 1.0 / (1.0 + (-x).exp())),
    ("Affine", [true, true], |x, [a, b]| a * x + b),
    ("LeakyRelu", [true, false], |x, [a, _]| if x >= 0.0 { x } else { a * x }),
    ("ThresholdedRelu", [true, false], |x, [a, _]| if x >= a { x } else { 0.0 }),
    ("ScaledTanh", [true, true], |x, [a, b]| a * (b * x).tanh()),
    ("HardSigmoid", [true, true], |x, [a, b]| (a * x + b).clamp(0.0, 1.0)),
    ("Elu", [true, false], |x, [a, _]| if x >= 0.0 { x } else { a * x.exp_m1() }),
    ("Softsign", [false, false], |x, _| x / (1.0 + x.abs())),
    ("Softplus", [false, false], |x, _| x.max(0.0) + (-x.abs()).exp().ln_1p()),
];

/// A chosen function with its numbers.
type Chosen = (usize, [f64; 2]);

fn apply((f, numbers): Chosen, x: f64) -> f64 {
    FUNCTIONS[f].2(x, numbers)
}

/// A tensor of f64 with its shape.
#[derive(Clone)]
struct Tensor(Vec<usize>, Vec<f64>);

impl Tensor {
    fn random(shape: &[usize], rng: &mut StdRng) -> Tensor {
        let n = shape.iter().product();
        Tensor(shape.to_vec(), (0..n).map(|_| rng.random_range(-1.0..1.0)).collect())
    }

    fn zeros(shape: &[usize]) -> Tensor {
        Tensor(shape.to_vec(), vec![0.0; shape.iter().product()])
    }

    fn offset(&self, at: &[usize]) -> usize {
        at.iter().zip(&self.0).fold(0, |n, (i, d)| n * d + i)
    }

    fn get(&self, at: &[usize]) -> f64 {
        self.1[self.offset(at)]
    }

    fn set(&mut self, at: &[usize], v: f64) {
        let i = self.offset(at);
        self.1[i] = v;
    }

    /// The first two axes (or the first and third, for four) exchanged, as `layout` wants them.
    fn batch_first(&self, perm: &[usize]) -> Tensor {
        let mut out = Tensor::zeros(&perm.iter().map(|p| self.0[*p]).collect::<Vec<_>>());
        for i in 0..out.1.len() {
            let mut rest = i;
            let mut at = vec![0; perm.len()];
            for (k, d) in out.0.iter().enumerate().rev() {
                at[perm[k]] = rest % d;
                rest /= d;
            }
            out.1[i] = self.get(&at);
        }
        out
    }

    fn literal(&self) -> Literal {
        let shape = self.0.iter().map(|d| *d as u64).collect();
        Literal::new(DType::F64, shape, self.1.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
            .unwrap()
    }
}

/// Everything one node is made of, time-major.
struct Setup {
    op: &'static str,
    reverse: Vec<bool>,
    hidden: usize,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Option<Tensor>,
    lengths: Option<Vec<usize>>,
    h: Option<Tensor>,
    c: Option<Tensor>,
    p: Option<Tensor>,
    functions: Vec<Chosen>,
    clip: Option<f64>,
    flag: bool,
    layout: bool,
}

/// Gates, functions a direction, attribute that is a flag.
fn kind(op: &str) -> (usize, usize, Option<&'static str>) {
    match op {
        "LSTM" => (4, 3, Some("input_forget")),
        "GRU" => (3, 2, Some("linear_before_reset")),
        _ => (1, 1, None),
    }
}

fn setup(op: &'static str, rng: &mut StdRng) -> Setup {
    let (gates, count, flag) = kind(op);
    let reverse = [vec![false], vec![true], vec![false, true]][rng.random_range(0..3)].clone();
    let n = reverse.len();
    let (steps, batch) = (rng.random_range(1..6), rng.random_range(1..5));
    let (size, hidden) = (rng.random_range(1..5), rng.random_range(1..6));
    let maybe = |share: f64, shape: &[usize], rng: &mut StdRng| {
        rng.random_bool(share).then(|| Tensor::random(shape, rng))
    };
    let state = [n, batch, hidden];
    let lstm = if op == "LSTM" { 0.6 } else { 0.0 };
    Setup {
        b: maybe(0.7, &[n, 2 * gates * hidden], rng),
        h: maybe(0.6, &state, rng),
        c: maybe(lstm, &state, rng),
        p: maybe(lstm, &[n, 3 * hidden], rng),
        lengths: rng.random_bool(0.5).then(|| (0..batch).map(|_| rng.random_range(0..steps + 1)).collect()),
        x: Tensor::random(&[steps, batch, size], rng),
        w: Tensor::random(&[n, gates * hidden, size], rng),
        r: Tensor::random(&[n, gates * hidden, hidden], rng),
        functions: (0..n * count)
            .map(|_| (rng.random_range(0..11), [rng.random_range(0.1..1.0), rng.random_range(0.1..1.0)]))
            .collect(),
        clip: rng.random_bool(0.3).then(|| rng.random_range(0.3..1.5)),
        flag: flag.is_some() && rng.random_bool(0.4),
        layout: rng.random_bool(0.3),
        op,
        reverse,
        hidden,
    }
}

/// All states, last states, last cells, by the equations.
fn reference(s: &Setup) -> [Tensor; 3] {
    let (gates, count, _) = kind(s.op);
    let (steps, batch, size, hidden) = (s.x.0[0], s.x.0[1], s.x.0[2], s.hidden);
    let n = s.reverse.len();
    let mut y = Tensor::zeros(&[steps, n, batch, hidden]);
    let state = [n, batch, hidden];
    let mut last = s.h.clone().unwrap_or_else(|| Tensor::zeros(&state));
    let mut cell = s.c.clone().unwrap_or_else(|| Tensor::zeros(&state));
    for d in 0..n {
        let f = &s.functions[d * count..(d + 1) * count];
        let cut = |x: f64| s.clip.map_or(x, |c| x.clamp(-c, c));
        let bias = |part: usize, g: usize, j: usize| {
            s.b.as_ref().map_or(0.0, |b| b.get(&[d, (part * gates + g) * hidden + j]))
        };
        let peephole = |g: usize, j: usize| s.p.as_ref().map_or(0.0, |p| p.get(&[d, g * hidden + j]));
        for b in 0..batch {
            let length = s.lengths.as_ref().map_or(steps, |l| l[b]);
            for k in 0..length {
                let t = if s.reverse[d] { length - 1 - k } else { k };
                let h: Vec<f64> = (0..hidden).map(|j| last.get(&[d, b, j])).collect();
                let of_x = |g: usize, j: usize| {
                    (0..size).map(|i| s.x.get(&[t, b, i]) * s.w.get(&[d, g * hidden + j, i])).sum::<f64>()
                        + bias(0, g, j)
                };
                let of_h = |g: usize, j: usize, h: &[f64]| {
                    (0..hidden).map(|i| h[i] * s.r.get(&[d, g * hidden + j, i])).sum::<f64>() + bias(1, g, j)
                };
                let both = |g: usize, j: usize| of_x(g, j) + of_h(g, j, &h);
                let new: Vec<f64> = match s.op {
                    "RNN" => (0..hidden).map(|j| apply(f[0], cut(both(0, j)))).collect(),
                    "GRU" => {
                        let r: Vec<f64> = (0..hidden).map(|j| apply(f[0], cut(both(1, j)))).collect();
                        let reset: Vec<f64> = (0..hidden).map(|j| r[j] * h[j]).collect();
                        (0..hidden)
                            .map(|j| {
                                let z = apply(f[0], cut(both(0, j)));
                                let inner = if s.flag { r[j] * of_h(2, j, &h) } else { of_h(2, j, &reset) };
                                let new = apply(f[1], cut(of_x(2, j) + inner));
                                (1.0 - z) * new + z * h[j]
                            })
                            .collect()
                    }
                    _ => (0..hidden)
                        .map(|j| {
                            let c = cell.get(&[d, b, j]);
                            let i = apply(f[0], cut(both(0, j) + peephole(0, j) * c));
                            let forget = apply(f[0], cut(both(2, j) + peephole(2, j) * c));
                            let forget = if s.flag { 1.0 - i } else { forget };
                            let c = forget * c + i * apply(f[1], cut(both(3, j)));
                            cell.set(&[d, b, j], c);
                            apply(f[0], cut(both(1, j) + peephole(1, j) * c)) * apply(f[2], c)
                        })
                        .collect(),
                };
                for (j, v) in new.into_iter().enumerate() {
                    last.set(&[d, b, j], v);
                    y.set(&[t, d, b, j], v);
                }
            }
        }
    }
    [y, last, cell]
}

fn attributes(s: &Setup) -> Attrs {
    let direction = match s.reverse[..] {
        [false] => "forward",
        [true] => "reverse",
        _ => "bidirectional",
    };
    let names = s.functions.iter().map(|(f, _)| FUNCTIONS[*f].0.to_owned()).collect();
    let numbers = |k: usize| -> Vec<f64> {
        s.functions.iter().filter(|(f, _)| FUNCTIONS[*f].1[k]).map(|(_, v)| v[k]).collect()
    };
    let mut attrs = Attrs::new()
        .with("direction", direction)
        .with("hidden_size", s.hidden as i64)
        .with("activations", Attr::Strs(names))
        .with("activation_alpha", numbers(0))
        .with("activation_beta", numbers(1))
        .with("layout", s.layout);
    if let Some(clip) = s.clip {
        attrs = attrs.with("clip", clip);
    }
    if let Some(flag) = kind(s.op).2 {
        attrs = attrs.with(flag, s.flag);
    }
    attrs
}

/// The node's outputs through its import rule and the kernels.
fn imported(s: &Setup) -> Vec<Literal> {
    let (mut graph, mut given) = (Graph::default(), BTreeMap::new());
    let mut input = |l: Option<Literal>| -> Option<ValueId> {
        let l = l?;
        let v = graph.add_input(
            format!("x{}", given.len()),
            TensorType::new(l.dtype(), l.shape()),
            InputRole::Data,
        );
        given.insert(v, l);
        Some(v)
    };
    let major = |t: &Tensor| if s.layout { t.batch_first(&[1, 0, 2]) } else { t.clone() };
    let lengths = s.lengths.as_ref().map(|l| {
        let bytes: Vec<u8> = l.iter().flat_map(|n| (*n as i32).to_le_bytes()).collect();
        Literal::new(DType::I32, vec![l.len() as u64], bytes).unwrap()
    });
    let mut ids = vec![
        input(Some(major(&s.x).literal())),
        input(Some(s.w.literal())),
        input(Some(s.r.literal())),
        input(s.b.as_ref().map(Tensor::literal)),
        input(lengths),
        input(s.h.as_ref().map(|h| major(h).literal())),
    ];
    if s.op == "LSTM" {
        ids.push(input(s.c.as_ref().map(|c| major(c).literal())));
        ids.push(input(s.p.as_ref().map(Tensor::literal)));
    }
    let attrs = attributes(s);
    let options = ImportOptions {
        training: true,
        batchnorm: BatchNormMode::Auto,
        dropout: DropoutMode::Auto,
        unbiased_running_variance: false,
    };
    let mut cx = ImportCx {
        b: &mut Builder::new(&mut graph),
        options,
        op_type: s.op,
        opset: 14,
        attrs: &attrs,
        inputs: &ids,
        used: &[true; 3],
        outputs: Vec::new(),
        remarks: Vec::new(),
    };
    (find_rule("", s.op).unwrap().import)(&mut cx).unwrap();
    let outputs = cx.outputs;
    graph::verify(&graph).unwrap();
    let values = interpret(&graph, &given).unwrap();
    outputs.into_iter().map(|v| values[&v.unwrap()].clone()).collect()
}

#[test]
fn layers_follow_the_equations() {
    let mut rng = StdRng::seed_from_u64(3);
    let mut compared = 0;
    for k in 0..300 {
        let s = setup(["LSTM", "GRU", "RNN"][k % 3], &mut rng);
        let [y, last, cell] = reference(&s);
        let major = |t: Tensor, perm: &[usize]| if s.layout { t.batch_first(perm) } else { t };
        // Gates beyond 1 make a state grow, and its rounding with it.
        if [&y, &cell].iter().any(|t| t.1.iter().any(|v| v.is_nan() || v.abs() > 1e3)) {
            continue;
        }
        compared += 1;
        let want = [major(y, &[2, 0, 1, 3]), major(last, &[1, 0, 2]), major(cell, &[1, 0, 2])];
        let got = imported(&s);
        assert_eq!(got.len(), if s.op == "LSTM" { 3 } else { 2 });
        for (o, (got, want)) in got.iter().zip(&want).enumerate() {
            let shape: Vec<usize> = got.shape().iter().map(|d| *d as usize).collect();
            assert_eq!(shape, want.0, "case {k}: {} output {o}", s.op);
            for (i, (g, w)) in got.to_floats().iter().zip(&want.1).enumerate() {
                let off = (g - w).abs() / w.abs().max(1.0);
                assert!(
                    off < 1e-9,
                    "case {k}: {} {:?} output {o} element {i}: {g}, not {w}",
                    s.op,
                    attributes(&s)
                );
            }
        }
    }
    assert!(compared > 250, "only {compared} cases stay small");
}
