//! A model walked once, with what is known of it at compile time.

use super::{
    Imported, Open, Options, Remark, attrs,
    error::{ImportError, ImportErrorKind},
    flatten::{FlatNode, flatten},
    inputs,
    model::{Model, ModelSource},
    source::{Parts, constant_node, parts},
    tensor::{self, Tensor},
    weights::Weights,
};
use graph::{Bindings, Graph, Init, InputRole, StateKind, TensorType, ValueDef, quote_name};
use std::collections::HashSet;
use trace::{Body, Limits, NoOracle, SourceTensor, TraceError, TraceErrorKind};

/// Most nodes of a graph with unrolled loops that is planned ahead of time.
const MAX_NODES: usize = 10_000;

/// Imports a parsed model.
pub fn walk(model: Model, options: &Options) -> Result<Imported, ImportError> {
    let Parts {
        source,
        bindings,
        inputs,
        mut weights,
        unused_initializers,
        idle_nodes,
        unread_inputs,
        trained_constants,
        no_tensors,
    } = parts(&model, options)?;
    let producer =
        format!("{} {}", model.proto.producer_name, model.proto.producer_version).trim().to_owned();
    let Model { source: file, opsets, warnings, proto, .. } = model;
    drop(proto);
    let fail = |kind| ImportError::file(&file, kind);
    let mut graph = Graph::default();
    let how = trace::Options { modes: options.ops, limits: Limits::new(MAX_NODES), new_weights: true };
    let traced =
        trace::walk(&source, &bindings, how, &mut graph, &mut NoOracle).map_err(|e| from_trace(&file, e))?;
    let mut remarks: Vec<Remark> = warnings.iter().map(|text| remark("model", text)).collect();
    remarks.extend(left_out(&no_tensors));
    remarks.extend(idle(idle_nodes));
    remarks.extend(unread(&unread_inputs));
    remarks.extend(constants(&trained_constants, options));
    remarks.extend(traced.remarks);
    for (name, ty, element) in traced.filled {
        weights.insert(name, Tensor::filled(&ty, element));
    }
    for path in weights.absent_files() {
        let path = path.display();
        let text = format!("external data {path} is absent; it is needed to run the plan, not to make it");
        remarks.push(remark("absent", &text));
    }
    let output_names = source.body.outputs.iter().map(|o| o.to_string()).collect();
    drop(source);
    let symbols = inputs.symbols.iter().filter(|s| !bindings.contains_key(*s)).cloned().collect();
    let graph = without_unused_states(graph);
    graph::verify(&graph).map_err(|e| fail(ImportErrorKind::Invariant(e)))?;
    let states: HashSet<&str> = graph.states.iter().map(|s| &*s.name).collect();
    weights.retain(|name| states.contains(name));
    let names = graph.states.iter().map(|s| &s.name);
    let candidates = names.filter(|n| traced.candidates.contains(*n)).cloned().collect();
    Ok(Imported {
        output_names,
        weights,
        candidates,
        remarks,
        opsets,
        producer,
        symbols,
        unused_initializers,
        graph,
    })
}

/// Reads a parsed model for a program that is walked at every step.
pub fn open(model: Model, options: &Options) -> Result<Open, ImportError> {
    let Parts {
        mut source, bindings, weights, idle_nodes, unread_inputs, trained_constants, no_tensors, ..
    } = parts(&model, options)?;
    let mut graph = Graph::default();
    for (name, ty) in &mut source.inputs {
        ty.shape = ty.shape.substitute(&bindings);
        graph.add_input(name.clone(), ty.clone(), InputRole::Data);
    }
    bind(&mut source.body, &bindings);
    let mut candidates = Vec::new();
    for (name, tensor) in &source.tensors {
        let SourceTensor::State { ty, candidate, statistic, .. } = tensor else { continue };
        let kind = if *statistic && options.ops.training { StateKind::Statistic } else { StateKind::Frozen };
        graph.add_state(name.clone(), ty.clone(), kind, Init::Weight(name.clone()));
        if *candidate {
            candidates.push(name.clone());
        }
    }
    let warnings = model.warnings.iter().map(|text| remark("model", text));
    let remarks = warnings.chain(left_out(&no_tensors)).chain(idle(idle_nodes));
    let remarks = remarks.chain(unread(&unread_inputs));
    let remarks = remarks.chain(constants(&trained_constants, options)).collect();
    Ok(Open { source, graph, weights, candidates, remarks })
}

/// Says in the types of bodies, too, which sizes are bound: the program has no other record of them.
fn bind(body: &mut Body, bindings: &Bindings) {
    for ty in body.output_types.iter_mut().flatten() {
        ty.shape = ty.shape.substitute(bindings);
    }
    let inner = body.nodes.iter_mut().flat_map(|n| &mut n.bodies);
    inner.for_each(|(_, b)| bind(b, bindings));
}

/// Tensors that nodes are or make, those in bodies included.
fn tensors_of(model: &Model, nodes: &[FlatNode<'_>], out: &mut Weights) {
    for node in nodes {
        for (_, body) in &node.bodies {
            tensors_of(model, &body.nodes, out);
            out.note_places(body);
            for (name, t) in &body.initializers {
                if let Ok(tensor) = tensor::tensor(t, &model.cuts, model.source.folder()) {
                    out.insert(name.as_str().into(), tensor);
                }
            }
        }
        match (node.domain, node.op_type, node.outputs.first()) {
            ("", "Constant", Some(o)) => {
                if let Ok(tensor) = constant_node(model, node) {
                    out.insert(o.as_str().into(), tensor);
                }
            }
            ("", "ConstantOfShape", Some(o)) => {
                let element = attrs::attributes(model, node).ok().and_then(|a| trace::repeated(&a));
                if let Some(element) = element {
                    out.insert_repeated(o.as_str().into(), element);
                }
            }
            _ => {}
        }
    }
}

fn constants(names: &[String], options: &Options) -> Option<Remark> {
    let first = names.first().filter(|_| options.ops.training)?;
    let what = "of what can be trained are Constant nodes and not initializers";
    let text = format!(
        "{} {what}, {} first: --freeze NAMES leaves them as they are",
        names.len(),
        quote_name(first)
    );
    Some(remark("constants", &text))
}

fn unread(inputs: &[String]) -> Option<Remark> {
    let names: Vec<String> = inputs.iter().map(|n| quote_name(n).to_string()).collect();
    let text = format!("inputs that nothing reads are left out: {}", names.join(", "));
    (!names.is_empty()).then(|| remark("unread", &text))
}

fn idle(nodes: usize) -> Option<Remark> {
    (nodes > 0).then(|| remark("idle", &format!("nodes that lead to no output are left out: {nodes}")))
}

fn left_out(outputs: &[String]) -> Option<Remark> {
    let names: Vec<String> = outputs.iter().map(|n| quote_name(n).to_string()).collect();
    let text = format!("outputs that are no tensors are left out: {}", names.join(", "));
    (!names.is_empty()).then(|| remark("output", &text))
}

fn remark(key: &str, text: &str) -> Remark {
    Remark { key: key.to_owned(), text: text.to_owned(), node: String::new(), count: 1 }
}

/// The error with the file it is about.
pub fn from_trace(file: &ModelSource, e: TraceError) -> ImportError {
    let kind = match e.kind {
        TraceErrorKind::Model(what) | TraceErrorKind::Oracle(what) => ImportErrorKind::Model(what),
        TraceErrorKind::Op(e) => ImportErrorKind::Op(e),
        TraceErrorKind::Dynamic { what, dims } => ImportErrorKind::Dynamic { what, dims },
        TraceErrorKind::Unsupported(what) => ImportErrorKind::Unsupported(what),
        TraceErrorKind::TooLong { nodes } | TraceErrorKind::Endless { nodes, .. } => {
            ImportErrorKind::TooLong { nodes }
        }
    };
    ImportError { file: file.name(), node: e.node, op: e.op, kind: Box::new(kind) }
}

/// Names and types of a model's inputs that are no initializers.
pub fn input_types(model: &Model) -> Result<Vec<(String, TensorType)>, ImportError> {
    let proto = &model.proto.graph;
    let names: HashSet<&str> = proto.initializer.iter().map(|t| t.name.as_str()).collect();
    let inputs = inputs::read(&proto.input, &|n| !names.contains(n));
    let fail = |what| ImportError::file(&model.source, ImportErrorKind::Model(what));
    inputs.map(|i| i.types).map_err(fail)
}

/// Where the elements of a model's tensors are, without importing its nodes: initializers and Constant nodes by name; for those
/// that ConstantOfShape makes see [`Weights::fill`].
pub fn weights_of(model: &Model) -> Result<Weights, ImportError> {
    let proto = &model.proto.graph;
    let mut out = Weights::new(model.source.clone());
    let names: HashSet<&str> = proto
        .initializer
        .iter()
        .map(|t| t.name.as_str())
        .chain(proto.input.iter().map(|i| i.name.as_str()))
        .collect();
    tensors_of(model, &flatten(model, &names)?, &mut out);
    for t in &proto.initializer {
        if let Ok(tensor) = tensor::tensor(t, &model.cuts, model.source.folder()) {
            out.insert(t.name.as_str().into(), tensor);
        }
    }
    Ok(out)
}

/// The graph without what nothing needs, weights included.
fn without_unused_states(graph: Graph) -> Graph {
    let mut g = graph.pruned();
    drop(graph);
    let users = g.users();
    let mut kept = Vec::new();
    for s in std::mem::take(&mut g.states) {
        if s.output.is_some() || !users[s.input.index()].is_empty() || g.outputs.contains(&s.input) {
            g.values[s.input.index()].def = ValueDef::State(graph::StateId(kept.len() as u32));
            kept.push(s);
        }
    }
    g.states = kept;
    g.pruned()
}
