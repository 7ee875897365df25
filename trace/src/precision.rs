//! Mixed precision: which values of a program have 16 bits.
//!
//! A pass over the forward graph with its loss, before gradients are written, so that the backward program follows by the gradients of what
//! is here. Parameters stay float32; where an operator takes halves, a `Cast` stands before each of its operands. The cast of a value is
//! written once for each reader, so that cotangents come back to float32 before they are added up, and equal casts become one once
//! gradients are written ([`merge_casts`]).
//!
//! - Products ([`PRODUCTS`]) take halves and accumulate in float32.
//! - Normalisations take x as it is; parameters, statistics and arithmetic are float32.
//! - What only moves elements, or bends them gently ([`FOLLOWERS`]), has the type of what it reads, float32 if any of that is: as
//!   PyTorch's autocast promotes. Scalars and biases follow; other parameters, and constants that a half cannot hold, are float32.
//! - What a logarithm, a quotient or a root reads is float32 back to the product before it: near 0 its cotangent has no bound.
//! - A softmax whose every reader is a product is stored as halves.
//! - All else is float32: losses, reductions, exponentials, powers, and the outputs of the model.
//!
//! Kernels compute in float32 whatever they read: a half is a way to store.

use graph::{DType, Graph, Literal, NodeId, TensorType, ValueDef, ValueId};
use ops::{Builder, OpError, Signature, find};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The 16-bit floats of a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Amp {
    /// bfloat16: the range of float32, 8 bits of significand.
    Bf16,
    /// float16: 11 bits of significand, and a range so small that gradients are scaled.
    Fp16,
}

impl Amp {
    /// The dtype.
    pub fn dtype(self) -> DType {
        match self {
            Amp::Bf16 => DType::BF16,
            Amp::Fp16 => DType::F16,
        }
    }

    /// Whether the loss is scaled, and steps with gradients that are not finite are skipped.
    pub fn scales(self) -> bool {
        self == Amp::Fp16
    }
}

/// Operators that take halves.
const PRODUCTS: &[&str] = &["MatMul", "Gemm", "Conv", "ConvTranspose", "Attention", "LinearCrossEntropy"];

/// Operators that normalise input 0 with float32 parameters.
const NORMALISATIONS: &[&str] = &[
    "BatchNormTraining",
    "BatchNormInference",
    "LayerNormalization",
    "RmsNormalization",
    "GroupNormalization",
];

/// Operators that have the type of what they read.
const FOLLOWERS: &[&str] = &[
    "Reshape",
    "Transpose",
    "Concat",
    "Split",
    "Slice",
    "Expand",
    "Pad",
    "Trilu",
    "ReverseSequence",
    "Gather",
    "GatherElements",
    "GatherND",
    "Where",
    "Resize",
    "MaxPool",
    "AveragePool",
    "Dropout",
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Neg",
    "Abs",
    "Max",
    "Min",
    "Clip",
    "Relu",
    "LeakyRelu",
    "ThresholdedRelu",
    "Elu",
    "Selu",
    "Celu",
    "PRelu",
    "Sigmoid",
    "Tanh",
    "Swish",
    "Mish",
    "Gelu",
    "GeluTanh",
    "HardSigmoid",
    "HardSwish",
    "Shrink",
    "Erf",
];

/// Followers that keep what a parameter is: a parameter, moved.
const MOVERS: &[&str] = &["Reshape", "Transpose", "Slice", "Expand", "Split"];

/// Inputs whose cotangent has no bound: what is divided by, or has a slope that grows beyond all limits.
const STEEP: &[(&str, usize)] =
    &[("Log", 0), ("Sqrt", 0), ("Reciprocal", 0), ("Pow", 0), ("Div", 1), ("BceLoss", 0), ("ReduceL2", 0)];

/// Followers with a slope that takes that back: of a sigmoid it is y (1 - y).
const GENTLE: &[&str] = &["Sigmoid", "Tanh"];

/// Stores values of a forward graph as halves.
///
/// # Errors
///
/// An operator refuses its new types: a bug.
pub fn apply(graph: &mut Graph, amp: Amp) -> Result<(), OpError> {
    let half = amp.dtype();
    let count = graph.nodes.len();
    let outputs = graph.outputs.clone();
    let before: Vec<TensorType> = outputs.iter().map(|v| graph.ty(*v).clone()).collect();
    let (to_products, steep) = (read_by_products(graph), read_steeply(graph));
    let mut weights: Vec<bool> =
        graph.values.iter().map(|v| matches!(v.def, ValueDef::State(_) | ValueDef::Constant(_))).collect();
    let mut b = Builder::new(graph);
    for n in 0..count {
        let id = NodeId(n as u32);
        let node = b.graph().node(id).clone();
        let given: Vec<ValueId> = node.inputs.iter().flatten().copied().collect();
        let is_weight = MOVERS.contains(&&*node.op) && given.iter().all(|v| weights[v.index()]);
        node.outputs.iter().for_each(|v| weights[v.index()] = is_weight);
        let dtypes = || given.iter().map(|v| b.ty(*v).dtype).filter(|d| d.is_float());
        if &*node.op == "Cast" || dtypes().any(|d| d != DType::F32 && d != half) || dtypes().count() == 0 {
            continue;
        }
        let product = PRODUCTS.contains(&&*node.op);
        let is_steep = node.outputs.iter().any(|v| steep[v.index()]);
        let follows =
            FOLLOWERS.contains(&&*node.op) && !is_steep && dtype_of(&b, &node, &weights, half) == half;
        b.set_scope(format!("amp/{}", node.name));
        for (i, input) in node.inputs.iter().enumerate() {
            let Some(v) = input.filter(|v| b.ty(*v).dtype.is_float()) else { continue };
            let to = match () {
                // A mask may hold what a half cannot.
                () if &*node.op == "Attention" && i == 3 => b.ty(v).dtype,
                () if product || follows => half,
                () if i == 0 && NORMALISATIONS.contains(&&*node.op) => b.ty(v).dtype,
                () if i == 0 && &*node.op == "Softmax" && to_products[node.outputs[0].index()] => {
                    b.ty(v).dtype
                }
                () => DType::F32,
            };
            let cast = b.cast(v, to)?;
            b.graph_mut().nodes[n].inputs[i] = Some(cast);
        }
        if &*node.op == "Softmax" && to_products[node.outputs[0].index()] {
            let attrs = &mut b.graph_mut().nodes[n].attrs;
            *attrs = std::mem::take(attrs).with("to", half);
        }
        retype(b.graph_mut(), id)?;
    }
    // The outputs are what they were, by name and type.
    b.set_scope("amp/outputs");
    let mut done: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    for (i, v) in outputs.into_iter().enumerate() {
        if b.ty(v).dtype == before[i].dtype {
            continue;
        }
        if let Some(wide) = done.get(&v) {
            b.graph_mut().outputs[i] = *wide;
            continue;
        }
        let name = b.graph().value(v).name.to_string();
        let wide = b.cast(v, before[i].dtype)?;
        b.rename(v, &format!("{name}/{half}"));
        // The name was taken by what has another one now.
        b.graph_mut().values[wide.index()].name = name.as_str().into();
        b.graph_mut().outputs[i] = wide;
        done.insert(v, wide);
    }
    graph.restore_order().map_err(|n| OpError::invalid(format!("node {n:?} depends on itself")))
}

/// The types of a node's outputs from those that its inputs have now.
fn retype(graph: &mut Graph, id: NodeId) -> Result<(), OpError> {
    let node = graph.node(id);
    let def = find(&node.op).ok_or_else(|| OpError::unsupported(format!("operator {}", node.op)))?;
    let types = def.infer(&Signature { outputs: Vec::new(), ..Signature::of(graph, node) })?;
    for (v, ty) in node.outputs.clone().into_iter().zip(types) {
        graph.values[v.index()].ty = ty;
    }
    Ok(())
}

/// The type in which a follower computes.
fn dtype_of(b: &Builder<'_>, node: &graph::Node, weights: &[bool], half: DType) -> DType {
    let mut found = None;
    for v in node.inputs.iter().flatten() {
        let ty = b.ty(*v);
        if !ty.dtype.is_float() {
            continue;
        }
        // Casts that were added here are no weights.
        let is_weight = weights.get(v.index()).copied().unwrap_or(false);
        let follows = match b.graph().constant(*v) {
            Some(l) => fits(l, half),
            None => is_bias(ty) && matches!(&*node.op, "Add" | "Sub" | "PRelu"),
        };
        match ty.dtype {
            DType::F32 if is_weight && follows => {}
            DType::F32 => return DType::F32,
            _ => found = Some(half),
        }
    }
    found.unwrap_or(DType::F32)
}

/// Whether at most one axis has more than one element.
fn is_bias(ty: &TensorType) -> bool {
    ty.shape.0.iter().filter(|d| d.as_const() != Some(1)).count() <= 1
}

/// Whether a half has a finite number for each of the elements that has one in float32, and none but 0 becomes 0.
fn fits(l: &Literal, half: DType) -> bool {
    let (least, most) =
        if half == DType::F16 { (2f64.powi(-24), 65_504.0) } else { (2f64.powi(-133), 3.389e38) };
    l.to_floats().iter().all(|x| !x.is_finite() || *x == 0.0 || (least..=most).contains(&x.abs()))
}

/// Whether a value, or what followers make of it, is read where cotangents have no bound.
fn read_steeply(graph: &Graph) -> Vec<bool> {
    let mut steep = vec![false; graph.values.len()];
    for node in graph.nodes.iter().rev() {
        let passes = FOLLOWERS.contains(&&*node.op) && !GENTLE.contains(&&*node.op);
        let on = passes && node.outputs.iter().any(|v| steep[v.index()]);
        for (i, v) in node.inputs.iter().enumerate() {
            if let Some(v) = v {
                steep[v.index()] |= on || STEEP.contains(&(&*node.op, i));
            }
        }
    }
    steep
}

/// Whether all that reads a value are products, at once or after a dropout or a movement.
fn read_by_products(graph: &Graph) -> Vec<bool> {
    let mut readers = vec![0u32; graph.values.len()];
    let mut products = vec![0u32; graph.values.len()];
    graph.outputs.iter().for_each(|v| readers[v.index()] += 1);
    for node in graph.nodes.iter().rev() {
        let passes = &*node.op == "Dropout" || MOVERS.contains(&&*node.op);
        let all = |v: &ValueId| readers[v.index()] > 0 && readers[v.index()] == products[v.index()];
        let to_product = PRODUCTS.contains(&&*node.op) || (passes && node.outputs.iter().all(all));
        for v in node.inputs.iter().flatten() {
            readers[v.index()] += 1;
            products[v.index()] += u32::from(to_product);
        }
    }
    readers.iter().zip(&products).map(|(r, p)| *r > 0 && r == p).collect()
}

/// Makes one of equal conversions of one value.
pub fn merge_casts(graph: &mut Graph) {
    let mut first: BTreeMap<(ValueId, DType), ValueId> = BTreeMap::new();
    let mut instead: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    for node in &mut graph.nodes {
        for v in node.inputs.iter_mut().flatten() {
            *v = instead.get(v).copied().unwrap_or(*v);
        }
        let (Some(Some(from)), "Cast", Ok(to)) = (node.inputs.first(), &*node.op, node.attrs.dtype("to"))
        else {
            continue;
        };
        let out = node.outputs[0];
        let kept = *first.entry((*from, to)).or_insert(out);
        if kept != out && !graph.outputs.contains(&out) {
            instead.insert(out, kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::{Attrs, Init, InputRole, StateKind};

    /// x·w + bias through a softmax and another product; its exponential is an output, too.
    fn layer() -> Graph {
        let mut g = Graph::default();
        let ty = |d: &[usize]| TensorType::new(DType::F32, d);
        let x = g.add_input("x", ty(&[4, 8]), InputRole::Data);
        let state = |g: &mut Graph, name: &str, d: &[usize]| {
            g.add_state(name, ty(d), StateKind::Parameter, Init::Zeros)
        };
        let (w, bias) = (state(&mut g, "w", &[8, 8]), state(&mut g, "bias", &[8]));
        let position = state(&mut g, "position", &[4, 8]);
        let mut b = Builder::new(&mut g);
        let y = b.matmul(x, w, false, false).unwrap();
        let y = b.call("Add", &[y, bias]).unwrap();
        let z = b.call("Add", &[y, position]).unwrap();
        let p = b.op("Softmax", Attrs::new().with("axis", 1), &[z]).unwrap();
        let out = b.matmul(p, w, false, false).unwrap();
        let e = b.call("Exp", &[y]).unwrap();
        b.rename(out, "out");
        g.outputs = vec![out, e];
        g
    }

    fn dtypes(g: &Graph, op: &str) -> Vec<(Vec<DType>, DType)> {
        let of = |v: &ValueId| g.ty(*v).dtype;
        let nodes = g.nodes.iter().filter(|n| &*n.op == op);
        nodes.map(|n| (n.inputs.iter().flatten().map(of).collect(), of(&n.outputs[0]))).collect()
    }

    #[test]
    fn products_and_what_follows_them_are_halves() {
        let mut g = layer();
        apply(&mut g, Amp::Bf16).unwrap();
        graph::verify(&g).unwrap();
        let (f, h) = (DType::F32, DType::BF16);
        assert_eq!(dtypes(&g, "MatMul"), [(vec![h, h], h), (vec![h, h], h)]);
        // A bias follows, a table of positions does not.
        assert_eq!(dtypes(&g, "Add"), [(vec![h, h], h), (vec![f, f], f)]);
        assert_eq!(dtypes(&g, "Softmax"), [(vec![f], h)]);
        assert_eq!(dtypes(&g, "Exp"), [(vec![f], f)]);
        assert_eq!(g.outputs.iter().map(|v| g.ty(*v).dtype).collect::<Vec<_>>(), [f, f]);
        assert_eq!(&*g.value(g.outputs[0]).name, "out");
    }

    #[test]
    fn what_a_logarithm_reads_is_wide() {
        let mut g = layer();
        let out = g.outputs[0];
        let mut b = Builder::new(&mut g);
        let y = b.call("Relu", &[out]).unwrap();
        let p = b.call("Sigmoid", &[y]).unwrap();
        let one = b.scalar(DType::F32, 1.0);
        let q = b.call("Sub", &[one, p]).unwrap();
        let log = b.call("Log", &[q]).unwrap();
        g.outputs = vec![log];
        apply(&mut g, Amp::Fp16).unwrap();
        graph::verify(&g).unwrap();
        let (f, h) = (DType::F32, DType::F16);
        assert_eq!(dtypes(&g, "Relu"), [(vec![h], h)]);
        for op in ["Sigmoid", "Log"] {
            assert_eq!(dtypes(&g, op), [(vec![f], f)], "{op}");
        }
        assert_eq!(dtypes(&g, "Sub"), [(vec![f, f], f)]);
    }

    #[test]
    fn equal_casts_become_one() {
        let mut g = layer();
        apply(&mut g, Amp::Fp16).unwrap();
        let casts = |g: &Graph| g.nodes.iter().filter(|n| &*n.op == "Cast").count();
        let all = casts(&g);
        merge_casts(&mut g);
        let g = g.pruned();
        graph::verify(&g).unwrap();
        // The weight is read by both products, and what the first makes by two operators in float32.
        assert_eq!(casts(&g), all - 2);
    }

    #[test]
    fn a_constant_that_no_half_holds_stays() {
        assert!(fits(&Literal::scalar(DType::F32, f64::NEG_INFINITY), DType::F16));
        assert!(!fits(&Literal::scalar(DType::F32, -1e5), DType::F16));
        // An epsilon that would be 0.
        assert!(!fits(&Literal::scalar(DType::F32, 1e-8), DType::F16));
        assert!(
            fits(&Literal::scalar(DType::F32, 1e-8), DType::BF16)
                && fits(&Literal::scalar(DType::F32, 0.0), DType::F16)
        );
        assert!(!fits(&Literal::scalar(DType::F32, f64::from(f32::MIN)), DType::BF16));
    }
}
