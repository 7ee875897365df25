//! Values of the arguments: what may stand behind a flag.

use crate::units;
use compiler::{precision::Amp, train::Loss};
use rewrite::Level;

/// `--rewrites`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[allow(missing_docs)]
pub enum Rewrites {
    Exact,
    Fast,
    Memory,
}

impl From<Rewrites> for Level {
    fn from(r: Rewrites) -> Level {
        match r {
            Rewrites::Exact => Level::Exact,
            Rewrites::Fast => Level::Fast,
            Rewrites::Memory => Level::Memory,
        }
    }
}

/// `--amp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[allow(missing_docs)]
pub enum Half {
    Bf16,
    Fp16,
}

impl From<Half> for Amp {
    fn from(h: Half) -> Amp {
        match h {
            Half::Bf16 => Amp::Bf16,
            Half::Fp16 => Amp::Fp16,
        }
    }
}

/// `--optimizer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[allow(missing_docs)]
pub enum OptimizerName {
    Sgd,
    Adam,
    Adamw,
}

/// `--metric`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[allow(missing_docs)]
pub enum Metric {
    Loss,
    Accuracy,
}

/// `--batchnorm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[allow(missing_docs)]
pub enum Batchnorm {
    Auto,
    Train,
    Frozen,
}

/// `--dropout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[allow(missing_docs)]
pub enum Dropout {
    Auto,
    On,
    Off,
}

pub(super) fn parse_loss(text: &str) -> Result<Loss, String> {
    Ok(match text {
        "cross-entropy" => Loss::CrossEntropy,
        "nll" => Loss::Nll,
        "mse" => Loss::Mse,
        "bce" => Loss::Bce,
        _ => match text.strip_prefix("output:") {
            Some(name) if !name.is_empty() => Loss::Output(name.to_owned()),
            _ => return Err("give output:NAME, cross-entropy, nll, mse or bce".to_owned()),
        },
    })
}

pub(super) fn parts(text: &str) -> Result<u32, String> {
    u32::try_from(units::count(text)?).map_err(|_| "give a number below 2^32".to_owned())
}
