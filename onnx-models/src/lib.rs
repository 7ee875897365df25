//! Writes ONNX models of any size with seeded weights: what examples, tests and benches train when no exporter is at hand.
//!
//! Opset 17, as exporters write training graphs: BatchNormalization with `training_mode` 1 and its running statistics as outputs that
//! nothing reads, weights as initializers named like PyTorch's, the loss inside of the graph if asked for. The same configuration gives the
//! same bytes on every machine.

mod builder;
mod front;
mod loops;
mod mlp;
mod movement;
mod random;
mod resnet;
mod transformer;
mod unet;

pub use builder::Common;
pub use front::BranchFirst;
pub use loops::{LoopLstm, Springs, TreeLstm};
pub use mlp::Mlp;
pub use movement::RandomMovement;
pub use onnx_protobuf::ModelProto;
pub use random::RandomProgram;
pub use resnet::ResNet;
pub use transformer::Transformer;
pub use unet::UNet;

use protobuf::Message;

/// The bytes of a model file, or an error beyond 2 GiB, where a model needs external data.
pub fn to_bytes(model: &ModelProto) -> Result<Vec<u8>, protobuf::Error> {
    model.write_to_bytes()
}

/// The small models beside this crate's sources: file name and model.
pub fn tiny() -> Vec<(&'static str, ModelProto)> {
    let common = |batch| Common { batch, dynamic: false, loss: true, seed: 0 };
    vec![
        ("mlp_tiny.onnx", Mlp { inputs: 32, hidden: vec![64, 64], classes: 10 }.build(&common(16))),
        (
            "resnet_tiny.onnx",
            ResNet { depth: 8, width: 16, classes: 10, size: 32, channels: 3 }.build(&common(16)),
        ),
        (
            "resnet20.onnx",
            ResNet { depth: 20, width: 16, classes: 10, size: 32, channels: 3 }.build(&common(64)),
        ),
        ("unet_tiny.onnx", UNet { levels: 2, width: 8, classes: 2, size: 32, channels: 3 }.build(&common(4))),
        (
            "transformer_tiny.onnx",
            Transformer { layers: 2, width: 64, heads: 4, vocabulary: 128, sequence: 32 }.build(&common(4)),
        ),
    ]
}
