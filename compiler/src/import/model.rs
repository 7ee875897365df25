//! From a path or bytes to a parsed `ModelProto` and what surrounds it: opset versions, where tensor elements lie.

use super::{
    error::{ImportError, ImportErrorKind},
    limits,
    wire::{self, Cut},
};
use graph::quote_name;
use onnx_protobuf as pb;
use protobuf::Message;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Cursor, Read, Seek},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Oldest and newest opset of the default domain that are fully supported.
pub const OPSETS: std::ops::RangeInclusive<i64> = 7..=21;

/// Where a model's bytes are.
#[derive(Clone, Debug)]
pub enum ModelSource {
    /// In a file; external data lies beside it.
    File(PathBuf),
    /// In memory, under a name for messages; external data cannot be found.
    Bytes(String, Arc<[u8]>),
}

/// Something to read a model from.
pub trait ReadSeek: Read + Seek {}
impl<T: Read + Seek> ReadSeek for T {}

impl ModelSource {
    /// The name for messages.
    pub fn name(&self) -> String {
        match self {
            ModelSource::File(path) => path.display().to_string(),
            ModelSource::Bytes(name, _) => name.clone(),
        }
    }

    /// Opens it for reading from the start.
    pub fn open(&self) -> io::Result<Box<dyn ReadSeek>> {
        Ok(match self {
            ModelSource::File(path) => {
                let file = File::open(path)?;
                if !file.metadata()?.is_file() {
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
                }
                Box::new(file)
            }
            ModelSource::Bytes(_, bytes) => Box::new(Cursor::new(bytes.clone())),
        })
    }

    /// The folder that external data lies in.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            ModelSource::File(path) => {
                Some(path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))
            }
            ModelSource::Bytes(..) => None,
        }
    }
}

/// Versions of operator domains; the default domain is `""`.
pub type Opsets = BTreeMap<String, i64>;

/// A model that protobuf has parsed. Its large tensors have only a number in `segment.begin`.
pub struct Model {
    /// The file.
    pub source: ModelSource,
    /// The message.
    pub proto: pb::ModelProto,
    /// Where the elements of large tensors lie.
    pub cuts: Vec<Cut>,
    /// Operator versions of the main graph.
    pub opsets: Opsets,
    /// Bytes of the file.
    pub file: u64,
    /// Bytes of memory that the graph may take.
    pub spare: u64,
    /// Things to tell the user.
    pub warnings: Vec<String>,
}

/// Reads and parses a model; nothing of its graph is looked at yet.
pub fn load(source: ModelSource) -> Result<Model, ImportError> {
    let fail = |kind| ImportError::file(&source, kind);
    let mut input = source.open().map_err(|e| fail(ImportErrorKind::Io(e)))?;
    let mut head = Vec::new();
    input.by_ref().take(64).read_to_end(&mut head).map_err(|e| fail(ImportErrorKind::Io(e)))?;
    if let Some(what) = foreign(&head) {
        return Err(fail(ImportErrorKind::NotOnnx(what)));
    }
    let skeleton = wire::scan(input).map_err(|e| fail(ImportErrorKind::Wire(e)))?;
    let proto = pb::ModelProto::parse_from_bytes(&skeleton.bytes)
        .map_err(|e| fail(ImportErrorKind::NotOnnx(format!("protobuf says: {e}"))))?;
    if proto.graph.is_none() {
        return Err(fail(ImportErrorKind::NotOnnx("it has no graph".to_owned())));
    }
    let mut warnings = Vec::new();
    let opsets = opsets(&proto.opset_import, &mut warnings).map_err(|e| fail(ImportErrorKind::Model(e)))?;
    if let Some(v) = opsets.get("")
        && !OPSETS.contains(v)
    {
        let age = if *v < *OPSETS.start() { "older" } else { "newer" };
        let (from, to) = (OPSETS.start(), OPSETS.end());
        warnings.push(format!("opset {v} is {age} than what is fully supported ({from} to {to})"));
    }
    let (file, spare) = (skeleton.file, limits::allowance(skeleton.file).saturating_sub(skeleton.estimate));
    Ok(Model { source, proto, cuts: skeleton.cuts, opsets, file, spare, warnings })
}

/// Versions by domain. A domain that is imported twice has its newest version.
pub fn opsets(imports: &[pb::OperatorSetIdProto], warnings: &mut Vec<String>) -> Result<Opsets, String> {
    let mut out = Opsets::new();
    for o in imports {
        let domain = domain_name(&o.domain);
        if o.version < 1 {
            return Err(format!(
                "opset version {} of domain {} is impossible",
                o.version,
                quote_name(domain)
            ));
        }
        match out.get(domain) {
            Some(v) if *v != o.version => {
                let newest = (*v).max(o.version);
                warnings.push(format!(
                    "opset imported twice for domain {}: versions {v} and {}; {newest} is used",
                    quote_name(domain),
                    o.version
                ));
                out.insert(domain.to_owned(), newest);
            }
            _ => {
                out.insert(domain.to_owned(), o.version);
            }
        }
    }
    Ok(out)
}

/// The default domain has two names.
pub fn domain_name(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// What a file is, if its first bytes show that it is no ONNX model.
fn foreign(head: &[u8]) -> Option<String> {
    let known: &[(&[u8], &str)] = &[
        (plan::MAGIC, "it is a plan: train, run, show, check, diff and explain take those"),
        (b"PK\x03\x04", "it is a zip archive (a PyTorch file?): export it to ONNX, or unpack it"),
        (b"\x1f\x8b", "it is compressed with gzip: unpack it"),
        (b"(\xb5/\xfd", "it is compressed with zstd: unpack it"),
        (b"version https://git-lfs", "it is a Git LFS pointer: fetch the file itself (git lfs pull)"),
        (b"\x80\x02", "it is a Python pickle: export the model to ONNX"),
        (b"\x80\x04", "it is a Python pickle: export the model to ONNX"),
        (b"\x89HDF", "it is an HDF5 file: convert the model to ONNX"),
        (b"{", "it is text, maybe JSON"),
        (b"<", "it is text, maybe HTML"),
    ];
    if head.is_empty() {
        return Some("it is empty".to_owned());
    }
    if head.get(4..8) == Some(b"ORTM") {
        return Some("it is in the ORT format: use the .onnx file it was made from".to_owned());
    }
    known.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, what)| (*what).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(bytes: &[u8]) -> String {
        let source = ModelSource::Bytes("m.onnx".to_owned(), bytes.into());
        load(source).err().map(|e| e.to_string()).unwrap_or_default()
    }

    #[test]
    fn foreign_files_are_named() {
        assert_eq!(message(b""), "m.onnx: not an ONNX model: it is empty");
        assert!(message(b"version https://git-lfs.github.com/spec/v1\n").contains("Git LFS"));
        assert!(message(b"PK\x03\x04....").contains("zip"));
        assert!(message(plan::MAGIC).contains("it is a plan"));
        assert!(message(b"\x08\x08").contains("no graph"));
        assert!(message(b"hello, world").contains("not an ONNX model"));
        assert!(message(&[0x3a, 0x7f, 0]).contains("truncated"));
    }

    #[test]
    fn a_domain_imported_twice_has_its_newest_version() {
        let import = |domain: &str, version| {
            let mut o = pb::OperatorSetIdProto::new();
            o.domain = domain.to_owned();
            o.version = version;
            o
        };
        let mut warnings = Vec::new();
        let all = [import("", 17), import("ai.onnx", 14), import("unused", 1), import("", 17)];
        let o = opsets(&all, &mut warnings).unwrap();
        assert_eq!(o.get(""), Some(&17));
        assert_eq!(warnings.len(), 1);
        assert!(opsets(&[import("", 0)], &mut warnings).is_err());
    }
}
