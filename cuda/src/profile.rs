//! What devices are known to do, from data sheets: enough to plan for one that is not here.

use serde::Deserialize;

/// Figures of a device. Rates are peaks of dense arithmetic; what kernels reach of them is the cost model's to say.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceFigures {
    /// Version of this form.
    pub schema: u32,
    /// The device's name.
    pub name: String,
    /// Compute capability, `10 * major + minor`.
    pub architecture: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes a second to and from memory.
    pub bandwidth: u64,
    /// float32 operations a second on plain cores.
    pub float32: u64,
    /// The same on tensor cores, rounded to TF32.
    pub tf32: u64,
    /// float16 and bfloat16 on tensor cores.
    pub float16: u64,
    /// float64.
    pub float64: u64,
    /// Nanoseconds between the starts of two small kernels of a graph.
    pub launch_nanos: u64,
}

/// The files in `cuda/profiles`, by the names that `--target` takes.
const FILES: [(&str, &str); 6] = [
    ("h200", include_str!("../profiles/h200.json")),
    ("h100", include_str!("../profiles/h100.json")),
    ("a100", include_str!("../profiles/a100.json")),
    ("l4", include_str!("../profiles/l4.json")),
    ("rtx4090", include_str!("../profiles/rtx4090.json")),
    ("t4", include_str!("../profiles/t4.json")),
];

/// The names of shipped figures.
pub fn targets() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(n, _)| *n)
}

/// Shipped figures, or an error that lists what there is.
pub fn target(name: &str) -> Result<DeviceFigures, String> {
    let found = FILES.iter().find(|(n, _)| *n == name);
    let (_, text) = found.ok_or_else(|| {
        let known: Vec<&str> = targets().collect();
        format!("no figures for the device {name:?}; there are: {}", known.join(", "))
    })?;
    serde_json::from_str(text).map_err(|e| format!("profiles/{name}.json: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shipped_figures_are_read_and_plausible() {
        for name in targets() {
            let f = target(name).unwrap();
            assert!(f.schema == 1 && f.memory > 10_000_000_000 && f.bandwidth > 100_000_000_000, "{name}");
            assert!(f.float32 >= f.float64 && f.float16 >= f.float32, "{name}");
        }
        assert!(target("abacus").unwrap_err().contains("h200"));
    }
}
