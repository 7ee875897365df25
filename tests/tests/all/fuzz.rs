//! Hostile files: whatever the bytes, loading a plan or a model gives a result or an error, soon, and never panics.
//!
//! Seeded, so that a failure can be found again; `DTRC_FUZZ_SECONDS` (5 unless set) is how long models are tried, and
//! plans, half of it in either form.

use compiler::{
    cost::{CostModel, DeviceProfile},
    import,
    lower::lower,
    pipeline::programs,
};
use ops::Registry;
use plan::{MAGIC, Plan, VERSION, from_bytes, text, to_bytes, validate};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};
use tests::{reference::adamw, tiny};

/// Longest time for one input, on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(20);

fn seconds() -> Duration {
    let given = std::env::var("DTRC_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok());
    Duration::from_secs_f64(given.unwrap_or(5.0))
}

/// A few edits of bytes: bits, runs of extreme values, parts left out, repeated or moved. Most lie in `hot`, where structure is.
fn mutate(rng: &mut StdRng, bytes: &mut Vec<u8>, hot: usize) {
    for _ in 0..rng.random_range(1..4) {
        let reach = if rng.random_bool(0.8) { hot.min(bytes.len()) } else { bytes.len() };
        if reach == 0 {
            return;
        }
        let at = rng.random_range(0..reach);
        let n = rng.random_range(1..12).min(bytes.len() - at);
        match rng.random_range(0..8) {
            0 | 1 => bytes[at] ^= 1 << rng.random_range(0..8),
            2 => bytes[at] = bytes[at].wrapping_add(*[1, 255, 2, 128].choose(rng).unwrap()),
            3 => bytes[at] = *[0, 1, 0x7f, 0x80, 0xff].choose(rng).unwrap(),
            4 => bytes[at..at + n].fill(0xff),
            5 => drop(bytes.drain(at..at + n)),
            6 => {
                let part = bytes[at..at + n].to_vec();
                let to = rng.random_range(0..reach);
                bytes.splice(to..to, part);
            }
            _ => {
                let from = rng.random_range(0..reach);
                let n = n.min(bytes.len() - from);
                let to = at.min(bytes.len() - n);
                bytes.copy_within(from..from + n, to);
            }
        }
    }
}

/// Runs `target` on numbered cases until the time is over; fails with the cases that panicked or took too long. What the target returns
/// is counted and printed.
fn fuzz(name: &str, time: Duration, mut target: impl FnMut(&mut StdRng) -> &'static str) {
    let start = Instant::now();
    let mut failures: BTreeMap<String, u64> = BTreeMap::new();
    let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut case, mut slowest) = (0u64, Duration::ZERO);
    let only: Option<u64> = std::env::var("DTRC_FUZZ_CASE").ok().and_then(|s| s.parse().ok());
    while start.elapsed() < time {
        let n = only.unwrap_or(case);
        let before = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| target(&mut StdRng::seed_from_u64(n))));
        let took = before.elapsed();
        slowest = slowest.max(took);
        match result {
            Ok(end) => *ends.entry(end).or_default() += 1,
            Err(e) => {
                let text = e.downcast_ref::<String>().cloned();
                let text = text.or_else(|| e.downcast_ref::<&str>().map(|s| s.to_string()));
                failures.entry(text.unwrap_or_default()).or_insert(n);
            }
        }
        if took > PATIENCE {
            failures.entry(format!("took {took:?}")).or_insert(n);
        }
        case += 1;
        if only.is_some() {
            break;
        }
    }
    println!("{name}: {case} cases, the slowest {slowest:?}; {ends:?}");
    assert!(failures.is_empty(), "{name}: panics and the first case of each: {failures:#?}");
}

/// The bytes with a header that fits them.
fn sealed(body: &[u8]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(body.len() as u64).to_le_bytes());
    out.extend_from_slice(blake3::hash(body).as_bytes());
    out.extend_from_slice(body);
    out
}

fn some_plans() -> Vec<Plan> {
    let mut plans = Vec::new();
    for file in [tiny::TINY[0], tiny::TINY[2]] {
        plans.extend(tiny::plans(&tiny::imported(file), adamw(), &[0.6]));
    }
    plans
}

/// A plan that passes for one of its own: its hash is right, so that what follows is checked.
fn with_right_hash(mut plan: Plan) -> Plan {
    let graphs = plan.programs.iter().map(|p| (p.kind, &p.graph, p.dynamic.as_ref()));
    plan.numerics = plan::numerics(plan.device, plan.accumulate, graphs, &Registry);
    plan
}

#[test]
fn plan_files() {
    let plans: Vec<Vec<u8>> = some_plans().iter().map(|p| to_bytes(p).unwrap()).collect();
    const HEADER: usize = 52;
    for bytes in &plans {
        assert_eq!(&sealed(&bytes[HEADER..]), bytes, "the header is not understood");
    }
    fuzz("plan files", seconds() / 2, |rng| {
        let bytes = plans.choose(rng).unwrap();
        let mut body = bytes[HEADER..].to_vec();
        let hot = body.len();
        mutate(rng, &mut body, hot);
        let Ok(plan) = from_bytes(&sealed(&body)) else { return "not a plan" };
        if let Ok(text) = text::full(&plan) {
            // What reads names must read those of an enemy too.
            let _ = text::parse(&text);
        }
        let as_it_is = validate(&plan, &Registry).is_ok();
        let hashed = validate(&with_right_hash(plan), &Registry).is_ok();
        if as_it_is || hashed { "accepted" } else { "refused" }
    });
}

#[test]
fn plan_texts() {
    let plans: Vec<String> = some_plans().iter().map(|p| text::full(p).unwrap()).collect();
    fuzz("plan texts", seconds() / 2, |rng| {
        let mut bytes = plans.choose(rng).unwrap().clone().into_bytes();
        let hot = bytes.len();
        mutate(rng, &mut bytes, hot);
        let Ok(plan) = text::parse(&String::from_utf8_lossy(&bytes)) else { return "not a plan" };
        let again = text::full(&plan).map(|t| text::parse(&t).map(|p| to_bytes(&p)));
        if let Ok(again) = again {
            assert_eq!(again, Ok(to_bytes(&plan)), "the text of a parsed plan is another plan");
        }
        if validate(&with_right_hash(plan), &Registry).is_ok() { "accepted" } else { "refused" }
    });
}

#[test]
fn model_files() {
    let models: Vec<Vec<u8>> = tiny::TINY.iter().map(|f| std::fs::read(tiny::path(f)).unwrap()).collect();
    let costs = CostModel::estimated(DeviceProfile::cpu());
    fuzz("model files", seconds(), |rng| {
        let mut bytes = models.choose(rng).unwrap().clone();
        // Nodes stand first, and are small beside the weights.
        mutate(rng, &mut bytes, 6000);
        let Ok(imported) = import::import_bytes("model", bytes.into(), &import::Options::default()) else {
            return "not a model";
        };
        let options = tiny::train_options(&imported, adamw());
        let Ok((graphs, _)) = programs(&imported.graph, Some(&options), None) else {
            return "no training step";
        };
        let lowered = graphs.iter().all(|(_, g)| lower(g, &costs, 0).is_ok());
        if lowered { "lowered" } else { "not static" }
    });
}
