//! A residual network of basic blocks (He et al. 2015): three stages behind a 3x3 stem for small images, four behind a strided stem and
//! pooling from 64 pixels on.

use crate::{
    Common, ModelProto,
    builder::{Builder, Value},
};
use onnx_protobuf::tensor_proto::DataType;

/// Extents of a residual network on `x` of shape `[batch, channels, size, size]`.
#[derive(Clone, Debug)]
pub struct ResNet {
    /// Layers with weights; blocks a stage are `(depth - 2) / (2 * stages)`, at least one.
    pub depth: u32,
    /// Channels of the first stage; each further stage has twice as many.
    pub width: u32,
    /// Classes.
    pub classes: u32,
    /// Rows and columns of the image.
    pub size: u32,
    /// Channels of the image.
    pub channels: u32,
}

impl ResNet {
    /// The model.
    pub fn build(&self, common: &Common) -> ModelProto {
        let mut b = Builder::new("resnet", common);
        let x = b.input("x", DataType::FLOAT, &[self.channels, self.size, self.size]);
        let large = self.size >= 64;
        let (kernel, stride, stages) = if large { (7, 2, 4) } else { (3, 1, 3) };
        let h = b.conv("conv1", &x, [self.channels, self.width], kernel, stride, false);
        let h = b.batch_norm("bn1", &h, self.width);
        let mut h = b.call("Relu", "relu", &[&h]);
        if large {
            let attrs = [
                ("kernel_shape", Value::Ints(&[3, 3])),
                ("pads", Value::Ints(&[1, 1, 1, 1])),
                ("strides", Value::Ints(&[2, 2])),
            ];
            h = b.with("MaxPool", "maxpool", &[&h], &attrs);
        }
        let blocks = (self.depth.saturating_sub(2) / (2 * stages)).max(1);
        let mut from = self.width;
        for stage in 0..stages {
            let to = self.width << stage;
            for block in 0..blocks {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                h = basic_block(&mut b, &format!("layer{}.{block}", stage + 1), &h, [from, to], stride);
                from = to;
            }
        }
        let h = b.call("GlobalAveragePool", "avgpool", &[&h]);
        let h = b.with("Flatten", "flatten", &[&h], &[("axis", Value::Int(1))]);
        let y = b.gemm("fc", &h, from, self.classes);
        b.finish(&y, &[])
    }
}

fn basic_block(b: &mut Builder, name: &str, x: &str, c: [u32; 2], stride: u32) -> String {
    let h = b.conv(&format!("{name}.conv1"), x, c, 3, stride, false);
    let h = b.batch_norm(&format!("{name}.bn1"), &h, c[1]);
    let h = b.call("Relu", &format!("{name}.relu1"), &[&h]);
    let h = b.conv(&format!("{name}.conv2"), &h, [c[1], c[1]], 3, 1, false);
    let h = b.batch_norm(&format!("{name}.bn2"), &h, c[1]);
    let shortcut = if stride != 1 || c[0] != c[1] {
        let s = b.conv(&format!("{name}.downsample.0"), x, c, 1, stride, false);
        b.batch_norm(&format!("{name}.downsample.1"), &s, c[1])
    } else {
        x.to_owned()
    };
    let h = b.call("Add", &format!("{name}.add"), &[&h, &shortcut]);
    b.call("Relu", &format!("{name}.relu2"), &[&h])
}
