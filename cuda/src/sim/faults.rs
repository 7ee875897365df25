//! Faults that tests plant.

/// Something that goes wrong in the simulated driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The n-th wait for an event (from 0) does nothing.
    SkipWait(usize),
    /// The n-th copy to the device (from 0) does nothing.
    SkipUpload(usize),
    /// The n-th copy within the device (from 0) does nothing.
    SkipCopy(usize),
    /// The n-th call that may fail (from 0) fails; afterwards every call does, as after a fault in a kernel.
    FailCall(usize),
}
