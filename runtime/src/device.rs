//! What a session asks of a device.
//!
//! A device owns one arena and runs programs whose addresses are fixed. Everything above this trait is the same for all devices.

use crate::{
    RuntimeError,
    available::Available,
    dynamic::DynamicReport,
    resolve::{Call, Region},
};
use graph::{Graph, NodeId};
use std::{any::Any, sync::Arc};

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
    /// What a dynamic program did with its pool.
    pub dynamic: Option<DynamicReport>,
    /// Which of the plan's programs ran.
    pub program: usize,
    /// Why none of the programs that were planned ahead ran, where there are some.
    pub why_dynamic: Option<String>,
}

/// A copy within the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// First byte that is read.
    pub from: u64,
    /// First byte that is written.
    pub to: u64,
    /// Bytes.
    pub len: u64,
}

/// A kernel that an [`Eager`] device has prepared for one node's types.
pub type Prepared = Arc<dyn Any + Send + Sync>;

/// A device that runs one call after the other, at addresses that are known only now.
pub trait Eager: Send {
    /// Prepares a node's kernel.
    fn prepare(&mut self, graph: &Graph, node: NodeId) -> Result<Prepared, RuntimeError>;

    /// Runs a prepared kernel. Places lie in the arena, live ones do not overlap but where the operator's facts allow it.
    ///
    /// # Errors
    ///
    /// What the kernel says of its data.
    fn call(
        &mut self,
        kernel: &Prepared,
        inputs: &[Option<Region>],
        outputs: &[Region],
        workspace: Option<Region>,
    ) -> Result<(), String>;

    /// Copies out of the arena.
    fn read(&self, offset: u64, bytes: &mut [u8]);

    /// Copies into the arena.
    fn write(&mut self, offset: u64, bytes: &[u8]);

    /// Copies within the arena; the ranges may overlap.
    fn shift(&mut self, from: u64, to: u64, len: u64);

    /// What lies there is not needed: whole pages may go back to the system, and have any contents afterwards.
    fn discard(&mut self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
}

/// What is done with a device call by call.
pub type EagerBody<'a> = dyn FnMut(&mut dyn Eager) -> Result<(), RuntimeError> + Send + 'a;

/// What is done with a device call by call and memory beside the arena, which begins at the second argument.
pub type BesideBody<'a> = dyn FnMut(&mut dyn Eager, u64) -> Result<(), RuntimeError> + Send + 'a;
/// Free memory of a device of its own at several moments, in bytes: what the arena, and what modules and graphs beside it take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Of the device.
    pub total: u64,
    /// Before the arena was taken.
    pub before: u64,
    /// After the last program was loaded.
    pub loaded: u64,
    /// Now.
    pub now: u64,
    /// Taken for the arena, with what lies behind it.
    pub arena: u64,
}

impl DeviceMemory {
    /// What modules and graphs took while programs were loaded.
    pub fn beside_arena(&self) -> u64 {
        self.before.saturating_sub(self.loaded).saturating_sub(self.arena)
    }

    /// What was taken since the last program was loaded; nothing should be.
    pub fn since_loaded(&self) -> u64 {
        self.loaded.saturating_sub(self.now)
    }
}

/// A device with one arena.
pub trait Device: Send {
    /// Its kind.
    fn kind(&self) -> plan::Device;

    /// Memory that an arena could take now; `None` if the device does not say.
    fn available(&self) -> Option<Available>;

    /// Its name, where it is not the processor.
    fn name(&self) -> Option<String> {
        None
    }

    /// Its memory, if it has one of its own.
    fn memory(&mut self) -> Result<Option<DeviceMemory>, RuntimeError> {
        Ok(None)
    }

    /// Takes the arena: the only allocation that grows with the model.
    fn allocate(&mut self, bytes: u64) -> Result<(), RuntimeError>;

    /// Prepares a program: every kernel is ready afterwards, and running allocates nothing.
    fn load(&mut self, graph: &Graph, calls: Vec<Call>) -> Result<LoadedProgram, RuntimeError>;

    /// Runs all programs once over zeros, so that whatever a device takes at first use is taken. The state is not there yet.
    fn warm(&mut self) -> Result<(), RuntimeError> {
        Ok(())
    }

    /// Forgets a program; its handle is not used again. A device that keeps it only wastes memory of the host.
    fn unload(&mut self, program: LoadedProgram) {
        let _ = program;
    }

    /// Gives the arena's memory from byte `from` on back to the system, as far as the device can; what lies there is lost. It comes back
    /// when it is written.
    fn release(&mut self, from: u64) -> Result<(), RuntimeError> {
        let _ = from;
        Ok(())
    }

    /// Runs a prepared program from the first call to the last.
    fn run(&mut self, program: LoadedProgram, options: RunOptions) -> Result<RunReport, RuntimeError>;

    /// Puts bytes at offsets of the input slot, where a device that works by itself does so while a step runs.
    fn stage(&mut self, parts: &[(u64, &[u8])]) -> Result<(), RuntimeError> {
        parts.iter().try_for_each(|(offset, bytes)| self.write(*offset, bytes))
    }

    /// As [`Device::run`], after copies out of the slot; may return before the end, for which [`Device::finish`] waits.
    fn start(
        &mut self,
        program: LoadedProgram,
        moves: &[Move],
        options: RunOptions,
    ) -> Result<RunReport, RuntimeError> {
        for m in moves {
            let mut bytes = vec![0; m.len as usize];
            self.read(m.from, &mut bytes)?;
            self.write(m.to, &bytes)?;
        }
        self.run(program, options)
    }

    /// Waits for a program that was started.
    fn finish(&mut self, program: LoadedProgram) -> Result<(), RuntimeError> {
        let _ = program;
        Ok(())
    }

    /// Runs calls one by one; programs that were loaded stay.
    fn eager(&mut self, body: &mut EagerBody<'_>) -> Result<(), RuntimeError>;

    /// As [`Device::eager`], with more memory than the arena's until the body ends: addresses go on behind the arena for so many bytes.
    ///
    /// # Errors
    ///
    /// The body's; or the device lends none, be it that it cannot or that little is left.
    fn eager_beside(&mut self, bytes: u64, body: &mut BesideBody<'_>) -> Result<(), RuntimeError> {
        let _ = body;
        let error = std::io::Error::other("the device lends no memory beside the arena");
        Err(RuntimeError::Allocate { bytes, error })
    }

    /// Copies into the arena.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RuntimeError>;

    /// Copies out of the arena.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), RuntimeError>;

    /// Zeros a part of the arena.
    fn zero(&mut self, offset: u64, len: u64) -> Result<(), RuntimeError>;
}
