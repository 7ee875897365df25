//! What a session asks of a device.
//!
//! A device owns one arena and runs programs whose addresses are fixed. Everything above this trait is the same for all devices.

use crate::{RuntimeError, available::Available, resolve::Call};
use graph::Graph;

/// A program that a device has prepared: kernels found and ready, addresses bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoadedProgram(pub usize);

/// How a program is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// Compare a hash of every recomputed value with the first one's.
    pub check_recompute: bool,
    /// Measure every call.
    pub measure: bool,
}

/// What a run tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunReport {
    /// Nanoseconds of each call, in order, if measured.
    pub call_ns: Vec<u64>,
}

/// A device with one arena.
pub trait Device: Send {
    /// Its kind.
    fn kind(&self) -> plan::Device;

    /// Memory that an arena could take now; `None` if the device does not say.
    fn available(&self) -> Option<Available>;

    /// Takes the arena: the only allocation that grows with the model.
    fn allocate(&mut self, bytes: u64) -> Result<(), RuntimeError>;

    /// Prepares a program: every kernel is ready afterwards, and running allocates nothing.
    fn load(&mut self, graph: &Graph, calls: Vec<Call>) -> Result<LoadedProgram, RuntimeError>;

    /// Runs a prepared program from the first call to the last.
    fn run(&mut self, program: LoadedProgram, options: RunOptions) -> Result<RunReport, RuntimeError>;

    /// Copies into the arena.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RuntimeError>;

    /// Copies out of the arena.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), RuntimeError>;

    /// Zeros a part of the arena.
    fn zero(&mut self, offset: u64, len: u64) -> Result<(), RuntimeError>;
}
