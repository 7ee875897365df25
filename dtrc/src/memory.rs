//! This process's memory, as the system counts it.

/// A figure of `/proc/self/status` in bytes.
fn status(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Resident bytes that are not backed by a file.
pub fn anonymous_rss() -> Option<u64> {
    Some(status("RssAnon")? + status("RssShmem")?)
}

/// The most bytes that were ever resident.
pub fn peak_rss() -> Option<u64> {
    status("VmHWM")
}
