//! `--save` and `--save-inference`: trained weights in a copy of the model.

use crate::{cli::Global, error::CliError, progress::note, session::Ready};
use compiler::export::{SaveError, SaveOptions, Saver};
use graph::{Init, StateKind};
use runtime::Session;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

/// Where trained models go.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SaveArgs {
    /// Write the model with its trained weights here, at the end or when interrupted. The original stays as it is; external data is copied
    /// to OUT.weights.
    #[arg(long, value_name = "OUT.onnx")]
    pub save: Option<PathBuf>,

    /// The same with training switched off: batch normalization from its running statistics, no dropout.
    #[arg(long, value_name = "OUT.onnx")]
    pub save_inference: Option<PathBuf>,
}

/// The models that are written after training.
pub struct Saves {
    savers: Vec<Saver>,
    /// Name of the session's state by name of the model's tensor.
    states: BTreeMap<String, String>,
}

impl From<SaveError> for CliError {
    fn from(e: SaveError) -> Self {
        match &e {
            SaveError::Io { path, error } => CliError::unwritable(path, error),
            SaveError::Name { .. } => CliError::usage(e.to_string()),
            SaveError::Tensor { .. } => CliError::bad_input(e.to_string()),
        }
    }
}

impl SaveArgs {
    /// Prepares what is asked for, before anything is trained.
    pub fn prepare(&self, ready: &Ready) -> Result<Saves, CliError> {
        let trained = |k| matches!(k, StateKind::Parameter | StateKind::Statistic);
        let states: BTreeMap<String, String> = ready
            .plan
            .state
            .iter()
            .filter(|e| trained(e.kind))
            .filter_map(|e| match &e.init {
                Init::Weight(name) => Some((name.to_string(), e.name.to_string())),
                _ => None,
            })
            .collect();
        let names: BTreeSet<String> = states.keys().cloned().collect();
        let mut savers = Vec::new();
        let mut files = BTreeSet::new();
        for (out, inference) in [(&self.save, false), (&self.save_inference, true)] {
            let Some(out) = out else { continue };
            let options = SaveOptions { inference, ..SaveOptions::default() };
            let saver = Saver::prepare(&ready.weights, &names, out, options)?;
            for f in saver.files() {
                if !files.insert(f.clone()) {
                    return Err(CliError::usage(format!(
                        "{}: --save and --save-inference would both write it: choose two names",
                        f.display()
                    )));
                }
            }
            savers.push(saver);
        }
        Ok(Saves { savers, states })
    }
}

impl Saves {
    /// Writes the models from a session's state. Returns the names of their files.
    pub fn write(&self, session: &Session, global: Global) -> Result<Vec<PathBuf>, CliError> {
        let mut out = Vec::new();
        for saver in &self.savers {
            let saved = saver.write(&mut |name, at, bytes| {
                let state = self.states.get(name).map_or(name, String::as_str);
                session.read_state(state, at, bytes).map_err(|e| e.to_string())
            })?;
            let names: Vec<String> = saved.files.iter().map(|f| f.display().to_string()).collect();
            note(global.quiet, format!("saved {} tensors to {}", saved.tensors, names.join(", ")));
            out.extend(saved.files);
        }
        Ok(out)
    }
}
