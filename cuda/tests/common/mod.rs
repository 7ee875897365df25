//! What tests of kernels share: a simulated device with the C++ compiler behind it, calls on both sides, comparison.

#![allow(dead_code)]

use cuda::{
    Compiler, evaluate,
    sim::{HostCompiler, Sim},
};
use graph::{Attrs, DType, Graph, InputRole, Literal, TensorType, ValueId};
use ops::{Builder, OpDef, Signature, case::Case, cpu::evaluate_with};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::path::Path;

/// A simulated device and its compiler, or `None` after saying loudly that the test is skipped.
///
/// # Panics
///
/// If `CI` is set and there is no C++ compiler.
pub fn host() -> Option<(Sim, HostCompiler)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/cuda-host");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/src");
    let compiler = HostCompiler::new(&folder).reading(&sources);
    if !compiler.works() {
        test_support::skipped("there is no C++ compiler: install one, or set CXX");
        return None;
    }
    Some((Sim::new(1 << 40), compiler))
}

/// A float32 tensor uniform in [-1, 1], and with special values here and there if asked for.
pub fn floats(shape: &[usize], seed: u64, special: bool) -> Literal {
    let mut rng = StdRng::seed_from_u64(seed);
    let n: usize = shape.iter().product();
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-40, 3e38];
    let one = |i: usize, x: f32| if special && i % 5 == 2 { odd[i / 5 % odd.len()] } else { x };
    let bytes: Vec<u8> = (0..n).flat_map(|i| one(i, rng.random_range(-1.0..1.0)).to_le_bytes()).collect();
    Literal::new(DType::F32, shape.iter().map(|d| *d as u64).collect(), bytes).unwrap()
}

/// A tensor in another dtype, by the CPU's kernel.
pub fn cast(l: &Literal, to: DType) -> Literal {
    let op = ops::find("Cast").unwrap();
    let given = Given::new(op, Attrs::new().with("to", to), vec![Some(l.clone())]).unwrap();
    given.on_cpu(op).unwrap().swap_remove(0)
}

/// A node with the elements of its inputs.
pub struct Given {
    graph: Graph,
    elements: Vec<Option<Literal>>,
}

impl Given {
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

    fn literals(&self) -> Vec<Option<&Literal>> {
        self.elements.iter().map(Option::as_ref).collect()
    }

    pub fn on_cpu(&self, op: &dyn OpDef) -> Result<Vec<Literal>, String> {
        let s = self.signature().ok_or("folded")?;
        evaluate_with(op, &s, &self.literals(), 0, &[]).map_err(|e| e.to_string())
    }

    /// As [`Given::on_cuda`], with any compiler for the CPU.
    pub fn on_shim(
        &self,
        driver: &mut Sim,
        compiler: &mut dyn Compiler,
        op: &dyn OpDef,
    ) -> Result<Vec<Literal>, String> {
        let s = self.signature().ok_or("folded")?;
        evaluate(driver, compiler, op, &s, &self.literals(), &[])
    }

    pub fn on_cuda(
        &self,
        driver: &mut Sim,
        compiler: &mut HostCompiler,
        op: &dyn OpDef,
        overwrite: &[(usize, usize)],
    ) -> Result<Vec<Literal>, String> {
        let s = self.signature().ok_or("folded")?;
        evaluate(driver, compiler, op, &s, &self.literals(), overwrite)
    }
}

/// A case of an operator with elements drawn.
pub fn case_of(op: &dyn OpDef, case: &Case, dtype: DType, seed: u64) -> Result<Given, String> {
    let mut rng = StdRng::seed_from_u64(seed);
    let draw = |c: &ops::case::CaseInput, rng: &mut StdRng| {
        let dtype = c.dtype.unwrap_or(dtype);
        let values = c.fill.draw(c.shape.iter().product(), &mut || rng.random());
        let bytes: Vec<u8> =
            values.iter().flat_map(|v| Literal::scalar(dtype, *v).bytes().to_vec()).collect();
        Literal::new(dtype, c.shape.iter().map(|d| *d as u64).collect(), bytes).unwrap()
    };
    let elements = case.inputs.iter().map(|i| i.as_ref().map(|c| draw(c, &mut rng))).collect();
    Given::new(op, case.attrs.clone(), elements)
}

/// Compares a node on both sides, plainly and with every lawful overwrite; `false` if it has no kernel, or nothing of it is executed.
pub fn run(
    driver: &mut Sim,
    compiler: &mut HostCompiler,
    op: &dyn OpDef,
    given: &Given,
) -> Result<bool, String> {
    let Some(s) = given.signature() else { return Ok(false) };
    let facts = op.facts(&s);
    if op.cuda(&s).is_err() || (!s.outputs.is_empty() && facts.views.len() == s.outputs.len()) {
        return Ok(false);
    }
    let expected = given.on_cpu(op)?;
    let dtype = s.outputs.first().map(|t| t.dtype);
    let tolerance = if dtype == Some(DType::F64) { 1e-12 } else { 3e-6 };
    let plain: &[(usize, usize)] = &[];
    for overwrite in std::iter::once(plain).chain(facts.overwrites.iter().map(std::slice::from_ref)) {
        let got = given.on_cuda(driver, compiler, op, overwrite)?;
        for (i, (e, g)) in expected.iter().zip(&got).enumerate() {
            compare(e, g, tolerance).map_err(|e| format!("output {i}, overwriting {overwrite:?}: {e}"))?;
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
