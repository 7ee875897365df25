//! What the search asks of the system, so that tests can answer instead.

use std::{
    path::{Path, PathBuf},
    sync::Mutex,
};

/// An opened driver library, as far as probing goes.
pub trait Handle {
    /// Whether it has a symbol.
    fn has(&self, symbol: &str) -> bool;
    /// `cuInit(0)`.
    fn init(&self) -> u32;
    /// `cuDriverGetVersion`: `1000 * major + 10 * minor`, or an error code.
    fn version(&self) -> Result<u32, u32>;
    /// `cuDeviceGetCount`, or an error code.
    fn devices(&self) -> Result<u32, u32>;
}

/// The system around.
pub trait System {
    /// An environment variable.
    fn env(&self, name: &str) -> Option<String>;
    /// Entries of a folder, none if there is no such folder.
    fn list(&self, folder: &Path) -> Vec<PathBuf>;
    /// Package folders of the active Python.
    fn site_packages(&self) -> Vec<PathBuf>;
    /// Opens the driver's library as the system's loader finds it.
    fn open_driver(&self) -> Result<Box<dyn Handle>, String>;
}

/// This process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Process;

/// The driver's library by name; bare names are never looked for in the working directory. In the order in which cudarc asks, so that what
/// is probed is what is called: a toolkit's stub has the first name, a driver without a toolkit only the second.
const DRIVER: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so", "libcuda.so.1"] };

/// The first library that opens; the error is that of the last one.
pub(crate) fn open_first(names: &[&str]) -> Result<libloading::Library, String> {
    let mut why = "no name".to_owned();
    for name in names {
        // SAFETY: the driver's initialisers are made for being loaded into any process.
        match unsafe { libloading::Library::new(*name) } {
            Ok(l) => return Ok(l),
            Err(e) => why = said(&e),
        }
    }
    Err(why)
}

/// An error with its causes: libloading's own text says no more than which call failed.
pub(crate) fn said(e: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(e.source(), |e| e.source());
    causes.fold(e.to_string(), |text, cause| format!("{text}: {cause}"))
}

struct Driver(&'static libloading::Library);

impl Driver {
    fn code(&self, symbol: &str, place: Option<&mut i32>) -> u32 {
        // SAFETY: by CUDA's documentation: `cuInit` takes a number, the other two a place for one; all return a code.
        unsafe {
            match place {
                None => {
                    self.0.get::<unsafe extern "C" fn(u32) -> u32>(symbol.as_bytes()).map_or(500, |f| f(0))
                }
                Some(p) => self
                    .0
                    .get::<unsafe extern "C" fn(*mut i32) -> u32>(symbol.as_bytes())
                    .map_or(500, |f| f(p)),
            }
        }
    }

    fn number(&self, symbol: &str) -> Result<u32, u32> {
        let mut n = 0;
        match self.code(symbol, Some(&mut n)) {
            0 => Ok(n.unsigned_abs()),
            code => Err(code),
        }
    }
}

impl Handle for Driver {
    fn has(&self, symbol: &str) -> bool {
        // SAFETY: only looked up.
        unsafe { self.0.get::<*const ()>(symbol.as_bytes()) }.is_ok()
    }

    fn init(&self) -> u32 {
        self.code("cuInit", None)
    }

    fn version(&self) -> Result<u32, u32> {
        self.number("cuDriverGetVersion")
    }

    fn devices(&self) -> Result<u32, u32> {
        self.number("cuDeviceGetCount")
    }
}

impl System for Process {
    fn env(&self, name: &str) -> Option<String> {
        std::env::var(name).ok().filter(|v| !v.is_empty())
    }

    fn list(&self, folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|e| e.path()).collect()
    }

    fn site_packages(&self) -> Vec<PathBuf> {
        let of_prefix = |prefix: PathBuf| -> Vec<PathBuf> {
            let mut pythons = self.list(&prefix.join("lib"));
            pythons.retain(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python3")));
            pythons.sort();
            pythons.iter().flat_map(|p| [p.join("site-packages"), p.join("dist-packages")]).collect()
        };
        let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().find_map(|v| self.env(v)).map(PathBuf::from);
        let on_path = || {
            let path = self.env("PATH")?;
            let found = std::env::split_paths(&path)
                .map(|p| p.join("python3"))
                .find(|p| p.is_absolute() && p.exists())?;
            Some(found.parent()?.parent()?.to_owned())
        };
        active.or_else(on_path).map(of_prefix).unwrap_or_default()
    }

    fn open_driver(&self) -> Result<Box<dyn Handle>, String> {
        // Kept open, so that cudarc gets the same library when it asks for it by name.
        static OPEN: Mutex<Option<&'static libloading::Library>> = Mutex::new(None);
        let mut open = OPEN.lock().map_err(|e| e.to_string())?;
        let library = match *open {
            Some(l) => l,
            None => {
                let l = open_first(DRIVER)?;
                let l: &'static libloading::Library = Box::leak(Box::new(l));
                *open = Some(l);
                l
            }
        };
        Ok(Box::new(Driver(library)))
    }
}
