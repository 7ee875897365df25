//! What a dynamic program is made from, as the plan carries it.

use crate::{Source, train::TrainOptions};
use ops::onnx::{BatchNormMode, DropoutMode, ImportOptions};
use serde::{Deserialize, Serialize};

/// How modes of nodes are read: [`ImportOptions`] as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Modes {
    /// Whether a training step is built.
    pub training: bool,
    /// 0 as the file says, 1 batch statistics, 2 running statistics.
    pub batchnorm: u8,
    /// 0 as the file says, 1 on, 2 off.
    pub dropout: u8,
    /// Update running variances with the unbiased batch variance.
    pub unbiased_running_variance: bool,
}

impl From<ImportOptions> for Modes {
    fn from(o: ImportOptions) -> Modes {
        Modes {
            training: o.training,
            batchnorm: match o.batchnorm {
                BatchNormMode::Auto => 0,
                BatchNormMode::Train => 1,
                BatchNormMode::Frozen => 2,
            },
            dropout: match o.dropout {
                DropoutMode::Auto => 0,
                DropoutMode::On => 1,
                DropoutMode::Off => 2,
            },
            unbiased_running_variance: o.unbiased_running_variance,
        }
    }
}

impl From<Modes> for ImportOptions {
    fn from(m: Modes) -> ImportOptions {
        ImportOptions {
            training: m.training,
            batchnorm: match m.batchnorm {
                1 => BatchNormMode::Train,
                2 => BatchNormMode::Frozen,
                _ => BatchNormMode::Auto,
            },
            dropout: match m.dropout {
                1 => DropoutMode::On,
                2 => DropoutMode::Off,
                _ => DropoutMode::Auto,
            },
            unbiased_running_variance: m.unbiased_running_variance,
        }
    }
}

/// A program that is walked at every step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    /// The model.
    pub source: Source,
    /// How modes of nodes are read.
    pub modes: Modes,
    /// The training step to make of it; `None` for its outputs only.
    pub train: Option<TrainOptions>,
    /// The loss and, if so said, the rows that are classified right, in place of its outputs.
    pub evaluate: Option<(TrainOptions, bool)>,
}

/// Bytes that are no recipe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the recipe of a dynamic program cannot be decoded: {0}")]
pub struct RecipeError(String);

impl Recipe {
    /// The wire form. Equal recipes give equal bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>, RecipeError> {
        postcard::to_stdvec(self).map_err(|e| RecipeError(e.to_string()))
    }

    /// From its wire form.
    pub fn from_bytes(bytes: &[u8]) -> Result<Recipe, RecipeError> {
        let (recipe, rest) = postcard::take_from_bytes(bytes).map_err(|e| RecipeError(e.to_string()))?;
        if !rest.is_empty() {
            return Err(RecipeError(format!("{} bytes are left over", rest.len())));
        }
        Ok(recipe)
    }
}
