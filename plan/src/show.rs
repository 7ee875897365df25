//! The text form for people: verdict first, one step a line, live bytes at the end of each line.

use crate::{Device, Place, Plan, Program, ProgramKind, Replay, Step};
use graph::{Graph, NodeId, ValueId, quote_name};
use std::fmt::Write;

const KIB: f64 = 1024.0;

/// The plan as text. `replays` are what [`crate::validate`] returned.
pub fn show(plan: &Plan, replays: &[Replay]) -> String {
    let mut out = String::new();
    for (program, replay) in plan.programs.iter().zip(replays) {
        // Writing to a string cannot fail.
        let _ = show_program(&mut out, plan, program, replay);
    }
    out
}

/// A byte count for people, in the unit that keeps it below 1024: `512 B`, `1.5 MiB`, `2.00 GiB`.
pub fn size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut x = bytes as f64 / KIB;
    // By the rounded figure: 1024.0 KiB is 1.0 MiB.
    for (unit, digits, limit) in [("KiB", 1, 1023.95), ("MiB", 1, 1023.95), ("GiB", 2, 1023.995)] {
        if x < limit {
            return format!("{x:.digits$} {unit}");
        }
        x /= KIB;
    }
    format!("{x:.2} TiB")
}

/// Bytes of the state, and of the input slot where there is one.
fn state(plan: &Plan) -> String {
    match plan.slot_bytes {
        0 => size(plan.state_bytes),
        slot => format!("{}   input slot {}", size(plan.state_bytes.saturating_sub(slot)), size(slot)),
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 }
}

fn show_program(out: &mut String, plan: &Plan, p: &Program, replay: &Replay) -> std::fmt::Result {
    let c = &p.certificate;
    writeln!(out, "plan {}  {}  {}  budget {}", quote_name(&plan.model), p.kind, plan.device, plan.budget)?;
    if !p.guard.dims.is_empty() {
        writeln!(out, "  where {}: planned at the upper bounds, run on the extents at hand", p.guard)?;
    }
    if let Some(d) = &p.dynamic {
        writeln!(
            out,
            "  arena {}   state {}   keep-all: known only at run time",
            size(c.arena),
            state(plan)
        )?;
        if plan.device == Device::Cuda {
            return writeln!(out, "  no region: what is beyond the programs above is refused on this device");
        }
        writeln!(out, "  dynamic region: the whole program, made anew at every step")?;
        writeln!(out, "    why: {}", d.reason)?;
        let (work, at) = (size(d.work), d.pool);
        let what = if p.kind == ProgramKind::Infer { "it runs" } else { "forward and backward run" };
        return writeln!(out, "    work {work} @ {at}   retain {work}: {what} in one piece");
    }
    writeln!(
        out,
        "  live peak {}   arena {}   keep-all {}   state {}",
        size(c.live_peak),
        size(c.arena),
        size(c.keep_all),
        state(plan)
    )?;
    let bound = match c.lower_bound_ns {
        Some(b) => format!("+{:.1} %", share(b, c.base_time_ns)),
        None => "not computed".to_owned(),
    };
    writeln!(
        out,
        "  recompute {} steps, +{:.1} % predicted   lower bound {bound}   stop: {}   strategy: {}",
        replay.recomputed.len(),
        share(c.time_ns.saturating_sub(c.base_time_ns), c.base_time_ns),
        c.stop_reason,
        c.strategy
    )?;
    writeln!(out, "  static region {{")?;
    write_rows(out, &rows(p, replay))?;
    writeln!(out, "  }}")
}

/// A step as it stands in its columns, and the lines below it.
struct Row {
    head: String,
    place: String,
    live: String,
    marks: &'static str,
    /// What is dropped after it, and what is live then.
    drops: Vec<(String, String)>,
}

/// Widest column of names before a line is allowed to stick out.
const WIDEST: usize = 72;

fn rows(p: &Program, replay: &Replay) -> Vec<Row> {
    let g = &p.graph;
    let label = Labels::new(g);
    let mut times = vec![0u32; g.nodes.len()];
    let mut live = replay.live.iter();
    let mut after = replay.live_after_drops.iter();
    let mut next = || size(after.next().copied().unwrap_or(0));
    let mut rows = Vec::with_capacity(p.steps.len());
    for (i, step) in p.steps.iter().enumerate() {
        // Valid plans of this version have no other steps.
        let Step::Run(run) = step else { continue };
        let node = g.node(run.node);
        times[run.node.index()] += 1;
        let suffix = match times[run.node.index()] {
            1 => String::new(),
            2 => "'".to_owned(),
            n => format!("'{}", n - 1),
        };
        let args: Vec<_> =
            node.inputs.iter().map(|v| v.map_or_else(|| "_".to_owned(), |v| label.value(g, v))).collect();
        let mut places = Vec::new();
        for (o, at) in node.outputs.iter().zip(&run.outputs) {
            let source = |input: &u32| args.get(*input as usize).map_or("_", |a| a.as_str());
            places.push(match at {
                Place::New { offset, .. } => format!("{} @ {offset}", size(g.ty(*o).bytes().unwrap_or(0))),
                Place::Overwrite { input } => format!("over {}", source(input)),
                Place::View { input } => format!("view of {}", source(input)),
                Place::Commit { input } => format!("commit {}", source(input)),
            });
        }
        let again = replay.recomputed.binary_search(&i).is_ok();
        let marks = match (again, i == replay.peak_step) {
            (true, true) => "recompute  peak",
            (true, false) => "recompute",
            (false, true) => "peak",
            (false, false) => "",
        };
        rows.push(Row {
            head: head(&format!("{}{suffix} = {}", quote_name(&node.name), node.op), &args),
            place: shortened(places, ", "),
            live: size(live.next().copied().unwrap_or(0)),
            marks,
            drops: run.drops.iter().map(|d| (format!("drop {}", label.value(g, *d)), next())).collect(),
        });
    }
    rows
}

/// A step's text: all arguments, or as many as the column takes.
fn head(call: &str, args: &[String]) -> String {
    let mut text = call.to_owned();
    for (i, a) in args.iter().enumerate() {
        let rest = if i + 1 < args.len() { ", ...".len() } else { 0 };
        if i > 0 && text.chars().count() + 2 + a.chars().count() + rest > WIDEST {
            text.push_str(", ...");
            break;
        }
        text.push_str(if i == 0 { " " } else { ", " });
        text.push_str(a);
    }
    text
}

/// All parts, or as many as the column takes and the number of the others.
fn shortened(parts: Vec<String>, between: &str) -> String {
    let (shown, more) = (parts.len().min(2), parts.len().saturating_sub(2));
    let text = parts[..shown].join(between);
    if more > 0 { format!("{text}, {more} more") } else { text }
}

fn write_rows(out: &mut String, rows: &[Row]) -> std::fmt::Result {
    let width = |f: fn(&Row) -> &str| {
        let widths = rows.iter().map(|r| f(r).chars().count()).filter(|w| *w <= WIDEST);
        widths.max().unwrap_or(0)
    };
    let (head, place, live) = (width(|r| &r.head), width(|r| &r.place), width(|r| &r.live));
    for r in rows {
        let line =
            format!("    {:<head$}   {:<place$}   live {:>live$}   {}", r.head, r.place, r.live, r.marks);
        writeln!(out, "{}", line.trim_end())?;
        for (drop, left) in &r.drops {
            writeln!(out, "    {drop:<head$}   {:<place$}   live {left:>live$}", "")?;
        }
    }
    Ok(())
}

/// Values are called by their node where it has one output, else by their own name.
struct Labels(Vec<bool>);

impl Labels {
    fn new(g: &Graph) -> Labels {
        Labels(g.nodes.iter().map(|n| n.outputs.len() == 1).collect())
    }

    fn value(&self, g: &Graph, v: ValueId) -> String {
        match g.producer(v) {
            Some(NodeId(n)) if self.0[n as usize] => quote_name(&g.nodes[n as usize].name),
            _ => quote_name(&g.value(v).name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_have_fitting_units() {
        let (k, m, g) = (1u64 << 10, 1u64 << 20, 1u64 << 30);
        let cases = [
            (0, "0 B"),
            (k - 1, "1023 B"),
            (k, "1.0 KiB"),
            (m - k, "1023.0 KiB"),
            (m - 1, "1.0 MiB"),
            (5 * m / 2, "2.5 MiB"),
            (g - 1, "1.00 GiB"),
            (1024 * g - 1, "1.00 TiB"),
            (u64::MAX, "16777216.00 TiB"),
        ];
        for (n, text) in cases {
            assert_eq!(size(n), text);
        }
    }
}
