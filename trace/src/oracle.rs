//! Who knows what values are.

use graph::{Graph, Literal, ValueId};

/// Computes values of a graph that is still growing.
pub trait Oracle {
    /// The elements of a value, or `None` if nobody can know them now.
    ///
    /// # Errors
    ///
    /// A text for people: the computation failed.
    fn elements(&mut self, graph: &Graph, value: ValueId) -> Result<Option<Literal>, String>;
}

/// Knows nothing: the compiler's.
pub struct NoOracle;

impl Oracle for NoOracle {
    fn elements(&mut self, _: &Graph, _: ValueId) -> Result<Option<Literal>, String> {
        Ok(None)
    }
}
