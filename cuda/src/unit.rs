//! What is compiled: a source with macros, for an architecture.

use ops::cuda::Launch;
use std::path::{Path, PathBuf};

/// Names of what sources include: for the device, beside it for the CPU, for products on tensor cores.
pub const HEADERS: [&str; 3] = ["dtrc_device.h", "dtrc_host.h", "dtrc_tensor.h"];

/// A source with its macros. Launches that share one share a module.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unit {
    /// The source's path below `ops/src`.
    pub name: String,
    /// Its text.
    pub text: String,
    /// Macros, in order.
    pub defines: Vec<(String, String)>,
    /// What it may include, in the order of [`HEADERS`].
    pub headers: [String; 3],
}

impl Unit {
    /// The unit of a launch.
    pub fn of(launch: &Launch) -> Unit {
        Unit {
            name: launch.source.name.to_owned(),
            text: launch.source.text.to_owned(),
            defines: launch.defines.iter().map(|(n, v)| ((*n).to_owned(), v.clone())).collect(),
            headers: Unit::own_headers(),
        }
    }

    /// The headers of this program.
    pub fn own_headers() -> [String; 3] {
        use ops::cuda::{DEVICE_HEADER, HOST_HEADER, TENSOR_HEADER};
        [DEVICE_HEADER, HOST_HEADER, TENSOR_HEADER].map(str::to_owned)
    }

    /// The same unit with its texts as they are now below a folder (`ops/src`): tests see a changed kernel without building.
    #[must_use]
    pub fn reread(&self, folder: &Path) -> Unit {
        let read = |file: &str, or: &str| {
            std::fs::read_to_string(folder.join(file)).unwrap_or_else(|_| or.to_owned())
        };
        let [device, host, tensor] = &self.headers;
        Unit {
            text: read(&self.name, &self.text),
            headers: [
                read("cuda/dtrc_device.h", device),
                read("cuda/dtrc_host.h", host),
                read("cuda/dtrc_tensor.h", tensor),
            ],
            ..self.clone()
        }
    }

    /// Compiler options for the macros.
    pub fn options(&self) -> impl Iterator<Item = String> + '_ {
        self.defines.iter().map(|(n, v)| format!("-D{n}={v}"))
    }

    /// Everything that its compilation depends on, apart from compiler and architecture, hashed.
    pub fn hash(&self) -> blake3::Hash {
        let mut h = blake3::Hasher::new();
        let defines = self.defines.iter().flat_map(|(n, v)| [n.as_str(), v.as_str()]);
        let headers = self.headers.iter().map(String::as_str);
        for part in headers.chain([&*self.name, &*self.text]).chain(defines) {
            h.update(&(part.len() as u64).to_le_bytes());
            h.update(part.as_bytes());
        }
        h.finalize()
    }

    /// For messages: the source and its macros.
    pub fn describe(&self) -> String {
        let defines: Vec<String> = self.defines.iter().map(|(n, v)| format!("{n}={v}")).collect();
        format!("{} ({})", self.name, defines.join(" "))
    }
}

/// A compiled unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// For the device's own architecture.
    Cubin(Vec<u8>),
    /// A shared library for the simulated driver.
    Host(PathBuf),
}

/// A unit that does not compile, or a compiler that does not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernels {unit} do not compile: {what}")]
pub struct CompileError {
    /// Source and macros.
    pub unit: String,
    /// What the compiler says.
    pub what: String,
}

/// Makes images of units.
pub trait Compiler: Send {
    /// Compiles a unit, or finds it compiled.
    fn compile(&mut self, unit: &Unit) -> Result<Image, CompileError>;

    /// Remarks for people since the last call, such as a cache that cannot be written.
    fn notes(&mut self) -> Vec<String> {
        Vec::new()
    }
}
