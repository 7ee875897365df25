//! `dtrc doctor`: what this machine offers.

use crate::{cli::Global, error::CliError, units::bytes};
use cuda::{
    DeviceInfo, Driver, Memory,
    nvrtc::Nvrtc,
    real::Real,
    search::{DriverFound, Library, NoDriver, Process, find, probe_driver},
};
use serde_json::json;
use std::path::PathBuf;

/// Arguments of `dtrc doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Prints what is found.
pub fn run(_: &Args, global: Global) -> Result<u8, CliError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = runtime::available_memory();
    let simd = ops::cpu::instruction_set();
    let cuda = probe();
    if global.json {
        println!(
            "{}",
            json!({"schema": 1, "version": env!("CARGO_PKG_VERSION"), "cpu": {"threads": threads, "instructions": simd,
                "available_bytes": memory.as_ref().map(|m| m.bytes), "limit": memory.as_ref().map(|m| m.source)},
                "cuda": cuda_json(&cuda)})
        );
        return Ok(0);
    }
    println!("dtrc {}", env!("CARGO_PKG_VERSION"));
    println!("cpu     {threads} threads, {simd}");
    match memory {
        Some(m) => println!("memory  {} available ({})", bytes(m.bytes), m.source),
        None => println!("memory  unknown: this system does not say"),
    }
    for line in cuda_lines(&cuda) {
        println!("{line}");
    }
    Ok(0)
}

/// What is found of CUDA.
struct Cuda {
    driver: Result<DriverFound, NoDriver>,
    /// The first device and its memory, or why there is none.
    device: Option<Result<(DeviceInfo, Memory), String>>,
    libraries: Vec<(Library, Option<PathBuf>, Option<String>)>,
}

fn probe() -> Cuda {
    let driver = probe_driver(&Process);
    let device = driver.is_ok().then(|| {
        let mut real = Real::open(0).map_err(|e| e.to_string())?;
        let memory = real.memory().map_err(|e| e.to_string())?;
        Ok((real.device(), memory))
    });
    let most = driver.as_ref().ok().map(|d| d.version / 1000);
    let libraries = Library::ALL.map(|l| {
        let path = find(&Process, l, most);
        // Only the compiler tells its version without a device.
        let version = match (l, &path) {
            (Library::Nvrtc, Some(p)) => Some(match Nvrtc::open(p) {
                Ok(n) => format!("{}.{}", n.version().0, n.version().1),
                Err(e) => format!("does not open: {e}"),
            }),
            _ => None,
        };
        (l, path, version)
    });
    Cuda { driver, device, libraries: libraries.into() }
}

fn cuda_lines(cuda: &Cuda) -> Vec<String> {
    let mut lines = vec![match &cuda.driver {
        Ok(d) => format!(
            "cuda    driver for CUDA {}.{}, {} devices",
            d.version / 1000,
            d.version % 1000 / 10,
            d.devices
        ),
        Err(e) => format!("cuda    {e}"),
    }];
    match &cuda.device {
        Some(Ok((d, m))) => lines.push(format!(
            "        {}, capability {}.{}, {} of {} free",
            d.name,
            d.architecture / 10,
            d.architecture % 10,
            bytes(m.free),
            bytes(m.total)
        )),
        Some(Err(e)) => lines.push(format!("        {e}")),
        None => {}
    }
    for (library, path, version) in &cuda.libraries {
        let found = match (path, version) {
            (Some(p), Some(v)) => format!("{v}, {}", p.display()),
            (Some(p), None) => p.display().to_string(),
            (None, _) => format!("not found: {}", library.remedy()),
        };
        lines.push(format!("        {} {found}", library.name()));
    }
    lines
}

fn cuda_json(cuda: &Cuda) -> serde_json::Value {
    let libraries: serde_json::Map<String, serde_json::Value> = cuda
        .libraries
        .iter()
        .map(|(l, path, version)| (l.name().to_lowercase(), json!({"path": path, "version": version})))
        .collect();
    let device = cuda.device.as_ref().and_then(|d| d.as_ref().ok()).map(|(d, m)| {
        json!({"name": d.name, "architecture": d.architecture, "free_bytes": m.free, "total_bytes": m.total})
    });
    json!({"driver_version": cuda.driver.as_ref().ok().map(|d| d.version), "device": device,
        "problem": cuda.driver.as_ref().err().map(ToString::to_string), "libraries": libraries})
}
