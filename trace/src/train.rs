//! From a model to its training step: loss, gradients, optimizer, commits.
//!
//! Every commit takes a guard, the finiteness of the loss, so that a step whose loss is NaN or infinite leaves the state as it was; for
//! the same reason nothing is committed before the last operation that may refuse its data.

mod names;
mod scaling;
mod statistics;
mod updates;

pub use names::{GRADIENT, LOSS_SUM, Names, PENDING, is_named};
use scaling::Scaling;
pub use scaling::{GOOD, SCALE, SKIPPED, initial_scale};
use updates::Update;
pub use updates::{UPDATE, first_update};

use crate::precision::{self, Amp};

use graph::{
    Attrs, DType, Dim, Graph, Init, InputRole, Shape, StateId, StateKind, TensorType, ValueDef, ValueId,
};
use ops::{
    Builder, OpError,
    grad::{GradError, backward},
};
use plan::ProgramKind;
use serde::{Deserialize, Serialize};

/// Which loss is trained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Loss {
    /// A scalar output of the model, by name.
    Output(String),
    /// Mean cross entropy between an output (logits) and integer labels.
    CrossEntropy,
    /// Mean negative log likelihood of an output (log probabilities) at integer labels.
    Nll,
    /// Mean squared error.
    Mse,
    /// Mean binary cross entropy of an output (probabilities).
    Bce,
}

/// How parameters move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Optimizer {
    /// Stochastic gradient descent.
    Sgd {
        /// 0 for none.
        momentum: f64,
        /// Nesterov's form of momentum.
        nesterov: bool,
        /// L2 penalty.
        weight_decay: f64,
    },
    /// Adam; AdamW when `decoupled`.
    Adam {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the denominator.
        eps: f64,
        /// Weight decay.
        weight_decay: f64,
        /// Decay the weights themselves (AdamW).
        decoupled: bool,
    },
}

/// What a training step is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainOptions {
    /// `None`: the model's only scalar floating-point output.
    pub loss: Option<Loss>,
    /// The output that the loss reads; `None`: the first.
    pub output: Option<String>,
    /// Name of the label input.
    pub label: String,
    /// Class axis of the output; `None`: the last for three axes, otherwise the second.
    pub class_axis: Option<i64>,
    /// The label that counts nothing in an added loss over classes; `None`: every label counts.
    pub ignore_index: Option<i64>,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Largest global norm of the gradients.
    pub clip_norm: Option<f64>,
    /// Parts of a step whose gradients are added; at least 1.
    pub accumulate: u32,
    /// Names of the states to train.
    pub trainable: Vec<String>,
    /// Store what products and normalisations work on in 16 bits; see [`crate::precision`].
    pub amp: Option<Amp>,
}

/// Why there is no training step.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TrainError {
    /// The named output does not exist.
    #[error("the model has no output {name:?}; it has {}", .available.join(", "))]
    NoOutput {
        /// The name asked for.
        name: String,
        /// The outputs there are.
        available: Vec<String>,
    },
    /// The loss output is not a floating-point scalar.
    #[error("output {name:?} is {ty}; a loss is a floating-point scalar")]
    NotScalar {
        /// Output name.
        name: String,
        /// Its type.
        ty: String,
    },
    /// Values cannot be stored in 16 bits: a bug.
    #[error("--amp: {0}")]
    Precision(OpError),
    /// Nothing is trained.
    #[error("no parameter is trainable: see --list-trainable, --train and --freeze, or give --inference")]
    NothingToTrain,
    /// The loss does not depend on any trainable parameter.
    #[error("the loss does not depend on any trainable parameter")]
    NoGradient,
    /// The scores have no such axis of classes.
    #[error("--class-axis {axis}: output {output:?} has {rank} axes: give {} to {}", -(*.rank as i64), *.rank as i64 - 1)]
    ClassAxis {
        /// The axis asked for.
        axis: i64,
        /// Output name.
        output: String,
        /// Number of axes of the output.
        rank: usize,
    },
    /// The loss does not fit the output.
    #[error("loss on output {output:?}: {error}")]
    Loss {
        /// Output name.
        output: String,
        /// Why.
        error: OpError,
    },
    /// A gradient cannot be written.
    #[error(transparent)]
    Gradient(#[from] GradError),
    /// The update of a parameter cannot be written.
    #[error("update of {parameter:?}: {error}")]
    Update {
        /// State name.
        parameter: String,
        /// Why.
        error: OpError,
    },
    /// The step depends on itself.
    #[error("node {0:?} depends on itself")]
    Cycle(String),
}

/// The training step of a kind ([`ProgramKind::Train`], `Micro` or `Last`) and the names of parameters that get no gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingStep {
    /// The step; its only output is the loss.
    pub graph: Graph,
    /// Parameters the loss does not reach.
    pub unreached: Vec<String>,
    /// Gradient of each trained parameter, by state name. The values are in `graph` only while `keep_gradients` holds them as outputs.
    pub gradients: Vec<(String, ValueId)>,
}

impl Optimizer {
    /// What it remembers of each parameter: a state of the parameter's type, named after it and this.
    pub fn memory(&self) -> &'static [&'static str] {
        match self {
            Optimizer::Sgd { momentum, .. } if *momentum == 0.0 => &[],
            Optimizer::Sgd { .. } => &["momentum"],
            Optimizer::Adam { .. } => &["m", "v"],
        }
    }

    /// Whether it reads how many updates there were.
    pub fn counts(&self) -> bool {
        matches!(self, Optimizer::Adam { .. })
    }
}

/// Whether the model has a loss without being told: `Some(name)` of its only scalar floating-point output.
pub fn find_loss(forward: &Graph) -> Option<String> {
    let scalar = |v: &&ValueId| {
        let t = forward.ty(**v);
        t.dtype.is_float() && t.shape.elements() == Some(1) && t.shape.rank() <= 1
    };
    let mut found = forward.outputs.iter().filter(scalar);
    match (found.next(), found.next()) {
        (Some(v), None) => Some(forward.value(*v).name.to_string()),
        _ => None,
    }
}

/// The forward graph of a training step alone: the loss is its only output, added where it is not in the model. Returns its name, too:
/// with `Loss::Output` of it, the step of what comes out, or of something equal to it, is the step of `forward`.
pub fn with_loss(forward: &Graph, options: &TrainOptions) -> Result<(Graph, String), TrainError> {
    let mut graph = forward.clone();
    let loss = attach_loss(&mut Builder::new(&mut graph), options)?;
    graph.outputs = vec![loss];
    let name = graph.value(loss).name.to_string();
    Ok((graph.pruned(), name))
}

/// Builds the training step over a forward graph that is all of a model. With `keep_gradients` the gradients are outputs as well and nothing
/// is updated.
pub fn training_step(
    forward: &Graph,
    options: &TrainOptions,
    kind: ProgramKind,
    keep_gradients: bool,
) -> Result<TrainingStep, TrainError> {
    step(forward, options, kind, &Names::of_graphs([forward]), keep_gradients, false)
}

/// As [`training_step`], over a forward graph that is part of a model, or made from one: of several programs over one state, all that know
/// the model's `names` agree on the names of the states they add.
pub fn training_step_of(
    forward: &Graph,
    options: &TrainOptions,
    kind: ProgramKind,
    names: &Names<'_>,
) -> Result<TrainingStep, TrainError> {
    step(forward, options, kind, names, false, false)
}

/// The training step over the forward graph of one run of a program whose way the data decide. A parameter that this run does not reach has
/// a gradient of zeros: another run will reach it, and what its optimizer remembers goes on in step with the others'.
pub fn training_step_of_run(
    forward: &Graph,
    options: &TrainOptions,
    kind: ProgramKind,
    names: &Names<'_>,
) -> Result<TrainingStep, TrainError> {
    step(forward, options, kind, names, false, true)
}

fn step(
    forward: &Graph,
    options: &TrainOptions,
    kind: ProgramKind,
    names: &Names<'_>,
    keep_gradients: bool,
    is_run: bool,
) -> Result<TrainingStep, TrainError> {
    let mut graph = forward.clone();
    let mut parameters = Vec::new();
    for s in &mut graph.states {
        let float = matches!(forward.ty(s.input).dtype, DType::F32 | DType::F64);
        if float && options.trainable.iter().any(|n| **n == *s.name) {
            s.kind = StateKind::Parameter;
            parameters.push(s.input);
        }
    }
    if parameters.is_empty() {
        return Err(TrainError::NothingToTrain);
    }
    let mut b = Builder::new(&mut graph);
    let loss = attach_loss(&mut b, options)?;
    let wrap = |error| TrainError::Loss { output: "loss".to_owned(), error };
    let mut loss = loss;
    if let Some(amp) = options.amp {
        graph.outputs = vec![loss];
        precision::apply(&mut graph, amp).map_err(TrainError::Precision)?;
        loss = graph.outputs[0];
        b = Builder::new(&mut graph);
    }
    let loss_ty = b.ty(loss).clone();
    b.set_scope("grad/loss");
    let one = graph::Literal::filled(
        loss_ty.dtype,
        vec![1; loss_ty.shape.rank()],
        1.0 / f64::from(options.accumulate.max(1)),
    );
    let seed = one.map_err(|e| wrap(OpError::invalid(e.to_string())))?;
    let mut seed = b.constant(seed);
    let scaling = match options.amp {
        Some(amp) if amp.scales() => {
            let scaling = Scaling::new(&mut b, names);
            seed = scaling.scaled(&mut b, seed).map_err(wrap)?;
            Some(scaling)
        }
        _ => None,
    };
    b.set_scope("grad/loss");
    let mut gradients = backward(&mut b, &[(loss, seed)], &parameters)?;
    if is_run {
        b.set_scope("grad/zeros");
        for (p, g) in parameters.iter().zip(&mut gradients).filter(|(_, g)| g.is_none()) {
            let TensorType { dtype, shape } = b.ty(*p).clone();
            let zero = b.scalar(dtype, 0.0);
            *g = Some(b.expand(zero, &shape).map_err(wrap)?);
        }
    }
    let name = |b: &Builder<'_>, v: ValueId| b.graph().value(v).name.to_string();
    let unreached: Vec<String> =
        parameters.iter().zip(&gradients).filter(|(_, g)| g.is_none()).map(|(p, _)| name(&b, *p)).collect();
    let pairs: Vec<(ValueId, ValueId)> =
        parameters.iter().zip(&gradients).filter_map(|(p, g)| Some((*p, (*g)?))).collect();
    if pairs.is_empty() {
        return Err(TrainError::NoGradient);
    }
    let named: Vec<(String, ValueId)> = pairs.iter().map(|(p, g)| (name(&b, *p), *g)).collect();
    if keep_gradients {
        b.graph_mut().states.iter_mut().for_each(|s| s.output = None);
        graph.outputs = std::iter::once(loss).chain(pairs.iter().map(|(_, g)| *g)).collect();
    } else {
        b.set_scope("step");
        let totals = match &scaling {
            Some(_) if kind != ProgramKind::Micro => Some(totals(&mut b, kind, names, &pairs)?),
            _ => None,
        };
        let tested: Vec<ValueId> = totals.iter().flatten().map(|(_, g)| *g).collect();
        b.set_scope("step");
        let ok = guard(&mut b, kind, names, loss, &tested).map_err(wrap)?;
        statistics::guard(&mut b, kind, names, options.accumulate, ok)?;
        update(&mut b, options, kind, names, &pairs, ok, scaling.as_ref().zip(totals.as_deref()))?;
        if let Some(scaling) = scaling.filter(|_| kind != ProgramKind::Micro) {
            scaling.commit(&mut b, ok).map_err(wrap)?;
        }
        graph.outputs = vec![loss];
    }
    if options.amp.is_some() {
        precision::merge_casts(&mut graph);
    }
    graph.restore_order().map_err(|n| TrainError::Cycle(graph.node(n).name.to_string()))?;
    let before: Vec<String> = named_values(&graph, &named);
    let graph = graph.pruned();
    let gradients = named
        .iter()
        .zip(before)
        .filter_map(|((p, _), v): (&(String, ValueId), String)| {
            let id = graph.values.iter().position(|x| *x.name == *v)?;
            Some((p.clone(), ValueId(id as u32)))
        })
        .collect();
    Ok(TrainingStep { graph, unreached, gradients })
}

/// Whether the step may be committed: its loss is finite, in every part of it, and so are the gradients in `tested`. Earlier parts leave the
/// sum of their losses to the last one.
fn guard(
    b: &mut Builder<'_>,
    kind: ProgramKind,
    names: &Names<'_>,
    loss: ValueId,
    tested: &[ValueId],
) -> Result<ValueId, OpError> {
    let with = |v: ValueId| -> Vec<ValueId> { std::iter::once(v).chain(tested.iter().copied()).collect() };
    if kind == ProgramKind::Train {
        return b.call("IsFinite", &with(loss));
    }
    let loss = b.reshape(loss, &Shape::scalar())?;
    let loss = b.cast(loss, DType::F32)?;
    let earlier = add_state(b, &names.state(LOSS_SUM), loss, StateKind::Accumulator);
    if kind == ProgramKind::Micro {
        let sum = b.call("Accumulate", &[earlier, loss])?;
        set_output(b, earlier, sum);
        return b.call("IsFinite", &[loss]);
    }
    let sum = b.call("Add", &[earlier, loss])?;
    let ok = b.call("IsFinite", &with(sum))?;
    let zero = b.call("Reset", &[earlier, ok])?;
    set_output(b, earlier, zero);
    Ok(ok)
}

fn named_values(graph: &Graph, pairs: &[(String, ValueId)]) -> Vec<String> {
    pairs.iter().map(|(_, v)| graph.value(*v).name.to_string()).collect()
}

/// The loss that is trained, added to the graph where it is not in the model.
pub(crate) fn attach_loss(b: &mut Builder<'_>, options: &TrainOptions) -> Result<ValueId, TrainError> {
    let outputs = b.graph().outputs.clone();
    let names: Vec<String> = outputs.iter().map(|v| b.graph().value(*v).name.to_string()).collect();
    let find = |name: &str| {
        let at = names.iter().position(|n| n == name);
        at.map(|i| outputs[i])
            .ok_or_else(|| TrainError::NoOutput { name: name.to_owned(), available: names.clone() })
    };
    let in_model = match &options.loss {
        None => Some(find_loss(b.graph()).ok_or_else(|| TrainError::NoOutput {
            name: "a scalar loss".to_owned(),
            available: names.clone(),
        })?),
        Some(Loss::Output(name)) => Some(name.clone()),
        Some(_) => None,
    };
    if let Some(name) = in_model {
        let v = find(&name)?;
        let ty = b.ty(v);
        if !ty.dtype.is_float() || ty.shape.elements() != Some(1) {
            return Err(TrainError::NotScalar { name, ty: ty.to_string() });
        }
        return Ok(v);
    }
    let y = match &options.output {
        Some(name) => find(name)?,
        None => *outputs
            .first()
            .ok_or_else(|| TrainError::NoOutput { name: "any".to_owned(), available: names.clone() })?,
    };
    let output = b.graph().value(y).name.to_string();
    let rank = b.ty(y).shape.rank();
    if let Some(axis) =
        options.class_axis.filter(|a| rank > 1 && ops::onnx::normalize_axis(*a, rank).is_err())
    {
        return Err(TrainError::ClassAxis { axis, output, rank });
    }
    b.set_scope("loss");
    build_loss(b, options, y).map_err(|error| TrainError::Loss { output, error })
}

/// The axis of the classes in scores of `rank` axes where nobody names it: the last of three, otherwise the second.
pub fn usual_class_axis(rank: usize) -> usize {
    if rank == 3 { 2 } else { 1 }
}

fn build_loss(b: &mut Builder<'_>, options: &TrainOptions, y: ValueId) -> Result<ValueId, OpError> {
    let ty = b.ty(y).clone();
    let rank = ty.shape.rank();
    match options.loss {
        Some(Loss::CrossEntropy | Loss::Nll) => {
            if rank < 2 {
                return Err(OpError::invalid(format!(
                    "class scores need at least two axes, not {}",
                    ty.shape
                )));
            }
            let usual = usual_class_axis(rank) as i64;
            let axis = ops::onnx::normalize_axis(options.class_axis.unwrap_or(usual), rank)?;
            let mut label_dims = ty.shape.0.clone();
            let classes = label_dims.remove(axis);
            let label = label_input(b, options, TensorType { dtype: DType::I64, shape: Shape(label_dims) })?;
            let perm: Vec<i64> = (0..rank).filter(|a| *a != axis).chain([axis]).map(|a| a as i64).collect();
            let rows = b.ty(label).shape.0.iter().fold(Dim::constant(1), |n, d| n.mul(d));
            let flat = b.transpose(y, &perm)?;
            let flat = b.reshape(flat, &Shape(vec![rows.clone(), classes]))?;
            let label = b.reshape(label, &Shape(vec![rows]))?;
            let op = if options.loss == Some(Loss::Nll) {
                "NegativeLogLikelihoodLoss"
            } else {
                "SoftmaxCrossEntropyLoss"
            };
            let mut attrs = Attrs::new().with("reduction", "mean");
            if let Some(i) = options.ignore_index {
                attrs = attrs.with("ignore_index", i);
            }
            b.op(op, attrs, &[flat, label])
        }
        Some(Loss::Mse) => {
            let label = label_input(b, options, ty.clone())?;
            let d = b.call("Sub", &[y, label])?;
            let square = b.call("Mul", &[d, d])?;
            mean(b, square)
        }
        Some(Loss::Bce) => {
            let t = label_input(b, options, ty.clone())?;
            b.call("BceLoss", &[y, t])
        }
        Some(Loss::Output(_)) | None => Err(OpError::invalid("this loss is an output of the model")),
    }
}

fn mean(b: &mut Builder<'_>, v: ValueId) -> Result<ValueId, OpError> {
    let axes: Vec<i64> = (0..b.ty(v).shape.rank() as i64).collect();
    b.op("ReduceMean", Attrs::new().with("axes", axes).with("keepdims", false), &[v])
}

/// Why an added loss cannot call its label so: something in the model has the name.
pub fn label_taken(label: &str) -> OpError {
    OpError::invalid(format!("the model already has a tensor {label:?}: choose another --label"))
}

fn label_input(b: &mut Builder<'_>, options: &TrainOptions, ty: TensorType) -> Result<ValueId, OpError> {
    // What the step itself reads yields to what the user names.
    for role in [InputRole::Step, InputRole::Seed] {
        if let Some(v) =
            b.graph().input_with_role(role).filter(|v| *b.graph().value(*v).name == *options.label)
        {
            b.displace(v);
        }
    }
    let name = b.unique(&options.label);
    if *name != *options.label {
        return Err(label_taken(&options.label));
    }
    Ok(b.graph_mut().add_input(name, ty, InputRole::Label))
}

fn role_input(b: &mut Builder<'_>, role: InputRole, name: &str, dtype: DType) -> ValueId {
    if let Some(v) = b.graph().input_with_role(role) {
        return v;
    }
    let name = b.unique(name);
    b.graph_mut().add_input(name, TensorType { dtype, shape: Shape::scalar() }, role)
}

/// A state in which earlier parts of a step added up a gradient, if there are any, and the gradient over all parts.
type Total = (Option<ValueId>, ValueId);

/// The gradient of each parameter over all parts of the step.
fn totals(
    b: &mut Builder<'_>,
    kind: ProgramKind,
    names: &Names<'_>,
    pairs: &[(ValueId, ValueId)],
) -> Result<Vec<Total>, TrainError> {
    let mut out = Vec::new();
    for (p, g) in pairs {
        if kind == ProgramKind::Train {
            out.push((None, *g));
            continue;
        }
        let parameter = b.graph().value(*p).name.to_string();
        b.set_scope(format!("accumulate/{parameter}"));
        let acc = add_state(b, &names.memory(&parameter, GRADIENT), *p, StateKind::Accumulator);
        let sum = b.call("Add", &[acc, *g]).map_err(|error| TrainError::Update { parameter, error })?;
        out.push((Some(acc), sum));
    }
    Ok(out)
}

/// Emits accumulation or the optimizer's commits for each (parameter, gradient). Where the loss is scaled, the gradients are those of
/// [`totals`].
fn update(
    b: &mut Builder<'_>,
    options: &TrainOptions,
    kind: ProgramKind,
    names: &Names<'_>,
    pairs: &[(ValueId, ValueId)],
    ok: ValueId,
    scaled: Option<(&Scaling, &[Total])>,
) -> Result<(), TrainError> {
    let mut gradients = Vec::new();
    let mut accumulators = Vec::new();
    let name = |b: &Builder<'_>, v: ValueId| b.graph().value(v).name.to_string();
    for (i, (p, g)) in pairs.iter().enumerate() {
        if let Some((_, totals)) = scaled {
            accumulators.extend(totals[i].0);
            gradients.push(totals[i].1);
            continue;
        }
        let parameter = name(b, *p);
        let wrap = |error| TrainError::Update { parameter: parameter.clone(), error };
        if kind == ProgramKind::Train {
            gradients.push(*g);
            continue;
        }
        b.set_scope(format!("accumulate/{parameter}"));
        let acc = add_state(b, &names.memory(&parameter, GRADIENT), *p, StateKind::Accumulator);
        accumulators.push(acc);
        if kind == ProgramKind::Micro {
            let new = b.call("Accumulate", &[acc, *g, ok]).map_err(wrap)?;
            set_output(b, acc, new);
        } else {
            gradients.push(b.call("Add", &[acc, *g]).map_err(wrap)?);
        }
    }
    if kind == ProgramKind::Micro {
        return Ok(());
    }
    let wrap = |error| TrainError::Update { parameter: "loss scale".to_owned(), error };
    let inverse = scaled.map(|(s, _)| s.inverse(b)).transpose().map_err(wrap)?;
    let scale = match options.clip_norm {
        Some(max) => Some(clip(b, &gradients, max, inverse)?),
        None => inverse,
    };
    let lr = role_input(b, InputRole::LearningRate, "lr", DType::F32);
    let update = if options.optimizer.counts() {
        let wrap = |error| TrainError::Update { parameter: "number of the update".to_owned(), error };
        let step = role_input(b, InputRole::Step, "step", DType::I64);
        let update = Update::new(b, names, step).map_err(wrap)?;
        update.commit(b, ok).map_err(wrap)?;
        Some(update)
    } else {
        None
    };
    for (i, (p, _)) in pairs.iter().enumerate() {
        let parameter = name(b, *p);
        let wrap = |error| TrainError::Update { parameter: parameter.clone(), error };
        b.set_scope(format!("update/{parameter}"));
        let g = gradients[i];
        let memory = |b: &mut Builder<'_>| -> Vec<ValueId> {
            let all = options.optimizer.memory().iter().map(|what| names.memory(&parameter, what));
            all.map(|name| add_state(b, &name, *p, StateKind::Optimizer)).collect()
        };
        match &options.optimizer {
            Optimizer::Sgd { momentum, nesterov, weight_decay } => {
                let buffer = memory(b).first().copied();
                let attrs = Attrs::new()
                    .with("momentum", *momentum)
                    .with("nesterov", *nesterov)
                    .with("weight_decay", *weight_decay);
                let out = b
                    .emit("Sgd", attrs, &[Some(*p), Some(g), Some(lr), buffer, scale, Some(ok)])
                    .map_err(wrap)?;
                set_output(b, *p, out[0]);
                if let Some(buffer) = buffer {
                    set_output(b, buffer, out[1]);
                }
            }
            Optimizer::Adam { beta1, beta2, eps, weight_decay, decoupled } => {
                let number = update.as_ref().map(|u| u.number);
                let all = memory(b);
                let [m, v] = all[..] else { return Err(wrap(OpError::invalid("no memory"))) };
                let attrs = Attrs::new()
                    .with("beta1", *beta1)
                    .with("beta2", *beta2)
                    .with("eps", *eps)
                    .with("weight_decay", *weight_decay)
                    .with("decoupled", *decoupled);
                let args = [Some(*p), Some(g), Some(lr), Some(m), Some(v), number, scale, Some(ok)];
                let out = b.emit("Adam", attrs, &args).map_err(wrap)?;
                for (state, new) in [*p, m, v].into_iter().zip(out) {
                    set_output(b, state, new);
                }
            }
        }
        if let Some(acc) = accumulators.get(i) {
            // The update reads the old sum; the reset waits for it through the new parameter.
            let new = output_of(b, *p).ok_or_else(|| wrap(OpError::invalid("no update")))?;
            let zero = b.call("Reset", &[*acc, new]).map_err(wrap)?;
            set_output(b, *acc, zero);
        }
    }
    Ok(())
}

/// The factor on the gradients that limits their norm; `inverse` is one that they are multiplied by before.
fn clip(
    b: &mut Builder<'_>,
    gradients: &[ValueId],
    max: f64,
    inverse: Option<ValueId>,
) -> Result<ValueId, TrainError> {
    b.set_scope("clip");
    let wrap = |error| TrainError::Update { parameter: "gradient norm".to_owned(), error };
    let mut squares = Vec::new();
    for g in gradients {
        let mut sum = b.call("SumSquares", &[*g]).map_err(wrap)?;
        for inverse in inverse.iter().chain(&inverse) {
            sum = b.call("Mul", &[sum, *inverse]).map_err(wrap)?;
        }
        squares.push(sum);
    }
    let factor = b.op("ClipScale", Attrs::new().with("max_norm", max), &squares).map_err(wrap)?;
    match inverse {
        Some(inverse) => b.call("Mul", &[factor, inverse]).map_err(wrap),
        None => Ok(factor),
    }
}

fn add_state(b: &mut Builder<'_>, name: &str, like: ValueId, kind: StateKind) -> ValueId {
    let (name, ty) = (b.unique(name), b.ty(like).clone());
    b.graph_mut().add_state(name, ty, kind, Init::Zeros)
}

/// A float32 scalar that belongs to the step as a whole.
fn add_scalar(b: &mut Builder<'_>, names: &Names<'_>, wanted: &str, init: Init) -> ValueId {
    let name = b.unique(&names.state(wanted));
    b.graph_mut().add_state(name, TensorType::new(DType::F32, Shape::scalar()), StateKind::Optimizer, init)
}

fn state_of(b: &Builder<'_>, v: ValueId) -> Option<StateId> {
    if let ValueDef::State(s) = b.graph().value(v).def { Some(s) } else { None }
}

fn set_output(b: &mut Builder<'_>, state: ValueId, new: ValueId) {
    if let Some(s) = state_of(b, state) {
        b.graph_mut().states[s.index()].output = Some(new);
    }
}

fn output_of(b: &Builder<'_>, state: ValueId) -> Option<ValueId> {
    b.graph().states[state_of(b, state)?.index()].output
}
