//! How much memory there is: the machine's and the container's limit, whichever is less.

use std::{fs, path::Path};

/// Available memory and where the figure comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Available {
    /// Bytes.
    pub bytes: u64,
    /// `system` or `container limit`.
    pub source: &'static str,
}

/// Bytes that this process can still take; `None` where the system does not say.
pub fn available_memory() -> Option<Available> {
    let system = meminfo(&fs::read_to_string("/proc/meminfo").ok()?)
        .map(|bytes| Available { bytes, source: "system" });
    let container = container_limit().map(|bytes| Available { bytes, source: "container limit" });
    [system, container].into_iter().flatten().min_by_key(|a| a.bytes)
}

/// `MemAvailable` of a `/proc/meminfo` text, in bytes.
fn meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What is left below the limits of the process's control group and its parents.
fn container_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut least: Option<u64> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (root, limit, usage) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            c if c.split(',').any(|c| c == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => continue,
        };
        let mut dir = Path::new(root).join(path.trim_start_matches('/'));
        while dir.starts_with(root) {
            let read = |f: &str| fs::read_to_string(dir.join(f)).ok()?.trim().parse::<u64>().ok();
            if let (Some(limit), Some(used)) = (read(limit), read(usage)) {
                // Page cache counts as used, but gives way.
                let cache = fs::read_to_string(dir.join("memory.stat"))
                    .ok()
                    .and_then(|s| reclaimable(&s))
                    .unwrap_or(0);
                let left = limit.saturating_sub(used.saturating_sub(cache));
                least = Some(least.map_or(left, |l| l.min(left)));
            }
            if !dir.pop() {
                break;
            }
        }
    }
    // The old interface writes a number near 2^63 for "no limit".
    least.filter(|l| *l < 1 << 60)
}

fn reclaimable(stat: &str) -> Option<u64> {
    stat.lines().find_map(|l| l.strip_prefix("inactive_file "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_meminfo() {
        assert_eq!(meminfo("MemTotal: 10 kB\nMemAvailable:    2048 kB\n"), Some(2048 * 1024));
        assert_eq!(meminfo("MemTotal: 10 kB\n"), None);
    }

    #[test]
    fn this_system_has_memory() {
        if cfg!(target_os = "linux") {
            assert!(available_memory().is_some_and(|a| a.bytes > 1 << 20));
        }
    }
}
