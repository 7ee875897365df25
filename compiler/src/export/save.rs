//! Trained weights in a copy of the model they came from.
//!
//! A [`Saver`] is prepared before training, so that what cannot be saved is said before hours are spent, and writes afterwards. Elements that
//! stand in the file as they stand in memory are replaced in place; others become `raw_data`; external files are copied under a name of the
//! new model's own and patched there. Types, names, metadata and everything else stay byte for byte. For inference, batch normalizations
//! lose `training_mode` and their extra outputs, dropouts their `training_mode` input; nothing else changes.

use super::{
    edit::{self, Aside, Edit, EditError, Insert, ReadState},
    sites::{self, Graph, NodeSite, Place, Sites, Span, TensorSite},
};
use crate::import::{ModelSource, Tensor, Weights, external};
use graph::{DType, quote_name};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Elements of at least this many bytes move out of a file that would get too large.
const MOVE_BYTES: u64 = 1 << 10;
/// Alignment of tensors that are added to an external file, in bytes.
const ALIGN: u64 = 64;
/// Largest message that protobuf readers accept, in bytes.
const MAX_MODEL: u64 = (1 << 31) - 1;

/// How a model is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveOptions {
    /// Switch training off in the saved model.
    pub inference: bool,
    /// A model file that would have more bytes than this gets its trained weights in a file beside it.
    pub inline_limit: u64,
}

impl Default for SaveOptions {
    /// As the file is, inline up to 1.5 GiB.
    fn default() -> SaveOptions {
        SaveOptions { inference: false, inline_limit: 3 << 29 }
    }
}

/// Why a model cannot be saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// Reading or writing a file failed.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The name cannot be used.
    #[error("{}: {what}", path.display())]
    Name {
        /// The file to be written.
        path: PathBuf,
        /// Why.
        what: String,
    },
    /// A tensor cannot be written back.
    #[error("{}: tensor {} cannot be saved: {what}", path.display(), quote_name(.name))]
    Tensor {
        /// The model.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// Why.
        what: String,
    },
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The model first, then files with external data.
    pub files: Vec<PathBuf>,
    /// Tensors with new elements.
    pub tensors: usize,
}

/// A file that is copied, as it was when the saver was prepared.
#[derive(Clone, Debug)]
struct Original {
    path: PathBuf,
    len: u64,
    modified: Option<SystemTime>,
}

impl Original {
    fn of(path: &Path) -> Result<Original, SaveError> {
        let m = fs::metadata(path).map_err(|error| SaveError::Io { path: path.to_owned(), error })?;
        Ok(Original { path: path.to_owned(), len: m.len(), modified: m.modified().ok() })
    }
}

#[derive(Clone, Debug)]
struct Output {
    original: Option<Original>,
    target: PathBuf,
    edits: Vec<Edit>,
}

impl Output {
    fn write(&self, state: ReadState<'_>) -> Result<Aside, SaveError> {
        if let Some(o) = &self.original
            && Original::of(&o.path)?.modified != o.modified
        {
            let error = io::Error::other("it changed while it was trained");
            return Err(SaveError::Io { path: o.path.clone(), error });
        }
        let (path, len) = self.original.as_ref().map_or((None, 0), |o| (Some(&*o.path), o.len));
        edit::copy(path, len, &self.edits, &self.target, state).map_err(|e| match e {
            EditError::Io(error) => SaveError::Io { path: self.target.clone(), error },
            EditError::State { name, what } => SaveError::Tensor { path: self.target.clone(), name, what },
        })
    }
}

/// Knows what to write where; see [`Saver::prepare`].
#[derive(Clone, Debug)]
pub struct Saver {
    model: Output,
    external: Vec<Output>,
    tensors: usize,
}

impl Saver {
    /// Prepares to write the tensors of these names into a copy of their model at `out`, whose folder exists.
    ///
    /// # Errors
    ///
    /// `out` or a file beside it would replace a file of the model; a tensor has no place of its own in the file, as in a function's body.
    pub fn prepare(
        weights: &Weights,
        names: &BTreeSet<String>,
        out: &Path,
        options: SaveOptions,
    ) -> Result<Saver, SaveError> {
        let ModelSource::File(model) = weights.model() else {
            let what = "the model is not a file".to_owned();
            return Err(SaveError::Name { path: out.to_owned(), what });
        };
        let original = Original::of(model)?;
        let fail = |error| SaveError::Io { path: model.clone(), error };
        let sites = sites::find(File::open(model).map_err(fail)?, original.len).map_err(fail)?;
        let mut script = Script::new(weights, &sites, model, out)?;
        script.plan(names, &options, false)?;
        let mut grown = script.model_len(original.len);
        if grown > options.inline_limit {
            script = Script::new(weights, &sites, model, out)?;
            script.plan(names, &options, true)?;
            grown = script.model_len(original.len);
        }
        if grown > MAX_MODEL {
            let what = format!("the model would have {grown} bytes, more than the format allows");
            return Err(SaveError::Name { path: out.to_owned(), what });
        }
        script.finish(original, names.len())
    }

    /// Files that will be written: the model first.
    pub fn files(&self) -> Vec<PathBuf> {
        std::iter::once(&self.model).chain(&self.external).map(|o| o.target.clone()).collect()
    }

    /// Writes all files aside, then puts them in their places. `state` gives the elements: tensor, first byte, where to put them (little
    /// endian, row-major). When anything fails, nothing new is left behind.
    pub fn write(&self, state: ReadState<'_>) -> Result<Saved, SaveError> {
        let mut asides = Vec::new();
        for o in self.external.iter().chain([&self.model]) {
            asides.push((o.write(state)?, &o.target));
        }
        // The model comes last: it never points at data that is not there.
        for (aside, path) in asides {
            aside.place().map_err(|error| SaveError::Io { path: path.clone(), error })?;
        }
        Ok(Saved { files: self.files(), tensors: self.tensors })
    }
}

/// The edits while they are collected.
struct Script<'a> {
    weights: &'a Weights,
    sites: &'a Sites,
    model: &'a Path,
    out: PathBuf,
    /// Edits of the model file with the message they are in.
    edits: Vec<(usize, Edit)>,
    /// Files with external data; the first may be new.
    files: Vec<Output>,
    /// The file of each external tensor.
    file_of: BTreeMap<usize, usize>,
    /// Bytes of each file so far.
    ends: Vec<u64>,
}

impl<'a> Script<'a> {
    fn new(weights: &'a Weights, sites: &'a Sites, model: &'a Path, out: &Path) -> Result<Self, SaveError> {
        let bad = |what: &str| SaveError::Name { path: out.to_owned(), what: what.to_owned() };
        let name = out.file_name().and_then(|n| n.to_str()).ok_or_else(|| bad("it is no file name"))?;
        let folder = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let real = |p: &Path| p.canonicalize().map_err(|error| SaveError::Io { path: p.to_owned(), error });
        let out_real = real(folder)?.join(name);
        if out_real.is_dir() {
            return Err(bad("it is a folder"));
        }
        let mut s = Script {
            weights,
            sites,
            model,
            out: out.to_owned(),
            edits: Vec::new(),
            files: Vec::new(),
            file_of: BTreeMap::new(),
            ends: Vec::new(),
        };
        let mut sources = vec![real(model)?];
        for (i, t) in sites.tensors.iter().enumerate().filter(|(_, t)| t.is_external()) {
            let Some(location) = t.entry("location") else { continue };
            let path =
                external::relative(location).and_then(|p| external::resolve(&p, weights.model().folder()));
            // What nobody reads may be absent or wrong, and stays so.
            let Ok(Some(path)) = path else { continue };
            let at = match sources[1..].iter().position(|p| *p == path) {
                Some(at) => at,
                None => {
                    let target = s.weights_file(s.files.len());
                    let original = Some(Original::of(&path)?);
                    s.ends.push(original.as_ref().map_or(0, |o| o.len));
                    s.files.push(Output { original, target, edits: Vec::new() });
                    sources.push(path);
                    sources.len() - 2
                }
            };
            s.file_of.insert(i, at);
        }
        let mut targets = vec![out_real.clone()];
        targets.extend(
            (0..s.files.len().max(1))
                .map(|i| out_real.with_file_name(s.weights_file(i).file_name().unwrap_or_default())),
        );
        for t in &targets {
            // Links to the original are followed.
            if sources.iter().any(|s| s == t || t.canonicalize().is_ok_and(|t| t == *s)) {
                return Err(SaveError::Name {
                    path: t.clone(),
                    what: "this would replace a file of the model itself: save under another name".to_owned(),
                });
            }
        }
        Ok(s)
    }

    /// Path of the external file with this index: `OUT.weights`, `OUT.2.weights`, ...
    fn weights_file(&self, index: usize) -> PathBuf {
        let name = self.out.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let stem = name.strip_suffix(".onnx").unwrap_or(name);
        let number = if index == 0 { String::new() } else { format!(".{}", index + 1) };
        self.out.with_file_name(format!("{stem}{number}.weights"))
    }

    /// Name of an external file as the model writes it.
    fn location(&self, index: usize) -> String {
        let name = self.weights_file(index);
        name.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Collects all edits; with `outside`, inline elements of trained tensors move to an external file.
    fn plan(
        &mut self,
        names: &BTreeSet<String>,
        options: &SaveOptions,
        outside: bool,
    ) -> Result<(), SaveError> {
        let sites = self.sites;
        let weights = self.weights;
        let in_bodies: HashMap<(u32, &str), &str> =
            weights.in_bodies().map(|(number, old, new)| ((number, old), new)).collect();
        // What is called so elsewhere has another name here.
        let named = |graph: Graph, name: &'a str| match graph {
            Graph::Main => Some(name),
            Graph::Body(number) => in_bodies.get(&(number, name)).copied(),
            Graph::Other => None,
        };
        let mut initializers: BTreeMap<&str, usize> = BTreeMap::new();
        for (i, t) in sites.tensors.iter().enumerate() {
            if let Place::Initializer(graph) = t.place {
                initializers.extend(named(graph, &t.name).map(|name| (name, i)));
            }
        }
        let constants: BTreeMap<&str, usize> = sites
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, n)| matches!(n.op.1.as_str(), "Constant" | "ConstantOfShape"))
            .filter_map(|(i, n)| Some((named(n.graph, n.outputs.first()?.1.as_str())?, i)))
            .collect();
        let mut in_attribute: BTreeMap<usize, usize> = BTreeMap::new();
        for (i, t) in sites.tensors.iter().enumerate() {
            if let Place::Attribute(node) = t.place {
                in_attribute.insert(node, i);
            }
        }
        let shared = self.shared(names, &initializers);
        let mut patched = BTreeSet::new();
        for name in names {
            let fail = |what: &str| SaveError::Tensor {
                path: self.model.to_owned(),
                name: name.clone(),
                what: what.to_owned(),
            };
            let tensor = &self.weights.get(name).ok_or_else(|| fail("the model has no such tensor"))?.tensor;
            if tensor.bytes() == 0 {
                continue;
            }
            let node = constants.get(name.as_str()).copied();
            let site = initializers.get(name.as_str()).copied();
            match site.or_else(|| in_attribute.get(&node?).copied()) {
                Some(i) if sites.tensors[i].is_external() => {
                    let file = self.file_of.get(&i).ok_or_else(|| fail("its external file is absent"))?;
                    patched.insert(i);
                    self.external(i, *file, name, tensor, shared.contains(&i));
                }
                Some(i) => self.inline(&sites.tensors[i], name, tensor, outside),
                None => {
                    let node = node.ok_or_else(|| {
                        fail("it stands in a function, where no elements are replaced; keep it as it is with --freeze, or move it to the main graph")
                    })?;
                    self.constant(&sites.nodes[node], name, tensor, outside);
                }
            }
        }
        for (i, file) in self.file_of.clone() {
            if !patched.contains(&i) {
                self.entries(&sites.tensors[i], file, None, false);
            }
        }
        if options.inference {
            for node in &sites.nodes {
                self.switch_off(node)?;
            }
        }
        Ok(())
    }

    /// External tensors whose bytes belong to another tensor, too.
    fn shared(&self, names: &BTreeSet<String>, initializers: &BTreeMap<&str, usize>) -> BTreeSet<usize> {
        let mut known: BTreeMap<usize, u64> = BTreeMap::new();
        for n in names {
            if let (Some(i), Some(w)) = (initializers.get(n.as_str()), self.weights.get(n)) {
                known.insert(*i, w.tensor.bytes());
            }
        }
        let mut regions: Vec<(usize, u64, u64, usize)> = Vec::new();
        for (&i, &file) in &self.file_of {
            let t = &self.sites.tensors[i];
            let begin = offset(t);
            let given = t.entry("length").and_then(|l| l.trim().parse::<u64>().ok());
            let len = known.get(&i).copied().or(given);
            let end = len.map_or(u64::MAX, |l| begin.saturating_add(l));
            if end > begin {
                regions.push((file, begin, end, i));
            }
        }
        regions.sort_unstable();
        let mut out = BTreeSet::new();
        let mut last: Option<(usize, u64, u64, usize)> = None;
        for r in regions {
            if let Some(l) = last.filter(|l| l.0 == r.0 && r.1 < l.2) {
                out.extend([l.3, r.3]);
                if l.2 >= r.2 {
                    continue;
                }
            }
            last = Some(r);
        }
        out
    }

    fn edit(&mut self, message: usize, at: u64, remove: u64, insert: Insert) {
        self.edits.push((message, Edit { at, remove, insert }));
    }

    fn drop_field(&mut self, message: usize, span: Span) {
        self.edit(message, span.tag_at, span.end - span.tag_at, Insert::Bytes(Vec::new()));
    }

    /// Adds a tensor to the end of an external file; returns the place.
    fn append(&mut self, file: usize, name: &str, bytes: u64) -> u64 {
        if self.files.is_empty() {
            self.files.push(Output { original: None, target: self.weights_file(0), edits: Vec::new() });
            self.ends.push(0);
        }
        let (begin, end) = (self.ends[file].next_multiple_of(ALIGN), self.ends[file]);
        let f = &mut self.files[file];
        let at = f.original.as_ref().map_or(0, |o| o.len);
        f.edits.push(Edit { at, remove: 0, insert: Insert::Bytes(vec![0; (begin - end) as usize]) });
        f.edits.push(Edit { at, remove: 0, insert: Insert::State { name: name.to_owned(), len: bytes } });
        self.ends[file] = begin + bytes;
        begin
    }

    /// A trained tensor in an external file: replaced there, or at the file's end if its bytes are not its own.
    fn external(&mut self, site: usize, file: usize, name: &str, tensor: &Tensor, shared: bool) {
        let t = &self.sites.tensors[site];
        let len = tensor.bytes();
        if shared {
            let begin = self.append(file, name, len);
            self.entries(t, file, Some((begin, len)), true);
            return;
        }
        let insert = Insert::State { name: name.to_owned(), len };
        self.files[file].edits.push(Edit { at: offset(t), remove: len, insert });
        self.entries(t, file, None, true);
    }

    /// Points the entries of an external tensor at the copied file, and at another place in it.
    fn entries(&mut self, t: &TensorSite, file: usize, place: Option<(u64, u64)>, patched: bool) {
        let location = entry("location", &self.location(file));
        for (span, key, _) in &t.entries {
            match key.as_str() {
                "location" => {
                    let insert = Insert::Bytes(location.clone());
                    self.edit(t.message, span.tag_at, span.end - span.tag_at, insert);
                }
                "offset" | "length" if place.is_some() => self.drop_field(t.message, *span),
                "checksum" if patched => self.drop_field(t.message, *span),
                _ => {}
            }
        }
        if let Some((begin, len)) = place {
            let mut bytes = entry("offset", &begin.to_string());
            bytes.extend(entry("length", &len.to_string()));
            let end = self.sites.messages[t.message].span.end;
            self.edit(t.message, end, 0, Insert::Bytes(bytes));
        }
    }

    /// A trained tensor in the model file.
    fn inline(&mut self, t: &TensorSite, name: &str, tensor: &Tensor, outside: bool) {
        let moves = outside && tensor.bytes() >= MOVE_BYTES;
        if let ([f], false) = (t.data.as_slice(), moves) {
            let as_in_memory = match f.number {
                9 => true,
                4 => tensor.dtype == DType::F32,
                10 => tensor.dtype == DType::F64,
                _ => false,
            };
            if as_in_memory && f.wire == 2 && f.end - f.begin == tensor.bytes() {
                let insert = Insert::State { name: name.to_owned(), len: tensor.bytes() };
                self.edit(t.message, f.begin, f.end - f.begin, insert);
                return;
            }
        }
        for f in t.data.iter().chain(&t.location) {
            self.drop_field(t.message, *f);
        }
        for (span, _, _) in &t.entries {
            self.drop_field(t.message, *span);
        }
        let end = self.sites.messages[t.message].span.end;
        for insert in self.elements(name, tensor, moves) {
            self.edit(t.message, end, 0, insert);
        }
    }

    /// The fields of a tensor that hold its elements or say where they are.
    fn elements(&mut self, name: &str, tensor: &Tensor, moves: bool) -> Vec<Insert> {
        let len = tensor.bytes();
        if !moves {
            let mut header = vec![0x4a];
            header.extend(varint(len));
            return vec![Insert::Bytes(header), Insert::State { name: name.to_owned(), len }];
        }
        let begin = self.append(0, name, len);
        let mut bytes = entry("location", &self.location(0));
        bytes.extend(entry("offset", &begin.to_string()));
        bytes.extend(entry("length", &len.to_string()));
        // data_location: EXTERNAL
        bytes.extend([0x70, 1]);
        vec![Insert::Bytes(bytes)]
    }

    /// A node that makes a trained tensor without holding its elements becomes a Constant that does.
    fn constant(&mut self, node: &NodeSite, name: &str, tensor: &Tensor, outside: bool) {
        let mut head = Vec::new();
        for d in &tensor.shape {
            head.push(0x08);
            head.extend(varint(*d));
        }
        head.push(0x10);
        head.extend(varint(ops::export::code(tensor.dtype) as u64));
        let elements = self.elements(name, tensor, outside && tensor.bytes() >= MOVE_BYTES);
        let inserted: u64 = elements.iter().map(Insert::len).sum();
        let tensor_len = head.len() as u64 + inserted;
        // name: "value", type: TENSOR, t: the tensor
        let mut prefix = field(1, b"value");
        prefix.extend([0xa0, 0x01, 0x04, 0x2a]);
        prefix.extend(varint(tensor_len));
        let mut bytes = vec![0x2a];
        bytes.extend(varint(prefix.len() as u64 + tensor_len));
        bytes.extend(prefix);
        bytes.extend(head);
        let (m, op) = (node.message, node.op.0);
        for f in node.inputs.iter().chain(node.attributes.iter().map(|(f, _)| f)) {
            self.drop_field(m, *f);
        }
        self.edit(m, op.tag_at, op.end - op.tag_at, Insert::Bytes(field(4, b"Constant")));
        let end = self.sites.messages[m].span.end;
        for insert in std::iter::once(Insert::Bytes(bytes)).chain(elements) {
            self.edit(m, end, 0, insert);
        }
    }

    /// Switches training off in a node.
    fn switch_off(&mut self, node: &NodeSite) -> Result<(), SaveError> {
        let m = node.message;
        match node.op.1.as_str() {
            "Dropout" => node.inputs.iter().skip(2).for_each(|f| self.drop_field(m, *f)),
            "BatchNormalization" => {
                for (f, _) in node.attributes.iter().filter(|(_, n)| n == "training_mode") {
                    self.drop_field(m, *f);
                }
                let span = self.sites.messages[m].span;
                for (i, (f, name)) in node.outputs.iter().enumerate().skip(1) {
                    self.drop_field(m, *f);
                    if name.is_empty() || !self.sites.read.contains(name) {
                        continue;
                    }
                    // Without training the statistics that come out are those that went in.
                    let Some(input) = node.input_names.get(i + 2).filter(|_| i <= 2) else {
                        let what =
                            "it is a batch normalization's statistic of one batch, which inference has not"
                                .to_owned();
                        return Err(SaveError::Tensor {
                            path: self.model.to_owned(),
                            name: name.clone(),
                            what,
                        });
                    };
                    let mut identity = field(1, input.as_bytes());
                    identity.extend(field(2, name.as_bytes()));
                    identity.extend(field(4, b"Identity"));
                    let parent = self.sites.messages[m].parent.unwrap_or(0);
                    self.edit(parent, span.end, 0, Insert::Bytes(field(span.number, &identity)));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The edits of the lengths of all messages that grow or shrink.
    fn lengths(&self) -> (Vec<Edit>, i64) {
        let mut deltas = vec![0i64; self.sites.messages.len()];
        for (m, e) in &self.edits {
            deltas[*m] += e.delta();
        }
        let mut out = Vec::new();
        for (i, m) in self.sites.messages.iter().enumerate().rev() {
            let (Some(parent), delta) = (m.parent, deltas[i]) else { continue };
            if delta != 0 {
                let (at, remove) = (m.span.length_at, m.span.begin - m.span.length_at);
                let len = (m.span.end - m.span.begin).saturating_add_signed(delta);
                let edit = Edit { at, remove, insert: Insert::Bytes(varint(len)) };
                deltas[parent] += delta + edit.delta();
                out.push(edit);
            }
        }
        (out, deltas.first().copied().unwrap_or(0))
    }

    fn model_len(&self, original: u64) -> u64 {
        original.saturating_add_signed(self.lengths().1)
    }

    fn finish(mut self, original: Original, tensors: usize) -> Result<Saver, SaveError> {
        let (lengths, _) = self.lengths();
        let mut edits: Vec<Edit> = self.edits.drain(..).map(|(_, e)| e).chain(lengths).collect();
        sort(&mut edits);
        self.files.iter_mut().for_each(|f| sort(&mut f.edits));
        let model = Output { original: Some(original), target: self.out, edits };
        Ok(Saver { model, external: self.files, tensors })
    }
}

/// By position; what is added at the end of a message comes before what replaces the bytes behind it. Equal ones keep their order, in which
/// inner messages come before outer ones.
fn sort(edits: &mut [Edit]) {
    edits.sort_by_key(|e| (e.at, e.remove > 0));
}

/// First byte of an external tensor; the import has checked that it is a number.
fn offset(t: &TensorSite) -> u64 {
    t.entry("offset").and_then(|o| o.trim().parse().ok()).unwrap_or(0)
}

fn varint(mut n: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(10);
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
    out
}

/// A length-delimited field.
fn field(number: u64, value: &[u8]) -> Vec<u8> {
    let mut out = varint(number << 3 | 2);
    out.extend(varint(value.len() as u64));
    out.extend(value);
    out
}

/// An `external_data` entry of a tensor.
fn entry(key: &str, value: &str) -> Vec<u8> {
    let mut pair = field(1, key.as_bytes());
    pair.extend(field(2, value.as_bytes()));
    field(13, &pair)
}
