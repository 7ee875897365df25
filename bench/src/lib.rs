//! What the benchmarks share.

pub mod traces;

/// Seconds that this process's first thread has spent on a core, where the system tells; benchmarks that run one thread measure with it,
/// so that other processes count less.
#[must_use]
pub fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanoseconds = text.split_whitespace().next().and_then(|n| n.parse::<u64>().ok());
    nanoseconds.map_or(0.0, |n| n as f64 / 1e9)
}

/// Seconds that all threads of this process which are still there have spent on a core, where the system tells.
#[must_use]
pub fn process_cpu_seconds() -> f64 {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return 0.0 };
    let text = |t: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(t.ok()?.path().join("schedstat")).ok()
    };
    let nanoseconds = |t: String| t.split_whitespace().next()?.parse::<u64>().ok();
    threads.filter_map(text).filter_map(nanoseconds).sum::<u64>() as f64 / 1e9
}
