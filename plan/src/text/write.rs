//! From a plan to its exact text.

use super::{KINDS, MAGIC, ROLES, word};
use crate::{Place, Plan, Program, Step, VERSION};
use graph::{Attr, DType, Graph, Init, Literal, ValueDef, ValueId, VerifyError, quote_name as quote, verify};
use std::fmt::{self, Display, Write};

/// The whole plan as text; [`super::parse`] gives the same plan again.
///
/// # Errors
///
/// A graph whose names are not unique or whose ids are not in range: what calls things by name cannot say it. Valid plans have none.
pub fn full(plan: &Plan) -> Result<String, VerifyError> {
    for p in &plan.programs {
        verify(&p.graph)?;
        check_ids(p)?;
    }
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_plan(&mut out, plan);
    Ok(out)
}

/// Steps may name anything in a plan that was not validated.
fn check_ids(p: &Program) -> Result<(), VerifyError> {
    let broken = |what: &str| Err(VerifyError { at: "program".to_owned(), what: what.to_owned() });
    if p.inputs.len() != p.graph.inputs.len() {
        return broken("the number of input offsets is wrong");
    }
    for s in &p.steps {
        let (node, values): (usize, &[ValueId]) = match s {
            Step::Run(r) => (r.node.index(), &r.drops),
            Step::Copy { value, .. } => (0, std::slice::from_ref(value)),
            Step::Wait { .. } => continue,
        };
        if matches!(s, Step::Run(_)) && node >= p.graph.nodes.len() {
            return broken("a step runs a node that does not exist");
        }
        if values.iter().any(|v| v.index() >= p.graph.values.len()) {
            return broken("a step names a value that does not exist");
        }
    }
    Ok(())
}

fn write_plan(out: &mut String, plan: &Plan) -> fmt::Result {
    writeln!(out, "{MAGIC} {VERSION}")?;
    writeln!(out, "model {}", quote(&plan.model))?;
    writeln!(out, "device {}", plan.device)?;
    writeln!(out, "budget {}", plan.budget)?;
    writeln!(out, "arena {}", plan.arena)?;
    writeln!(out, "numerics {}", Hex(&plan.numerics))?;
    writeln!(out, "provenance {}", quote(&plan.provenance))?;
    writeln!(out, "accumulate {}", plan.accumulate)?;
    writeln!(out, "state-bytes {}", plan.state_bytes)?;
    writeln!(out, "slot-bytes {}", plan.slot_bytes)?;
    for e in &plan.state {
        let (name, kind) = (quote(&e.name), word(&KINDS, &e.kind));
        write!(out, "entry {name} {kind} {} @ {} init {}", e.ty, e.offset, InitText(&e.init))?;
        if let Some(h) = &e.hash {
            write!(out, " hash {}", Hex(h))?;
        }
        out.push('\n');
    }
    plan.programs.iter().try_for_each(|p| write_program(out, p))
}

fn write_program(out: &mut String, p: &Program) -> fmt::Result {
    let g = &p.graph;
    let name = |v: ValueId| quote(&g.value(v).name);
    writeln!(out, "program {}", p.kind)?;
    for (dim, least, greatest) in &p.guard.dims {
        writeln!(out, "  guard {} {least} {greatest}", quote(dim))?;
    }
    write_graph(out, g, &p.inputs)?;
    for step in &p.steps {
        match step {
            Step::Run(r) => {
                let node = quote(&g.node(r.node).name);
                write!(out, "  run {node} impl {} queue {} ns {}", r.implementation, r.queue, r.time_ns)?;
                for (o, place) in r.outputs.iter().enumerate() {
                    out.push_str(if o == 0 { " at " } else { ", " });
                    match place {
                        Place::New { space, offset } => write!(out, "new {space} @ {offset}")?,
                        Place::Overwrite { input } => write!(out, "over {input}")?,
                        Place::View { input } => write!(out, "view {input}")?,
                        Place::Commit { input } => write!(out, "commit {input}")?,
                    }
                }
                if let Some(at) = r.workspace {
                    write!(out, " workspace {at}")?;
                }
                out.push('\n');
                for d in &r.drops {
                    writeln!(out, "  drop {}", name(*d))?;
                }
            }
            Step::Copy { value, space, offset, queue } => {
                writeln!(out, "  copy {} to {space} @ {offset} queue {queue}", name(*value))?;
            }
            Step::Wait { queue, on } => writeln!(out, "  wait {queue} on {on}")?,
        }
    }
    if let Some(d) = &p.dynamic {
        let r = &d.rates;
        writeln!(
            out,
            "  dynamic pool {} work {} rates {:?} {:?} {:?} {:?} reason {} recipe {}",
            d.pool,
            d.work,
            r.product_flops_per_s,
            r.other_flops_per_s,
            r.bytes_per_s,
            r.launch_ns,
            quote(&d.reason),
            Hex(&d.recipe)
        )?;
    }
    let c = &p.certificate;
    writeln!(out, "  certificate")?;
    writeln!(out, "    live-peak {}", c.live_peak)?;
    writeln!(out, "    arena {}", c.arena)?;
    writeln!(out, "    keep-all {}", c.keep_all)?;
    writeln!(out, "    naive-peak {}", c.naive_peak)?;
    writeln!(out, "    time-ns {}", c.time_ns)?;
    writeln!(out, "    base-time-ns {}", c.base_time_ns)?;
    if let Some(bound) = c.lower_bound_ns {
        writeln!(out, "    lower-bound-ns {bound}")?;
    }
    writeln!(out, "    strategy {}", quote(&c.strategy))?;
    writeln!(out, "    stop-reason {}", quote(&c.stop_reason))?;
    writeln!(out, "end")
}

fn write_graph(out: &mut String, g: &Graph, offsets: &[u64]) -> fmt::Result {
    let name = |v: ValueId| quote(&g.value(v).name);
    for v in &g.values {
        match &v.def {
            ValueDef::Constant(l) => writeln!(out, "  constant {} {}", quote(&v.name), LiteralText(l))?,
            _ => writeln!(out, "  value {} {}", quote(&v.name), v.ty)?,
        }
    }
    for (i, offset) in g.inputs.iter().zip(offsets) {
        writeln!(out, "  input {} {} @ {offset}", name(i.value), word(&ROLES, &i.role))?;
    }
    for s in &g.states {
        write!(out, "  state {} {} {}", quote(&s.name), word(&KINDS, &s.kind), name(s.input))?;
        if let Some(o) = s.output {
            write!(out, " -> {}", name(o))?;
        }
        writeln!(out, " init {}", InitText(&s.init))?;
    }
    for n in &g.nodes {
        let inputs = n.inputs.iter().map(|v| v.map_or_else(|| "~".to_owned(), name));
        let inputs: Vec<_> = inputs.collect();
        let outputs: Vec<_> = n.outputs.iter().map(|v| name(*v)).collect();
        let (node, op) = (quote(&n.name), quote(&n.op));
        write!(out, "  node {node} = {op}({}) -> {}", inputs.join(", "), outputs.join(", "))?;
        for (i, (key, a)) in n.attrs.0.iter().enumerate() {
            write!(out, "{}{}={}", if i == 0 { " {" } else { ", " }, quote(key), AttrText(a))?;
        }
        out.push_str(if n.attrs.0.is_empty() { "\n" } else { "}\n" });
    }
    g.outputs.iter().try_for_each(|o| writeln!(out, "  output {}", name(*o)))
}

/// Bytes in hexadecimal.
struct Hex<'a>(&'a [u8]);

impl Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// A float that reads back to the same bits: decimals, or the bits of what is not a number.
struct Float(f64);

impl Display for Float {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_nan() { write!(f, "nan:{:016x}", self.0.to_bits()) } else { write!(f, "{:?}", self.0) }
    }
}

struct List<T>(Vec<T>);

impl<T: Display> Display for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, x) in self.0.iter().enumerate() {
            write!(f, "{}{x}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str("]")
    }
}

struct LiteralText<'a>(&'a Literal);

impl Display for LiteralText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let l = self.0;
        write!(f, "{}{:?} ", l.dtype(), l.shape())?;
        match l.to_ints() {
            Some(ints) if l.dtype() == DType::I64 => List(ints).fmt(f),
            _ => write!(f, "x{}", Hex(l.bytes())),
        }
    }
}

struct InitText<'a>(&'a Init);

impl Display for InitText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Init::Weight(w) => write!(f, "weight {}", quote(w)),
            Init::Zeros => f.write_str("zeros"),
            Init::Literal(l) => write!(f, "literal {}", LiteralText(l)),
        }
    }
}

struct AttrText<'a>(&'a Attr);

impl Display for AttrText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Attr::Int(i) => write!(f, "int {i}"),
            Attr::Float(x) => write!(f, "float {}", Float(*x)),
            Attr::Str(s) => write!(f, "str {}", quote(s)),
            Attr::Ints(v) => write!(f, "ints {}", List(v.clone())),
            Attr::Floats(v) => write!(f, "floats {}", List(v.iter().map(|x| Float(*x)).collect())),
            Attr::Strs(v) => write!(f, "strs {}", List(v.iter().map(|s| quote(s)).collect())),
            Attr::DType(d) => write!(f, "dtype {d}"),
            Attr::Tensor(l) => write!(f, "tensor {}", LiteralText(l)),
        }
    }
}
