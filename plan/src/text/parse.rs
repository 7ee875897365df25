//! From the exact text to a plan.
//!
//! The plan is well-formed then, not yet valid: see [`crate::validate`].

use super::{KINDS, MAGIC, ROLES, lex::Line};
use crate::{
    Certificate, Device, Dynamic, Guard, Place, Plan, Program, ProgramKind, Rates, Run, StateEntry, Step,
    VERSION,
};
use graph::{
    Attr, Attrs, DType, Graph, Init, Input, Literal, Node, NodeId, State, StateId, TensorType, Value,
    ValueDef, ValueId,
};
use std::{collections::BTreeMap, sync::Arc};

/// A text that is no plan: where and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ParseError {
    /// Line of the text, from 1.
    pub line: usize,
    /// What is wrong there.
    pub what: String,
}

const DEVICES: [(Device, &str); 2] = [(Device::Cpu, "cpu"), (Device::Cuda, "cuda")];
const PROGRAMS: [(ProgramKind, &str); 4] = [
    (ProgramKind::Train, "train"),
    (ProgramKind::Micro, "micro"),
    (ProgramKind::Last, "last"),
    (ProgramKind::Infer, "infer"),
];

/// Reads what [`super::full`] wrote.
///
/// # Errors
///
/// The first line that cannot be read, and why.
pub fn parse(text: &str) -> Result<Plan, ParseError> {
    let mut lines = Lines { rest: text.lines().enumerate(), last: 0 };
    let version: u32 = lines.field(MAGIC, |l| l.read("a version"))?;
    if version != VERSION {
        return lines.error(format!("version {version}, but this dtrc reads version {VERSION}"));
    }
    let mut plan = Plan {
        model: lines.field("model", |l| l.word("a name"))?,
        device: lines.field("device", |l| l.one_of(&DEVICES, "device"))?,
        budget: lines.field("budget", bytes)?,
        arena: lines.field("arena", bytes)?,
        numerics: lines.field("numerics", hash)?,
        provenance: lines.field("provenance", |l| l.word("a text"))?,
        accumulate: lines.field("accumulate", |l| l.read("a number"))?,
        state_bytes: lines.field("state-bytes", bytes)?,
        slot_bytes: lines.field("slot-bytes", bytes)?,
        state: Vec::new(),
        programs: Vec::new(),
    };
    while let Some(mut l) = lines.next()? {
        match l.word("entry or program")?.as_str() {
            "entry" if plan.programs.is_empty() => plan.state.push(entry(&mut l)?),
            "program" => {
                let kind = l.one_of(&PROGRAMS, "kind of program")?;
                l.end()?;
                plan.programs.push(program(kind, &mut lines)?);
            }
            other => return l.error(format_args!("entry or program expected instead of {other:?}")),
        }
        l.end()?;
    }
    Ok(plan)
}

/// The lines that are not empty.
struct Lines<'a> {
    rest: std::iter::Enumerate<std::str::Lines<'a>>,
    last: usize,
}

impl Lines<'_> {
    fn next(&mut self) -> Result<Option<Line>, ParseError> {
        for (i, text) in self.rest.by_ref() {
            self.last = i + 1;
            if let Some(line) = Line::new(i + 1, text)? {
                return Ok(Some(line));
            }
        }
        Ok(None)
    }

    fn error<T>(&self, what: String) -> Result<T, ParseError> {
        Err(ParseError { line: self.last, what })
    }

    fn need(&mut self, what: &str) -> Result<Line, ParseError> {
        match self.next()? {
            Some(l) => Ok(l),
            None => self.error(format!("the text ends where {what} should follow")),
        }
    }

    /// A line that is a keyword and its value.
    fn field<T>(
        &mut self,
        keyword: &str,
        f: impl FnOnce(&mut Line) -> Result<T, ParseError>,
    ) -> Result<T, ParseError> {
        let mut l = self.need(keyword)?;
        l.keyword(keyword)?;
        let value = f(&mut l)?;
        l.end()?;
        Ok(value)
    }
}

fn bytes(l: &mut Line) -> Result<u64, ParseError> {
    l.read("a number of bytes")
}

fn hex(l: &Line, text: &str) -> Result<Vec<u8>, ParseError> {
    let digit = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    let pairs = text.as_bytes().chunks(2).map(|p| match p {
        [a, b] => Some(digit(*a)? << 4 | digit(*b)?),
        _ => None,
    });
    match pairs.collect() {
        Some(bytes) => Ok(bytes),
        None => l.error("hexadecimal bytes expected"),
    }
}

fn hash(l: &mut Line) -> Result<[u8; 32], ParseError> {
    let text = l.word("a hash")?;
    hex(l, &text)?.try_into().or_else(|_| l.error("a hash of 32 bytes expected"))
}

fn literal(l: &mut Line) -> Result<Literal, ParseError> {
    let ty: TensorType = l.ty()?;
    let shape = ty.shape.0.iter().map(|d| d.as_const().and_then(|n| u64::try_from(n).ok()));
    let Some(shape) = shape.collect::<Option<Vec<u64>>>() else {
        return l.error("the shape of elements must be known");
    };
    let bytes = if ty.dtype == DType::I64 {
        let ints: Vec<i64> = l.list("[", "]", |l| l.read("an integer"))?;
        ints.iter().flat_map(|i| i.to_le_bytes()).collect()
    } else {
        let word = l.word("elements")?;
        match word.strip_prefix('x') {
            Some(digits) => hex(l, digits)?,
            None => return l.error("elements begin with x"),
        }
    };
    Literal::new(ty.dtype, shape, bytes).or_else(|e| l.error(e))
}

fn init(l: &mut Line) -> Result<Init, ParseError> {
    l.keyword("init")?;
    match l.word("weight, zeros or literal")?.as_str() {
        "weight" => Ok(Init::Weight(l.word("a name")?.into())),
        "zeros" => Ok(Init::Zeros),
        "literal" => Ok(Init::Literal(literal(l)?)),
        other => l.error(format_args!("weight, zeros or literal expected instead of {other:?}")),
    }
}

fn entry(l: &mut Line) -> Result<StateEntry, ParseError> {
    let name = l.word("a name")?.into();
    let kind = l.one_of(&KINDS, "kind of state")?;
    let ty = l.ty()?;
    l.mark("@")?;
    let offset = bytes(l)?;
    let init = init(l)?;
    let hash = if l.take_word("hash") { Some(hash(l)?) } else { None };
    Ok(StateEntry { name, kind, ty, offset, init, hash })
}

/// A program while it is read: names are looked up, what defines a value is filled in.
#[derive(Default)]
struct Building {
    graph: Graph,
    defined: Vec<bool>,
    values: BTreeMap<Arc<str>, ValueId>,
    nodes: BTreeMap<Arc<str>, NodeId>,
    guard: Guard,
    inputs: Vec<u64>,
    steps: Vec<Step>,
    dynamic: Option<Dynamic>,
}

fn program(kind: ProgramKind, lines: &mut Lines<'_>) -> Result<Program, ParseError> {
    let mut b = Building::default();
    loop {
        let mut l = lines.need("end")?;
        match l.word("a keyword")?.as_str() {
            "guard" => {
                let dim = l.word("a name")?.into();
                b.guard.dims.push((dim, l.read("a number")?, l.read("a number")?));
            }
            "value" => {
                let (name, ty) = (l.word("a name")?.into(), l.ty()?);
                // The definition is put in by the line that defines it.
                b.add_value(&l, Value { name, ty, def: ValueDef::Input(0) }, false)?;
            }
            "constant" => {
                let (name, literal) = (l.word("a name")?.into(), literal(&mut l)?);
                let ty = TensorType::new(literal.dtype(), literal.shape());
                b.add_value(&l, Value { name, ty, def: ValueDef::Constant(literal) }, true)?;
            }
            "input" => {
                let value = b.value(&mut l)?;
                let role = l.one_of(&ROLES, "role")?;
                l.mark("@")?;
                b.inputs.push(bytes(&mut l)?);
                b.define(&l, value, ValueDef::Input(b.graph.inputs.len() as u32))?;
                b.graph.inputs.push(Input { value, role });
            }
            "state" => b.state(&mut l)?,
            "node" => b.node(&mut l)?,
            "output" => {
                let value = b.value(&mut l)?;
                b.graph.outputs.push(value);
            }
            "run" => {
                let step = b.run(&mut l)?;
                b.steps.push(Step::Run(step));
            }
            "drop" => {
                let value = b.value(&mut l)?;
                match b.steps.last_mut() {
                    Some(Step::Run(r)) => r.drops.push(value),
                    _ => return l.error("a drop belongs to the run before it"),
                }
            }
            "copy" => {
                let value = b.value(&mut l)?;
                l.keyword("to")?;
                let space = l.read("a space")?;
                l.mark("@")?;
                let offset = bytes(&mut l)?;
                l.keyword("queue")?;
                b.steps.push(Step::Copy { value, space, offset, queue: l.read("a queue")? });
            }
            "wait" => {
                let queue = l.read("a queue")?;
                l.keyword("on")?;
                b.steps.push(Step::Wait { queue, on: l.read("a queue")? });
            }
            "dynamic" => {
                l.keyword("pool")?;
                let pool = bytes(&mut l)?;
                l.keyword("work")?;
                let work = bytes(&mut l)?;
                l.keyword("rates")?;
                let rates = Rates {
                    product_flops_per_s: l.read("a rate")?,
                    other_flops_per_s: l.read("a rate")?,
                    bytes_per_s: l.read("a rate")?,
                    launch_ns: l.read("a number")?,
                };
                l.keyword("reason")?;
                let reason = l.word("a reason")?;
                l.keyword("recipe")?;
                let text = l.word("a recipe")?;
                let recipe = hex(&l, &text)?;
                b.dynamic = Some(Dynamic { recipe, reason, pool, work, rates });
            }
            "certificate" => {
                l.end()?;
                let certificate = certificate(lines)?;
                if let Some(i) = b.defined.iter().position(|d| !d) {
                    let name = b.graph.values[i].name.clone();
                    return lines.error(format!("nothing defines the value {name:?}"));
                }
                let Building { graph, guard, inputs, steps, dynamic, .. } = b;
                return Ok(Program { kind, guard, graph, inputs, steps, certificate, dynamic });
            }
            other => return l.error(format_args!("no line of a program begins with {other:?}")),
        }
        l.end()?;
    }
}

/// The certificate and the end of the program.
fn certificate(lines: &mut Lines<'_>) -> Result<Certificate, ParseError> {
    let mut c = Certificate {
        live_peak: lines.field("live-peak", bytes)?,
        arena: lines.field("arena", bytes)?,
        keep_all: lines.field("keep-all", bytes)?,
        naive_peak: lines.field("naive-peak", bytes)?,
        time_ns: lines.field("time-ns", |l| l.read("a number"))?,
        base_time_ns: lines.field("base-time-ns", |l| l.read("a number"))?,
        ..Certificate::default()
    };
    let mut l = lines.need("strategy")?;
    if l.take_word("lower-bound-ns") {
        c.lower_bound_ns = Some(l.read("a number")?);
        l.end()?;
        l = lines.need("strategy")?;
    }
    l.keyword("strategy")?;
    c.strategy = l.word("a name")?;
    l.end()?;
    c.stop_reason = lines.field("stop-reason", |l| l.word("a reason"))?;
    lines.field("end", |_| Ok(()))?;
    Ok(c)
}

impl Building {
    fn add_value(&mut self, l: &Line, value: Value, defined: bool) -> Result<(), ParseError> {
        let id = ValueId(self.graph.values.len() as u32);
        if self.values.insert(value.name.clone(), id).is_some() {
            return l.error(format_args!("two values have the name {:?}", value.name));
        }
        self.graph.values.push(value);
        self.defined.push(defined);
        Ok(())
    }

    fn value(&self, l: &mut Line) -> Result<ValueId, ParseError> {
        let name = l.word("the name of a value")?;
        match self.values.get(name.as_str()) {
            Some(v) => Ok(*v),
            None => l.error(format_args!("there is no value {name:?} above")),
        }
    }

    fn define(&mut self, l: &Line, v: ValueId, def: ValueDef) -> Result<(), ParseError> {
        if std::mem::replace(&mut self.defined[v.index()], true) {
            return l.error(format_args!("{:?} is defined twice", self.graph.value(v).name));
        }
        self.graph.values[v.index()].def = def;
        Ok(())
    }

    fn state(&mut self, l: &mut Line) -> Result<(), ParseError> {
        let name = l.word("a name")?.into();
        let kind = l.one_of(&KINDS, "kind of state")?;
        let input = self.value(l)?;
        let output = if l.take("->") { Some(self.value(l)?) } else { None };
        let init = init(l)?;
        self.define(l, input, ValueDef::State(StateId(self.graph.states.len() as u32)))?;
        self.graph.states.push(State { name, kind, input, output, init });
        Ok(())
    }

    fn node(&mut self, l: &mut Line) -> Result<(), ParseError> {
        let name: Arc<str> = l.word("a name")?.into();
        l.mark("=")?;
        let op = l.word("an operator")?.into();
        let inputs = l.list("(", ")", |l| if l.take("~") { Ok(None) } else { self.value(l).map(Some) })?;
        l.mark("->")?;
        let node = NodeId(self.graph.nodes.len() as u32);
        let mut outputs = Vec::new();
        let mut attrs = Attrs::new();
        while !l.at_end() {
            if l.take("{") {
                attrs = attributes(l)?;
                break;
            }
            if !outputs.is_empty() {
                l.mark(",")?;
            }
            let v = self.value(l)?;
            self.define(l, v, ValueDef::Node { node, index: outputs.len() as u32 })?;
            outputs.push(v);
        }
        if self.nodes.insert(name.clone(), node).is_some() {
            return l.error(format_args!("two nodes have the name {name:?}"));
        }
        self.graph.nodes.push(Node { name, op, attrs, inputs, outputs });
        Ok(())
    }

    fn run(&self, l: &mut Line) -> Result<Run, ParseError> {
        let name = l.word("the name of a node")?;
        let Some(node) = self.nodes.get(name.as_str()).copied() else {
            return l.error(format_args!("there is no node {name:?} above"));
        };
        l.keyword("impl")?;
        let implementation = l.read("a number")?;
        l.keyword("queue")?;
        let queue = l.read("a queue")?;
        l.keyword("ns")?;
        let time_ns = l.read("a number")?;
        let mut outputs = Vec::new();
        if l.take_word("at") {
            loop {
                outputs.push(place(l)?);
                if !l.take(",") {
                    break;
                }
            }
        }
        let workspace = if l.take_word("workspace") { Some(bytes(l)?) } else { None };
        Ok(Run { node, implementation, queue, time_ns, outputs, workspace, drops: Vec::new() })
    }
}

fn place(l: &mut Line) -> Result<Place, ParseError> {
    match l.word("a place")?.as_str() {
        "new" => {
            let space = l.read("a space")?;
            l.mark("@")?;
            Ok(Place::New { space, offset: bytes(l)? })
        }
        "over" => Ok(Place::Overwrite { input: l.read("an input")? }),
        "view" => Ok(Place::View { input: l.read("an input")? }),
        "commit" => Ok(Place::Commit { input: l.read("an input")? }),
        other => l.error(format_args!("{other:?} is no place")),
    }
}

/// Attributes up to the closing brace, the opening one being read.
fn attributes(l: &mut Line) -> Result<Attrs, ParseError> {
    let mut attrs = Attrs::new();
    while !l.take("}") {
        if !attrs.0.is_empty() {
            l.mark(",")?;
        }
        let name = l.word("an attribute")?;
        l.mark("=")?;
        let value = attribute(l)?;
        if attrs.0.contains_key(&name) {
            return l.error(format_args!("attribute {name} stands twice"));
        }
        attrs = attrs.with(&name, value);
    }
    Ok(attrs)
}

fn attribute(l: &mut Line) -> Result<Attr, ParseError> {
    Ok(match l.word("a kind of attribute")?.as_str() {
        "int" => Attr::Int(l.read("an integer")?),
        "float" => Attr::Float(float(l)?),
        "str" => Attr::Str(l.word("a text")?),
        "ints" => Attr::Ints(l.list("[", "]", |l| l.read("an integer"))?),
        "floats" => Attr::Floats(l.list("[", "]", float)?),
        "strs" => Attr::Strs(l.list("[", "]", |l| l.word("a text"))?),
        "dtype" => {
            let name = l.word("an element type")?;
            match DType::from_name(&name) {
                Some(d) => Attr::DType(d),
                None => return l.error(format_args!("there is no element type {name:?}")),
            }
        }
        "tensor" => Attr::Tensor(literal(l)?),
        other => return l.error(format_args!("{other:?} is no kind of attribute")),
    })
}

fn float(l: &mut Line) -> Result<f64, ParseError> {
    let word = l.word("a number")?;
    let bits = word.strip_prefix("nan:").map(|h| u64::from_str_radix(h, 16).map(f64::from_bits));
    match bits {
        Some(Ok(x)) if x.is_nan() => Ok(x),
        Some(_) => l.error("the bits of a value that is not a number expected"),
        None => word.parse().or_else(|_| l.error(format_args!("a number expected instead of {word:?}"))),
    }
}
