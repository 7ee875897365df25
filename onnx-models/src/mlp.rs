//! A multilayer perceptron: dense layers with ReLU between.

use crate::{Common, ModelProto, builder::Builder};
use onnx_protobuf::tensor_proto::DataType;

/// Extents of a multilayer perceptron on `x` of shape `[batch, inputs]`.
#[derive(Clone, Debug)]
pub struct Mlp {
    /// Features of the input.
    pub inputs: u32,
    /// Features of each hidden layer.
    pub hidden: Vec<u32>,
    /// Classes.
    pub classes: u32,
}

impl Mlp {
    /// The model.
    pub fn build(&self, common: &Common) -> ModelProto {
        let mut b = Builder::new("mlp", common);
        let mut x = b.input("x", DataType::FLOAT, &[self.inputs]);
        let mut from = self.inputs;
        for (i, to) in self.hidden.iter().enumerate() {
            let h = b.gemm(&format!("fc{}", i + 1), &x, from, *to);
            x = b.call("Relu", &format!("relu{}", i + 1), &[&h]);
            from = *to;
        }
        let y = b.gemm(&format!("fc{}", self.hidden.len() + 1), &x, from, self.classes);
        b.finish(&y, &[])
    }
}
