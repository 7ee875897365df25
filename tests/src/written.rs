//! Models that are written here, walked at every step by a session.

use compiler::{
    cost::DeviceProfile,
    dynamic,
    import::{self, trainable},
    train::{Optimizer, TrainOptions},
};
use onnx_models::ModelProto;
use runtime::{CpuDevice, Device, DynamicReport, LoadOptions, RunOptions, Session, StepInputs};

/// One input: name, extents, elements.
pub type Array = (&'static str, Vec<u64>, Vec<u8>);

/// A session that trains a written model with SGD, whatever is known of it, as a dynamic program.
///
/// # Panics
///
/// If the model cannot be compiled: the test has nothing to run then.
pub fn session(model: &ModelProto, pool: u64) -> Session {
    session_of(&onnx_models::to_bytes(model).expect("bytes"), pool)
}

/// As [`session`], of a model as a file has it.
///
/// # Panics
///
/// As [`session`].
pub fn session_of(model: &[u8], pool: u64) -> Session {
    session_as(model, pool, |_| {})
}

/// As [`session_of`], with the training step changed.
///
/// # Panics
///
/// As [`session`].
pub fn session_as(model: &[u8], pool: u64, change: impl FnOnce(&mut TrainOptions)) -> Session {
    made(model, pool, Box::new(CpuDevice::new(1).expect("a device")), change)
}

/// As [`session_of`], on a device.
///
/// # Panics
///
/// As [`session`].
pub fn session_on(model: &[u8], pool: u64, device: Box<dyn Device>) -> Session {
    made(model, pool, device, |_| {})
}

fn made(model: &[u8], pool: u64, device: Box<dyn Device>, change: impl FnOnce(&mut TrainOptions)) -> Session {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("model.onnx");
    std::fs::write(&path, model).expect("a file");
    let how = import::Options::default();
    let open = import::import_open(&path, &how).unwrap_or_else(|e| panic!("{e}"));
    let chosen = trainable::select(&open.graph, &open.candidates, &[], &[]).unwrap_or_else(|e| panic!("{e}"));
    let mut train = TrainOptions {
        loss: None,
        output: None,
        label: "target".to_owned(),
        class_axis: None,
        ignore_index: None,
        optimizer: Optimizer::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
        clip_norm: None,
        accumulate: 1,
        trainable: chosen,
        amp: None,
    };
    change(&mut train);
    let rates = DeviceProfile::cpu();
    let request = dynamic::Request::new(&open, how.ops, Some(&train), &rates);
    // Room for the state; how far a loop may go that only data end follows from the budget.
    let budget = pool.saturating_add(1 << 28);
    let plan = dynamic::plan(&request, budget, Some(pool)).unwrap_or_else(|e| panic!("{e}"));
    Session::load(plan, device, &mut crate::Weights(&open.weights), LoadOptions::default())
        .unwrap_or_else(|e| panic!("{e}"))
}

/// One step: the loss's bits and what it reports, or the refusal.
///
/// # Errors
///
/// The session's, as text.
pub fn step(s: &mut Session, data: &[Array], number: i64) -> Result<(u64, DynamicReport), String> {
    let bytes: Vec<(&str, &[u8])> = data.iter().map(|(n, _, b)| (*n, b.as_slice())).collect();
    let shapes: Vec<(&str, &[u64])> = data.iter().map(|(n, s, _)| (*n, s.as_slice())).collect();
    let inputs = StepInputs { data: &bytes, shapes: &shapes, learning_rate: 0.01, step: number, seed: 0 };
    let r = s.run(0, &inputs, RunOptions { check_recompute: true, measure: false });
    let r = r.map_err(|e| e.to_string())?;
    Ok((r.loss().unwrap_or(f64::NAN).to_bits(), r.report.dynamic.unwrap_or_default()))
}

/// All states of a session.
///
/// # Panics
///
/// If a state of the plan is not there.
pub fn state(s: &Session) -> Vec<Vec<u8>> {
    s.plan().state.iter().map(|e| s.state(&e.name).unwrap_or_else(|e| panic!("{e}"))).collect()
}

/// The pool that a refusal says would do.
pub fn least(refusal: &str) -> Option<u64> {
    refusal.rsplit_once("a pool of ")?.1.split(' ').next()?.parse().ok()
}

/// Elements between -1 and 1.
pub fn floats(n: u64, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 41) as f32 / (1u32 << 22) as f32 - 1.0
    };
    (0..n).flat_map(|_| next().to_le_bytes()).collect()
}

/// Elements of 64-bit integers.
pub fn ints(v: &[i64]) -> Vec<u8> {
    v.iter().flat_map(|i| i.to_le_bytes()).collect()
}
