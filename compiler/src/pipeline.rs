//! The contents page of the compiler: one pass a line, invariants checked between them.
//!
//! [`programs`] makes the graphs of a plan from an imported model, [`plan_programs`] plans them over one state section. Whatever can
//! change a rounding is decided in the first; the budget is known only to the second.

use crate::{
    cost::{CostModel, DeviceProfile},
    dynamic::DynamicError,
    emit::{self, EmitError},
    lower::{LowerError, lower_with},
    planner::{self, Infeasible, Options as PlannerOptions, PlanError, Planned, Problem},
    train::{Loss, Names, TrainError, TrainOptions, training_step_of, with_loss},
};
use graph::{Graph, ValueId, VerifyError, verify};
use ops::Registry;
use plan::{Device, Plan, Program, ProgramKind, StateEntry, ValidateError, numerics, slot_bytes, validate};
use rewrite::{Costs, Level, Report, RewriteError, Rewritten, Stage, rewrite};
use trace::{TraceError, precision};

/// A budget as the user gives it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// Bytes on the device.
    Bytes(u64),
    /// A share of keep-all's arena, 1 for all of it.
    OfKeepAll(f64),
}

/// Why a model is not compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// No training step can be built.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A rule made something that no operator takes: a bug.
    #[error(transparent)]
    Rewrite(#[from] RewriteError),
    /// A tensor's size is unknown.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// No plan, or none within the budget.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A plan that cannot be written: a bug.
    #[error(transparent)]
    Emit(#[from] EmitError),
    /// A pass broke the graph: a bug.
    #[error("after {pass}: {error}")]
    Verify {
        /// The pass.
        pass: &'static str,
        /// The broken invariant.
        error: VerifyError,
    },
    /// The plan is not valid: a bug.
    #[error(transparent)]
    Validate(#[from] ValidateError),
    /// What runs beside planned programs cannot be written.
    #[error(transparent)]
    Dynamic(#[from] DynamicError),
    /// A model that is not straight at a bucket's bounds.
    #[error("at {bucket}: {error}")]
    Bucket {
        /// The sizes.
        bucket: String,
        /// What is known only at run time, or wrong.
        error: TraceError,
    },
    /// Buckets that cannot be.
    #[error("{0}")]
    Buckets(String),
}

fn verified(pass: &'static str, g: Graph) -> Result<Graph, CompileError> {
    verify(&g).map_err(|error| CompileError::Verify { pass, error })?;
    Ok(g)
}

/// Graphs of programs, and the names of parameters that the loss does not reach.
pub type Programs = (Vec<(ProgramKind, Graph)>, Vec<String>);

/// [`Programs`], and what rewriting did to each of them.
#[derive(Clone, Debug)]
pub struct RewrittenPrograms {
    /// Graphs of the programs.
    pub graphs: Vec<(ProgramKind, Graph)>,
    /// Parameters that the loss does not reach.
    pub unreached: Vec<String>,
    /// What rewriting did. The parts of an accumulated step share what was done before gradients were written: the first tells it.
    pub reports: Vec<(ProgramKind, Report)>,
}

/// The programs of a plan: the training step (in parts, if gradients are accumulated) and, if `infer` is given, the inference program, in
/// the precision of training. Without `train` only the latter. Rewritten as far as no bit changes.
pub fn programs(
    forward: &Graph,
    train: Option<&TrainOptions>,
    infer: Option<&Graph>,
) -> Result<Programs, CompileError> {
    let costs = CostModel::estimated(DeviceProfile::cpu());
    let p = rewritten_programs(forward, train, infer, Level::Exact, &costs)?;
    Ok((p.graphs, p.unreached))
}

/// As [`programs`], rewritten at a level.
pub fn rewritten_programs(
    forward: &Graph,
    train: Option<&TrainOptions>,
    infer: Option<&Graph>,
    level: Level,
    costs: &CostModel,
) -> Result<RewrittenPrograms, CompileError> {
    let forward = verified("import", forward.clone())?;
    let mut out = Vec::new();
    let mut reports = Vec::new();
    let mut unreached = Vec::new();
    if let Some(options) = train {
        let names = Names::of_graphs(infer.into_iter().chain([&forward]));
        let (forward, options, mut report) = rewritten_forward(&forward, options, level, costs)?;
        let options = &options;
        let kinds: &[ProgramKind] = if options.accumulate > 1 {
            &[ProgramKind::Micro, ProgramKind::Last]
        } else {
            &[ProgramKind::Train]
        };
        for kind in kinds {
            let step = training_step_of(&forward, options, *kind, &names)?;
            unreached = step.unreached;
            let step = verified("autodiff", step.graph)?;
            let done = rewritten(&step, level, Stage::After, &[], costs)?;
            let mut all = std::mem::take(&mut report);
            all.extend(done.report);
            reports.push((*kind, all));
            out.push((*kind, finish("rewrite", done.graph)?));
        }
    }
    if let Some(infer) = infer {
        let mut g = infer.pruned();
        g.states.iter_mut().for_each(|s| s.output = None);
        let g = verified("import for inference", g.pruned())?;
        let mut before = rewritten(&g, level, Stage::Before, &[], costs)?;
        if let Some(amp) = train.and_then(|t| t.amp) {
            precision::apply(&mut before.graph, amp).map_err(TrainError::Precision)?;
            precision::merge_casts(&mut before.graph);
            before.graph = verified("precision", before.graph.pruned())?;
        }
        let done = rewritten(&before.graph, level, Stage::After, &[], costs)?;
        let mut report = before.report;
        report.extend(done.report);
        reports.push((ProgramKind::Infer, report));
        out.push((ProgramKind::Infer, finish("rewrite", done.graph)?));
    }
    Ok(RewrittenPrograms { graphs: out, unreached, reports })
}

/// One stage of rewriting, with times from the cost model.
fn rewritten(
    graph: &Graph,
    level: Level,
    stage: Stage,
    trained: &[ValueId],
    costs: &CostModel,
) -> Result<Rewritten, RewriteError> {
    let time = |g: &Graph, n: &graph::Node| costs.time(g, n);
    rewrite(graph, level, stage, trained, Costs { time: &time })
}

/// The forward graph with its loss, rewritten before gradients are written, and the options that train it. At [`Level::Exact`] nothing
/// happens here: other terms have other gradients.
pub fn rewritten_forward(
    forward: &Graph,
    options: &TrainOptions,
    level: Level,
    costs: &CostModel,
) -> Result<(Graph, TrainOptions, Report), CompileError> {
    if level == Level::Exact {
        return Ok((forward.clone(), options.clone(), Report::default()));
    }
    let (graph, loss) = with_loss(forward, options)?;
    let is_trained = |s: &&graph::State| options.trainable.iter().any(|n| **n == *s.name);
    let trained: Vec<ValueId> = graph.states.iter().filter(is_trained).map(|s| s.input).collect();
    let done = rewritten(&verified("loss", graph)?, level, Stage::Before, &trained, costs)?;
    let options = TrainOptions { loss: Some(Loss::Output(loss)), ..options.clone() };
    Ok((verified("rewrite before autodiff", done.graph)?, options, done.report))
}

/// Gives constants a place in the state section and leaves out inputs and states that nothing reads.
fn finish(pass: &'static str, mut g: Graph) -> Result<Graph, CompileError> {
    g.lift_constants();
    g.drop_unread();
    verified(pass, g)
}

/// A plan and how its budget was understood.
#[derive(Clone, Debug, PartialEq)]
pub struct Compiled {
    /// The plan, validated.
    pub plan: Plan,
    /// The budget in bytes.
    pub budget: u64,
    /// Arena of keep-all over all programs.
    pub keep_all: u64,
}

/// What is to be planned, and for what.
pub struct Request<'a> {
    /// Name of the model, for people.
    pub model: &'a str,
    /// Parts of a training step; 1 unless gradients are accumulated.
    pub accumulate: u32,
    /// The device kind.
    pub device: Device,
    /// Hash of a weight, where its elements are there.
    pub weight_hash: &'a dyn Fn(&str) -> Option<[u8; 32]>,
    /// Times.
    pub costs: &'a CostModel,
    /// Limits of the search.
    pub planner: &'a PlannerOptions,
}

/// Plans the programs over one state section within the budget, writes the plan and validates it.
pub fn plan_programs(
    graphs: Vec<(ProgramKind, Graph)>,
    budget: Budget,
    request: &Request<'_>,
) -> Result<Compiled, CompileError> {
    let mut plans = plan_budgets(graphs, &[budget], request)?;
    plans.remove(0)
}

/// As [`plan_programs`] for several budgets in one search: a larger budget never gives a slower plan.
pub fn plan_budgets(
    graphs: Vec<(ProgramKind, Graph)>,
    budgets: &[Budget],
    request: &Request<'_>,
) -> Result<Vec<Result<Compiled, CompileError>>, CompileError> {
    let (state, state_bytes) = state_of(&graphs, request)?;
    within(&graphs, state_bytes, budgets, request)?
        .into_iter()
        .map(|found| match found {
            Ok(found) => compiled(&graphs, found, state.clone(), state_bytes, request).map(Ok),
            Err(e) => Ok(Err(e)),
        })
        .collect()
}

/// Programs that fit a budget, in the order of their graphs.
pub(crate) struct Within {
    pub(crate) programs: Vec<Program>,
    pub(crate) budget: u64,
    /// Arena of keep-all over all of them.
    pub(crate) keep_all: u64,
}

/// Plans graphs over a state section of `state_bytes` at each of the budgets.
pub(crate) fn within(
    graphs: &[(ProgramKind, Graph)],
    state_bytes: u64,
    budgets: &[Budget],
    request: &Request<'_>,
) -> Result<Vec<Result<Within, CompileError>>, CompileError> {
    let problems = problems(graphs, state_bytes, request)?;
    let mut keep_all = state_bytes;
    if budgets.iter().any(|b| matches!(b, Budget::OfKeepAll(_))) {
        for p in &problems {
            keep_all = keep_all.max(planner::plan(p, u64::MAX, request.planner)?.keep_all.arena);
        }
    }
    let bytes: Vec<u64> = budgets
        .iter()
        .map(|b| match b {
            Budget::Bytes(n) => *n,
            Budget::OfKeepAll(share) => (keep_all as f64 * share) as u64,
        })
        .collect();
    let mut planned = Vec::new();
    for p in &problems {
        planned.push(planner::plan_many(p, &bytes, request.planner)?.into_iter());
    }
    let mut out = Vec::new();
    for budget in bytes {
        let answers: Vec<_> = planned.iter_mut().filter_map(Iterator::next).collect();
        let mut results = Vec::new();
        let mut refusal: Option<Infeasible> = None;
        let refused = answers.iter().any(Result::is_err);
        let mut least = 0;
        for (problem, answer) in problems.iter().zip(answers) {
            match answer {
                Ok(_) if refused => least = least.max(planner::least_budget(problem, request.planner)?),
                Ok(p) => results.push(p),
                // Of several programs the one that needs most decides.
                Err(e) if refusal.as_ref().is_none_or(|r| r.least_arena < e.least_arena) => refusal = Some(e),
                Err(_) => {}
            }
        }
        if let Some(mut e) = refusal {
            e.least_arena = e.least_arena.max(least);
            out.push(Err(PlanError::Infeasible(Box::new(e)).into()));
            continue;
        }
        out.push(Ok(emitted(graphs, &problems, &results, budget, state_bytes)?));
    }
    Ok(out)
}

fn emitted(
    graphs: &[(ProgramKind, Graph)],
    problems: &[Problem],
    planned: &[Planned],
    budget: u64,
    state_bytes: u64,
) -> Result<Within, CompileError> {
    let mut programs: Vec<Program> = Vec::new();
    for (((kind, g), problem), planned) in graphs.iter().zip(problems).zip(planned) {
        programs.push(emit::program(*kind, g.clone(), problem, planned)?);
    }
    let keep_all = planned.iter().map(|p| p.keep_all.arena).fold(state_bytes, u64::max);
    Ok(Within { programs, budget, keep_all })
}

/// The plan at the least budget that is found for all programs: what a refusal names, and planning at any larger budget succeeds.
pub fn plan_least(
    graphs: Vec<(ProgramKind, Graph)>,
    request: &Request<'_>,
) -> Result<Compiled, CompileError> {
    let (state, state_bytes) = state_of(&graphs, request)?;
    let problems = problems(&graphs, state_bytes, request)?;
    let (budget, planned) = planner::plan_least(&problems, request.planner)?;
    let within = emitted(&graphs, &problems, &planned, budget.max(state_bytes), state_bytes)?;
    compiled(&graphs, within, state, state_bytes, request)
}

/// Whether a plan of every program is found within a budget; without writing one, in a fraction of the time.
///
/// # Errors
/// No plan, or none within the budget.
pub fn fits(graphs: &[(ProgramKind, Graph)], budget: u64, request: &Request<'_>) -> Result<(), CompileError> {
    let (_, state_bytes) = state_of(graphs, request)?;
    for problem in problems(graphs, state_bytes, request)? {
        planner::fits(&problem, budget, request.planner)?.map_err(|e| PlanError::Infeasible(Box::new(e)))?;
    }
    Ok(())
}

fn state_of(
    graphs: &[(ProgramKind, Graph)],
    request: &Request<'_>,
) -> Result<(Vec<StateEntry>, u64), CompileError> {
    let all: Vec<&Graph> = graphs.iter().map(|(_, g)| g).collect();
    let (state, own_bytes) = emit::state_section(&all, request.weight_hash)?;
    Ok((state, own_bytes.saturating_add(slot_bytes(request.device, all))))
}

fn problems(
    graphs: &[(ProgramKind, Graph)],
    state_bytes: u64,
    request: &Request<'_>,
) -> Result<Vec<Problem>, CompileError> {
    let facts = ops::cuda::registry(request.device == Device::Cuda);
    let lowered = graphs.iter().map(|(_, g)| lower_with(g, request.costs, state_bytes, facts));
    Ok(lowered.collect::<Result<_, _>>()?)
}

/// The validated plan of programs over a state section.
fn compiled(
    graphs: &[(ProgramKind, Graph)],
    within: Within,
    state: Vec<StateEntry>,
    state_bytes: u64,
    request: &Request<'_>,
) -> Result<Compiled, CompileError> {
    let Within { programs, budget, keep_all } = within;
    let plan = Plan {
        model: request.model.to_owned(),
        device: request.device,
        budget,
        arena: programs.iter().map(|p| p.certificate.arena).fold(state_bytes, u64::max),
        numerics: numerics(
            request.device,
            request.accumulate,
            graphs.iter().map(|(k, g)| (*k, g, None)),
            &Registry,
        ),
        provenance: format!("dtrc {}", env!("CARGO_PKG_VERSION")),
        state,
        state_bytes,
        slot_bytes: slot_bytes(request.device, graphs.iter().map(|(_, g)| g)),
        accumulate: request.accumulate,
        programs,
    };
    validate(&plan, ops::cuda::registry(plan.device == Device::Cuda))?;
    Ok(Compiled { plan, budget, keep_all })
}
