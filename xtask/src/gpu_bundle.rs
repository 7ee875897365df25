//! `cargo xtask gpu-bundle`: the folder that proves on a machine with a GPU what cannot be proved without one.
//!
//! Everything is inside: the program, small models with PyTorch's numbers, full-size models without weights (those are made there from
//! seeds), the script for PyTorch. The program is built for any x86-64 processor, whatever flags this machine's builds have.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What the folder may hold, in bytes.
const MOST: u64 = 60 << 20;
/// Full-size models that are measured.
const TOPOLOGY: [&str; 4] = ["resnet50", "bert", "gpt2", "unet"];

const RUN: &str = "#!/bin/sh
# ./run PART [MODEL] --deadline SECONDS; ./run --help lists the parts.
exec \"$(dirname \"$0\")/gpu-bundle\" \"$@\"
";

const README: &str = "# Proof with a GPU

Needs the driver of an NVIDIA GPU (CUDA 12 or 13), NVRTC (`pip install nvidia-cuda-nvrtc`, or the toolkit), and for the part `torch` a
Python with PyTorch, torchvision and transformers (`DTRC_PYTHON`). No network, no compiler.

    ./run smoke
    ./run kernels --deadline 540
    ./run losses
    ./run budgets
    ./run memory
    ./run speed resnet50        (and bert, gpt2, unet)
    ./run torch resnet50
    ./run table
    ./run merge

A part that a deadline cuts goes on when it is run again. Results are in `results/`, a file for each part, merged into
`results/gpu-<device>.json`; `cargo xtask gpu-results FOLDER` takes that into `bench/results`.
";

/// Makes the folder.
pub fn make(to: &Path) -> Result<(), String> {
    let root = root()?;
    let models = data(&root)?;
    build(&root)?;
    if to.exists()
        && fs::read_dir(to).map_err(|e| at(to, &e))?.next().is_some()
        && !to.join("gpu-bundle").exists()
    {
        return Err(format!("{}: there is something else in this folder: name an empty one", to.display()));
    }
    let program = root.join("target/release/gpu-bundle");
    copy(&program, &to.join("gpu-bundle"))?;
    copy(&root.join("gpu-bundle/python/torch_step.py"), &to.join("torch_step.py"))?;
    write(&to.join("README.md"), README)?;
    let run = to.join("run");
    write(&run, RUN)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&run, fs::Permissions::from_mode(0o755)).map_err(|e| at(&run, &e))?;
    }
    let mut small = 0;
    for path in list(&models.join("small"))? {
        let name = path.file_name().unwrap_or(OsStr::new("")).to_string_lossy().into_owned();
        let Some(model) = name.strip_suffix(".ts_loss.onnx") else { continue };
        copy(&path, &to.join("models/small").join(&name))?;
        for end in ["io.npz", "ref.json"] {
            let file = format!("reference/{model}.{end}");
            copy(&models.join(&file), &to.join("models").join(&file))?;
        }
        small += 1;
    }
    if small == 0 {
        return Err(format!("{}: there are no models", models.display()));
    }
    for model in TOPOLOGY {
        let file = format!("topology/{model}.ts_dyn.onnx");
        copy(&models.join(&file), &to.join("models").join(&file))?;
    }
    let index = "topology/weights_index.json";
    copy(&models.join(index), &to.join("models").join(index))?;
    let bytes = size(to)?;
    if bytes > MOST {
        return Err(format!("{} has {bytes} bytes, more than {MOST}", to.display()));
    }
    eprintln!(
        "xtask: {} has {:.1} MiB, {small} small models",
        to.display(),
        bytes as f64 / f64::from(1 << 20)
    );
    Ok(())
}

/// Takes a bundle's results into `bench/results` and prints the table.
pub fn results(bundle: &Path) -> Result<(), String> {
    let root = root()?;
    for args in [&["merge", "--to", "bench/results"][..], &["table"]] {
        let status = cargo(&root)
            .args(["run", "--quiet", "--package", "gpu-bundle", "--"])
            .args(args)
            .arg("--folder")
            .arg(bundle)
            .status()
            .map_err(|e| format!("cargo does not start: {e}"))?;
        if !status.success() {
            return Err(format!("{} of {} failed", args[0], bundle.display()));
        }
    }
    Ok(())
}

/// The program, stripped, for any processor: flags of the environment and of the user's configuration are not used.
fn build(root: &Path) -> Result<(), String> {
    let status = cargo(root)
        .args([
            "rustc",
            "--release",
            "--package",
            "gpu-bundle",
            "--bin",
            "gpu-bundle",
            "--",
            "-C",
            "strip=symbols",
        ])
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", "")
        .status()
        .map_err(|e| format!("cargo does not start: {e}"))?;
    if status.success() { Ok(()) } else { Err("gpu-bundle is not built".to_owned()) }
}

fn cargo(root: &Path) -> Command {
    let mut c = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    c.current_dir(root);
    c
}

fn root() -> Result<PathBuf, String> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().map(Path::to_owned).ok_or_else(|| format!("{} has no parent", own.display()))
}

/// The folder of models: in `DTRC_DATA`, or beside the workspace.
fn data(root: &Path) -> Result<PathBuf, String> {
    let given = std::env::var_os("DTRC_DATA").map(PathBuf::from);
    let folder = given.unwrap_or_else(|| root.join("../shared/data")).join("models");
    if folder.exists() { Ok(folder) } else { Err(format!("{}: not found; set DTRC_DATA", folder.display())) }
}

fn at(path: &Path, e: &std::io::Error) -> String {
    format!("{}: {e}", path.display())
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|e| at(folder, &e))?;
    let mut all: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    all.sort();
    Ok(all)
}

fn folder_of(path: &Path) -> Result<(), String> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(|e| at(folder, &e))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    folder_of(path)?;
    fs::write(path, text).map_err(|e| at(path, &e))
}

/// Copies contents; a source that is read-only must not make the copy so.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    folder_of(to)?;
    if to.exists() {
        fs::remove_file(to).map_err(|e| at(to, &e))?;
    }
    fs::copy(from, to).map_err(|e| at(from, &e))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(to).map_err(|e| at(to, &e))?.permissions().mode();
        fs::set_permissions(to, fs::Permissions::from_mode(mode | 0o200)).map_err(|e| at(to, &e))?;
    }
    Ok(())
}

/// Bytes of a folder but its results.
fn size(folder: &Path) -> Result<u64, String> {
    let mut bytes = 0;
    for path in list(folder)? {
        let meta = fs::metadata(&path).map_err(|e| at(&path, &e))?;
        bytes += match path.file_name() {
            Some(n) if n == "results" => 0,
            _ if meta.is_dir() => size(&path)?,
            _ => meta.len(),
        };
    }
    Ok(bytes)
}
