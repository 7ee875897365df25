//! Random graphs: exact rewriting keeps every bit, every name that matters, and never makes a graph dearer.

use crate::support::{compare, input, number, rewritten, time};
use graph::{Attrs, Graph, ValueId};
use ops::Builder;
use rand::{Rng, SeedableRng, rngs::StdRng};
use rewrite::{Level, Stage};

fn random(seed: u64) -> Graph {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut g = Graph::default();
    let mut b = Builder::new(&mut g);
    let mut values: Vec<ValueId> = vec![input(&mut b, &[2, 1, 3, 4]), input(&mut b, &[2, 1, 3, 4])];
    for _ in 0..rng.random_range(3..25) {
        let x = values[rng.random_range(0..values.len())];
        let dims = b.ty(x).shape.fixed().unwrap();
        let made = match rng.random_range(0..8) {
            0 => {
                let mut perm = [0i64, 1, 2, 3];
                for i in (1..4).rev() {
                    perm.swap(i, rng.random_range(0..=i));
                }
                b.op("Transpose", Attrs::new().with("perm", &perm[..]), &[x])
            }
            1 => {
                let mut to: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
                to.swap(rng.random_range(0..4), rng.random_range(0..4));
                b.op("Reshape", Attrs::new().with("shape", to), &[x])
            }
            2 => b.call("Neg", &[x]),
            3 => {
                let one = number(&mut b, 1.0);
                b.call(["Mul", "Div"][rng.random_range(0..2)], &[x, one])
            }
            4 => b.call("Tanh", &[x]),
            5 => {
                let zero = number(&mut b, 0.0);
                b.call(["Sub", "Add"][rng.random_range(0..2)], &[x, zero])
            }
            _ => {
                let same: Vec<ValueId> = values.iter().copied().filter(|v| b.ty(*v) == b.ty(x)).collect();
                let y = same[rng.random_range(0..same.len())];
                b.call(["Add", "Mul", "Sub"][rng.random_range(0..3)], &[x, y])
            }
        };
        values.push(made.unwrap());
    }
    let mut outputs: Vec<ValueId> = (0..3).map(|_| values[rng.random_range(0..values.len())]).collect();
    outputs.push(*values.last().unwrap());
    outputs.sort();
    outputs.dedup();
    g.outputs = outputs;
    g.pruned()
}

#[test]
fn exact_rewriting_keeps_every_bit() {
    let (mut before, mut after) = (0, 0);
    for seed in 0..300 {
        let g = random(seed);
        let done = rewritten(&g, Level::Exact, Stage::After).graph;
        compare(&g, &done, true);
        let total = |g: &Graph| g.nodes.iter().map(|n| time(g, n)).sum::<u64>();
        assert!(total(&done) <= total(&g), "seed {seed}: dearer than before\n{g}\n{done}");
        (before, after) = (before + g.nodes.len(), after + done.nodes.len());
        let same = |v: &ValueId, w: &ValueId| g.value(*v).name == done.value(*w).name;
        assert!(g.outputs.iter().zip(&done.outputs).all(|(v, w)| same(v, w)));
    }
    assert!(after * 10 < before * 9, "{before} nodes became {after}");
}

#[test]
fn other_levels_round_differently_at_most() {
    for seed in 0..60 {
        let g = random(seed);
        for level in [Level::Fast, Level::Memory] {
            compare(&g, &rewritten(&g, level, Stage::After).graph, false);
        }
    }
}
