//! A U-Net (Ronneberger et al. 2015) with BatchNormalization: an encoder, a decoder, and skip connections that live long.

use crate::{
    Common, ModelProto,
    builder::{Builder, Value},
};
use onnx_protobuf::tensor_proto::DataType;

/// Extents of a U-Net on `x` of shape `[batch, channels, size, size]`; scores are per pixel.
#[derive(Clone, Debug)]
pub struct UNet {
    /// Times that the extents are halved; `size` must be a multiple of `2^levels`.
    pub levels: u32,
    /// Channels at full resolution; each level has twice as many.
    pub width: u32,
    /// Classes of a pixel.
    pub classes: u32,
    /// Rows and columns of the image.
    pub size: u32,
    /// Channels of the image.
    pub channels: u32,
}

impl UNet {
    /// The model.
    pub fn build(&self, common: &Common) -> ModelProto {
        let mut b = Builder::new("unet", common);
        let x = b.input("x", DataType::FLOAT, &[self.channels, self.size, self.size]);
        let mut h = double_conv(&mut b, "inc", &x, [self.channels, self.width]);
        let mut skips = Vec::new();
        for level in 1..=self.levels {
            let (from, to) = (self.width << (level - 1), self.width << level);
            skips.push(h.clone());
            let attrs = [("kernel_shape", Value::Ints(&[2, 2])), ("strides", Value::Ints(&[2, 2]))];
            let pooled = b.with("MaxPool", &format!("down{level}.pool"), &[&h], &attrs);
            h = double_conv(&mut b, &format!("down{level}"), &pooled, [from, to]);
        }
        for level in (1..=self.levels).rev() {
            let (from, to) = (self.width << level, self.width << (level - 1));
            let name = format!("up{level}");
            let bound = (1.0 / (to * 4) as f32).sqrt();
            let w = b.weight(&format!("{name}.weight"), &[from, to, 2, 2], bound);
            let bias = b.weight(&format!("{name}.bias"), &[to], bound);
            let attrs = [("kernel_shape", Value::Ints(&[2, 2])), ("strides", Value::Ints(&[2, 2]))];
            let up = b.with("ConvTranspose", &name, &[&h, &w, &bias], &attrs);
            let skip = skips.pop().unwrap_or_default();
            let both = b.with("Concat", &format!("{name}.concat"), &[&skip, &up], &[("axis", Value::Int(1))]);
            h = double_conv(&mut b, &format!("{name}.conv"), &both, [from, to]);
        }
        let y = b.conv("outc", &h, [self.width, self.classes], 1, 1, true);
        b.finish(&y, &[self.size, self.size])
    }
}

fn double_conv(b: &mut Builder, name: &str, x: &str, c: [u32; 2]) -> String {
    let mut h = x.to_owned();
    for (i, from) in [c[0], c[1]].into_iter().enumerate() {
        h = b.conv(&format!("{name}.{i}.conv"), &h, [from, c[1]], 3, 1, false);
        h = b.batch_norm(&format!("{name}.{i}.bn"), &h, c[1]);
        h = b.call("Relu", &format!("{name}.{i}.relu"), &[&h]);
    }
    h
}
