//! How long a node runs: a roofline per operator for a device, or measured times.

use graph::{Graph, Node};
use ops::{Signature, Work, find};
use plan::{Device, Rates};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Rates of a device, from data sheets or from `dtrc profile`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceProfile {
    /// Name, for reports.
    pub name: String,
    /// Floating-point operations a second in matrix products and convolutions.
    pub product_flops_per_s: f64,
    /// Floating-point operations a second elsewhere.
    pub other_flops_per_s: f64,
    /// Bytes a second to and from memory.
    pub bytes_per_s: f64,
    /// Nanoseconds that any execution costs.
    pub launch_ns: f64,
}

impl DeviceProfile {
    /// The rates alone, as plans carry them.
    pub fn rates(&self) -> Rates {
        Rates {
            product_flops_per_s: self.product_flops_per_s,
            other_flops_per_s: self.other_flops_per_s,
            bytes_per_s: self.bytes_per_s,
            launch_ns: self.launch_ns,
        }
    }

    /// Estimates for the CPU.
    pub fn cpu() -> DeviceProfile {
        let Rates { product_flops_per_s, other_flops_per_s, bytes_per_s, launch_ns } = Rates::of(Device::Cpu);
        DeviceProfile {
            name: "cpu".to_owned(),
            product_flops_per_s,
            other_flops_per_s,
            bytes_per_s,
            launch_ns,
        }
    }
}

/// Where times come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostModel {
    /// The roofline for what was not measured.
    pub profile: DeviceProfile,
    /// Measured nanoseconds by [`key`].
    #[serde(default)]
    pub measured: BTreeMap<String, u64>,
    /// Bytes that the device's context, modules and graphs take beside the arena, where the device has memory of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_bytes: Option<u64>,
}

impl CostModel {
    /// Estimates only.
    pub fn estimated(profile: DeviceProfile) -> CostModel {
        CostModel { profile, measured: BTreeMap::new(), context_bytes: None }
    }

    /// Predicted nanoseconds of one execution; at least 1. A node whose outputs are all views costs 1.
    pub fn time(&self, graph: &Graph, node: &Node) -> u64 {
        let Some(op) = find(&node.op) else { return 1 };
        let sig = Signature::of(graph, node);
        if op.facts(&sig).views.len() == node.outputs.len() && !node.outputs.is_empty() {
            return 1;
        }
        if let Some(ns) = self.measured.get(&key(graph, node)) {
            return (*ns).max(1);
        }
        self.roofline(op.work(&sig))
    }

    fn roofline(&self, w: Work) -> u64 {
        self.profile.rates().nanoseconds(w.flops, w.bytes, w.product).max(1.0) as u64
    }
}

/// What two nodes must share to take equally long: operator, attributes and types.
pub fn key(graph: &Graph, node: &Node) -> String {
    use std::fmt::Write;
    let mut s = node.op.to_string();
    // Writing to a string cannot fail.
    for (k, a) in &node.attrs.0 {
        let _ = write!(s, " {k}={a}");
    }
    for v in &node.inputs {
        let _ = match v {
            Some(v) => write!(s, " {}", graph.ty(*v)),
            None => write!(s, " _"),
        };
    }
    for v in &node.outputs {
        let _ = write!(s, " >{}", graph.ty(*v));
    }
    s
}
