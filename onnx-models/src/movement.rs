//! Random models that move their data about: slices, parts, transposes and joins in small and odd shapes, for property tests.

use crate::{
    Common, ModelProto,
    builder::{Builder, Value},
    random::Draw,
};
use onnx_protobuf::tensor_proto::DataType;

/// No tensor gets more elements.
const LARGEST: u32 = 4096;

/// A model over `x` of shape `[batch, 6, 8]` whose operators are mostly such that their results can lie on their inputs' bytes, or take them
/// over. The loss is the sum of the means of everything that nothing else reads.
#[derive(Clone, Copy, Debug)]
pub struct RandomMovement {
    /// The same seed gives the same model.
    pub seed: u64,
}

/// A tensor: its name, its extents, and whether something reads it.
struct Tensor {
    name: String,
    dims: Vec<u32>,
    read: bool,
}

struct Writer {
    draw: Draw,
    b: Builder,
    made: Vec<Tensor>,
    count: u32,
}

impl RandomMovement {
    /// The model. Its batch is fixed.
    pub fn build(&self, common: &Common) -> ModelProto {
        let mut b = Builder::new("movement", common);
        let x = b.input("x", DataType::FLOAT, &[6, 8]);
        let weight = b.weight("w", &[8, 8], 0.5);
        let h = b.call("MatMul", "h", &[&x, &weight]);
        let made = vec![Tensor { name: h, dims: vec![common.batch, 6, 8], read: false }];
        let mut w = Writer { draw: Draw(self.seed), b, made, count: 0 };
        for _ in 0..4 + w.draw.below(12) {
            w.node();
        }
        w.loss()
    }
}

impl Writer {
    fn below(&mut self, n: usize) -> usize {
        self.draw.below(n as u64) as usize
    }

    fn name(&mut self, what: &str) -> String {
        self.count += 1;
        format!("{what}{}", self.count)
    }

    fn push(&mut self, name: String, dims: Vec<u32>) {
        self.made.push(Tensor { name, dims, read: false });
    }

    /// One of the tensors, mostly a late one.
    fn pick(&mut self) -> (String, Vec<u32>) {
        let near = if self.below(4) == 0 { self.made.len() } else { self.made.len().min(3) };
        let at = self.made.len() - 1 - self.below(near);
        self.made[at].read = true;
        (self.made[at].name.clone(), self.made[at].dims.clone())
    }

    fn node(&mut self) {
        let (from, dims) = self.pick();
        let axis = self.below(dims.len());
        match self.below(10) {
            0 | 1 => self.slice(&from, &dims, axis),
            2 => self.split(&from, dims, axis),
            3 => self.transpose(&from, &dims),
            4 => self.reshape(&from, &dims),
            5 => self.join(&from, dims, axis),
            6 => self.product(&from, dims),
            7 => {
                let name = self.name("sum");
                let axes = self.b.ints(&format!("{name}.axes"), &[axis as i64]);
                self.b.call("ReduceSum", &name, &[&from, &axes]);
                let mut dims = dims;
                dims[axis] = 1;
                self.push(name, dims);
            }
            _ => self.pointwise(&from, dims),
        }
    }

    fn slice(&mut self, from: &str, dims: &[u32], axis: usize) {
        let extent = dims[axis] as usize;
        let begin = self.below(extent);
        let end = begin + 1 + self.below(extent - begin);
        let step = 1 + self.below(8) / 7;
        let name = self.name("slice");
        let [b, e, a, s] = [("begin", begin), ("end", end), ("axis", axis), ("step", step)]
            .map(|(what, n)| self.b.ints(&format!("{name}.{what}"), &[n as i64]));
        self.b.call("Slice", &name, &[from, &b, &e, &a, &s]);
        let mut dims = dims.to_vec();
        dims[axis] = ((end - begin).div_ceil(step)) as u32;
        self.push(name, dims);
    }

    fn split(&mut self, from: &str, dims: Vec<u32>, axis: usize) {
        if dims[axis] < 2 {
            return self.pointwise(from, dims);
        }
        let first = 1 + self.below(dims[axis] as usize - 1) as u32;
        let name = self.name("part");
        let parts = [first, dims[axis] - first];
        let sizes = self.b.ints(&format!("{name}.sizes"), &parts.map(i64::from));
        let names = self.b.node("Split", &name, &[from, &sizes], 2, &[("axis", Value::Int(axis as i64))]);
        for (name, extent) in names.into_iter().zip(parts) {
            let mut dims = dims.clone();
            dims[axis] = extent;
            self.push(name, dims);
        }
    }

    fn transpose(&mut self, from: &str, dims: &[u32]) {
        let mut perm: Vec<i64> = (0..dims.len() as i64).collect();
        for i in (1..perm.len()).rev() {
            let other = self.below(i + 1);
            perm.swap(i, other);
        }
        let name = self.name("transpose");
        self.b.with("Transpose", &name, &[from], &[("perm", Value::Ints(&perm))]);
        self.push(name, perm.iter().map(|p| dims[*p as usize]).collect());
    }

    fn reshape(&mut self, from: &str, dims: &[u32]) {
        let all: u32 = dims.iter().product();
        let first = [1, 2, 3, 4, 8][self.below(5)];
        let to = if all.is_multiple_of(first) { vec![first, all / first] } else { vec![all] };
        let name = self.name("reshape");
        let wanted: Vec<i64> = to.iter().map(|d| i64::from(*d)).collect();
        let shape = self.b.ints(&format!("{name}.shape"), &wanted);
        self.b.call("Reshape", &name, &[from, &shape]);
        self.push(name, to);
    }

    /// With another tensor that differs at most along the axis, or with itself.
    fn join(&mut self, from: &str, dims: Vec<u32>, axis: usize) {
        let fits = |t: &&Tensor| {
            t.dims.len() == dims.len() && (0..dims.len()).all(|a| a == axis || t.dims[a] == dims[a])
        };
        let others: Vec<(String, u32)> =
            self.made.iter().filter(fits).map(|t| (t.name.clone(), t.dims[axis])).collect();
        let (other, extent) = others[self.below(others.len())].clone();
        let mut joined = dims.clone();
        joined[axis] += extent;
        if joined.iter().product::<u32>() > LARGEST {
            return self.pointwise(from, dims);
        }
        self.made.iter_mut().filter(|t| t.name == other).for_each(|t| t.read = true);
        let name = self.name("join");
        self.b.with("Concat", &name, &[from, &other], &[("axis", Value::Int(axis as i64))]);
        self.push(name, joined);
    }

    fn product(&mut self, from: &str, mut dims: Vec<u32>) {
        if dims.len() < 2 {
            return self.pointwise(from, dims);
        }
        let name = self.name("product");
        let columns = [1, 3, 8][self.below(3)];
        let weight = self.b.weight(&format!("{name}.weight"), &[dims[dims.len() - 1], columns], 0.5);
        dims.pop();
        dims.push(columns);
        self.b.call("MatMul", &name, &[from, &weight]);
        self.push(name, dims);
    }

    fn pointwise(&mut self, from: &str, dims: Vec<u32>) {
        let same: Vec<String> = self.made.iter().filter(|t| t.dims == dims).map(|t| t.name.clone()).collect();
        let name = self.name("n");
        match self.below(6) {
            0 => self.b.call("Tanh", &name, &[from]),
            1 => self.b.call("Sigmoid", &name, &[from]),
            2 => self.b.call("Relu", &name, &[from]),
            3 => self.b.call("Neg", &name, &[from]),
            n => {
                let other = same[self.below(same.len())].clone();
                self.made.iter_mut().filter(|t| t.name == other).for_each(|t| t.read = true);
                self.b.call(if n == 4 { "Add" } else { "Mul" }, &name, &[from, &other])
            }
        };
        self.push(name, dims);
    }

    fn loss(mut self) -> ModelProto {
        let mut total: Option<String> = None;
        for t in std::mem::take(&mut self.made).into_iter().filter(|t| !t.read) {
            // What grows without bound would only compare infinities.
            let bounded = self.b.call("Tanh", &format!("{}.bounded", t.name), &[&t.name]);
            let name = format!("{}.mean", t.name);
            let mean = self.b.with("ReduceMean", &name, &[&bounded], &[("keepdims", Value::Int(0))]);
            total = Some(match total {
                None => mean,
                Some(sum) => self.b.call("Add", &format!("{}.total", t.name), &[&sum, &mean]),
            });
        }
        let total = total.unwrap_or_else(|| "h".to_owned());
        let loss = self.b.call("Identity", "loss", &[&total]);
        self.b.output(&loss)
    }
}
