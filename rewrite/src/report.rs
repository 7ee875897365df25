//! What rewriting did: which rules fired where and what that saves, which did not and why.

use crate::{
    extract::Chosen,
    space::{Site, Space},
    term::{Head, Term},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// A rule that fired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fired {
    /// The rule.
    pub rule: &'static str,
    /// The node it replaced.
    pub at: String,
    /// Predicted nanoseconds saved; before the training step is made, those of the gradient included.
    pub nanoseconds: i64,
    /// Bytes saved, likewise: of all tensors and workspaces that are written, not of a peak.
    pub bytes: i64,
}

/// A pattern that was found and not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missed {
    /// The rule.
    pub rule: &'static str,
    /// The node.
    pub at: String,
    /// The condition that failed.
    pub why: String,
}

/// What rewriting did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Rules that fired, in the order of the graph.
    pub fired: Vec<Fired>,
    /// Patterns that were found and not used.
    pub missed: Vec<Missed>,
}

/// The name under which merged nodes are reported: no rule, the e-graph does it.
const COMMON: &str = "common-subexpressions";

impl Report {
    pub(crate) fn miss(&mut self, rule: &'static str, at: String, why: String) {
        let m = Missed { rule, at, why };
        if !self.missed.contains(&m) {
            self.missed.push(m);
        }
    }

    /// Adds another stage's report.
    pub fn extend(&mut self, other: Report) {
        self.fired.extend(other.fired);
        self.missed.extend(other.missed);
    }

    pub(crate) fn add(&mut self, space: &Space<'_>, chosen: &Chosen) {
        let mut first = BTreeSet::new();
        for (n, class, term) in &space.nodes {
            let term = space.canonical(term);
            if first.insert(term.clone()) || chosen.term(space, *class) != Some(&term) {
                continue;
            }
            if let Some(cost) = chosen.price(space, *class, &term) {
                let at = space.graph.nodes[*n].name.to_string();
                let (nanoseconds, bytes) = (cost.nanoseconds as i64, cost.bytes as i64);
                self.fired.push(Fired { rule: COMMON, at, nanoseconds, bytes });
            }
        }
        // A term that several rules made is the first one's.
        let mut told = BTreeSet::new();
        for a in &space.applied {
            let (class, new) = (space.egraph.find(a.class), space.canonical(&a.new));
            let Some(now) = chosen.term(space, class) else { continue };
            let at = space.site_name(&a.site);
            let old = if a.tuple {
                a.site.term.clone()
            } else {
                Term { head: Head::Proj(0), args: vec![a.site.class] }
            };
            let old = space.canonical(&old);
            if *now == new && old != new {
                if !told.insert(class) {
                    continue;
                }
                let saved = chosen.instead(space, class, &old).or_else(|| {
                    let cost = chosen.price(space, a.site.class, &space.canonical(&a.site.term))?;
                    Some((cost.nanoseconds as i64, cost.bytes as i64))
                });
                let (nanoseconds, bytes) = saved.unwrap_or_default();
                self.built_on(space, &a.site);
                self.fired.push(Fired { rule: a.rule, at, nanoseconds, bytes });
            } else if *now == old
                && let Some((time, bytes)) = chosen.instead(space, class, &new)
            {
                let why = worth(time, bytes);
                self.miss(a.rule, at, why);
            }
        }
        let fired: BTreeSet<(&str, &str)> = self.fired.iter().map(|f| (f.rule, &*f.at)).collect();
        let missed = std::mem::take(&mut self.missed);
        self.missed = missed.into_iter().filter(|m| !fired.contains(&(m.rule, &*m.at))).collect();
    }

    /// Tells the rules that made what another rule began with; the last one of such a chain has what all of it saves.
    fn built_on(&mut self, space: &Space<'_>, site: &Site) {
        let mut chain = Vec::new();
        let mut at = site;
        while let Some(made) = space.maker(at).filter(|_| chain.len() < 16) {
            chain.push(Fired { rule: made.rule, at: space.site_name(&made.site), nanoseconds: 0, bytes: 0 });
            at = &made.site;
        }
        for link in chain.into_iter().rev() {
            if !self.fired.iter().any(|f| f.rule == link.rule && f.at == link.at) {
                self.fired.push(link);
            }
        }
    }

    /// How often each rule fired, with all that it saves (nanoseconds, bytes).
    pub fn totals(&self) -> BTreeMap<&'static str, (usize, i64, i64)> {
        let mut out: BTreeMap<&'static str, (usize, i64, i64)> = BTreeMap::new();
        for f in &self.fired {
            let t = out.entry(f.rule).or_default();
            *t = (t.0 + 1, t.1.saturating_add(f.nanoseconds), t.2.saturating_add(f.bytes));
        }
        out
    }
}

/// What taking a pattern would change.
fn worth(nanoseconds: i64, bytes: i64) -> String {
    let part = |n: i64, unit| match n {
        0 => None,
        n => Some(format!("{} {unit} {}", n.unsigned_abs(), if n > 0 { "more" } else { "less" })),
    };
    let parts: Vec<String> = [part(nanoseconds, "ns"), part(bytes, "bytes")].into_iter().flatten().collect();
    match &parts[..] {
        [] => "it would save neither time nor bytes".to_owned(),
        parts => format!("it would take {}", parts.join(" and ")),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for x in &self.fired {
            let (t, b) = (x.nanoseconds, x.bytes);
            writeln!(f, "fired     {:<28} {:>12} ns {:>14} bytes   {}", x.rule, t, b, x.at)?;
        }
        for x in &self.missed {
            writeln!(f, "not fired {:<28} {}: {}", x.rule, x.at, x.why)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::worth;

    #[test]
    fn what_a_pattern_would_change_is_told_without_zeros() {
        assert_eq!(worth(0, 0), "it would save neither time nor bytes");
        assert_eq!(worth(12, -64), "it would take 12 ns more and 64 bytes less");
        assert_eq!(worth(0, 8), "it would take 8 bytes more");
        assert_eq!(worth(i64::MIN, 0), "it would take 9223372036854775808 ns less");
    }
}
