//! Data and weights made up where there are none: enough to run and to measure a step, not to learn from.

use crate::{error::CliError, model::ModelWeights};
use graph::{DType, TensorType};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use runtime::{
    WeightSource,
    data::dataset::{BatchArray, Wanted},
};

/// Random elements of an input: floats uniform in [-1, 1), integers in [0, classes).
fn made_up(w: &Wanted, classes: u64, rng: &mut ChaCha8Rng) -> Vec<u8> {
    let n = w.ty.shape.elements().unwrap_or(0);
    let mut out = Vec::with_capacity((n * w.ty.dtype.size()) as usize);
    for _ in 0..n {
        match w.ty.dtype {
            DType::F32 => out.extend_from_slice(&rng.random_range(-1.0f32..1.0).to_le_bytes()),
            dtype if dtype.is_float() => {
                out.extend_from_slice(graph::Literal::scalar(dtype, rng.random_range(-1.0..1.0)).bytes())
            }
            DType::Bool => out.push(1),
            dtype => out.extend_from_slice(
                graph::Literal::scalar(dtype, rng.random_range(0..classes.max(1)) as f64).bytes(),
            ),
        }
    }
    out
}

/// The number of classes that made-up integers stay below: the least extent that any gather or label is checked against, or 2.
pub fn classes(program: &plan::Program) -> u64 {
    let g = &program.graph;
    let mut least = None::<u64>;
    for n in &g.nodes {
        let bound = match &*n.op {
            "SoftmaxCrossEntropyLoss" | "NegativeLogLikelihoodLoss" => {
                n.inputs.first().copied().flatten().and_then(|v| g.ty(v).shape.0.get(1).cloned())
            }
            "LinearCrossEntropy" => n.inputs.get(1).copied().flatten().and_then(|v| {
                let turned = n.attrs.int_or("trans_b", 0) == Ok(1);
                g.ty(v).shape.0.get(usize::from(!turned)).cloned()
            }),
            "Gather" => n.inputs.first().copied().flatten().and_then(|v| {
                let axis = n.attrs.int_or("axis", 0).ok()?;
                g.ty(v).shape.0.get(usize::try_from(axis).ok()?).cloned()
            }),
            _ => None,
        };
        if let Some(b) = bound.and_then(|d| d.as_const()).and_then(|b| u64::try_from(b).ok()) {
            least = Some(least.map_or(b, |l| l.min(b)));
        }
    }
    least.unwrap_or(2)
}

/// Refuses to make up what has no size yet.
///
/// # Errors
///
/// An input has an open size: exit code 64.
pub fn check_sizes(program: &plan::Program) -> Result<(), CliError> {
    let wanted = crate::session::wanted(program);
    match wanted.iter().find(|w| w.ty.shape.fixed().is_none()) {
        None => Ok(()),
        Some(w) => Err(CliError::usage(format!(
            "--synthetic needs sizes, and input {:?} is {}: bind them with --dim (see dtrc show), or give --data",
            w.name, w.ty
        ))),
    }
}

/// Made-up elements of an input as a batch has them.
pub fn made_up_array(w: &Wanted, classes: u64, rng: &mut ChaCha8Rng) -> BatchArray {
    let shape = w.ty.shape.fixed().unwrap_or_default().into_iter().map(|d| d as u64).collect();
    BatchArray { name: w.name.clone(), shape, bytes: made_up(w, classes, rng) }
}

/// One made-up batch of everything that a program takes from data.
pub fn batch(program: &plan::Program, seed: u64) -> Vec<BatchArray> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let classes = classes(program);
    let wanted = crate::session::wanted(program);
    wanted.iter().map(|w| made_up_array(w, classes, &mut rng)).collect()
}

/// A model's own weights, and small positive numbers where their file is absent.
pub struct OrMadeUp<'a> {
    /// The model's own.
    pub own: ModelWeights<'a>,
    /// How many were made up.
    pub made_up: usize,
}

impl WeightSource for OrMadeUp<'_> {
    fn load(
        &mut self,
        name: &str,
        ty: &TensorType,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut given = false;
        let own = self.own.load(name, ty, &mut |bytes| {
            given = true;
            sink(bytes)
        });
        let absent = !self.own.0.absent_files().is_empty();
        if own.is_ok() || given || !absent {
            return own;
        }
        self.made_up += 1;
        let elements = ty.shape.elements().ok_or("its size is unknown")?;
        let value = if ty.dtype.is_float() { 0.03125 } else { 0.0 };
        let chunk = graph::Literal::filled(ty.dtype, vec![elements.clamp(1, 1 << 16)], value)
            .map_err(|e| e.to_string())?;
        let (mut left, size) = ((elements * ty.dtype.size()) as usize, chunk.bytes().len());
        while left > 0 {
            sink(&chunk.bytes()[..left.min(size)])?;
            left -= left.min(size);
        }
        Ok(())
    }
}
