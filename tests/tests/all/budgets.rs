//! The promise: at every budget, on any number of threads, the same bits.

use compiler::{
    cost::{CostModel, DeviceProfile},
    import::{Imported, Weights},
    pipeline::{Budget, CompileError, Request, plan_budgets, rewritten_programs},
    planner::{Options, PlanError},
    train::{Optimizer, training_step},
};
use graph::{Graph, Literal};
use plan::{Device, Plan, ProgramKind};
use rewrite::Level;
use runtime::{CpuDevice, LoadOptions, RunOptions, Session, StepInputs};
use std::{collections::BTreeMap, path::Path};
use tests::{
    data,
    reference::{Reference, STATIC, adamw, import_model, options, sgd},
    train_interpreted,
};

fn request<'a>(costs: &'a CostModel, planner: &'a Options) -> Request<'a> {
    Request { model: "test", accumulate: 1, device: Device::Cpu, weight_hash: &|_| None, costs, planner }
}

/// Plans at shares of keep-all; an infeasible one is planned at the least arena that was found instead.
fn plans(graphs: &[(ProgramKind, Graph)], shares: &[f64]) -> Result<Vec<Plan>, String> {
    // Any plan will do that recomputes: the search is short.
    let planner = Options { work: Some(200_000), ..Options::default() };
    let costs = CostModel::estimated(DeviceProfile::cpu());
    let request = request(&costs, &planner);
    let budgets: Vec<Budget> = shares.iter().map(|s| Budget::OfKeepAll(*s)).collect();
    let mut out = Vec::new();
    for result in plan_budgets(graphs.to_vec(), &budgets, &request).map_err(|e| e.to_string())? {
        out.push(match result {
            Ok(c) => c.plan,
            Err(CompileError::Plan(PlanError::Infeasible(i))) => {
                let least = Budget::Bytes(i.least_arena);
                let again = plan_budgets(graphs.to_vec(), &[least], &request).map_err(|e| e.to_string())?;
                again
                    .into_iter()
                    .next()
                    .ok_or("no plan")?
                    .map_err(|e| format!("the least arena is infeasible: {e}"))?
                    .plan
            }
            Err(e) => return Err(e.to_string()),
        });
    }
    Ok(out)
}

/// Losses of six steps and the state after them, as bytes.
fn train(
    plan: &Plan,
    weights: &Weights,
    io: &BTreeMap<String, Literal>,
    lr: f32,
    threads: usize,
) -> Result<Vec<Vec<u8>>, String> {
    let device = CpuDevice::new(threads).map_err(|e| e.to_string())?;
    let mut session =
        Session::load(plan.clone(), Box::new(device), &mut tests::Weights(weights), LoadOptions::default())
            .map_err(|e| e.to_string())?;
    let data: Vec<(&str, &[u8])> =
        io.iter().map(|(n, l)| (n.strip_prefix("in:").unwrap_or(n), l.bytes())).collect();
    let mut out = Vec::new();
    for step in 1..=6 {
        let inputs = StepInputs { data: &data, learning_rate: lr, step, seed: 3, ..StepInputs::default() };
        let options = RunOptions { check_recompute: true, measure: false };
        let result = session.run(0, &inputs, options).map_err(|e| e.to_string())?;
        out.push(result.outputs[0].2.clone());
    }
    for e in &plan.state {
        out.push(session.state(&e.name).map_err(|e| e.to_string())?);
    }
    Ok(out)
}

fn check(
    imported: &Imported,
    reference: &Reference,
    file: &str,
    optimizer: Optimizer,
    lr: f32,
    level: Level,
) -> Result<String, String> {
    let train_options = options(imported, reference, file, optimizer);
    let costs = CostModel::estimated(DeviceProfile::cpu());
    let programs = rewritten_programs(&imported.graph, Some(&train_options), None, level, &costs);
    let graphs = programs.map_err(|e| e.to_string())?.graphs;
    let plans = plans(&graphs, &[1.0, 0.7, 0.5, 0.35])?;
    let expected = train(&plans[0], &imported.weights, &reference.io, lr, 1)?;
    let mut shares = Vec::new();
    for plan in &plans {
        if plan.numerics != plans[0].numerics {
            return Err("the numerics depend on the budget".to_owned());
        }
        let replays = plan::validate(plan, &ops::Registry).map_err(|e| e.to_string())?;
        shares.push(format!(
            "{:.0} % ({} recomputed)",
            plan.arena as f64 / plans[0].arena as f64 * 100.0,
            replays[0].recomputed.len()
        ));
        for threads in [1, 2] {
            if train(plan, &imported.weights, &reference.io, lr, threads)? != expected {
                return Err(format!("other bits at {} bytes on {threads} threads", plan.arena));
            }
        }
    }
    Ok(shares.join(", "))
}

fn check_model(root: &Path, model: &str, variant: &str, level: Level) -> Result<String, String> {
    let file = format!("{model}.{variant}.onnx");
    let path = root.join("small").join(&file);
    if !path.exists() {
        return Ok("no such variant".to_owned());
    }
    let reference = Reference::load(root, model);
    let imported = import_model(&path, &file, model, &reference.io);
    let sgd = check(&imported, &reference, &file, sgd(), 0.01, level)?;
    check(&imported, &reference, &file, adamw(), 1e-3, level)?;
    Ok(sgd)
}

#[test]
fn every_budget_and_thread_count_gives_the_same_bits() {
    let Some(root) = data("models") else { return };
    let only = std::env::var("DTRC_ONLY").unwrap_or_default();
    let mut failures = Vec::new();
    for model in STATIC.iter().filter(|m| m.contains(&only)) {
        for variant in ["ts_loss", "ts_dropout"] {
            match check_model(&root, model, variant, Level::Exact) {
                Ok(shares) => println!("ok    {model}.{variant}: {shares}"),
                Err(e) => failures.push(format!("{model}.{variant}: {e}")),
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// What is rewritten is decided before the budget is known.
#[test]
fn rewritten_for_memory_every_budget_gives_the_same_bits() {
    let Some(root) = data("models") else { return };
    for (model, variant) in [("gpt2", "ts_loss"), ("bert", "dy_loss"), ("vit_b_16", "ts_dropout")] {
        match check_model(&root, model, variant, Level::Memory) {
            Ok(shares) => println!("ok    {model}.{variant}: {shares}"),
            Err(e) => panic!("{model}.{variant}: {e}"),
        }
    }
}

/// The default level changes no bit of training.
#[test]
fn exact_rewrites_keep_the_bits_of_training() {
    let Some(root) = data("models") else { return };
    let mut fewer = 0;
    for (model, variant) in
        [("gpt2", "ts_loss"), ("bert", "dy_loss"), ("unet", "ts_loss"), ("lstm_cls", "ts_loss")]
    {
        let file = format!("{model}.{variant}.onnx");
        let reference = Reference::load(&root, model);
        let imported = import_model(&root.join("small").join(&file), &file, model, &reference.io);
        let how = options(&imported, &reference, &file, adamw());
        let mut plain = training_step(&imported.graph, &how, ProgramKind::Train, false).unwrap().graph;
        plain.lift_constants();
        plain.drop_unread();
        let costs = CostModel::estimated(DeviceProfile::cpu());
        let programs = rewritten_programs(&imported.graph, Some(&how), None, Level::Exact, &costs).unwrap();
        let rewritten = &programs.graphs[0].1;
        let bits = |g: &Graph| train_interpreted(g, &imported.weights, &reference.io, 1e-3, 4);
        assert_eq!(bits(&plain), bits(rewritten), "{file}");
        fewer += plain.nodes.len() - rewritten.nodes.len();
    }
    assert!(fewer > 0, "nothing was rewritten");
}
