//! Kernels as shared libraries for the CPU.

use crate::{CompileError, Compiler, Image, Unit, unit::HEADERS};
use std::{
    collections::BTreeMap,
    ffi::c_void,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
};

/// The system's C++ compiler: `$CXX`, or `c++`. Libraries are kept in a folder by the hash of all that they are made of.
pub struct HostCompiler {
    compiler: String,
    folder: PathBuf,
    sources: Option<PathBuf>,
}

impl HostCompiler {
    /// Libraries go to `folder`.
    pub fn new(folder: &Path) -> HostCompiler {
        let compiler =
            std::env::var("CXX").ok().filter(|c| !c.is_empty()).unwrap_or_else(|| "c++".to_owned());
        HostCompiler { compiler, folder: folder.to_owned(), sources: None }
    }

    /// Sources are read below a folder (`ops/src`) instead of taken from this program; see [`Unit::reread`].
    #[must_use]
    pub fn reading(self, folder: &Path) -> HostCompiler {
        HostCompiler { sources: Some(folder.to_owned()), ..self }
    }

    /// Whether there is a compiler.
    pub fn works(&self) -> bool {
        Command::new(&self.compiler).arg("--version").output().is_ok_and(|o| o.status.success())
    }

    fn build(&self, unit: &Unit, to: &Path) -> Result<(), String> {
        let text = |e: std::io::Error| e.to_string();
        let work = tempfile::tempdir_in(&self.folder).map_err(text)?;
        let headers = HEADERS.into_iter().zip(&unit.headers);
        for (name, contents) in headers.chain([("kernels.cpp", &unit.text)]) {
            fs::write(work.path().join(name), contents).map_err(text)?;
        }
        let library = work.path().join("kernels.so");
        let out = Command::new(&self.compiler)
            .args(["-x", "c++", "-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"])
            // C's headers suffice, and take a third of the time to read.
            .arg("-nostdinc++")
            // Kernels read packs through pointers to elements, and threads are switched by longjmp.
            .args(["-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-ffp-contract=off", "-w", "-DDTRC_HOST"])
            .args(unit.options())
            .arg(work.path().join("kernels.cpp"))
            .arg("-o")
            .arg(&library)
            .output()
            .map_err(|e| {
                format!("{} does not start ({e}): install a C++ compiler, or set CXX", self.compiler)
            })?;
        if !out.status.success() {
            return Err(String::from_utf8_lossy(&out.stderr).into_owned());
        }
        fs::rename(&library, to).map_err(text)
    }
}

impl Compiler for HostCompiler {
    fn compile(&mut self, unit: &Unit) -> Result<Image, CompileError> {
        let reread = self.sources.as_ref().map(|f| unit.reread(f));
        let unit = reread.as_ref().unwrap_or(unit);
        let refuse = |what| CompileError { unit: unit.describe(), what };
        fs::create_dir_all(&self.folder).map_err(|e| refuse(e.to_string()))?;
        let path = self.folder.join(format!("{}.so", unit.hash().to_hex()));
        if !path.exists() {
            self.build(unit, &path).map_err(refuse)?;
        }
        Ok(Image::Host(path))
    }
}

/// What a library's entry takes; the layout is that of `dtrc_host.h`.
#[repr(C)]
struct Launch {
    grid: [u32; 3],
    block: u32,
    args: *const *const c_void,
    message: *mut u8,
    message_len: u64,
}

type Entry = unsafe extern "C" fn(*mut Launch) -> i32;

/// A loaded library. Its threads, shared memory included, are static: one launch at a time.
pub struct HostLibrary {
    library: libloading::Library,
    running: Arc<Mutex<()>>,
}

impl HostLibrary {
    /// Opens a library that [`HostCompiler`] made. The same file is one library for the whole process.
    pub fn open(path: &Path) -> Result<HostLibrary, String> {
        static LOCKS: Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());
        // SAFETY: the library was compiled from our sources and has no initialisers.
        let library = unsafe { libloading::Library::new(path) }.map_err(|e| crate::search::said(&e))?;
        let mut locks = LOCKS.lock().map_err(|e| e.to_string())?;
        Ok(HostLibrary { library, running: locks.entry(path.to_owned()).or_default().clone() })
    }

    /// A kernel by name.
    pub fn kernel(&self, name: &str) -> Result<Kernel, String> {
        // SAFETY: entries of this name have this type, by `KERNEL` of dtrc_host.h.
        let entry = unsafe { self.library.get::<Entry>(format!("dtrc_{name}").as_bytes()) };
        let entry = *entry.map_err(|e| e.to_string())?;
        Ok(Kernel { entry, running: self.running.clone() })
    }
}

/// A kernel; its library must stay open.
#[derive(Clone)]
pub struct Kernel {
    entry: Entry,
    running: Arc<Mutex<()>>,
}

impl Kernel {
    /// Runs all blocks; an error is what `dtrc_host.h` found wrong with the kernel.
    ///
    /// # Safety
    ///
    /// The arguments are those of the kernel, and its addresses are valid for what it does.
    pub unsafe fn run(&self, grid: u32, block: u32, args: &[Vec<u8>]) -> Result<(), String> {
        // Arguments are read as their own types.
        let words: Vec<Vec<u128>> = args
            .iter()
            .map(|a| {
                let mut words = vec![0u128; a.len().div_ceil(16)];
                for (word, bytes) in words.iter_mut().zip(a.chunks(16)) {
                    let mut full = [0; 16];
                    full[..bytes.len()].copy_from_slice(bytes);
                    *word = u128::from_ne_bytes(full);
                }
                words
            })
            .collect();
        let pointers: Vec<*const c_void> = words.iter().map(|w| w.as_ptr().cast()).collect();
        let mut message = [0u8; 512];
        let mut launch = Launch {
            grid: [grid, 1, 1],
            block,
            args: pointers.as_ptr(),
            message: message.as_mut_ptr(),
            message_len: message.len() as u64,
        };
        let _alone = self.running.lock().map_err(|e| e.to_string())?;
        // SAFETY: by this function's contract; the structure lives through the call.
        let code = unsafe { (self.entry)(&raw mut launch) };
        if code == 0 {
            return Ok(());
        }
        let end = message.iter().position(|b| *b == 0).unwrap_or(message.len());
        Err(String::from_utf8_lossy(&message[..end]).into_owned())
    }
}
