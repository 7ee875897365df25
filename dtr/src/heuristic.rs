//! Which storage goes first: every heuristic of the paper and of its prototype, by name.
//!
//! All but LRU and random are one formula, `cost / (size * staleness)`, with each part on or off (the paper's ablation grid); the lowest goes.

use std::fmt;
use std::str::FromStr;

/// The numerator of a score: what it would cost to get the storage back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CostPart {
    /// 1 for every storage.
    Unit,
    /// The storage's own ops.
    Local,
    /// Plus the distinct union-find classes of evicted direct neighbours (`h_DTR^eq`).
    Classes,
    /// Plus all evicted descendants and all evicted ancestors; who is both counts twice (`h_DTR`, the paper's e*).
    Neighbourhood,
    /// Plus all evicted ancestors (MSPS).
    Ancestors,
    /// Plus the set union of evicted descendants and ancestors; staleness is then that of the most recently used among all of them. The
    /// prototype's unoptimised `h_DTR`, the one that goes with banishing.
    Union,
}

/// A heuristic: what the machine evicts first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Heuristic {
    /// `cost / (size * staleness)`, lowest first.
    Score {
        /// The numerator.
        cost: CostPart,
        /// Divide by bytes.
        size: bool,
        /// Divide by the time since last use.
        stale: bool,
    },
    /// Least recently used.
    Lru,
    /// Uniformly at random, from [`crate::Options::seed`].
    Random,
}

impl Heuristic {
    /// `h_DTR`: evicted neighbourhood over size and staleness.
    pub const DTR: Self = Self::score(CostPart::Neighbourhood, true, true);
    /// `h_DTR^eq`: union-find classes over size and staleness.
    pub const DTR_EQ: Self = Self::score(CostPart::Classes, true, true);
    /// `h_DTR^local`: own cost over size and staleness.
    pub const DTR_LOCAL: Self = Self::score(CostPart::Local, true, true);
    /// `h_DTR` over the set union, with the youngest staleness.
    pub const DTR_UNION: Self = Self::score(CostPart::Union, true, true);
    /// Largest storage.
    pub const SIZE: Self = Self::score(CostPart::Unit, true, false);
    /// Evicted ancestors over size.
    pub const MSPS: Self = Self::score(CostPart::Ancestors, true, false);
    /// `h_e*` of Theorem 3.1: evicted neighbourhood alone.
    pub const E_STAR: Self = Self::score(CostPart::Neighbourhood, false, false);

    const fn score(cost: CostPart, size: bool, stale: bool) -> Self {
        Self::Score { cost, size, stale }
    }

    /// Every named heuristic with its name; the ablation grid `ab-{e,eq,local,none}[-size][-stale]` comes on top.
    pub const NAMED: [(&'static str, Self); 9] = [
        ("dtr", Self::DTR),
        ("dtr-eq", Self::DTR_EQ),
        ("dtr-local", Self::DTR_LOCAL),
        ("dtr-union", Self::DTR_UNION),
        ("lru", Self::Lru),
        ("size", Self::SIZE),
        ("msps", Self::MSPS),
        ("random", Self::Random),
        ("e-star", Self::E_STAR),
    ];

    /// Whether scores change with the clock.
    pub(crate) fn uses_staleness(self) -> bool {
        match self {
            Self::Score { stale, .. } => stale,
            Self::Lru => true,
            Self::Random => false,
        }
    }

    /// The numerator; [`CostPart::Unit`] where there is none.
    pub(crate) fn cost_part(self) -> CostPart {
        match self {
            Self::Score { cost, .. } => cost,
            Self::Lru | Self::Random => CostPart::Unit,
        }
    }
}

/// A heuristic's name that is none.
#[derive(Debug, thiserror::Error)]
#[error(
    "unknown heuristic {0:?}: one of dtr, dtr-eq, dtr-local, dtr-union, lru, size, msps, random, e-star, ab-{{e,eq,local,none}}[-size][-stale]"
)]
pub struct UnknownHeuristic(String);

impl FromStr for Heuristic {
    type Err = UnknownHeuristic;

    fn from_str(name: &str) -> Result<Self, UnknownHeuristic> {
        if let Some((_, heuristic)) = Self::NAMED.iter().find(|(known, _)| *known == name) {
            return Ok(*heuristic);
        }
        let unknown = || UnknownHeuristic(name.to_owned());
        let rest = name.strip_prefix("ab-").ok_or_else(unknown)?;
        let (rest, stale) = rest.strip_suffix("-stale").map_or((rest, false), |rest| (rest, true));
        let (rest, size) = rest.strip_suffix("-size").map_or((rest, false), |rest| (rest, true));
        let cost = match rest {
            "e" => CostPart::Neighbourhood,
            "eq" => CostPart::Classes,
            "local" => CostPart::Local,
            "none" => CostPart::Unit,
            _ => return Err(unknown()),
        };
        Ok(Self::Score { cost, size, stale })
    }
}

impl fmt::Display for Heuristic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((name, _)) = Self::NAMED.iter().find(|(_, known)| known == self) {
            return f.pad(name);
        }
        let Self::Score { cost, size, stale } = *self else { return f.pad("random") };
        let cost = match cost {
            CostPart::Unit => "none",
            CostPart::Local => "local",
            CostPart::Classes => "eq",
            CostPart::Neighbourhood => "e",
            CostPart::Ancestors => "ancestors",
            CostPart::Union => "union",
        };
        f.pad(&format!("ab-{cost}{}{}", if size { "-size" } else { "" }, if stale { "-stale" } else { "" }))
    }
}
