//! The input slot: room for the inputs of the next step, beside those that the running step reads.
//!
//! A program's own inputs are storages like others: they end with their last reader, and what comes after lies in their place. The next
//! inputs can therefore not be written there while a step runs; they wait in the slot, and a step begins with copies out of it.

use crate::{Device, Plan, align};
use graph::Graph;

/// Bytes that the inputs of a graph take in a slot, one after the other; `None` if a size is unknown or beyond counting.
pub fn slot_need(graph: &Graph) -> Option<u64> {
    graph.inputs.iter().try_fold(0u64, |at, i| at.checked_add(align(graph.ty(i.value).bytes()?)))
}

/// Bytes of the slot that graphs share on a device. Graphs with sizes that only run time knows have no part in it.
pub fn slot_bytes<'a>(device: Device, graphs: impl IntoIterator<Item = &'a Graph>) -> u64 {
    match device {
        Device::Cpu => 0,
        Device::Cuda => graphs.into_iter().filter_map(slot_need).max().unwrap_or(0),
    }
}

impl Plan {
    /// Where the inputs of one of its graphs lie in the slot, in order; `None` if the plan has no slot, or too small a one for them.
    pub fn slot_offsets(&self, graph: &Graph) -> Option<Vec<u64>> {
        let need = slot_need(graph)?;
        if self.slot_bytes == 0 || need > self.slot_bytes {
            return None;
        }
        let mut at = self.state_bytes - self.slot_bytes;
        let mut all = Vec::new();
        for i in &graph.inputs {
            all.push(at);
            at += align(graph.ty(i.value).bytes()?);
        }
        Some(all)
    }
}
