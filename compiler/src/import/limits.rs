//! How much memory reading a model may take: a guard against files that are made to exhaust it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes beyond three times the file that reading it may take, unless [`set_memory`] says otherwise.
pub const MEMORY: u64 = 64 << 20;

/// What to do where the limit is in the way.
pub(super) const WAY_OUT: &str = "if you trust the file, give --import-memory 1G";

static BYTES: AtomicU64 = AtomicU64::new(MEMORY);

/// Sets for the whole process how many bytes beyond three times a file reading it may take.
pub fn set_memory(bytes: u64) {
    BYTES.store(bytes, Ordering::Relaxed);
}

/// Bytes that importing a file of this size may take.
pub(super) fn allowance(file: u64) -> u64 {
    file.saturating_mul(3).saturating_add(BYTES.load(Ordering::Relaxed))
}

/// Bytes that the parsed form of a file may take; the rest of [`allowance`] is for the graph.
pub(super) fn parse_limit(file: u64) -> u64 {
    file.saturating_mul(2).saturating_add(BYTES.load(Ordering::Relaxed) / 8 * 5)
}
