//! Whether the driver is there, new enough, and has a device.

use super::system::System;

/// The functions that the real driver calls: all must be there before the first call.
pub const REQUIRED_SYMBOLS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxReset_v2",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamDestroy_v2",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventDestroy_v2",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuLaunchKernel",
    "cuGraphInstantiateWithFlags",
    "cuGraphUpload",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGetErrorName",
    "cuGetErrorString",
];

/// The oldest driver that is used.
const OLDEST: u32 = 12000;

/// A driver that works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverFound {
    /// The newest CUDA version it supports, `1000 * major + 10 * minor`.
    pub version: u32,
    /// Devices.
    pub devices: u32,
}

/// Why there is no usable driver, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDriver {
    /// The library is not there.
    #[error("no NVIDIA driver is found ({0}): install the driver of your GPU")]
    Missing(String),
    /// The library that is there is only for linking.
    #[error(
        "libcuda.so.1 is the toolkit's stub and no driver: install the driver of your GPU, or take the stubs folder off LD_LIBRARY_PATH"
    )]
    Stub,
    /// It works, but for no device.
    #[error(
        "the driver finds no CUDA device: check nvidia-smi, CUDA_VISIBLE_DEVICES, and whether this container was given a GPU"
    )]
    NoDevice,
    /// It is too old.
    #[error("the driver supports CUDA {}, at least {} is needed: update the driver", dotted(*.0), dotted(OLDEST))]
    Old(u32),
    /// It lacks a function, although its version says otherwise.
    #[error("the driver has no function {0}: update the driver")]
    Lacks(String),
    /// Something else.
    #[error("the driver does not start: {call} fails with code {code}")]
    Fails {
        /// The call.
        call: &'static str,
        /// Its code.
        code: u32,
    },
}

/// A version as people write it.
pub(crate) fn dotted(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Codes of `CUresult`.
const NO_DEVICE: u32 = 100;
const STUB_LIBRARY: u32 = 34;

/// Probes the driver, from its library to its devices.
pub fn probe_driver(system: &dyn System) -> Result<DriverFound, NoDriver> {
    let driver = system.open_driver().map_err(NoDriver::Missing)?;
    for first in ["cuInit", "cuDriverGetVersion", "cuDeviceGetCount"] {
        if !driver.has(first) {
            return Err(NoDriver::Lacks(first.to_owned()));
        }
    }
    match driver.init() {
        0 => {}
        NO_DEVICE => return Err(NoDriver::NoDevice),
        STUB_LIBRARY => return Err(NoDriver::Stub),
        code => return Err(NoDriver::Fails { call: "cuInit", code }),
    }
    let fails = |call| move |code| NoDriver::Fails { call, code };
    let version = driver.version().map_err(fails("cuDriverGetVersion"))?;
    if version < OLDEST {
        return Err(NoDriver::Old(version));
    }
    if let Some(lacking) = REQUIRED_SYMBOLS.iter().find(|s| !driver.has(s)) {
        return Err(NoDriver::Lacks((*lacking).to_owned()));
    }
    let devices = driver.devices().map_err(fails("cuDeviceGetCount"))?;
    if devices == 0 {
        return Err(NoDriver::NoDevice);
    }
    Ok(DriverFound { version, devices })
}
