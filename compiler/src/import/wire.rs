//! A first look at a model file's bytes, before protobuf parses them.
//!
//! The protobuf parser follows nested unknown groups with recursion and copies every tensor it meets. So the file is walked first, with a
//! stack of bounded depth and a buffer of fixed size: what is malformed or would take too much memory is refused, what the compiler never
//! reads is left out, and the elements of large tensors are left where they are. What remains, the *skeleton*, is a valid and small
//! `ModelProto`; each tensor whose elements were left out carries the number of its [`Cut`] in the field `segment`, which no model may use.

use super::limits;
use onnx_protobuf as pb;
use std::io::{self, BufReader, Read, Seek, SeekFrom};

/// Deepest nesting of messages.
pub const MAX_DEPTH: usize = 64;
/// Tensor elements of at least this many bytes stay in the file.
pub const CUT_BYTES: u64 = 256;
/// Other fields that are left out are kept if they are smaller than this, so that the list of edits stays short.
const DROP_BYTES: u64 = 16;
/// One more than the largest number of a known field.
const FIELDS: usize = 26;

/// Why the bytes are refused, and where.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Reading failed.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A field ends after the message that holds it, or after the file.
    #[error(
        "truncated or not an ONNX model: the field at byte {at} needs {needed} bytes, but its message ends after {left}"
    )]
    Truncated {
        /// Where the field's value begins.
        at: u64,
        /// Its length.
        needed: u64,
        /// What is left of the message.
        left: u64,
    },
    /// Bytes that are no protobuf.
    #[error("not an ONNX model: {what} at byte {at}")]
    Malformed {
        /// Where.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// Messages nest too deeply.
    #[error("messages nest more than {MAX_DEPTH} deep at byte {at}")]
    TooDeep {
        /// Where.
        at: u64,
    },
    /// The parsed form would not fit the memory an import may take.
    #[error(
        "refused: its messages would take over {limit} bytes of memory, more than a file of {file} bytes may; {}",
        limits::WAY_OUT
    )]
    TooMuch {
        /// Bytes of the file.
        file: u64,
        /// The limit.
        limit: u64,
    },
}

/// How the elements of a tensor are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataField {
    /// `raw_data`: little-endian elements.
    Raw,
    /// `float_data`: packed 32-bit floats.
    Float,
    /// `int32_data`: packed varints, for all types of up to 32 bits.
    Int32,
    /// `int64_data`: packed varints.
    Int64,
    /// `double_data`: packed 64-bit floats.
    Double,
    /// `uint64_data`: packed varints, for unsigned types.
    Uint64,
}

/// The elements of a tensor that were left in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// How they are written.
    pub field: DataField,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes in the file.
    pub len: u64,
}

/// What is left of a model file.
#[derive(Debug)]
pub struct Skeleton {
    /// A `ModelProto` without large tensors.
    pub bytes: Vec<u8>,
    /// What was left out, by the number in `segment.begin` less one.
    pub cuts: Vec<Cut>,
    /// Bytes of the file.
    pub file: u64,
    /// Bytes that the parsed skeleton and these lists take, at most.
    pub estimate: u64,
}

/// The messages that are descended into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Model,
    Opset,
    Graph,
    Node,
    Attribute,
    Tensor,
    Sparse,
    ValueInfo,
    Type,
    TypeTensor,
    TypeElem,
    Shape,
    Dim,
    Function,
    Entry,
}

/// What a length-delimited field is.
enum Field {
    Message(Kind),
    /// A text or bytes.
    Text,
    /// Packed numbers of at most this many bytes in memory for one in the file.
    Packed(u64),
    /// Elements of a tensor, with their growth when parsed.
    Data(DataField, u64),
    /// Not read by the compiler.
    Drop,
    /// Reserved for the skeleton.
    Segment,
}

fn field(kind: Kind, number: u64) -> Field {
    use Field::{Data, Drop, Message, Packed, Segment, Text};
    match (kind, number) {
        (Kind::Model, 7) => Message(Kind::Graph),
        (Kind::Model, 8) | (Kind::Function, 9) => Message(Kind::Opset),
        (Kind::Model, 25) => Message(Kind::Function),
        (Kind::Model, 2..=4) => Text,
        (Kind::Opset, 1) => Text,
        (Kind::Graph, 1) | (Kind::Function, 7) => Message(Kind::Node),
        (Kind::Graph, 5) => Message(Kind::Tensor),
        (Kind::Graph, 15) => Message(Kind::Sparse),
        (Kind::Graph, 11 | 12) => Message(Kind::ValueInfo),
        (Kind::Graph, 2) => Text,
        (Kind::Node, 1..=4 | 7 | 8) => Text,
        (Kind::Node, 5) | (Kind::Function, 11) => Message(Kind::Attribute),
        (Kind::Attribute, 1 | 4 | 9 | 21) => Text,
        (Kind::Attribute, 5 | 10) => Message(Kind::Tensor),
        (Kind::Attribute, 6 | 11) => Message(Kind::Graph),
        (Kind::Attribute, 22 | 23) => Message(Kind::Sparse),
        (Kind::Attribute, 14 | 15) => Message(Kind::Type),
        (Kind::Attribute, 7) => Packed(1),
        (Kind::Attribute, 8) => Packed(8),
        (Kind::Tensor, 1) => Packed(8),
        (Kind::Tensor, 3) => Segment,
        (Kind::Tensor, 4) => Data(DataField::Float, 1),
        (Kind::Tensor, 5) => Data(DataField::Int32, 4),
        (Kind::Tensor, 7) => Data(DataField::Int64, 8),
        (Kind::Tensor, 9) => Data(DataField::Raw, 1),
        (Kind::Tensor, 10) => Data(DataField::Double, 1),
        (Kind::Tensor, 11) => Data(DataField::Uint64, 8),
        (Kind::Tensor, 6 | 8) => Text,
        (Kind::Tensor, 13) => Message(Kind::Entry),
        (Kind::Sparse, 1 | 2) => Message(Kind::Tensor),
        (Kind::Sparse, 3) => Packed(8),
        (Kind::ValueInfo, 1) => Text,
        (Kind::ValueInfo, 2) => Message(Kind::Type),
        (Kind::Type, 1 | 8) => Message(Kind::TypeTensor),
        (Kind::Type, 4 | 5 | 9) => Message(Kind::TypeElem),
        (Kind::TypeElem, 1 | 2) => Message(Kind::Type),
        (Kind::TypeTensor, 2) => Message(Kind::Shape),
        (Kind::Shape, 1) => Message(Kind::Dim),
        (Kind::Dim, 2) => Text,
        (Kind::Function, 1 | 4..=6 | 10 | 13) => Text,
        (Kind::Entry, 1 | 2) => Text,
        _ => Drop,
    }
}

/// Bytes that a message takes once parsed, without what it points at.
fn parsed_size(kind: Kind) -> u64 {
    let size = match kind {
        Kind::Model => size_of::<pb::ModelProto>(),
        Kind::Opset => size_of::<pb::OperatorSetIdProto>(),
        Kind::Graph => size_of::<pb::GraphProto>(),
        Kind::Node => size_of::<pb::NodeProto>(),
        Kind::Attribute => size_of::<pb::AttributeProto>(),
        Kind::Tensor => size_of::<pb::TensorProto>(),
        Kind::Sparse => size_of::<pb::SparseTensorProto>(),
        Kind::ValueInfo => size_of::<pb::ValueInfoProto>(),
        Kind::Type | Kind::TypeTensor | Kind::TypeElem => size_of::<pb::TypeProto>(),
        Kind::Shape => size_of::<pb::TensorShapeProto>(),
        Kind::Dim => size_of::<pb::tensor_shape_proto::Dimension>(),
        Kind::Function => size_of::<pb::FunctionProto>(),
        Kind::Entry => size_of::<pb::StringStringEntryProto>(),
    };
    size as u64
}

#[derive(Clone, Copy)]
enum Insert {
    Nothing,
    Length(u64),
    Marker(u32),
}

struct Edit {
    at: u64,
    remove: u64,
    insert: Insert,
}

struct Frame {
    kind: Kind,
    begin: u64,
    end: u64,
    length_at: u64,
    /// Bytes of the message in the skeleton less those in the file.
    delta: i64,
    /// Element fields of a tensor: how many, and the last one with the position of its tag.
    data: u32,
    last: Option<(Cut, u64)>,
    /// Bytes that the elements would take if they were parsed.
    pending: u64,
    /// Entries so far of each repeated field.
    counts: [u32; FIELDS],
}

impl Frame {
    /// Bytes by which the list of field `number` grows for one more entry: lists hold at least four and double when full.
    fn grow(&mut self, number: u64, size: u64) -> u64 {
        let Some(n) = self.counts.get_mut(number as usize) else { return size };
        *n += 1;
        match *n - 1 {
            0 => 4 * size,
            full if full >= 4 && full.is_power_of_two() => u64::from(full) * size,
            _ => 0,
        }
    }

    fn new(kind: Kind, length_at: u64, begin: u64, end: u64) -> Frame {
        Frame { kind, begin, end, length_at, delta: 0, data: 0, last: None, pending: 0, counts: [0; FIELDS] }
    }
}

struct Scanner<R> {
    input: BufReader<R>,
    pos: u64,
    file: u64,
    estimate: u64,
    edits: Vec<Edit>,
    cuts: Vec<Cut>,
}

/// Walks the file and returns what is left of it. The parsed form of the skeleton and the lists made
/// here take at most twice the file's size and 40 MiB.
pub fn scan<R: Read + Seek>(mut input: R) -> Result<Skeleton, WireError> {
    let file = input.seek(SeekFrom::End(0))?;
    input.rewind()?;
    let mut scanner = Scanner {
        input: BufReader::with_capacity(1 << 16, input),
        pos: 0,
        file,
        estimate: 0,
        edits: Vec::new(),
        cuts: Vec::new(),
    };
    scanner.walk()?;
    scanner.skeleton()
}

impl<R: Read + Seek> Scanner<R> {
    fn walk(&mut self) -> Result<(), WireError> {
        let mut stack = vec![Frame::new(Kind::Model, 0, 0, self.file)];
        while let Some(top) = stack.last() {
            if self.pos == top.end {
                let delta = match stack.pop() {
                    Some(frame) => self.leave(&frame)?,
                    None => 0,
                };
                if let Some(parent) = stack.last_mut() {
                    parent.delta += delta;
                }
                continue;
            }
            let (end, tag_at) = (top.end, self.pos);
            let tag = self.varint(end)?;
            let number = tag >> 3;
            if number == 0 || tag > u64::from(u32::MAX) {
                return Err(WireError::Malformed { at: tag_at, what: "an impossible field number" });
            }
            match tag & 7 {
                0 => {
                    self.varint(end)?;
                    self.charge(16)?;
                }
                1 => self.scalar(8, end)?,
                5 => self.scalar(4, end)?,
                2 => {
                    if let Some(frame) = self.delimited(&mut stack, number, tag_at)? {
                        if stack.len() > MAX_DEPTH {
                            return Err(WireError::TooDeep { at: tag_at });
                        }
                        stack.push(frame);
                    }
                }
                3 | 4 => return Err(WireError::Malformed { at: tag_at, what: "a group" }),
                _ => return Err(WireError::Malformed { at: tag_at, what: "an impossible wire type" }),
            }
        }
        Ok(())
    }

    /// A length-delimited field; returns the frame of a message to descend into.
    fn delimited(
        &mut self,
        stack: &mut [Frame],
        number: u64,
        tag_at: u64,
    ) -> Result<Option<Frame>, WireError> {
        let Some(top) = stack.last_mut() else { return Ok(None) };
        let length_at = self.pos;
        let len = self.varint(top.end)?;
        let begin = self.pos;
        if len > top.end - begin {
            return Err(WireError::Truncated { at: begin, needed: len, left: top.end - begin });
        }
        match field(top.kind, number) {
            Field::Message(kind) => {
                let bytes = top.grow(number, parsed_size(kind));
                self.charge(bytes)?;
                return Ok(Some(Frame::new(kind, length_at, begin, begin + len)));
            }
            Field::Text => {
                let bytes = top.grow(number, 24) + 32 + len;
                self.charge(bytes)?;
            }
            Field::Packed(growth) => self.charge(32 + len.saturating_mul(growth))?,
            Field::Data(field, growth) => {
                top.data += 1;
                if len < CUT_BYTES {
                    self.charge(32 + len * growth)?;
                    top.last = None;
                } else {
                    top.pending = top.pending.saturating_add(len.saturating_mul(growth));
                    top.last = Some((Cut { field, offset: begin, len }, tag_at));
                }
            }
            Field::Segment => {
                return Err(WireError::Malformed {
                    at: tag_at,
                    what: "a tensor in segments (not supported)",
                });
            }
            Field::Drop if begin + len - tag_at < DROP_BYTES => self.charge(64 + len)?,
            Field::Drop => {
                top.delta -= (begin + len - tag_at) as i64;
                match self.edits.last_mut() {
                    Some(Edit { at, remove, insert: Insert::Nothing }) if *at + *remove == tag_at => {
                        *remove += begin + len - tag_at;
                    }
                    _ => {
                        let remove = begin + len - tag_at;
                        self.edit(Edit { at: tag_at, remove, insert: Insert::Nothing })?;
                    }
                }
            }
        }
        self.skip(len)?;
        Ok(None)
    }

    /// Ends a message: decides about a tensor's elements, notes the new length. Returns the change of the parent's size.
    fn leave(&mut self, frame: &Frame) -> Result<i64, WireError> {
        let mut delta = frame.delta;
        if let (1, Some((cut, tag_at))) = (frame.data, frame.last) {
            self.cuts.push(cut);
            self.charge(2 * size_of::<Cut>() as u64)?;
            let remove = cut.offset + cut.len - tag_at;
            let insert = Insert::Marker(self.cuts.len() as u32);
            delta += insert.bytes().len() as i64 - remove as i64;
            self.edit(Edit { at: tag_at, remove, insert })?;
        } else {
            self.charge(frame.pending)?;
        }
        if delta == 0 || frame.kind == Kind::Model {
            return Ok(delta);
        }
        let remove = frame.begin - frame.length_at;
        let insert = Insert::Length((frame.end - frame.begin).saturating_add_signed(delta));
        delta += insert.bytes().len() as i64 - remove as i64;
        self.edit(Edit { at: frame.length_at, remove, insert })?;
        Ok(delta)
    }

    fn edit(&mut self, edit: Edit) -> Result<(), WireError> {
        self.edits.push(edit);
        self.charge(2 * size_of::<Edit>() as u64)
    }

    fn skeleton(mut self) -> Result<Skeleton, WireError> {
        self.edits.sort_by_key(|e| e.at);
        self.input.rewind()?;
        let mut bytes = Vec::new();
        let mut pos = 0;
        for e in &self.edits {
            copy(&mut self.input, &mut bytes, e.at - pos)?;
            self.input.seek_relative(e.remove as i64)?;
            bytes.extend_from_slice(&e.insert.bytes());
            pos = e.at + e.remove;
        }
        copy(&mut self.input, &mut bytes, self.file - pos)?;
        Ok(Skeleton { bytes, cuts: self.cuts, file: self.file, estimate: self.estimate })
    }

    fn charge(&mut self, bytes: u64) -> Result<(), WireError> {
        self.estimate = self.estimate.saturating_add(bytes);
        let limit = limits::parse_limit(self.file);
        if self.estimate > limit {
            return Err(WireError::TooMuch { file: self.file, limit });
        }
        Ok(())
    }

    fn scalar(&mut self, bytes: u64, end: u64) -> Result<(), WireError> {
        if bytes > end - self.pos {
            return Err(WireError::Truncated { at: self.pos, needed: bytes, left: end - self.pos });
        }
        self.charge(16)?;
        self.skip(bytes)
    }

    fn skip(&mut self, bytes: u64) -> Result<(), WireError> {
        self.input.seek_relative(bytes as i64)?;
        self.pos += bytes;
        Ok(())
    }

    fn varint(&mut self, end: u64) -> Result<u64, WireError> {
        let (begin, mut value) = (self.pos, 0u64);
        for i in 0..10 {
            if self.pos == end {
                return Err(WireError::Truncated { at: begin, needed: i + 1, left: end - begin });
            }
            let mut byte = [0];
            self.input.read_exact(&mut byte)?;
            self.pos += 1;
            value |= u64::from(byte[0] & 0x7f) << (7 * i);
            if byte[0] < 0x80 {
                return Ok(value);
            }
        }
        Err(WireError::Malformed { at: begin, what: "a number of more than 64 bits" })
    }
}

impl Insert {
    fn bytes(self) -> Vec<u8> {
        match self {
            Insert::Nothing => Vec::new(),
            Insert::Length(n) => encode_varint(n),
            Insert::Marker(n) => {
                // segment { begin: n }
                let mut segment = vec![0x08];
                segment.extend(encode_varint(u64::from(n)));
                let mut out = vec![0x1a, segment.len() as u8];
                out.extend(segment);
                out
            }
        }
    }
}

fn encode_varint(mut n: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(10);
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
    out
}

fn copy(input: &mut impl Read, out: &mut Vec<u8>, bytes: u64) -> Result<(), WireError> {
    if input.take(bytes).read_to_end(out)? as u64 != bytes {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file changed while it was read").into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use protobuf::Message;
    use std::io::Cursor;

    fn model(elements: usize) -> pb::ModelProto {
        let mut m = pb::ModelProto::new();
        m.ir_version = 8;
        m.doc_string = "a text that the compiler does not read".to_owned();
        let g = m.graph.mut_or_insert_default();
        for (i, name) in ["a", "b"].into_iter().enumerate() {
            let mut t = pb::TensorProto::new();
            t.name = name.to_owned();
            t.dims = vec![elements as i64];
            t.data_type = 1;
            t.raw_data = vec![i as u8 + 1; 4 * elements];
            g.initializer.push(t);
        }
        m
    }

    #[test]
    fn large_elements_stay_in_the_file() {
        let bytes = model(100).write_to_bytes().unwrap();
        let s = scan(Cursor::new(&bytes)).unwrap();
        let m = pb::ModelProto::parse_from_bytes(&s.bytes).unwrap();
        assert_eq!((m.ir_version, m.doc_string.as_str()), (8, ""));
        for (t, fill) in m.graph.initializer.iter().zip([1, 2]) {
            assert!(t.raw_data.is_empty());
            let cut = s.cuts[t.segment.begin as usize - 1];
            let range = cut.offset as usize..(cut.offset + cut.len) as usize;
            assert_eq!(bytes[range], vec![fill; 400]);
        }
    }

    #[test]
    fn small_models_pass_as_they_are() {
        let mut m = model(10);
        m.doc_string.clear();
        let bytes = m.write_to_bytes().unwrap();
        let s = scan(Cursor::new(&bytes)).unwrap();
        assert_eq!((s.bytes, s.cuts.len()), (bytes, 0));
    }

    #[test]
    fn six_megabytes_of_nested_groups_are_refused() {
        // Field 100 begins a group, three million times, at the top and inside of a graph.
        let group = [0xa3u8, 0x06].repeat(3 << 20);
        assert!(matches!(scan(Cursor::new(&group)), Err(WireError::Malformed { what: "a group", .. })));
        let mut inside = vec![0x3a];
        inside.extend(encode_varint(group.len() as u64));
        inside.extend(&group);
        assert!(matches!(scan(Cursor::new(&inside)), Err(WireError::Malformed { what: "a group", .. })));
    }

    #[test]
    fn graphs_in_graphs_are_refused_beyond_the_depth() {
        let nest = |levels: usize| {
            let mut graph = pb::GraphProto::new();
            for _ in 0..levels {
                let mut a = pb::AttributeProto::new();
                a.g = Some(graph).into();
                let mut n = pb::NodeProto::new();
                n.attribute.push(a);
                graph = pb::GraphProto::new();
                graph.node.push(n);
            }
            let mut m = pb::ModelProto::new();
            m.graph = Some(graph).into();
            m.write_to_bytes().unwrap()
        };
        assert!(scan(Cursor::new(nest(20))).is_ok());
        assert!(matches!(scan(Cursor::new(nest(22))), Err(WireError::TooDeep { .. })));
    }

    #[test]
    fn many_empty_messages_are_refused() {
        // A graph of four million empty nodes takes 8 MB in the file and over a gigabyte in memory.
        let nodes = [0x0au8, 0].repeat(4 << 20);
        let mut bytes = vec![0x3a];
        bytes.extend(encode_varint(nodes.len() as u64));
        bytes.extend(nodes);
        assert!(matches!(scan(Cursor::new(&bytes)), Err(WireError::TooMuch { .. })));
    }
}
