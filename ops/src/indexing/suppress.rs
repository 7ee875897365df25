//! NonMaxSuppression where boxes and scores are known: the number of boxes that are kept depends on them.

use crate::{OpError, onnx::ImportCx};
use graph::{DType, Literal};

/// NonMaxSuppression: (batch, class, box) of every box that is kept, best first within a class.
pub(super) fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let what = "the number of boxes that are kept";
    let missing = |what: &str| OpError::invalid(format!("{what} are missing"));
    let boxes = cx.opt_literal(0, what)?.ok_or_else(|| missing("the boxes (input 0)"))?;
    let scores = cx.opt_literal(1, what)?.ok_or_else(|| missing("the scores (input 1)"))?;
    let number = |i: usize| match cx.opt_literal(i, what)?.map(|l| l.to_floats()).as_deref() {
        None => Ok(None),
        Some([x]) => Ok(Some(*x)),
        Some(_) => Err(OpError::invalid(format!("input {i} must be one number"))),
    };
    let (&[batches, n, 4], &[b, classes, m]) = (boxes.shape(), scores.shape()) else {
        return Err(OpError::invalid(
            "boxes must have shape [batch, boxes, 4], scores [batch, classes, boxes]",
        ));
    };
    if b != batches || m != n {
        return Err(OpError::invalid(format!("{n} boxes in {batches} batches, {m} scores in {b}")));
    }
    let most = number(2)?.unwrap_or(0.0).max(0.0) as usize;
    let (overlap, least) = (number(3)?.unwrap_or(0.0), number(4)?);
    let centered = cx.attrs.int_or("center_point_box", 0)? != 0;
    let corners: Vec<[f64; 4]> = boxes.to_floats().chunks_exact(4).map(|c| corners(c, centered)).collect();
    let scores = scores.to_floats();
    let (n, classes) = (n as usize, classes as usize);
    let mut rows = Vec::new();
    let mut count = 0;
    for line in 0..batches as usize * classes {
        let (batch, class) = (line / classes.max(1), line % classes.max(1));
        let kept = keep(
            &corners[batch * n..(batch + 1) * n],
            &scores[line * n..(line + 1) * n],
            most,
            overlap,
            least,
        );
        count += kept.len();
        rows.extend(kept.into_iter().flat_map(|k| [batch, class, k]).flat_map(|i| (i as i64).to_le_bytes()));
    }
    let out =
        Literal::new(DType::I64, vec![count as u64, 3], rows).map_err(|e| OpError::invalid(e.to_string()))?;
    let v = cx.b.constant(out);
    cx.set(0, v);
    Ok(())
}

/// Lower and upper ends along both axes, from two opposite corners in any order, or from center and size.
fn corners(c: &[f64], centered: bool) -> [f64; 4] {
    let [a, b, c, d] = [c[0], c[1], c[2], c[3]];
    if centered {
        return [a - c / 2.0, b - d / 2.0, a + c / 2.0, b + d / 2.0];
    }
    [a.min(c), b.min(d), a.max(c), b.max(d)]
}

/// Boxes in the order of their scores (of equal ones the first first), without those that overlap a kept one by more than `overlap` of
/// what both cover.
fn keep(boxes: &[[f64; 4]], scores: &[f64], most: usize, overlap: f64, least: Option<f64>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..boxes.len()).filter(|k| least.is_none_or(|l| scores[*k] > l)).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    let mut kept: Vec<usize> = Vec::new();
    for k in order {
        if kept.len() == most {
            break;
        }
        if kept.iter().all(|j| shared(&boxes[*j], &boxes[k]) <= overlap) {
            kept.push(k);
        }
    }
    kept
}

/// Intersection over union.
fn shared(a: &[f64; 4], b: &[f64; 4]) -> f64 {
    let area = |c: &[f64; 4]| (c[2] - c[0]) * (c[3] - c[1]);
    let both = [a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])];
    let common = (both[2] - both[0]).max(0.0) * (both[3] - both[1]).max(0.0);
    let union = area(a) + area(b) - common;
    if union > 0.0 { common / union } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_that_overlap_a_better_one_go() {
        let boxes = [[0.0, 0.0, 1.0, 1.0], [0.0, 0.1, 1.0, 1.1], [0.0, 10.0, 1.0, 11.0]];
        let scores = [0.5, 0.9, 0.7];
        assert_eq!(keep(&boxes, &scores, 3, 0.5, None), [1, 2]);
        assert_eq!(keep(&boxes, &scores, 3, 0.9, None), [1, 2, 0]);
        assert_eq!(keep(&boxes, &scores, 1, 0.9, None), [1]);
        assert_eq!(keep(&boxes, &scores, 3, 0.9, Some(0.7)), [1]);
        assert_eq!(corners(&[1.0, 1.0, 0.0, 0.0], false), [0.0, 0.0, 1.0, 1.0]);
        assert_eq!(corners(&[0.5, 0.5, 1.0, 1.0], true), [0.0, 0.0, 1.0, 1.0]);
    }
}
