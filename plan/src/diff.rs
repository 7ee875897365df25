//! Two plans side by side: what each claims, what each recomputes, whether both give the same bits.

use crate::{Guard, Plan, Program, ProgramKind, Replay, Step};
use graph::quote_name;
use std::{collections::BTreeMap, fmt};

/// How two plans differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diff {
    /// The numerics hashes are equal: both plans give the same bits.
    pub same_numerics: bool,
    /// Both have the same state at the same offsets: a checkpoint's bytes lie where they lay.
    pub same_state: bool,
    /// Programs of the same kind and guard, paired in order.
    pub programs: Vec<ProgramDiff>,
    /// Programs that only one of the plans has: whether it is the first, the kind, and for which sizes it is.
    pub unpaired: Vec<(bool, ProgramKind, Guard)>,
}

/// How two programs differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramDiff {
    /// What both are for.
    pub kind: ProgramKind,
    /// For which sizes.
    pub guard: Guard,
    /// Which of them is made anew at every step, so that nothing but its memory is known before.
    pub dynamic: [bool; 2],
    /// What is counted (bytes, nanoseconds or steps), and the numbers of both; `None` where it was not computed or is known only at run
    /// time.
    pub numbers: Vec<(&'static str, Option<u64>, Option<u64>)>,
    /// Names of nodes that only the first program runs again, in its order, with the number of repetitions.
    pub only_first: Vec<(String, u32)>,
    /// The same of the second.
    pub only_second: Vec<(String, u32)>,
    /// Nodes that both run again.
    pub both: usize,
}

/// Compares two plans; the replays are what [`crate::validate`] returned for each.
pub fn diff(first: (&Plan, &[Replay]), second: (&Plan, &[Replay])) -> Diff {
    let (a, b) = (first.0, second.0);
    let mut programs = Vec::new();
    let mut unpaired = Vec::new();
    let mut taken = vec![false; b.programs.len()];
    for (i, p) in a.programs.iter().enumerate() {
        let same = |j: &usize| {
            let q = &b.programs[*j];
            !taken[*j] && (q.kind, &q.guard) == (p.kind, &p.guard)
        };
        let alike = |j: &usize| same(j) && b.programs[*j].dynamic.is_some() == p.dynamic.is_some();
        let all = 0..b.programs.len();
        let Some(j) = all.clone().find(alike).or_else(|| all.clone().find(same)) else {
            unpaired.push((true, p.kind, p.guard.clone()));
            continue;
        };
        taken[j] = true;
        if let (Some(x), Some(y)) = (first.1.get(i), second.1.get(j)) {
            programs.push(program((a, p, x), (b, &b.programs[j], y)));
        }
    }
    let left = b.programs.iter().zip(&taken).filter(|(_, t)| !**t);
    unpaired.extend(left.map(|(p, _)| (false, p.kind, p.guard.clone())));
    Diff {
        same_numerics: a.numerics == b.numerics,
        same_state: a.state == b.state && a.state_bytes == b.state_bytes,
        programs,
        unpaired,
    }
}

fn program(a: (&Plan, &Program, &Replay), b: (&Plan, &Program, &Replay)) -> ProgramDiff {
    let (ca, cb) = (&a.1.certificate, &b.1.certificate);
    let dynamic = [a.1.dynamic.is_some(), b.1.dynamic.is_some()];
    let pool = |p: &Program| p.dynamic.as_ref().map(|d| d.work);
    let mut numbers = vec![
        ("budget bytes", Some(a.0.budget), Some(b.0.budget)),
        ("state bytes", Some(a.0.state_bytes), Some(b.0.state_bytes)),
        ("input slot bytes", Some(a.0.slot_bytes), Some(b.0.slot_bytes)),
        ("arena bytes", Some(ca.arena), Some(cb.arena)),
    ];
    if dynamic.contains(&true) {
        numbers.push(("pool bytes", pool(a.1), pool(b.1)));
    }
    if dynamic.contains(&false) {
        let known = |i: usize, n: u64| (!dynamic[i]).then_some(n);
        let both = |x: u64, y: u64| (known(0, x), known(1, y));
        let [sa, sb] = [a.1, b.1].map(|p| p.steps.len() as u64);
        let [ra, rb] = [a.2, b.2].map(|r| r.recomputed.len() as u64);
        let counted = [
            ("live peak bytes", both(ca.live_peak, cb.live_peak)),
            ("keep-all bytes", both(ca.keep_all, cb.keep_all)),
            ("naive peak bytes", both(ca.naive_peak, cb.naive_peak)),
            ("steps", both(sa, sb)),
            ("recomputed steps", both(ra, rb)),
            ("predicted ns", both(ca.time_ns, cb.time_ns)),
            ("predicted ns, nothing recomputed", both(ca.base_time_ns, cb.base_time_ns)),
            ("lower bound of extra ns", (ca.lower_bound_ns, cb.lower_bound_ns)),
        ];
        numbers.extend(counted.map(|(what, (x, y))| (what, x, y)));
    }
    let (ra, rb) = (repeated(a.1, a.2), repeated(b.1, b.2));
    let only = |x: &[(String, u32)], y: &[(String, u32)]| -> Vec<(String, u32)> {
        let y: BTreeMap<&str, u32> = y.iter().map(|(n, k)| (&**n, *k)).collect();
        x.iter().filter(|(n, _)| !y.contains_key(&**n)).cloned().collect()
    };
    let (only_first, only_second) = (only(&ra, &rb), only(&rb, &ra));
    let both = ra.len() - only_first.len();
    let (kind, guard) = (a.1.kind, a.1.guard.clone());
    ProgramDiff { kind, guard, dynamic, numbers, only_first, only_second, both }
}

/// Nodes that run again, in the order of their first repetition, and how often.
fn repeated(p: &Program, replay: &Replay) -> Vec<(String, u32)> {
    let mut out: Vec<(String, u32)> = Vec::new();
    let mut at: BTreeMap<u32, usize> = BTreeMap::new();
    for i in &replay.recomputed {
        let Some(Step::Run(run)) = p.steps.get(*i) else { continue };
        let k = *at.entry(run.node.0).or_insert_with(|| {
            out.push((p.graph.node(run.node).name.to_string(), 0));
            out.len() - 1
        });
        out[k].1 += 1;
    }
    out
}

/// A program's kind, and its sizes if it is for some only.
fn named(kind: ProgramKind, guard: &Guard) -> String {
    if guard.dims.is_empty() { kind.to_string() } else { format!("{kind} where {guard}") }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.same_numerics {
            "equal: both plans give the same bits"
        } else {
            "differ: the plans compute different numbers"
        };
        writeln!(f, "numerics {verdict}")?;
        let verdict = if self.same_state { "equal" } else { "different" };
        writeln!(f, "state sections {verdict}")?;
        for (first, kind, guard) in &self.unpaired {
            let which = if *first { "first" } else { "second" };
            writeln!(f, "program {} only in the {which}", named(*kind, guard))?;
        }
        self.programs.iter().try_for_each(|p| p.fmt(f))
    }
}

impl fmt::Display for ProgramDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dynamic = if self.dynamic == [true; 2] { ", dynamic" } else { "" };
        let head = format!("program {}{dynamic}", named(self.kind, &self.guard));
        writeln!(f, "{head:<34} {:>16} {:>16} {:>16}", "first", "second", "change")?;
        let text = |i: usize, n: &Option<u64>| match n {
            Some(n) => n.to_string(),
            None if self.dynamic[i] => "at run time".to_owned(),
            None => "not computed".to_owned(),
        };
        for (what, a, b) in &self.numbers {
            let change = match (a, b) {
                (Some(a), Some(b)) if a == b => "=".to_owned(),
                (Some(a), Some(b)) => format!("{:+}", i128::from(*b) - i128::from(*a)),
                _ => String::new(),
            };
            let line = format!("  {what:<32} {:>16} {:>16} {change:>16}", text(0, a), text(1, b));
            writeln!(f, "{}", line.trim_end())?;
        }
        if self.dynamic.contains(&true) {
            return writeln!(f, "  what is recomputed is decided at run time");
        }
        writeln!(f, "  recomputed in both: {} nodes", self.both)?;
        for (which, list) in [("first", &self.only_first), ("second", &self.only_second)] {
            writeln!(f, "  recomputed only in the {which}: {} nodes", list.len())?;
            for (name, times) in list {
                let times = if *times > 1 { format!("  {times} times") } else { String::new() };
                writeln!(f, "    {}{times}", quote_name(name))?;
            }
        }
        Ok(())
    }
}
