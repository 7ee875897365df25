//! The first real device, with the compiler that is found for it.

use crate::{
    Cache, Driver,
    nvrtc::{Nvrtc, NvrtcCompiler},
    real::Real,
    search::{Library, Process, find},
};

/// Opens both. The error says what is missing and how to get it.
pub fn first_device() -> Result<(Real, NvrtcCompiler), String> {
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
    Ok((driver, compiler))
}
