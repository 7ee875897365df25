//! A driver without a device: kernels run on the CPU, and every access is checked against the order that streams, events and graphs give.
//!
//! Work is done when it is issued. That it *may* be done then is what vector clocks ([`clock`]) prove: each access must come after the
//! writes (and, if it writes, the reads) of the same bytes by streams, events or graph edges, not by luck. Reads name what must lie in
//! their place ([`crate::Tag`]), so a buffer that was reused too early, or was never written, is found as well.

pub mod clock;
mod faults;
mod host;
mod memory;
mod sim_driver;

pub use faults::Fault;
pub use host::{HostCompiler, HostLibrary, Kernel};
pub use sim_driver::Sim;
