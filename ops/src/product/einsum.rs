//! Einsum: sums of products named by letters, lowered to transposes, sums, elementwise and matrix products.
//!
//! Operands are contracted from left to right. What a letter is to a pair decides where it goes: letters of both that are still needed are
//! the batch, letters of both that are not are summed by the product, letters of one side are its rows or columns.

use super::matmul::same_dim;
use crate::{Builder, OpError, onnx::ImportCx};
use graph::{Dim, Shape, ValueId};

/// A letter, or an axis under an ellipsis, counted from the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Ellipsis(usize),
    Letter(char),
}

/// A value whose axes have labels.
#[derive(Clone, Debug)]
struct Operand {
    value: ValueId,
    labels: Vec<Label>,
}

/// The rule of `Einsum`.
pub(super) fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let equation = cx.attrs.str_or("equation", "")?.to_owned();
    let inputs: Vec<ValueId> = (0..cx.inputs.len()).map(|i| cx.input(i)).collect::<Result<_, _>>()?;
    let ranks: Vec<usize> = inputs.iter().map(|v| cx.b.ty(*v).shape.rank()).collect();
    let (terms, output) = parse(&equation, &ranks)?;
    let mut operands: Vec<Operand> =
        inputs.into_iter().zip(terms).map(|(value, labels)| Operand { value, labels }).collect();
    for (i, o) in operands.iter().enumerate() {
        if (1..o.labels.len()).any(|k| o.labels[..k].contains(&o.labels[k])) {
            return Err(OpError::unsupported(format!(
                "the repeated index (diagonal) of input {i} in {equation:?}"
            )));
        }
    }
    operands.reverse();
    let mut left = operands.pop().ok_or_else(|| OpError::invalid("Einsum needs an input"))?;
    while let Some(right) = operands.pop() {
        let needed = |l: &Label| output.contains(l) || operands.iter().any(|o| o.labels.contains(l));
        left = contract(cx.b, left, right, &needed)?;
    }
    let left = keep(cx.b, left, |l| output.contains(l))?;
    let perm = positions(&left.labels, &output)?;
    let y = cx.b.transpose(left.value, &perm)?;
    cx.set(0, y);
    Ok(())
}

/// Labels of each input and of the output. Without an arrow the output has the ellipsis, then the letters that occur once, sorted.
fn parse(equation: &str, ranks: &[usize]) -> Result<(Vec<Vec<Label>>, Vec<Label>), OpError> {
    let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match text.split_once("->") {
        Some((l, r)) => (l, Some(r)),
        None => (text.as_str(), None),
    };
    let bad = |what: &str| OpError::invalid(format!("equation {equation:?}: {what}"));
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != ranks.len() {
        return Err(bad(&format!("it names {} inputs, {} are given", terms.len(), ranks.len())));
    }
    let mut inputs = Vec::new();
    let mut widest = None;
    for (term, rank) in terms.iter().zip(ranks) {
        let letters = term.replacen("...", "", 1).chars().count();
        let hidden =
            rank.checked_sub(letters).ok_or_else(|| bad(&format!("{term:?} has more letters than axes")))?;
        if term.contains("...") {
            widest = widest.max(Some(hidden));
        } else if hidden > 0 {
            return Err(bad(&format!("{term:?} has fewer letters than its {rank} axes")));
        }
        inputs.push(labels(term, hidden).ok_or_else(|| bad("a letter or ... is expected"))?);
    }
    let output = match right {
        Some(r) => {
            let out = labels(r, widest.unwrap_or(0)).ok_or_else(|| bad("a letter or ... is expected"))?;
            let known = |l: &Label| matches!(l, Label::Ellipsis(_)) || inputs.iter().any(|i| i.contains(l));
            if !out.iter().all(known) || (1..out.len()).any(|k| out[..k].contains(&out[k])) {
                return Err(bad("the output must have letters of the inputs, each once"));
            }
            if widest.unwrap_or(0) > 0 && !r.contains("...") {
                return Err(bad("the output leaves out the ellipsis"));
            }
            out
        }
        None => {
            let mut letters: Vec<Label> =
                inputs.iter().flatten().copied().filter(|l| matches!(l, Label::Letter(_))).collect();
            letters.sort_unstable();
            let once = |l: &&Label| letters.iter().filter(|x| x == l).count() == 1;
            let ellipsis = (0..widest.unwrap_or(0)).rev().map(Label::Ellipsis);
            ellipsis.chain(letters.iter().filter(once).copied()).collect()
        }
    };
    Ok((inputs, output))
}

/// The labels of one term whose ellipsis stands for `hidden` axes.
fn labels(term: &str, hidden: usize) -> Option<Vec<Label>> {
    let letters = |s: &str| s.chars().map(|c| c.is_ascii_alphabetic().then_some(Label::Letter(c))).collect();
    match term.split_once("...") {
        None => letters(term),
        Some((l, r)) => {
            let (mut out, right): (Vec<Label>, Vec<Label>) = (letters(l)?, letters(r)?);
            out.extend((0..hidden).rev().map(Label::Ellipsis));
            out.extend(right);
            Some(out)
        }
    }
}

/// Where each of `wanted` lies in `labels`.
fn positions(labels: &[Label], wanted: &[Label]) -> Result<Vec<i64>, OpError> {
    let at = |w: &Label| labels.iter().position(|l| l == w).map(|i| i as i64);
    wanted
        .iter()
        .map(|w| at(w).ok_or_else(|| OpError::invalid("an output index occurs in no input")))
        .collect()
}

fn extent(b: &Builder<'_>, o: &Operand, l: Label) -> Option<Dim> {
    o.labels.iter().position(|x| *x == l).map(|i| b.ty(o.value).shape.0[i].clone())
}

/// Sums over the axes whose labels are not kept.
fn keep(b: &mut Builder<'_>, o: Operand, kept: impl Fn(&Label) -> bool) -> Result<Operand, OpError> {
    let axes: Vec<i64> = (0..o.labels.len()).filter(|i| !kept(&o.labels[*i])).map(|i| i as i64).collect();
    let value = b.reduce_sum(o.value, &axes, false)?;
    Ok(Operand { value, labels: o.labels.into_iter().filter(kept).collect() })
}

/// The product of two operands, summed over the labels that nobody needs any more.
fn contract(
    b: &mut Builder<'_>,
    x: Operand,
    y: Operand,
    needed: &impl Fn(&Label) -> bool,
) -> Result<Operand, OpError> {
    let one = Dim::constant(1);
    let (lx, ly) = (x.labels.clone(), y.labels.clone());
    // A summed label that one side has alone, or broadcasts, is summed before the product.
    let mut early = Vec::new();
    for l in lx.iter().filter(|l| ly.contains(l)) {
        let (dx, dy) = (extent(b, &x, *l), extent(b, &y, *l));
        let (Some(dx), Some(dy)) = (dx, dy) else { continue };
        if dx != one && dy != one {
            same_dim(&dx, &dy, "extents under one index")?;
        } else if dx != dy && !needed(l) {
            early.push(*l);
        }
    }
    let x = keep(b, x, |l| needed(l) || (ly.contains(l) && !early.contains(l)))?;
    let y = keep(b, y, |l| needed(l) || (lx.contains(l) && !early.contains(l)))?;
    let both = |l: &&Label| y.labels.contains(l);
    let batch: Vec<Label> = x.labels.iter().filter(both).filter(|l| needed(l)).copied().collect();
    let summed: Vec<Label> = x.labels.iter().filter(both).filter(|l| !needed(l)).copied().collect();
    let rows: Vec<Label> = x.labels.iter().filter(|l| !both(l)).copied().collect();
    let columns: Vec<Label> = y.labels.iter().filter(|l| !x.labels.contains(l)).copied().collect();
    let dims = |b: &Builder<'_>, o: &Operand, ls: &[Label]| -> Vec<Dim> {
        ls.iter().filter_map(|l| extent(b, o, *l)).collect()
    };
    let (row_dims, column_dims) = (dims(b, &x, &rows), dims(b, &y, &columns));
    let value = if summed.is_empty() {
        let vx = arrange(b, &x, &[&batch, &rows])?;
        let mut shape = b.ty(vx).shape.clone();
        shape.0.extend(columns.iter().map(|_| one.clone()));
        let vx = b.reshape(vx, &shape)?;
        let vy = arrange(b, &y, &[&batch, &columns])?;
        let mut shape = b.ty(vy).shape.clone();
        shape.0.splice(batch.len()..batch.len(), rows.iter().map(|_| one.clone()));
        let vy = b.reshape(vy, &shape)?;
        b.call("Mul", &[vx, vy])?
    } else {
        let (vx, tx) = matrices(b, &x, &batch, &rows, &summed, false)?;
        let (vy, ty) = matrices(b, &y, &batch, &columns, &summed, true)?;
        let product = b.matmul(vx, vy, tx, ty)?;
        let mut shape = b.ty(product).shape.0[..batch.len()].to_vec();
        shape.extend(row_dims);
        shape.extend(column_dims);
        b.reshape(product, &Shape(shape))?
    };
    Ok(Operand { value, labels: [batch, rows, columns].concat() })
}

/// The operand with its axes in the order of these groups of labels.
fn arrange(b: &mut Builder<'_>, o: &Operand, groups: &[&[Label]]) -> Result<ValueId, OpError> {
    let perm = positions(&o.labels, &groups.concat())?;
    b.transpose(o.value, &perm)
}

/// The operand as a batch of matrices, and whether they must be transposed to have `free` as rows (columns if `right`).
fn matrices(
    b: &mut Builder<'_>,
    o: &Operand,
    batch: &[Label],
    free: &[Label],
    summed: &[Label],
    right: bool,
) -> Result<(ValueId, bool), OpError> {
    // As it lies, if that is one of the two orders; otherwise the one that needs no transposed product.
    let free_first = if o.labels == [batch, free, summed].concat() {
        true
    } else if o.labels == [batch, summed, free].concat() {
        false
    } else {
        !right
    };
    let (first, second) = if free_first { (free, summed) } else { (summed, free) };
    let v = arrange(b, o, &[batch, first, second])?;
    let shape = &b.ty(v).shape.0;
    let product = |d: &[Dim]| d.iter().fold(Dim::constant(1), |n, d| n.mul(d));
    let (lead, rest) = shape.split_at(batch.len());
    let mut out = lead.to_vec();
    out.extend([product(&rest[..first.len()]), product(&rest[first.len()..])]);
    let v = b.reshape(v, &Shape(out))?;
    Ok((v, free_first == right))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::{BatchNormMode, DropoutMode, ImportOptions, find_rule};
    use graph::{Attrs, DType, Graph, InputRole, Literal, TensorType};
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
                given.insert(
                    v,
                    Literal::new(DType::F64, s.iter().map(|d| *d as u64).collect(), bytes).unwrap(),
                );
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
        let all = crate::cpu::interpret(&graph, &given).map_err(|e| e.to_string())?;
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
}
