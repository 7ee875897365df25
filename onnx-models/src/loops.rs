//! Models with control flow: a physics simulation, a recurrent network written as a loop, a network over trees.

use crate::{
    Common, ModelProto,
    builder::{Builder, Value},
};
use onnx_protobuf::tensor_proto::DataType;

/// A chain of masses between springs, integrated by the semi-implicit Euler method in a Loop. Its initial state (`x0`, `v0`) and its
/// stiffness are initializers, and so trained; the loss is the mean squared distance of the last positions from `target`, `[batch, masses]`.
#[derive(Clone, Debug)]
pub struct Springs {
    /// Masses.
    pub masses: u32,
    /// Time steps.
    pub steps: u32,
}

impl Springs {
    /// The model.
    pub fn build(&self, common: &Common) -> ModelProto {
        let n = self.masses;
        let mut b = Builder::new("springs", common);
        let target = b.input("target", DataType::FLOAT, &[n]);
        let x0 = b.weight("x0", &[1, n], 0.5);
        let v0 = b.weight("v0", &[1, n], 0.1);
        // The discrete Laplacian: each mass is pulled towards its neighbours.
        let entry = |i: u32, j: u32| -> f32 {
            match i.abs_diff(j) {
                0 => -2.0,
                1 => 1.0,
                _ => 0.0,
            }
        };
        let raw = (0..n).flat_map(|i| (0..n).flat_map(move |j| entry(i, j).to_le_bytes())).collect();
        let stiffness = b.tensor("stiffness", DataType::FLOAT, &[n, n], raw);
        let (dt, cubic) = (b.filled("dt", &[], 1e-3), b.filled("cubic", &[], 0.1));
        let mut s = b.body("step");
        let [_, go] = s.iteration();
        let (x, v) = (s.carried("x", DataType::FLOAT), s.carried("v", DataType::FLOAT));
        let pull = s.call("MatMul", "pull", &[&x, &stiffness]);
        let square = s.call("Mul", "square", &[&x, &x]);
        let cube = s.call("Mul", "cube", &[&square, &x]);
        let hold = s.call("Mul", "hold", &[&cube, &cubic]);
        let force = s.call("Sub", "force", &[&pull, &hold]);
        let dv = s.call("Mul", "dv", &[&force, &dt]);
        let v = s.call("Add", "v_next", &[&v, &dv]);
        let dx = s.call("Mul", "dx", &[&v, &dt]);
        let x = s.call("Add", "x_next", &[&x, &dx]);
        let go = s.call("Identity", "go_next", &[&go]);
        let body = s.end(&[
            (&go, DataType::BOOL, false),
            (&x, DataType::FLOAT, false),
            (&v, DataType::FLOAT, false),
        ]);
        let count = b.tensor("steps", DataType::INT64, &[], i64::from(self.steps).to_le_bytes().to_vec());
        let last = b.node("Loop", "last", &[&count, "", &x0, &v0], 2, &[("body", Value::Graph(body))]);
        let off = b.call("Sub", "off", &[&last[0], &target]);
        let squares = b.call("Mul", "squares", &[&off, &off]);
        let loss = b.with("ReduceMean", "loss", &[&squares], &[("keepdims", Value::Int(0))]);
        b.output(&loss)
    }
}

/// An LSTM of several layers on `x` of shape `[batch, steps, inputs]`, written as one Loop over time.
#[derive(Clone, Debug)]
pub struct LoopLstm {
    /// Layers.
    pub layers: u32,
    /// Features of the input.
    pub inputs: u32,
    /// Features of a layer.
    pub width: u32,
    /// Time steps.
    pub steps: u32,
    /// Classes.
    pub classes: u32,
}

impl LoopLstm {
    /// The model.
    pub fn build(&self, common: &Common) -> ModelProto {
        let w = self.width;
        let mut b = Builder::new("loop_lstm", common);
        let x = b.input("x", DataType::FLOAT, &[self.steps, self.inputs]);
        let shape = b.call("Shape", "shape", &[&x]);
        let (zero, one) = (b.ints("zero", &[0]), b.ints("one", &[1]));
        let batch = b.call("Slice", "batch", &[&shape, &zero, &one]);
        let width = b.ints("width", &[i64::from(w)]);
        let state = b.with("Concat", "state_shape", &[&batch, &width], &[("axis", Value::Int(0))]);
        let start = b.call("ConstantOfShape", "start", &[&state]);
        let mut s = b.body("step");
        let [t, go] = s.iteration();
        let mut row = s.with("Gather", "row", &[&x, &t], &[("axis", Value::Int(1))]);
        let mut next = Vec::new();
        let mut from = self.inputs;
        for l in 0..self.layers {
            let name = |n: &str| format!("l{l}.{n}");
            let (h, c) = (s.carried(&name("h"), DataType::FLOAT), s.carried(&name("c"), DataType::FLOAT));
            let bound = (1.0 / w as f32).sqrt();
            let wx = b.weight(&name("wx"), &[4 * w, from], bound);
            let wh = b.weight(&name("wh"), &[4 * w, w], bound);
            let bias = b.weight(&name("bias"), &[4 * w], bound);
            let trans = || [("transB", Value::Int(1))];
            let input = s.with("Gemm", &name("input"), &[&row, &wx, &bias], &trans());
            let gates = s.with("Gemm", &name("gates"), &[&h, &wh, &input], &trans());
            let split = b.ints(&name("split"), &[i64::from(w); 4]);
            let parts = s.node("Split", &name("parts"), &[&gates, &split], 4, &[("axis", Value::Int(1))]);
            let i = s.call("Sigmoid", &name("i"), &[&parts[0]]);
            let f = s.call("Sigmoid", &name("f"), &[&parts[1]]);
            let o = s.call("Sigmoid", &name("o"), &[&parts[2]]);
            let g = s.call("Tanh", &name("g"), &[&parts[3]]);
            let kept = s.call("Mul", &name("kept"), &[&f, &c]);
            let new = s.call("Mul", &name("new"), &[&i, &g]);
            let c = s.call("Add", &name("c_next"), &[&kept, &new]);
            let squashed = s.call("Tanh", &name("squashed"), &[&c]);
            let h = s.call("Mul", &name("h_next"), &[&o, &squashed]);
            row = h.clone();
            next.extend([h, c]);
            from = w;
        }
        let go = s.call("Identity", "go_next", &[&go]);
        let mut outputs = vec![(go.as_str(), DataType::BOOL, false)];
        outputs.extend(next.iter().map(|n| (n.as_str(), DataType::FLOAT, false)));
        let body = s.end(&outputs);
        let count = b.tensor("steps", DataType::INT64, &[], i64::from(self.steps).to_le_bytes().to_vec());
        let mut inputs = vec![count.as_str(), ""];
        inputs.extend(std::iter::repeat_n(start.as_str(), 2 * self.layers as usize));
        let last = b.node("Loop", "last", &inputs, next.len(), &[("body", Value::Graph(body))]);
        let scores = b.gemm("fc", &last[next.len() - 2], w, self.classes);
        b.finish(&scores, &[])
    }
}

/// A child-sum TreeLSTM over binary trees (arXiv 1503.00075), written as a Loop over nodes, children first. `x`, `[nodes, 1, inputs]`, has
/// a row a leaf; `left` and `right` the children's positions, -1 for a leaf. The scores are those of the last node.
#[derive(Clone, Debug)]
pub struct TreeLstm {
    /// Nodes of the tree.
    pub nodes: u32,
    /// Features of a leaf.
    pub inputs: u32,
    /// Features of a node's state.
    pub width: u32,
    /// Classes.
    pub classes: u32,
}

impl TreeLstm {
    /// The model. The batch is one tree.
    pub fn build(&self, common: &Common) -> ModelProto {
        let w = self.width;
        let common = Common { batch: 1, dynamic: false, ..*common };
        let mut b = Builder::new("tree_lstm", &common);
        let x = b.fixed_input("x", DataType::FLOAT, &[self.nodes, 1, self.inputs]);
        let left = b.fixed_input("left", DataType::INT64, &[self.nodes]);
        let right = b.fixed_input("right", DataType::INT64, &[self.nodes]);
        let bound = (1.0 / w as f32).sqrt();
        let weights: Vec<[String; 2]> = [("leaf", self.inputs, 3 * w), ("gates", w, 3 * w), ("forget", w, w)]
            .into_iter()
            .map(|(n, from, to)| {
                let matrix = b.weight(&format!("{n}.weight"), &[to, from], bound);
                [matrix, b.weight(&format!("{n}.bias"), &[to], bound)]
            })
            .collect();
        let split = b.ints("split", &[i64::from(w); 3]);
        let nought = b.tensor("nought", DataType::INT64, &[], 0i64.to_le_bytes().to_vec());
        let (hs, cs) = (b.call("SequenceEmpty", "hs_0", &[]), b.call("SequenceEmpty", "cs_0", &[]));
        let mut s = b.body("node");
        let [i, go] = s.iteration();
        let (h, c) = (s.carried_sequence("hs"), s.carried_sequence("cs"));
        let l = s.call("Gather", "l", &[&left, &i]);
        let r = s.call("Gather", "r", &[&right, &i]);
        let is_leaf = s.call("Less", "is_leaf", &[&l, &nought]);
        let trans = || [("transB", Value::Int(1))];
        let axis = || [("axis", Value::Int(1))];
        // i, o and the candidate; a node with children also keeps what is left of theirs.
        let cell = |g: &mut Builder, n: &str, gates: &str, kept: Option<&str>| -> [String; 2] {
            let name = |m: &str| format!("{n}.{m}");
            let parts = g.node("Split", &name("parts"), &[gates, &split], 3, &axis());
            let i = g.call("Sigmoid", &name("i"), &[&parts[0]]);
            let o = g.call("Sigmoid", &name("o"), &[&parts[1]]);
            let u = g.call("Tanh", &name("u"), &[&parts[2]]);
            let mut c = g.call("Mul", &name("new"), &[&i, &u]);
            if let Some(kept) = kept {
                c = g.call("Add", &name("c"), &[&c, kept]);
            }
            let squashed = g.call("Tanh", &name("squashed"), &[&c]);
            [g.call("Mul", &name("h"), &[&o, &squashed]), c]
        };
        let outputs = |g: Builder, v: &[String; 2]| {
            g.end(&[(&v[0], DataType::FLOAT, false), (&v[1], DataType::FLOAT, false)])
        };
        let mut leaf = s.body("leaf");
        let row = leaf.call("Gather", "leaf.row", &[&x, &i]);
        let gates = leaf.with("Gemm", "leaf.gates", &[&row, &weights[0][0], &weights[0][1]], &trans());
        let made = cell(&mut leaf, "leaf", &gates, None);
        let leaf = outputs(leaf, &made);
        let mut inner = s.body("inner");
        let mut kept = Vec::new();
        let mut sums = Vec::new();
        for (n, child) in [("left", &l), ("right", &r)] {
            let name = |m: &str| format!("{n}.{m}");
            let hc = inner.call("SequenceAt", &name("h"), &[&h, child]);
            let cc = inner.call("SequenceAt", &name("c"), &[&c, child]);
            let f = inner.with("Gemm", &name("f"), &[&hc, &weights[2][0], &weights[2][1]], &trans());
            let f = inner.call("Sigmoid", &name("forget"), &[&f]);
            kept.push(inner.call("Mul", &name("kept"), &[&f, &cc]));
            sums.push(hc);
        }
        let sum = inner.call("Add", "inner.sum", &[&sums[0], &sums[1]]);
        let both = inner.call("Add", "inner.kept", &[&kept[0], &kept[1]]);
        let gates = inner.with("Gemm", "inner.gates", &[&sum, &weights[1][0], &weights[1][1]], &trans());
        let made = cell(&mut inner, "inner", &gates, Some(&both));
        let inner = outputs(inner, &made);
        let branches = [("then_branch", Value::Graph(leaf)), ("else_branch", Value::Graph(inner))];
        let state = s.node("If", "state", &[&is_leaf], 2, &branches);
        let h = s.call("SequenceInsert", "hs_next", &[&h, &state[0]]);
        let c = s.call("SequenceInsert", "cs_next", &[&c, &state[1]]);
        let go = s.call("Identity", "go_next", &[&go]);
        let body =
            s.end(&[(&go, DataType::BOOL, false), (&h, DataType::FLOAT, true), (&c, DataType::FLOAT, true)]);
        let count = b.tensor("nodes", DataType::INT64, &[], i64::from(self.nodes).to_le_bytes().to_vec());
        let all = b.node("Loop", "all", &[&count, "", &hs, &cs], 2, &[("body", Value::Graph(body))]);
        let end = b.tensor("end", DataType::INT64, &[], (-1i64).to_le_bytes().to_vec());
        let root = b.call("SequenceAt", "root", &[&all[0], &end]);
        let scores = b.gemm("fc", &root, w, self.classes);
        b.finish(&scores, &[])
    }
}
