//! The text form for people: verdict first, one step a line, live bytes at the end of each line.

use crate::{Place, Plan, Program, Replay, Step};
use graph::{Graph, NodeId, ValueId, quote_name};
use std::fmt::Write;

const MIB: f64 = 1048576.0;

/// The plan as text. `replays` are what [`crate::validate`] returned.
pub fn show(plan: &Plan, replays: &[Replay]) -> String {
    let mut out = String::new();
    for (program, replay) in plan.programs.iter().zip(replays) {
        // Writing to a string cannot fail.
        let _ = show_program(&mut out, plan, program, replay);
    }
    out
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 }
}

fn show_program(out: &mut String, plan: &Plan, p: &Program, replay: &Replay) -> std::fmt::Result {
    let c = &p.certificate;
    let mib = |b: u64| format!("{:.1} MiB", b as f64 / MIB);
    writeln!(out, "plan {}  {}  {}  budget {}", quote_name(&plan.model), p.kind, plan.device, plan.budget)?;
    writeln!(
        out,
        "  live peak {}   arena {}   keep-all {}   state {}",
        mib(c.live_peak),
        mib(c.arena),
        mib(c.keep_all),
        mib(plan.state_bytes)
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
    let g = &p.graph;
    let label = Labels::new(g);
    writeln!(out, "  static region {{")?;
    let mut times = vec![0u32; g.nodes.len()];
    let mut live = replay.live.iter();
    let mut peak_shown = false;
    for (i, step) in p.steps.iter().enumerate() {
        let Step::Run(run) = step else {
            writeln!(out, "    {step:?}")?;
            continue;
        };
        let node = g.node(run.node);
        times[run.node.index()] += 1;
        let n = times[run.node.index()];
        let suffix = if n == 1 {
            String::new()
        } else if n == 2 {
            "'".to_owned()
        } else {
            format!("'{}", n - 1)
        };
        let args: Vec<_> =
            node.inputs.iter().map(|v| v.map_or_else(|| "_".to_owned(), |v| label.value(g, v))).collect();
        let head = format!("{}{suffix} = {} {}", quote_name(&node.name), node.op, args.join(", "));
        let mut place = String::new();
        for (o, at) in node.outputs.iter().zip(&run.outputs) {
            match at {
                Place::New { offset, .. } => {
                    write!(place, " {} @ {offset}", mib(g.ty(*o).bytes().unwrap_or(0)))?
                }
                Place::Overwrite { input } => write!(place, " over {}", args[*input as usize])?,
                Place::View { input } => write!(place, " view of {}", args[*input as usize])?,
                Place::Commit { input } => write!(place, " commit {}", args[*input as usize])?,
            }
        }
        let bytes = live.next().copied().unwrap_or(0);
        let mut marks = String::new();
        if replay.recomputed.contains(&i) {
            marks.push_str("   recompute");
        }
        if bytes == replay.peak && !std::mem::replace(&mut peak_shown, true) {
            marks.push_str("   peak");
        }
        writeln!(out, "    {head:<60} {place:<28} live {:>10}{marks}", mib(bytes))?;
        for d in &run.drops {
            writeln!(out, "    drop {}", label.value(g, *d))?;
        }
    }
    writeln!(out, "  }}")
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
