//! What the benchmarks share.

/// Seconds that this process's first thread has spent on a core, where the system tells; benchmarks that run one thread measure with it,
/// so that other processes count less.
#[must_use]
pub fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanoseconds = text.split_whitespace().next().and_then(|n| n.parse::<u64>().ok());
    nanoseconds.map_or(0.0, |n| n as f64 / 1e9)
}
