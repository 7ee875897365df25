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

    /// The elements that were given are used; who needs them again asks again.
    fn forget(&mut self) {}

    /// Finds room on the host for elements that follow from what was read and stay until the step ends, in bytes.
    ///
    /// # Errors
    ///
    /// A text for people: there is none.
    fn reserve(&mut self, graph: &Graph, bytes: u64) -> Result<(), String> {
        let _ = (graph, bytes);
        Ok(())
    }
}

/// Knows nothing: the compiler's.
pub struct NoOracle;

impl Oracle for NoOracle {
    fn elements(&mut self, _: &Graph, _: ValueId) -> Result<Option<Literal>, String> {
        Ok(None)
    }
}
