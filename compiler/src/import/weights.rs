//! The model's tensors that become state: type, place, and a reader that streams their elements.
//!
//! A model's weights never lie in memory as a whole: whoever needs them (the plan's hashes, the runtime's arena, a saved model) takes
//! one tensor's elements in chunks of at most [`CHUNK`] bytes.

use super::{
    external,
    flatten::FlatBody,
    model::{ModelSource, ReadSeek},
    narrow::Narrow,
    tensor::{Tensor, normalize, push_varint},
    wire::{Cut, DataField},
};
use graph::{DType, Literal, TensorType, quote_name};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufReader, Read, SeekFrom},
    path::PathBuf,
    sync::Arc,
};

/// Most bytes that are handed out at once; a multiple of every element size.
pub const CHUNK: usize = 1 << 18;

/// Where a tensor's elements are.
#[derive(Clone, Debug)]
pub enum Source {
    /// In the model file.
    Inline(Cut),
    /// In a file beside the model.
    External {
        /// Relative to the model's folder.
        path: PathBuf,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Here.
    Literal(Literal),
    /// Every element is the same; its bytes.
    Fill(Vec<u8>),
}

/// A named tensor of the model.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Type and place.
    pub tensor: Tensor,
    /// Hash of the elements, little endian and row-major, once they were read; see [`Weights::fill_hashes`].
    pub hash: Option<blake3::Hash>,
}

/// Why a weight cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{file}: weight {}: {what}", quote_name(.name))]
pub struct WeightError {
    /// The model file.
    pub file: String,
    /// Name of the tensor.
    pub name: String,
    /// What is wrong.
    pub what: String,
    /// Whether the file with the elements does not exist.
    pub absent: bool,
}

/// The tensors of a model that a graph's state starts from, by name.
#[derive(Clone, Debug)]
pub struct Weights {
    model: ModelSource,
    entries: BTreeMap<Arc<str>, Weight>,
    /// Elements that nodes repeat into tensors of a shape that only an import computes; see [`Weights::fill`].
    repeated: BTreeMap<Arc<str>, Literal>,
    /// Of those that stand in a body of control flow: which body of the file, and their names there.
    bodies: BTreeMap<Arc<str>, (u32, Box<str>)>,
}

enum ReadError {
    What(String),
    Absent(String),
}

impl From<String> for ReadError {
    fn from(what: String) -> Self {
        ReadError::What(what)
    }
}

impl From<io::Error> for ReadError {
    fn from(e: io::Error) -> Self {
        ReadError::What(e.to_string())
    }
}

impl Weights {
    /// No weights of a model.
    pub fn new(model: ModelSource) -> Weights {
        Weights { model, entries: BTreeMap::new(), repeated: BTreeMap::new(), bodies: BTreeMap::new() }
    }

    /// The model.
    pub fn model(&self) -> &ModelSource {
        &self.model
    }

    /// Adds a tensor.
    pub fn insert(&mut self, name: Arc<str>, tensor: Tensor) {
        self.entries.insert(name, Weight { tensor, hash: None });
    }

    /// Notes in which body of the file tensors stand, and what they are called there.
    pub(super) fn note_places(&mut self, body: &FlatBody<'_>) {
        let Some(number) = body.number else { return };
        let initializers = body.initializers.iter().map(|(new, t)| (new, t.name.as_str()));
        for (new, old) in initializers.chain(body.held.iter().map(|(new, old)| (new, *old))) {
            self.bodies.insert(new.as_str().into(), (number, old.into()));
        }
    }

    /// Tensors that stand in bodies of control flow: the number of the body, counted as bodies begin in the file, the name there, and the
    /// name that is given here.
    pub fn in_bodies(&self) -> impl Iterator<Item = (u32, &str, &str)> {
        self.bodies.iter().map(|(new, (number, old))| (*number, &**old, &**new))
    }

    /// Notes the one element of a tensor whose shape is not known here.
    pub(super) fn insert_repeated(&mut self, name: Arc<str>, element: Literal) {
        self.repeated.insert(name, element);
    }

    /// Adds the tensor of this type that the model makes by repeating one element (ConstantOfShape), if it makes `name` so and it is not
    /// here yet: whoever has the plan of a model knows the shape without importing the model again.
    pub fn fill(&mut self, name: &str, ty: &TensorType) {
        let element = self.repeated.get(name).filter(|e| e.dtype() == ty.dtype);
        if let (Some(e), Some(shape), false) = (element, ty.shape.fixed(), self.entries.contains_key(name)) {
            let shape = shape.iter().map(|d| *d as u64).collect();
            let source = Source::Fill(e.bytes().to_vec());
            self.insert(name.into(), Tensor { dtype: ty.dtype, shape, source, narrow: None });
        }
    }

    /// Forgets all tensors but those that `keep` wants.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.entries.retain(|name, _| keep(name));
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&Weight> {
        self.entries.get(name)
    }

    /// All tensors in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Weight)> {
        self.entries.iter()
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.entries.values().map(|w| w.tensor.bytes()).fold(0, u64::saturating_add)
    }

    /// External files that do not exist (yet), each once, relative to the model's folder.
    pub fn absent_files(&self) -> Vec<PathBuf> {
        let mut out = self.external_paths();
        out.retain(|path| !matches!(external::resolve(path, self.model.folder()), Ok(Some(_))));
        out
    }

    /// Files that hold elements outside of the model's own, where they lie.
    pub fn external_files(&self) -> Vec<PathBuf> {
        let resolved = |path: &PathBuf| external::resolve(path, self.model.folder()).ok().flatten();
        self.external_paths().iter().filter_map(resolved).collect()
    }

    /// What the model names as files with elements, as it writes them.
    fn external_paths(&self) -> Vec<PathBuf> {
        let mut out: Vec<PathBuf> = self
            .entries
            .values()
            .filter_map(|w| match &w.tensor.source {
                Source::External { path, .. } => Some(path.clone()),
                _ => None,
            })
            .collect();
        out.sort();
        out.dedup();
        out
    }

    /// Streams the elements of a tensor, little endian and row-major, in chunks that hold whole elements.
    pub fn read(&self, name: &str, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> Result<(), WeightError> {
        let fail = |what: String, absent: bool| WeightError {
            file: self.model.name(),
            name: name.to_owned(),
            what,
            absent,
        };
        let weight = self.get(name).ok_or_else(|| fail("the model has no such tensor".to_owned(), false))?;
        read_tensor(&self.model, &weight.tensor, sink).map_err(|e| match e {
            ReadError::What(what) => fail(what, false),
            ReadError::Absent(what) => fail(what, true),
        })
    }

    /// The elements of a tensor as a literal.
    pub fn literal(&self, name: &str) -> Result<Literal, WeightError> {
        let mut bytes = Vec::new();
        self.read(name, &mut |chunk| {
            bytes.extend_from_slice(chunk);
            Ok(())
        })?;
        let fail = |what: String| WeightError {
            file: self.model.name(),
            name: name.to_owned(),
            what,
            absent: false,
        };
        let weight = self.get(name).ok_or_else(|| fail("the model has no such tensor".to_owned()))?;
        Literal::new(weight.tensor.dtype, weight.tensor.shape.clone(), bytes).map_err(|e| fail(e.to_string()))
    }

    /// Reads every tensor once and notes its hash. Tensors whose file is absent keep none; their names are returned.
    pub fn fill_hashes(&mut self) -> Result<Vec<Arc<str>>, WeightError> {
        let mut absent = Vec::new();
        let names: Vec<Arc<str>> = self.entries.keys().cloned().collect();
        for name in names {
            let mut hasher = blake3::Hasher::new();
            let read = self.read(&name, &mut |chunk| {
                hasher.update(chunk);
                Ok(())
            });
            match read {
                Ok(()) => {
                    if let Some(w) = self.entries.get_mut(&name) {
                        w.hash = Some(hasher.finalize());
                    }
                }
                Err(e) if e.absent => absent.push(name),
                Err(e) => return Err(e),
            }
        }
        Ok(absent)
    }
}

/// The elements of a tensor of the model as a literal; the caller has looked at its size.
pub fn literal(model: &ModelSource, tensor: &Tensor) -> Result<Literal, String> {
    if let (Source::Literal(l), None) = (&tensor.source, tensor.narrow) {
        return Ok(l.clone());
    }
    let mut bytes = Vec::with_capacity(tensor.bytes() as usize);
    let read = read_tensor(model, tensor, &mut |chunk| {
        bytes.extend_from_slice(chunk);
        Ok(())
    });
    match read {
        Ok(()) => Literal::new(tensor.dtype, tensor.shape.clone(), bytes).map_err(|e| e.to_string()),
        Err(ReadError::What(what) | ReadError::Absent(what)) => Err(what),
    }
}

/// Streams the elements of a tensor of the model; see [`Weights::read`].
pub fn stream(
    model: &ModelSource,
    tensor: &Tensor,
    sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), String> {
    read_tensor(model, tensor, sink).map_err(|e| match e {
        ReadError::What(what) | ReadError::Absent(what) => what,
    })
}

fn read_tensor(
    model: &ModelSource,
    tensor: &Tensor,
    sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), ReadError> {
    if let Some(narrow) = tensor.narrow {
        return widened(model, tensor, narrow, sink);
    }
    match &tensor.source {
        Source::Literal(l) => l.bytes().chunks(CHUNK).try_for_each(sink)?,
        Source::Fill(element) => {
            let size = element.len().max(1);
            let mut left = tensor.bytes();
            let chunk = element.repeat((CHUNK / size).min(tensor.elements() as usize));
            while left > 0 {
                let n = left.min(chunk.len() as u64) as usize;
                sink(&chunk[..n])?;
                left -= n as u64;
            }
        }
        Source::External { path, offset, len } => {
            let Some(file) = external::resolve(path, model.folder())? else {
                return Err(ReadError::Absent(format!("external file {path:?} does not exist")));
            };
            copy(&mut File::open(file)?, *offset, *len, tensor.dtype, sink)
                .map_err(|e| ReadError::What(format!("external file {path:?}: {e}")))?;
        }
        Source::Inline(cut) => {
            let mut file = model.open()?;
            match cut.field {
                DataField::Raw | DataField::Float | DataField::Double => {
                    copy(&mut file, cut.offset, cut.len, tensor.dtype, sink)?;
                }
                DataField::Int32 | DataField::Int64 | DataField::Uint64 => varints(file, *cut, tensor, sink)?,
            }
        }
    }
    Ok(())
}

/// Streams elements that are stored in another type than they have.
fn widened(
    model: &ModelSource,
    tensor: &Tensor,
    narrow: Narrow,
    sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), ReadError> {
    let bytes = narrow.stored_bytes(tensor.elements());
    let stored = Tensor { dtype: DType::U8, shape: vec![bytes], source: tensor.source.clone(), narrow: None };
    let (mut left, mut wide) = (tensor.bytes(), Vec::with_capacity(CHUNK));
    read_tensor(model, &stored, &mut |chunk| {
        // No byte becomes more than eight.
        for part in chunk.chunks(CHUNK / 8) {
            wide.clear();
            part.iter().for_each(|b| narrow.widen(*b, &mut wide));
            // The last byte may have a half that no element fills.
            wide.truncate(left.min(wide.len() as u64) as usize);
            left -= wide.len() as u64;
            sink(&wide)?;
        }
        Ok(())
    })
}

fn copy(
    file: &mut dyn ReadSeek,
    offset: u64,
    len: u64,
    dtype: DType,
    sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    let mut buffer = vec![0; len.min(CHUNK as u64) as usize];
    let mut left = len;
    while left > 0 {
        let n = left.min(CHUNK as u64) as usize;
        file.read_exact(&mut buffer[..n])?;
        normalize(dtype, &mut buffer[..n]);
        sink(&buffer[..n])?;
        left -= n as u64;
    }
    Ok(())
}

/// Decodes packed varints into elements and checks their number.
fn varints(
    mut file: Box<dyn ReadSeek>,
    cut: Cut,
    tensor: &Tensor,
    sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), ReadError> {
    file.seek(SeekFrom::Start(cut.offset))?;
    let mut input = BufReader::with_capacity(1 << 16, file.take(cut.len));
    let mut out = Vec::with_capacity(CHUNK);
    let (mut value, mut shift, mut count) = (0u64, 0u32, 0u64);
    let mut byte = [0];
    for _ in 0..cut.len {
        input.read_exact(&mut byte)?;
        if shift < 64 {
            value |= u64::from(byte[0] & 0x7f) << shift;
        }
        shift += 7;
        if byte[0] >= 0x80 {
            continue;
        }
        push_varint(tensor.dtype, value, &mut out);
        (value, shift, count) = (0, 0, count + 1);
        if count > tensor.elements() {
            break;
        }
        if out.len() >= CHUNK {
            sink(&out)?;
            out.clear();
        }
    }
    if count != tensor.elements() || shift != 0 {
        return Err(ReadError::What(format!(
            "its shape asks for {} elements, but {} {count} are given",
            tensor.elements(),
            if count > tensor.elements() { "at least" } else { "only" },
        )));
    }
    Ok(sink(&out)?)
}

/// The type of a weight.
impl Weight {
    /// Type of the tensor.
    pub fn ty(&self) -> TensorType {
        self.tensor.ty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::{tensor::tensor, wire};
    use onnx_protobuf as pb;
    use protobuf::Message;

    /// Writes one initializer into a model, loads it, and reads the elements back.
    fn round(t: pb::TensorProto) -> Result<Literal, String> {
        let mut m = pb::ModelProto::new();
        m.graph.mut_or_insert_default().initializer.push(t);
        let bytes: Arc<[u8]> = m.write_to_bytes().unwrap().into();
        let skeleton = wire::scan(io::Cursor::new(bytes.clone())).unwrap();
        let m = pb::ModelProto::parse_from_bytes(&skeleton.bytes).unwrap();
        let source = ModelSource::Bytes("m".to_owned(), bytes);
        let t = tensor(&m.graph.initializer[0], &skeleton.cuts, None)?;
        assert!(matches!(t.source, Source::Inline(_)));
        literal(&source, &t)
    }

    fn proto(data_type: i32, n: i64) -> pb::TensorProto {
        let mut t = pb::TensorProto::new();
        t.data_type = data_type;
        t.dims = vec![n];
        t
    }

    #[test]
    fn large_typed_fields_are_read_from_the_file() {
        let n = 100_000;
        let mut t = proto(7, n);
        t.int64_data = (0..n).map(|i| i * 1_000_003 - 5_000_000).collect();
        assert_eq!(round(t.clone()).unwrap().to_ints().unwrap(), t.int64_data);
        let mut t = proto(3, n);
        t.int32_data = (0..n as i32).map(|i| i % 256 - 128).collect();
        assert_eq!(round(t.clone()).unwrap().to_ints().unwrap()[200], 72);
        let mut t = proto(10, n);
        t.int32_data = vec![0x3c00; n as usize];
        assert!(round(t).unwrap().to_floats().iter().all(|x| *x == 1.0));
        let mut t = proto(1, n);
        t.float_data = (0..n).map(|i| i as f32).collect();
        assert_eq!(round(t).unwrap().to_floats()[77_777], 77_777.0);
        let mut t = proto(9, n);
        t.raw_data = vec![2; n as usize];
        assert!(round(t).unwrap().to_floats().iter().all(|x| *x == 1.0));
        let mut t = proto(12, n);
        t.uint64_data = vec![u64::from(u32::MAX); n as usize];
        assert_eq!(round(t).unwrap().to_ints().unwrap()[9], i64::from(u32::MAX));
    }

    #[test]
    fn wrong_counts_of_varints_are_errors() {
        let mut t = proto(7, 1000);
        t.int64_data = vec![-1; 999];
        assert!(round(t.clone()).unwrap_err().contains("only 999"));
        t.int64_data = vec![-1; 2000];
        assert!(round(t).unwrap_err().contains("at least 1001"));
    }

    #[test]
    fn filled_tensors_are_streamed_and_hashed() {
        let mut w = Weights::new(ModelSource::Bytes("m".to_owned(), Arc::from([])));
        let shape = vec![3, 100_000];
        let source = Source::Fill(1.5f32.to_le_bytes().to_vec());
        w.insert("w".into(), Tensor { dtype: DType::F32, shape, source, narrow: None });
        let l = w.literal("w").unwrap();
        assert_eq!((l.len(), l.to_floats()[299_999]), (300_000, 1.5));
        assert!(w.fill_hashes().unwrap().is_empty());
        assert_eq!(w.get("w").unwrap().hash, Some(blake3::hash(l.bytes())));
    }
}
