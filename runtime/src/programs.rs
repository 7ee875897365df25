//! Which of a plan's programs runs, and programs for sizes within a guard.
//!
//! A plan may have several programs of a kind: one for each bucket of sizes, one for each budget. Of those whose guards hold and whose
//! arenas fit the budget the first one runs. A program with a guard was planned at the guard's upper bounds; for the sizes at hand its
//! graph is made anew from the recipe, as a dynamic program's is, and the planned steps run on it at the planned offsets, if the validator
//! finds that lawful. So nothing is padded, and the bits are those of a plan for these very sizes. What no program covers runs under
//! online rematerialization.

use crate::{
    RuntimeError,
    device::{Device, LoadedProgram},
    dynamic::{DynamicProgram, Key, MAX_NODES},
    resolve::{Region, facts_of, resolve},
    session::StepInputs,
};
use graph::{Bindings, Literal};
use plan::{Plan, Program, ProgramKind, validate_at};
use std::collections::BTreeSet;
use trace::{Limits, NoOracle, Placed, Recipe, place_constants};

/// Most sets of sizes that stay prepared.
const KEPT: usize = 32;

/// A program that a device has prepared.
pub(crate) struct Ready {
    /// The program over the sizes at hand; `None` if it is the plan's own.
    pub(crate) program: Option<Box<Program>>,
    pub(crate) handle: LoadedProgram,
    /// Where the outputs lie at the end.
    pub(crate) outputs: Vec<Region>,
    /// Elements of inputs that follow from the sizes, by position.
    pub(crate) constants: Vec<(usize, Literal)>,
}

enum Loaded {
    Static(Ready),
    /// One with a guard, prepared for the sizes that come.
    Bucket,
    Dynamic(Box<DynamicProgram>),
}

/// A bucket's program for some sizes, or why the sizes cannot run in it.
struct Kept {
    program: usize,
    key: Key,
    ready: Result<Ready, String>,
}

/// What is to run.
pub(crate) enum Chosen<'a> {
    /// A program of the plan's index, prepared.
    Ready(usize, &'a Ready),
    /// One that is made as it runs, and why, where the plan has others of its kind.
    Dynamic(usize, &'a mut DynamicProgram, Option<String>),
}

/// The programs of a session.
pub(crate) struct Programs {
    loaded: Vec<Loaded>,
    /// Static programs in less memory than they were planned for, by index.
    squeezed: Vec<Option<Box<DynamicProgram>>>,
    /// The latest last.
    kept: Vec<Kept>,
}

impl Programs {
    /// Prepares every program that can be prepared ahead.
    pub(crate) fn load(plan: &Plan, device: &mut dyn Device) -> Result<Programs, RuntimeError> {
        let mut loaded = Vec::new();
        for p in &plan.programs {
            loaded.push(if let Some(d) = &p.dynamic {
                Loaded::Dynamic(Box::new(DynamicProgram::load(plan, p, d)?))
            } else if !p.guard.dims.is_empty() {
                Loaded::Bucket
            } else {
                let (handle, outputs) = prepare(plan, p, device)?;
                Loaded::Static(Ready { program: None, handle, outputs, constants: Vec::new() })
            });
        }
        let squeezed = loaded.iter().map(|_| None).collect();
        Ok(Programs { loaded, squeezed, kept: Vec::new() })
    }

    /// A static program, which stays prepared.
    pub(crate) fn ready(&self, program: usize) -> Option<&Ready> {
        match self.loaded.get(program) {
            Some(Loaded::Static(ready)) => Some(ready),
            _ => None,
        }
    }

    /// What of a kind runs for these inputs within `budget` bytes of the arena.
    pub(crate) fn choose(
        &mut self,
        plan: &Plan,
        kind: ProgramKind,
        inputs: &StepInputs<'_>,
        budget: u64,
        device: &mut dyn Device,
    ) -> Result<Chosen<'_>, RuntimeError> {
        let dynamic = plan.programs.iter().position(|p| p.kind == kind && p.dynamic.is_some());
        let (planned, why) = match dynamic.map(|i| &self.loaded[i]) {
            // The only program of its kind binds its inputs itself.
            Some(Loaded::Dynamic(_)) if plan.choices(kind) == 1 => (None, None),
            Some(Loaded::Dynamic(d)) => {
                let (key, bindings) = d.bind(inputs)?;
                let recipe = d.recipe();
                match (first(plan, kind, &bindings, budget), recipe) {
                    (Ok(i), Some(recipe)) => {
                        let why = self.within_guard(plan, i, key, &bindings, &recipe, device)?;
                        (Some(i).filter(|_| why.is_none()), why)
                    }
                    (first, _) => (None, first.err()),
                }
            }
            _ => match first(plan, kind, &Bindings::new(), budget) {
                Ok(i) => (Some(i), None),
                Err(why) => (None, Some(why)),
            },
        };
        if let Some(i) = planned {
            let ready = match (&self.loaded[i], self.kept.last()) {
                (Loaded::Static(ready), _) => Some(ready),
                (Loaded::Bucket, Some(Kept { ready: Ok(ready), .. })) => Some(ready),
                _ => None,
            };
            let none = || RuntimeError::Internal("a program that was not prepared".to_owned());
            return Ok(Chosen::Ready(i, ready.ok_or_else(none)?));
        }
        if let Some(i) = dynamic
            && let Loaded::Dynamic(d) = &mut self.loaded[i]
        {
            return Ok(Chosen::Dynamic(i, d, why));
        }
        let last = plan.programs.iter().enumerate().rfind(|(_, p)| p.kind == kind);
        let (i, p) = last.ok_or_else(|| RuntimeError::NoProgram(kind.to_string()))?;
        let squeezed = self.squeezed[i].get_or_insert_with(|| Box::new(DynamicProgram::of_static(plan, p)));
        Ok(Chosen::Dynamic(i, squeezed, why))
    }

    /// Prepares the program at `index` for sizes within its guard, as the last of those that are kept. Returns why it does not run on them.
    fn within_guard(
        &mut self,
        plan: &Plan,
        index: usize,
        key: Key,
        bindings: &Bindings,
        recipe: &Recipe,
        device: &mut dyn Device,
    ) -> Result<Option<String>, RuntimeError> {
        let kept = match self.kept.iter().position(|k| k.program == index && k.key == key) {
            Some(at) => self.kept.remove(at),
            None => Kept { program: index, key, ready: instance(plan, index, recipe, bindings, device)? },
        };
        if self.kept.len() >= KEPT
            && let Ok(old) = self.kept.remove(0).ready
        {
            device.unload(old.handle);
        }
        let what = kept.ready.as_ref().err();
        let why = what.map(|what| {
            format!(
                "{} makes other steps than its bucket's, and they are planned now: {what}",
                text(bindings)
            )
        });
        self.kept.push(kept);
        Ok(why)
    }
}

/// The first static program of a kind whose guard holds for the sizes and that fits; or why there is none.
fn first(plan: &Plan, kind: ProgramKind, sizes: &Bindings, budget: u64) -> Result<usize, String> {
    let all = plan.programs.iter().enumerate().filter(|(_, p)| p.kind == kind && p.dynamic.is_none());
    let covering: Vec<(usize, u64)> =
        all.filter(|(_, p)| p.guard.admits(sizes)).map(|(i, p)| (i, p.certificate.arena)).collect();
    if let Some((i, _)) = covering.iter().find(|(_, arena)| *arena <= budget) {
        return Ok(*i);
    }
    Err(match covering.iter().map(|(_, arena)| arena).min() {
        Some(n) => format!("the least program needs {n} bytes, the budget is {budget}"),
        None => format!("{} is beyond the last bucket", text(sizes)),
    })
}

/// Bytes of the arena that a program may use within `budget`; 0 if it does not fit.
fn takes(p: &Program, budget: u64) -> u64 {
    let arena = p.certificate.arena;
    match p.dynamic {
        Some(_) => arena.min(budget),
        None if arena <= budget => arena,
        None => 0,
    }
}

/// Bytes of the arena that the plan's programs may use within `budget`. Where not one of a kind fits, its least runs in all of it.
pub(crate) fn usable(plan: &Plan, budget: u64) -> u64 {
    let of = |kind: ProgramKind| {
        let most = plan.programs.iter().filter(|p| p.kind == kind).map(|p| takes(p, budget)).max();
        most.map(|n| if n == 0 { budget.min(plan.arena) } else { n })
    };
    let kinds = [ProgramKind::Train, ProgramKind::Micro, ProgramKind::Last, ProgramKind::Infer];
    kinds.into_iter().filter_map(of).max().unwrap_or(0)
}

fn text(sizes: &Bindings) -> String {
    sizes.iter().map(|(s, n)| format!("{s}={n}")).collect::<Vec<_>>().join(", ")
}

fn prepare(
    plan: &Plan,
    program: &Program,
    device: &mut dyn Device,
) -> Result<(LoadedProgram, Vec<Region>), RuntimeError> {
    let refuse =
        |what| RuntimeError::Prepare { node: program.kind.to_string(), op: "program".to_owned(), what };
    let (calls, outputs) = resolve(plan, program, facts_of(plan)).map_err(refuse)?;
    Ok((device.load(&program.graph, calls)?, outputs))
}

/// The program at `index` for sizes within its guard, or why its steps do not run on them.
fn instance(
    plan: &Plan,
    index: usize,
    recipe: &Recipe,
    bindings: &Bindings,
    device: &mut dyn Device,
) -> Result<Result<Ready, String>, RuntimeError> {
    let planned = &plan.programs[index];
    let made = || -> Result<(Program, Vec<(usize, Literal)>), String> {
        let walked = recipe.forward(bindings, Limits::new(MAX_NODES), &mut NoOracle);
        let (forward, _) = walked.map_err(|e| e.to_string())?;
        let graph = recipe.program(planned.kind, &forward).map_err(|e| e.to_string())?;
        let states: BTreeSet<&str> = planned.graph.states.iter().map(|s| &*s.name).collect();
        let Placed { graph, constants } = place_constants(graph, &|name| states.contains(name));
        let (program, _) = validate_at(plan, index, graph, facts_of(plan)).map_err(|e| e.what)?;
        Ok((program, constants))
    };
    let (program, constants) = match made() {
        Ok(made) => made,
        Err(what) => return Ok(Err(what)),
    };
    let (handle, outputs) = prepare(plan, &program, device)?;
    Ok(Ok(Ready { program: Some(Box::new(program)), handle, outputs, constants }))
}
