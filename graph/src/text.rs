//! Names and graphs as text, for people and for snapshots.

use crate::{Attr, Graph, ValueDef};
use std::fmt;

/// A name as it stands in text forms: as it is if it only has `[A-Za-z0-9_./:-]`, otherwise in double quotes with escapes.
pub fn quote_name(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./:-".contains(c);
    if !name.is_empty() && name.chars().all(plain) {
        return name.to_owned();
    }
    format!("{name:?}")
}

/// The name that [`quote_name`] wrote, or `None` if the text is no name.
pub fn unquote_name(text: &str) -> Option<String> {
    let Some(inner) = text.strip_prefix('"') else { return Some(text.to_owned()) };
    let inner = inner.strip_suffix('"')?;
    let mut out = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next()? {
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            '0' => out.push('\0'),
            'u' => {
                let rest = chars.as_str().strip_prefix('{')?;
                let (hex, after) = rest.split_once('}')?;
                out.push(char::from_u32(u32::from_str_radix(hex, 16).ok()?)?);
                chars = after.chars();
            }
            c => out.push(c),
        }
    }
    Some(out)
}

impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attr::Int(i) => write!(f, "{i}"),
            Attr::Float(x) => write!(f, "{x:?}"),
            Attr::Str(s) => write!(f, "{s:?}"),
            Attr::Ints(v) => write!(f, "{v:?}"),
            Attr::Floats(v) => write!(f, "{v:?}"),
            Attr::Strs(v) => write!(f, "{v:?}"),
            Attr::DType(d) => write!(f, "{d}"),
            Attr::Tensor(t) => write!(f, "{t:?}"),
        }
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |v: crate::ValueId| quote_name(&self.value(v).name);
        for i in &self.inputs {
            writeln!(f, "input {} {} {:?}", name(i.value), self.ty(i.value), i.role)?;
        }
        for s in &self.states {
            write!(f, "state {} {} {:?}", quote_name(&s.name), self.ty(s.input), s.kind)?;
            match s.output {
                Some(o) => writeln!(f, " -> {}", name(o))?,
                None => writeln!(f)?,
            }
        }
        for v in &self.values {
            if let ValueDef::Constant(l) = &v.def {
                writeln!(f, "constant {} {l:?}", quote_name(&v.name))?;
            }
        }
        for n in &self.nodes {
            let outs: Vec<_> = n.outputs.iter().map(|o| format!("{} {}", name(*o), self.ty(*o))).collect();
            let args: Vec<_> = n.inputs.iter().map(|i| i.map_or_else(|| "_".to_owned(), name)).collect();
            write!(f, "{} = {}({})", outs.join(", "), n.op, args.join(", "))?;
            for (k, a) in &n.attrs.0 {
                write!(f, " {k}={a}")?;
            }
            writeln!(f)?;
        }
        let outs: Vec<_> = self.outputs.iter().map(|o| name(*o)).collect();
        writeln!(f, "outputs {}", outs.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for n in ["conv1.weight", "", "a b", "über", "q\"uote\\", "line\nbreak\t\0", "x'2", "/m/a:0"] {
            assert_eq!(unquote_name(&quote_name(n)).as_deref(), Some(n), "{}", quote_name(n));
        }
    }
}
