//! `dtrc explain`: why a tensor is kept, dropped or recomputed, and what the other choice would cost.

mod html;
mod life;
mod storages;

use crate::{
    cli::Global,
    commands::{compile::write_file, show::read_plan},
    error::CliError,
    model::costs,
    progress::note,
    units,
};
use compiler::cost::CostModel;
use graph::{ValueDef, ValueId, quote_name};
use life::Lives;
use plan::{Plan, Replay};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Arguments of `dtrc explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without --tensor: the memory over the step, what is live at the peak, and what is recomputed at which price. With it: the life of one
tensor, and for each gap in which nothing reads it, what the other choice would cost. Times are the plan's own predictions; --costs puts
measured ones in their place. Steps count from 0; a tensor is named like its value or its node. --html writes a page to look into with a browser: the memory and the
addresses over the step, what is live at any step, what is recomputed.

Examples:
  dtrc explain model.dtrc
  dtrc explain model.dtrc --tensor conv1
  dtrc explain model.dtrc --html model.html
  dtrc explain half.dtrc --beside full.dtrc --html both.html")]
pub struct Args {
    /// The plan file.
    plan: PathBuf,

    /// The life of this tensor.
    #[arg(long, value_name = "T")]
    tensor: Option<String>,

    /// The program. Default: the first.
    #[arg(long, default_value_t = 0, value_name = "I")]
    program: usize,

    /// How many tensors the lists hold.
    #[arg(long, default_value_t = 10, value_name = "N")]
    top: usize,

    /// Write a page for a browser, complete in one file.
    #[arg(long, value_name = "FILE", conflicts_with = "tensor")]
    html: Option<PathBuf>,

    /// Show this plan on the page, too, on the same scale.
    #[arg(long, value_name = "PLAN", requires = "html")]
    beside: Option<PathBuf>,

    /// Measured times, from dtrc profile, in place of those that the plan was made with.
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
}

/// Explains.
pub fn run(args: &Args, global: Global) -> Result<u8, CliError> {
    let given = args.costs.as_deref().map(|path| costs(Some(path))).transpose()?;
    let costs = given.as_ref();
    let (plan, replays) = read_plan(&args.plan)?;
    let lives = lives_of(&plan, &replays, args.program, costs)?;
    if let Some(path) = &args.html {
        let title = |p: &Path| p.display().to_string();
        let mut plans = vec![html::data(&plan, &lives, plan.budget_of(args.program), &title(&args.plan))];
        if let Some(other) = &args.beside {
            let (plan, replays) = read_plan(other)?;
            let (lives, budget) =
                (lives_of(&plan, &replays, args.program, costs)?, plan.budget_of(args.program));
            plans.push(html::data(&plan, &lives, budget, &title(other)));
        }
        write_file(path, html::page(&plans).as_bytes())?;
        note(global.quiet, format!("wrote {}", path.display()));
        return Ok(0);
    }
    match &args.tensor {
        None => overview(&plan, &lives, (plan.budget_of(args.program), args.top), global),
        Some(name) => tensor(&plan, &lives, find(&lives, name)?, plan.budget_of(args.program), global),
    }
    Ok(0)
}

/// The lives in a plan's program `index`.
fn lives_of<'a>(
    plan: &'a Plan,
    replays: &'a [Replay],
    index: usize,
    costs: Option<&CostModel>,
) -> Result<Lives<'a>, CliError> {
    let (Some(program), Some(replay)) = (plan.programs.get(index), replays.get(index)) else {
        let n = plan.programs.len();
        return Err(CliError::usage(format!("the plan's programs are counted from 0, and it has {n}")));
    };
    if program.dynamic.is_some() {
        let what = "is made anew at every step, and has no steps to explain before; `dtrc show` tells why";
        return Err(CliError::bad_input(format!("program {index} of {} {what}", quote_name(&plan.model))));
    }
    Ok(Lives::new(program, replay, costs))
}

/// The value of this name, or the first output of the node of this name.
fn find(lives: &Lives<'_>, name: &str) -> Result<ValueId, CliError> {
    let g = &lives.program.graph;
    let value = g.values.iter().position(|v| &*v.name == name).map(|i| ValueId(i as u32));
    let node = || g.nodes.iter().find(|n| &*n.name == name).and_then(|n| n.outputs.first().copied());
    value.or_else(node).ok_or_else(|| {
        let near: Vec<&str> =
            g.values.iter().map(|v| &*v.name).filter(|n| n.contains(name)).take(8).collect();
        let near = if near.is_empty() {
            "dtrc show lists all".to_owned()
        } else {
            format!("there are {}", near.join(", "))
        };
        CliError::usage(format!("the plan has no tensor {name:?}; {near}"))
    })
}

/// One repeated value: executions beyond the first and what they take.
struct Repeated {
    value: ValueId,
    times: usize,
    ns: u64,
}

fn repeated(lives: &Lives<'_>) -> Vec<Repeated> {
    let mut out: Vec<Repeated> = Vec::new();
    for &step in &lives.replay.recomputed {
        let Some(run) = lives.run(step) else { continue };
        let Some(&value) = lives.program.graph.node(run.node).outputs.first() else { continue };
        let ns = lives.ns[step];
        match out.iter_mut().find(|r| r.value == value) {
            Some(r) => {
                r.times += 1;
                r.ns += ns;
            }
            None => out.push(Repeated { value, times: 1, ns }),
        }
    }
    out.sort_by_key(|r| (std::cmp::Reverse(r.ns), r.value.0));
    out
}

fn overview(plan: &Plan, lives: &Lives<'_>, (budget, top): (u64, usize), global: Global) {
    let replay = lives.replay;
    let name = |v: ValueId| quote_name(&lives.program.graph.value(v).name);
    let repeated = repeated(lives);
    let largest = lives.live_at(replay.peak_step);
    let share = |ns: u64| ns as f64 / lives.base_ns.max(1) as f64;
    if global.json {
        let tensors: Vec<Value> =
            largest.iter().take(top).map(|(v, b)| json!({"tensor": name(*v), "bytes": b})).collect();
        let again: Vec<Value> = repeated
            .iter()
            .map(|r| json!({"tensor": name(r.value), "bytes": lives.bytes(r.value), "times": r.times, "time_fraction": share(r.ns)}))
            .collect();
        let object = json!({"schema": 1, "model": plan.model, "program": lives.program.kind.to_string(), "budget_bytes": budget,
            "state_bytes": plan.state_bytes, "peak_bytes": replay.peak, "peak_step": replay.peak_step,
            "extra_time_fraction": share(lives.time_ns.saturating_sub(lives.base_ns)), "live_bytes": replay.live, "largest_at_peak": tensors, "recomputed": again});
        println!("{object}");
        return;
    }
    println!(
        "{}  {}: {} steps, {} of them repeated",
        quote_name(&plan.model),
        lives.program.kind,
        lives.program.steps.len(),
        replay.recomputed.len()
    );
    println!("  memory over the step, up to {} of {}:", units::bytes(replay.peak), units::bytes(budget));
    println!("  {}", sparkline(&replay.live, 72));
    println!(
        "  the peak is at step {}, {}; live there:",
        replay.peak_step,
        lives.step_name(replay.peak_step)
    );
    println!("    {:>12}  state", units::bytes(plan.state_bytes));
    for (v, bytes) in largest.iter().take(top) {
        println!("    {:>12}  {}", units::bytes(*bytes), name(*v));
    }
    if largest.len() > top {
        let rest = largest[top..].iter().map(|x| x.1).sum();
        println!("    {:>12}  {} more", units::bytes(rest), largest.len() - top);
    }
    if repeated.is_empty() {
        println!("  nothing is recomputed: everything fits");
        return;
    }
    println!("  recomputed, dearest first:");
    for r in repeated.iter().take(top) {
        let times = if r.times == 1 { "once".to_owned() } else { format!("{} times", r.times) };
        println!(
            "    +{:>6.2} %  {} again, {}: {}",
            share(r.ns) * 100.0,
            times,
            units::bytes(lives.bytes(r.value)),
            name(r.value)
        );
    }
    if repeated.len() > top {
        let rest: u64 = repeated[top..].iter().map(|r| r.ns).sum();
        println!("    +{:>6.2} %  {} more", share(rest) * 100.0, repeated.len() - top);
    }
}

/// Live bytes as a line of blocks, the greatest of each stretch of steps.
fn sparkline(live: &[u64], columns: usize) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = live.iter().copied().max().unwrap_or(0).max(1);
    let stretch = live.len().div_ceil(columns.max(1)).max(1);
    let block = |chunk: &[u64]| {
        let n = chunk.iter().copied().max().unwrap_or(0);
        BLOCKS[((u128::from(n) * 8 / u128::from(most)) as usize).min(7)]
    };
    live.chunks(stretch).map(block).collect()
}

/// A stretch of steps in which nothing reads the tensor, and both choices for it.
struct Gap {
    from: usize,
    to: usize,
    /// Dropped and made again; otherwise kept.
    recomputed: bool,
    /// Time of the other executions that making it again takes, itself included.
    ns: u64,
    executions: usize,
    /// Most live bytes within the gap.
    live: u64,
    /// Why it could not be made again.
    forbidden: Option<String>,
}

fn gaps(lives: &Lives<'_>, v: ValueId) -> Vec<Gap> {
    let mut out = Vec::new();
    let instances = &lives.of[v.index()];
    let producer = lives.program.graph.producer(v);
    let own = producer.and_then(|n| lives.first_run(n)).map_or(0, |step| lives.ns[step]);
    for (k, x) in instances.iter().enumerate() {
        let mut uses: Vec<usize> = x.made.into_iter().collect();
        uses.extend(&x.reads);
        for pair in uses.windows(2).filter(|p| p[1] > p[0] + 1) {
            let live = lives.most_live(pair[0], pair[1]).map_or(0, |m| m.0);
            let forbidden = lives.forbidden(v, pair[1]);
            out.push(Gap {
                from: pair[0],
                to: pair[1],
                recomputed: false,
                ns: own,
                executions: 1,
                live,
                forbidden,
            });
        }
        let next = instances.get(k + 1).and_then(|n| n.made);
        if let (Some(&from), Some(to)) = (uses.last(), next) {
            let chain = lives.chain(to);
            let live = lives.most_live(from, to).map_or(0, |m| m.0);
            let (ns, executions) = (lives.time(&chain), chain.len());
            out.push(Gap { from, to, recomputed: true, ns, executions, live, forbidden: None });
        }
    }
    out
}

fn tensor(plan: &Plan, lives: &Lives<'_>, v: ValueId, budget: u64, global: Global) {
    let g = &lives.program.graph;
    let value = g.value(v);
    let bytes = lives.bytes(v);
    let gaps = gaps(lives, v);
    let share = |ns: u64| ns as f64 / lives.base_ns.max(1) as f64;
    if global.json {
        let instances: Vec<Value> = lives.of[v.index()]
            .iter()
            .map(|x| json!({"made_at": x.made, "read_at": x.reads, "dropped_after": x.end}))
            .collect();
        let gaps: Vec<Value> = gaps
            .iter()
            .map(|x| {
                json!({"from": x.from, "to": x.to, "choice": if x.recomputed { "recompute" } else { "keep" },
                "recompute_time_fraction": share(x.ns), "executions": x.executions, "most_live_bytes": x.live,
                "cannot_recompute": x.forbidden})
            })
            .collect();
        let object = json!({"schema": 1, "tensor": *value.name, "type": value.ty.to_string(), "bytes": bytes, "instances": instances,
            "gaps": gaps, "budget_bytes": budget});
        println!("{object}");
        return;
    }
    println!("{}  {}  {}", quote_name(&value.name), value.ty, units::bytes(bytes));
    match value.def {
        ValueDef::State(_) | ValueDef::Constant(_) => {
            println!(
                "  state: always there, in the {} that every step needs",
                units::bytes(plan.state_bytes)
            );
        }
        ValueDef::Input(_) => println!("  an input, staged before the step"),
        ValueDef::Node { .. } if bytes == 0 => {
            println!("  a view of another tensor or the new version of a state: no bytes of its own");
        }
        ValueDef::Node { .. } => {}
    }
    for x in &lives.of[v.index()] {
        let made = match x.made {
            Some(m) if lives.again[m] => format!("made again at step {m}"),
            Some(m) => format!("made at step {m} by {}", lives.step_name(m)),
            None => "there from the start".to_owned(),
        };
        let end = x.end.map_or_else(|| "there at the end".to_owned(), |e| format!("dropped after step {e}"));
        let reads: Vec<String> = x.reads.iter().map(|r| format!("{r} ({})", lives.step_name(*r))).collect();
        let reads =
            if reads.is_empty() { "never read".to_owned() } else { format!("read at {}", reads.join(", ")) };
        println!("  {made}; {reads}; {end}");
    }
    // Short stretches decide nothing.
    for x in gaps.iter().filter(|_| bytes > 0) {
        let (from, to) = (x.from + 1, x.to - 1);
        if x.recomputed {
            println!(
                "  steps {from} to {to}: given up, then recomputed by {} executions, +{:.2} % of the step",
                x.executions,
                share(x.ns) * 100.0
            );
            let held = x.live.saturating_add(bytes);
            if held > budget {
                println!(
                    "    keeping it would hold {} on top of the {} live there: {} over the budget",
                    units::bytes(bytes),
                    units::bytes(x.live),
                    units::bytes(held - budget)
                );
            } else {
                println!(
                    "    keeping it would hold {} on top of the {} live there, {} below the budget; other tensors kept instead save \
                     more, or no address was free that long",
                    units::bytes(bytes),
                    units::bytes(x.live),
                    units::bytes(budget - held)
                );
            }
        } else if let Some(why) = &x.forbidden {
            println!("  steps {from} to {to}: kept; it cannot be made again: {why}");
        } else {
            println!(
                "  steps {from} to {to}: kept; giving it up would free {} and cost at least +{:.2} % for making it again",
                units::bytes(bytes),
                share(x.ns) * 100.0
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::sparkline;

    #[test]
    fn a_line_shows_the_greatest_of_each_stretch() {
        assert_eq!(sparkline(&[0, 8, 4, 4, 1, 0], 3), "█▅▂");
        assert_eq!(sparkline(&[], 10), "");
        assert_eq!(sparkline(&[5], 10), "█");
    }
}
