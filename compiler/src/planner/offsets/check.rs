//! What a right placement is, apart from the code that finds one.
//!
//! Kept short and free of anything the allocator uses, so that it can be read in a minute and believed.

use super::Buffer;
use crate::planner::problem::Bytes;

/// What is wrong with a placement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Another number of offsets than of buffers.
    #[error("{offsets} offsets for {buffers} buffers")]
    Count {
        /// Buffers given.
        buffers: usize,
        /// Offsets given.
        offsets: usize,
    },
    /// A buffer reaches above the height.
    #[error("buffer {buffer} reaches above the height {height}")]
    TooHigh {
        /// Index of the buffer.
        buffer: usize,
        /// Height claimed.
        height: Bytes,
    },
    /// Two buffers that live together share bytes.
    #[error("buffers {a} and {b} live together and share bytes")]
    Overlap {
        /// Index of the one.
        a: usize,
        /// Index of the other.
        b: usize,
    },
}

/// Checks that every buffer lies below `height` and that no two live ones share bytes.
pub fn validate(buffers: &[Buffer], offsets: &[Bytes], height: Bytes) -> Result<(), Fault> {
    if buffers.len() != offsets.len() {
        return Err(Fault::Count { buffers: buffers.len(), offsets: offsets.len() });
    }
    let mut by_start: Vec<usize> =
        (0..buffers.len()).filter(|&i| buffers[i].end > buffers[i].start && buffers[i].size > 0).collect();
    by_start.sort_by_key(|&i| buffers[i].start);
    for (k, &a) in by_start.iter().enumerate() {
        let top = offsets[a].checked_add(buffers[a].size).filter(|&top| top <= height);
        let top = top.ok_or(Fault::TooHigh { buffer: a, height })?;
        for &b in by_start[k + 1..].iter().take_while(|&&b| buffers[b].start < buffers[a].end) {
            let apart = offsets[b] >= top || offsets[b].saturating_add(buffers[b].size) <= offsets[a];
            if !apart {
                return Err(Fault::Overlap { a, b });
            }
        }
    }
    Ok(())
}
