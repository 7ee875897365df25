//! Weights and data made from seeds: those of the full-size models are too large to carry.

use compiler::import::Weights;
use graph::{DType, InputRole, Literal, TensorType};
use plan::Program;
use rand::{Rng, SeedableRng, rngs::StdRng};
use runtime::WeightSource;
use serde_json::Value;

/// A model's own weights where the file has them; the others by the index of what they are to be filled with, each from its name.
pub struct Seeded<'a> {
    /// The model's.
    pub own: &'a Weights,
    /// `tensors` of the model in `weights_index.json`, if it has some.
    pub index: Option<&'a Value>,
}

impl WeightSource for Seeded<'_> {
    fn load(
        &mut self,
        name: &str,
        ty: &TensorType,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let fill = self.index.and_then(|i| i.get(name)?.get("fill")?.as_str());
        let Some(fill) = fill else {
            let read = self.own.read(name, &mut |chunk| sink(chunk).map_err(std::io::Error::other));
            return read.map_err(|e| e.to_string());
        };
        if ty.dtype != DType::F32 {
            return Err(format!("{} cannot be made from a seed", ty.dtype));
        }
        let n = ty.shape.elements().ok_or("its size is unknown")?;
        let hash = blake3::hash(name.as_bytes());
        let mut rng = StdRng::from_seed(*hash.as_bytes());
        let constant = match fill {
            "ones" => Some(1.0),
            "zeros" => Some(0.0),
            other => other
                .strip_prefix("const:")
                .map(|c| c.parse().map_err(|_| format!("fill {other:?}")))
                .transpose()?,
        };
        let mut chunk = Vec::with_capacity(1 << 18);
        for _ in 0..n {
            let x: f32 = constant.unwrap_or_else(|| normal(&mut rng) * 0.02);
            chunk.extend_from_slice(&x.to_le_bytes());
            if chunk.len() >= 1 << 18 {
                sink(&chunk)?;
                chunk.clear();
            }
        }
        sink(&chunk)
    }
}

/// One number of the standard normal distribution (Box and Muller, 1958).
fn normal(rng: &mut StdRng) -> f32 {
    let (u, v): (f32, f32) = (1.0 - rng.random::<f32>(), rng.random());
    (-2.0 * u.ln()).sqrt() * (std::f32::consts::TAU * v).cos()
}

/// Elements of every input that a program takes from data: floats uniform in [-1, 1), integers below `classes`; `ones` names inputs that
/// are all ones.
pub fn batch(program: &Program, classes: &[(&str, u64)], ones: &[&str], seed: u64) -> Vec<(String, Vec<u8>)> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut all = Vec::new();
    for i in program.graph.inputs.iter().filter(|i| matches!(i.role, InputRole::Data | InputRole::Label)) {
        let value = program.graph.value(i.value);
        let (dtype, n) = (value.ty.dtype, value.ty.shape.elements().unwrap_or(0));
        let below = classes.iter().find(|c| c.0 == &*value.name).map_or(2, |c| c.1);
        let mut bytes = Vec::with_capacity((n * dtype.size()) as usize);
        for _ in 0..n {
            let x = if ones.contains(&&*value.name) {
                1.0
            } else if dtype.is_float() {
                rng.random_range(-1.0..1.0)
            } else {
                rng.random_range(0..below) as f64
            };
            match dtype {
                DType::F32 => bytes.extend_from_slice(&(x as f32).to_le_bytes()),
                DType::I64 => bytes.extend_from_slice(&(x as i64).to_le_bytes()),
                other => bytes.extend_from_slice(Literal::scalar(other, x).bytes()),
            }
        }
        all.push((value.name.to_string(), bytes));
    }
    all
}
