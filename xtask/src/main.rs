//! `cargo xtask lint`: what continuous integration checks before it tests, in one place; `ci` adds the tests.

use std::process::{Command, ExitCode};

/// One check: its name and the cargo arguments that make it.
type Check = (&'static str, &'static [&'static str]);

const CHECKS: &[Check] = &[
    ("format", &["fmt", "--all", "--check"]),
    ("clippy", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
    ("docs", &["doc", "--workspace", "--no-deps", "--quiet"]),
    // A workspace of its own, which nothing else builds.
    (
        "fuzz",
        &[
            "check",
            "--manifest-path",
            "fuzz/Cargo.toml",
            "--target-dir",
            "target/fuzz",
            "--quiet",
            "--locked",
        ],
    ),
];
/// Which operators have CUDA kernels; part of the lints.
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

fn main() -> ExitCode {
    let task = std::env::args().nth(1).unwrap_or_default();
    let checks: Vec<&Check> = match task.as_str() {
        "ci" => CHECKS.iter().chain([&COVERAGE, &TESTS]).collect(),
        "lint" => CHECKS.iter().chain([&COVERAGE]).collect(),
        "cuda-coverage" => vec![&COVERAGE],
        _ => {
            eprintln!(
                "usage: cargo xtask ci|lint|cuda-coverage\n  ci             format, clippy, docs, fuzz targets, CUDA kernels, tests\n  lint           the same without tests\n  cuda-coverage  which operators have a CUDA kernel"
            );
            return ExitCode::from(64);
        }
    };
    for check in checks {
        if let Err(e) = run(check) {
            eprintln!("xtask: {e}");
            return ExitCode::FAILURE;
        }
    }
    eprintln!("xtask: {task} passed");
    ExitCode::SUCCESS
}
