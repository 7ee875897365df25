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
