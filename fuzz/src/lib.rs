//! What the fuzz targets do with their bytes: whatever these are, the result is a value or an error.

use compiler::{
    cost::{CostModel, DeviceProfile},
    import::{Imported, Options, import_bytes, trainable},
    lower::lower,
    pipeline::programs,
    train::{Optimizer, TrainOptions},
};
use ops::Registry;
use plan::{MAGIC, Plan, VERSION, from_bytes, plan_numerics, text, validate};

/// Trains every parameter of a model by its own loss.
pub fn train_options(imported: &Imported) -> TrainOptions {
    let chosen = trainable::select(&imported.graph, &imported.candidates, &[], &[]).unwrap_or_default();
    TrainOptions {
        loss: None,
        output: None,
        label: "target".to_owned(),
        class_axis: None,
        ignore_index: None,
        optimizer: Optimizer::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 },
        clip_norm: None,
        accumulate: 1,
        trainable: chosen.iter().map(|n| n.to_string()).collect(),
        amp: None,
    }
}

/// Imports a model and builds its training step.
pub fn import(bytes: &[u8]) {
    let Ok(imported) = import_bytes("model", bytes.into(), &Options::default()) else { return };
    let Ok((graphs, _)) = programs(&imported.graph, Some(&train_options(&imported)), None) else { return };
    let costs = CostModel::estimated(DeviceProfile::cpu());
    for (_, g) in &graphs {
        let _ = lower(g, &costs, 0);
    }
}

/// The bytes of a plan behind a header that fits them: a checksum would keep the fuzzer out.
pub fn sealed(body: &[u8]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(body.len() as u64).to_le_bytes());
    out.extend_from_slice(blake3::hash(body).as_bytes());
    out.extend_from_slice(body);
    out
}

/// Bytes before a plan's own: those that [`sealed`] adds.
pub fn header() -> usize {
    sealed(&[]).len()
}

/// Reads a plan, writes it as text and back, and validates it, also as one whose hash is right.
pub fn plan(body: &[u8]) {
    let Ok(plan) = from_bytes(&sealed(body)) else { return };
    if let Ok(full) = text::full(&plan) {
        let _ = text::parse(&full);
    }
    let _ = validate(&plan, &Registry);
    let _ = validate(&with_right_hash(plan), &Registry);
}

fn with_right_hash(mut plan: Plan) -> Plan {
    plan.numerics = plan_numerics(&plan, &Registry);
    plan
}
