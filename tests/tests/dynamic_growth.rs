//! Shapes that come again and again leave no trace in memory. Alone in its process, whose memory it measures.

use onnx_models::{Common, LoopLstm};
use tests::written::{Array, floats, ints, session, step};

/// Bytes of this process that are in memory, where the system tells.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(text.split_whitespace().nth(1)?.parse::<u64>().ok()? * 4096)
}

#[test]
fn a_thousand_steps_of_alternating_shapes_do_not_grow() {
    let model = LoopLstm { layers: 1, inputs: 4, width: 8, steps: 8, classes: 3 };
    let model = model.build(&Common { batch: 1, dynamic: true, loss: true, seed: 0 });
    let data = |batch: u64| -> Vec<Array> {
        let target: Vec<i64> = (0..batch as i64).map(|i| i % 3).collect();
        vec![("x", vec![batch, 8, 4], floats(batch * 32, 1)), ("target", vec![batch], ints(&target))]
    };
    let peak = step(&mut session(&model, 1 << 24), &data(9), 1).unwrap().1.pool.peak;
    let mut s = session(&model, plan::align(peak * 7 / 10));
    // More shapes than are kept, so that keeping is bounded, too.
    let shapes: Vec<Vec<Array>> = [3, 9, 1, 2, 4, 5, 6, 7, 8, 10].into_iter().map(data).collect();
    let mut before = None;
    for number in 0..1_000usize {
        let which = if number < 100 { number % shapes.len() } else { number % 2 };
        let (bits, _) = step(&mut s, &shapes[which], number as i64 + 1).unwrap();
        assert!(f64::from_bits(bits).is_finite());
        if number == 200 {
            before = resident();
        }
    }
    let (Some(before), Some(after)) = (before, resident()) else { return };
    assert!(after <= before + (1 << 20), "{before} bytes after 200 steps, {after} after 1,000");
}
