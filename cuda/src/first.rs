//! The first device, with the compiler that is found for it.

use crate::{
    Cache, Compiler, Driver,
    nvrtc::{Nvrtc, NvrtcCompiler},
    real::Real,
    search::{Library, Process, find},
    sim::{HostCompiler, Sim},
};
use std::path::Path;

/// Set to a folder for compiled kernels, no GPU is used: kernels run on the CPU, and every access is checked.
pub const SIMULATE: &str = "DTRC_CUDA_SIM";
/// Memory of the simulated device.
const SIMULATED: u64 = 4 << 30;

/// A driver and a compiler for its device.
pub type Opened = (Box<dyn Driver>, Box<dyn Compiler>);

/// Opens both. The error says what is missing and how to get it.
pub fn first_device() -> Result<Opened, String> {
    if let Some(folder) = std::env::var_os(SIMULATE).filter(|f| !f.is_empty()) {
        let compiler = HostCompiler::new(Path::new(&folder));
        if !compiler.works() {
            return Err(format!("{SIMULATE} is set, but there is no C++ compiler: install one, or set CXX"));
        }
        return Ok((Box::new(Sim::new(SIMULATED)), Box::new(compiler)));
    }
    let driver = Real::open(0).map_err(|e| format!("no usable CUDA device: {e}"))?;
    let (info, what) = (driver.device(), Library::Nvrtc);
    // A compiler of a newer major version makes code that the driver does not load.
    let major = info.driver_version / 1000;
    let path = find(&Process, what, Some(major));
    let path = path.ok_or_else(|| {
        format!("{} for CUDA {major} or older is not found: {}", what.name(), what.remedy())
    })?;
    let nvrtc = Nvrtc::open(&path)?;
    let compiler = NvrtcCompiler::new(nvrtc, info.architecture, Cache::of_user());
    Ok((Box::new(driver), Box::new(compiler)))
}
