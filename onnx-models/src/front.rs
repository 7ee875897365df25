//! A branch before a static middle: what the branch leaves for its gradient is in the way while the middle is at its peak.

use crate::{
    Common, ModelProto,
    builder::{Builder, Value},
};
use onnx_protobuf::tensor_proto::DataType;

/// Features before and after the middle.
const WIDTH: u32 = 16;

/// `x` of shape `[batch, 16]` goes through a branch on the sign of its mean, `depth` dense layers with tanh or half as many with sigmoid
/// over the same weight, and then through one layer of `wide` features to scores of 4 classes.
#[derive(Clone, Copy, Debug)]
pub struct BranchFirst {
    /// Layers of the deeper branch; 0 leaves the branch out.
    pub depth: u32,
    /// Features of the middle; 0 leaves it out.
    pub wide: u32,
}

impl BranchFirst {
    /// The model.
    pub fn build(&self, common: &Common) -> ModelProto {
        let mut b = Builder::new("branch_first", common);
        let mut h = b.input("x", DataType::FLOAT, &[WIDTH]);
        if self.depth > 0 {
            let weight = b.weight("branch.weight", &[WIDTH, WIDTH], 0.5);
            let zero = b.filled("zero", &[], 0.0);
            let mean = b.with("ReduceMean", "mean", &[&h], &[("keepdims", Value::Int(0))]);
            let positive = b.call("Greater", "positive", &[&mean, &zero]);
            let side = |name: &'static str, op: &str, depth: u32| {
                let mut body = b.body(name);
                let mut y = h.clone();
                for i in 0..depth {
                    let product = body.call("MatMul", &format!("{name}.{i}.product"), &[&y, &weight]);
                    y = body.call(op, &format!("{name}.{i}"), &[&product]);
                }
                (name, Value::Graph(body.end(&[(&y, DataType::FLOAT, false)])))
            };
            let sides = [
                side("then_branch", "Tanh", self.depth),
                side("else_branch", "Sigmoid", self.depth.div_ceil(2)),
            ];
            h = b.node("If", "branch", &[&positive], 1, &sides).swap_remove(0);
        }
        let mut features = WIDTH;
        if self.wide > 0 {
            let up = b.gemm("up", &h, WIDTH, self.wide);
            h = b.call("Tanh", "wide", &[&up]);
            features = self.wide;
        }
        let scores = b.gemm("down", &h, features, 4);
        b.finish(&scores, &[])
    }
}
