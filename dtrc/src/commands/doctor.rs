//! `dtrc doctor`: what this machine offers.

use crate::{cli::Global, error::CliError, units::bytes};
use serde_json::json;

/// Arguments of `dtrc doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Prints what is found.
pub fn run(_: &Args, global: Global) -> Result<u8, CliError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = runtime::available_memory();
    let simd = ops::cpu::instruction_set();
    if global.json {
        println!(
            "{}",
            json!({"schema": 1, "version": env!("CARGO_PKG_VERSION"), "cpu": {"threads": threads, "instructions": simd,
                "available_bytes": memory.as_ref().map(|m| m.bytes), "limit": memory.as_ref().map(|m| m.source)},
                "cuda": null})
        );
        return Ok(0);
    }
    println!("dtrc {}", env!("CARGO_PKG_VERSION"));
    println!("cpu     {threads} threads, {simd}");
    match memory {
        Some(m) => println!("memory  {} available ({})", bytes(m.bytes), m.source),
        None => println!("memory  unknown: this system does not say"),
    }
    println!("cuda    not part of this version");
    Ok(0)
}
