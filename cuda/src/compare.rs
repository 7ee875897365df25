//! Kernels against the CPU's: operators' cases on any driver, with every lawful overwrite, twice.
//!
//! The tests run this on the simulated driver; the bundle for machines with a GPU runs the same on the real one.

use crate::{Compiler, Driver, evaluate};
use graph::{Attr, Attrs, DType, Graph, InputRole, Literal, TensorType, ValueId};
use ops::{Builder, OpDef, Signature, case::Case, cpu::evaluate_with};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// A node with the elements of its inputs.
pub struct Given {
    graph: Graph,
    elements: Vec<Option<Literal>>,
}

impl Given {
    /// A node of these attributes and inputs.
    pub fn new(op: &dyn OpDef, attrs: Attrs, elements: Vec<Option<Literal>>) -> Result<Given, String> {
        let mut graph = Graph::default();
        let inputs: Vec<Option<ValueId>> = elements
            .iter()
            .enumerate()
            .map(|(i, l)| {
                l.as_ref().map(|l| {
                    let shape: Vec<usize> = l.shape().iter().map(|d| *d as usize).collect();
                    graph.add_input(format!("x{i}"), TensorType::new(l.dtype(), &shape), InputRole::Data)
                })
            })
            .collect();
        Builder::new(&mut graph).emit(op.name(), attrs, &inputs).map_err(|e| e.to_string())?;
        Ok(Given { graph, elements })
    }

    fn signature(&self) -> Option<Signature<'_>> {
        Some(Signature::of(&self.graph, self.graph.nodes.last()?))
    }

    /// What the operator launches, nothing if it has no kernel.
    pub fn launches(&self, op: &dyn OpDef) -> Vec<ops::cuda::Launch> {
        let kernels = self.signature().and_then(|s| op.cuda(&s).ok());
        kernels.map(|k| k.launches).unwrap_or_default()
    }

    /// Whether an input, an output or an attribute is a 16-bit float.
    fn has_halves(&self) -> bool {
        let types = self.graph.values.iter().map(|v| v.ty.dtype);
        let attrs = self.graph.nodes.last().into_iter().flat_map(|n| &n.attrs.0);
        types
            .chain(attrs.filter_map(|(_, a)| if let Attr::DType(d) = a { Some(*d) } else { None }))
            .any(is_half)
    }

    /// The same node with float32 where it has 16-bit floats: what their kernels, which compute in float32, are measured by.
    fn widened(&self, op: &dyn OpDef) -> Result<Given, String> {
        let wide = |d: DType| if is_half(d) { DType::F32 } else { d };
        let node = self.graph.nodes.last().ok_or("folded")?;
        let attrs = node.attrs.0.iter().fold(Attrs::new(), |all, (name, a)| match a {
            // What stores its result as it is without.
            Attr::DType(d) if is_half(*d) && op.name() == "Softmax" => all,
            Attr::DType(d) => all.with(name, wide(*d)),
            other => all.with(name, other.clone()),
        });
        let elements =
            self.elements.iter().map(|l| l.as_ref().map(|l| rounded(l, wide(l.dtype()))).transpose());
        Given::new(op, attrs, elements.collect::<Result<_, _>>()?)
    }

    /// What its kernels are measured by: the CPU's kernel, for 16-bit floats in float32 and rounded once.
    pub fn reference(&self, op: &dyn OpDef) -> Result<Vec<Literal>, String> {
        if !self.has_halves() {
            return self.on_cpu(op);
        }
        let wide = self.widened(op)?.on_cpu(op)?;
        let s = self.signature().ok_or("folded")?;
        wide.iter().zip(&s.outputs).map(|(l, t)| rounded(l, t.dtype)).collect()
    }

    fn literals(&self) -> Vec<Option<&Literal>> {
        self.elements.iter().map(Option::as_ref).collect()
    }

    /// Its outputs by the CPU's kernel.
    pub fn on_cpu(&self, op: &dyn OpDef) -> Result<Vec<Literal>, String> {
        let s = self.signature().ok_or("folded")?;
        evaluate_with(op, &s, &self.literals(), 0, &[]).map_err(|e| e.to_string())
    }

    /// Its outputs by the CUDA kernels, each in the place of an input where `overwrite` has the pair.
    pub fn on_cuda(
        &self,
        driver: &mut dyn Driver,
        compiler: &mut dyn Compiler,
        op: &dyn OpDef,
        overwrite: &[(usize, usize)],
    ) -> Result<Vec<Literal>, String> {
        let s = self.signature().ok_or("folded")?;
        evaluate(driver, compiler, op, &s, &self.literals(), overwrite)
    }
}

fn is_half(d: DType) -> bool {
    matches!(d, DType::F16 | DType::BF16)
}

/// Floats in another float dtype, rounded to nearest; anything else as it is.
fn rounded(l: &Literal, to: DType) -> Result<Literal, String> {
    if l.dtype() == to || !to.is_float() || !l.dtype().is_float() {
        return Ok(l.clone());
    }
    let bytes: Vec<u8> =
        l.to_floats().iter().flat_map(|v| Literal::scalar(to, *v).bytes().to_vec()).collect();
    Literal::new(to, l.shape().to_vec(), bytes).map_err(|e| e.to_string())
}

/// How far a result may be from the reference, in parts of the larger one: float32 kernels add in another order, and a result near the
/// middle between two 16-bit floats may be rounded either way.
fn tolerance(d: DType) -> f64 {
    match d {
        DType::F64 => 1e-12,
        DType::F16 => 1.0 / 1024.0 + 3e-6,
        DType::BF16 => 1.0 / 128.0 + 3e-6,
        _ => 3e-6,
    }
}

/// A case of an operator with elements drawn.
pub fn case_of(op: &dyn OpDef, case: &Case, dtype: DType, seed: u64) -> Result<Given, String> {
    let mut rng = StdRng::seed_from_u64(seed);
    let draw = |c: &ops::case::CaseInput, rng: &mut StdRng| -> Result<Literal, String> {
        let dtype = c.dtype.unwrap_or(dtype);
        let values = c.fill.draw(c.shape.iter().product(), &mut || rng.random());
        let bytes: Vec<u8> =
            values.iter().flat_map(|v| Literal::scalar(dtype, *v).bytes().to_vec()).collect();
        let shape = c.shape.iter().map(|d| *d as u64).collect();
        Literal::new(dtype, shape, bytes).map_err(|e| e.to_string())
    };
    let elements = case.inputs.iter().map(|i| i.as_ref().map(|c| draw(c, &mut rng)).transpose());
    Given::new(op, case.attrs.clone(), elements.collect::<Result<_, _>>()?)
}

/// Compares a node on both sides, plainly and with every lawful overwrite; `false` if it has no kernel, or nothing of it is executed.
///
/// # Errors
///
/// What differs, and where.
pub fn run(
    driver: &mut dyn Driver,
    compiler: &mut dyn Compiler,
    op: &dyn OpDef,
    given: &Given,
) -> Result<bool, String> {
    let Some(s) = given.signature() else { return Ok(false) };
    let facts = op.facts(&s);
    if op.cuda(&s).is_err() || (!s.outputs.is_empty() && facts.views.len() == s.outputs.len()) {
        return Ok(false);
    }
    let expected = given.reference(op)?;
    // A recurrent layer rounds its gates and state at every step.
    let steps = [("Rnn", 2.0), ("Gru", 4.0), ("Lstm", 4.0)].into_iter().find(|s| op.name().starts_with(s.0));
    let roundings = if given.has_halves() { steps.map_or(1.0, |s| s.1) } else { 1.0 };
    let plain: &[(usize, usize)] = &[];
    for overwrite in std::iter::once(plain).chain(facts.overwrites.iter().map(std::slice::from_ref)) {
        let got = given.on_cuda(driver, compiler, op, overwrite)?;
        for (i, (e, g)) in expected.iter().zip(&got).enumerate() {
            compare(e, g, roundings * tolerance(e.dtype()))
                .map_err(|e| format!("output {i}, overwriting {overwrite:?}: {e}"))?;
        }
        // The same bits every time.
        if given.on_cuda(driver, compiler, op, overwrite)? != got && !has_nan(&got) {
            return Err("other bits when run again".to_owned());
        }
    }
    Ok(true)
}

fn has_nan(all: &[Literal]) -> bool {
    all.iter().any(|l| l.dtype().is_float() && l.to_floats().iter().any(|x| x.is_nan()))
}

/// Integers to the bit; floats to `tolerance` of the largest finite magnitude; NaN and infinities where the other has them.
pub fn compare(expected: &Literal, got: &Literal, tolerance: f64) -> Result<(), String> {
    if !expected.dtype().is_float() {
        return if expected == got {
            Ok(())
        } else {
            Err(format!("{:?} is not {:?}", got.to_ints(), expected.to_ints()))
        };
    }
    let (e, g) = (expected.to_floats(), got.to_floats());
    let scale = e.iter().filter(|x| x.is_finite()).fold(1e-30f64, |m, x| m.max(x.abs()));
    for (i, (e, g)) in e.iter().zip(&g).enumerate() {
        let same = (e.is_nan() && g.is_nan()) || e == g;
        // Not `<=` alone: a NaN on one side only is a difference.
        let near = (e - g).abs() <= tolerance * e.abs().max(scale.min(1e3));
        if !(same || near) {
            return Err(format!("element {i}: {g} is not {e} (largest {scale:e})"));
        }
    }
    Ok(())
}
