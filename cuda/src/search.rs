//! Where CUDA's libraries are, and whether the driver is of use.
//!
//! Libraries are looked for in `DTRC_CUDA_LIB`, `CUDA_PATH`, `/usr/local/cuda*/lib64` and the active Python's `nvidia` packages, in this
//! order, and opened by absolute path; never from the working directory. The driver belongs to the system and is found by its loader. It is
//! probed before anything else is called: cudarc panics where it is missing, or lacks a function.

mod probe;
mod system;

pub use probe::{DriverFound, NoDriver, REQUIRED_SYMBOLS, probe_driver};
pub(crate) use system::said;
pub use system::{Process, System};

use std::path::{Path, PathBuf};

/// A library that is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// The runtime compiler: needed.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// Convolutions.
    Cudnn,
}

impl Library {
    /// All of them.
    pub const ALL: [Library; 3] = [Library::Nvrtc, Library::CublasLt, Library::Cudnn];

    /// Its file's name up to the version.
    pub fn stem(self) -> &'static str {
        match self {
            Library::Nvrtc => "libnvrtc.so",
            Library::CublasLt => "libcublasLt.so",
            Library::Cudnn => "libcudnn.so",
        }
    }

    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Library::Nvrtc => "NVRTC",
            Library::CublasLt => "cuBLASLt",
            Library::Cudnn => "cuDNN",
        }
    }

    /// How to get it.
    pub fn remedy(self) -> &'static str {
        match self {
            Library::Nvrtc => {
                "pip install nvidia-cuda-nvrtc, or install the CUDA toolkit, or set DTRC_CUDA_LIB to its folder"
            }
            Library::CublasLt => "pip install nvidia-cublas, or install the CUDA toolkit",
            Library::Cudnn => "pip install nvidia-cudnn-cu13",
        }
    }
}

/// Folders in which libraries are looked for, in order; only absolute ones.
pub fn folders(system: &dyn System) -> Vec<PathBuf> {
    let mut all = Vec::new();
    if let Some(given) = system.env("DTRC_CUDA_LIB") {
        all.extend(std::env::split_paths(&given));
    }
    if let Some(path) = system.env("CUDA_PATH") {
        all.extend(["lib64", "lib"].map(|l| Path::new(&path).join(l)));
    }
    let mut toolkits: Vec<PathBuf> = system.list(Path::new("/usr/local")).into_iter().collect();
    toolkits.retain(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("cuda")));
    // The newest first; the link `cuda` says which one the user chose.
    toolkits.sort_by_key(|p| (p.file_name().is_some_and(|n| n != "cuda"), std::cmp::Reverse(version_of(p))));
    all.extend(toolkits.into_iter().map(|t| t.join("lib64")));
    for site in system.site_packages() {
        let mut packages = system.list(&site.join("nvidia"));
        packages.sort();
        all.extend(packages.into_iter().map(|p| p.join("lib")));
    }
    all.retain(|p| p.is_absolute());
    all
}

/// The numbers in a file's name.
fn version_of(path: &Path) -> Vec<u32> {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
}

/// The first folder that has the library gives its newest version there; one of a newer major than `most` is passed over.
pub fn find(system: &dyn System, library: Library, most: Option<u32>) -> Option<PathBuf> {
    for folder in folders(system) {
        let mut files = system.list(&folder);
        files.retain(|p| {
            let name = p.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            let rest = name.strip_prefix(library.stem());
            rest.is_some_and(|r| r.chars().all(|c| c == '.' || c.is_ascii_digit()))
                && most.is_none_or(|m| major(library, p).is_none_or(|v| v <= m))
        });
        files.sort_by_key(|p| version_of(p));
        if let Some(newest) = files.pop() {
            return Some(newest);
        }
    }
    None
}

/// The major version in a file's name.
fn major(library: Library, path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_string_lossy().into_owned();
    name.strip_prefix(library.stem())?.trim_start_matches('.').split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests;
