//! What a walk reads of a step's values counts as memory of the step, and cuts no gradient.

use tests::{
    program::Program,
    written::{Array, floats, least, session_of, state, step},
};

fn model(text: &str) -> Vec<u8> {
    Program::parse(text).and_then(|p| p.model()).unwrap()
}

/// Where a million elements are not zero, and their mean.
const SELECTED: &str = "
input x f32[512, 2048]
param w f32[2048]
constant low f32[] -0.25
constant all i64[1] -1
h = Add(x, w)
c = Greater(x, low)
at = NonZero(c)
y = GatherND(h, t)
t = Transpose(at) perm=[1, 0]
q = Mul(y, y)
loss = ReduceMean(q)
outputs loss
";

#[test]
fn elements_and_indices_on_the_host_count() {
    let mut lines: Vec<&str> = SELECTED.lines().collect();
    // Nodes in an order that can run.
    let at = lines.iter().position(|l| l.starts_with("y = ")).unwrap();
    lines.swap(at, at + 1);
    let model = model(&lines.join("\n"));
    let n = 512 * 2048;
    let data: Vec<Array> = vec![("x", vec![512, 2048], floats(n, 7))];
    let kept =
        data[0].2.chunks_exact(4).filter(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]) > -0.25).count();
    let indices = 16 * kept as u64;
    let mut roomy = session_of(&model, 1 << 28);
    let (bits, free) = step(&mut roomy, &data, 1).unwrap();
    // The indices lie on the host as well as in the pool, the rows that they gather beside them.
    assert!(free.pool.peak > 2 * indices + 4 * kept as u64, "{free:?}, indices {indices}");
    // Less than the copy on the host and what the gather needs at once.
    let mut small = session_of(&model, 2 * indices);
    let before = state(&small);
    let refusal = step(&mut small, &data, 1).unwrap_err();
    assert!(refusal.contains("out of memory") && state(&small) == before, "{refusal}");
    // Its figures add up: what is read is in use, held, and in nobody's free run.
    let figure = |before: &str| -> u64 {
        let rest = refusal.split_once(before).unwrap_or_else(|| panic!("no {before:?} in {refusal}")).1;
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    let pool = figure("of the pool's ");
    let live = figure(&format!("of the pool's {pool} bytes "));
    let (needed, free_run) = (figure("it needs "), figure("longest free run is "));
    assert!(free_run < needed && live + free_run <= pool, "{refusal}");
    assert!(figure("\"(read on the host)\" ") >= indices, "{refusal}");
    let named = least(&refusal).unwrap_or_else(|| panic!("{refusal}"));
    let mut tight = session_of(&model, named);
    let (got, report) = step(&mut tight, &data, 1).unwrap_or_else(|e| panic!("{named}: {e}"));
    assert!(got == bits && report.pool.peak <= named && state(&tight) == state(&roomy));
    // What is read must fit, too: not even the condition beside its copy.
    let refusal = step(&mut session_of(&model, n + n / 2), &data, 1).unwrap_err();
    assert!(refusal.contains("out of memory"), "{refusal}");
}

/// The loss falls as the gradient says: along it, by its square.
#[test]
fn a_padding_value_that_is_computed_has_a_gradient() {
    let text = "
input x f32[n, 4]
param w f32[4, 3] 0.3 -0.2 0.5 0.1 0.4 -0.6 0.2 0.7 -0.1 0.5 -0.3 0.2
constant pads i64[4] 1 0 2 1
h = MatMul(x, w)
mean = ReduceMean(h) keepdims=0
y = Pad(h, pads, mean)
q = Mul(y, y)
loss = ReduceMean(q) keepdims=0
outputs loss
";
    let model = model(text);
    let data: Vec<Array> = vec![("x", vec![3, 4], floats(12, 5))];
    let weights = |s: &runtime::Session| -> Vec<f64> {
        let bytes = s.state("w").unwrap();
        bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect()
    };
    let mut s = session_of(&model, 1 << 20);
    let before = weights(&s);
    let (first, _) = step(&mut s, &data, 1).unwrap();
    // The step's rate is 0.01.
    let gradient = before.iter().zip(weights(&s)).map(|(a, b)| (a - b) / 0.01);
    let square: f64 = gradient.map(|g| g * g).sum();
    let (second, _) = step(&mut s, &data, 2).unwrap();
    let fallen = (f64::from_bits(first) - f64::from_bits(second)) / 0.01;
    assert!(square > 0.0 && (fallen / square - 1.0).abs() < 0.03, "{fallen} against {square}");
}
