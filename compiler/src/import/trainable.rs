//! Which tensors of a model are trained.
//!
//! ONNX does not say. The rule: a float tensor in a *parameter position*. Some positions are parameters by themselves (the weight of a
//! Conv, a norm's scale, an embedding table); in others (a summand, a factor, a concatenated token) an initializer with at least two
//! elements counts, a Constant node does not. What a loop starts from counts unless it is all zeros. What a branch hands out stands where
//! the result of its If does. Never: single numbers used as constants, masks, running statistics, and operands of Clip, Pow, Resize, Where
//! and of everything that decides rather than computes. Of a tensor with several uses, one parameter position is enough.

use super::flatten::FlatNode;
use graph::{DType, Graph, Init, StateKind};
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

/// How a tensor is used at one input of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// A parameter by itself.
    Strong,
    /// A parameter if it is an initializer with at least two elements.
    Weak,
    /// A summand of what Softmax normalises: a mask if its elements say so, otherwise weak.
    Score,
    /// What a loop starts from: a parameter as in a weak position, unless all of it is zero.
    Start,
    /// A running mean or variance.
    Statistic,
    /// Never a parameter.
    Never,
}

/// All uses of a name together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Uses {
    /// Number of uses, graph outputs included.
    pub count: u32,
    /// In a position that is a parameter by itself.
    pub strong: bool,
    /// In a position where an initializer may be a parameter.
    pub weak: bool,
    /// As a summand of attention scores.
    pub score: bool,
    /// As what a loop starts from.
    pub start: bool,
    /// As a running statistic.
    pub statistic: bool,
}

impl Uses {
    fn add(&mut self, position: Position) {
        self.count += 1;
        match position {
            Position::Strong => self.strong = true,
            Position::Weak => self.weak = true,
            Position::Score => self.score = true,
            Position::Start => self.start = true,
            Position::Statistic => self.statistic = true,
            Position::Never => {}
        }
    }

    fn merge(&mut self, other: Uses) {
        self.count += other.count;
        self.strong |= other.strong;
        self.weak |= other.weak;
        self.score |= other.score;
        self.start |= other.start;
        self.statistic |= other.statistic;
    }

    /// Whether the tensor is a parameter. `initializer`: not from a Constant node; `look`: what its elements are, asked for only if that
    /// decides.
    pub fn parameter(&self, elements: u64, initializer: bool, look: impl FnOnce() -> Look) -> bool {
        if self.strong {
            return true;
        }
        if elements < 2 || !initializer {
            return false;
        }
        if self.weak || !(self.score || self.start) {
            return self.weak;
        }
        let look = look();
        (self.score && !look.mask) || (self.start && look.nonzero)
    }
}

/// What a tensor's elements are.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Zeros and very low numbers, both.
    pub mask: bool,
    /// Some are not zero.
    pub nonzero: bool,
}

/// The nodes with those of their bodies, each before the node that it belongs to.
fn with_bodies<'a, 'm>(nodes: &'a [FlatNode<'m>], into: &mut Vec<&'a FlatNode<'m>>) {
    for n in nodes {
        n.bodies.iter().for_each(|(_, b)| with_bodies(&b.nodes, into));
        into.push(n);
    }
}

/// Uses of every name that a node reads, seen through Identity and through what branches hand out, bodies included. `main` is in
/// topological order.
pub fn uses<'a>(main: &'a [FlatNode<'_>], outputs: impl Iterator<Item = &'a str>) -> HashMap<&'a str, Uses> {
    let mut nodes = Vec::with_capacity(main.len());
    with_bodies(main, &mut nodes);
    let mut maker: HashMap<&str, usize> = HashMap::new();
    let mut scores: BTreeSet<&str> = BTreeSet::new();
    let mut regrouped: BTreeSet<&str> = BTreeSet::new();
    for (i, n) in nodes.iter().enumerate() {
        maker.extend(n.outputs.iter().map(|o| (o.as_str(), i)));
    }
    let mut all: HashMap<&str, Uses> = HashMap::new();
    for o in outputs {
        all.entry(o).or_default().add(Position::Never);
    }
    for o in nodes.iter().flat_map(|n| &n.bodies).flat_map(|(_, b)| &b.outputs) {
        all.entry(&o.0).or_default().add(Position::Never);
    }
    for n in nodes.iter().copied().rev() {
        // Names that stand for the same tensor, whoever reads it.
        for (from, to) in passed_on(n) {
            let seen = all.get(to).copied().unwrap_or_default();
            all.entry(from).or_default().merge(seen);
            if scores.contains(to) {
                scores.insert(from);
            }
        }
        if is(n, "Identity") {
            continue;
        }
        let around = Around { nodes: &nodes, maker: &maker, scores: &scores, regrouped: &regrouped };
        for (i, name) in n.inputs.iter().enumerate().filter(|(_, n)| !n.is_empty()) {
            all.entry(name).or_default().add(position(n, i, &around));
        }
        // What Softmax reads, also through a chain of sums.
        if is(n, "Softmax") || (is(n, "Add") && n.outputs.iter().any(|o| scores.contains(o.as_str()))) {
            scores.extend(n.inputs.iter().map(String::as_str));
        }
        if is(n, "Reshape") || is(n, "Mul") {
            regrouped.extend(n.inputs.iter().map(String::as_str));
        }
    }
    all
}

fn is(n: &FlatNode<'_>, op: &str) -> bool {
    n.domain.is_empty() && n.op_type == op
}

/// What a node hands on as it is, by the name before and after it.
fn passed_on<'a>(n: &'a FlatNode<'_>) -> Vec<(&'a str, &'a str)> {
    let outputs = || n.outputs.iter().map(String::as_str);
    if is(n, "Identity") {
        n.inputs.iter().map(String::as_str).zip(outputs()).collect()
    } else if is(n, "If") {
        let branches =
            n.bodies.iter().flat_map(|(_, b)| b.outputs.iter().map(|(o, _)| o.as_str()).zip(outputs()));
        branches.filter(|(_, to)| !to.is_empty()).collect()
    } else {
        Vec::new()
    }
}

/// What is known of a node's neighbours.
struct Around<'a, 'n, 'm> {
    nodes: &'n [&'a FlatNode<'m>],
    maker: &'n HashMap<&'a str, usize>,
    /// Names that become attention scores.
    scores: &'n BTreeSet<&'a str>,
    /// Names that a Reshape or a Mul reads.
    regrouped: &'n BTreeSet<&'a str>,
}

impl Around<'_, '_, '_> {
    /// The node that makes input `i` of a node.
    fn maker(&self, n: &FlatNode<'_>, i: usize) -> Option<&FlatNode<'_>> {
        n.inputs.get(i).and_then(|name| self.maker.get(name.as_str())).map(|m| self.nodes[*m])
    }

    /// Whether input `i` of a node is the result of a layer with a weight of its own.
    fn is_layer(&self, n: &FlatNode<'_>, i: usize) -> bool {
        self.maker(n, i).is_some_and(|m| match m.op_type {
            "Conv" | "ConvTranspose" => true,
            "MatMul" => (0..2).any(|k| self.maker(m, k).is_none_or(|w| w.op_type == "Constant")),
            _ => false,
        })
    }

    fn makes_any(&self, n: &FlatNode<'_>, names: &BTreeSet<&str>) -> bool {
        n.outputs.iter().any(|o| names.contains(o.as_str()))
    }
}

fn position(n: &FlatNode<'_>, i: usize, around: &Around<'_, '_, '_>) -> Position {
    use Position::{Never, Score, Start, Statistic, Strong, Weak};
    match (n.op_type, i) {
        ("Conv" | "ConvTranspose" | "DeformConv" | "Gemm", 1 | 2) | ("MatMul" | "Gemm", 0 | 1) => Strong,
        ("BatchNormalization", 1 | 2) => Strong,
        ("BatchNormalization", _) if i > 2 => Statistic,
        // A GroupNormalization taken apart: its own scale and bias follow, after a second Reshape if it
        // changes anything.
        ("InstanceNormalization", 1 | 2)
            if around.maker(n, 0).is_some_and(|m| m.op_type == "Reshape")
                && around.makes_any(n, around.regrouped) =>
        {
            Never
        }
        ("LayerNormalization" | "InstanceNormalization" | "GroupNormalization", 1 | 2) => Strong,
        ("RMSNormalization" | "SimplifiedLayerNormalization" | "PRelu", 1) => Strong,
        ("Gather", 0) => Strong,
        ("LSTM" | "GRU" | "RNN", 1..=3 | 7) => Strong,
        ("LSTM" | "GRU" | "RNN", _) => Never,
        // The bias of a layer.
        ("Add", 0 | 1) if around.is_layer(n, 1 - i) => Strong,
        ("Add", _) if around.makes_any(n, around.scores) => Score,
        ("Clip" | "Pow" | "Resize" | "Upsample" | "Where" | "Range" | "OneHot" | "TopK", _) => Never,
        ("Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "Sign" | "IsNaN" | "IsInf", _) => {
            Never
        }
        ("Dropout" | "Pad" | "Gather" | "GatherElements" | "GatherND" | "CumSum" | "Trilu" | "Tile", 1..) => {
            Never
        }
        ("Loop", 0 | 1) | ("If", _) => Never,
        ("Loop" | "Scan", _) => Start,
        ("SoftmaxCrossEntropyLoss" | "NegativeLogLikelihoodLoss", 1..) => Never,
        ("Shape" | "Size" | "ConstantOfShape" | "NonZero" | "ArgMax" | "ArgMin" | "CastLike", _) => Never,
        ("QuantizeLinear" | "DequantizeLinear", _) => Never,
        _ => Weak,
    }
}

/// A glob that names no tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "--{option} {glob}: no float32 or float64 tensor that can be trained has such a name (one of a single element must be named in full)"
)]
pub struct GlobError {
    /// `train` or `freeze`.
    pub option: &'static str,
    /// The glob.
    pub glob: String,
}

/// An update of a 16-bit float would mostly round to nothing.
fn is_trained_type(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64)
}

/// How many of the candidates have a type that is not trained: 16-bit floats.
pub fn halves(graph: &Graph, candidates: &[Arc<str>]) -> usize {
    let named = |s: &&graph::State| candidates.contains(&s.name);
    graph.states.iter().filter(named).filter(|s| !is_trained_type(graph.ty(s.input).dtype)).count()
}

/// Names of the states to train: the candidates, or with `train` globs every float32 or float64 tensor that matches one (whatever its
/// position, but no running statistic), less those that match a `freeze` glob. In the order of the graph's states.
///
/// # Errors
///
/// A glob matches no such tensor.
pub fn select(
    graph: &Graph,
    candidates: &[Arc<str>],
    train: &[String],
    freeze: &[String],
) -> Result<Vec<String>, GlobError> {
    let all: Vec<&Arc<str>> = graph
        .states
        .iter()
        .filter(|s| matches!(s.kind, StateKind::Frozen | StateKind::Parameter))
        .filter(|s| matches!(s.init, Init::Weight(_)) && is_trained_type(graph.ty(s.input).dtype))
        .map(|s| &s.name)
        .collect();
    for (option, globs) in [("train", train), ("freeze", freeze)] {
        if let Some(g) = globs.iter().find(|g| !all.iter().any(|n| glob(g, n))) {
            return Err(GlobError { option, glob: g.clone() });
        }
    }
    let candidates: BTreeSet<&Arc<str>> = candidates.iter().collect();
    let wanted = |n: &Arc<str>| match train {
        [] => candidates.contains(n),
        _ => train.iter().any(|g| glob(g, n)),
    };
    let kept = |n: &Arc<str>| wanted(n) && !freeze.iter().any(|g| glob(g, n));
    Ok(all.into_iter().filter(|n| kept(n)).map(|n| n.to_string()).collect())
}

/// Whether `text` matches `pattern`, in which `*` stands for any characters and `?` for one.
pub fn glob(pattern: &str, text: &str) -> bool {
    let (p, t): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut i, mut j, mut star) = (0, 0, None);
    while j < t.len() {
        match p.get(i) {
            Some('*') => {
                star = Some((i, j));
                i += 1;
            }
            Some(c) if *c == '?' || *c == t[j] => (i, j) = (i + 1, j + 1),
            // Let the last star take one character more.
            _ => match star {
                Some((si, sj)) => {
                    star = Some((si, sj + 1));
                    (i, j) = (si + 1, sj + 1);
                }
                None => return false,
            },
        }
    }
    p[i..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::{DType, TensorType};

    #[test]
    fn globs_match_whole_names() {
        for (p, t, m) in [
            ("*", "", true),
            ("*.weight", "fc.weight", true),
            ("*.weight", "fc.weights", false),
            ("layer?.*", "layer1.0.bn", true),
            ("a*b*c", "aXbYbc", true),
            ("a*b*c", "aXc", false),
            ("", "x", false),
            ("fc", "fc", true),
        ] {
            assert_eq!(glob(p, t), m, "{p} {t}");
        }
    }

    #[test]
    fn train_and_freeze_choose_among_float_weights() {
        let mut g = Graph::default();
        let ty = || TensorType::new(DType::F32, &[2u64][..]);
        for n in ["a.weight", "a.bias", "mask"] {
            g.add_state(n, ty(), StateKind::Frozen, Init::Weight(n.into()));
        }
        g.add_state("mean", ty(), StateKind::Statistic, Init::Weight("mean".into()));
        let candidates: Vec<Arc<str>> = vec!["a.weight".into(), "a.bias".into()];
        let names = |train: &[&str], freeze: &[&str]| {
            let own = |v: &[&str]| v.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
            select(&g, &candidates, &own(train), &own(freeze)).map(|v| v.join(" "))
        };
        assert_eq!(names(&[], &[]).unwrap(), "a.weight a.bias");
        assert_eq!(names(&[], &["*.bias"]).unwrap(), "a.weight");
        assert_eq!(names(&["mask", "*.bias"], &[]).unwrap(), "a.bias mask");
        assert_eq!(names(&["mean"], &[]).unwrap_err().option, "train");
        assert_eq!(names(&[], &["nothing*"]).unwrap_err().option, "freeze");
    }
}
