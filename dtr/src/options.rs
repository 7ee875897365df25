//! What a driver may ask of the machine beside the program itself.

use crate::heuristic::Heuristic;

/// What happens when the last reference to a storage goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dealloc {
    /// Nothing: the storage stays in the pool like any other.
    Ignore,
    /// It is evicted at once; it may be recomputed later as an intermediate. Pinned and held storages stay.
    Eager,
    /// It is given up for good once no evicted storage depends on it, and what it fed can then no longer be recomputed: its children are
    /// pinned. Goes with heuristics without classes and cached neighbourhoods.
    Banish,
    /// Eager eviction, and what no possible recomputation can read any more is freed, held storages included.
    Retire,
}

/// Options of a [`crate::Machine`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes that may be resident at once, `u64::MAX` for no limit.
    pub budget: u64,
    /// What goes first.
    pub heuristic: Heuristic,
    /// What happens to the dead.
    pub dealloc: Dealloc,
    /// Stop with [`crate::Error::Thrash`] once repeated execution has cost more than this.
    pub remat_limit: Option<u64>,
    /// Recompute the arguments of an op in the order of their need (Sethi-Ullman), and let what merely waits for its turn be evicted before
    /// giving up, so that locks of nested recomputation cannot starve it.
    pub order_remats: bool,
    /// Score only about the square root of the pool, drawn at random, as the paper's prototype does.
    pub sample: bool,
    /// Ignore storages smaller than this share of the pool's mean size (the prototype: 0.01), unless nothing else is left.
    pub skip_small: Option<f64>,
    /// Seed of [`Heuristic::Random`] and of sampling.
    pub seed: u64,
}

impl Options {
    /// Eager eviction under a budget in bytes; no limit, no filters, the reference's order of recomputation.
    pub fn new(budget: u64, heuristic: Heuristic) -> Self {
        Self {
            budget,
            heuristic,
            dealloc: Dealloc::Eager,
            remat_limit: None,
            order_remats: false,
            sample: false,
            skip_small: None,
            seed: 0,
        }
    }
}
