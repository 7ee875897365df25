//! A smaller budget gives memory back to the system. Alone in its process, because it reads what the process holds.

use compiler::pipeline::Budget;
use onnx_models::{Common, Mlp};
use tests::variants::{Batch, Subject, floats, ints, step, trained};

fn anonymous_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = text.lines().find_map(|l| l.strip_prefix("RssAnon:")).expect("RssAnon");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") * 1024
}

#[test]
#[cfg(target_os = "linux")]
fn lowering_the_budget_lowers_what_is_resident() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wide.onnx");
    let mlp = Mlp { inputs: 32, hidden: vec![256; 6], classes: 10 };
    let common = Common { batch: 8192, dynamic: false, loss: true, seed: 0 };
    std::fs::write(&path, onnx_models::to_bytes(&mlp.build(&common)).unwrap()).unwrap();
    let subject = Subject::new(&path, None);
    let plan = subject.fixed(&[], &[Budget::OfKeepAll(1.0), Budget::OfKeepAll(0.5)]);
    let (large, small) = (plan.programs[0].certificate.arena, plan.programs[1].certificate.arena);
    assert!(large - small > 16 << 20, "{large} and {small}");
    let batch: Batch = vec![floats("x", &[8192, 32], 1), ints("target", &[8192], 10, 2)];
    let mut session = subject.session(plan.clone());
    step(&mut session, &batch, 1).unwrap();
    let before = anonymous_bytes();
    session.set_budget(small).unwrap();
    let after = anonymous_bytes();
    let given_back = before.saturating_sub(after);
    println!("arena {large} to {small}: {given_back} bytes given back");
    // All pages beyond the new size but for the one that it ends in, and what else the process does meanwhile.
    assert!(given_back + (4 << 20) >= large - small, "{before} before, {after} after");
    step(&mut session, &batch, 2).unwrap();
    assert!(anonymous_bytes() <= after + (4 << 20), "the smaller program stays in its arena");
    session.set_budget(large).unwrap();
    let mut steady = subject.session(plan);
    step(&mut steady, &batch, 1).unwrap();
    step(&mut steady, &batch, 2).unwrap();
    assert!(trained(&session) == trained(&steady));
}
