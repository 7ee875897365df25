//! The model files in git are what the generator writes.

use onnx_models::{Common, Transformer, tiny, to_bytes};
use std::path::Path;

#[test]
fn files_are_up_to_date_and_small() {
    for (name, model) in tiny() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let bytes = std::fs::read(&file).unwrap_or_default();
        let expected = to_bytes(&model).unwrap();
        assert!(bytes.len() < 2 << 20, "{name} has {} bytes", bytes.len());
        assert!(
            bytes == expected,
            "{name} is out of date: cargo run -p onnx-models -- tiny --dir onnx-models"
        );
    }
}

#[test]
fn seeds_change_weights_and_nothing_else() {
    let build = |seed| {
        let t = Transformer { layers: 1, width: 8, heads: 2, vocabulary: 16, sequence: 4 };
        t.build(&Common { batch: 2, dynamic: true, loss: false, seed })
    };
    let (a, b) = (build(1), build(2));
    assert_eq!(a.graph.node, b.graph.node);
    assert_ne!(a.graph.initializer, b.graph.initializer);
    assert_eq!(to_bytes(&a).unwrap(), to_bytes(&build(1)).unwrap());
}
