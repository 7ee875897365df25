//! The device that parts run on: the first real one, or the simulated one.

use cuda::{
    Opened,
    search::{Library, Process, find},
    sim::{HostCompiler, Sim},
};
use runtime::CudaDevice;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Memory of the simulated device.
const SIMULATED: u64 = 1 << 30;

/// Where parts run.
#[derive(Clone, Debug)]
pub enum On {
    /// The first real device.
    Real,
    /// The simulated driver; compiled kernels go to a folder, and sources may be read from one instead of from this program.
    Sim {
        /// For compiled kernels.
        folder: PathBuf,
        /// `ops/src`.
        sources: Option<PathBuf>,
    },
}

/// What the device is, for result files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// Its name.
    pub name: String,
    /// Compute capability, `10 * major + minor`.
    pub architecture: u32,
    /// The newest CUDA version that the driver supports.
    pub driver_version: u32,
    /// Bytes of its memory.
    pub total: u64,
    /// Bytes free when the part began.
    pub free: u64,
    /// Libraries by name: where each was found.
    pub libraries: Vec<(String, Option<String>)>,
}

impl On {
    /// A driver with a compiler for it.
    pub fn open(&self) -> Result<Opened, String> {
        match self {
            On::Real => cuda::first_device(),
            On::Sim { folder, sources } => {
                let compiler = HostCompiler::new(folder);
                let compiler = sources.iter().fold(compiler, |c, s| c.reading(s));
                if !compiler.works() {
                    return Err(
                        "the simulated driver needs a C++ compiler: install one, or set CXX".to_owned()
                    );
                }
                Ok((Box::new(Sim::new(SIMULATED)), Box::new(compiler)))
            }
        }
    }

    /// A device for a session.
    pub fn device(&self) -> Result<CudaDevice, String> {
        let (driver, compiler) = self.open()?;
        CudaDevice::new(driver, compiler).map_err(|e| e.to_string())
    }

    /// What it is.
    pub fn describe(&self) -> Result<Described, String> {
        let (mut driver, _) = self.open()?;
        let (info, memory) = (driver.device(), driver.memory().map_err(|e| e.to_string())?);
        let where_is = |l: &Library| {
            let path = find(&Process, *l, Some(info.driver_version / 1000));
            (l.name().to_owned(), path.map(|p| p.display().to_string()))
        };
        let real = matches!(self, On::Real);
        Ok(Described {
            libraries: Library::ALL.iter().filter(|_| real).map(where_is).collect(),
            name: info.name,
            architecture: info.architecture,
            driver_version: info.driver_version,
            total: memory.total,
            free: memory.free,
        })
    }

    /// Whether it is the simulated one.
    pub fn simulated(&self) -> bool {
        matches!(self, On::Sim { .. })
    }
}
