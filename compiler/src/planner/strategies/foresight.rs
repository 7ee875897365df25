//! Foresight: the planner of dynamic programs, asked for a static plan.
//!
//! `dtr::foresight` decides in one pass over a program that is known to its end. The victim is the least cost of its evicted neighbourhood
//! over the bytes it frees and the cost of what runs until it is needed; what is missing comes back in one run over its evicted ancestors,
//! each of them once. Where weights are read in every round of a loop that is written out (recurrent layers, simulations), the other seeds
//! lie far over a small budget, and no local search comes down from there.
//!
//! The pass is told of no commits. What it repeats may read a state again that its order has committed long before, so that commits are put
//! at the end, and afterwards as far to the front as the readers of the old version allow.

use dtr::foresight::{Action, Limits, Step, Straight, plan};

use super::super::index::{Index, NONE};
use super::super::problem::{Bytes, Nanos};
use super::{Candidate, Context, sequence_search, take_better};

/// Budgets of the pass, in 32nds of what the budget leaves beside the state; the largest that fits is taken. The exact replay needs less
/// than the pass, which overwrites at first executions only.
const PARTS: [Bytes; 6] = [34, 33, 32, 31, 30, 28];
/// Repeated executions may take so many base times together; more only if nothing else fits.
const PATIENCE: [Nanos; 2] = [2, 8];
/// An order in which the pass has failed this often with falling budgets is left.
const FAILURES: u32 = 2;
/// Passes take this part of the work of the whole search at most.
const SHARE: u64 = 8;
/// Budgets looked at on the way to the least one, twice: all the way down, then between the last that does and the next.
const STEPS_DOWN: Bytes = 16;
/// An op of a pass takes as long as so many executed steps: it is tried in several ways, and each eviction looks at what depends on it.
const STEPS: u64 = 64;

/// For each order the schedule with the largest budget of the pass that fits, or what comes nearest.
pub(crate) fn run(context: &mut Context<'_, '_>) -> Vec<Candidate> {
    let budget = context.budget;
    let base = context.index.base_time;
    let spare = budget.saturating_sub(context.index.problem.resident);
    let programs = programs(context);
    let end = context.evaluator.work + context.work / SHARE;
    let fits = |c: &Option<Candidate>| c.as_ref().is_some_and(|c| c.score.peak <= budget);
    let mut best: Vec<Option<Candidate>> = vec![None; programs.len()];
    for patience in PATIENCE {
        let mut limit = base.saturating_mul(patience);
        let mut failed = vec![0; programs.len()];
        for part in PARTS {
            for (at, program) in programs.iter().enumerate() {
                if context.evaluator.work >= end || failed[at] >= FAILURES || fits(&best[at]) {
                    continue;
                }
                let room = spare / 32 * part + spare % 32;
                let Some((candidate, cost)) = pass(context, program, room, limit) else {
                    failed[at] += 1;
                    continue;
                };
                if candidate.score.peak <= budget {
                    limit = limit.min(cost);
                }
                take_better(budget, &mut best[at], Some(candidate));
            }
        }
        if best.iter().any(fits) {
            break;
        }
    }
    best.into_iter().flatten().collect()
}

/// The schedule with the least peak between two budgets. A pass may fail at a budget and succeed at a smaller one, so that this is no
/// bisection.
pub(crate) fn lowest(context: &mut Context<'_, '_>, low: Bytes, high: Bytes) -> Option<Candidate> {
    let (index, budget) = (context.index, context.budget);
    let limit = index.base_time.saturating_mul(PATIENCE[0]);
    let end = context.evaluator.work + context.work / SHARE;
    let mut best: Option<Candidate> = None;
    for program in programs(context) {
        let (mut low, mut high) = (low, high);
        for _ in 0..2 {
            let step = (high.saturating_sub(low) / STEPS_DOWN).max(1);
            let (mut least, mut failed) = (high, 0);
            for down in 1..=STEPS_DOWN {
                let Some(at) = high.checked_sub(down * step).filter(|&at| at >= low) else { break };
                if failed >= FAILURES || context.evaluator.work >= end {
                    break;
                }
                context.budget = at;
                let room = at.saturating_sub(index.problem.resident);
                let Some((candidate, _)) = pass(context, &program, room, limit) else {
                    failed += 1;
                    continue;
                };
                (least, failed) = (at, 0);
                if best.as_ref().is_none_or(|b| candidate.score.peak < b.score.peak) {
                    best = Some(candidate);
                }
            }
            (low, high) = (least.saturating_sub(step).max(low), least);
        }
    }
    context.budget = budget;
    best
}

/// The given order first, as those with the least peak of keep-all are seldom good to be repeated in parts; and each with commits last.
fn programs<'i, 'a>(context: &Context<'i, 'a>) -> Vec<Known<'i, 'a>> {
    let index = context.index;
    let mut orders: Vec<Vec<u32>> = vec![index.given.clone()];
    orders.extend(context.orders.iter().take(2).filter(|&o| *o != index.given).cloned());
    let mut out = Vec::new();
    for order in orders {
        let (late, commits) = commits_last(index, &order);
        let moved = late != order;
        if !context.keep_order && commits < late.len() {
            out.push(Known::new(index, late, commits));
        }
        if context.keep_order || moved || commits == order.len() {
            let end = order.len();
            out.push(Known::new(index, order, end));
        }
    }
    out
}

/// One pass, and what its repetitions cost, which is at most the limit.
fn pass(
    context: &mut Context<'_, '_>,
    program: &Known<'_, '_>,
    room: Bytes,
    limit: Nanos,
) -> Option<(Candidate, Nanos)> {
    let index = context.index;
    let schedule = plan(&program.straight, Limits { budget: room, repeat_cost: limit });
    // One that fails has looked for a way up to the limit.
    let cost = schedule.as_ref().map_or(limit, |s| s.repeat_cost);
    let ops = program.straight.steps.len() as u64;
    let repeated = u128::from(cost) * u128::from(ops) / u128::from(index.base_time.max(1));
    context.evaluator.work += STEPS * (ops + repeated as u64);
    let sequence = program.sequence(&schedule.ok()?.actions)?;
    let sequence = sequence_search::drop_unread(index, &sequence, context.keep_order);
    Some((context.sequence("foresight", sequence)?, cost))
}

/// The order with commits, and what depends on them, at the end; and where that begins.
fn commits_last(index: &Index<'_>, order: &[u32]) -> (Vec<u32>, usize) {
    let mut late = vec![false; index.nodes()];
    for &node in order {
        let mut makers = index.inputs.row(node).iter().map(|&v| index.producer[v as usize]);
        late[node as usize] =
            !index.commits.row(node).is_empty() || makers.any(|m| m != NONE && late[m as usize]);
    }
    let (mut out, end): (Vec<u32>, Vec<u32>) = order.iter().partition(|&&n| !late[n as usize]);
    let begin = out.len();
    out.extend(end);
    (out, begin)
}

/// The sequence with each of these nodes, which run once, as early as what it reads and the readers of an old version allow.
fn advance(index: &Index<'_>, sequence: &[u32], nodes: &[u32]) -> Vec<u32> {
    let mut moves = vec![false; index.nodes()];
    nodes.iter().for_each(|&n| moves[n as usize] = true);
    let rest: Vec<u32> = sequence.iter().copied().filter(|&n| !moves[n as usize]).collect();
    // Steps of `rest` that must have run: until a node has, and until a state's old version is read last.
    let mut made = vec![0; index.nodes()];
    let mut read = vec![0; index.problem.states.len()];
    for (step, &node) in rest.iter().enumerate() {
        if made[node as usize] == 0 {
            made[node as usize] = step + 1;
        }
        index.reads_state.row(node).iter().for_each(|&s| read[s as usize] = step + 1);
    }
    let mut placed: Vec<(usize, u32)> = Vec::new();
    for &node in nodes {
        let makers = index.predecessors.row(node).iter().map(|&p| made[p as usize]);
        let old = index.commits.row(node).iter().map(|&s| read[s as usize]);
        let at = makers.chain(old).max().unwrap_or(0);
        made[node as usize] = at;
        for &s in index.reads_state.row(node) {
            read[s as usize] = at.max(read[s as usize]);
        }
        placed.push((at, node));
    }
    placed.sort_by_key(|p| p.0);
    let mut placed = placed.into_iter().peekable();
    let mut out = Vec::with_capacity(sequence.len());
    for step in 0..=rest.len() {
        while let Some((_, node)) = placed.next_if(|p| p.0 == step) {
            out.push(node);
        }
        out.extend(rest.get(step));
    }
    out
}

/// A problem in one order as the pass reads it: storages are groups, and one more op at the beginning makes the staged inputs.
struct Known<'i, 'a> {
    index: &'i Index<'a>,
    order: Vec<u32>,
    straight: Straight,
}

impl<'i, 'a> Known<'i, 'a> {
    /// The nodes from `last` on read what is there and run when nothing is repeated any more.
    fn new(index: &'i Index<'a>, order: Vec<u32>, last: usize) -> Self {
        let groups = index.groups();
        let staged = (0..groups as u32).filter(|&g| index.group_node[g as usize] == NONE).collect();
        let mut straight = Straight {
            steps: vec![Step { makes: staged, once: true, ..Step::default() }],
            bytes: index.group_bytes.clone(),
            // Of what a node makes that nothing needs there is no op and no reader.
            makers: index.group_node.iter().map(|&n| if n == NONE { 0 } else { Straight::OUTSIDE }).collect(),
            last: last + 1,
            ..Straight::default()
        };
        // Uses still to come: an input may be overwritten by its last reader.
        let mut left: Vec<usize> = (0..groups as u32).map(|g| index.group_edges.row(g).len() - 1).collect();
        for (place, &node) in order.iter().enumerate() {
            let reads = index.input_groups.row(node);
            let makes = own_groups(index, node);
            makes.iter().for_each(|&g| straight.makers[g as usize] = place as u32 + 1);
            let over = index.overwrites.row(node).chunks_exact(2).find_map(|pair| {
                let (made, read) = (index.value_group[pair[0] as usize], index.value_group[pair[1] as usize]);
                let values =
                    index.inputs.row(node).iter().filter(|&&v| index.value_group[v as usize] == read);
                let lawful = left[read as usize] == 1
                    && values.count() == 1
                    && !index.pinned[read as usize]
                    && index.group_bytes[read as usize] > 0;
                lawful.then_some((made, read))
            });
            reads.iter().for_each(|&g| left[g as usize] -= 1);
            straight.steps.push(Step {
                reads: reads.to_vec(),
                makes,
                workspace: index.workspace[node as usize],
                cost: index.time[node as usize],
                once: index.once[node as usize],
                leaf: false,
                over,
                commits: Vec::new(),
            });
        }
        let results = index.kept_to_end.iter().map(|&v| index.value_group[v as usize]);
        straight.results = results.filter(|&g| g != NONE).collect();
        straight.results.sort_unstable();
        straight.results.dedup();
        Self { index, order, straight }
    }

    /// The executions behind the actions. The pass knows storages only: views are made again where they are read.
    fn sequence(&self, actions: &[Action]) -> Option<Vec<u32>> {
        let index = self.index;
        let mut there: Vec<bool> = index.producer.iter().map(|&p| p == NONE).collect();
        let mut out = Vec::with_capacity(actions.len());
        let mut stack: Vec<u32> = Vec::new();
        let most = 8 * index.given.len() + actions.len();
        let end = index.nodes() as u32;
        for action in actions.iter().map(Some).chain([None]) {
            let node = match action {
                Some(&Action::Drop { storage }) => {
                    index.members.row(storage).iter().for_each(|&v| there[v as usize] = false);
                    continue;
                }
                Some(&Action::Run { step: 0, .. }) => continue,
                Some(&Action::Run { step, .. }) => self.order[step as usize - 1],
                None => end,
            };
            stack.push(node);
            while let Some(&top) = stack.last() {
                let inputs = if top == end { &index.kept_to_end[..] } else { index.inputs.row(top) };
                if let Some(&missing) = inputs.iter().find(|&&v| !there[v as usize]) {
                    let maker = index.producer[missing as usize];
                    if maker == NONE || index.once[maker as usize] || out.len() > most {
                        return None;
                    }
                    stack.push(maker);
                    continue;
                }
                stack.pop();
                if top == end {
                    break;
                }
                out.push(top);
                for group in own_groups(index, top) {
                    index.members.row(group).iter().for_each(|&v| there[v as usize] = false);
                }
                index.outputs.row(top).iter().for_each(|&v| there[v as usize] = true);
            }
        }
        Some(advance(index, &out, &self.order[self.straight.last - 1..]))
    }
}

/// Groups whose storage a node makes.
fn own_groups(index: &Index<'_>, node: u32) -> Vec<u32> {
    let groups = index.outputs.row(node).iter().map(|&v| (v, index.value_group[v as usize]));
    groups.filter(|&(v, g)| g != NONE && index.group_root[g as usize] == v).map(|p| p.1).collect()
}
