//! Inputs of the next step go to the device while a step runs: the same losses, everything ordered, and what is left out is found.

use cuda::sim::{Fault, Sim};
use plan::{Device, Plan, from_bytes, to_bytes, validate};
use runtime::{CpuDevice, RunOptions, RuntimeError, StepInputs};
use std::collections::BTreeSet;
use tests::{
    data,
    on_cuda::{Model, compiler, plans, simulated},
};

const STEPS: i64 = 4;
const MEMORY: u64 = 1 << 30;

fn model(name: &str, share: f64) -> Option<(Model, Plan)> {
    let (root, _) = (data("models")?, compiler()?);
    let m = Model::load(&root, name, "ts_loss");
    let plan = plans(&m.graphs, Device::Cuda, &[share]).unwrap().remove(0);
    Some((m, plan))
}

/// Losses of steps whose inputs were staged while the step before ran, and the state after them.
fn overlapped(
    m: &Model,
    plan: &Plan,
    device: Box<dyn runtime::Device>,
) -> Result<(Vec<f64>, Vec<Vec<u8>>), RuntimeError> {
    let mut session = m.session(plan, device)?;
    let data = m.data();
    let inputs =
        |step| StepInputs { data: &data, learning_rate: 1e-3, step, seed: 3, ..StepInputs::default() };
    let mut losses = Vec::new();
    let mut staged = session.stage(0, &inputs(1))?;
    for step in 1..=STEPS {
        let mut running = session.start(staged, RunOptions::default())?;
        staged = running.stage(0, &inputs(step + 1))?;
        losses.push(running.finish()?.loss().unwrap());
    }
    let state: Result<Vec<Vec<u8>>, RuntimeError> =
        plan.state.iter().map(|e| session.state(&e.name)).collect();
    Ok((losses, state?))
}

fn one_after_the_other(m: &Model, plan: &Plan, device: Box<dyn runtime::Device>) -> (Vec<f64>, Vec<Vec<u8>>) {
    let mut session = m.session(plan, device).unwrap();
    let losses = (1..=STEPS).map(|s| m.step(&mut session, s, RunOptions::default()).unwrap()).collect();
    (losses, plan.state.iter().map(|e| session.state(&e.name).unwrap()).collect())
}

#[test]
fn staged_steps_give_the_same_bits() {
    for (name, share) in [("mlp", 1.0), ("smallcnn", 0.6), ("gpt2", 0.6)] {
        let Some((m, plan)) = model(name, share) else { return };
        let device = || simulated(Sim::new(MEMORY), compiler().unwrap());
        let staged = overlapped(&m, &plan, device()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(staged == one_after_the_other(&m, &plan, device()), "{name}");
    }
}

/// A device without a slot keeps inputs until their step.
#[test]
fn on_the_cpu_staging_changes_nothing() {
    let Some((m, _)) = model("mlp", 1.0) else { return };
    let plan = plans(&m.graphs, Device::Cpu, &[1.0]).unwrap().remove(0);
    assert_eq!(plan.slot_bytes, 0);
    let device = || Box::new(CpuDevice::new(1).unwrap());
    assert!(overlapped(&m, &plan, device()).unwrap() == one_after_the_other(&m, &plan, device()));
}

/// Whatever wait is left out: it is found, or the order is known without it.
#[test]
fn missing_events_between_steps_are_found() {
    let Some((m, plan)) = model("mlp", 1.0) else { return };
    let mut found = BTreeSet::new();
    for n in 0..3 * STEPS as usize {
        let sim = Sim::new(MEMORY).with(Fault::SkipWait(n));
        let Err(e) = overlapped(&m, &plan, simulated(sim, compiler().unwrap())) else { continue };
        let e = e.to_string();
        let early = e.contains("an input out of the slot reads bytes")
            && e.contains("without waiting for an input, which writes them");
        let late = e.contains("an input writes bytes")
            && e.contains("without waiting for an input out of the slot, which still reads them");
        assert!(early || late, "wait {n}: {e}");
        found.insert((early, late));
    }
    assert_eq!(found.len(), 2, "both the upload before a step and the copy out of the slot are waited for");
}

#[test]
fn missing_copies_out_of_the_slot_are_found() {
    let Some((m, plan)) = model("mlp", 1.0) else { return };
    let inputs = plan.programs[0].graph.inputs.len();
    for n in 0..inputs {
        let sim = Sim::new(MEMORY).with(Fault::SkipCopy(n));
        let e = overlapped(&m, &plan, simulated(sim, compiler().unwrap())).unwrap_err().to_string();
        assert!(e.contains("that nothing has written"), "copy {n}: {e}");
    }
}

/// The slot of an earlier step is not taken for that of a later one.
#[test]
fn missing_uploads_of_later_steps_are_found() {
    let Some((m, plan)) = model("mlp", 1.0) else { return };
    let weights = plan
        .state
        .iter()
        .filter(|e| matches!(e.init, graph::Init::Weight(_) | graph::Init::Literal(_)))
        .count();
    let inputs = plan.programs[0].graph.inputs.len();
    for n in weights + inputs..weights + 2 * inputs {
        let sim = Sim::new(MEMORY).with(Fault::SkipUpload(n));
        let e = overlapped(&m, &plan, simulated(sim, compiler().unwrap())).unwrap_err().to_string();
        assert!(e.contains("has overwritten meanwhile"), "upload {n}: {e}");
    }
}

#[test]
fn inputs_that_are_gone_are_refused() {
    let Some((m, plan)) = model("mlp", 1.0) else { return };
    let mut session = m.session(&plan, simulated(Sim::new(MEMORY), compiler().unwrap())).unwrap();
    let data = m.data();
    let inputs = StepInputs { data: &data, learning_rate: 1e-3, step: 1, seed: 3, ..StepInputs::default() };
    let staged = session.stage(0, &inputs).unwrap();
    assert!(session.holds(&staged));
    session.run(0, &inputs, RunOptions::default()).unwrap();
    assert!(!session.holds(&staged));
    let e = session.start(staged, RunOptions::default()).err().unwrap().to_string();
    assert!(e.contains("stage them again"), "{e}");
    // A step that nobody waits for has ended before the next one.
    let staged = session.stage(0, &inputs).unwrap();
    drop(session.start(staged, RunOptions::default()).unwrap());
    session.run(0, &inputs, RunOptions::default()).unwrap();
}

/// The slot is part of the plan: of its bytes, its text and its rules.
#[test]
fn the_slot_stands_in_the_plan() {
    let Some((m, plan)) = model("mlp", 1.0) else { return };
    let facts = ops::cuda::registry(true);
    let graph = &plan.programs[0].graph;
    let offsets = plan.slot_offsets(graph).unwrap();
    assert_eq!(plan.slot_bytes, plan::slot_need(graph).unwrap());
    assert!(offsets.iter().all(|o| (plan.state_bytes - plan.slot_bytes..plan.state_bytes).contains(o)));
    assert!(plan.programs[0].inputs.iter().all(|o| *o >= plan.state_bytes));
    assert_eq!(from_bytes(&to_bytes(&plan).unwrap()).unwrap(), plan);
    assert_eq!(plan::text::parse(&plan::text::full(&plan).unwrap()).unwrap(), plan);
    assert!(plan::show(&plan, &validate(&plan, facts).unwrap()).contains("input slot"));
    let refused = |slot: u64, what: &str| {
        let mut p = plan.clone();
        p.slot_bytes = slot;
        let e = validate(&p, facts).unwrap_err().to_string();
        assert!(e.contains(what), "{slot}: {e}");
    };
    refused(plan.slot_bytes - 256, "do not fit the slot");
    refused(plan.slot_bytes + 256, "lies outside of the state section");
    refused(u64::MAX, "larger than the state section");
    let _ = m;
}

/// An error of each driver call of overlapped steps is a sentence, and breaks nothing but its session.
#[test]
fn errors_while_a_step_runs_are_sentences() {
    let Some((m, plan)) = model("mlp", 1.0) else { return };
    let device = |sim| simulated(sim, compiler().unwrap());
    let mut failed = 0;
    // Calls before it open the device.
    for n in 8.. {
        let sim = Sim::new(MEMORY).with(Fault::FailCall(n));
        let Err(e) = overlapped(&m, &plan, device(sim)) else { break };
        let e = e.to_string();
        assert!(e.contains("(planted)") && e.contains("checkpoints are intact"), "call {n}: {e}");
        failed += 1;
    }
    assert!(failed > 100, "only {failed} calls");
    overlapped(&m, &plan, device(Sim::new(MEMORY))).unwrap();
}
