//! The program that evaluates a model: its loss and the rows it classifies right, instead of its outputs.
//!
//! They are computed in the plan's arena and only sums leave it: the scores of a language model are larger than its parameters.

use crate::train::{Names, TrainError, TrainOptions, attach_loss};
use graph::{Attrs, DType, Graph, Literal, NodeId, ValueId};
use ops::{Builder, OpError};

/// Name of the output with the loss of a batch; it and the others' are numbered where the model has them: [`crate::train::is_named`].
pub const LOSS: &str = "eval/loss";
/// Name of the output with the number of rows that are classified right (i64).
pub const CORRECT: &str = "eval/correct";
/// Name of the output with the number of rows whose label counts (i64), where the loss is the mean over them.
pub const ROWS: &str = "eval/rows";
/// Name of that output where the loss is no such mean: class weights, a sum, a loss of the model's own.
pub const COUNTED: &str = "eval/counted";

/// An inference graph with its outputs replaced by [`LOSS`], by [`ROWS`] or [`COUNTED`] where the loss has class labels, and by [`CORRECT`]
/// if `accuracy` is asked for.
///
/// # Errors
///
/// There is no loss; or no class labels, and accuracy is asked for.
pub fn evaluation(infer: &Graph, options: &TrainOptions, accuracy: bool) -> Result<Graph, TrainError> {
    let mut graph = infer.clone();
    let names = Names::of_graphs([infer]);
    let mut b = Builder::new(&mut graph);
    let loss = attach_loss(&mut b, options)?;
    if b.graph().producer(loss).is_some() {
        b.rename(loss, &names.state(LOSS));
    }
    let mut outputs = vec![loss];
    b.set_scope("eval");
    let wrap = |error| TrainError::Loss { output: read_by(infer, options), error };
    match class_loss(b.graph(), loss) {
        Some((node, alone)) => {
            let (correct, counted) = count(&mut b, node, accuracy).map_err(wrap)?;
            let name = if alone && is_plain_mean(b.graph(), node) { ROWS } else { COUNTED };
            b.rename(counted, &names.state(name));
            outputs.push(counted);
            if let Some(correct) = correct {
                b.rename(correct, &names.state(CORRECT));
                outputs.push(correct);
            }
        }
        None if accuracy => {
            return Err(wrap(OpError::unsupported(
                "accuracy without class labels (a SoftmaxCrossEntropyLoss or NegativeLogLikelihoodLoss in the model, or --loss cross-entropy \
                 or nll)",
            )));
        }
        None => {}
    }
    graph.outputs = outputs;
    Ok(graph)
}

/// The output that the loss reads, for messages.
fn read_by(infer: &Graph, options: &TrainOptions) -> String {
    let first = || infer.outputs.first().map_or_else(String::new, |v| infer.value(*v).name.to_string());
    options.output.clone().unwrap_or_else(first)
}

/// Whether an operator compares scores (input 0) with class labels (input 1).
pub fn is_class_loss(op: &str) -> bool {
    matches!(op, "SoftmaxCrossEntropyLoss" | "NegativeLogLikelihoodLoss")
}

/// Which input of an operator has the class labels, if one has.
pub fn label_input(op: &str) -> Option<usize> {
    match op {
        "LinearCrossEntropy" => Some(2),
        _ => is_class_loss(op).then_some(1),
    }
}

/// The node that compares scores with class labels: the one that makes the loss (then `true`), or the only one of the model.
fn class_loss(graph: &Graph, loss: ValueId) -> Option<(NodeId, bool)> {
    if let Some(n) = graph.producer(loss).filter(|n| is_class_loss(&graph.node(*n).op)) {
        return Some((n, true));
    }
    let mut all =
        (0..graph.nodes.len()).map(|n| NodeId(n as u32)).filter(|n| is_class_loss(&graph.node(*n).op));
    match (all.next(), all.next()) {
        (Some(n), None) => Some((n, false)),
        _ => None,
    }
}

fn is_plain_mean(graph: &Graph, n: NodeId) -> bool {
    let node = graph.node(n);
    node.inputs.get(2).copied().flatten().is_none() && node.attrs.str_or("reduction", "mean") == Ok("mean")
}

/// Rows whose highest score is the label's, and rows whose label counts.
fn count(b: &mut Builder<'_>, n: NodeId, accuracy: bool) -> Result<(Option<ValueId>, ValueId), OpError> {
    let node = b.graph().node(n).clone();
    let (Some(scores), Some(labels)) = (node.inputs[0], node.inputs[1]) else {
        return Err(OpError::invalid("a loss without scores or labels"));
    };
    let labels = b.cast(labels, DType::I64)?;
    let counts = match node.attrs.opt_int("ignore_index")? {
        Some(i) => {
            let ignored = Literal::ints(&[i]).reshaped(Vec::new());
            let ignored = b.constant(ignored.map_err(|e| OpError::invalid(e.to_string()))?);
            let ignored = b.call("Equal", &[labels, ignored])?;
            b.call("Not", &[ignored])?
        }
        None => b.call("Equal", &[labels, labels])?,
    };
    let counted = sum(b, counts)?;
    if !accuracy {
        return Ok((None, counted));
    }
    let attrs = Attrs::new().with("axis", 1).with("keepdims", false).with("select_last_index", false);
    let guess = b.op("ArgMax", attrs, &[scores])?;
    let hit = b.call("Equal", &[guess, labels])?;
    let right = b.call("And", &[hit, counts])?;
    Ok((Some(sum(b, right)?), counted))
}

/// How many elements are true.
fn sum(b: &mut Builder<'_>, v: ValueId) -> Result<ValueId, OpError> {
    let ones = b.cast(v, DType::I64)?;
    let axes: Vec<i64> = (0..b.ty(v).shape.rank() as i64).collect();
    b.reduce_sum(ones, &axes, false)
}
