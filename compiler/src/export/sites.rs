//! Where in a model file the tensors and the nodes are that saving may have to change.
//!
//! The import works on a skeleton and forgets positions. Here the same file, which the import has accepted, is walked once more, and the
//! position of each tensor's elements, of the entries that point at external data, and of some nodes' parts is noted, with the chain of
//! messages around them: when a part grows, the lengths of all of them change.

use crate::import::MAX_DEPTH;
use std::{
    collections::HashSet,
    io::{self, BufReader, Read, Seek},
};

/// A field's bytes in the file: tag, then for texts and messages the length, then the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Number of the field.
    pub number: u64,
    /// Wire type.
    pub wire: u64,
    /// First byte of the tag.
    pub tag_at: u64,
    /// First byte after the tag.
    pub length_at: u64,
    /// First byte of the value.
    pub begin: u64,
    /// First byte after the value.
    pub end: u64,
    /// The number, if the field is a varint.
    pub value: u64,
}

/// A message and the one around it.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Index of the message around it; `None` for the model.
    pub parent: Option<usize>,
    /// Where it lies.
    pub span: Span,
}

/// What a node or an initializer stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Graph {
    /// The main graph.
    Main,
    /// A body of control flow, counted as they begin in the file.
    Body(u32),
    /// A function, what is nested in it, a list of graphs, training information.
    Other,
}

/// What a tensor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// An initializer of the main graph, or of the body of control flow with this number.
    Initializer(Graph),
    /// The attribute `value` of the node with this index in [`Sites::nodes`].
    Attribute(usize),
    /// Anything else.
    Other,
}

/// A tensor of the file.
#[derive(Clone, Debug)]
pub struct TensorSite {
    /// Index of its message.
    pub message: usize,
    /// What it belongs to.
    pub place: Place,
    /// Its name.
    pub name: String,
    /// Fields with elements.
    pub data: Vec<Span>,
    /// External data entries.
    pub entries: Vec<(Span, String, String)>,
    /// Where `data_location` stands, and whether it says external.
    pub location: Vec<Span>,
}

impl TensorSite {
    /// Whether its elements are in another file.
    pub fn is_external(&self) -> bool {
        self.location.last().is_some_and(|s| s.value == 1)
    }

    /// The external data entry of this key.
    pub fn entry(&self, key: &str) -> Option<&str> {
        self.entries.iter().find(|(_, k, _)| k == key).map(|(_, _, v)| v.as_str())
    }
}

/// A node of an operator that saving may change.
#[derive(Clone, Debug)]
pub struct NodeSite {
    /// Index of its message.
    pub message: usize,
    /// The graph that it is a node of.
    pub graph: Graph,
    /// Operator, with the field it stands in.
    pub op: (Span, String),
    /// Inputs.
    pub inputs: Vec<Span>,
    /// Outputs with their names.
    pub outputs: Vec<(Span, String)>,
    /// Names of the inputs.
    pub input_names: Vec<String>,
    /// Attributes with their names.
    pub attributes: Vec<(Span, String)>,
}

/// All that was found.
#[derive(Debug, Default)]
pub struct Sites {
    /// Messages on the way to what was found; each comes after the one around it.
    pub messages: Vec<Message>,
    /// All tensors.
    pub tensors: Vec<TensorSite>,
    /// Nodes of the operators in [`OPS`].
    pub nodes: Vec<NodeSite>,
    /// Names that nodes read or that graphs and functions give out.
    pub read: HashSet<String>,
}

/// Operators whose nodes are noted.
pub const OPS: [&str; 4] = ["Constant", "ConstantOfShape", "BatchNormalization", "Dropout"];

/// Walks a model that the import has accepted.
pub fn find<R: Read + Seek>(input: R, len: u64) -> io::Result<Sites> {
    let input = BufReader::with_capacity(1 << 16, input);
    let mut walk = Walk { input, pos: 0, bodies: 0, out: Sites::default() };
    let span = Span { number: 0, wire: 2, tag_at: 0, length_at: 0, begin: 0, end: len, value: 0 };
    walk.out.messages.push(Message { parent: None, span });
    while let Some(f) = walk.field(len)? {
        match (f.number, f.wire) {
            (7, 2) => walk.graph(0, f, Graph::Main, false, 0)?,
            (25, 2) => walk.graph(0, f, Graph::Other, true, 0)?,
            (20, 2) => {
                let info = walk.enter(0, f);
                while let Some(g) = walk.field(f.end)? {
                    if matches!((g.number, g.wire), (1 | 2, 2)) {
                        walk.graph(info, g, Graph::Other, false, 0)?;
                    }
                    walk.seek(g.end)?;
                }
            }
            _ => {}
        }
        walk.seek(f.end)?;
    }
    Ok(walk.out)
}

struct Walk<R> {
    input: BufReader<R>,
    pos: u64,
    /// Bodies so far.
    bodies: u32,
    out: Sites,
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the model changed since it was read: {what}"))
}

impl<R: Read + Seek> Walk<R> {
    /// A graph, or a function, whose parts have other numbers.
    fn graph(
        &mut self,
        parent: usize,
        span: Span,
        graph: Graph,
        function: bool,
        depth: usize,
    ) -> io::Result<()> {
        if depth > MAX_DEPTH {
            return Err(malformed("it nests too deeply"));
        }
        let m = self.enter(parent, span);
        while let Some(f) = self.field(span.end)? {
            match (function, f.number, f.wire) {
                (false, 1, 2) | (true, 7, 2) => self.node(m, f, graph, depth)?,
                (false, 5, 2) => {
                    let place = if graph == Graph::Other { Place::Other } else { Place::Initializer(graph) };
                    self.tensor(m, f, place)?;
                }
                (false, 15, 2) => self.sparse(m, f)?,
                (false, 12, 2) => {
                    while let Some(v) = self.field(f.end)? {
                        if (v.number, v.wire) == (1, 2) {
                            let name = self.text(v)?;
                            self.out.read.insert(name);
                        }
                        self.seek(v.end)?;
                    }
                }
                (true, 5, 2) => {
                    let name = self.text(f)?;
                    self.out.read.insert(name);
                }
                (true, 11, 2) => {
                    self.attribute(m, f, Graph::Other, None, depth)?;
                }
                _ => {}
            }
            self.seek(f.end)?;
        }
        Ok(())
    }

    fn node(&mut self, parent: usize, span: Span, graph: Graph, depth: usize) -> io::Result<()> {
        // The operator stands behind the inputs, and attributes need to know it: a first pass over the names.
        let mut site = NodeSite {
            message: 0,
            graph,
            op: (span, String::new()),
            inputs: Vec::new(),
            outputs: Vec::new(),
            input_names: Vec::new(),
            attributes: Vec::new(),
        };
        let mut domain = String::new();
        let mut attributes = Vec::new();
        while let Some(f) = self.field(span.end)? {
            match (f.number, f.wire) {
                (1, 2) => {
                    let name = self.text(f)?;
                    self.out.read.insert(name.clone());
                    site.inputs.push(f);
                    site.input_names.push(name);
                }
                (2, 2) => site.outputs.push((f, self.text(f)?)),
                (4, 2) => site.op = (f, self.text(f)?),
                (7, 2) => domain = self.text(f)?,
                (5, 2) => attributes.push(f),
                _ => {}
            }
            self.seek(f.end)?;
        }
        let m = self.enter(parent, span);
        site.message = m;
        let noted = (domain.is_empty() || domain == "ai.onnx") && OPS.contains(&site.op.1.as_str());
        let owner =
            (noted && graph != Graph::Other && site.op.1 == "Constant").then_some(self.out.nodes.len());
        for a in attributes {
            // Attributes lie before or behind what was read last.
            self.seek(a.begin)?;
            let name = self.attribute(m, a, graph, owner, depth)?;
            site.attributes.push((a, name));
        }
        self.seek(span.end)?;
        if noted {
            self.out.nodes.push(site);
        }
        Ok(())
    }

    /// Returns the attribute's name.
    fn attribute(
        &mut self,
        parent: usize,
        span: Span,
        graph: Graph,
        owner: Option<usize>,
        depth: usize,
    ) -> io::Result<String> {
        let m = self.enter(parent, span);
        let mut name = String::new();
        let first = self.out.tensors.len();
        while let Some(f) = self.field(span.end)? {
            match (f.number, f.wire) {
                (1, 2) => name = self.text(f)?,
                (5, 2) => self.tensor(m, f, owner.map_or(Place::Other, Place::Attribute))?,
                (10, 2) => self.tensor(m, f, Place::Other)?,
                (6, 2) if graph != Graph::Other => {
                    self.bodies += 1;
                    self.graph(m, f, Graph::Body(self.bodies - 1), false, depth + 1)?;
                }
                (6 | 11, 2) => self.graph(m, f, Graph::Other, false, depth + 1)?,
                (22 | 23, 2) => self.sparse(m, f)?,
                _ => {}
            }
            self.seek(f.end)?;
        }
        if name != "value" {
            // Tensors of graphs in the attribute have places of their own.
            let own =
                self.out.tensors[first..].iter_mut().filter(|t| Some(t.place) == owner.map(Place::Attribute));
            own.for_each(|t| t.place = Place::Other);
        }
        Ok(name)
    }

    fn sparse(&mut self, parent: usize, span: Span) -> io::Result<()> {
        let m = self.enter(parent, span);
        while let Some(f) = self.field(span.end)? {
            if matches!((f.number, f.wire), (1 | 2, 2)) {
                self.tensor(m, f, Place::Other)?;
            }
            self.seek(f.end)?;
        }
        Ok(())
    }

    fn tensor(&mut self, parent: usize, span: Span, place: Place) -> io::Result<()> {
        let message = self.enter(parent, span);
        let mut site = TensorSite {
            message,
            place,
            name: String::new(),
            data: Vec::new(),
            entries: Vec::new(),
            location: Vec::new(),
        };
        while let Some(f) = self.field(span.end)? {
            match (f.number, f.wire) {
                (8, 2) => site.name = self.text(f)?,
                (4 | 5 | 7 | 9 | 10 | 11, _) => site.data.push(f),
                (14, 0) => site.location.push(f),
                (13, 2) => {
                    let (mut key, mut value) = (String::new(), String::new());
                    while let Some(e) = self.field(f.end)? {
                        match (e.number, e.wire) {
                            (1, 2) => key = self.text(e)?,
                            (2, 2) => value = self.text(e)?,
                            _ => {}
                        }
                        self.seek(e.end)?;
                    }
                    site.entries.push((f, key, value));
                }
                _ => {}
            }
            self.seek(f.end)?;
        }
        self.out.tensors.push(site);
        Ok(())
    }

    fn enter(&mut self, parent: usize, span: Span) -> usize {
        self.out.messages.push(Message { parent: Some(parent), span });
        self.out.messages.len() - 1
    }

    /// The next field of a message that ends at `end`; its value is not read yet, unless it is a varint.
    fn field(&mut self, end: u64) -> io::Result<Option<Span>> {
        if self.pos >= end {
            return Ok(None);
        }
        let tag_at = self.pos;
        let tag = self.varint()?;
        let (number, wire, length_at) = (tag >> 3, tag & 7, self.pos);
        let (begin, stop, value) = match wire {
            0 => {
                let value = self.varint()?;
                (length_at, self.pos, value)
            }
            1 => (length_at, length_at.saturating_add(8), 0),
            5 => (length_at, length_at.saturating_add(4), 0),
            2 => {
                let len = self.varint()?;
                (self.pos, self.pos.saturating_add(len), 0)
            }
            _ => return Err(malformed("an impossible wire type")),
        };
        if stop > end {
            return Err(malformed("a field leads out of its message"));
        }
        Ok(Some(Span { number, wire, tag_at, length_at, begin, end: stop, value }))
    }

    fn text(&mut self, span: Span) -> io::Result<String> {
        let mut bytes = Vec::new();
        self.input.by_ref().take(span.end - span.begin).read_to_end(&mut bytes)?;
        self.pos += bytes.len() as u64;
        if self.pos != span.end {
            return Err(malformed("it is shorter"));
        }
        String::from_utf8(bytes).map_err(|_| malformed("a name is no UTF-8"))
    }

    fn varint(&mut self) -> io::Result<u64> {
        let mut value = 0;
        for i in 0..10 {
            let mut byte = [0];
            self.input.read_exact(&mut byte)?;
            self.pos += 1;
            value |= u64::from(byte[0] & 0x7f) << (7 * i);
            if byte[0] < 0x80 {
                return Ok(value);
            }
        }
        Err(malformed("a number of more than 64 bits"))
    }

    /// Goes to a position.
    fn seek(&mut self, to: u64) -> io::Result<()> {
        self.input.seek_relative(to.wrapping_sub(self.pos) as i64)?;
        self.pos = to;
        Ok(())
    }
}
