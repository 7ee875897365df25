//! CUDA below the runtime: the driver's calls as a trait, the real driver and a simulated one, kernels compiled and cached, libraries found.
//!
//! Everything that decides what is launched when lies above [`Driver`] and is the same for both: the real driver ([`real`]) wraps cudarc,
//! the simulated one ([`sim`]) runs the same kernel sources on the CPU and proves that accesses are ordered. [`Compiler`] is the other half
//! of the seam: NVRTC makes cubins ([`nvrtc`]), the system's C++ compiler makes what the simulated driver runs ([`sim::HostCompiler`]).

mod args;
mod cache;
pub mod compare;
mod driver;
mod first;
pub mod nvrtc;
pub mod profile;
pub mod real;
pub mod search;
pub mod sim;
mod single;
mod status;
mod unit;

pub use args::{Places, encode};
pub use cache::Cache;
pub use driver::{
    Access, DeviceInfo, Driver, DriverError, Event, Function, GraphExec, Memory, Module, Read, Stream, Tag,
    Write,
};
pub use first::{Opened, SIMULATE, first_device};
pub use single::evaluate;
pub use status::Status;
pub use unit::{CompileError, Compiler, Image, Unit};
