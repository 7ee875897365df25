//! `--eval-data`: the plan's inference program over data of its own.

use crate::{
    cli::Global,
    error::CliError,
    model::Metric,
    session::{Ready, by_name, open_data},
};
use compiler::{
    evaluate::{CORRECT, COUNTED, LOSS, ROWS},
    train::is_named,
};
use graph::{Literal, TensorType};
use plan::ProgramKind;
use runtime::{RunOptions, Session, StepInputs, data::dataset::Dataset};
use serde_json::{Map, Value};
use std::path::Path;

/// Data to evaluate on, and what to tell.
pub struct Evaluation {
    data: Dataset,
    program: usize,
    /// Of each metric its name.
    pub names: Vec<String>,
}

/// Metrics by name, in order.
pub type Metrics = Vec<(String, f64)>;

impl Evaluation {
    /// Opens the data for a plan's inference program. Without `metrics` all that the program gives is told.
    pub fn open(
        path: &Path,
        metrics: &[Metric],
        ready: &Ready,
        global: Global,
    ) -> Result<Evaluation, CliError> {
        let programs = &ready.plan.programs;
        let program = programs.iter().position(|p| p.kind == ProgramKind::Infer).ok_or_else(|| {
            CliError::bad_input("the plan has no inference program: compile it with --metric loss,accuracy")
        })?;
        let g = &programs[program].graph;
        let scalars = g.outputs.iter().filter(|v| g.ty(**v).shape.elements() == Some(1));
        let scalars: Vec<&str> = scalars.map(|v| &*g.value(*v).name).collect();
        let mut names = Vec::new();
        if programs[program].dynamic.is_some() {
            // Its outputs are known when it runs.
            let word = |m: &Metric| if *m == Metric::Accuracy { "accuracy" } else { "loss" }.to_owned();
            names =
                if metrics.is_empty() { vec!["loss".to_owned()] } else { metrics.iter().map(word).collect() };
            return Ok(Evaluation {
                data: open_data(path, &ready.plan, ProgramKind::Infer, global)?,
                program,
                names,
            });
        }
        for m in metrics {
            let (name, output) = match m {
                Metric::Loss => ("loss", LOSS),
                Metric::Accuracy => ("accuracy", CORRECT),
            };
            if !scalars.iter().any(|name| is_named(name, output)) {
                let what = format!(
                    "the plan's inference program gives no {name}: compile it with --metric loss,accuracy"
                );
                return Err(CliError::bad_input(what));
            }
            names.push(name.to_owned());
        }
        if metrics.is_empty() {
            names = scalars.iter().filter_map(|n| Some(told(n)?.to_owned())).collect();
        }
        if names.is_empty() {
            let what = "the plan's inference program gives no scalar to tell: compile it with --metric loss,accuracy";
            return Err(CliError::bad_input(what));
        }
        Ok(Evaluation { data: open_data(path, &ready.plan, ProgramKind::Infer, global)?, program, names })
    }

    /// Runs the program over all of the data. The loss is the mean over rows that count where the program counts them, else over batches.
    pub fn run(&mut self, session: &mut Session) -> Result<Metrics, CliError> {
        let order = self.data.order(0, None);
        let mut sums: Vec<(String, f64, f64)> = self.names.iter().map(|n| (n.clone(), 0.0, 0.0)).collect();
        for i in 0..self.data.batches() {
            let batch = self.data.batch(&order, i).map_err(|e| CliError::bad_input(e.to_string()))?;
            let (data, shapes) = by_name(&batch);
            let inputs = StepInputs { data: &data, shapes: &shapes, ..StepInputs::default() };
            let result = session.run(self.program, &inputs, RunOptions::default()).map_err(|e| {
                let e = CliError::from(e);
                CliError { message: format!("evaluation, batch {i}: {}", e.message), ..e }
            })?;
            let scalars: Vec<(&str, f64)> = result
                .outputs
                .iter()
                .filter_map(|(name, ty, bytes)| Some((name.as_str(), scalar(ty, bytes)?)))
                .collect();
            let get = |name: &str| scalars.iter().find(|(n, _)| is_named(n, name)).map(|(_, x)| *x);
            let rows = get(ROWS);
            for (name, sum, weight) in &mut sums {
                let (value, w) = match (name.as_str(), get(LOSS), get(CORRECT)) {
                    ("accuracy", _, Some(correct)) => (correct, rows.or(get(COUNTED)).unwrap_or(0.0)),
                    // A batch in which no row counts has no mean.
                    ("loss", Some(_), _) if rows == Some(0.0) => (0.0, 0.0),
                    ("loss", Some(mean), _) => (mean * rows.unwrap_or(1.0), rows.unwrap_or(1.0)),
                    (own, ..) => (get(own).unwrap_or(f64::NAN), 1.0),
                };
                *sum += value;
                *weight += w;
            }
        }
        Ok(sums.into_iter().map(|(name, sum, weight)| (name, sum / weight)).collect())
    }
}

/// What an output of the program is called where it is told.
fn told(output: &str) -> Option<&str> {
    let is = |name| is_named(output, name);
    match output {
        _ if is(LOSS) => Some("loss"),
        _ if is(CORRECT) => Some("accuracy"),
        _ if is(ROWS) || is(COUNTED) => None,
        other => Some(other),
    }
}

fn scalar(ty: &TensorType, bytes: &[u8]) -> Option<f64> {
    let one = ty.shape.elements() == Some(1);
    Literal::new(ty.dtype, vec![1], bytes).ok().filter(|_| one).and_then(|l| l.to_floats().first().copied())
}

/// `loss 0.512300   accuracy 87.50 %`.
pub fn text(metrics: &[(String, f64)]) -> String {
    let one = |(name, x): &(String, f64)| match name.as_str() {
        "accuracy" => format!("accuracy {:.2} %", x * 100.0),
        _ => format!("{name} {x:.6}"),
    };
    metrics.iter().map(one).collect::<Vec<_>>().join("   ")
}

/// An object with a number a metric.
pub fn object(metrics: &[(String, f64)]) -> Map<String, Value> {
    metrics.iter().map(|(n, x)| (n.clone(), crate::planning::number(*x))).collect()
}
