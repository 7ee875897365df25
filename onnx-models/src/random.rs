//! Random programs with loops and branches, for property tests: whatever the seed, the same numbers at every budget.

use crate::{
    Common, ModelProto,
    builder::{Builder, Value},
};
use onnx_protobuf::tensor_proto::DataType;

/// Features of every tensor of a random program.
const WIDTH: u32 = 8;

/// A program over `x` of shape `[batch, 8]`: loops whose trip counts are known or computed, branches that depend on the data or on the
/// iteration, trained weights inside and outside. The loss is the mean of squares.
#[derive(Clone, Copy, Debug)]
pub struct RandomProgram {
    /// The same seed gives the same program.
    pub seed: u64,
}

/// Small numbers that depend on a seed only.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// What names are free, and what weights there are.
struct Writer {
    draw: Draw,
    count: u32,
    weights: Vec<String>,
    zero: String,
    ten: String,
}

impl RandomProgram {
    /// The model.
    pub fn build(&self, common: &Common) -> ModelProto {
        let mut b = Builder::new("random", common);
        let x = b.input("x", DataType::FLOAT, &[WIDTH]);
        let bound = (1.0 / WIDTH as f32).sqrt();
        let weights = (0..3).map(|i| b.weight(&format!("w{i}"), &[WIDTH, WIDTH], bound)).collect();
        let (zero, ten) = (b.filled("zero", &[], 0.0), b.filled("ten", &[], 10.0));
        let mut w = Writer { draw: Draw(self.seed), count: 0, weights, zero, ten };
        let mut live = vec![x.clone(), b.call("MatMul", "h", &[&x, "w0"])];
        for _ in 0..2 + w.draw.below(3) {
            let made = match w.draw.below(4) {
                0 => w.branch(&mut b, &live),
                1 | 2 => w.repeat(&mut b, &live),
                _ => w.op(&mut b, &live),
            };
            live.push(made);
        }
        // Whatever is drawn, one weight is trained.
        let sum = b.call("Add", "sum", &[&live[live.len() - 1], "h"]);
        let square = b.call("Mul", "squares", &[&sum, &sum]);
        let loss = b.with("ReduceMean", "loss", &[&square], &[("keepdims", Value::Int(0))]);
        b.output(&loss)
    }
}

impl Writer {
    fn name(&mut self, what: &str) -> String {
        self.count += 1;
        format!("{what}{}", self.count)
    }

    fn pick<'a>(&mut self, live: &'a [String]) -> &'a String {
        let near = live.len().min(3) as u64;
        &live[live.len() - 1 - self.draw.below(near) as usize]
    }

    /// One operator on what is there.
    fn op(&mut self, g: &mut Builder, live: &[String]) -> String {
        let (a, b) = (self.pick(live).clone(), self.pick(live).clone());
        let name = self.name("n");
        match self.draw.below(6) {
            0 => g.call("Tanh", &name, &[&a]),
            1 => g.call("Sigmoid", &name, &[&a]),
            2 => {
                // What grows without bound would only compare infinities.
                let product = g.call("Mul", &format!("{name}.product"), &[&a, &b]);
                g.call("Tanh", &name, &[&product])
            }
            3 | 4 => {
                let at = self.draw.below(self.weights.len() as u64) as usize;
                let weight = self.weights[at].clone();
                g.call("MatMul", &name, &[&a, &weight])
            }
            _ => g.call("Add", &name, &[&a, &b]),
        }
    }

    /// A branch on the sign of a mean.
    fn branch(&mut self, g: &mut Builder, live: &[String]) -> String {
        let name = self.name("if");
        let of = self.pick(live).clone();
        let mean = g.with("ReduceMean", &format!("{name}.mean"), &[&of], &[("keepdims", Value::Int(0))]);
        let zero = self.zero.clone();
        let positive = g.call("Greater", &format!("{name}.positive"), &[&mean, &zero]);
        let bodies = ["then_branch", "else_branch"].map(|side| {
            let mut body = g.body(&format!("{name}.{side}"));
            let mut inner = live.to_vec();
            for _ in 0..1 + self.draw.below(3) {
                let made = self.op(&mut body, &inner);
                inner.push(made);
            }
            let result = inner[inner.len() - 1].clone();
            (side, Value::Graph(body.end(&[(&result, DataType::FLOAT, false)])))
        });
        g.node("If", &name, &[&positive], 1, &bodies)[0].clone()
    }

    /// A loop that carries one value.
    fn repeat(&mut self, g: &mut Builder, live: &[String]) -> String {
        let name = self.name("loop");
        let start = self.pick(live).clone();
        let times = 1 + self.draw.below(6) as i64;
        let count = if self.draw.below(2) == 0 {
            g.tensor(&format!("{name}.times"), DataType::INT64, &[], times.to_le_bytes().to_vec())
        } else {
            // As many as tenths of the mean's sigmoid.
            let mean =
                g.with("ReduceMean", &format!("{name}.mean"), &[&start], &[("keepdims", Value::Int(0))]);
            let share = g.call("Sigmoid", &format!("{name}.share"), &[&mean]);
            let ten = self.ten.clone();
            let tenths = g.call("Mul", &format!("{name}.tenths"), &[&share, &ten]);
            g.with("Cast", &format!("{name}.times"), &[&tenths], &[("to", Value::Int(7))])
        };
        let mut body = g.body(&format!("{name}.body"));
        let [_, go] = body.iteration();
        let carried = body.carried(&format!("{name}.carried"), DataType::FLOAT);
        let mut inner = live.to_vec();
        inner.push(carried);
        for _ in 0..1 + self.draw.below(4) {
            let made = if self.draw.below(5) == 0 {
                self.branch(&mut body, &inner)
            } else {
                self.op(&mut body, &inner)
            };
            inner.push(made);
        }
        let go = body.call("Identity", &format!("{name}.go"), &[&go]);
        let next = inner[inner.len() - 1].clone();
        let body = body.end(&[(&go, DataType::BOOL, false), (&next, DataType::FLOAT, false)]);
        g.node("Loop", &name, &[&count, "", &start], 1, &[("body", Value::Graph(body))])[0].clone()
    }
}
