//! Executes plans: one arena, fixed addresses, the order of the plan and nothing else.
//!
//! [`Session`] is the door: load a plan with its weights, bind inputs, step, read state. The runtime obeys a plan or refuses it. It knows
//! neither ONNX nor the planner.

mod ahead;
mod arena;
mod available;
pub mod checkpoint;
mod cpu;
mod cuda;
pub mod data;
mod device;
mod dynamic;
mod error;
mod follow;
mod programs;
mod resolve;
mod session;

pub use ahead::{Running, Staged};
pub use available::{Available, available_memory};
pub use cpu::CpuDevice;
pub use cuda::CudaDevice;
pub use device::{
    BesideBody, Device, DeviceMemory, Eager, EagerBody, LoadedProgram, Move, Prepared, RunOptions, RunReport,
};
pub use dynamic::{DynamicReport, Holder, Least, Pool, PoolFull, PoolReport, Roomy, least_pool, roomy_pool};
pub use error::RuntimeError;
pub use resolve::{Call, Region, resolve};
pub use session::{LoadOptions, Session, StepInputs, StepResult, WeightSource};
