//! The calls of the CUDA driver that a session needs, and no others.

use crate::Image;

/// A stream, by the order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream(pub usize);
/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Event(pub usize);
/// A loaded module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Module(pub usize);
/// A kernel of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Function(pub usize);
/// A graph that is instantiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GraphExec(pub usize);

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// Compute capability, `10 * major + minor`.
    pub architecture: u32,
    /// The newest CUDA version that the driver supports, `1000 * major + 10 * minor`.
    pub driver_version: u32,
}

/// Bytes of the device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Free now.
    pub free: u64,
    /// Altogether.
    pub total: u64,
}

/// What the bytes of a place are: which value wrote them. The real driver ignores it; the simulated one compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

/// A place that is read, and what must lie there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// First byte.
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// What must lie there; `None` if anything may that was written.
    pub tag: Option<Tag>,
}

/// A place that is written, and what it is afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// First byte.
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// What lies there afterwards.
    pub tag: Tag,
}

/// The memory an operation touches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// For messages: node, or what is copied.
    pub what: String,
    /// Read, before anything is written.
    pub reads: Vec<Read>,
    /// Written.
    pub writes: Vec<Write>,
}

/// A driver call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}{}: {what}", if of.is_empty() { String::new() } else { format!(" ({of})") })]
pub struct DriverError {
    /// The call.
    pub call: &'static str,
    /// The node, kernel or tensor it was for.
    pub of: String,
    /// What the driver says.
    pub what: String,
    /// The context is unusable from now on.
    pub sticky: bool,
}

impl DriverError {
    /// An error after which the context goes on.
    pub fn new(call: &'static str, of: &str, what: impl Into<String>) -> DriverError {
        DriverError { call, of: of.to_owned(), what: what.into(), sticky: false }
    }
}

/// One context on one device. Between [`Driver::begin_capture`] and [`Driver::end_capture`] work on the captured stream, and on streams that
/// wait for it, is recorded instead of done.
pub trait Driver: Send {
    /// The device.
    fn device(&self) -> DeviceInfo;
    /// Its memory now.
    fn memory(&mut self) -> Result<Memory, DriverError>;
    /// Takes memory; its address is a multiple of 256.
    fn alloc(&mut self, bytes: u64) -> Result<u64, DriverError>;
    /// Gives it back.
    fn free(&mut self, at: u64) -> Result<(), DriverError>;
    /// A stream that waits for no other.
    fn stream(&mut self) -> Result<Stream, DriverError>;
    /// An event.
    fn event(&mut self) -> Result<Event, DriverError>;
    /// The event stands for all work of the stream so far.
    fn record(&mut self, event: Event, stream: Stream) -> Result<(), DriverError>;
    /// Later work of the stream waits for the event.
    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DriverError>;
    /// The host waits for all work of the stream.
    fn synchronize(&mut self, stream: Stream) -> Result<(), DriverError>;
    /// Copies to the device; `bytes` may be reused at once.
    fn upload(&mut self, bytes: &[u8], to: Write, stream: Stream, what: &str) -> Result<(), DriverError>;
    /// Copies from the device, and waits for it.
    fn download(
        &mut self,
        from: Read,
        bytes: &mut [u8],
        stream: Stream,
        what: &str,
    ) -> Result<(), DriverError>;
    /// Copies within the device; the ranges do not overlap.
    fn copy(&mut self, from: Read, to: Write, stream: Stream, what: &str) -> Result<(), DriverError>;
    /// What lies there is no longer of use to anybody: the simulated driver takes it for not written. Whatever used it was waited for.
    fn forget(&mut self, at: u64, len: u64) {
        let _ = (at, len);
    }
    /// Zeros memory.
    fn zero(&mut self, to: Write, stream: Stream, what: &str) -> Result<(), DriverError>;
    /// Loads a compiled module.
    fn load(&mut self, image: &Image, name: &str) -> Result<Module, DriverError>;
    /// Finds a kernel.
    fn function(&mut self, module: Module, name: &str) -> Result<Function, DriverError>;
    /// Launches a kernel on `grid` blocks of `block` threads; `args` are the bytes of each argument.
    fn launch(
        &mut self,
        kernel: Function,
        grid: u32,
        block: u32,
        args: &[Vec<u8>],
        stream: Stream,
        access: &Access,
    ) -> Result<(), DriverError>;
    /// Starts to record a stream.
    fn begin_capture(&mut self, stream: Stream) -> Result<(), DriverError>;
    /// Ends it, instantiates what was recorded and uploads it.
    fn end_capture(&mut self, stream: Stream) -> Result<GraphExec, DriverError>;
    /// Gives a graph back, once the work of its streams was waited for; it is not launched again.
    fn drop_graph(&mut self, graph: GraphExec) -> Result<(), DriverError>;
    /// Runs a graph after the work of the stream so far.
    fn launch_graph(&mut self, graph: GraphExec, stream: Stream) -> Result<(), DriverError>;
}
