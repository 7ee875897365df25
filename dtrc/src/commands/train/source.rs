//! Where the batches of training come from: files, or made up.

use crate::{error::CliError, synthetic::made_up_array};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use runtime::data::dataset::{BatchArray, Dataset, Order, Wanted};

/// Where batches come from.
pub enum Source {
    /// Files.
    Data(Dataset),
    /// Made up by a seed, without end.
    Synthetic { wanted: Vec<Wanted>, classes: u64, seed: u64 },
}

impl Source {
    /// Batches of an epoch.
    pub fn batches(&self) -> u64 {
        match self {
            Source::Data(d) => d.batches(),
            Source::Synthetic { .. } => u64::MAX,
        }
    }

    /// A batch of an order.
    pub fn batch(&mut self, order: Option<&Order>, index: u64) -> Result<Vec<BatchArray>, CliError> {
        match self {
            Source::Data(d) => {
                let order = order.ok_or_else(|| CliError::failed("no order of the data"))?;
                d.batch(order, index).map_err(|e| CliError::bad_input(e.to_string()))
            }
            Source::Synthetic { wanted, classes, seed } => {
                let mut rng =
                    ChaCha8Rng::seed_from_u64(seed.wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
                Ok(wanted.iter().map(|w| made_up_array(w, *classes, &mut rng)).collect())
            }
        }
    }
}
