//! Operators by name on literals.

use graph::{Attrs, DType, Graph, InputRole, Literal, TensorType};
use ops::{Builder, OpError, Signature, cpu::evaluate, find};

/// The outputs of an operator; inputs may be left out.
pub fn try_run(op: &str, attrs: Attrs, inputs: &[Option<&Literal>]) -> Result<Vec<Literal>, OpError> {
    let mut g = Graph::default();
    let mut ids = Vec::new();
    for (i, l) in inputs.iter().enumerate() {
        ids.push(l.map(|l| {
            let dims: Vec<usize> = l.shape().iter().map(|d| *d as usize).collect();
            g.add_input(format!("x{i}"), TensorType::new(l.dtype(), &dims), InputRole::Data)
        }));
    }
    Builder::new(&mut g).emit(op, attrs, &ids)?;
    evaluate(find(op).unwrap(), &Signature::of(&g, g.nodes.last().unwrap()), inputs)
}

/// The outputs of an operator that has all its inputs.
pub fn run(op: &str, attrs: Attrs, inputs: &[&Literal]) -> Vec<Literal> {
    try_run(op, attrs, &inputs.iter().copied().map(Some).collect::<Vec<_>>()).unwrap()
}

/// A float32 tensor of given elements.
pub fn floats(shape: &[u64], values: &[f32]) -> Literal {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    Literal::new(DType::F32, shape.to_vec(), bytes).unwrap()
}

/// A float32 tensor whose elements are a function of their place.
pub fn f32s(shape: &[u64], f: impl Fn(usize) -> f32) -> Literal {
    let n: u64 = shape.iter().product();
    floats(shape, &(0..n as usize).map(f).collect::<Vec<_>>())
}

/// Numbers from -5 to 5.13 without an order.
pub fn wavy(i: usize) -> f32 {
    ((i * 7919) % 1013) as f32 / 100.0 - 5.0
}

/// Refuses elements further from what they should be than a share of 1 and of that.
pub fn close(got: &Literal, want: &[f64], tolerance: f64) {
    let got = got.to_floats();
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * (1.0 + w.abs()), "element {i}: {g} is not {w}");
    }
}
