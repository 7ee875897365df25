//! The search and the probe on systems that are made up.

use super::{Library, NoDriver, REQUIRED_SYMBOLS, System, find, folders, probe_driver, system::Handle};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

#[derive(Clone)]
struct FakeDriver {
    lacks: &'static str,
    init: u32,
    version: u32,
    devices: u32,
}

const GOOD: FakeDriver = FakeDriver { lacks: "", init: 0, version: 13000, devices: 1 };

impl Handle for FakeDriver {
    fn has(&self, symbol: &str) -> bool {
        symbol != self.lacks
    }
    fn init(&self) -> u32 {
        self.init
    }
    fn version(&self) -> Result<u32, u32> {
        Ok(self.version)
    }
    fn devices(&self) -> Result<u32, u32> {
        Ok(self.devices)
    }
}

#[derive(Default)]
struct Fake {
    driver: Option<FakeDriver>,
    variables: BTreeMap<&'static str, &'static str>,
    files: Vec<&'static str>,
}

impl System for Fake {
    fn env(&self, name: &str) -> Option<String> {
        self.variables.get(name).map(|v| (*v).to_owned())
    }
    fn list(&self, folder: &Path) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> = Vec::new();
        for f in &self.files {
            let Ok(rest) = Path::new(f).strip_prefix(folder) else { continue };
            all.extend(rest.components().next().map(|c| folder.join(c)));
        }
        all.dedup();
        all
    }
    fn site_packages(&self) -> Vec<PathBuf> {
        vec![PathBuf::from("/venv/lib/python3.11/site-packages")]
    }
    fn open_driver(&self) -> Result<Box<dyn Handle>, String> {
        match &self.driver {
            Some(d) => Ok(Box::new(d.clone())),
            None => Err("libcuda.so.1: cannot open shared object file".to_owned()),
        }
    }
}

fn probe(driver: Option<FakeDriver>) -> Result<super::DriverFound, NoDriver> {
    probe_driver(&Fake { driver, ..Fake::default() })
}

#[test]
fn a_driver_that_is_of_no_use_is_said_to_be_so() {
    assert_eq!(probe(Some(GOOD)).map(|d| (d.version, d.devices)), Ok((13000, 1)));
    let missing = probe(None).unwrap_err();
    assert!(matches!(missing, NoDriver::Missing(_)));
    assert!(missing.to_string().contains("install the driver"), "{missing}");
    assert_eq!(probe(Some(FakeDriver { init: 34, ..GOOD })), Err(NoDriver::Stub));
    assert_eq!(probe(Some(FakeDriver { init: 100, ..GOOD })), Err(NoDriver::NoDevice));
    assert_eq!(probe(Some(FakeDriver { devices: 0, ..GOOD })), Err(NoDriver::NoDevice));
    let old = probe(Some(FakeDriver { version: 11080, ..GOOD })).unwrap_err();
    assert_eq!(old.to_string(), "the driver supports CUDA 11.8, at least 12.0 is needed: update the driver");
    assert_eq!(probe(Some(FakeDriver { init: 3, ..GOOD })), Err(NoDriver::Fails { call: "cuInit", code: 3 }));
}

#[test]
fn every_function_that_is_called_must_be_there() {
    for symbol in REQUIRED_SYMBOLS {
        let lacks = probe(Some(FakeDriver { lacks: symbol, ..GOOD })).unwrap_err();
        assert_eq!(lacks, NoDriver::Lacks((*symbol).to_owned()));
    }
}

#[test]
fn libraries_are_found_in_the_order_of_folders() {
    let wheel = "/venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13";
    let mut system = Fake { files: vec![wheel], ..Fake::default() };
    assert_eq!(find(&system, Library::Nvrtc, None), Some(PathBuf::from(wheel)));
    assert_eq!(find(&system, Library::Cudnn, None), None);
    system
        .files
        .extend(["/usr/local/cuda-12.8/lib64/libnvrtc.so.12", "/usr/local/cuda-13.0/lib64/libnvrtc.so.13"]);
    assert_eq!(find(&system, Library::Nvrtc, None), Some("/usr/local/cuda-13.0/lib64/libnvrtc.so.13".into()));
    // A compiler of a newer major than the driver's is not used.
    assert_eq!(
        find(&system, Library::Nvrtc, Some(12)),
        Some("/usr/local/cuda-12.8/lib64/libnvrtc.so.12".into())
    );
    system.variables.insert("DTRC_CUDA_LIB", "/given");
    system.files.extend([
        "/given/libnvrtc.so.13.0.1",
        "/given/libnvrtc.so.13.2.0",
        "/given/libnvrtc-builtins.so.13",
    ]);
    assert_eq!(find(&system, Library::Nvrtc, None), Some("/given/libnvrtc.so.13.2.0".into()));
}

#[test]
fn the_working_directory_is_never_searched() {
    let variables = BTreeMap::from([("DTRC_CUDA_LIB", ".:lib:/given"), ("CUDA_PATH", "cuda")]);
    let system = Fake { variables, ..Fake::default() };
    assert_eq!(folders(&system), [PathBuf::from("/given")]);
}

/// libloading says "dlopen failed" and no more; people need to know which file, and why.
#[test]
fn a_library_that_does_not_open_is_named() {
    let e = super::system::open_first(&["libdtrc-is-not-there.so", "libdtrc-is-not-there.so.1"]).unwrap_err();
    assert!(e.contains("libdtrc-is-not-there.so.1"), "{e}");
}
