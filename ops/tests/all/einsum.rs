//! Einsum against sums by its definition.

use graph::{Attrs, DType, Graph, InputRole, Literal, TensorType};
use ops::{
    Builder,
    onnx::{BatchNormMode, DropoutMode, ImportCx, ImportOptions, find_rule},
};
use std::collections::BTreeMap;

/// Runs an equation on tensors of small integers.
fn run(equation: &str, shapes: &[&[usize]]) -> Result<(Vec<u64>, Vec<f64>), String> {
    let mut graph = Graph::default();
    let mut given = BTreeMap::new();
    let inputs: Vec<_> = shapes
        .iter()
        .enumerate()
        .map(|(i, s)| {
            let v = graph.add_input(format!("x{i}"), TensorType::new(DType::F64, *s), InputRole::Data);
            let bytes = values(i, s).into_iter().flat_map(f64::to_le_bytes).collect::<Vec<u8>>();
            given.insert(v, Literal::new(DType::F64, s.iter().map(|d| *d as u64).collect(), bytes).unwrap());
            Some(v)
        })
        .collect();
    let mut b = Builder::new(&mut graph);
    let mut cx = ImportCx {
        b: &mut b,
        options: ImportOptions {
            training: true,
            batchnorm: BatchNormMode::Auto,
            dropout: DropoutMode::Auto,
            unbiased_running_variance: false,
        },
        op_type: "Einsum",
        opset: 17,
        attrs: &Attrs::new().with("equation", equation),
        inputs: &inputs,
        used: &[true],
        outputs: vec![],
        remarks: vec![],
    };
    (find_rule("", "Einsum").unwrap().import)(&mut cx).map_err(|e| e.to_string())?;
    let y = cx.outputs[0].unwrap();
    let all = ops::cpu::interpret(&graph, &given).map_err(|e| e.to_string())?;
    Ok((all[&y].shape().to_vec(), all[&y].to_floats()))
}

fn values(i: usize, shape: &[usize]) -> Vec<f64> {
    (0..shape.iter().product()).map(|k| ((k * 7 + i * 5) % 11) as f64 - 4.0).collect()
}

/// The sum by its definition, for equations of letters with an arrow.
fn naive(equation: &str, shapes: &[&[usize]]) -> Vec<f64> {
    let (left, right) = equation.split_once("->").unwrap();
    let terms: Vec<Vec<char>> = left.split(',').map(|t| t.chars().collect()).collect();
    let mut letters: Vec<char> = right.chars().collect();
    letters.extend(terms.iter().flatten().filter(|c| !right.contains(**c)));
    let mut seen = Vec::new();
    letters.retain(|c| {
        !seen.contains(c) && {
            seen.push(*c);
            true
        }
    });
    let size = |c: char| {
        let of = |(t, s): (&Vec<char>, &&[usize])| t.iter().position(|x| *x == c).map(|i| s[i]);
        terms.iter().zip(shapes).filter_map(of).max().unwrap()
    };
    let sizes: Vec<usize> = letters.iter().map(|c| size(*c)).collect();
    let outputs: usize = right.chars().map(size).product();
    let mut out = vec![0.0; outputs];
    let total: usize = sizes.iter().product();
    for k in 0..total {
        let mut rest = k;
        let mut at = vec![0; letters.len()];
        for i in (0..letters.len()).rev() {
            (at[i], rest) = (rest % sizes[i], rest / sizes[i]);
        }
        let product: f64 = terms
            .iter()
            .zip(shapes)
            .enumerate()
            .map(|(i, (t, s))| {
                let flat = t.iter().zip(*s).fold(0, |flat, (c, n)| {
                    let p = at[letters.iter().position(|l| l == c).unwrap()];
                    flat * n + if *n == 1 { 0 } else { p }
                });
                values(i, s)[flat]
            })
            .product();
        out[k / (total / outputs)] += product;
    }
    out
}

#[test]
fn equations_equal_their_definition() {
    let cases: &[(&str, &[&[usize]])] = &[
        ("ij,jk->ik", &[&[2, 3], &[3, 4]]),
        ("ij,kj->ki", &[&[2, 3], &[4, 3]]),
        ("bhqd,bhkd->bhqk", &[&[2, 3, 2, 4], &[2, 3, 5, 4]]),
        ("bqhd,bkhd->bhqk", &[&[2, 3, 2, 4], &[2, 5, 2, 4]]),
        ("i,j->ij", &[&[3], &[4]]),
        ("i,i->", &[&[3], &[3]]),
        ("ij->ji", &[&[2, 3]]),
        ("ij->j", &[&[2, 3]]),
        ("ij,ij->ij", &[&[2, 3], &[2, 3]]),
        ("ijk,k->ij", &[&[2, 3, 4], &[4]]),
        ("ab,bc,cd->ad", &[&[2, 3], &[3, 2], &[2, 4]]),
        ("aij,jk->ik", &[&[2, 2, 3], &[3, 2]]),
        ("ij,jk->ik", &[&[2, 3], &[1, 4]]),
        ("bi,bi->bi", &[&[1, 3], &[2, 3]]),
    ];
    for (equation, shapes) in cases {
        let (_, got) = run(equation, shapes).unwrap_or_else(|e| panic!("{equation}: {e}"));
        assert_eq!(got, naive(equation, shapes), "{equation}");
    }
}

#[test]
fn implicit_outputs_and_ellipses() {
    let same = |a: &str, b: &str, shapes: &[&[usize]]| assert_eq!(run(a, shapes), run(b, shapes), "{a}");
    same("ba,ac", "ba,ac->bc", &[&[2, 3], &[3, 4]]);
    same("ba", "ba->ab", &[&[2, 3]]);
    same("...ij,...jk->...ik", "abij,abjk->abik", &[&[2, 3, 2, 4], &[2, 3, 4, 5]]);
    same("...ij,jk", "bij,jk->bik", &[&[2, 2, 3], &[3, 4]]);
    let (shape, _) = run("i...,...j->...ij", &[&[2, 3, 1], &[4, 5]]).unwrap();
    assert_eq!(shape, [3, 4, 2, 5]);
}

#[test]
fn equations_that_do_not_fit_are_refused() {
    let error = |e: &str, shapes: &[&[usize]]| run(e, shapes).unwrap_err();
    assert!(error("ii->i", &[&[2, 2]]).contains("diagonal"));
    assert!(error("ij->ik", &[&[2, 2]]).contains("letters of the inputs"));
    assert!(error("ij,jk->ik", &[&[2, 3], &[4, 2]]).contains("differ: 3 and 4"));
    assert!(error("ijk->i", &[&[2, 2]]).contains("more letters"));
    assert!(error("i->i", &[&[2, 2]]).contains("fewer letters"));
    assert!(error("i1->i", &[&[2, 2]]).contains("a letter"));
    assert!(error("...i->i", &[&[2, 2]]).contains("ellipsis"));
    assert!(error("i,i->i", &[&[2]]).contains("2 inputs"));
}
