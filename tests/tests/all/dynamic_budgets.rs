//! A dynamic program takes the budget it is given, step by step, and gives memory back. Alone in its process, because it reads what the
//! process holds.

use onnx_models::{Common, LoopLstm};
use tests::written::{Array, floats, ints, session, state, step};

fn anonymous_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = text.lines().find_map(|l| l.strip_prefix("RssAnon:")).expect("RssAnon");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") * 1024
}

#[test]
#[cfg(target_os = "linux")]
fn a_dynamic_program_moves_between_budgets() {
    let model = LoopLstm { layers: 1, inputs: 8, width: 64, steps: 24, classes: 5 };
    let model = model.build(&Common { batch: 2, dynamic: true, loss: true, seed: 3 });
    let n = 512;
    let target: Vec<i64> = (0..n as i64).map(|i| i % 5).collect();
    let data: Vec<Array> =
        vec![("x", vec![n, 24, 8], floats(n * 24 * 8, 1)), ("target", vec![n], ints(&target))];
    let mut steady = session(&model, 1 << 28);
    let wanted: Vec<u64> = (1..=7).map(|i| step(&mut steady, &data, i).unwrap().0).collect();
    let peak = step(&mut session(&model, 1 << 28), &data, 1).unwrap().1.pool.peak;
    let mut s = session(&model, plan::align(peak));
    let (full, state_bytes) = (s.plan().arena, s.plan().state_bytes);
    let half = plan::align(state_bytes + peak / 2);
    let mut losses = Vec::new();
    for i in 1..=7 {
        let before = anonymous_bytes();
        match i {
            3 => s.set_budget(half).unwrap(),
            5 => s.set_budget(u64::MAX).unwrap(),
            6 => s.set_budget(plan::align(state_bytes + peak * 3 / 4)).unwrap(),
            _ => {}
        }
        let after = anonymous_bytes();
        let (loss, report) = step(&mut s, &data, i).unwrap_or_else(|e| panic!("step {i}: {e}"));
        losses.push(loss);
        assert!(report.pool.peak <= s.budget() - state_bytes, "step {i}: {report:?}");
        assert_eq!(report.remats > 0, s.budget() < full, "step {i}: {report:?}");
        if i == 3 {
            assert!(
                peak > 16 << 20 && before - after + (4 << 20) >= full - half,
                "{before}, {after}: {peak}"
            );
            assert!(anonymous_bytes() <= after + (8 << 20), "the step stays in its budget");
        }
    }
    assert!(losses == wanted && state(&s) == state(&steady));
    // Too little is refused, and the session goes on.
    let before = state(&s);
    s.set_budget(state_bytes + 4096).unwrap();
    assert!(step(&mut s, &data, 8).unwrap_err().contains("out of memory") && state(&s) == before);
    s.set_budget(half).unwrap();
    assert_eq!(step(&mut s, &data, 8).unwrap().0, step(&mut steady, &data, 8).unwrap().0);
}
