//! The model's own weights for a session.

use compiler::import::Weights;
use graph::TensorType;
use runtime::WeightSource;

/// The model's own weights, streamed from its files.
pub struct ModelWeights<'a>(pub &'a Weights);

impl WeightSource for ModelWeights<'_> {
    fn load(
        &mut self,
        name: &str,
        ty: &TensorType,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let weight = self.0.get(name).ok_or("the model has no such tensor")?;
        if weight.tensor.ty() != *ty {
            return Err(format!("the model's is {}, the plan's {ty}", weight.tensor.ty()));
        }
        self.0.read(name, &mut |chunk| sink(chunk).map_err(std::io::Error::other)).map_err(|e| e.to_string())
    }
}
