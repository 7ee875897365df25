//! What is trained, by which loss and which optimizer: from arguments to the options of a training step.

use super::{ModelArgs, told::tell_halves, values::OptimizerName};
use crate::{cli::Global, error::CliError, files::check_readable};
use compiler::{
    import::{self, trainable},
    train::{Loss, Optimizer, TrainOptions, usual_class_axis},
};
use graph::{Graph, TensorType};
use runtime::data::dataset::Dataset;
use serde_json::json;
use std::sync::Arc;

/// PyTorch's default of `ignore_index`.
const IGNORE_INDEX: i64 = -100;

impl ModelArgs {
    fn optimizer(&self) -> Result<Optimizer, CliError> {
        let finite = [Some(self.momentum), self.weight_decay, Some(self.eps), self.clip_norm];
        if finite.into_iter().flatten().chain(self.betas.iter().copied()).any(|x| !x.is_finite() || x < 0.0) {
            return Err(CliError::usage(
                "--momentum, --weight-decay, --betas, --eps and --clip-norm must be finite and not negative",
            ));
        }
        if self.clip_norm == Some(0.0) {
            return Err(CliError::usage(
                "--clip-norm 0 would scale every gradient to nothing: give a norm above 0",
            ));
        }
        if self.betas.iter().any(|b| *b >= 1.0) {
            return Err(CliError::usage("--betas must be below 1: with 1 a moment never forgets"));
        }
        let sgd = self.optimizer == OptimizerName::Sgd;
        if !sgd && (self.momentum != 0.0 || self.nesterov) {
            return Err(CliError::usage("--momentum and --nesterov are SGD's; adam and adamw have --betas"));
        }
        if self.nesterov && self.momentum == 0.0 {
            return Err(CliError::usage("--nesterov needs --momentum"));
        }
        Ok(match self.optimizer {
            OptimizerName::Sgd => Optimizer::Sgd {
                momentum: self.momentum,
                nesterov: self.nesterov,
                weight_decay: self.weight_decay.unwrap_or(0.0),
            },
            name => Optimizer::Adam {
                beta1: self.betas[0],
                beta2: self.betas[1],
                eps: self.eps,
                weight_decay: self.weight_decay.unwrap_or(if name == OptimizerName::Adamw {
                    0.01
                } else {
                    0.0
                }),
                decoupled: name == OptimizerName::Adamw,
            },
        })
    }

    fn ignore_index(&self) -> Result<i64, CliError> {
        let classes = matches!(self.loss, Some(Loss::CrossEntropy | Loss::Nll));
        if self.ignore_index.is_some() && !classes {
            let what = "--ignore-index is for --loss cross-entropy and nll; a loss in the model has its own";
            return Err(CliError::usage(what));
        }
        Ok(self.ignore_index.unwrap_or(IGNORE_INDEX))
    }

    /// The axis of the scores that the labels do not have, where the usual one does not fit them and another does.
    fn axis_by_extents(&self, graph: &Graph) -> Option<i64> {
        let labels = self.label_extents.as_ref()?;
        if !matches!(self.loss, Some(Loss::CrossEntropy | Loss::Nll)) {
            return None;
        }
        let named =
            |v: &&graph::ValueId| self.loss_output.as_ref().is_none_or(|n| **n == *graph.value(**v).name);
        let scores = graph.ty(*graph.outputs.iter().find(named)?).shape.fixed()?;
        let scores: Vec<u64> = scores.into_iter().map(|d| d as u64).collect();
        let usual = usual_class_axis(scores.len());
        let fits = |axis: usize| {
            let rest: Vec<u64> = (0..scores.len()).filter(|a| *a != axis).map(|a| scores[a]).collect();
            Dataset::fits(labels, &rest)
        };
        if scores.len() < 2 || fits(usual) {
            return None;
        }
        (1..scores.len()).find(|a| fits(*a)).map(|a| a as i64)
    }

    pub(super) fn train_options(
        &self,
        graph: &Graph,
        candidates: &[Arc<str>],
    ) -> Result<TrainOptions, CliError> {
        let chosen = trainable::select(graph, candidates, &self.train, &self.freeze)
            .map_err(|e| CliError::usage(e.to_string()))?;
        Ok(TrainOptions {
            loss: self.loss.clone(),
            output: self.loss_output.clone(),
            label: self.label.clone(),
            class_axis: self.class_axis.or_else(|| self.axis_by_extents(graph)),
            ignore_index: Some(self.ignore_index()?),
            optimizer: self.optimizer()?,
            clip_norm: self.clip_norm,
            accumulate: self.accumulate,
            trainable: chosen,
            amp: self.amp.map(Into::into),
        })
    }
}

/// Prints the names of the tensors that would be trained, with their types.
pub fn print_trainable(args: &ModelArgs, global: Global) -> Result<u8, CliError> {
    for (name, ty) in list_trainable(args, global)? {
        if global.json {
            let elements = ty.shape.elements();
            println!(
                "{}",
                json!({"schema": 1, "tensor": name, "type": ty.to_string(), "elements": elements, "bytes": ty.bytes()})
            );
        } else {
            println!("{ty:<24} {}", graph::quote_name(&name));
        }
    }
    Ok(0)
}

fn list_trainable(args: &ModelArgs, global: Global) -> Result<Vec<(String, TensorType)>, CliError> {
    check_readable(&args.model)?;
    let options = args.import_options(true);
    let (g, candidates) = match import::import(&args.model, &options) {
        Err(e) if e.is_open() => {
            let open = import::import_open(&args.model, &options)?;
            (open.graph, open.candidates)
        }
        other => other.map(|i| (i.graph, i.candidates))?,
    };
    let chosen = trainable::select(&g, &candidates, &args.train, &args.freeze)
        .map_err(|e| CliError::usage(e.to_string()))?;
    tell_halves(&g, &candidates, global.quiet);
    let find =
        |n: &str| g.states.iter().find(|s| &*s.name == n).map(|s| (n.to_owned(), g.ty(s.input).clone()));
    Ok(chosen.iter().filter_map(|n| find(n)).collect())
}
