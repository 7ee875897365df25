//! What is folded as a graph is built.

use graph::{DType, Graph};
use ops::Builder;

/// A constant that no kernel can fold is no error: the node stays.
#[test]
fn constants_without_a_kernel_are_not_folded() {
    for (dtype, folds) in [(DType::F32, true), (DType::F16, false), (DType::BF16, false)] {
        let mut graph = Graph::default();
        let mut b = Builder::new(&mut graph);
        let (x, y) = (b.scalar(dtype, 1.5), b.scalar(dtype, 2.0));
        let sum = b.call("Add", &[x, y]).unwrap();
        assert_eq!(b.literal(sum).is_some(), folds, "{dtype}");
        assert_eq!(graph.nodes.is_empty(), folds, "{dtype}");
    }
}
