//! The plan as data.

use graph::{Bindings, Graph, Init, NodeId, StateKind, TensorType, ValueId, quote_name};
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

/// Every storage starts at a multiple of this many bytes and is counted in such units.
pub const ALIGNMENT: u64 = 256;

/// `bytes` rounded up to the alignment; saturates.
pub const fn align(bytes: u64) -> u64 {
    match bytes.checked_next_multiple_of(ALIGNMENT) {
        Some(n) => n,
        None => u64::MAX - u64::MAX % ALIGNMENT,
    }
}

/// The kind of device a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Device {
    Cpu,
    Cuda,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Device::Cpu => "cpu",
            Device::Cuda => "cuda",
        })
    }
}

/// A plan: the state that outlives a step, and the programs that run over it in one arena.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Name of the model, for people.
    pub model: String,
    /// The device kind it was made for.
    pub device: Device,
    /// The budget it was made for, in bytes.
    pub budget: u64,
    /// Bytes of the arena: what the runtime takes. At most the budget.
    pub arena: u64,
    /// Everything that decides the bits of a result, hashed; see [`crate::numerics`].
    pub numerics: [u8; 32],
    /// Which planner and solver made it, for people.
    pub provenance: String,
    /// State at fixed offsets at the arena's low end, the same for all programs, in order of offset.
    pub state: Vec<StateEntry>,
    /// Bytes of the state section with the input slot at its end, aligned.
    pub state_bytes: u64,
    /// Bytes of the input slot: where the next step's inputs are put while a step runs. 0 on devices that are given inputs between steps.
    pub slot_bytes: u64,
    /// Parts of a training step whose gradients are added; 1 unless gradients are accumulated.
    pub accumulate: u32,
    /// The programs. Of one kind there may be several: of those whose guards hold and whose arenas fit the first one runs.
    pub programs: Vec<Program>,
}

/// A tensor that outlives a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateEntry {
    /// Its name; programs refer to it by the name of their graph's state.
    pub name: Arc<str>,
    /// What it is.
    pub kind: StateKind,
    /// Element type and extents.
    pub ty: TensorType,
    /// First byte in the arena.
    pub offset: u64,
    /// What it holds before the first step.
    pub init: Init,
    /// BLAKE3 of the elements before the first step, where they were there at compile time.
    pub hash: Option<[u8; 32]>,
}

/// What a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProgramKind {
    /// A whole training step.
    Train,
    /// A part of a step that adds its gradients to the accumulators.
    Micro,
    /// The last part of a step, which also updates the parameters.
    Last,
    /// Outputs only.
    Infer,
}

impl fmt::Display for ProgramKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProgramKind::Train => "train",
            ProgramKind::Micro => "micro",
            ProgramKind::Last => "last",
            ProgramKind::Infer => "infer",
        })
    }
}

/// When a program may run: bounds on named sizes, none if it may always. Offsets are computed at the upper bounds; the runtime makes the
/// graph of the sizes at hand and runs the same steps at the same offsets, if they are lawful for it (see [`crate::validate_at`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guard {
    /// (name, least, greatest).
    pub dims: Vec<(Arc<str>, u64, u64)>,
}

impl Guard {
    /// Whether it holds for these sizes. A size that is not among them breaks it.
    pub fn admits(&self, sizes: &Bindings) -> bool {
        let within = |(name, least, greatest): &(Arc<str>, u64, u64)| {
            let n = sizes.get(name).and_then(|n| u64::try_from(*n).ok());
            n.is_some_and(|n| (*least..=*greatest).contains(&n))
        };
        self.dims.iter().all(within)
    }

    /// The greatest sizes for which it holds.
    pub fn greatest(&self) -> Bindings {
        self.dims.iter().map(|(name, _, n)| (name.clone(), i64::try_from(*n).unwrap_or(i64::MAX))).collect()
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, least, greatest)) in self.dims.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { ", " })?;
            if *least > 1 {
                write!(f, "{least} <= ")?;
            }
            write!(f, "{} <= {greatest}", quote_name(name))?;
        }
        Ok(())
    }
}

/// A graph and the order, places and lifetimes in which it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// What it is for.
    pub kind: ProgramKind,
    /// When it may run.
    pub guard: Guard,
    /// What is computed.
    pub graph: Graph,
    /// Offsets of the graph's inputs, in order; live from the start.
    pub inputs: Vec<u64>,
    /// What runs, in order.
    pub steps: Vec<Step>,
    /// What the planner claims; live peak and arena are checked by the validator.
    pub certificate: Certificate,
    /// Where shapes or branches are known only at run time: what to make the program from. The graph has inputs and states only then, and
    /// there are no steps.
    pub dynamic: Option<Dynamic>,
}

/// A program that is made anew at every step, and runs under online rematerialization in a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dynamic {
    /// What it is made from, in the form of the `trace` crate.
    pub recipe: Vec<u8>,
    /// Why it is not static.
    pub reason: String,
    /// First byte of the pool in the arena.
    pub pool: u64,
    /// Bytes of the pool: what it may hold while it runs.
    pub work: u64,
    /// Rates from which the costs of recomputation are estimated, so that decisions do not depend on a clock.
    pub rates: Rates,
}

/// Rates of a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Floating-point operations a second in matrix products and convolutions.
    pub product_flops_per_s: f64,
    /// Floating-point operations a second elsewhere.
    pub other_flops_per_s: f64,
    /// Bytes a second to and from memory.
    pub bytes_per_s: f64,
    /// Nanoseconds that any execution costs.
    pub launch_ns: f64,
}

impl Rates {
    /// Rates of a device kind of which nothing was measured.
    pub const fn of(device: Device) -> Rates {
        match device {
            // Two cores of a current server CPU.
            Device::Cpu => Rates {
                product_flops_per_s: 200e9,
                other_flops_per_s: 15e9,
                bytes_per_s: 20e9,
                launch_ns: 500.0,
            },
            // A current data centre GPU, in single precision.
            Device::Cuda => Rates {
                product_flops_per_s: 60e12,
                other_flops_per_s: 30e12,
                bytes_per_s: 3e12,
                launch_ns: 4000.0,
            },
        }
    }

    /// Estimated nanoseconds of one execution: the roofline of its arithmetic and its traffic, and the launch. `product` says whether
    /// the arithmetic runs at the rate of matrix products.
    pub fn nanoseconds(&self, flops: u64, bytes: u64, product: bool) -> f64 {
        let rate = if product { self.product_flops_per_s } else { self.other_flops_per_s };
        let busy = (flops as f64 / rate).max(bytes as f64 / self.bytes_per_s);
        (busy * 1e9 + self.launch_ns).round()
    }
}

/// One entry of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Runs a node.
    Run(Run),
    /// Copies a storage between spaces. Not used by version 1 planners.
    Copy {
        /// The value whose instance moves.
        value: ValueId,
        /// Target space.
        space: u8,
        /// Target offset.
        offset: u64,
        /// Queue it runs on.
        queue: u8,
    },
    /// Makes a queue wait for another. Not used by version 1 planners.
    Wait {
        /// The queue that waits.
        queue: u8,
        /// The queue it waits for.
        on: u8,
    },
}

/// The execution of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The node.
    pub node: NodeId,
    /// Which of its implementations.
    pub implementation: u8,
    /// Queue it runs on; 0 on the CPU.
    pub queue: u8,
    /// Predicted nanoseconds, by the costs that the plan was made with.
    pub time_ns: u64,
    /// Where each output lies.
    pub outputs: Vec<Place>,
    /// Offset of the workspace; `None` if the implementation needs none.
    pub workspace: Option<u64>,
    /// Values whose instances end after this step, in id order.
    pub drops: Vec<ValueId>,
}

/// Where an output lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// On a storage of its own.
    New {
        /// 0 is the device arena; others are room for offloading.
        space: u8,
        /// First byte.
        offset: u64,
    },
    /// On the storage of input `input`, whose instance ends here.
    Overwrite {
        /// Position among the node's inputs.
        input: u32,
    },
    /// On the storage of input `input`, which lives on; the byte offset is the operator's fact.
    View {
        /// Position among the node's inputs.
        input: u32,
    },
    /// In the place of the state at input `input`: the commit.
    Commit {
        /// Position among the node's inputs.
        input: u32,
    },
}

/// What is claimed of a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Certificate {
    /// Greatest number of live bytes at any step, state included.
    pub live_peak: u64,
    /// Bytes that the program needs from the arena, gaps and state included.
    pub arena: u64,
    /// Arena of the best plan without recomputation.
    pub keep_all: u64,
    /// Peak in file order without overwriting.
    pub naive_peak: u64,
    /// Predicted time of the step, nanoseconds: the sum of its executions'.
    pub time_ns: u64,
    /// Predicted time without recomputation, nanoseconds.
    pub base_time_ns: u64,
    /// Proven lower bound on the extra time of any plan within the budget, nanoseconds.
    pub lower_bound_ns: Option<u64>,
    /// The strategy whose plan was the best.
    pub strategy: String,
    /// Why the search ended.
    pub stop_reason: String,
}
