//! The real driver: the only module that knows cudarc.
//!
//! cudarc loads the driver at its first call and panics where it, or a function, is missing. [`Real::open`] therefore probes first
//! ([`crate::search::probe_driver`]), for the library and for every function used here.

use crate::{
    Access, DeviceInfo, Driver, DriverError, Event, Function, GraphExec, Image, Memory, Module, Read, Stream,
    Write,
    search::{NoDriver, Process, probe_driver},
};
use cudarc::driver::{result, sys};
use std::ffi::{CString, c_void};

/// Nodes of graphs are launched by their own order; nothing else is asked of instantiation.
const NO_FLAGS: sys::CUgraphInstantiate_flags = sys::CUgraphInstantiate_flags(0);
/// Events order streams; nobody asks for their times, which cost, and which drivers before 12.8 give by another function.
const EVENT: sys::CUevent_flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;

/// A context on a device, and what was made in it.
pub struct Real {
    info: DeviceInfo,
    device: sys::CUdevice,
    context: sys::CUcontext,
    streams: Vec<sys::CUstream>,
    events: Vec<sys::CUevent>,
    modules: Vec<sys::CUmodule>,
    functions: Vec<(sys::CUfunction, String)>,
    /// `None` once given back.
    graphs: Vec<Option<sys::CUgraphExec>>,
}

// SAFETY: handles of the driver may be used from any thread that has made the context current; every call here does so first, and a session
// calls from one thread at a time.
unsafe impl Send for Real {}

/// Errors after which the context is of no use.
fn sticky(code: sys::CUresult) -> bool {
    use sys::CUresult as C;
    matches!(
        code,
        C::CUDA_ERROR_ILLEGAL_ADDRESS
            | C::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | C::CUDA_ERROR_MISALIGNED_ADDRESS
            | C::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | C::CUDA_ERROR_INVALID_PC
            | C::CUDA_ERROR_HARDWARE_STACK_ERROR
            | C::CUDA_ERROR_LAUNCH_FAILED
            | C::CUDA_ERROR_LAUNCH_TIMEOUT
            | C::CUDA_ERROR_ECC_UNCORRECTABLE
            | C::CUDA_ERROR_ASSERT
            | C::CUDA_ERROR_CONTEXT_IS_DESTROYED
    )
}

/// Names a call in its error.
fn of(call: &'static str, what: &str) -> impl Fn(result::DriverError) -> DriverError {
    let what = what.to_owned();
    move |e| {
        let name = e.error_name().map(|n| n.to_string_lossy().into_owned());
        let text = e.error_string().map(|n| n.to_string_lossy().into_owned());
        let said = match (name, text) {
            (Ok(name), Ok(text)) => format!("{name}: {text}"),
            _ => format!("error {:?}", e.0 as u32),
        };
        DriverError { call, of: what.clone(), what: said, sticky: sticky(e.0) }
    }
}

/// Why there is no context.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The driver, or a device, is missing.
    #[error(transparent)]
    Driver(#[from] NoDriver),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] DriverError),
}

impl Real {
    /// A context on device `ordinal`.
    pub fn open(ordinal: i32) -> Result<Real, OpenError> {
        let found = probe_driver(&Process)?;
        result::init().map_err(of("cuInit", ""))?;
        let device = result::device::get(ordinal).map_err(of("cuDeviceGet", &format!("device {ordinal}")))?;
        let attribute = |which| {
            // SAFETY: the device was just found.
            unsafe { result::device::get_attribute(device, which) }.map_err(of("cuDeviceGetAttribute", ""))
        };
        let major = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let name = result::device::get_name(device).map_err(of("cuDeviceGetName", ""))?;
        // SAFETY: the device was just found; the context is released when this is dropped.
        let context =
            unsafe { result::primary_ctx::retain(device) }.map_err(of("cuDevicePrimaryCtxRetain", ""))?;
        let architecture = (major * 10 + minor).unsigned_abs();
        let info = DeviceInfo { name, architecture, driver_version: found.version };
        let real = Real {
            info,
            device,
            context,
            streams: Vec::new(),
            events: Vec::new(),
            modules: Vec::new(),
            functions: Vec::new(),
            graphs: Vec::new(),
        };
        real.current()?;
        Ok(real)
    }

    /// Makes the context current on this thread.
    fn current(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained until this is dropped.
        unsafe { result::ctx::set_current(self.context) }.map_err(of("cuCtxSetCurrent", ""))
    }
}

impl Driver for Real {
    fn device(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn memory(&mut self) -> Result<Memory, DriverError> {
        self.current()?;
        let (free, total) = result::mem_get_info().map_err(of("cuMemGetInfo", ""))?;
        Ok(Memory { free: free as u64, total: total as u64 })
    }

    fn alloc(&mut self, bytes: u64) -> Result<u64, DriverError> {
        self.current()?;
        // SAFETY: the memory is given back by `free`; whoever reads it has written it before.
        unsafe { result::malloc_sync(bytes.max(1) as usize) }
            .map_err(of("cuMemAlloc", &format!("{bytes} bytes")))
    }

    fn free(&mut self, at: u64) -> Result<(), DriverError> {
        self.current()?;
        // SAFETY: the address comes from `alloc`; the session waits for its streams before it frees.
        unsafe { result::free_sync(at) }.map_err(of("cuMemFree", ""))
    }

    fn stream(&mut self) -> Result<Stream, DriverError> {
        self.current()?;
        let s = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(of("cuStreamCreate", ""))?;
        self.streams.push(s);
        Ok(Stream(self.streams.len() - 1))
    }

    fn event(&mut self) -> Result<Event, DriverError> {
        self.current()?;
        self.events.push(result::event::create(EVENT).map_err(of("cuEventCreate", ""))?);
        Ok(Event(self.events.len() - 1))
    }

    fn record(&mut self, event: Event, stream: Stream) -> Result<(), DriverError> {
        self.current()?;
        // SAFETY: both are alive until this is dropped.
        unsafe { result::event::record(self.events[event.0], self.streams[stream.0]) }
            .map_err(of("cuEventRecord", ""))
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DriverError> {
        self.current()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are alive until this is dropped.
        unsafe { result::stream::wait_event(self.streams[stream.0], self.events[event.0], flags) }
            .map_err(of("cuStreamWaitEvent", ""))
    }

    fn synchronize(&mut self, stream: Stream) -> Result<(), DriverError> {
        self.current()?;
        // SAFETY: the stream is alive until this is dropped.
        unsafe { result::stream::synchronize(self.streams[stream.0]) }.map_err(of("cuStreamSynchronize", ""))
    }

    fn upload(&mut self, bytes: &[u8], to: Write, stream: Stream, what: &str) -> Result<(), DriverError> {
        self.current()?;
        // SAFETY: the place is inside of the arena; from pageable memory the call returns when the bytes have been read.
        unsafe { result::memcpy_htod_async(to.at, bytes, self.streams[stream.0]) }
            .map_err(of("cuMemcpyHtoDAsync", what))
    }

    fn download(
        &mut self,
        from: Read,
        bytes: &mut [u8],
        stream: Stream,
        what: &str,
    ) -> Result<(), DriverError> {
        self.current()?;
        // SAFETY: the place is inside of the arena; the bytes are not touched before the stream was waited for.
        unsafe { result::memcpy_dtoh_async(bytes, from.at, self.streams[stream.0]) }
            .map_err(of("cuMemcpyDtoHAsync", what))?;
        self.synchronize(stream)
    }

    fn copy(&mut self, from: Read, to: Write, stream: Stream, what: &str) -> Result<(), DriverError> {
        self.current()?;
        // SAFETY: both places are inside of the arena and apart.
        unsafe { result::memcpy_dtod_async(to.at, from.at, from.len as usize, self.streams[stream.0]) }
            .map_err(of("cuMemcpyDtoDAsync", what))
    }

    fn zero(&mut self, to: Write, stream: Stream, what: &str) -> Result<(), DriverError> {
        self.current()?;
        if to.len == 0 {
            return Ok(());
        }
        // SAFETY: the place is inside of the arena.
        unsafe { result::memset_d8_async(to.at, 0, to.len as usize, self.streams[stream.0]) }
            .map_err(of("cuMemsetD8Async", what))
    }

    fn load(&mut self, image: &Image, name: &str) -> Result<Module, DriverError> {
        self.current()?;
        let Image::Cubin(bytes) = image else {
            return Err(DriverError::new(
                "cuModuleLoadData",
                name,
                "a library for the CPU is nothing for a device",
            ));
        };
        // SAFETY: a whole cubin, which the driver checks; it is copied.
        let module = unsafe { result::module::load_data(bytes.as_ptr().cast()) }
            .map_err(of("cuModuleLoadData", name))?;
        self.modules.push(module);
        Ok(Module(self.modules.len() - 1))
    }

    fn function(&mut self, module: Module, name: &str) -> Result<Function, DriverError> {
        self.current()?;
        let text =
            CString::new(name).map_err(|e| DriverError::new("cuModuleGetFunction", name, e.to_string()))?;
        // SAFETY: the module is alive until this is dropped.
        let f = unsafe { result::module::get_function(self.modules[module.0], text) };
        self.functions.push((f.map_err(of("cuModuleGetFunction", name))?, name.to_owned()));
        Ok(Function(self.functions.len() - 1))
    }

    fn launch(
        &mut self,
        kernel: Function,
        grid: u32,
        block: u32,
        args: &[Vec<u8>],
        stream: Stream,
        access: &Access,
    ) -> Result<(), DriverError> {
        self.current()?;
        let (function, name) = &self.functions[kernel.0];
        let mut pointers: Vec<*mut c_void> = args.iter().map(|a| a.as_ptr().cast_mut().cast()).collect();
        // SAFETY: the arguments are those of the kernel, and are copied by the call; the driver reads each by its size in the kernel.
        unsafe {
            let stream = self.streams[stream.0];
            result::launch_kernel(*function, (grid, 1, 1), (block, 1, 1), 0, stream, &mut pointers)
        }
        .map_err(of("cuLaunchKernel", &format!("node {}, kernel {name}", access.what)))
    }

    fn begin_capture(&mut self, stream: Stream) -> Result<(), DriverError> {
        self.current()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive until this is dropped.
        unsafe { result::stream::begin_capture(self.streams[stream.0], mode) }
            .map_err(of("cuStreamBeginCapture", ""))
    }

    fn end_capture(&mut self, stream: Stream) -> Result<GraphExec, DriverError> {
        self.current()?;
        let stream = self.streams[stream.0];
        // SAFETY: the capture was begun on this stream; the graph is destroyed once, after it was instantiated.
        unsafe {
            let graph = result::stream::end_capture(stream).map_err(of("cuStreamEndCapture", ""))?;
            let exec = result::graph::instantiate(graph, NO_FLAGS).map_err(of("cuGraphInstantiate", ""));
            result::graph::destroy(graph).map_err(of("cuGraphDestroy", ""))?;
            let exec = exec?;
            self.graphs.push(Some(exec));
            result::graph::upload(exec, stream).map_err(of("cuGraphUpload", ""))?;
        }
        Ok(GraphExec(self.graphs.len() - 1))
    }

    fn drop_graph(&mut self, graph: GraphExec) -> Result<(), DriverError> {
        self.current()?;
        match self.graphs[graph.0].take() {
            // SAFETY: made by `end_capture`, destroyed once; the session has waited for its work.
            Some(g) => unsafe { result::graph::exec_destroy(g) }.map_err(of("cuGraphExecDestroy", "")),
            None => Ok(()),
        }
    }

    fn launch_graph(&mut self, graph: GraphExec, stream: Stream) -> Result<(), DriverError> {
        self.current()?;
        let gone = || DriverError::new("cuGraphLaunch", "", "the graph was given back");
        let exec = self.graphs[graph.0].ok_or_else(gone)?;
        // SAFETY: both are alive until this is dropped.
        unsafe { result::graph::launch(exec, self.streams[stream.0]) }.map_err(of("cuGraphLaunch", ""))
    }
}

impl Drop for Real {
    /// Gives everything back. A context that an error broke says so to whoever waits for it; it is reset as a whole, so that the next
    /// session has another one.
    fn drop(&mut self) {
        // SAFETY: waits for the context that was just made current.
        let works = self.current().is_ok() && unsafe { sys::cuCtxSynchronize() }.result().is_ok();
        if !works {
            // SAFETY: whatever was made in it goes with it and is not used again; the context is released once.
            unsafe {
                let _ = sys::cuDevicePrimaryCtxReset_v2(self.device).result();
                let _ = result::primary_ctx::release(self.device);
            }
            return;
        }
        // SAFETY: everything was made in this context and is destroyed once; streams were waited for, or their context is broken.
        unsafe {
            for g in self.graphs.drain(..).flatten() {
                let _ = result::graph::exec_destroy(g);
            }
            for s in self.streams.drain(..) {
                let _ = result::stream::synchronize(s);
                let _ = result::stream::destroy(s);
            }
            for e in self.events.drain(..) {
                let _ = result::event::destroy(e);
            }
            for m in self.modules.drain(..) {
                let _ = result::module::unload(m);
            }
            let _ = result::primary_ctx::release(self.device);
        }
    }
}
