//! A decoder-only transformer in the manner of GPT-2: causal attention, LayerNormalization before each part, exact GELU, the embedding
//! table used again for the scores.

use crate::{
    Common, ModelProto,
    builder::{Builder, Value},
};
use onnx_protobuf::tensor_proto::DataType;

/// Extents of a transformer on `input_ids` of shape `[batch, sequence]`.
#[derive(Clone, Debug)]
pub struct Transformer {
    /// Number of blocks.
    pub layers: u32,
    /// Features of a token; a multiple of `heads`.
    pub width: u32,
    /// Attention heads.
    pub heads: u32,
    /// Number of tokens that there are.
    pub vocabulary: u32,
    /// Tokens of a sample.
    pub sequence: u32,
}

impl Transformer {
    /// The model. Its scores are `[batch * sequence, vocabulary]`; the loss takes `target` of shape `[batch, sequence]`, not shifted.
    pub fn build(&self, common: &Common) -> ModelProto {
        let mut b = Builder::new("transformer", common);
        let ids = b.input("input_ids", DataType::INT64, &[self.sequence]);
        let (t, c) = (self.sequence as usize, self.width);
        let table = b.weight("wte.weight", &[self.vocabulary, c], 0.02 * 3f32.sqrt());
        let positions = b.weight("wpe.weight", &[self.sequence, c], 0.02 * 3f32.sqrt());
        let causal = (0..t * t).map(|i| u8::from(i % t <= i / t)).collect();
        let shared = Shared {
            causal: b.tensor("causal", DataType::BOOL, &[self.sequence, self.sequence], causal),
            low: b.filled("masked", &[], f32::NEG_INFINITY),
            scale: b.filled("attention.scale", &[], (self.heads as f32 / c as f32).sqrt()),
            thirds: b.ints("attention.thirds", &[i64::from(c); 3]),
            split: b.ints("attention.split", &[0, 0, i64::from(self.heads), i64::from(c / self.heads)]),
            joined: b.ints("attention.joined", &[0, 0, i64::from(c)]),
            half: b.filled("gelu.half", &[], 0.5),
            one: b.filled("gelu.one", &[], 1.0),
            root: b.filled("gelu.root", &[], std::f32::consts::SQRT_2),
        };
        let h = b.with("Gather", "wte", &[&table, &ids], &[("axis", Value::Int(0))]);
        let mut h = b.call("Add", "embeddings", &[&h, &positions]);
        for i in 0..self.layers {
            h = self.block(&mut b, &shared, &format!("h.{i}"), &h);
        }
        let h = norm(&mut b, "ln_f", &h, c);
        let rows = b.ints("rows", &[-1, i64::from(c)]);
        let h = b.call("Reshape", "tokens", &[&h, &rows]);
        let out = b.with("Transpose", "lm_head.transpose", &[&table], &[("perm", Value::Ints(&[1, 0]))]);
        let scores = b.call("MatMul", "lm_head", &[&h, &out]);
        if !common.loss {
            return b.finish(&scores, &[]);
        }
        let target = b.input("target", DataType::INT64, &[self.sequence]);
        let all = b.ints("all", &[-1]);
        let target = b.call("Reshape", "targets", &[&target, &all]);
        b.finish_loss(&scores, &target)
    }

    fn block(&self, b: &mut Builder, s: &Shared, name: &str, x: &str) -> String {
        let c = self.width;
        let n = |part: &str| format!("{name}.{part}");
        let h = norm(b, &n("ln_1"), x, c);
        let qkv = linear(b, &n("attn.c_attn"), &h, c, 3 * c);
        let parts = b.node("Split", &n("attn.split"), &[&qkv, &s.thirds], 3, &[("axis", Value::Int(2))]);
        let head = |b: &mut Builder, part: &str, what: &str, perm: &[i64]| {
            let r = b.call("Reshape", &n(&format!("attn.{what}.heads")), &[part, &s.split]);
            b.with("Transpose", &n(&format!("attn.{what}")), &[&r], &[("perm", Value::Ints(perm))])
        };
        let q = head(b, &parts[0], "q", &[0, 2, 1, 3]);
        let k = head(b, &parts[1], "k", &[0, 2, 3, 1]);
        let v = head(b, &parts[2], "v", &[0, 2, 1, 3]);
        let scores = b.call("MatMul", &n("attn.qk"), &[&q, &k]);
        let scores = b.call("Mul", &n("attn.scaled"), &[&scores, &s.scale]);
        let scores = b.call("Where", &n("attn.masked"), &[&s.causal, &scores, &s.low]);
        let weights = b.with("Softmax", &n("attn.softmax"), &[&scores], &[("axis", Value::Int(-1))]);
        let mixed = b.call("MatMul", &n("attn.mixed"), &[&weights, &v]);
        let mixed = b.with("Transpose", &n("attn.back"), &[&mixed], &[("perm", Value::Ints(&[0, 2, 1, 3]))]);
        let mixed = b.call("Reshape", &n("attn.joined"), &[&mixed, &s.joined]);
        let mixed = linear(b, &n("attn.c_proj"), &mixed, c, c);
        let x = b.call("Add", &n("add_1"), &[x, &mixed]);
        let h = norm(b, &n("ln_2"), &x, c);
        let h = linear(b, &n("mlp.c_fc"), &h, c, 4 * c);
        // 0.5 h (1 + erf(h / sqrt 2))
        let e = b.call("Div", &n("mlp.gelu.div"), &[&h, &s.root]);
        let e = b.call("Erf", &n("mlp.gelu.erf"), &[&e]);
        let e = b.call("Add", &n("mlp.gelu.add"), &[&e, &s.one]);
        let h = b.call("Mul", &n("mlp.gelu.mul"), &[&h, &e]);
        let h = b.call("Mul", &n("mlp.gelu"), &[&h, &s.half]);
        let h = linear(b, &n("mlp.c_proj"), &h, 4 * c, c);
        b.call("Add", &n("add_2"), &[&x, &h])
    }
}

/// Names of the constants that all blocks read.
struct Shared {
    causal: String,
    low: String,
    scale: String,
    thirds: String,
    split: String,
    joined: String,
    half: String,
    one: String,
    root: String,
}

fn norm(b: &mut Builder, name: &str, x: &str, c: u32) -> String {
    let scale = b.filled(&format!("{name}.weight"), &[c], 1.0);
    let bias = b.filled(&format!("{name}.bias"), &[c], 0.0);
    let attrs = [("axis", Value::Int(-1)), ("epsilon", Value::Float(1e-5))];
    b.with("LayerNormalization", name, &[x, &scale, &bias], &attrs)
}

/// A dense layer on the last axis, its weight stored as `[from, to]`.
fn linear(b: &mut Builder, name: &str, x: &str, from: u32, to: u32) -> String {
    let w = b.weight(&format!("{name}.weight"), &[from, to], 0.02 * 3f32.sqrt());
    let bias = b.filled(&format!("{name}.bias"), &[to], 0.0);
    let h = b.call("MatMul", &format!("{name}.matmul"), &[x, &w]);
    b.call("Add", name, &[&h, &bias])
}
