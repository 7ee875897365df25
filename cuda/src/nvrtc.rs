//! NVIDIA's runtime compiler, from a library that was found before.
//!
//! Its functions are taken from the very file that was found, not by name from wherever the loader looks.

use crate::{Cache, CompileError, Compiler, Image, Unit, search::said, unit::HEADERS};
use libloading::Library;
use std::{
    ffi::{CString, c_char, c_int},
    path::{Path, PathBuf},
};

type Program = *mut std::ffi::c_void;
type Code = c_int;

/// The functions that are used.
struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Code,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Code,
    destroy: unsafe extern "C" fn(*mut Program) -> Code,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Code,
    sizes: [unsafe extern "C" fn(Program, *mut usize) -> Code; 3],
    texts: [unsafe extern "C" fn(Program, *mut c_char) -> Code; 3],
}

/// What is asked of a compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// The architecture's own code.
    Cubin,
    /// Portable assembly.
    Ptx,
}

/// What a compilation gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// Code or assembly.
    pub bytes: Vec<u8>,
    /// What the compiler and its assembler remark.
    pub log: String,
}

/// An opened compiler; it stays open.
pub struct Nvrtc {
    _library: Library,
    functions: Functions,
    path: PathBuf,
    version: (u32, u32),
}

/// The symbols of [`Functions`], in order.
const SYMBOLS: [&str; 10] = [
    "nvrtcVersion",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcCompileProgram",
    "nvrtcGetCUBINSize",
    "nvrtcGetPTXSize",
    "nvrtcGetProgramLogSize",
    "nvrtcGetCUBIN",
    "nvrtcGetPTX",
    "nvrtcGetProgramLog",
];

impl Nvrtc {
    /// Opens the library at `path`.
    pub fn open(path: &Path) -> Result<Nvrtc, String> {
        let named = |what: String| format!("{}: {what}", path.display());
        // SAFETY: NVRTC's initialisers do nothing to this process; the path was chosen by the search.
        let library = unsafe { Library::new(path) }.map_err(|e| named(said(&e)))?;
        macro_rules! symbol {
            ($i:expr) => {
                // SAFETY: the type is that of NVRTC's documentation, the same in all versions.
                *unsafe { library.get(SYMBOLS[$i].as_bytes()) }.map_err(|e| named(said(&e)))?
            };
        }
        let functions = Functions {
            version: symbol!(0),
            create: symbol!(1),
            destroy: symbol!(2),
            compile: symbol!(3),
            sizes: [symbol!(4), symbol!(5), symbol!(6)],
            texts: [symbol!(7), symbol!(8), symbol!(9)],
        };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two places for two numbers.
        let code = unsafe { (functions.version)(&raw mut major, &raw mut minor) };
        if code != 0 {
            return Err(named(format!("nvrtcVersion fails with {code}")));
        }
        let version = (major.unsigned_abs(), minor.unsigned_abs());
        Ok(Nvrtc { _library: library, functions, path: path.to_owned(), version })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Major and minor version.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Compiles a unit for an architecture (`10 * major + minor`).
    pub fn compile(&self, unit: &Unit, architecture: u32, output: Output) -> Result<Compiled, CompileError> {
        let refuse = |what: String| CompileError { unit: unit.describe(), what };
        let text = |s: &str| CString::new(s).map_err(|e| refuse(e.to_string()));
        let mut options = vec![
            match output {
                Output::Cubin => format!("--gpu-architecture=sm_{architecture}"),
                Output::Ptx => format!("--gpu-architecture=compute_{architecture}"),
            },
            "--std=c++17".to_owned(),
            "--ptxas-options=-v".to_owned(),
        ];
        options.extend(unit.options());
        let options = options.iter().map(|o| text(o)).collect::<Result<Vec<_>, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let (source, name) = (text(&unit.text)?, text(&unit.name)?);
        let texts = [text(&unit.headers[0])?, text(&unit.headers[2])?];
        let names = [text(HEADERS[0])?, text(HEADERS[2])?];
        let (headers, includes) =
            (texts.each_ref().map(|t| t.as_ptr()), names.each_ref().map(|t| t.as_ptr()));
        let mut program: Program = std::ptr::null_mut();
        let f = &self.functions;
        // SAFETY: all texts live through the call, which copies them.
        let code = unsafe {
            (f.create)(
                &raw mut program,
                source.as_ptr(),
                name.as_ptr(),
                2,
                headers.as_ptr(),
                includes.as_ptr(),
            )
        };
        if code != 0 {
            return Err(refuse(format!("nvrtcCreateProgram fails with {code}")));
        }
        // SAFETY: the program was just created; the options live through the call.
        let code = unsafe { (f.compile)(program, pointers.len() as c_int, pointers.as_ptr()) };
        let log = self.text(program, 2);
        let done = if code == 0 {
            let which = if output == Output::Cubin { 0 } else { 1 };
            self.text(program, which).map_err(refuse)
        } else {
            let log = log.as_deref().unwrap_or_default();
            Err(refuse(format!("sm_{architecture}: {}", String::from_utf8_lossy(log).trim_end_matches('\0'))))
        };
        // SAFETY: created above, destroyed once.
        unsafe { (f.destroy)(&raw mut program) };
        let log = String::from_utf8_lossy(&log.unwrap_or_default()).trim_end_matches('\0').to_owned();
        Ok(Compiled { bytes: done?, log })
    }

    /// One of code, assembly and log.
    fn text(&self, program: Program, which: usize) -> Result<Vec<u8>, String> {
        let mut size = 0usize;
        let failed = |code: Code| Err(format!("{} fails with {code}", SYMBOLS[4 + which]));
        // SAFETY: the program is alive; a place for the size.
        let code = unsafe { (self.functions.sizes[which])(program, &raw mut size) };
        if code != 0 {
            return failed(code);
        }
        let mut bytes = vec![0u8; size];
        // SAFETY: the buffer has the size that was asked for.
        let code = unsafe { (self.functions.texts[which])(program, bytes.as_mut_ptr().cast()) };
        if code != 0 { failed(code) } else { Ok(bytes) }
    }
}

/// Compiles for one architecture, through the cache.
pub struct NvrtcCompiler {
    nvrtc: Nvrtc,
    cache: Option<Cache>,
    architecture: u32,
    notes: Vec<String>,
}

impl NvrtcCompiler {
    /// A compiler for a device's architecture; `cache` as [`Cache::open`] gives it.
    pub fn new(nvrtc: Nvrtc, architecture: u32, cache: Result<Cache, String>) -> NvrtcCompiler {
        let mut notes = Vec::new();
        let cache = cache.map_err(|note| notes.push(note)).ok();
        NvrtcCompiler { nvrtc, cache, architecture, notes }
    }
}

impl Compiler for NvrtcCompiler {
    fn compile(&mut self, unit: &Unit) -> Result<Image, CompileError> {
        let key = Cache::key(unit, self.architecture, self.nvrtc.version());
        if let Some(cubin) = self.cache.as_ref().and_then(|c| c.get(&key)) {
            return Ok(Image::Cubin(cubin));
        }
        let cubin = self.nvrtc.compile(unit, self.architecture, Output::Cubin)?.bytes;
        if let Some(cache) = &self.cache
            && let Err(note) = cache.put(&key, &cubin)
        {
            // One note is enough, and so is one try.
            self.notes.push(note);
            self.cache = None;
        }
        Ok(Image::Cubin(cubin))
    }

    fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }
}
