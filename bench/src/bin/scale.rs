//! Planning time against size: random layered training graphs and a deep transformer, one after another on one core.
//!
//! `scale [CASE-SUBSTRING] [--out FILE.csv] [--phases]`: for each case and budget the seconds of a core, the most memory the process has held so far, the best
//! seed's extra time and the plan's. Every plan is replayed again before it counts.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context as _, Result};
use compiler::planner::problem::{Implementation, Node, Value};
use compiler::planner::{Options, Problem, plan, replay::replay};

/// Shares of keep-all's transient bytes.
const BUDGETS: [u64; 2] = [70, 50];

/// A name and what makes the problem.
type Case = (&'static str, fn() -> Problem);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let filter = arguments.first().filter(|a| !a.starts_with("--")).cloned().unwrap_or_default();
    let out = arguments.iter().position(|a| a == "--out").and_then(|i| arguments.get(i + 1)).cloned();
    let mut table = String::from(
        "case,nodes,budget_percent,cpu_seconds,peak_memory_mib,seed_extra,extra,bound,recomputed\n",
    );
    let cases: [Case; 6] = [
        ("layered_1000", || layered(1_000, 1)),
        ("layered_5000", || layered(5_000, 2)),
        ("layered_20000", || layered(20_000, 3)),
        ("transformer_2", || transformer(2)),
        ("transformer_12", || transformer(12)),
        ("transformer_48", || transformer(48)),
    ];
    for (name, make) in cases.into_iter().filter(|c| c.0.contains(&filter)) {
        let problem = make();
        for percent in BUDGETS {
            let row = measure(name, &problem, percent)?;
            print!("{row}");
            table.push_str(&row);
        }
    }
    if let Some(out) = out {
        std::fs::write(&out, table).with_context(|| format!("write {out}"))?;
    }
    Ok(())
}

/// Plans at a share of the given order's live peak and checks the plan.
fn measure(name: &str, problem: &Problem, percent: u64) -> Result<String> {
    let order: Vec<u32> = (0..problem.nodes.len() as u32).collect();
    let all = compiler::planner::replay::assemble(problem, &order, u64::MAX);
    let budget = replay(problem, &all)?.peak / 100 * percent;
    let seeds = Arc::new(Mutex::new(None));
    let seen = seeds.clone();
    let (begin, cpu) = (Instant::now(), bench::cpu_seconds());
    let phases = std::env::args().any(|a| a == "--phases");
    let options = Options {
        progress: Some(Arc::new(move |p| {
            if phases {
                eprintln!(
                    "{:7.2} s  {}  {:?}  {}",
                    begin.elapsed().as_secs_f64(),
                    p.phase,
                    p.extra_fraction,
                    p.peak
                );
            }
            if p.phase != "local search"
                && let Ok(mut best) = seen.lock()
            {
                *best = p.extra_fraction.or(*best);
            }
        })),
        live_bytes_only: true,
        ..Options::default()
    };
    let planned = plan(problem, budget, &options);
    let seconds = bench::cpu_seconds() - cpu;
    let memory = resident_peak_mib();
    let nodes = problem.nodes.len();
    let seed = seeds.lock().ok().and_then(|s| *s);
    let seed = seed.map_or_else(|| "none".into(), |s| format!("{s:.6}"));
    let mut row = String::new();
    match planned {
        Ok(plan) => {
            let checked = replay(problem, &plan.schedule)?;
            anyhow::ensure!(checked.peak <= budget, "{name}: over the budget");
            let bound = plan.bound.unwrap_or(0) as f64 / plan.base_time as f64;
            let again = plan.schedule.recomputations();
            let extra = plan.extra_fraction();
            writeln!(
                row,
                "{name},{nodes},{percent},{seconds:.2},{memory},{seed},{extra:.6},{bound:.6},{again}"
            )?;
        }
        Err(e) => {
            eprintln!("{name} at {percent} %: {e}");
            writeln!(row, "{name},{nodes},{percent},{seconds:.2},{memory},{seed},not found,,")?;
        }
    }
    Ok(row)
}

/// The most resident memory of this process so far, in MiB.
fn resident_peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| kib / 1024)
}

/// Builds training graphs: forward operators, then their gradients in reverse.
struct Builder {
    problem: Problem,
    /// Forward operators: their value, its inputs.
    forward: Vec<(u32, Vec<u32>)>,
    reads_output: Vec<bool>,
}

impl Builder {
    fn new() -> Self {
        let problem = Problem { alignment: 1, ..Problem::default() };
        Self { problem, forward: Vec::new(), reads_output: Vec::new() }
    }

    fn node(&mut self, mut inputs: Vec<u32>, bytes: u64, time: u64) -> u32 {
        inputs.sort_unstable();
        inputs.dedup();
        let (node, value) = (self.problem.nodes.len() as u32, self.problem.values.len() as u32);
        self.problem.nodes.push(Node {
            name: format!("n{node}"),
            inputs,
            outputs: vec![value],
            implementations: vec![Implementation { workspace: 0, time }],
            overwrites: Vec::new(),
            once: false,
            required: true,
        });
        self.problem.values.push(Value {
            name: format!("v{value}"),
            producer: Some(node),
            bytes,
            view_of: None,
            resident: false,
            keep_to_end: false,
        });
        value
    }

    /// A forward operator; its gradient reads its output (as activations do) or its inputs (as products do).
    fn operator(&mut self, inputs: &[u32], bytes: u64, time: u64, reads_output: bool) -> u32 {
        let value = self.node(inputs.to_vec(), bytes, time);
        self.forward.push((value, inputs.to_vec()));
        self.reads_output.push(reads_output);
        value
    }

    /// The backward pass: per operator one node that makes the gradients of its inputs.
    fn backward(mut self) -> Problem {
        let mut gradients: Vec<Vec<u32>> = vec![Vec::new(); self.problem.values.len()];
        for (position, (value, inputs)) in self.forward.clone().into_iter().enumerate().rev() {
            let forward = self.problem.values[value as usize].clone();
            let time = self.problem.nodes[value as usize].implementations[0].time;
            let mut read = std::mem::take(&mut gradients[value as usize]);
            if self.reads_output[position] {
                read.push(value);
            } else {
                read.extend(&inputs);
            }
            for input in inputs {
                let bytes = self.problem.values[input as usize].bytes;
                let gradient = self.node(read.clone(), bytes, time.max(1));
                gradients[input as usize].push(gradient);
            }
            debug_assert!(forward.bytes > 0);
        }
        self.problem
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (((z ^ (z >> 31)) as u128 * n as u128) >> 64) as u64
    }
}

/// Layers of 1 to 6 operators, each reading the layer before, now and then one further back.
fn layered(nodes: usize, seed: u64) -> Problem {
    let mut random = Random(seed);
    let mut builder = Builder::new();
    let mut before = vec![builder.operator(&[], 8 << 20, 1_000, true)];
    let mut old = before[0];
    let mut count = 1;
    // A forward operator costs about two and a half nodes.
    while count * 5 < nodes * 2 {
        let mut layer = Vec::new();
        for _ in 0..1 + random.below(6) {
            let mut inputs = vec![before[random.below(before.len() as u64) as usize]];
            if random.below(3) == 0 {
                inputs.push(before[random.below(before.len() as u64) as usize]);
            }
            if random.below(12) == 0 {
                inputs.push(old);
            }
            inputs.sort_unstable();
            inputs.dedup();
            let bytes = (1 + random.below(32)) << 18;
            let heavy = random.below(3) == 0;
            let time = if heavy { 2_000 + random.below(8_000) } else { 50 + random.below(300) };
            layer.push(builder.operator(&inputs, bytes, time, !heavy));
            count += 1;
        }
        old = before[0];
        // What nobody reads would end here: one operator gathers the layer.
        if layer.len() > 3 {
            let bytes = (1 + random.below(16)) << 18;
            let gathered = builder.operator(&layer, bytes, 200, false);
            count += 1;
            layer = vec![gathered];
        }
        before = layer;
    }
    let loss = builder.operator(&before.clone(), 4, 10, false);
    debug_assert!(loss > 0);
    builder.backward()
}

/// Layers of attention and a two-layer perceptron, each with its normalisation and residual sum.
fn transformer(layers: usize) -> Problem {
    let unit = 12u64 << 20;
    let mut b = Builder::new();
    let mut x = b.operator(&[], unit, 2_000, true);
    for _ in 0..layers {
        let n = b.operator(&[x], unit, 600, false);
        let heads: Vec<u32> = (0..3).map(|_| b.operator(&[n], unit, 4_800, false)).collect();
        let scores = b.operator(&[heads[0], heads[1]], 8 * unit, 3_200, false);
        let masked = b.operator(&[scores], 8 * unit, 4_200, true);
        let soft = b.operator(&[masked], 8 * unit, 4_800, true);
        let dropped = b.operator(&[soft], 8 * unit, 4_300, true);
        let context = b.operator(&[dropped, heads[2]], unit, 3_200, false);
        let projected = b.operator(&[context], unit, 4_800, false);
        x = b.operator(&[x, projected], unit, 900, false);
        let n = b.operator(&[x], unit, 600, false);
        let up = b.operator(&[n], 4 * unit, 19_200, false);
        let gelu = b.operator(&[up], 4 * unit, 2_400, false);
        let down = b.operator(&[gelu], unit, 19_200, false);
        x = b.operator(&[x, down], unit, 900, false);
    }
    let n = b.operator(&[x], unit, 600, false);
    b.operator(&[n], 4, 40_000, false);
    b.backward()
}
