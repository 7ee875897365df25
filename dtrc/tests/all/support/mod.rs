//! Running the binary, and small data for it.

pub mod onnx;

use graph::DType;
use runtime::data::npz;
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// What a command did.
pub struct Outcome {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    /// The objects on stdout.
    pub fn objects(&self) -> Vec<Value> {
        let parse = |l: &str| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}"));
        self.stdout.lines().map(parse).collect()
    }

    /// Losses by step, as they are printed.
    pub fn losses(&self) -> Vec<String> {
        self.objects()
            .iter()
            .filter(|o| o.get("step").is_some() && o.get("eval").is_none())
            .map(|o| o["loss"].to_string())
            .collect()
    }

    #[track_caller]
    pub fn ok(self) -> Outcome {
        assert_eq!(self.code, 0, "{}\n{}", self.stdout, self.stderr);
        self
    }

    /// It failed with this code, and said all of `words`.
    #[track_caller]
    pub fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{}\n{}", self.stdout, self.stderr);
        for w in words {
            assert!(self.stderr.contains(w), "{w:?} is not in {}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
    }
}

/// The command, ready to run.
pub fn command(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_dtrc"));
    c.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    c
}

/// Runs it.
pub fn dtrc(args: &[&str]) -> Outcome {
    let out = command(args).output().expect("the binary runs");
    Outcome {
        code: out.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    }
}

/// A committed model.
pub fn model(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../onnx-models").join(format!("{name}.onnx"));
    assert!(path.exists(), "{}", path.display());
    path.display().to_string()
}

/// Writes a generated model.
pub fn generated(
    dir: &Path,
    name: &str,
    make: impl Fn(&onnx_models::Common) -> onnx_models::ModelProto,
) -> String {
    let common = onnx_models::Common { batch: 16, dynamic: false, loss: false, seed: 0 };
    let path = dir.join(name);
    std::fs::write(&path, onnx_models::to_bytes(&make(&common)).expect("a small model")).expect("a file");
    path.display().to_string()
}

/// The small multilayer perceptron without a loss: `y` holds the scores of 10 classes for 16 rows.
pub fn scores_model(dir: &Path) -> String {
    let mlp = onnx_models::Mlp { inputs: 32, hidden: vec![64, 64], classes: 10 };
    generated(dir, "scores.onnx", |c| mlp.build(c))
}

/// Elements of a float initializer of a model file, given as raw data.
pub fn initializer(path: &Path, name: &str) -> Vec<f32> {
    stored(path, name)
        .raw_data
        .chunks_exact(4)
        .map(|c| f32::from_le_bytes(c.try_into().expect("4 bytes")))
        .collect()
}

/// An initializer of a model file as it is stored.
pub fn stored(path: &Path, name: &str) -> onnx_protobuf::TensorProto {
    let bytes = std::fs::read(path).expect("a file");
    let model: onnx_models::ModelProto = protobuf::Message::parse_from_bytes(&bytes).expect("a model");
    model.graph.initializer.iter().find(|t| t.name == name).expect("an initializer").clone()
}

/// Deterministic numbers in [-1, 1).
pub fn floats(n: usize, seed: u64) -> Vec<f32> {
    let mut x = seed.wrapping_mul(2).wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((x >> 40) as f32 / (1u64 << 23) as f32) - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Writes `x` and `target`.
pub fn write(path: &Path, x: (&[u64], &[f32]), target: (&[u64], &[i64])) -> String {
    let xs: Vec<u8> = x.1.iter().flat_map(|v| v.to_le_bytes()).collect();
    let ts: Vec<u8> = target.1.iter().flat_map(|v| v.to_le_bytes()).collect();
    let file = std::fs::File::create(path).expect("a file");
    npz::write(
        file,
        [("x", DType::F32, x.0, xs.as_slice()), ("target", DType::I64, target.0, ts.as_slice())],
    )
    .expect("written");
    path.display().to_string()
}

/// `batches` batches for the small multilayer perceptron.
pub fn mlp_data(dir: &Path, batches: usize) -> String {
    let rows = 16 * batches;
    let labels: Vec<i64> = (0..rows as i64).map(|i| i * 7 % 3).collect();
    write(
        &dir.join(format!("mlp{batches}.npz")),
        (&[rows as u64, 32], &floats(rows * 32, 1)),
        (&[rows as u64], &labels),
    )
}

/// `batches` batches for the small residual network.
pub fn resnet_data(dir: &Path, batches: usize) -> String {
    let rows = 16 * batches;
    let labels: Vec<i64> = (0..rows as i64).map(|i| i * 7 % 3).collect();
    write(
        &dir.join(format!("resnet{batches}.npz")),
        (&[rows as u64, 3, 32, 32], &floats(rows * 3072, 2)),
        (&[rows as u64], &labels),
    )
}
