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
    /// Bytes that the context, modules and graphs take beside the arena, roughly: no data sheet says, and drivers differ.
    pub context: u64,
    /// Nanoseconds between the starts of two small kernels of a graph.
    pub launch_nanos: u64,
}

/// What our kernels reach of a device's peaks, in thousandths: products on plain cores, on tensor cores, and memory. Planning depends on
/// ratios of times, not on their size.
const PRODUCT_PERMILLE: f64 = 600.0;
const TENSOR_PERMILLE: f64 = 300.0;
const MEMORY_PERMILLE: f64 = 800.0;

/// Rates that kernels of ours reach on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reached {
    /// Floating-point operations a second in matrix products and convolutions.
    pub product_flops_per_s: f64,
    /// Floating-point operations a second elsewhere.
    pub other_flops_per_s: f64,
    /// Bytes a second to and from memory.
    pub bytes_per_s: f64,
    /// Nanoseconds that any execution costs.
    pub launch_ns: f64,
}

impl DeviceFigures {
    /// What is reached of them, in float32; with `tf32` its products run on tensor cores.
    pub fn reached(&self, tf32: bool) -> Reached {
        let plain = self.float32 as f64 * PRODUCT_PERMILLE / 1000.0;
        let tensor = self.tf32 as f64 * TENSOR_PERMILLE / 1000.0;
        Reached {
            product_flops_per_s: if tf32 { tensor.max(plain) } else { plain },
            other_flops_per_s: plain / 2.0,
            bytes_per_s: self.bandwidth as f64 * MEMORY_PERMILLE / 1000.0,
            launch_ns: self.launch_nanos as f64,
        }
    }
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

/// Shipped figures of a device that calls itself so.
pub fn of_device(name: &str) -> Option<DeviceFigures> {
    let name = name.to_lowercase().replace([' ', '-'], "");
    targets().find(|t| name.contains(t)).and_then(|t| target(t).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shipped_figures_are_read_and_plausible() {
        for name in targets() {
            let f = target(name).unwrap();
            assert!(f.schema == 2 && f.memory > 10_000_000_000 && f.bandwidth > 100_000_000_000, "{name}");
            assert!(f.float32 >= f.float64 && f.float16 >= f.float32, "{name}");
        }
        assert_eq!(of_device("NVIDIA H200").unwrap(), target("h200").unwrap());
        assert_eq!(of_device("NVIDIA GeForce RTX 4090").unwrap(), target("rtx4090").unwrap());
        assert_eq!(of_device("simulated device"), None);
        assert!(target("abacus").unwrap_err().contains("h200"));
    }
}
