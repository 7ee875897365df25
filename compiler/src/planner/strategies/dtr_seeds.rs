//! DTR seeds: the online algorithm's own traces, with every heuristic, at several budgets and in several orders.
//!
//! The policy is the `dtr` crate's, driven with the problem's times. Feasibility is not monotone in the budget, so budgets below the
//! given one are tried too. A trace that runs out of memory or thrashes gives no candidate.

use dtr::{Command, Event, Heuristic, OpId, Output, Program, ProgramError, TensorId};

use super::super::decode::Evaluator;
use super::super::index::{Index, NONE};
use super::super::problem::Bytes;
use super::{Candidate, Context, sequence_search};

/// One candidate per trace that came to its end.
pub(crate) fn run(context: &mut Context<'_, '_>) -> Vec<Candidate> {
    let index = context.index;
    let mut out = Vec::new();
    let spare = context.budget.saturating_sub(index.problem.resident);
    let large = index.given.len() > 1500;
    let many = index.given.len() > 400;
    let parts: &[Bytes] = match (large, many) {
        (true, _) => &[32],
        (_, true) => &[32, 28],
        _ => &[32, 30, 28, 25],
    };
    let orders: Vec<Vec<u32>> = context.orders.iter().take(if many { 1 } else { 2 }).cloned().collect();
    for order in &orders {
        // A program that cannot be declared (sums beyond the machine's range) has no seeds.
        let Ok(driven) = Driven::new(index, order) else { continue };
        for (name, heuristic) in Heuristic::NAMED {
            if name == "random" || (many && !matches!(name, "dtr-eq" | "dtr-local")) {
                continue;
            }
            for part in parts {
                let mut options = dtr::Options::new(spare / 32 * part + spare % 32, heuristic);
                // Finding the order costs more than the run on many nodes.
                options.order_remats = !many || (!large && name == "dtr-eq");
                options.remat_limit = Some(index.base_time.saturating_mul(3));
                let Some(trace) = driven.trace(&options) else { continue };
                context.evaluator.work += 4 * trace.len() as u64;
                let trace = sequence_search::drop_unread(index, &trace, context.keep_order);
                out.extend(context.sequence("dtr", trace));
            }
        }
    }
    out
}

/// Extra time, as a fraction of the base time, of the plain online algorithm with a heuristic, in the given order and without hindsight:
/// at the budget, or, as it knows no scratch memory, at the largest part of it with which the exact replay fits. None where it runs out of
/// memory or more than doubles the time.
pub(crate) fn online(index: &Index<'_>, budget: Bytes, heuristics: &[Heuristic]) -> Vec<Option<f64>> {
    let Ok(driven) = Driven::new(index, &index.given) else { return vec![None; heuristics.len()] };
    let mut evaluator = Evaluator::new(index);
    let spare = budget.saturating_sub(index.problem.resident);
    let base = index.base_time.max(1);
    let mut extra = |heuristic: &Heuristic| {
        (20..=32).rev().find_map(|part| {
            let mut options = dtr::Options::new(spare / 32 * part + spare % 32, *heuristic);
            options.remat_limit = Some(base);
            let trace = driven.trace(&options)?;
            let score = evaluator.evaluate(&trace, budget);
            let fits = score.peak <= budget && !evaluator.breaks_commit_rule();
            fits.then(|| score.time.saturating_sub(index.base_time) as f64 / base as f64)
        })
    };
    heuristics.iter().map(&mut extra).collect()
}

/// A problem in one order, as the machine's program and schedule.
struct Driven {
    program: Program,
    commands: Vec<Command>,
    /// Node of each op, [`NONE`] for constants.
    node: Vec<u32>,
}

impl Driven {
    fn new(index: &Index<'_>, order: &[u32]) -> Result<Self, ProgramError> {
        let problem = index.problem;
        let mut program = Program::new();
        let mut tensors: Vec<Option<TensorId>> = vec![None; problem.values.len()];
        for (id, value) in problem.values.iter().enumerate() {
            if value.producer.is_none() {
                tensors[id] = Some(program.constant(value.bytes)?);
            }
        }
        let mut node_of = vec![NONE; program.op_count()];
        let mut commands = program.load_constants();
        let mut last_read: Vec<u32> = vec![NONE; problem.values.len()];
        for (place, &node) in order.iter().enumerate() {
            for &value in index.inputs.row(node) {
                last_read[value as usize] = place as u32;
            }
        }
        let mut ops: Vec<Option<OpId>> = vec![None; problem.nodes.len()];
        for (place, &node) in order.iter().enumerate() {
            let inputs = index.inputs.row(node);
            let args: Vec<TensorId> = inputs.iter().filter_map(|&v| tensors[v as usize]).collect();
            let values = index.outputs.row(node);
            let mut outputs: Vec<Output> = values
                .iter()
                .map(|&v| {
                    let value = &problem.values[v as usize];
                    let argument = value.view_of.and_then(|s| inputs.iter().position(|&i| i == s));
                    argument
                        .map_or(Output::New { bytes: value.bytes }, |argument| Output::AliasOf { argument })
                })
                .collect();
            if outputs.is_empty() {
                outputs.push(Output::New { bytes: 0 });
            }
            let cost = index.time[node as usize];
            let op = if index.once[node as usize] {
                program.once(&args, &outputs, cost)?
            } else {
                program.op(&args, &outputs, cost)?
            };
            ops[node as usize] = Some(op);
            node_of.resize(program.op_count(), NONE);
            node_of[op.index()] = node;
            commands.push(Command::Compute(op));
            for (output, &v) in values.iter().enumerate() {
                tensors[v as usize] = Some(program.output(op, output));
            }
            let releasable = |v: u32| {
                let value = &problem.values[v as usize];
                value.producer.is_some() && !value.keep_to_end
            };
            let dead_inputs = inputs.iter().copied().filter(|&v| last_read[v as usize] == place as u32);
            let unread = values.iter().copied().filter(|&v| last_read[v as usize] == NONE);
            for v in dead_inputs.chain(unread).filter(|&v| releasable(v)) {
                commands.extend(tensors[v as usize].map(Command::Release));
            }
            for &state in index.commits.row(node) {
                let readers = order[..place].iter().filter(|&&n| index.reads_state.row(n).contains(&state));
                commands.extend(readers.filter_map(|&n| ops[n as usize]).map(Command::Forbid));
            }
        }
        Ok(Self { program, commands, node: node_of })
    }

    fn trace(&self, options: &dtr::Options) -> Option<Vec<u32>> {
        let outcome = dtr::run(&self.program, &self.commands, options);
        outcome.result.ok()?;
        let executed = outcome.events.iter().filter_map(|event| match event {
            Event::Execute { op, .. } => Some(self.node[op.index()]),
            _ => None,
        });
        Some(executed.filter(|&n| n != NONE).collect())
    }
}
