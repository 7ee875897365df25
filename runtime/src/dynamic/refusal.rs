//! What a pool that is too small says: where, what fills it, and what would do.

use super::Holder;
use std::fmt;

/// A pool that is too small: what was asked of it when nothing more could go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolFull {
    /// Node that needed the space.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// Bytes that it needs at once, outputs and scratch.
    pub needed: u64,
    /// Bytes in use.
    pub live: u64,
    /// First byte of the pool: what lies below, the state, is part of the budget.
    pub base: u64,
    /// Bytes of the pool.
    pub pool: u64,
    /// Longest run of free bytes.
    pub largest_hole: u64,
    /// Bytes that cannot go: arguments of what is running, values that are kept.
    pub held: u64,
    /// It would do, but with so much recomputation that nobody would wait for it.
    pub thrashing: bool,
    /// Who holds most.
    pub holders: Vec<Holder>,
    /// The pool that would do, if one was found.
    pub least: Option<Least>,
    /// The plan's budget, where its pool was made smaller than that leaves.
    pub budget: Option<u64>,
}

/// What is known of the pool that would do for the same inputs in the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Least {
    /// So many bytes do.
    Enough(u64),
    /// What the program was known to be before the pool was full needs so many; the rest may need more.
    SoFar(u64),
}

impl fmt::Display for PoolFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.thrashing {
            write!(f, "recomputation costs many times the step itself: ")?;
        }
        write!(
            f,
            "out of memory at {} {:?}: it needs {} bytes at once; of the pool's {} bytes {} are in use, {} of them cannot go, and the \
             longest free run is {}",
            self.op, self.node, self.needed, self.pool, self.live, self.held, self.largest_hole
        )?;
        for (i, h) in self.holders.iter().enumerate() {
            write!(f, "{} {:?} {}", if i == 0 { "; the largest holders are" } else { "," }, h.node, h.bytes)?;
        }
        match self.least {
            Some(Least::Enough(n)) => {
                let all = self.base.saturating_add(n);
                let Some(budget) = self.budget else {
                    return write!(
                        f,
                        "; a pool of {n} bytes would do for this batch (a budget of {all} with the state)"
                    );
                };
                let beyond = if all > budget { format!(", and a budget of {all}") } else { String::new() };
                write!(
                    f,
                    "; a pool of {n} bytes would do for this batch ({all} with the state); the budget is {budget}, but the plan's pool was \
                     made for upper bounds of sizes, or by --dynamic-pool: give larger bounds (--dim NAME<=N) or --dynamic-pool {n}{beyond}"
                )
            }
            Some(Least::SoFar(n)) => write!(
                f,
                "; which way the program goes on is not known: as far as it is, it needs {n} bytes of pool, the rest may need more"
            ),
            None => {
                write!(f, "; give a larger budget, or a larger --dynamic-pool if the plan was made with one")
            }
        }
    }
}

impl std::error::Error for PoolFull {}
