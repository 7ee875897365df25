//! `cargo xtask lint`: what continuous integration checks before it tests, in one place; `ci` adds the tests.

mod gpu_bundle;

use std::{
    path::Path,
    process::{Command, ExitCode},
};

/// One check: its name and the cargo arguments that make it.
type Check = (&'static str, &'static [&'static str]);

const CHECKS: &[Check] = &[
    ("format", &["fmt", "--all", "--check"]),
    ("clippy", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
    ("docs", &["doc", "--workspace", "--no-deps", "--quiet"]),
    // A workspace of its own, which nothing else builds.
    (
        "fuzz",
        &["check", "--manifest-path", "fuzz/Cargo.toml", "--target-dir", "target", "--quiet", "--locked"],
    ),
];
/// Which operators have CUDA kernels. A test runs the same program: here it would build the operators a second time, as its dependencies
/// alone ask for other features than the workspace's.
const COVERAGE: Check = ("cuda-coverage", &["run", "--package", "cuda", "--quiet", "--bin", "cuda-coverage"]);
const TESTS: Check = ("tests", &["test", "--workspace", "--quiet"]);

fn run(check: &Check) -> Result<(), String> {
    let (name, args) = check;
    eprintln!("xtask: {name}: cargo {}", args.join(" "));
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(*args);
    if *name == "docs" {
        command.env("RUSTDOCFLAGS", "-D warnings");
    }
    let status = command.status().map_err(|e| format!("{name}: cargo does not start: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name} failed")) }
}

const USAGE: &str = "\
usage: cargo xtask ci|lint|cuda-coverage|gpu-bundle [FOLDER]|gpu-results FOLDER
  ci             format, clippy, docs, fuzz targets, tests
  lint           the same without tests
  cuda-coverage  which operators have a CUDA kernel
  gpu-bundle     a folder that proves the rest on a machine with a GPU; default: target/gpu-bundle
  gpu-results    takes a bundle's results into bench/results, and prints a table";

/// Runs a task; `None` if there is none of this name.
fn task(name: &str, folder: Option<&str>) -> Option<Result<(), String>> {
    Some(match (name, folder) {
        ("ci", None) => CHECKS.iter().chain([&TESTS]).try_for_each(run),
        ("lint", None) => CHECKS.iter().try_for_each(run),
        ("cuda-coverage", None) => run(&COVERAGE),
        ("gpu-bundle", to) => gpu_bundle::make(Path::new(to.unwrap_or("target/gpu-bundle"))),
        ("gpu-results", Some(from)) => gpu_bundle::results(Path::new(from)),
        _ => return None,
    })
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let name = args.first().map_or("", String::as_str);
    match task(name, args.get(1).map(String::as_str)).filter(|_| args.len() <= 2) {
        Some(Ok(())) => {
            eprintln!("xtask: {name} passed");
            ExitCode::SUCCESS
        }
        Some(Err(e)) => {
            eprintln!("xtask: {e}");
            ExitCode::FAILURE
        }
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(64)
        }
    }
}
