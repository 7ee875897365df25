//! Dynamic programming over a chain of stages, each with several options (after Beaumont et al. 2019 and Zhao et al. 2023), on any graph.
//!
//! What runs before the peak of keep-all is cut into stages where the fewest bytes cross. A stage is taken back in one of some ways: what
//! stays from its run until then, what is made again. Stages left of a cut may also be given up but for what crosses the cut, run again
//! when those behind it are done, and be planned anew in the memory that is free then:
//!
//! ```text
//! cost(s, t, m) = least of  run(s) + again(s, o) + cost(s + 1, t, m - kept(s, o))         over options o with kept + made again <= m
//!                           run(s .. k) + cost(k, t, m - crossing(k)) + cost(s, k - 1, m)  over cuts k
//! ```
//!
//! Memory is counted in slots. One table serves all amounts of memory: what the model leaves out (gradients, scratch, skips over several
//! stages) is met by reading it at several amounts and judging each schedule exactly.

use super::super::decode::{Genome, arrive};
use super::super::index::{Index, NONE};
use super::super::problem::{Bytes, Nanos};
use super::square_root::Crossing;
use super::{Candidate, Context, take_better};

/// Numbers of cuts.
const CUTS: [usize; 4] = [5, 9, 15, 23];
/// Amounts of memory that are told apart.
const SLOTS: usize = 128;
/// Options of a stage: these eighths of what can stay do.
const OPTIONS: usize = 8;
/// Shares of the budget, in 64ths, that the table is read at.
const READINGS: [usize; 10] = [64, 60, 56, 52, 48, 43, 38, 33, 27, 20];

/// The best reading of the best number of stages, for each of the first orders.
pub(crate) fn run(context: &mut Context<'_, '_>) -> Vec<Candidate> {
    let mut out = Vec::new();
    let spare = context.budget.saturating_sub(context.index.problem.resident);
    let orders: Vec<Vec<u32>> = context.orders.iter().take(2).cloned().collect();
    for order in orders {
        let keep = Genome::keep_all(context.index, order);
        let Some(score) = context.evaluator.decode(&keep, context.budget, u64::MAX) else { continue };
        let turn = context.evaluator.places.get(score.peak_step as usize).copied().unwrap_or(0);
        let crossing = Crossing::new(context.index, &keep, turn);
        let mut best = None;
        let mut last = Vec::new();
        for count in CUTS {
            let mut cuts = crossing.checkpoints(count);
            cuts.dedup();
            if cuts.is_empty() || cuts == last {
                continue;
            }
            let chain = Chain::new(context.index, &keep, &crossing, &cuts, spare);
            last = cuts;
            let table = chain.solve();
            context.evaluator.work += (table.cost.len() / 4) as u64;
            let mut tried: Vec<Genome> = Vec::new();
            for reading in READINGS {
                let Some(genome) = chain.read(&table, &keep, SLOTS * reading / 64) else { continue };
                if !tried.contains(&genome) {
                    let cutoff = context.index.base_time.saturating_mul(8);
                    let candidate = context.decode("chain", genome.clone(), cutoff);
                    take_better(context.budget, &mut best, candidate);
                    tried.push(genome);
                }
            }
        }
        out.extend(best);
    }
    out
}

/// A way to take a stage back.
struct Choice {
    /// Positions in the crossing's groups that stay.
    stay: Vec<usize>,
    kept: usize,
    /// Slots of what is made again.
    made: usize,
    again: Nanos,
}

struct Stage {
    options: Vec<Choice>,
    /// Time of its own run.
    run: Nanos,
    /// Slots of what crosses its right end.
    crossing: usize,
    /// Where the right end lies, and the place behind the turn at which its results are first read.
    end: u32,
    back: u32,
}

struct Chain<'c> {
    crossing: &'c Crossing,
    stages: Vec<Stage>,
    /// Stage of each of the crossing's groups.
    stage_of: Vec<usize>,
}

/// Costs of stages `s..=t` within each number of slots, and how each comes about.
struct Table {
    stages: usize,
    cost: Vec<Nanos>,
    /// An option of the first stage, or `OPTIONS + 1 +` the first stage right of a cut.
    way: Vec<u8>,
}

impl Table {
    fn at(&self, s: usize, t: usize, m: usize) -> usize {
        (s * self.stages + t) * (SLOTS + 1) + m
    }

    fn cost(&self, s: usize, t: usize, m: usize) -> Nanos {
        if s > t { 0 } else { self.cost[self.at(s, t, m)] }
    }
}

impl<'c> Chain<'c> {
    fn new(index: &Index<'_>, keep: &Genome, crossing: &'c Crossing, cuts: &[u32], spare: Bytes) -> Self {
        let slots = |bytes: Bytes| {
            let slots = (u128::from(bytes) * SLOTS as u128).div_ceil(u128::from(spare.max(1)));
            slots.min(2 * SLOTS as u128) as usize
        };
        let ends: Vec<u32> = cuts.iter().copied().chain([crossing.turn]).collect();
        let stage_of: Vec<usize> =
            crossing.groups.iter().map(|g| ends.partition_point(|&e| e < g.2).min(ends.len() - 1)).collect();
        let mut stages: Vec<Stage> = Vec::new();
        for (s, &end) in ends.iter().enumerate() {
            let begin = if s == 0 { 0 } else { ends[s - 1] + 1 };
            let nodes = &keep.order[begin as usize..=(end as usize).min(keep.order.len() - 1)];
            let own: Vec<usize> = (0..stage_of.len()).filter(|&g| stage_of[g] == s).collect();
            let reader = |g: &usize| {
                let node = index.edge_node[crossing.groups[*g].1 as usize];
                (node as usize <= index.nodes()).then(|| keep.place[node as usize])
            };
            stages.push(Stage {
                options: choices(index, crossing, &own, nodes, end, &slots),
                run: nodes.iter().map(|&n| index.time[n as usize]).sum(),
                crossing: slots(crossing.weight.get(end as usize).copied().unwrap_or(0)),
                end,
                back: own.iter().filter_map(reader).min().unwrap_or(NONE),
            });
        }
        // Stages are taken back from right to left.
        let mut earliest = crossing.turn;
        for stage in stages.iter_mut().rev() {
            stage.back = if stage.back == NONE { earliest } else { stage.back.max(earliest) };
            earliest = stage.back;
        }
        Self { crossing, stages, stage_of }
    }

    fn solve(&self) -> Table {
        let n = self.stages.len();
        let size = n * n * (SLOTS + 1);
        let mut table = Table { stages: n, cost: vec![Nanos::MAX; size], way: vec![0; size] };
        for length in 1..=n {
            for s in 0..=n - length {
                let t = s + length - 1;
                for m in 0..=SLOTS {
                    let (mut best, mut way) = (Nanos::MAX, 0);
                    for (o, option) in self.stages[s].options.iter().enumerate() {
                        if option.kept + option.made <= m {
                            let rest = table.cost(s + 1, t, m - option.kept);
                            let cost = rest.saturating_add(self.stages[s].run + option.again);
                            if cost < best {
                                (best, way) = (cost, o as u8);
                            }
                        }
                    }
                    let mut run = 0;
                    for k in s + 1..=t {
                        run += self.stages[k - 1].run;
                        let crossing = self.stages[k - 1].crossing;
                        if crossing <= m {
                            let right = table.cost(k, t, m - crossing);
                            let cost = right.saturating_add(table.cost(s, k - 1, m)).saturating_add(run);
                            if cost < best {
                                (best, way) = (cost, (OPTIONS + 1 + k) as u8);
                            }
                        }
                    }
                    let at = table.at(s, t, m);
                    (table.cost[at], table.way[at]) = (best, way);
                }
            }
        }
        table
    }

    /// The decisions of the table for all stages within `m` slots.
    fn read(&self, table: &Table, keep: &Genome, m: usize) -> Option<Genome> {
        let last = self.stages.len() - 1;
        if table.cost(0, last, m) == Nanos::MAX {
            return None;
        }
        // From which place on each group is held; what nothing asks for, from its stage's own end on.
        let mut hold: Vec<u32> = self.stage_of.iter().map(|&s| self.stages[s].back).collect();
        let mut open = vec![(0, last, m, 0)];
        while let Some((s, t, m, from)) = open.pop() {
            if s > t {
                continue;
            }
            let way = usize::from(table.way[table.at(s, t, m)]);
            if way <= OPTIONS {
                let option = &self.stages[s].options[way];
                option.stay.iter().for_each(|&g| hold[g] = hold[g].min(from));
                open.push((s + 1, t, m - option.kept, from));
                continue;
            }
            let k = way - OPTIONS - 1;
            let cut = self.stages[k - 1].end;
            for (held, group) in hold.iter_mut().zip(&self.crossing.groups) {
                if group.2 <= cut && cut < group.3 {
                    *held = (*held).min(from);
                }
            }
            open.push((k, t, m - self.stages[k - 1].crossing, from));
            open.push((s, k - 1, m, self.stages[k - 1].back));
        }
        let mut genome = keep.clone();
        for (&from, &(_, edge, ..)) in hold.iter().zip(&self.crossing.groups) {
            genome.arrive[edge as usize] = match keep.order.get(from as usize) {
                _ if from == 0 => arrive::KEEP,
                Some(&node) => arrive::FROM + node,
                None => arrive::DROP,
            };
        }
        Some(genome)
    }
}

/// A stage's options: what crosses its end stays always, and of the rest what costs most to make again for its bytes.
fn choices(
    index: &Index<'_>,
    crossing: &Crossing,
    own: &[usize],
    nodes: &[u32],
    end: u32,
    slots: &impl Fn(Bytes) -> usize,
) -> Vec<Choice> {
    let bytes = |g: usize| index.group_bytes[crossing.groups[g].0 as usize];
    let maker = |g: usize| index.group_node[crossing.groups[g].0 as usize];
    let boundary = |g: usize| end < crossing.groups[g].3;
    let mut rest: Vec<usize> = own.iter().copied().filter(|&g| !boundary(g)).collect();
    // Read behind the turn: the others are kept only to make something again.
    let read = |g: usize| (index.edge_node[crossing.groups[g].1 as usize] as usize) <= index.nodes();
    rest.sort_by(|&a, &b| {
        let price = |g: usize| index.time[maker(g) as usize] as f64 / bytes(g).max(1) as f64;
        read(b).cmp(&read(a)).then(price(b).total_cmp(&price(a))).then(a.cmp(&b))
    });
    let useful: Bytes = rest.iter().filter(|&&g| read(g)).map(|&g| bytes(g)).sum();
    let mut options: Vec<Choice> = Vec::new();
    for part in 0..=OPTIONS as u128 {
        let most = (u128::from(useful) * part / OPTIONS as u128) as Bytes;
        let mut stay: Vec<usize> = own.iter().copied().filter(|&g| boundary(g)).collect();
        let mut dropped = Vec::new();
        let mut filled = 0;
        for &g in rest.iter().filter(|&&g| read(g)) {
            if filled + bytes(g) <= most {
                filled += bytes(g);
                stay.push(g);
            } else {
                dropped.push(g);
            }
        }
        let kept: Bytes = stay.iter().map(|&g| bytes(g)).sum();
        let made: Bytes = dropped.iter().map(|&g| bytes(g)).sum();
        let there: Vec<u32> = stay.iter().map(|&g| crossing.groups[g].0).collect();
        let again = again(index, nodes, &there, dropped.iter().map(|&g| maker(g)));
        options.push(Choice { stay, kept: slots(kept), made: slots(made), again });
    }
    options
}

/// Time of making some nodes of a stage again while some groups are there.
fn again(index: &Index<'_>, nodes: &[u32], there: &[u32], wanted: impl Iterator<Item = u32>) -> Nanos {
    let (mut needed, mut is_there) = (vec![false; index.nodes()], vec![false; index.groups()]);
    there.iter().for_each(|&g| is_there[g as usize] = true);
    wanted.for_each(|n| needed[n as usize] = true);
    let mut time = 0;
    for &node in nodes.iter().rev().filter(|n| !index.once[**n as usize]) {
        if needed[node as usize] {
            time += index.time[node as usize];
            let groups = index.input_groups.row(node).iter().filter(|g| !is_there[**g as usize]);
            for maker in groups.map(|&g| index.group_node[g as usize]).filter(|&n| n != NONE) {
                needed[maker as usize] = true;
            }
        }
    }
    time
}
