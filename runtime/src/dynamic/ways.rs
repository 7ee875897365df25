//! The pool for upper bounds of sizes, whichever way data decide.
//!
//! A plan is made before there are data, but a condition has two values only: the program is walked once for every answer to every
//! condition, and the step that comes out of each walk tells what it holds where nothing has to go. What data decide otherwise (a trip
//! count, how many elements are not zero, a loop that goes on for as long as they say) has no bound that is known ahead: no figure is
//! better than a guess, since a pool that is too small refuses what the budget has memory for.

use super::{
    DynamicProgram, Origin,
    executor::{Asked, host_key},
    least::{self, Known},
};
use crate::RuntimeError;
use graph::{Bindings, DType, Graph, Literal, ValueId};
use ops::Signature;
use plan::Plan;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};
use trace::{Limits, Oracle, TraceErrorKind};

/// Most ways that are walked: six conditions after one another.
const MOST: usize = 64;

/// Most nodes of a way, and of all of them together, so that a compile does not take minutes.
const NODES: usize = 20_000;

/// Most bytes of a value that is computed from constants.
const SMALL: u64 = 1 << 16;

/// What a plan's dynamic programs need at upper bounds of their sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roomy {
    /// Bytes of pool in which nothing has to go, on any way.
    pub pool: u64,
    /// Bytes of the least pool found in which the step runs on every way; 0 where it was not looked for.
    pub least: u64,
    /// How many ways data may decide between; the most of any program.
    pub ways: usize,
}

/// The pool in which every dynamic program of a plan runs without evictions for inputs of these sizes, whichever way data decide.
///
/// # Errors
///
/// A text for people: why there is no such figure.
pub fn roomy_pool(plan: &Plan, sizes: &Bindings) -> Result<Roomy, String> {
    pools(plan, sizes, false)
}

/// The same with the least pool, which is searched for by planning each way in pools of several sizes.
///
/// # Errors
///
/// As [`roomy_pool`].
pub fn least_pool(plan: &Plan, sizes: &Bindings) -> Result<Roomy, String> {
    pools(plan, sizes, true)
}

fn pools(plan: &Plan, sizes: &Bindings, with_least: bool) -> Result<Roomy, String> {
    let mut all = Roomy { pool: 0, least: 0, ways: 0 };
    for p in &plan.programs {
        let Some(info) = &p.dynamic else { continue };
        let program = DynamicProgram::load(plan, p, info).map_err(|e: RuntimeError| e.to_string())?;
        let own = program.pools(sizes, with_least)?;
        all = Roomy {
            pool: all.pool.max(own.pool),
            least: all.least.max(own.least),
            ways: all.ways.max(own.ways),
        };
    }
    Ok(all)
}

impl DynamicProgram {
    fn pools(&self, sizes: &Bindings, with_least: bool) -> Result<Roomy, String> {
        let Origin::Recipe(recipe) = &self.origin else { return Err("it is static".to_owned()) };
        // Elements are never read: nothing runs on a device.
        let host: BTreeMap<String, &[u8]> =
            self.inputs.iter().map(|(name, role, _)| (host_key(*role, name), &[][..])).collect();
        let (mut pool, mut ways, mut nodes) = (0, 0, 0);
        let mut steps = Vec::new();
        let mut impossible = None;
        let mut answers: Option<Vec<bool>> = Some(Vec::new());
        while let Some(first) = answers {
            let mut guess = Guess::new(first);
            let walked = recipe.forward(sizes, Limits::new(NODES), &mut guess);
            match walked {
                Ok((forward, traced)) => {
                    nodes += forward.nodes.len();
                    if ways == MOST || nodes > NODES {
                        return Err("data decide between too many ways to try them all".to_owned());
                    }
                    ways += 1;
                    let step = match traced.asked {
                        true => recipe.program_of_run(self.kind, &forward),
                        false => recipe.program(self.kind, &forward),
                    };
                    let step = Some(Arc::new(step.map_err(|e| e.to_string())?));
                    let walked = traced.asked.then_some((forward, guess.asked));
                    let known = Known { walked, step };
                    let own = least::roomy(&known, &self.around, &host);
                    let own = own.ok_or("no step can be planned")?;
                    pool = pool.max(own);
                    if with_least {
                        steps.push((own, known));
                    }
                }
                Err(e) => match e.kind {
                    TraceErrorKind::Dynamic { .. }
                    | TraceErrorKind::TooLong { .. }
                    | TraceErrorKind::Endless { .. } => {
                        return Err(e.to_string());
                    }
                    // Conditions may hang together: what contradicts itself does not come.
                    _ => impossible = impossible.or(Some(e.to_string())),
                },
            }
            answers = next(guess.answers);
        }
        match impossible {
            Some(what) if ways == 0 => Err(what),
            _ => {
                steps.sort_by_key(|(own, _)| Reverse(*own));
                let least = least::for_all(&steps, &self.around, &host).ok_or("no step can be planned")?;
                Ok(Roomy { pool, least, ways })
            }
        }
    }
}

/// The answers of the next way: the last yes becomes a no.
fn next(mut answers: Vec<bool>) -> Option<Vec<bool>> {
    while let Some(last) = answers.pop() {
        if last {
            answers.push(false);
            return Some(answers);
        }
    }
    None
}

/// Answers conditions: what follows from constants is computed, the others as it is told at first, then with yes.
struct Guess {
    first: Vec<bool>,
    answers: Vec<bool>,
    asked: Vec<Asked>,
    /// What is known of values from constants alone.
    certain: HashMap<ValueId, Option<Literal>>,
}

impl Guess {
    fn new(first: Vec<bool>) -> Guess {
        Guess { first, answers: Vec::new(), asked: Vec::new(), certain: HashMap::new() }
    }

    /// The elements of a value that neither data nor states go into: a counter, say, that ends a loop.
    fn certain(&mut self, graph: &Graph, value: ValueId) -> Option<Literal> {
        let mut stack = vec![value];
        while let Some(v) = stack.last().copied() {
            if self.certain.contains_key(&v) {
                stack.pop();
                continue;
            }
            let small = graph.ty(v).bytes().is_some_and(|n| n <= SMALL);
            let (node, inputs) = match graph.producer(v).filter(|_| small) {
                None => {
                    self.certain.insert(v, graph.constant(v).cloned());
                    continue;
                }
                Some(n) => (graph.node(n), graph.node(n).inputs.iter().flatten()),
            };
            let left: Vec<ValueId> =
                inputs.clone().copied().filter(|i| !self.certain.contains_key(i)).collect();
            if !left.is_empty() {
                stack.extend(left);
                continue;
            }
            let given: Vec<Option<&Literal>> =
                node.inputs.iter().map(|i| i.and_then(|i| self.certain.get(&i)?.as_ref())).collect();
            let whole = given.iter().zip(&node.inputs).all(|(g, i)| g.is_some() || i.is_none());
            let op = ops::find(&node.op).filter(|_| whole && !given.is_empty());
            let made = op.and_then(|op| ops::cpu::evaluate(op, &Signature::of(graph, node), &given).ok());
            let mut made = made.unwrap_or_default().into_iter();
            for o in &node.outputs {
                self.certain.insert(*o, made.next());
            }
        }
        self.certain.get(&value).cloned().flatten()
    }
}

impl Oracle for Guess {
    fn elements(&mut self, graph: &Graph, value: ValueId) -> Result<Option<Literal>, String> {
        let ty = graph.ty(value);
        if let Some(known) = self.certain(graph, value) {
            self.asked.push(Asked::Elements(value));
            return Ok(Some(known));
        }
        if ty.dtype != DType::Bool || ty.shape.elements() != Some(1) {
            return Ok(None);
        }
        let answer = self.first.get(self.answers.len()).copied().unwrap_or(true);
        self.answers.push(answer);
        self.asked.push(Asked::Elements(value));
        let shape = ty.shape.fixed().into_iter().flatten().map(|_| 1).collect();
        Literal::new(DType::Bool, shape, vec![u8::from(answer)]).map(Some).map_err(|e| e.to_string())
    }

    fn forget(&mut self) {
        self.asked.push(Asked::Forget);
    }

    fn reserve(&mut self, _: &Graph, bytes: u64) -> Result<(), String> {
        self.asked.push(Asked::Room(bytes));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_comes_once() {
        let mut seen = Vec::new();
        let mut answers = Some(Vec::new());
        while let Some(first) = answers {
            // A second question only after a yes.
            let mut all = first.clone();
            while all.len() < 2 && all.first() != Some(&false) {
                all.push(true);
            }
            answers = next(all.clone());
            seen.push(all);
        }
        assert_eq!(seen, [vec![true, true], vec![true, false], vec![false]]);
    }
}
